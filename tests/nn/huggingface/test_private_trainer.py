"""Hugging Face's trainer, private: the numbers of a loop by hand, resumed and in two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hf_models import adapted, collated, model
from private_loop import DIVISOR, HOW, LR, STEPS, C, Classifier, by_hand, items

import seepage as sp

torch.set_num_threads(1)
VIEW = {"view": sp.nn.Input(key="x")}


def trainer(folder: Path, net: object = None, data: object = None, **more: object):
    """Return a trainer of the run that ``by_hand`` makes."""
    import transformers

    private = {name: more.pop(name) for name in ("seed", "loss", "data_collator") if name in more}
    args = transformers.TrainingArguments(
        output_dir=str(folder),
        **{
            "max_steps": STEPS,
            "per_device_train_batch_size": DIVISOR,
            "max_grad_norm": C,
            "learning_rate": LR,
            "optim": "sgd",
            "lr_scheduler_type": "constant",
            "use_cpu": True,
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
            "remove_unused_columns": False,
        }
        | more,
    )
    given = HOW | (VIEW if net is None else {}) | private
    net = Classifier() if net is None else net
    return sp.nn.PrivateTrainer(net, args, train_dataset=data or items(), **given)


def flat(net: torch.nn.Module) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in net.parameters()]).numpy()


def test_the_trainer_gives_the_numbers_of_a_loop_by_hand(tmp_path: Path) -> None:
    hand, account = by_hand()
    run = trainer(tmp_path)
    with pytest.raises(sp.InputError, match="before training"):
        run.accountant_  # noqa: B018
    run.train()
    np.testing.assert_allclose(flat(run.model), flat(hand), rtol=1e-9)
    np.testing.assert_allclose(run.accountant_.records("dfil"), account.records("dfil"), rtol=1e-6)
    own, other = run.accountant_.privacy(1e-5), account.privacy(1e-5)
    assert own.epsilon == pytest.approx(other.epsilon, rel=1e-9)
    assert "add or remove" in str(own)
    with pytest.raises(sp.InputError, match="already trained"):
        run.train()


@pytest.mark.parametrize("seed", [11, None])
def test_the_trainer_resumes_bit_for_bit(tmp_path: Path, seed: int | None) -> None:
    """Step 6 is in the middle of the second epoch; AdamW and the schedule have states."""
    how = {"optim": "adamw_torch", "lr_scheduler_type": "linear", "learning_rate": 0.02}
    saved = {"save_strategy": "steps", "save_steps": 6, "seed": seed}
    whole = trainer(tmp_path, **how, **saved)
    whole.train()
    rest = trainer(tmp_path, **how, **saved)
    rest.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    assert rest.state.global_step == STEPS
    np.testing.assert_array_equal(flat(rest.model), flat(whole.model))
    for measure in ("dfil", "fil"):
        np.testing.assert_array_equal(
            rest.accountant_.records(measure), whole.accountant_.records(measure)
        )
    assert rest.accountant_.privacy(1e-5).epsilon == whole.accountant_.privacy(1e-5).epsilon
    assert len(list(tmp_path.glob("_noise-*.key"))) == (seed is None)
    (tmp_path / "checkpoint-6" / "private_run.safetensors").unlink()
    with pytest.raises(sp.InputError, match="contains no account"):
        trainer(tmp_path, **how, **saved).train(str(tmp_path / "checkpoint-6"))


def test_without_a_rate_the_number_of_records_is_public(tmp_path: Path) -> None:
    import transformers

    args = transformers.TrainingArguments(
        str(tmp_path),
        num_train_epochs=2,
        per_device_train_batch_size=20,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    run = sp.nn.PrivateTrainer(Classifier(), args, train_dataset=items(), **VIEW)
    run.train()
    assert run.accountant_.steps == 6
    assert run.accountant_.sample_rate == 20 / 60
    assert "replace" in str(run.accountant_.privacy(1e-5))


@pytest.mark.slow
def test_a_language_model_with_adapters_as_in_private_sgd(tmp_path: Path) -> None:
    batch = collated("gpt2")
    data = [{name: value[k] for name, value in batch.items()} for k in range(3)]

    def net() -> torch.nn.Module:
        torch.manual_seed(5)
        return adapted(model("gpt2"), ["c_attn"], fan_in_fan_out=True)

    run = trainer(tmp_path, net(), data, per_device_train_batch_size=1)
    run.train()
    other = sp.nn.PrivateSGD(
        net().eval(), "own", steps=STEPS, lr=LR, expected_batch=1, max_grad_norm=C, **HOW
    ).fit(batch)
    np.testing.assert_allclose(
        run.accountant_.records("dfil"), other.accountant_.records("dfil"), rtol=1e-6
    )


@pytest.mark.slow
def test_padding_to_the_longest_of_a_batch_changes_nothing(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    sampler = sp.nn.PoissonSampler(24, sample_rate=HOW["sample_rate"], seed=HOW["seed"])
    first, *later = (set(sampler.batch(step).tolist()) for step in range(STEPS))
    long = set.union(*later) - first  # the first batch is narrower than later ones
    assert first
    assert long
    lengths = (6 if k in long else 4 for k in range(24))
    texts = [torch.randint(3, 23, (length,), generator=generator) for length in lengths]
    data = [{"input_ids": text} for text in texts]

    def padded(rows: list[dict[str, torch.Tensor]], width: int = 0) -> dict[str, torch.Tensor]:
        width = width or max(len(row["input_ids"]) for row in rows)
        ids = torch.zeros(len(rows), width, dtype=torch.int64)
        for place, row in zip(ids, rows, strict=True):
            place[: len(row["input_ids"])] = row["input_ids"]
        mask = (ids != 0).long()
        return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(ids == 0, -100)}

    def dfil(collate: object) -> np.ndarray:
        how = {"data_collator": collate, "per_device_train_batch_size": 2}
        run = trainer(tmp_path, model("gpt2"), data, **how)
        run.train()
        assert run.accountant_.unknowns == 6 * 4  # tokens of the longest record, by width
        return np.asarray(run.accountant_.records("dfil"))

    np.testing.assert_allclose(dfil(padded), dfil(partial(padded, width=6)), rtol=1e-5)


REFUSED = {
    "gradient_accumulation_steps": 2,
    "label_smoothing_factor": 0.1,
    "neftune_noise_alpha": 5.0,
    "auto_find_batch_size": True,
    "max_grad_norm": 0.0,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_the_gradients_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(sp.InputError, match=name):
        trainer(tmp_path, **{name: REFUSED[name]})


def test_other_owners_of_a_setting_are_refused(tmp_path: Path) -> None:
    import transformers

    args = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    for name in ("max_grad_norm", "expected_batch"):
        with pytest.raises(sp.InputError, match=f"{name} is set by PrivateTrainer"):
            sp.nn.PrivateTrainer(Classifier(), args, train_dataset=items(), **{name: 1.0})
    with pytest.raises(sp.errors.ArgumentError, match="has no option 'noise'"):
        sp.nn.PrivateTrainer(Classifier(), args, train_dataset=items(), noise=1.0)
    with pytest.raises(sp.InputError, match="one loss per record"):
        sp.nn.PrivateTrainer(Classifier(), args, compute_loss_func=lambda *_: 0)


PROGRAM = """
import os, sys
from pathlib import Path
import numpy as np
from test_private_trainer import C, DIVISOR, flat, trainer

run = trainer(Path("out"), per_device_train_batch_size=DIVISOR // 2,
              save_strategy="steps", save_steps=6)
run.train()
rank = run.args.process_index
np.savez(f"whole-{rank}.npz", net=flat(run.model), dfil=run.accountant_.records("dfil"))
rest = trainer(Path("out"), per_device_train_batch_size=DIVISOR // 2,
               save_strategy="steps", save_steps=6)
rest.train("out/checkpoint-6")
np.savez(f"rest-{rank}.npz", net=flat(rest.model), dfil=rest.accountant_.records("dfil"))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    where = [str(Path(__file__).parent), *(str(Path(path).resolve()) for path in sys.path if path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(where), "OMP_NUM_THREADS": "1"}
    launch = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "ignore", *launch, "--nproc-per-node", "2", "train.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    hand, account = by_hand()
    for name in ("whole-0", "whole-1", "rest-0", "rest-1"):
        found = np.load(tmp_path / f"{name}.npz")
        np.testing.assert_allclose(found["net"], flat(hand), rtol=1e-9)
        np.testing.assert_allclose(found["dfil"], account.records("dfil"), rtol=1e-6)

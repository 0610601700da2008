"""Leakage beside Hugging Face's trainer, and a private run with Opacus and adapters."""

from __future__ import annotations

import copy
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import opacus
import pytest
import torch
from hf_models import adapted, collated, model
from torch.utils.data import DataLoader, TensorDataset

import seepage as sp

torch.set_num_threads(1)

HOW = {"noise_multiplier": 0.5, "max_grad_norm": 1.5}


@pytest.mark.slow
def test_the_callback_measures_as_training_goes_on(tmp_path: Path) -> None:
    import transformers

    net, batch = model("gpt2"), collated("gpt2")
    begun = copy.deepcopy(net)
    callback = sp.nn.LeakageCallback(batch, every=2, **HOW)
    args = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=4,
        per_device_train_batch_size=3,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    data = [{name: value[k] for name, value in batch.items()} for k in range(3)]
    transformers.Trainer(net, args, train_dataset=data, callbacks=[callback]).train()
    assert list(callback.history_) == [0, 2, 4]
    for step, one in ((0, begun.eval()), (4, net.eval())):
        leak = sp.nn.leakage(one, batch, **HOW).records("dfil", probes=8)
        np.testing.assert_allclose(callback.history_[step], leak, rtol=1e-5)
    assert callback.table("pandas")["worst"][0] == pytest.approx(np.max(callback.history_[0]))
    with pytest.raises(sp.InputError, match="every must be at least 1 and a whole number"):
        sp.nn.LeakageCallback(batch, every=0, **HOW)


@pytest.mark.slow
def test_an_accountant_takes_the_model_s_own_loss() -> None:
    net, batch = model("gpt2"), collated("gpt2")
    run = sp.nn.FisherAccountant(net, "own", n=3, sample_rate=1.0, amplification="none", **HOW)
    step = run.observe(range(3), batch, batch["labels"], update=True)
    engine = sp.nn.Engine(net, "own", clip=sp.nn.HardClip(1.5))
    whole = engine.clipped_gradient(batch, batch["labels"])
    for name, part in whole.gradient.items():
        torch.testing.assert_close(step.gradient[name], part)
    assert np.isfinite(np.asarray(run.records("dfil"))).all()


class PrivateAdapters:
    """A run of Opacus on adapters of a model of Hugging Face, with the accountant attached."""

    def __init__(self, texts: torch.Tensor) -> None:
        torch.manual_seed(5)
        net = adapted(model("llama"), ["q_proj", "v_proj"], init_lora_weights=False)
        trained = [p for p in net.parameters() if p.requires_grad]
        self.engine = opacus.PrivacyEngine()
        self.net, self.optimizer, self.loader = self.engine.make_private(
            module=net.train(),
            optimizer=torch.optim.AdamW(trained, lr=0.01),
            data_loader=DataLoader(TensorDataset(torch.arange(len(texts)), texts), batch_size=8),
            noise_multiplier=1.3,
            max_grad_norm=0.4,
            noise_generator=torch.Generator().manual_seed(2),
        )
        how = {"amplification": "none", "probes": 3}
        self.accountant = sp.nn.attach(self.optimizer, self.net, "own", self.loader, **how)
        given = {"noise_multiplier": 1.3, "max_grad_norm": 0.4, "sampler": "poisson"}
        self.beside = sp.nn.FisherAccountant(
            self.net,
            "own",
            n=len(texts),
            sample_rate=self.accountant.sample_rate,
            **given | how,
        )

    def epoch(self) -> None:
        torch.manual_seed(3)
        for index, ids in self.loader:
            labels = ids.masked_fill(ids == 0, -100)
            batch = {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}
            for each in (self.accountant, self.beside):
                each.observe(index, batch, labels)
            self.optimizer.zero_grad()
            self.net(**batch).loss.backward()
            self.optimizer.step()


@pytest.mark.slow
def test_a_private_run_with_opacus_and_adapters() -> None:
    torch.manual_seed(0)
    run = PrivateAdapters(torch.randint(3, 23, (24, 5)))
    run.epoch()  # in which the sums of Opacus are compared with the accountant's
    found = run.accountant.records("dfil")
    assert "the token embeddings" in repr(found)
    np.testing.assert_allclose(found, run.beside.records("dfil"), rtol=1e-6)
    own = run.accountant.privacy(1e-5, neighbours="zero-out")
    assert own.epsilon == run.engine.get_epsilon(1e-5)


@pytest.mark.slow
def test_a_loss_that_divides_by_the_tokens_of_a_batch_is_refused() -> None:
    torch.manual_seed(0)
    texts = torch.randint(3, 23, (24, 5))
    texts[::3, 2:] = 0
    with pytest.raises(sp.InputError, match="does not release what the accountant"):
        PrivateAdapters(texts).epoch()


@pytest.mark.slow
def test_a_private_trainer_takes_the_batch_of_a_collator(tmp_path: Path) -> None:
    batch = collated("gpt2")

    def trained(steps: int, **more: object) -> sp.nn.PrivateSGD:
        torch.manual_seed(5)
        net = adapted(model("gpt2"), ["c_attn"], fan_in_fan_out=True).eval()
        make = partial(torch.optim.AdamW, lr=0.01)
        given = {"batch_size": 2, "optimizer": make, "seed": 1, **HOW, **more}
        return sp.nn.PrivateSGD(net, "own", steps=steps, **given).fit(batch)

    whole, path = trained(4), tmp_path / "run.safetensors"
    trained(2, checkpoint=path)
    rest = trained(4, checkpoint=path)
    np.testing.assert_array_equal(
        rest.accountant_.records("dfil"), whole.accountant_.records("dfil")
    )
    for one, other in zip(rest.net.parameters(), whole.net.parameters(), strict=True):
        assert torch.equal(one, other)
    assert "the token embeddings" in repr(whole.accountant_.records("dfil"))
    with pytest.raises(sp.InputError, match="one label per token"):
        sp.nn.PrivateSGD(model("gpt2"), "own", steps=1, batch_size=2).fit(batch, X_test=batch)


def test_the_accuracy_of_a_classifier_of_hugging_face() -> None:
    net, batch = model("vit"), collated("vit")
    trainer = sp.nn.PrivateSGD(net, "own", steps=1, batch_size=2, seed=0, **HOW)
    told = trainer.fit(batch, X_test=batch).history_[-1].accuracy
    right = net(pixel_values=batch["pixel_values"]).logits.argmax(-1) == batch["labels"]
    assert told == pytest.approx(float(right.float().mean()))


@pytest.mark.slow
def test_importing_the_package_imports_no_model_library() -> None:
    code = (
        "import sys, seepage as sp; sp.nn.leakage; sp.nn.token_leakage; "
        "print([name for name in ('transformers', 'peft', 'accelerate') if name in sys.modules])"
    )
    done = subprocess.run(  # noqa: S603 - our own words
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"

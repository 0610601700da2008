"""The trainer: its update, its checkpoints, and going on after being killed at any step."""

import io
import math
import os
import signal
import subprocess
import sys

import killed_run
import numpy as np
import pytest
import torch
from killed_run import STEPS, data, trainer
from torch import nn

from seepage.errors import InputError
from seepage.nn.problem.clipping import HardClip
from seepage.nn.training import private_sgd
from seepage.nn.training.checkpoints import read_checkpoint, write_checkpoint
from seepage.nn.training.private_sgd import PrivateSGD
from seepage.support.files import remove_half_written
from seepage.support.keyed_stream import KeyedStream


def _state(path):
    tensors, facts = read_checkpoint(path)
    return {name: tensor.numpy().tolist() for name, tensor in tensors.items()}, facts


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nothing interrupts."""
    path = tmp_path_factory.mktemp("whole") / "run.safetensors"
    X, y = data()
    done = trainer(path).fit(X, y, X, y)
    return done, path


@pytest.mark.slow
def test_training_works(whole):
    done, _ = whole
    assert done.history_[-1].accuracy > 0.9
    assert [now.step for now in done.history_] == list(range(10, STEPS + 1, 10))
    worst = [now.worst_dfil for now in done.history_]
    assert worst == sorted(worst)
    assert worst[-1] == pytest.approx(float(np.max(done.accountant_.records("dfil"))))
    assert done.accountant_.steps == STEPS


class _Stopped(Exception):  # noqa: N818
    pass


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 3, STEPS - 1])
def test_a_run_that_stops_goes_on_to_the_same_numbers(stop, whole, tmp_path):
    X, y = data()
    path = tmp_path / "run.safetensors"
    first = trainer(path)
    take = first._take_step

    def failing(*arguments):
        if first._step == stop:
            raise _Stopped
        take(*arguments)

    first._take_step = failing
    with pytest.raises(_Stopped):
        first.fit(X, y, X, y)
    again = trainer(path).fit(X, y, X, y)
    assert _state(path) == _state(whole[1])
    assert again.history_ == whole[0].history_
    rows = np.asarray(again.accountant_.records("dfil"))
    assert rows.tolist() == np.asarray(whole[0].accountant_.records("dfil")).tolist()


@pytest.mark.minutes
def test_a_killed_process_goes_on_to_the_same_numbers(whole, tmp_path):
    path = tmp_path / "run.safetensors"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }
    command = [sys.executable, killed_run.__file__, str(path)]
    dead = subprocess.run([*command, "37"], env=environment, check=False)  # noqa: S603
    assert dead.returncode == -signal.SIGKILL
    assert read_checkpoint(path)[1]["step"] == 36  # the last multiple of three
    (tmp_path / ".run.safetensors.k1ll3d_0.seepage-part").write_bytes(b"half a checkpoint")
    done = subprocess.run(command, env=environment, check=False)  # noqa: S603
    assert done.returncode == 0
    assert _state(path) == _state(whole[1])
    assert [p.name for p in tmp_path.iterdir()] == ["run.safetensors"]


def test_a_checkpoint_removes_no_files_of_others(tmp_path):
    run = ("env", ".env.local", ".env.production", ".env.k1ll3d_0.seepage-part")
    for name in run:
        (tmp_path / name).write_text("mine")
    write_checkpoint(tmp_path / "env", {"a": torch.ones(3)}, {"step": 1})
    remove_half_written(tmp_path / "env")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".env.local", ".env.production", "env"]


def test_no_damaged_checkpoint_is_read_in_silence(tmp_path):
    path = tmp_path / "run.safetensors"
    write_checkpoint(path, {"a": torch.arange(40.0), "b": torch.ones(2, 3)}, {"step": 7})
    whole, draw = path.read_bytes(), np.random.default_rng(0)
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[draw.integers(len(whole))] ^= 1 << int(draw.integers(8))
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="is damaged"):
            read_checkpoint(path)


def test_a_finished_run_is_not_run_again(whole):
    done, path = whole
    X, y = data()
    again = trainer(path)
    again._take_step = None  # it would fail if it were called
    again.fit(X, y, X, y)
    assert np.asarray(again.accountant_.records("dfil")).tolist() == (
        np.asarray(done.accountant_.records("dfil")).tolist()
    )


def test_a_checkpoint_is_its_owners_alone(whole):
    assert whole[1].stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
def test_a_longer_run_goes_on_from_a_shorter_one(tmp_path):
    X, y = data()
    path = tmp_path / "run.safetensors"
    trainer(path, steps=20).fit(X, y)
    longer = trainer(path, steps=30).fit(X, y)
    alone = trainer(None, steps=30).fit(X, y)
    assert longer.accountant_.steps == 30
    np.testing.assert_array_equal(
        longer.accountant_.records("dfil"), alone.accountant_.records("dfil")
    )


def test_theorem_4_does_not_go_on_for_longer_than_announced(tmp_path):
    # 5·δ/5 + 15·δ/20 = 1.75 δ would be spent.
    X, y = data()
    path = tmp_path / "run.safetensors"
    done = trainer(path, steps=5, amplification="theorem4").fit(X, y)
    assert done.accountant_.failure_probability == pytest.approx(1 / 300)
    trainer(path, steps=5, amplification="theorem4").fit(X, y)
    with pytest.raises(InputError, match="among 5 steps, so it cannot be resumed for 20"):
        trainer(path, steps=20, amplification="theorem4").fit(X, y)


def test_numbers_of_numpy_and_clips_can_be_stored(tmp_path):
    X, y = data()
    path = tmp_path / "run.safetensors"
    done = trainer(
        path,
        steps=np.int64(4),
        batch_size=np.int64(30),
        lr=np.float32(0.5),
        noise_multiplier=torch.tensor(1.0),
        seed=np.int64(7),
        clip=HardClip(np.float32(0.5)),
        checkpoint_every=np.int64(2),
        evaluate_every=np.int64(2),
        probes=np.int64(2),
    ).fit(X, y)
    again = trainer(path, steps=6, clip=HardClip(0.5), evaluate_every=2, probes=2).fit(X, y)
    assert (done.accountant_.steps, again.accountant_.steps) == (4, 6)
    with pytest.raises(InputError, match=r"its clip is 'HardClip\(max_grad_norm=0.5\)'"):
        trainer(path, steps=6, clip=HardClip(0.25), evaluate_every=2, probes=2).fit(X, y)


def test_another_loss_is_refused(whole):
    X, y = data()
    other = trainer(whole[1])
    other.loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    with pytest.raises(InputError, match="its loss is 'cross_entropy', not 'CrossEntropyLoss"):
        other.fit(X, y)


def test_checkpoints_of_earlier_versions_are_refused(whole, tmp_path):
    X, y = data()
    path = tmp_path / "run.safetensors"
    tensors, facts = read_checkpoint(whole[1])
    write_checkpoint(path, tensors, {k: v for k, v in facts.items() if k != "loss"})
    with pytest.raises(InputError, match="earlier version of seepage"):
        trainer(path).fit(X, y)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lr": 0.1}, "its lr is 0.5, not 0.1"),
        ({"seed": 8}, "its seed or key is"),
        ({"sketch": 3}, "its accounting"),
        ({"noise_multiplier": 2.0}, "its noise_multiplier"),
    ],
)
def test_another_runs_checkpoint_is_refused(change, words, whole):
    X, y = data()
    with pytest.raises(InputError, match=words):
        trainer(whole[1], **change).fit(X, y)


def test_other_data_and_other_networks_are_refused(whole):
    X, y = data()
    with pytest.raises(InputError, match="its data"):
        trainer(whole[1]).fit(X + 1, y)
    other = trainer(whole[1])
    other.net = nn.Linear(8, 2)
    with pytest.raises(InputError, match="different parameters"):
        other.fit(X, y)


@pytest.mark.parametrize(
    "content", [b"", b"not a checkpoint at all", b"\x08\0\0\0\0\0\0\0{}      "]
)
def test_a_damaged_checkpoint_is_refused(content, tmp_path):
    path = tmp_path / "run.safetensors"
    path.write_bytes(content)
    X, y = data()
    with pytest.raises(InputError, match="not a seepage checkpoint"):
        trainer(path).fit(X, y)


def test_without_a_seed_each_run_is_its_own_and_can_go_on(tmp_path):
    X, y = data()
    path = tmp_path / "run.safetensors"
    first = trainer(path, seed=None, steps=4).fit(X, y)
    again = trainer(path, seed=None, steps=6).fit(X, y)
    assert again._stream.fingerprint() == first._stream.fingerprint()
    other = trainer(None, seed=None, steps=1).fit(X, y)
    assert other._stream.fingerprint() != first._stream.fingerprint()


def test_the_key_lies_beside_the_checkpoint_and_not_in_it(tmp_path):
    X, y = data()
    path = tmp_path / "run.safetensors"
    done = trainer(path, seed=None, steps=4).fit(X, y)
    beside = tmp_path / "run.safetensors.key"
    assert bytes.fromhex(beside.read_text()) == done._stream.key
    assert beside.stat().st_mode & 0o777 == 0o600
    for form in (done._stream.key, done._stream.key.hex().encode()):
        assert form not in path.read_bytes()
    key = beside.read_text()
    beside.unlink()
    with pytest.raises(InputError, match=r"run\.safetensors\.key, the key of the run"):
        trainer(path, seed=None, steps=6).fit(X, y)
    beside.write_text(key[:-2])
    with pytest.raises(InputError, match="is damaged or not a run's key file"):
        trainer(path, seed=None, steps=6).fit(X, y)


def test_a_seed_lies_in_no_file(tmp_path):
    X, y = data()
    path = tmp_path / "run.safetensors"
    trainer(path, seed=1234567890123, steps=2).fit(X, y)
    assert [file.name for file in tmp_path.iterdir()] == ["run.safetensors"]
    assert b"1234567890123" not in path.read_bytes()


@pytest.mark.parametrize("randomness", ["secure", "fast"])
def test_all_digits_of_a_seed_count(randomness):
    """Seeds that agree in their low 32 bits gave the same noise, which could so be guessed."""
    X, y = data()
    ends = []
    for seed in (7, 7 + (1 << 32), 7 + (1 << 40)):
        done = trainer(None, seed=seed, steps=1, batch_size=300, randomness=randomness).fit(X, y)
        ends.append(torch.cat([p.detach().flatten() for p in done.net.parameters()]))
    assert not any(torch.equal(ends[0], other) for other in ends[1:])


def test_another_randomness_is_refused():
    with pytest.raises(InputError, match="randomness must be 'secure' or 'fast', not 'slow'"):
        trainer(None, randomness="slow")


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("clip", ["smooth", "hard"])
def test_the_update_is_the_stated_one(sampling, clip):
    """Repeat two steps with per-example gradients from a loop."""
    X, y = data()
    X = X.double()
    torch.manual_seed(1)
    net = nn.Linear(8, 2).double()
    start = [p.detach().clone() for p in net.parameters()]
    done = PrivateSGD(
        net,
        "cross_entropy",
        steps=2,
        batch_size=20,
        lr=0.4,
        momentum=0.6,
        weight_decay=0.1,
        noise_multiplier=0.3,
        max_grad_norm=0.2,
        clip=clip,
        sampling=sampling,
        seed=3,
    ).fit(X, y)
    found = [p.detach().clone() for p in net.parameters()]

    velocity = [torch.zeros_like(p) for p in start]
    with torch.no_grad():
        for p, value in zip(net.parameters(), start, strict=True):
            p.copy_(value)
    for step in range(2):
        index = done._sampler.batch(step)
        total = [torch.zeros_like(p) for p in start]
        for i in index:
            loss = nn.functional.cross_entropy(net(X[i : i + 1]), y[i : i + 1])
            gradient = torch.autograd.grad(loss, list(net.parameters()))
            norm = torch.sqrt(sum(g.square().sum() for g in gradient))
            phi = done.accountant_.clip.phi(norm)
            total = [t + g / phi for t, g in zip(total, gradient, strict=True)]
        grid = 2.0 ** (math.floor(math.log2(0.3 * 0.2)) - 12)
        with torch.no_grad():
            for (name, p), v, t in zip(net.named_parameters(), velocity, total, strict=True):
                stream = KeyedStream.of_seed(3).child("noise", step, name)
                noise = torch.from_numpy(stream.standard_normal(tuple(p.shape)))
                released = torch.round((t + 0.3 * 0.2 * noise) / grid) * grid
                v.mul_(0.6).add_(released / 20 + 0.1 * p)
                p.sub_(0.4 * v)
    for mine, theirs in zip(net.parameters(), found, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-9)


def test_empty_batches_are_steps_too():
    X, y = data()
    done = trainer(None, steps=12, batch_size=1).fit(X, y)
    sizes = [len(done._sampler.batch(t)) for t in range(12)]
    assert 0 in sizes
    assert done.accountant_.steps == 12
    assert int(done.accountant_.run.sums.uses.sum()) == sum(sizes)


@pytest.mark.slow
def test_the_bar_shows_accuracy_epsilon_and_the_worst_record(monkeypatch):
    shown = io.StringIO()

    def bar(**options):
        return tqdm(**options | {"disable": False, "delay": 0, "file": shown, "ncols": 200})

    tqdm = private_sgd.tqdm
    monkeypatch.setattr(private_sgd, "tqdm", bar)
    X, y = data()
    trainer(None, steps=20).fit(X, y, X, y)
    assert "accuracy=" in shown.getvalue()
    assert "ε at δ = 1e-5=" in shown.getvalue()
    assert "(experiment, noise from a seed)" in shown.getvalue()
    assert "worst dFIL=" in shown.getvalue()


def test_targets_without_classes_have_no_accuracy():
    X, _ = data()
    y = X[:, :1]
    done = PrivateSGD(nn.Linear(8, 1), "mse", steps=3, batch_size=30, clip="smooth", seed=0).fit(
        X, y, X, y
    )
    assert done.history_[-1].accuracy is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": 0}, "at least one"),
        ({"checkpoint_every": 0}, "at least one"),
        ({"lr": 0.0}, "lr"),
        ({"momentum": 1.0}, "momentum"),
        ({"probs": 3}, r"no option 'probs' \(did you mean 'probes'"),
        ({"sampler": "poisson"}, "no option 'sampler'"),
        ({"n": 300}, "no option 'n'"),
        ({"noise_multiplier": "1"}, "noise_multiplier must be a finite number, not '1'"),
        ({"noise_multiplier": 0.0}, "above zero"),
        ({"lr": "0.1"}, "lr must be a finite number"),
    ],
)
def test_bad_settings_of_a_trainer_are_refused(change, words):
    with pytest.raises(InputError, match=words):
        trainer(None, **change)


def test_records_and_targets_must_match():
    X, y = data()
    with pytest.raises(InputError, match="X has 300 records, but y has 299"):
        trainer(None).fit(X, y[:-1])
    with pytest.raises(InputError, match="y is missing; give one target for each record of X"):
        trainer(None).fit(X)
    with pytest.raises(InputError, match="The tensors in X have different numbers of records"):
        trainer(None).fit({"first": X, "second": X[:-1], "labels": y})
    with pytest.raises(InputError, match="also give y_test"):
        trainer(None).fit(X, y, X)
    with pytest.raises(InputError, match="also give X_test"):
        trainer(None).fit(X, y, y_test=y)

"""Private gradients in a plain loop: the numbers of a loop by hand, also of resumed runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from private_loop import DECLARED, DIVISOR, LR, RATE, SIGMA, STEPS, C, Classifier, N, by_hand, data
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import seepage as sp


def private(net: nn.Module, **more: object) -> sp.nn.PrivateGradients:
    return sp.nn.PrivateGradients(net, "cross_entropy", n=N, **DECLARED | more)


def train(run: sp.nn.PrivateGradients, steps: int, records: object = None, lr: float = LR) -> None:
    optimizer = torch.optim.SGD(run.net.parameters(), lr=lr)
    records = TensorDataset(*data()) if records is None else records
    while run.steps < steps:
        for x, y in run.loader(records):
            run.backward(x, y)
            optimizer.step()
            if run.steps == steps:
                break


def flat(net: nn.Module) -> np.ndarray:
    return torch.cat([p.detach().flatten() for p in net.parameters()]).numpy()


def test_three_lines_of_a_loop_give_the_numbers_of_a_loop_by_hand() -> None:
    hand, account = by_hand()
    run = private(Classifier().train())
    train(run, STEPS)  # three epochs, of which the last is not finished
    np.testing.assert_allclose(flat(run.net), flat(hand), rtol=1e-9)
    found = run.accountant_.records("dfil")
    np.testing.assert_allclose(found, account.records("dfil"), rtol=1e-6)
    assert np.isfinite(np.asarray(found)).any()
    mine, other = run.accountant_.privacy(1e-5), account.privacy(1e-5)
    assert mine.epsilon == pytest.approx(other.epsilon, rel=1e-9)
    assert run.net.training  # as it was


@pytest.mark.parametrize("seed", [11, None])
def test_a_run_resumes_with_the_same_numbers(tmp_path: Path, seed: int | None) -> None:
    how = {"seed": seed, "key_folder": tmp_path}
    whole = private(Classifier(), **how)
    train(whole, 6)
    state = whole.state_dict()
    weights = {name: t.clone() for name, t in whole.net.state_dict().items()}
    train(whole, STEPS)
    net = Classifier()
    net.load_state_dict(weights)
    rest = private(net, **how)
    rest.load_state_dict(state)
    train(rest, STEPS)
    np.testing.assert_array_equal(flat(rest.net), flat(whole.net))
    np.testing.assert_array_equal(
        rest.accountant_.records("dfil"), whole.accountant_.records("dfil")
    )
    keys = list(tmp_path.glob("_noise-*.key"))
    assert len(keys) == (seed is None)
    if seed is None:
        assert keys[0].stat().st_mode & 0o777 == 0o600
        assert keys[0].read_text() not in str(state["facts"])
        keys[0].unlink()
        with pytest.raises(sp.InputError, match="is missing"):
            private(net, **how).load_state_dict(state)


def noise_of(run: sp.nn.PrivateGradients) -> torch.Tensor:
    """Return the noise of the next step, from its gradient and its clipped sum."""
    X, y = data()
    index = run.own_records(run.steps)
    clip = sp.nn.HardClip(C)
    engine = sp.nn.Engine(run.net, "cross_entropy", clip=clip)
    plain = engine.clipped_gradient(X[index], y[index]).gradient
    run.backward(X[index], y[index], index=index)
    return torch.cat(
        [(DIVISOR * p.grad - plain[name]).flatten() for name, p in run.net.named_parameters()]
    )


def test_a_run_that_is_continued_in_two_ways_uses_no_noise_twice(tmp_path: Path) -> None:
    """The difference of two steps with the same noise would be free of it."""
    run = private(Classifier(), seed=None, key_folder=tmp_path)
    train(run, 4)
    state = run.state_dict()
    weights = {name: t.clone() for name, t in run.net.state_dict().items()}

    def next_noise(moved: float) -> torch.Tensor:
        net = Classifier()
        net.load_state_dict(weights)
        with torch.no_grad():
            next(net.parameters())[0, 0] += moved  # as another learning rate would
        rest = private(net, seed=None, key_folder=tmp_path)
        rest.load_state_dict(state)
        return noise_of(rest)

    same, again, other = next_noise(0.0), next_noise(0.0), next_noise(1e-3)
    torch.testing.assert_close(same, again, rtol=0, atol=0)
    # Independent noise: 83 numbers of standard deviation √2 σC, so a mean square near 2(σC)².
    apart = float((same - other).square().mean() / (SIGMA * C) ** 2)
    assert 1.0 < apart < 3.5


def test_a_state_of_other_data_or_settings_is_refused(tmp_path: Path) -> None:
    run = private(Classifier())
    train(run, 3)
    state = run.state_dict()
    X, y = data()
    changed = TensorDataset(torch.cat((X[:1] + 1, X[1:])), y)
    other = private(Classifier())
    other.loader(changed)
    with pytest.raises(sp.InputError, match="its data is"):
        other.load_state_dict(state)
    with pytest.raises(sp.InputError, match="its divisor is"):
        private(Classifier(), expected_batch=20).load_state_dict(state)
    with pytest.raises(sp.InputError, match="its seed or key is"):
        private(Classifier(), seed=12).load_state_dict(state)
    with pytest.raises(sp.InputError, match="key_folder"):
        private(Classifier(), seed=None).state_dict()


def test_batches_and_steps_must_match() -> None:
    run, records = private(Classifier()), TensorDataset(*data())
    with pytest.raises(sp.InputError, match=r"Take the batches from loader\(data\)"):
        run.backward(*data())
    batches = iter(run.loader(records))
    next(batches)
    x, y = next(batches)
    run.backward(*data(), index=torch.arange(N))
    run.backward(x, y)  # the second batch is that of the second step
    next(batches)
    x, y = next(batches)
    run._served.popleft()
    with pytest.raises(sp.InputError, match="The batch of step 3 was given for step 2"):
        run.backward(x, y)
    with pytest.raises(sp.InputError, match="has 10 records, but n is 60"):
        run.loader(TensorDataset(*(t[:10] for t in data())))
    with pytest.raises(sp.InputError, match="a pair of inputs and targets"):
        run.backward((x, x, x), index=torch.arange(3))


def test_empty_batches_are_steps_too() -> None:
    rate = 0.02  # an empty batch with probability 0.3
    run = private(Classifier(), sample_rate=rate, expected_batch=1)
    sizes = []
    for x, y in run.loader(TensorDataset(*data())):
        sizes.append(len(run.backward(x, y).losses))
    assert 0 in sizes
    assert run.steps == len(sizes) == 50
    assert int(run.accountant_.run.sums.uses.sum()) == sum(sizes)


def test_a_target_sets_the_noise_as_in_private_sgd() -> None:
    target = {"target_epsilon": 3.0, "target_delta": 1e-5, "noise_multiplier": None}
    run = private(Classifier(), steps=40, **target)
    declared = {"sample_rate": RATE, "expected_batch": DIVISOR}
    other = sp.nn.PrivateSGD(
        Classifier(),
        "cross_entropy",
        steps=40,
        target_epsilon=3.0,
        target_delta=1e-5,
        max_grad_norm=C,
        **declared,
    )
    assert run.accountant_.noise_multiplier == other.noise_multiplier
    with pytest.raises(sp.InputError, match="also give steps="):
        private(Classifier(), **target)


def test_surveys_read_every_record() -> None:
    run = private(Classifier(), survey_every=2, steps=STEPS)
    train(run, STEPS)
    assert np.isfinite(np.asarray(run.accountant_.records("dfil"))).all()
    X, y = data()
    beside = sp.nn.PrivateSGD(
        Classifier(), "cross_entropy", steps=STEPS, lr=LR, survey_every=2, **DECLARED
    ).fit(X, y)
    np.testing.assert_allclose(
        run.accountant_.records("dfil"), beside.accountant_.records("dfil"), rtol=1e-9
    )


def test_records_of_a_loader_in_other_processes() -> None:
    run = private(Classifier())
    records = TensorDataset(*data())
    read = [x for x, _ in run.loader(records, num_workers=1)]
    drawn = [data()[0][run.own_records(step)] for step in range(4)]
    for one, other in zip(read, drawn, strict=True):
        assert torch.equal(one, other)
    assert not isinstance(run.loader(records), DataLoader)

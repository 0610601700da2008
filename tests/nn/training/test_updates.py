"""Private training with optimisers of torch: the same steps, the same runs after a stop."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import seepage as sp
from sampled import sampled
from seepage.errors import InputError
from seepage.nn.training.private_sgd import PrivateUpdate

torch.set_num_threads(1)


class Tied(nn.Module):
    """A frozen layer with an adapter beside it, and a weight used twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.frozen = nn.Linear(5, 6).requires_grad_(False)
        self.down, self.up = nn.Linear(5, 2, bias=False), nn.Linear(2, 6, bias=False)
        self.twice = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.frozen(x) + self.up(self.down(x)))
        return self.twice(torch.tanh(self.twice(h)))


def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    X = torch.randn(60, 5)
    return X, (X[:, 0] > 0).long()


def trainer(**options: Any) -> sp.nn.PrivateSGD:
    given = {"steps": 6, "batch_size": 20, "seed": 3, "probes": 1}
    return sp.nn.PrivateSGD(Tied(), "cross_entropy", **(given | options))


def weights(run: sp.nn.PrivateSGD) -> Tensor:
    return torch.cat([p.detach().flatten() for p in run.net.parameters()])


def test_the_own_update_is_momentum_with_weight_decay(monkeypatch: Any) -> None:
    """``w ← w − ρ v``, ``v ← m v + g + λ w``, by hand, from the noisy gradients of the run."""
    X, y = data()
    run = trainer(lr=0.5, momentum=0.9, weight_decay=0.01)
    w = {name: p.detach().clone() for name, p in run.net.named_parameters() if p.requires_grad}
    v = {name: torch.zeros_like(value) for name, value in w.items()}
    take = PrivateUpdate.take

    def by_hand(update: PrivateUpdate, gradient: dict[str, Tensor]) -> None:
        for name in w:
            v[name] = 0.9 * v[name] + gradient[name] + 0.01 * w[name]
            w[name] = w[name] - 0.5 * v[name]
        take(update, gradient)

    monkeypatch.setattr(PrivateUpdate, "take", by_hand)
    run.fit(X, y)
    for name, value in w.items():
        torch.testing.assert_close(run.net.get_parameter(name).detach(), value, rtol=0, atol=1e-6)


def test_adamw_sees_the_noisy_mean_of_clipped_gradients() -> None:
    X, y = data()
    seen: list[Tensor] = []

    class Watching(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            gradients = [p.grad.flatten() for group in self.param_groups for p in group["params"]]
            seen.append(torch.cat(gradients))
            return super().step(closure)

    start = weights(trainer())
    run = trainer(optimizer=partial(Watching, lr=1e-2), noise_multiplier=1e-6, sampling="fixed")
    run.fit(X, y)
    assert len(seen) == 6
    assert all(0 < float(g.norm()) <= 1 + 1e-3 for g in seen)  # a mean of vectors of norm 1
    assert not torch.equal(start, weights(run))
    frozen = run.net.get_submodule("frozen")
    assert torch.equal(frozen.weight, Tied().frozen.weight)


@pytest.mark.parametrize(
    "make",
    sampled(
        [
            partial(torch.optim.AdamW, lr=1e-2),
            partial(torch.optim.RMSprop, lr=1e-2, momentum=0.5),
            partial(torch.optim.Adagrad, lr=1e-2),
        ],
        1,
    ),
    ids=lambda make: make.func.__name__,
)
def test_a_stopped_run_goes_on_to_the_same_numbers(make: Any, tmp_path: Path) -> None:
    X, y = data()
    whole = trainer(optimizer=make, evaluate_every=3).fit(X, y)
    kept = {"checkpoint": tmp_path / "run", "checkpoint_every": 3, "evaluate_every": 3}
    trainer(optimizer=make, steps=3, **kept).fit(X, y)
    again = trainer(optimizer=make, **kept).fit(X, y)
    assert torch.equal(weights(whole), weights(again))
    assert whole.history_ == again.history_
    records = [np.asarray(run.accountant_.records("dfil")) for run in (whole, again)]
    assert np.array_equal(*records, equal_nan=True)


def test_another_optimiser_is_another_run(tmp_path: Path) -> None:
    X, y = data()
    kept = {"checkpoint": tmp_path / "run", "checkpoint_every": 3}
    trainer(optimizer=partial(torch.optim.AdamW, lr=1e-2), steps=3, **kept).fit(X, y)
    with pytest.raises(InputError, match="different run: its optimizer groups is"):
        trainer(optimizer=partial(torch.optim.AdamW, lr=2e-2), **kept).fit(X, y)


@pytest.mark.slow
def test_parts_of_a_batch_are_one_batch() -> None:
    X, y = data()
    make = partial(torch.optim.AdamW, lr=1e-2)
    whole, parts = (
        trainer(optimizer=make).fit(X, y),
        trainer(optimizer=make, chunk_size=3).fit(X, y),
    )
    assert torch.allclose(weights(whole), weights(parts), atol=1e-5)
    assert whole.accountant_.privacy(1e-5).epsilon == parts.accountant_.privacy(1e-5).epsilon


def test_every_record_has_its_mu_as_the_run_goes() -> None:
    X, y = data()
    run = trainer(evaluate_every=2, noise_multiplier=2.0).fit(X, y)
    mu = run.accountant_.individual_loss().mu()
    uses = run.accountant_.run.sums.uses.numpy()
    assert mu.shape == (60,)
    assert (mu <= np.sqrt(uses) / 2.0 + 1e-9).all()  # no clipped gradient is longer than C
    assert run.history_[-1].worst_mu == mu.max()
    grown = [now.worst_mu for now in run.history_]
    assert grown == sorted(grown)


def test_what_does_not_go_together_is_refused() -> None:
    X, y = data()
    with pytest.raises(InputError, match="pass them to the optimizer instead"):
        trainer(optimizer=partial(torch.optim.AdamW, lr=1e-2), momentum=0.9)
    with pytest.raises(InputError, match="returns a torch optimiser"):
        trainer(optimizer=lambda parameters: "AdamW").fit(X, y)
    with pytest.raises(InputError, match="must update all parameters with requires_grad"):
        trainer(optimizer=lambda parameters: torch.optim.SGD(parameters[:1], lr=0.1)).fit(X, y)


class Counting(torch.optim.SGD):
    """An optimiser that keeps its number of steps, and perhaps something else, between steps."""

    def __init__(self, parameters: Any, kept: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.kept = kept

    def step(self, closure: Any = None) -> Any:
        state = self.state[self.param_groups[0]["params"][0]]
        state["steps"] = state.get("steps", 0) + 1
        state["kept"] = self.kept
        return super().step(closure)


def test_what_an_optimiser_keeps_beside_tensors_is_resumed(tmp_path: Path) -> None:
    X, y = data()
    made: list[Counting] = []

    def make(parameters: Any) -> Counting:
        made.append(Counting(parameters, None))
        return made[-1]

    kept = {"checkpoint": tmp_path / "run", "checkpoint_every": 3}
    trainer(optimizer=make, steps=3, **kept).fit(X, y)
    trainer(optimizer=make, steps=5, **kept).fit(X, y)
    first = made[-1].param_groups[0]["params"][0]
    assert made[-1].state[first] == {"steps": 5, "kept": None}


def test_an_optimiser_whose_memory_no_checkpoint_can_hold(tmp_path: Path) -> None:
    X, y = data()
    kept = {"checkpoint": tmp_path / "run", "checkpoint_every": 3}
    with pytest.raises(InputError, match=r"'kept' is of type set, which a checkpoint"):
        trainer(optimizer=lambda parameters: Counting(parameters, {1}), steps=3, **kept).fit(X, y)
    assert not (tmp_path / "run").exists()

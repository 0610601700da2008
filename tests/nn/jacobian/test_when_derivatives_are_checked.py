"""When derivatives are compared with differences: at first in all records, later in a few."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import seepage as sp
import seepage.nn.jacobian.engine as jacobian_engine
from seepage.nn.jacobian.derivative_check import _apart, spread_over_classes

torch.set_num_threads(1)


def batch(count: int = 40) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(count, 3), torch.arange(count) % 4


def small() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each check looked at."""
    seen: list[int] = []
    check: Callable[..., None] = jacobian_engine.check_derivative

    def noted(network: object, records: Tensor, **settings: object) -> None:
        seen.append(len(records))
        check(network, records, **settings)

    monkeypatch.setattr(jacobian_engine, "check_derivative", noted)
    return seen


@pytest.mark.slow
def test_all_records_at_first_and_a_few_at_steps_that_grow_tenfold(looked_at: list[int]) -> None:
    engine, (x, y) = sp.nn.Engine(small(), "cross_entropy"), batch()
    due = []
    for k in range(1, 120):
        before = len(looked_at)
        engine.step(x, y, key=k)
        if len(looked_at) > before:
            due.append(k)
    assert due == [1, 10, 100]
    assert looked_at == [2, 40, 16, 16]  # two are tried first


def test_new_shapes_are_checked_the_first_times(looked_at: list[int]) -> None:
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(1)

    engine = sp.nn.Engine(nn.Sequential(small(), Mean()), "cross_entropy")
    for length in range(2, 9):
        engine.step(torch.randn(20, length, 3), torch.arange(20) % 4, key=length)
    assert looked_at == [2, 20] + [16] * 6


def test_a_refusal_stands_when_it_is_asked_again() -> None:
    class Hiding(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return h * torch.sigmoid(h).detach()

    net = nn.Sequential(small(), Hiding(), nn.Linear(4, 4))
    engine = sp.nn.Engine(net, "cross_entropy", method="derivative")
    for _ in range(3):
        with pytest.raises(sp.InputError, match=r"\.detach\(\) in Hiding"):
            engine.step(*batch())


def test_what_hides_in_one_class_alone_is_found_in_later_batches() -> None:
    def weighted(output: Tensor, target: Tensor) -> Tensor:
        each = nn.functional.cross_entropy(output, target, reduction="none")
        return each * torch.where(target == 3, (1 + each).detach(), torch.ones_like(each))

    engine, (x, y) = sp.nn.Engine(small(), weighted), batch(400)
    engine.step(x[y < 3], y[y < 3])
    for k in range(1, 9):
        engine.step(x, y, key=k)
    with pytest.raises(sp.InputError, match=r"\.detach\(\) in the loss"):
        engine.step(x, y, key=9)


@pytest.mark.parametrize("seed", range(5))
def test_a_few_records_are_of_all_classes(seed: int) -> None:
    y = torch.cat([torch.zeros(500), torch.ones(300), torch.full((200,), 2.0)]).long()
    chosen = spread_over_classes(y, 16, seed)
    assert len(set(chosen.tolist())) == 16
    assert torch.bincount(y[chosen]).tolist() in ([8, 5, 3], [8, 4, 4], [7, 5, 4], [9, 4, 3])
    assert len(spread_over_classes(y.double(), 16, seed)) == 16
    assert spread_over_classes(y[:5], 16, seed).tolist() == [0, 1, 2, 3, 4]


def test_a_bend_beside_a_record_is_nothing_hidden() -> None:
    """The gradient of a Huber loss bends where its residual is one; it hides nothing there."""
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    x = torch.randn(50, 3, dtype=torch.float64)
    with torch.no_grad():
        y = net(x) + 1 + 1e-5 * torch.randn(50, 1, dtype=torch.float64)
    for clip in (sp.nn.HardClip(1.0), sp.nn.NoClip()):
        engine = sp.nn.Engine(net, nn.SmoothL1Loss(reduction="sum"), clip=clip)
        assert bool((engine.step(x, y).traces > 0).any())


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_second_step_tells_a_bend_from_a_hidden_dependence(kind: torch.dtype) -> None:
    told = torch.zeros(2, dtype=kind)

    def at(step: float) -> tuple[Tensor, Tensor]:
        # The first record changes at the same rate over any step; the second crosses a bend.
        return told, torch.tensor([1.0, 1.0 if step == 0.01 else 2.0], dtype=kind)

    found = _apart(at, torch.ones(2, dtype=kind), 0.01, kinked=True)
    assert found[0].tolist() == [True, False]

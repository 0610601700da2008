"""What ``sp.nn.leakage`` says of its numbers: bound, estimate or exact, and how sure they are."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from gradient_oracle import dense
from torch import Tensor, nn

import seepage as sp
import seepage.nn as snn
from seepage.nn.measures.estimate import Estimate
from seepage.nn.measures.information_matrices import lanczos

torch.set_num_threads(1)

Problem = tuple[nn.Module, Tensor, Tensor]


@pytest.fixture(scope="module")
def problem() -> Problem:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, 4)).double()
    return net, torch.randn(6, 24, dtype=torch.float64), torch.randint(0, 4, (6,))


def leak_of(problem: Problem, **options: object) -> snn.GradientLeakage:
    net, x, y = problem
    options = {"noise_multiplier": 1.0, "max_grad_norm": 0.5, "clip": "smooth"} | options
    return snn.leakage(net, "cross_entropy", x, y, **options)


def information(problem: Problem) -> Tensor:
    net, x, y = problem
    J = dense(net, "cross_entropy", snn.Input(), x, y).clipped(snn.SmoothClip(0.5))[1]
    return J.mT @ J / 0.5**2


def test_the_worst_of_a_bound_on_leakage_is_its_largest(problem: Problem) -> None:
    rows = leak_of(problem, clip_derivative="conservative").records("dfil")
    assert rows.kind == "bound"
    assert rows.top(1).values.tolist() == [float(rows.values.max())]
    assert f"worst {float(rows.values.max()):.4g} at {int(rows.values.argmax())}" in repr(rows)
    assert "(bound) about the input" in repr(rows)
    errors = rows.mse_bound()  # for which it is the smallest, as ever
    assert errors.top(1).labels().tolist() == rows.top(1).labels().tolist()
    assert "bound on the input" in repr(errors)


def test_everything_from_conservative_probes_is_a_bound(problem: Problem) -> None:
    leak, A = leak_of(problem, clip_derivative="conservative"), information(problem)
    cells = leak.cells(probes=200)
    part = leak.parts({"all": torch.ones(24, dtype=torch.bool)}, probes=200)["all"]
    for found, true in (
        (cells, A.diagonal(dim1=1, dim2=2).sqrt()),
        (part, A.diagonal(dim1=1, dim2=2).mean(1).sqrt()),
    ):
        assert found.kind == "bound"
        assert "upper bound" in found.conditions[-1]
        assert bool((found.values + 5 * found.standard_errors >= true).all())
    worst = cells.top(1)
    assert float(worst.values.max()) == float(cells.values.max())


@pytest.mark.slow
def test_what_is_clipped_exactly_says_so(problem: Problem) -> None:
    """Conservative clipping speaks of probes; other methods, and no clip at all, are untouched."""
    leak, plain = leak_of(problem, clip_derivative="conservative"), leak_of(problem)
    assert leak.records("fil").kind == "exact"
    torch.testing.assert_close(leak.records("fil").values, plain.records("fil").values)
    assert leak.records("dfil", method="exact").kind == leak.cells(method="exact").kind == "exact"
    assert leak.records("dfil", method="hutch++").kind == "estimate"
    free = leak_of(problem, clip_derivative="conservative", max_grad_norm=None)
    assert free.records("dfil", probes=2).kind == free.cells(probes=2).kind == "estimate"


@pytest.mark.slow
def test_degrees_of_freedom(problem: Problem) -> None:
    leak = leak_of(problem)
    assert leak.records("dfil", probes=5).degrees == 4
    assert leak.cells(probes=5).degrees == 4
    assert leak.parts({"all": torch.ones(24, dtype=torch.bool)}, probes=5)["all"].degrees == 4
    assert leak.records("dfil", method="hutch++", probes=32).degrees == 9  # ten for the rest
    assert leak.records("dfil", probes=5).mse_bound().degrees == 4
    assert leak.records("dfil", method="exact").degrees == math.inf
    assert leak.records("fil").degrees == math.inf


@pytest.mark.minutes
def test_intervals_of_few_probes_cover(problem: Problem) -> None:
    """95 % intervals for the dFIL cover it in 93 to 97 % of 6 records × 3,840/probes draws."""
    net, x, y = problem
    engine = snn.Engine(net, "cross_entropy", clip=snn.SmoothClip(0.5))
    many = torch.cat([engine.step(x, y, probes=640, key=k).traces for k in range(6)], 1) / 0.5**2
    true = torch.einsum("bii->b", information(problem)).sqrt().numpy()[:, None]
    for probes in (4, 8, 32):
        draws = many.reshape(6, -1, probes)
        values = draws.mean(2).sqrt()
        errors = draws.std(2) / probes**0.5 / (2 * values)
        low, high = Estimate(
            values, "rows", "dfil", "estimate", standard_errors=errors, degrees=probes - 1
        ).interval()
        assert 0.93 <= float(np.mean((low <= true) & (true <= high))) <= 0.97


def test_dropout_is_off_and_said_to_be_off(problem: Problem) -> None:
    net, x, y = problem
    dropping = nn.Sequential(*list(net)[:2], nn.Dropout(0.5), net[2])
    with pytest.warns(snn.FallbackWarning, match=r"Dropout is off \(Dropout '2'\)"):
        leak = leak_of((dropping, x, y))
    found = leak.records("dfil", method="exact")
    assert "without random masks" in found.conditions[1]
    wanted = information(problem).diagonal(dim1=1, dim2=2).mean(1).sqrt()
    torch.testing.assert_close(found.values, wanted)
    assert dropping[2].training  # the network itself is left as it was
    assert leak.engine.net[0].weight is net[0].weight  # and trained on, it is measured anew
    assert leak_of((dropping.eval(), x, y)).records("dfil").conditions[1:] == ()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.MultiheadAttention])
def test_dropout_within_a_module_is_off_too(kind: type) -> None:
    class Net(nn.Module):
        def __init__(self, p: float) -> None:
            super().__init__()
            recurrent = {"num_layers": 2} if kind is nn.LSTM else {}
            size = 4 if kind is nn.LSTM else 2
            self.inner = kind(4, size, dropout=p, batch_first=True, **recurrent)
            self.last = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out = self.inner(x) if kind is nn.LSTM else self.inner(x, x, x, need_weights=False)
            return self.last(out[0].mean(1))

    torch.manual_seed(0)
    net, plain = Net(0.4).double(), Net(0.0).double()
    plain.load_state_dict(net.state_dict())
    x, y = torch.randn(3, 2, 4, dtype=torch.float64), torch.arange(3)
    with pytest.warns(snn.FallbackWarning, match="Dropout is off"):
        found = leak_of((net, x, y)).records("dfil", method="exact")
    torch.testing.assert_close(
        found.values, leak_of((plain, x, y)).records("dfil", method="exact").values
    )


def test_parts_count_unknown_entries_only(problem: Problem) -> None:
    diagonal = information(problem).diagonal(dim1=1, dim2=2)
    leak = leak_of(problem, view=snn.Input.features([0, 1, 5], 24))
    first = torch.arange(24) < 8
    part = leak.parts({"first": first}, probes=400)["first"]
    wanted = diagonal[:, [0, 1, 5]].mean(1).sqrt()
    assert float(((part.values - wanted) / part.standard_errors).abs().max()) < 5
    with pytest.raises(sp.InputError, match="'rest' contains none of the view's unknowns"):
        leak.parts({"first": first, "rest": ~first}, probes=2)


def test_an_iteration_cut_off_is_no_exact_value(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = torch.linalg.eigvalsh(information(problem))[:, -1].sqrt()
    settled = leak_of(problem).records("fil")
    assert settled.kind == "exact"
    assert float(settled.standard_errors.max()) == 0

    def short(apply: object, start: Tensor, *_: object) -> object:
        return lanczos(apply, start, 1e-7, 12)

    monkeypatch.setattr("seepage.nn.measures.gradient_leakage.lanczos", short)
    cut = leak_of(problem).records("fil")
    assert cut.kind == "estimate"
    assert bool((cut.values <= true * (1 + 1e-9)).all())
    assert bool((cut.values + cut.standard_errors >= true * (1 - 1e-9)).all())
    assert float(cut.standard_errors.max()) > 0
    assert "stopped after 12 matrix" in cut.conditions[-1]
    assert cut.mse_bound().assumptions[-1] == cut.conditions[-1]


def test_which_records_have_settled() -> None:
    """One matrix is a multiple of the identity, the other has 50 different eigenvalues."""
    values = torch.stack([torch.ones(50), torch.linspace(0.5, 1, 50)]).double()
    start = torch.randn(2, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    solve = partial(lanczos, lambda v: v * values, start, 1e-8)
    assert solve(5).settled.tolist() == [True, False]
    assert solve(50).settled.tolist() == [True, True]


@pytest.mark.parametrize("probes", [-1, 0, 1, 2.5, True, "4"])
def test_probes_that_cannot_be(problem: Problem, probes: object) -> None:
    leak = leak_of(problem)
    for ask in (
        partial(leak.rows, "dfil"),
        partial(leak.records, "dfil", method="hutch++"),
        leak.cells,
        partial(leak.parts, {"all": torch.ones(24, dtype=torch.bool)}),
    ):
        with pytest.raises(sp.InputError, match="probes must be a whole number of at least 2"):
            ask(probes=probes)


def test_the_measure_is_that_of_tables_unless_named(problem: Problem) -> None:
    found = leak_of(problem).records()
    np.testing.assert_array_equal(found, leak_of(problem).records("fil"))
    assert snn.GradientLeakage.rows is snn.GradientLeakage.records


def test_the_door(problem: Problem) -> None:
    with pytest.raises(sp.InputError, match=r"view must be .* not 'label'"):
        leak_of(problem, view="label")
    with pytest.raises(sp.InputError, match=r"view must be .* not <class"):
        leak_of(problem, view=snn.Label)
    net, x, y = problem
    with pytest.raises(sp.InputError, match="The batch contains no record"):
        leak_of((net, x[:0], y[:0])).records("dfil")

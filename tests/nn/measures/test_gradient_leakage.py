"""``sp.nn.leakage``: estimates against exact values, calibrated errors, certificates, sketches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gradient_oracle import dense
from torch import nn

import seepage as sp
import seepage.nn as snn
from sampled import sampled
from seepage.nn.measures.information_matrices import lanczos

torch.set_num_threads(1)

NOISE, CLIP = 0.8, 0.5


@pytest.fixture(scope="module")
def problem() -> tuple:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(24, 12), nn.Tanh(), nn.Linear(12, 4)).double()
    x = torch.randn(6, 24, dtype=torch.float64)
    y = torch.randint(0, 4, (6,))
    J = dense(net, "cross_entropy", snn.Input(), x, y).clipped(snn.SmoothClip(CLIP))[1]
    information = torch.einsum("bpi,bpj->bij", J, J) / (NOISE * CLIP) ** 2
    return net, x, y, information


def leak_of(problem: tuple, **options: object) -> snn.GradientLeakage:
    net, x, y, _ = problem
    given = {"noise_multiplier": NOISE, "max_grad_norm": CLIP, "clip": "smooth"} | options
    return snn.leakage(net, "cross_entropy", x, y, **given)


@pytest.mark.slow
def test_exact_rows_and_cells(problem: tuple) -> None:
    A = problem[3]
    diagonal = A.diagonal(dim1=1, dim2=2)
    leak = leak_of(problem)
    torch.testing.assert_close(leak.records("dfil", method="exact").values, diagonal.mean(1).sqrt())
    torch.testing.assert_close(leak.cells(method="exact").values, diagonal.sqrt())
    assert leak.records("dfil", method="exact").kind == "exact"
    torch.testing.assert_close(
        leak.records("fil").values, torch.linalg.eigvalsh(A)[:, -1].sqrt(), rtol=1e-6, atol=0
    )
    bound = leak.records("dfil", method="exact").mse_bound()
    np.testing.assert_allclose(bound, 1 / diagonal.mean(1))


@pytest.mark.parametrize("method", ["rademacher", "hutch++"])
def test_estimates_come_near_with_their_errors(problem: tuple, method: str) -> None:
    true = problem[3].diagonal(dim1=1, dim2=2).mean(1).sqrt()
    found = leak_of(problem).records("dfil", method=method, probes=30)
    assert found.kind == "estimate"
    off = (found.values - true) / found.standard_errors
    assert float(off.abs().max()) < 5
    assert float((found.standard_errors / true).max()) < 0.2


def test_hutchpp_is_exact_where_its_subspace_is_everything(problem: tuple) -> None:
    A = problem[3]
    few = snn.Input.features([0, 5, 9], 24)
    leak = leak_of(problem, view=few)
    found = leak.records("dfil", method="hutch++", probes=9)
    wanted = A.diagonal(dim1=1, dim2=2)[:, [0, 5, 9]].mean(1).sqrt()
    torch.testing.assert_close(found.values, wanted)
    assert float(found.standard_errors.max()) == 0


@pytest.mark.parametrize(
    ("pulls", "clipping"),
    sampled(
        [(False, "exact"), (True, "exact"), (False, "conservative")],
        0,
        [(True, "exact"), (False, "conservative")],
    ),
)
def test_intervals_cover_what_they_should(problem: tuple, pulls: bool, clipping: str) -> None:
    """95 % intervals from 24 probes cover the trace in 93 to 97 % of 200 draws × 6 records."""
    net, x, y, A = problem
    engine = snn.Engine(net, "cross_entropy", clip=snn.SmoothClip(CLIP), clip_derivative=clipping)
    true = torch.einsum("bii->b", A) * (NOISE * CLIP) ** 2
    if clipping == "conservative":
        raw = dense(net, "cross_entropy", snn.Input(), x, y)
        norms = raw.g.norm(dim=1)
        true = raw.J.square().sum((1, 2)) * snn.SmoothClip(CLIP).conservative(norms)
    probes, covered = 24, []
    many = torch.cat(
        [engine.step(x, y, probes=600, key=k, pulls=pulls).traces for k in range(8)], 1
    ).reshape(len(y), -1, probes)
    mean, error = many.mean(2), many.std(2, correction=1) / probes**0.5
    reach = 2.069 * error  # Student's quantile for 23 degrees of freedom
    covered = ((mean - true[:, None]).abs() <= reach).double().mean()
    assert 0.93 <= float(covered) <= 0.97
    # The standard error is right on average: the spread of the means is what it says.
    spread = mean.std(1) / error.square().mean(1).sqrt()
    assert bool(((spread > 0.85) & (spread < 1.15)).all())


@pytest.mark.slow
def test_thin_directions_are_unbiased_too(problem: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    import seepage.nn.jacobian.random_directions as directions

    monkeypatch.setattr(directions, "WIDE", 4)
    monkeypatch.setattr(directions, "RANK", 4)
    net, x, y, A = problem
    engine = snn.Engine(net, "cross_entropy", clip=snn.SmoothClip(CLIP))
    many = engine.step(x, y, probes=400).traces
    error = many.std(1) / 20
    true = torch.einsum("bii->b", A) * (NOISE * CLIP) ** 2
    assert float(((many.mean(1) - true) / error).abs().max()) < 4.5


def test_cells_and_parts_from_the_same_probes(problem: tuple) -> None:
    A = problem[3]
    leak = leak_of(problem)
    cells = leak.cells(probes=300)
    assert cells.shape == (6, 24)
    off = (cells.values - A.diagonal(dim1=1, dim2=2).sqrt()) / cells.standard_errors
    assert float(off.abs().max()) < 6
    mask = torch.arange(24) < 8
    part = leak.parts({"first": mask, "rest": ~mask}, probes=300)
    wanted = A.diagonal(dim1=1, dim2=2)[:, :8].mean(1).sqrt()
    assert float(((part["first"].values - wanted) / part["first"].standard_errors).abs().max()) < 5
    assert part["rest"].about == "rest"


@pytest.mark.slow
def test_the_certificate_encloses_the_norm(problem: tuple) -> None:
    largest = torch.linalg.eigvalsh(problem[3])[:, -1]
    leak = leak_of(problem)
    for steps in (2, 5, 12, 24):
        found = leak.spectrum(tolerance=0.0, max_steps=steps)
        assert found.steps <= steps
        assert bool((found.lower <= largest * (1 + 1e-9)).all())
        assert bool((found.upper >= largest * (1 - 1e-9)).all())
    torch.testing.assert_close(found.lower, largest)
    torch.testing.assert_close(found.upper, largest)


def test_the_certificate_fails_as_rarely_as_it_says() -> None:
    """A spectrum made to be hard: the bound must hold over many random starts."""
    values = torch.linspace(0, 1, 200, dtype=torch.float64) ** 8
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(300, 200, generator=generator, dtype=torch.float64)
    found = lanczos(lambda v: v * values, start, tolerance=0.0, max_steps=14)
    assert bool((found.lower <= 1 + 1e-12).all())
    assert bool((found.upper >= 1).all())
    assert bool(torch.isfinite(found.upper).all())


def test_no_leakage_at_all() -> None:
    found = lanczos(lambda v: 0 * v, torch.randn(3, 9, dtype=torch.float64))
    assert float(found.lower.abs().max()) == 0
    assert float(found.upper.abs().max()) == 0


@pytest.mark.parametrize("rank", [3, 24])
def test_sketches_stay_below_and_are_exact_at_full_rank(problem: tuple, rank: int) -> None:
    A = problem[3]
    sketch = leak_of(problem).sketch(rank)
    for i in range(len(A)):
        gap = torch.linalg.eigvalsh(A[i] - sketch.matrix(i))
        assert float(gap[0]) > -1e-6 * float(A[i].trace())
        if rank == 24:
            torch.testing.assert_close(sketch.matrix(i), A[i], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(sketch.traces(), sketch.diagonal().sum(1))
    assert bool((sketch.eigenvalues().diff(dim=1) <= 1e-9).all())


def test_without_clipping_the_noise_is_the_multiplier(problem: tuple) -> None:
    net, x, y, _ = problem
    truth = dense(net, "cross_entropy", snn.Input(), x, y)
    J = truth.J
    leak = snn.leakage(net, "cross_entropy", x, y, noise_multiplier=NOISE)
    wanted = (J.square().sum((1, 2)) / 24).sqrt() / NOISE
    torch.testing.assert_close(leak.records("dfil", method="exact").values, wanted)
    torch.testing.assert_close(
        leak.norms(), dense(net, "cross_entropy", snn.Input(), x, y).g.norm(dim=1)
    )


def test_hard_clipping_and_labels(problem: tuple) -> None:
    net, x, y, _ = problem
    J = dense(net, "cross_entropy", snn.Label(), x, y).clipped(snn.HardClip(CLIP))[1]
    leak = leak_of(problem, clip="hard", view=snn.Label())
    wanted = (J.square().sum((1, 2)) / 4).sqrt() / (NOISE * CLIP)
    torch.testing.assert_close(leak.records("dfil", method="exact").values, wanted)


def test_conservative_rows_are_called_a_bound(problem: tuple) -> None:
    exact = leak_of(problem).records("dfil", method="exact").values
    found = leak_of(problem, clip_derivative="conservative").records("dfil", probes=200)
    assert found.kind == "bound"
    assert bool((found.values + 4 * found.standard_errors >= exact).all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"max_grad_norm": -1.0}, "max_grad_norm"),
        ({"clip": "soft"}, "clip must be"),
        ({"y": torch.zeros(2, dtype=torch.long)}, "records is 6, but y has 2 labels"),
    ],
)
def test_bad_input(problem: tuple, change: dict, message: str) -> None:
    net, x, y, _ = problem
    options = {"noise_multiplier": 1.0, "max_grad_norm": 1.0} | change
    with pytest.raises(sp.InputError, match=message):
        snn.leakage(net, "cross_entropy", x, options.pop("y", y), **options)


def test_inputs_and_targets_are_given_together(problem: tuple) -> None:
    net, x, _, _ = problem
    with pytest.raises(sp.InputError, match="Give the network, loss, inputs and targets"):
        snn.leakage(net, "cross_entropy", x, noise_multiplier=1.0)


@pytest.mark.parametrize(
    "ask",
    [
        lambda leak: leak.records(measure="eta"),
        lambda leak: leak.records("dfil", method="guess"),
        lambda leak: leak.records("dfil", probes=1),
        lambda leak: leak.cells(method="hutch++"),
        lambda leak: leak.cells(probes=1),
    ],
)
def test_unknown_questions(problem: tuple, ask: object) -> None:
    with pytest.raises(sp.InputError):
        ask(leak_of(problem))


def test_a_missing_torch_is_answered_by_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    module = importlib.import_module("seepage.nn")
    monkeypatch.delitem(module.__dict__, "Engine", raising=False)
    monkeypatch.setattr("seepage.support.lazy.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install 'seepage\[nn\]'"):
        module.Engine  # noqa: B018
    with pytest.raises(AttributeError):
        module.Motor  # noqa: B018

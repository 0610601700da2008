"""Both engines against the dense oracle, and the oracle against finite differences."""

from __future__ import annotations

import warnings

import pytest
import torch
from gradient_oracle import Dense, dense, finite_differences
from modules import CASES, NETWORKS, SMALL, Case

import seepage as sp
import seepage.nn as snn
import seepage.nn.jacobian.random_directions
from sampled import sampled
from seepage.nn.jacobian.engine import Engine
from seepage.nn.jacobian.random_directions import key_of, random_direction, row_signs
from seepage.nn.measures.information_matrices import exact_diagonal

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")

CLIPS = {
    "none": snn.NoClip,
    "smooth": lambda: snn.SmoothClip(0.7),
    "hard": lambda: snn.HardClip(0.7),
}


@pytest.fixture(scope="module", params=sampled(list(CASES), SMALL, 16))
def case(request: pytest.FixtureRequest) -> tuple[str, Case, tuple, Dense]:
    chosen = CASES[request.param]
    net, x, y = chosen.build()
    return request.param, chosen, (net, x, y), dense(net, chosen.loss, chosen.view, x, y)


def engine_for(case: Case, net: torch.nn.Module, clip: object, **options: object) -> Engine:
    return Engine(net, case.loss, clip=clip, view=case.view, **options)


def quiet(engine: Engine, x: torch.Tensor, y: torch.Tensor) -> Engine:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", snn.FallbackWarning)
        engine.norms(x, y)
    return engine


def flat_directions(engine: Engine, count: int, key: object, thin: bool = False) -> torch.Tensor:
    rows = []
    for k in range(count):
        us = random_direction(engine.problem, engine.seed, key, k, thin=thin)
        parameters = engine.problem.detached()
        rows.append(torch.cat([us[n].dense(p.shape).flatten() for n, p in parameters.items()]))
    return torch.stack(rows)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    scale = float(wanted.abs().max())
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-8 * scale)


@pytest.mark.slow
def test_the_oracle_agrees_with_finite_differences(case: tuple) -> None:
    _, chosen, (net, x, y), truth = case
    engine = quiet(engine_for(chosen, net, snn.NoClip()), x, y)
    v = torch.randn(engine.variable(x, y).shape[1:], dtype=torch.float64)
    found = finite_differences(net, chosen.loss, chosen.view, x[1:2], y[1:2], v)
    wanted = truth.J[1] @ v.flatten()
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-7 * float(wanted.abs().max()))


@pytest.mark.parametrize("clip", sampled(list(CLIPS), ["hard"], ["smooth"]))
def test_norms_gradients_and_jacobians(case: tuple, clip: str) -> None:
    _, chosen, (net, x, y), truth = case
    chopped = CLIPS[clip]()
    engine = quiet(engine_for(chosen, net, chopped), x, y)
    g, J = truth.clipped(chopped)
    close(engine.norms(x, y), truth.g.norm(dim=1))
    plain = engine.clipped_gradient(x, y)
    close(torch.cat([part.flatten() for part in plain.gradient.values()]), g.sum(0))

    shape = engine.variable(x, y).shape[1:]
    v = torch.randn(2, len(y), *shape, dtype=torch.float64)
    Jv = torch.einsum("bpd,kbd->kbp", J, v.flatten(2))
    close(engine.squared_changes(x, y, v), Jv.square().sum(2).T)
    JtJv = torch.einsum("bpd,bp->bd", J, Jv[0])
    close(engine.information_product(x, y, v[0]).flatten(1), JtJv)

    step = engine.step(x, y, probes=2, key=3, update=True, pulls=True)
    u = flat_directions(engine, 2, 3)
    Jtu = torch.einsum("bpd,kp->bkd", J, u)
    close(step.pulls.flatten(2), Jtu)
    close(step.traces, Jtu.square().sum(2))
    close(torch.cat([part.flatten() for part in step.gradient.values()]), g.sum(0))
    if clip != "smooth":
        return
    # In chunks, nothing changes.
    chunked = quiet(engine_for(chosen, net, chopped, chunk_size=2), x, y)
    again = chunked.step(x, y, probes=2, key=3, update=True, pulls=True)
    close(again.pulls, step.pulls)


@pytest.mark.parametrize("clip", sampled(["none", "smooth"], ["smooth"]))
def test_thin_directions(case: tuple, clip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seepage.nn.jacobian.random_directions, "WIDE", 4)
    monkeypatch.setattr(seepage.nn.jacobian.random_directions, "RANK", 2)
    _, chosen, (net, x, y), truth = case
    chopped = CLIPS[clip]()
    engine = quiet(engine_for(chosen, net, chopped), x, y)
    wide = any(len(p.shape) == 2 and min(p.shape) >= 4 for p in net.parameters())
    J = truth.clipped(chopped)[1]
    u = flat_directions(engine, 2, 5, thin=wide)
    Jtu = torch.einsum("bpd,kp->bkd", J, u)
    step = engine.step(x, y, probes=2, key=5, update=True, pulls=True)
    close(step.pulls.flatten(2), Jtu)
    close(step.traces, Jtu.square().sum(2))
    g = truth.clipped(chopped)[0].sum(0)
    close(torch.cat([part.flatten() for part in step.gradient.values()]), g)


@pytest.mark.parametrize("clip", ["smooth"])
def test_conservative_clipping_is_a_bound(case: tuple, clip: str) -> None:
    _, chosen, (net, x, y), truth = case
    chopped = CLIPS[clip]()
    engine = quiet(engine_for(chosen, net, chopped, clip_derivative="conservative"), x, y)
    n = truth.g.norm(dim=1)
    bound = chopped.conservative(n) * truth.J.square().sum((1, 2))
    true = truth.clipped(chopped)[1].square().sum((1, 2))
    assert bool((bound >= true * (1 - 1e-12)).all())
    size = chopped.conservative(n).sqrt()
    u = flat_directions(engine, 3, 0)
    Jtu = torch.einsum("bpd,kp->bkd", truth.J, u) * size[:, None, None]
    close(engine.step(x, y, probes=3, pulls=True).traces, Jtu.square().sum(2))
    like, records = engine.variable(x, y), torch.arange(len(y))
    shape = tuple(like.shape[1:])
    v = torch.stack([row_signs(key_of(0, 0, k), records, shape, like) for k in range(3)])
    Jv = torch.einsum("bpd,kbd->bkp", truth.J, engine.masked(v, 2).flatten(2)) * size[:, None, None]
    close(engine.step(x, y, probes=3).traces, Jv.square().sum(2))


@pytest.mark.parametrize("name", sampled(list(NETWORKS), ["mlp", "lstm"], 2))
def test_exact_traces_diagonals_and_norms_of_whole_networks(name: str) -> None:
    chosen = NETWORKS[name]
    net, x, y = chosen.build(seed=1)
    mask = torch.zeros(chosen.shape, dtype=torch.bool)
    mask.view(-1)[::7] = True
    view = snn.Input(mask)
    J = dense(net, chosen.loss, view, x, y).clipped(snn.SmoothClip(0.5))[1] / 0.25
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", snn.FallbackWarning)
        leak = snn.leakage(
            net,
            chosen.loss,
            x,
            y,
            noise_multiplier=0.5,
            max_grad_norm=0.5,
            clip="smooth",
            view=view,
        )
        close(
            leak.records("dfil", method="exact").values,
            (J.square().sum((1, 2)) / mask.sum()).sqrt(),
        )
    diagonal = torch.zeros(len(y), mask.numel(), dtype=torch.float64)
    diagonal[:, mask.flatten()] = J.square().sum(1).sqrt()
    close(leak.cells(method="exact").values, diagonal)
    found = leak.spectrum(tolerance=1e-7)
    largest = torch.linalg.svdvals(J)[:, 0].square()
    close(found.lower, largest)
    assert bool((found.upper >= largest * (1 - 1e-9)).all())


@pytest.mark.parametrize("name", sampled(list(NETWORKS), ["mlp", "lstm"]))
def test_labels_as_soft_targets(name: str) -> None:
    chosen = NETWORKS[name]
    net, x, y = chosen.build(seed=2)
    J = dense(net, chosen.loss, snn.Label(), x, y).clipped(snn.HardClip(0.4))[1]
    engine = quiet(Engine(net, chosen.loss, clip=snn.HardClip(0.4), view=snn.Label()), x, y)
    close(exact_diagonal(engine, x, y), J.square().sum(1))
    u = flat_directions(engine, 2, 0)
    wanted = torch.einsum("bpd,kp->bkd", J, u)
    close(engine.step(x, y, probes=2, pulls=True).pulls, wanted)


@pytest.mark.parametrize(
    ("name", "module"),
    sampled(
        [
            ("mlp", "1"),
            ("mnist cnn of 004", "2"),
            ("group norm resnet", "1"),
            ("transformer encoder", "0"),
            ("lstm", "inner"),
        ],
        [("mlp", "1"), ("lstm", "inner")],
    ),
)
def test_intermediate_embeddings(name: str, module: str) -> None:
    chosen = NETWORKS[name]
    net, x, y = chosen.build(seed=3)
    if name == "lstm":
        with pytest.raises(sp.InputError, match="one tensor"):
            Engine(net, chosen.loss, view=snn.Embedding(module)).norms(x, y)
        return
    view = snn.Embedding(module)
    J = dense(net, chosen.loss, view, x, y).clipped(snn.SmoothClip(0.5))[1]
    engine = quiet(Engine(net, chosen.loss, clip=snn.SmoothClip(0.5), view=view), x, y)
    v = torch.randn(1, *engine.view.variable(net, x, y).shape, dtype=torch.float64)
    Jv = torch.einsum("bpd,kbd->kbp", J, v.flatten(2))
    close(engine.squared_changes(x, y, v), Jv.square().sum(2).T)
    close(engine.information_product(x, y, v[0]).flatten(1), torch.einsum("bpd,bp->bd", J, Jv[0]))

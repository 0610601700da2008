"""Changes of gradients over finite steps, seen through thin random matrices, against the truth.

The truth is a training pass for each record by itself, at both ends of the step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import seepage as sp
import seepage.nn.jacobian.engine as engine_module
import seepage.nn.jacobian.replays as replays
from seepage.nn import Embedding, Engine, HardClip, Input, NoClip, SmoothClip
from seepage.nn.jacobian.finite_changes import (
    THIN,
    StepErrors,
    StepLadder,
    ThinChange,
    narrowed,
    random_rows,
    thin_change,
)
from seepage.nn.jacobian.random_directions import row_signs

torch.set_num_threads(1)


class Texts(nn.Module):
    """Tied embeddings, a product written as in GPT-2, and blocks that may be run twice."""

    def __init__(self, checkpointed: bool = False) -> None:
        super().__init__()
        self.checkpointed = checkpointed
        self.tokens, self.places = nn.Embedding(90, 72), nn.Embedding(40, 72)
        self.middle, self.norm = nn.Linear(72, 80), nn.LayerNorm(80)
        self.down, self.shift = nn.Parameter(torch.empty(80, 72)), nn.Parameter(torch.zeros(72))
        nn.init.normal_(self.down, std=0.1)
        self.head = nn.Linear(72, 90, bias=False)
        self.head.weight = self.tokens.weight

    def block(self, h: Tensor) -> Tensor:
        inner = functional.gelu(self.norm(self.middle(h)))
        return h + torch.addmm(self.shift, inner.flatten(0, 1), self.down).view_as(h)

    def forward(self, x: Tensor) -> Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        run = partial(checkpoint, self.block, use_reentrant=False)
        return self.head(run(h) if self.checkpointed else self.block(h))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(8, 10, 3, 1, 1),
        nn.SiLU(),
        nn.GroupNorm(2, 10),
        nn.Conv2d(10, 12, 3, 2, 1, bias=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(12 * 16, 3),
    )


def case(name: str) -> tuple[nn.Module, Tensor, Tensor, Any]:
    torch.manual_seed(3)
    if name == "images":
        net = images().double()
        return net, torch.randn(3, 8, 8, 8).double(), torch.tensor([0, 2, 1]), Input()
    net = Texts().double()
    tokens = torch.randint(0, 90, (2, 3, 40))
    return net, tokens[0], tokens[1], Embedding("tokens")


def loss_of(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    flat = net(x).flatten(0, -2)
    return functional.cross_entropy(flat, y.flatten())


def alone(net: nn.Module, x: Tensor, y: Tensor, view: Any, move: Tensor) -> Tensor:
    """Return the gradient of one record, its variable moved."""
    handle = None
    if isinstance(view, Embedding):
        module = net.get_submodule(view.module)
        handle = module.register_forward_hook(lambda m, args, out: out + move)
    else:
        x = x + move
    found = torch.autograd.grad(loss_of(net, x, y), list(net.parameters()))
    if handle is not None:
        handle.remove()
    return torch.cat([g.flatten() for g in found])


def ends(name: str, h: float) -> tuple[Any, Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
    """Return an engine's parts, directions, and each record's gradients at both ends."""
    net, x, y, view = case(name)
    engine = Engine(net, "cross_entropy", clip=NoClip(), view=view)
    network, batch = engine._validator.watched(x, y), engine.problem.batch(x, y)
    v = row_signs(5, torch.arange(len(y)), tuple(batch.z.shape[1:]), batch.z)
    pairs = []
    for k in range(len(y)):
        one = x[k : k + 1], y[k : k + 1], view
        pairs.append((alone(net, *one, h * v[k]), alone(net, *one, -h * v[k])))
    return network, batch, v, pairs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["texts", "images"])
def test_the_mean_over_random_matrices_is_the_squared_change(name: str) -> None:
    h = 0.05
    network, batch, v, pairs = ends(name, h)
    assert narrowed(network), "nothing is narrowed here"
    found = [thin_change(network, batch, v, h, random_rows(network, k)) for k in range(150)]
    squared = torch.stack([one.squared for one in found])
    along = torch.stack([one.along for one in found])
    product = torch.stack([one.along * one.again for one in found])
    for k, (ahead, behind) in enumerate(pairs):
        change = (ahead - behind) / (2 * h)
        radial = change @ (ahead + behind) / 2
        for values, truth in (
            (squared[:, k], change @ change),
            (along[:, k], radial),
            (product[:, k], radial**2),
        ):
            error = values.std() / len(values) ** 0.5
            assert abs(values.mean() - truth) < 4 * error + 2e-3 * abs(truth)
    assert squared.std(0).max() < 0.35 * squared.mean(0).min()  # one alone is not far off


def test_only_wide_weights_used_at_many_positions_are_narrowed() -> None:
    net, x, y, view = case("texts")
    engine = Engine(net, "cross_entropy", clip=NoClip(), view=view)
    assert set(narrowed(engine._validator.watched(x, y))) == {
        "tokens.weight",
        "middle.weight",
        "down",
    }
    net, x, y, _ = case("images")
    engine = Engine(net, "cross_entropy", clip=NoClip())
    assert set(narrowed(engine._validator.watched(x, y))) == {"0.weight"}  # 3.weight: 16 places


@pytest.mark.slow
@pytest.mark.parametrize("clip", [NoClip(), HardClip(0.3), SmoothClip(0.5)], ids=repr)
@pytest.mark.parametrize("name", ["texts", "images"])
def test_a_thin_step_agrees_with_derivatives(name: str, clip: Any) -> None:
    net, x, y, view = case(name)
    given = {"clip": clip, "view": view}
    told = Engine(net, "cross_entropy", method="derivative", **given).step(
        x, y, probes=60, update=True
    )
    seen = Engine(net, "cross_entropy", method="thin", **given).step(x, y, probes=60, update=True)
    assert torch.equal(seen.norms.isnan(), told.norms.isnan())
    for name_of, gradient in (told.gradient or {}).items():
        assert torch.allclose(gradient, (seen.gradient or {})[name_of], atol=1e-10)
    spread = (told.traces.var(1) + seen.traces.var(1)).sqrt() / 60**0.5
    gap = (told.traces.mean(1) - seen.traces.mean(1)).abs()
    assert bool((gap < 4 * spread + 5e-3 * told.traces.mean(1)).all())


def test_the_conservative_bound_is_above_the_exact_trace() -> None:
    net, x, y, view = case("texts")
    given: dict[str, Any] = {"clip": HardClip(0.3), "view": view, "method": "thin"}
    exact = Engine(net, "cross_entropy", **given).step(x, y, probes=8).traces.mean(1)
    safe = Engine(net, "cross_entropy", clip_derivative="conservative", **given)
    bound = safe.step(x, y, probes=8).traces.mean(1)
    assert bool((bound >= exact * (1 - 2e-3)).all())  # of the two one is an estimate


def test_checkpointed_blocks_give_the_same() -> None:
    net, x, y, view = case("texts")
    given: dict[str, Any] = {"clip": HardClip(0.3), "view": view, "method": "thin"}
    plain = Engine(net, "cross_entropy", **given).step(x, y, probes=2, update=True)
    net.checkpointed = True
    again = Engine(net, "cross_entropy", **given).step(x, y, probes=2, update=True)
    assert torch.allclose(plain.traces, again.traces, rtol=1e-9)
    for name, gradient in (plain.gradient or {}).items():
        assert torch.allclose(gradient, (again.gradient or {})[name], rtol=1e-9, atol=1e-12)


def test_chunks_give_the_same() -> None:
    net, x, y, view = case("texts")
    given: dict[str, Any] = {"clip": HardClip(0.3), "view": view, "method": "thin", "scale": 0.01}
    whole = Engine(net, "cross_entropy", **given).step(x, y, probes=2)
    parts = Engine(net, "cross_entropy", chunk_size=1, **given).step(x, y, probes=2)
    assert torch.allclose(whole.traces, parts.traces, rtol=1e-9)


# What torch says once where the processor has no bf16 of its own: slower, not less exact.
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed, switching to BLAS gemm")
def test_bf16_is_close_to_float64_along_the_same_directions() -> None:
    net, x, y, view = case("texts")
    given: dict[str, Any] = {"clip": NoClip(), "view": view, "method": "thin"}
    quick = Engine(net.float(), "cross_entropy", **given)
    with torch.autocast("cpu", torch.bfloat16):
        seen = quick.step(x, y, probes=4).traces
    assert quick.doubt > 0
    double = net.double()
    told = Engine(double, "cross_entropy", scale=quick.scale, **given).step(x, y, probes=4).traces
    assert torch.allclose(seen.double(), told, rtol=3e-2)


def ladder(fall: Callable[[float], float], rounding: list[float], scale: float = 2.0) -> StepLadder:
    """Return a ladder of two records, ``A = 1`` and 2, with rounding of so much in each."""
    size = torch.tensor([3.0, 6.0])
    true, added = torch.tensor([1.0, 2.0]), torch.tensor(rounding)

    def change(h: float) -> ThinChange:
        squared = true * fall(h**2) + added / h**2
        return ThinChange(squared, size, size, size, size)

    return StepLadder.over(scale, [1 + k / 2 for k in range(20)], change)


def freed(steps: StepLadder, o: float) -> torch.Tensor:
    return steps.errors(o).removed(steps.squared[o], steps.norms, steps.sizes[o])


# Laws by which changes saturate: the one that is fitted, a faster and a slower one, an even one.
FALLS = {
    "fitted": lambda c, s: 1 / (1 + c * s),
    "faster": lambda c, s: math.exp(-c * s),
    "slower": lambda c, s: (1 + 2 * c * s) ** -0.5,
    "none": lambda c, s: 1.0,
}


def test_the_errors_of_a_step_are_those_that_were_added() -> None:
    steps = ladder(lambda s: FALLS["fitted"](3e3, s), [1.5e-5, 3e-5], scale=0.2)
    errors = steps.errors(steps.balanced())
    assert errors.curvature == pytest.approx(3e3, rel=1e-2)
    assert errors.rounding == pytest.approx(0.5e-5, rel=1e-2)
    smooth = ladder(lambda s: FALLS["none"](0, s), [0.0, 0.0])
    assert smooth.doubt(3) == pytest.approx(0, abs=1e-12)
    assert torch.allclose(freed(smooth, 3), torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert ladder(lambda s: 0.0, [0.0, 0.0]).errors(3) == StepErrors()  # where nothing changes


@pytest.mark.parametrize("law", FALLS)
@pytest.mark.parametrize("uneven", [1.0, 0.9], ids=["even", "uneven"])
def test_rounding_and_curvature_are_removed_within_the_doubt(law: str, uneven: float) -> None:
    # As in a network of 7 billion parameters in bf16: at no step is either error small. The second
    # record's rounding may be a tenth less than its size says.
    def fall(s: float) -> float:
        return FALLS[law](3e3, s)

    steps = ladder(fall, [1.6e-5, 3.2e-5 * uneven], scale=0.2)
    best, true = steps.balanced(), torch.tensor([1.0, 2.0])
    off = float((freed(steps, best) / true - 1).abs().max())
    assert off < min(steps.doubt(best), 0.1)


def test_measured_ladders_of_large_networks_give_float32_along_other_directions() -> None:
    """The ladders that an accelerator measured in bf16, and float32 along the same directions."""
    folder = Path(__file__).parents[3] / "benchmarks"
    kept = json.loads((folder / "results" / "step_ladders-cuda.json").read_text())
    for size in ("124M", "1.3B", "7B"):
        found = kept[size]
        steps = [
            StepLadder(
                dict(zip(each["octaves"], each["sizes"], strict=True)),
                dict(zip(each["octaves"], map(torch.tensor, each["squared"]), strict=True)),
                torch.tensor(each["norms"]),
            )
            for each in found["ladders"]
        ]
        true = torch.tensor(found["float32"], dtype=torch.float64)
        for chosen in steps:
            best = chosen.balanced()
            errors, h = chosen.errors(best), chosen.sizes[best]
            seen = [errors.removed(s.squared[best], s.norms, h) for s in steps[: len(true)]]
            off = torch.stack(seen).mean(0) / true.mean(0) - 1
            assert float(off.abs().max()) < 0.1, size


# What torch says once where the processor has no bf16 of its own: slower, not less exact.
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed, switching to BLAS gemm")
@pytest.mark.parametrize("clip", [NoClip(), HardClip(0.3)], ids=repr)
def test_bf16_at_a_small_step_is_right_without_the_share_of_rounding(clip: Any) -> None:
    net, x, y, view = case("texts")
    given: dict[str, Any] = {"clip": clip, "view": view, "method": "thin"}
    told = Engine(net, "cross_entropy", scale=1e-4, **given).step(x, y, probes=8).traces.mean(1)
    quick = Engine(net.float(), "cross_entropy", scale=0.01, **given)
    with torch.autocast("cpu", torch.bfloat16):
        seen = quick.step(x, y, probes=8).traces.mean(1).double()
        share, curvature = quick.errors.rounding, quick.errors.curvature
        quick.errors = StepErrors(0.0, curvature)
        raw = quick.step(x, y, probes=8).traces.mean(1).double()
    assert share
    assert bool((raw > 1.06 * told).all())  # what was stated before
    assert torch.allclose(seen, told, rtol=min(quick.doubt, 5e-2))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed, switching to BLAS gemm")
def test_records_of_16_bits_are_moved_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    # A large network keeps its own type, whose numbers lie further apart than the step is long.
    monkeypatch.setattr(engine_module, "measured_type", lambda net: None)
    net, x, y, view = case("texts")
    given: dict[str, Any] = {"clip": NoClip(), "view": view, "method": "thin"}
    net = net.bfloat16()
    engine = Engine(net, "cross_entropy", scale=0.006, **given)
    assert engine.variable(x, y).dtype == torch.bfloat16
    seen = engine.step(x, y, probes=8).traces.mean(1).double()
    told = Engine(net.double(), "cross_entropy", scale=1e-3, **given).step(x, y, probes=8).traces
    assert torch.allclose(seen, told.mean(1), rtol=0.3)  # 0.6 and more if moved in 16 bits


@pytest.mark.slow
def test_the_engine_takes_thin_steps_by_itself_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, y, view = case("texts")
    monkeypatch.setattr(engine_module, "has_short_numbers", lambda net, device: True)
    leak = sp.nn.leakage(
        net.float(), "cross_entropy", x, y, view=view, noise_multiplier=1.0, max_grad_norm=0.3
    )
    found = leak.records("dfil", probes=4)
    h = leak.engine.scale
    assert f"over steps of {h:g}" in found.about
    assert any("the effects of curvature and rounding removed" in c for c in found.conditions)
    told = sp.nn.leakage(
        net,
        "cross_entropy",
        x,
        y,
        view=view,
        noise_multiplier=1.0,
        max_grad_norm=0.3,
        method="derivative",
    ).records("dfil", probes=4)
    assert torch.allclose(torch.as_tensor(found), torch.as_tensor(told), rtol=0.25)


def test_a_small_network_keeps_its_derivatives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "has_short_numbers", lambda net, device: True)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 2 * THIN), nn.Tanh(), nn.Linear(2 * THIN, 3))
    engine = Engine(net, "cross_entropy")
    assert not engine.takes_finite_steps(torch.randn(4, 6), torch.tensor([0, 1, 2, 0]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a graphics card")
@pytest.mark.parametrize("kind", ["tf32", "bf16"])
def test_recorded_passes_on_cuda_give_what_single_launches_do(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_float32_matmul_precision("high")
    net, x, y, view = case("texts")
    net, x, y = net.float().cuda(), x.cuda(), y.cuda()
    net.checkpointed = False
    given: dict[str, Any] = {"clip": HardClip(0.3), "view": view, "method": "thin", "scale": 0.05}
    always, never = (Engine(net, "cross_entropy", **given) for _ in range(2))
    monkeypatch.setattr(replays, "_BOUND", 0.0)
    never._replays._plain = _Everything()
    for step in range(6):
        with torch.autocast("cuda", torch.bfloat16, enabled=kind == "bf16"):
            drawn = torch.randint(0, 90, (2, 3, 40), device="cuda")
            recorded = always.step(*drawn, probes=2, key=step, update=True)
            launched = never.step(*drawn, probes=2, key=step, update=True)
        assert torch.allclose(recorded.traces, launched.traces, rtol=1e-4)
        assert torch.allclose(recorded.norms, launched.norms, rtol=1e-4)
        for name, p in net.named_parameters():
            gradient = (recorded.gradient or {})[name]
            assert torch.allclose(gradient, (launched.gradient or {})[name], rtol=1e-3, atol=1e-5)
            p.data.sub_(gradient, alpha=0.1)  # recordings must see the new parameters
    assert len(always._replays._recordings) == 2
    torch.set_float32_matmul_precision("highest")


class _Everything(set[Any]):
    def __contains__(self, item: object) -> bool:
        return True


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a graphics card")
def test_recorded_pulls_along_the_gradient_follow_the_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, x, y, view = case("texts")
    net, x, y = net.float().cuda(), x.cuda(), y.cuda()
    net.checkpointed = False
    always, never = (Engine(net, "cross_entropy", view=view) for _ in range(2))
    monkeypatch.setattr(replays, "_BOUND", 0.0)
    never._replays._plain = _Everything()
    for _ in range(6):
        drawn = torch.randint(0, 90, (2, 3, 40), device="cuda")
        recorded, launched = (engine.radial_pull(*drawn) for engine in (always, never))
        for one, other in zip(recorded, launched, strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-6 * float(other.abs().max()))
        for p in net.parameters():
            p.data.add_(torch.randn_like(p), alpha=0.01)  # recordings must see the new parameters
    assert len(always._replays._recordings) == 1

"""Probes by steps of the parameters, against the dense Jacobians of single records."""

from __future__ import annotations

import warnings

import pytest
import torch
from gradient_oracle import dense
from modules import CASES, Case
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import seepage as sp
import seepage.nn as snn
import seepage.nn.jacobian.engine as engine_module
from sampled import sampled
from seepage.nn import Embedding, Engine, HardClip, Input, NoClip, SmoothClip
from seepage.nn.jacobian.parameter_steps import stepped
from seepage.nn.jacobian.random_directions import key_of, packed_signs, random_direction, signs

torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Linear(inner.in_features, 2, bias=False)
        self.up = nn.Linear(2, inner.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.up(self.down(x))


class Padded(nn.Module):
    """A table with a padding row that is also the output layer, where that row has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(6, 4, padding_idx=0)
        self.middle = nn.Linear(4, 4)
        with torch.no_grad():
            self.tokens.weight[0] = torch.randn(4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.middle(self.tokens(x))).mean(1)
        return functional.linear(h, self.tokens.weight)


OWN = {
    "adapters": Case(
        lambda: nn.Sequential(Adapted(nn.Linear(5, 6)), nn.Tanh(), Adapted(nn.Linear(6, 3))), (5,)
    ),
    "padding row": Case(Padded, (5,), "cross_entropy", 6, Embedding("tokens"), classes=True),
    "a part of the input": Case(
        lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)),
        (5,),
        view=Input.features([0, 3], 5),
    ),
}
EVERY = CASES | OWN
USUAL = ["linear", "conv2d strided", "attention", "tied text", "group norm resnet", *OWN]


def flat_directions(engine: Engine, count: int, key: object) -> Tensor:
    """Return the signs of all parameters, by the generator of dense directions."""
    rows = []
    for k in range(count):
        us = random_direction(engine.problem, engine.seed, key, k)
        like = engine.problem.detached()
        rows.append(torch.cat([us[n].dense(p.shape).flatten() for n, p in like.items()]))
    return torch.stack(rows)


def close(found: Tensor, wanted: Tensor) -> None:
    # One-sided steps whose size is fitted to a ladder: their rounding differs by the machine.
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.parametrize("name", sampled(list(EVERY), USUAL, None))
@pytest.mark.filterwarnings("ignore::seepage.nn.FallbackWarning")
def test_traces_are_those_of_dense_jacobians(name: str) -> None:
    chosen, clip = EVERY[name], SmoothClip(0.7)
    net, x, y = chosen.build()
    truth = dense(net, chosen.loss, chosen.view, x, y)
    n = truth.g.norm(dim=1)
    how = {"view": chosen.view, "method": "parameters"}
    free = Engine(net, chosen.loss, clip=NoClip(), **how)
    u = flat_directions(free, 2, 3)
    squared = torch.einsum("bpd,kp->bkd", truth.J, u).square().sum(2)
    close(free.step(x, y, probes=2, key=3, update=True).traces, squared)
    close(free.step(x, y, probes=2, key=3).traces, squared)

    bounded = Engine(net, chosen.loss, clip=clip, clip_derivative="conservative", **how)
    for chunk in ("auto", 2):
        bounded = Engine(
            net, chosen.loss, clip=clip, clip_derivative="conservative", chunk_size=chunk, **how
        )
        step = bounded.step(x, y, probes=2, key=3, update=True)
        close(step.traces, squared * clip.conservative(n)[:, None])
        close(step.norms, n)
        total = torch.cat([part.flatten() for part in step.gradient.values()])
        close(total, truth.clipped(clip)[0].sum(0))
    close(bounded.step(x, y, probes=2, key=3).traces, step.traces)  # beside others' updates


@pytest.mark.parametrize("clip", [HardClip(0.7), SmoothClip(0.7)])
def test_exact_clipping_takes_the_radial_part_off(clip: snn.problem.clipping.Clip) -> None:
    net, x, y = CASES["attention"].build()
    truth = dense(net, CASES["attention"].loss, Input(), x, y)
    true = truth.clipped(clip)[1].square().sum((1, 2))
    engine = Engine(net, CASES["attention"].loss, clip=clip, method="parameters")
    count = truth.g.shape[1]
    u = torch.eye(count)  # over all unit vectors instead of signs, the mean is the truth
    plain = torch.einsum("bpd,kp->bkd", truth.J, u.double()).square().sum((1, 2))
    traces = engine.step(x, y, probes=2, update=True).traces
    signs = flat_directions(engine, 2, 0)
    probed = torch.einsum("bpd,kp->bkd", truth.J, signs).square().sum(2)
    phi = clip.phi(truth.g.norm(dim=1))
    close(traces, true[:, None] + (probed - plain[:, None]) / phi[:, None] ** 2)
    bounded = Engine(
        net, CASES["attention"].loss, clip=clip, method="parameters", clip_derivative="conservative"
    )
    assert bool((bounded.step(x, y, probes=100).traces.mean(1) > 0.8 * true).all())


def test_what_torch_cannot_see_is_refused() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.inner(x)) * x.detach().square().sum(1, keepdim=True))

    torch.manual_seed(0)
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    engine = Engine(Hidden(), "cross_entropy", clip=NoClip(), method="parameters")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", snn.FallbackWarning)
        with pytest.raises(sp.InputError, match="hides a dependence"):
            engine.step(x, y, update=True)
    by_frequency = nn.Sequential(
        nn.Embedding(4, 3, scale_grad_by_freq=True), nn.Tanh(), nn.Flatten(), nn.Linear(9, 2)
    )
    tokens = torch.tensor([[0, 0, 1], [2, 2, 2], [3, 1, 1]])
    engine = Engine(
        by_frequency, "cross_entropy", clip=NoClip(), view=Embedding("0"), method="parameters"
    )
    with pytest.raises(sp.InputError):
        engine.step(tokens, torch.tensor([0, 1, 1]), update=True)


@pytest.mark.filterwarnings("ignore::seepage.nn.KinkWarning")
def test_kinks_and_short_parameters_are_refused() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    kinked = nn.Sequential(nn.Linear(4, 30), nn.ReLU(), nn.Linear(30, 3))
    with pytest.raises(sp.InputError, match="kinks"):
        Engine(kinked, "cross_entropy", method="parameters").step(x, y)


def wide() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(70, 80), nn.Tanh(), nn.Linear(80, 3))

    class Pooled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).mean(1)

    return Pooled(), torch.randn(8, 40, 70), torch.randint(3, (8,))


def test_auto_takes_them_where_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "has_short_numbers", lambda net, device: True)
    net, x, y = wide()
    bounded = Engine(net, "cross_entropy", clip_derivative="conservative")
    assert bounded.moves_parameters(x, y)
    assert not bounded.moves_parameters(x, y, training=False)
    assert not Engine(net, "cross_entropy").moves_parameters(x, y)
    free = Engine(net, "cross_entropy", clip=NoClip())
    assert free.moves_parameters(x, y)
    assert not Engine(net.half(), "cross_entropy", clip=NoClip(), method="thin").moves_parameters(
        x.half(), y
    )
    monkeypatch.undo()
    assert not Engine(net.float(), "cross_entropy", clip=NoClip()).moves_parameters(x, y)


def test_rounding_and_curvature_are_removed_in_float32() -> None:
    net, x, y = wide()
    engine = Engine(net, "cross_entropy", clip=NoClip(), method="parameters")
    found = engine.step(x, y, probes=4, update=True).traces
    truth = Engine(net, "cross_entropy", clip=NoClip(), method="derivative")
    wanted = truth.step(x, y, probes=4, pulls=True).traces
    assert engine.parameter_step is not None
    assert engine.parameter_step.doubt < 0.02
    torch.testing.assert_close(found, wanted, rtol=0.01, atol=0.01 * float(wanted.mean()))


class Checkpointed(nn.Module):
    """Frozen layers in bf16 with float32 adapters, run again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Adapted(nn.Linear(6, 6, dtype=torch.bfloat16))
        self.head = Adapted(nn.Linear(6, 3, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(lambda x: torch.tanh(self.inner(x)), x, use_reentrant=False)
        return self.head(h)


def test_checkpointed_networks_that_need_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    # As for a network too large to be copied to float32.
    monkeypatch.setattr(engine_module, "measured_type", lambda net: None)
    torch.manual_seed(0)
    net = Checkpointed()
    x, y = torch.randn(6, 6).bfloat16(), torch.randint(3, (6,))
    engine = Engine(net, "cross_entropy", clip=NoClip(), method="parameters")
    with torch.autocast("cpu", torch.bfloat16):
        found = engine.step(x, y, probes=20, update=True).traces.mean(1)
    truth = Engine(net.float(), "cross_entropy", clip=NoClip(), method="derivative")
    wanted = truth.step(x.float(), y, probes=20, pulls=True).traces.mean(1)
    assert abs(float(found.mean() / wanted.mean()) - 1) < 0.2


CARD = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a graphics card")


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=CARD)])
def test_parameters_move_by_the_signs_of_the_direction(place: str) -> None:
    """Sizes that do not fill a word, a transposed parameter and float64 included."""
    chance = torch.Generator().manual_seed(1)
    shapes = {"a": (7, 9), "b": (1,), "c": (5, 33), "d": (2, 3, 3000)}
    own = {name: torch.randn(shape, generator=chance) for name, shape in shapes.items()}
    own["c"] = own["c"].T
    own["e"] = torch.randn(70, generator=chance, dtype=torch.float64)
    count = sum(p.numel() for p in own.values())
    every, start = signs(key_of("moves"), (count,), torch.zeros(0)), 0
    there = {name: p.to(place) for name, p in own.items()}
    moved = stepped(there, packed_signs(key_of("moves"), count, there["a"]), 0.25)
    for name, p in own.items():
        u = every[start : start + p.numel()].reshape(p.shape).to(p.dtype)
        assert torch.equal(moved[name].cpu(), p + 0.25 * u), name
        start += p.numel()


def test_a_step_lists_the_network_once_and_the_next_step_sees_what_was_frozen() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    engine = Engine(net, "cross_entropy", clip_derivative="conservative", method="parameters")
    x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    engine.step(x, y, update=True)
    listings = []
    listed = net.named_parameters
    net.named_parameters = lambda *a, **k: listings.append(1) or listed(*a, **k)  # type: ignore[method-assign]
    assert set(engine.step(x, y, update=True).gradient) == {n for n, _ in listed()}
    assert len(listings) <= 3  # torch's own listings included
    net[0].requires_grad_(False)
    assert set(engine.step(x, y, update=True).gradient) == {"2.weight", "2.bias"}

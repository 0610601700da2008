"""One accounted step of private training, against a ``vmap`` DP-SGD step and a plain training step.

Claims, each a ratio measured in one run:

- MNIST network of paper 004, batch 200, two cores: an accounted step with the update, at a trace
  error no larger than that of 50 sampled coordinates, within 3 times a ``vmap`` DP-SGD step, and at
  least 25 times cheaper than 50 coordinate JVPs with ``vmap``;
- there, the checks during a run (the optimiser's clipped sum against the accountant's, and
  derivatives against finite differences) cost under 2 % of a run of 400 steps;
- on an accelerator (``--device cuda``) in float32: WideResNet-16-4 at batch 1,024, update and one
  probe within 2.3 times the ``vmap`` DP-SGD step and no more memory than it; GPT-2's shape at 124
  million and 1.3 billion parameters, one probe within 2 times a plain training step, 3.5 times with
  exact clipping, in under 20 and 60 GiB;
- at training precision (``--precision high``: TF32; ``--autocast bf16``), in plain eager steps of
  the same precision: GPT-2's shape, one probe within 2.2 (TF32) or 2.0 (bf16), exactly clipped with
  the update within 4.5; WideResNet-16-4 in TF32, update and probe with the conservative bound
  within 4.5. Compiled plain steps are printed as well. The same update with the clip's derivative
  bounded from above, by a step of the parameters (``"124M, conservative"``, ``"1.3B,
  conservative"``): within 2.4 plain steps in bf16, every record within a tenth of float32. The
  clip's exact derivative at one step in 32 adds at most a tenth (``"wide, radial part"``,
  ``"124M, radial part"``).

``--small`` runs everything at toy sizes, on any device, as a smoke test. Figures are written to
``benchmarks/results/`` with the name of the machine.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import seepage.nn as snn
import seepage.nn.jacobian.engine as jacobian_engine
from against_float32 import against_float32
from big_networks import GPT_SIZES, gpt_batch, wide_batch
from network_runs import images, run, table
from private_steps import (
    Stopwatch,
    accounted_step,
    coordinate_products,
    most_gib,
    training_step,
    vmap_step,
)
from reproduction.private_sgd.networks import mnist_cnn
from seepage.nn.measures.information_matrices import exact_diagonal
from seepage.nn.problem.problem import cross_entropy
from seepage.nn.training.opacus import SumCheck

PLAIN = "plain training step"
MOST_GIB = {"124M": 20, "1.3B": 60}


def relative_errors(engine: snn.Engine, x: Tensor, y: Tensor, draws: int) -> tuple[float, float]:
    """Return the relative deviation of 50 sampled coordinates and of one probe of the trace."""
    diagonal = exact_diagonal(engine, x, y).flatten(1).double()
    trace = diagonal.sum(1)
    d = diagonal.shape[1]
    coordinates = (d * diagonal.square().sum(1) - trace**2).clamp(min=0) / 50
    probes = engine.step(x, y, probes=draws, key="errors").traces.double()
    spread = ((probes - trace[:, None]) ** 2).mean(1)
    return float((coordinates.sqrt() / trace).mean()), float((spread.sqrt() / trace).mean())


def mnist(device: torch.device, small: bool, repeats: int) -> dict[str, Any]:
    """Measure the network of paper 004, Table 1, when initialised; errors also when trained."""
    torch.manual_seed(0)
    batch, few, draws = (20, 2, 8) if small else (200, 16, 64)
    x, y, source = images(batch)
    x, y = x.to(device), y.to(device)
    net = mnist_cnn().to(device)
    clip = snn.SmoothClip(1.0)
    exact = snn.Engine(net, "cross_entropy", clip=clip)
    safe = snn.Engine(net, "cross_entropy", clip=clip, clip_derivative="conservative")
    fifty, one = relative_errors(exact, x[:few], y[:few], draws)
    gap = _clipping_gap(net, clip, x, y)
    needed = max(2, math.ceil((one / fifty) ** 2))
    sampled = 2
    found = Stopwatch(device, repeats).compare(
        {
            "plain training step": training_step(net, x, y),
            "vmap DP-SGD step": vmap_step(net, clip, x, y),
            "DP-SGD update alone": accounted_step(exact, x, y, 0),
            f"update + {needed} probes, exact clipping": accounted_step(exact, x, y, needed),
            f"update + {needed} probes, conservative": accounted_step(safe, x, y, needed),
            f"{sampled} coordinate JVPs with vmap": coordinate_products(net, clip, x, y, sampled),
        }
    )
    coordinates = found.pop(f"{sampled} coordinate JVPs with vmap")
    found["50 coordinate JVPs with vmap"] = {**coordinates}
    found["50 coordinate JVPs with vmap"]["seconds"] *= 50 / sampled
    print(f"\nMNIST network of paper 004, batch {batch}, {source}")
    print(
        f"relative deviation of the trace: 50 coordinates {fifty:.1%}, one probe {one:.1%}: "
        f"{needed} probes suffice"
    )
    table(found, "vmap DP-SGD step")
    ours = found[f"update + {needed} probes, exact clipping"]["seconds"]
    ratio = ours / found["vmap DP-SGD step"]["seconds"]
    cheaper = found["50 coordinate JVPs with vmap"]["seconds"] / ours
    checked = checking(net, x, y, repeats)
    train(net, x, y, 5 if small else 60)
    later = relative_errors(exact, x[:few], y[:few], draws)
    later_gap = _clipping_gap(net, clip, x, y)
    print(f"conservative over exact trace: {gap:.3f} at the start, {later_gap:.3f} when trained")
    print(
        f"when trained, the relative deviations are {later[0]:.1%} for 50 coordinates and "
        f"{later[1]:.1%} for one probe: the information of a record has few directions then"
    )
    return {
        "times": found,
        "probes": needed,
        "relative deviation at the start": {"50 coordinates": fifty, "one probe": one},
        "relative deviation when trained": {"50 coordinates": later[0], "one probe": later[1]},
        "conservative over exact": {"at the start": gap, "when trained": later_gap},
        "claims": {
            "accounted over vmap step": [ratio, 3.0, ratio <= 3],
            "50 coordinates over accounted": [cheaper, 25.0, cheaper >= 25],
            "checks over a run of 400 steps": [checked, 0.02, checked <= 0.02],
        },
    }


def checking(net: nn.Module, x: Tensor, y: Tensor, repeats: int) -> float:
    """Return the cost of the checks in a run of 400 steps, relative to the steps themselves.

    Every step is measured with two probes. Comparing sums costs the clipped sum's addition to a
    step plus the comparison; checking derivatives costs the extra time of the first step (which
    includes the first look at the network) plus the checks in later steps.
    """
    steps = 400
    clip = snn.HardClip(1.0)
    check, compared = SumCheck(), 0
    for k in range(steps):
        check.begin(k, "settings")
        compared += check.due
    engine = snn.Engine(net, "cross_entropy", clip=clip)
    engine.step(x, y, probes=2)
    stopwatch, seconds = Stopwatch(x.device, repeats), list[float]()
    with clocked(jacobian_engine, "check_derivative", seconds, stopwatch.now):
        for k in range(1, steps):  # later checks look at 16 records, whatever the batch size
            engine.step(x[:20], y[:20], probes=2, key=k)
    check.begin(0, "settings")
    done = engine.step(x, y, probes=2, update=True)
    assert done.gradient is not None

    def compare() -> None:
        check.begin(0, "settings")
        check.add(done, clip)
        check.compare(done.gradient or {})

    def begin() -> None:
        snn.Engine(net, "cross_entropy", clip=clip).step(x, y, probes=2)

    found = stopwatch.compare(
        {
            "first step": begin,
            "step": lambda: engine.step(x, y, probes=2, key="timed"),
            "with its sum": lambda: engine.step(x, y, probes=2, key="timed", update=True),
            "comparison": compare,
        }
    )
    step = found["step"]["seconds"]
    sums = max(0.0, found["with its sum"]["seconds"] - step) + found["comparison"]["seconds"]
    longer = found["first step"]["seconds"] - step
    share = (compared * sums + longer + sum(seconds)) / (steps * step)
    print(
        f"checks in a run of {steps} steps of {step:.3f} s: {compared} sums compared, {sums:.3f} s "
        f"each; derivatives compared in the first step, {longer:.3f} s, and {len(seconds)} times "
        f"later, {sum(seconds):.3f} s together: {share:.2%} of the run"
    )
    return share


@contextmanager
def clocked(
    module: Any, name: str, seconds: list[float], now: Callable[[], float]
) -> Iterator[None]:
    """Record how long every call of a module's function takes."""
    work = getattr(module, name)

    def timed(*args: Any, **options: Any) -> Any:
        start = now()
        try:
            return work(*args, **options)
        finally:
            seconds.append(now() - start)

    setattr(module, name, timed)
    try:
        yield
    finally:
        setattr(module, name, work)


def train(net: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
    """Train a network until it fits a batch."""
    optimiser = torch.optim.SGD(net.parameters(), lr=0.3)
    for _ in range(steps):
        optimiser.zero_grad()
        cross_entropy(net(x), y).mean().backward()
        optimiser.step()


def _clipping_gap(net: nn.Module, clip: snn.SmoothClip, x: Tensor, y: Tensor) -> float:
    """Return the ratio of the conservative bound to the exactly clipped trace."""
    with torch.autocast(x.device.type, enabled=False):
        bound, true = (
            snn.Engine(
                net, "cross_entropy", clip=clip, clip_derivative=kind, method="derivative"
            ).step(x, y, probes=16, pulls=True)
            for kind in ("conservative", "exact")
        )
    return float(bound.traces.sum() / true.traces.sum())


def method_for(device: torch.device, small: bool) -> str:
    """Return the method: the engine's choice, except for toys at reduced precision."""
    return "thin" if small and torch.is_autocast_enabled(device.type) else "auto"


def wide(device: torch.device, small: bool, repeats: int) -> dict[str, Any]:
    """Measure WideResNet-16-4 with GroupNorm."""
    title, net, x, y = wide_batch(device, small)
    clip = snn.SmoothClip(1.0)
    how = method_for(device, small)
    exact = snn.Engine(net, "cross_entropy", clip=clip, method=how)
    safe = snn.Engine(net, "cross_entropy", clip=clip, clip_derivative="conservative", method=how)
    found = Stopwatch(device, repeats).compare(
        {
            **plain_steps(net, x, y),
            "vmap DP-SGD step": vmap_step(net, clip, x, y),
            "DP-SGD update alone": accounted_step(safe, x, y, 0),
            "update + 1 probe, conservative": accounted_step(safe, x, y, 1),
            "update + 1 probe, exact clipping": accounted_step(exact, x, y, 1),
        }
    )
    count = sum(p.numel() for p in net.parameters())
    print(f"\n{title}, {count / 1e6:.1f} M parameters, batch {len(y)}")
    table(found, PLAIN)
    base, ours = found["vmap DP-SGD step"], found["update + 1 probe, conservative"]
    ratio, memory = ours["seconds"] / base["seconds"], ours["gib"] / max(base["gib"], 1e-9)
    claims = {
        "update and probe over vmap step": [ratio, 2.3, ratio <= 2.3],
        "memory over vmap step": [memory, 1.0, memory <= 1],
    }
    if torch.get_float32_matmul_precision() == "high":
        steps = ours["seconds"] / found[PLAIN]["seconds"]
        claims["update and conservative probe over plain step"] = [steps, 4.5, steps <= 4.5]
    return {
        "times": found,
        "claims": claims,
        "conservative over exact": _clipping_gap(net, clip, x[:64], y[:64]),
        **steps_of(safe),
    }


def text(device: torch.device, small: bool, repeats: int, size: str) -> dict[str, Any]:
    """Measure a transformer of GPT-2's shape with respect to its token embeddings."""
    title, net, x, y = gpt_batch(device, small, size)
    view, how = snn.Embedding("tokens"), method_for(device, small)
    free = snn.Engine(net, "cross_entropy", clip=snn.NoClip(), view=view, method=how)
    exact = snn.Engine(net, "cross_entropy", clip=snn.SmoothClip(1.0), view=view, method=how)
    found = Stopwatch(device, repeats).compare(
        {
            **plain_steps(net, x, y),
            "1 probe": accounted_step(free, x, y, 1, train=False),
            "1 probe, exact clipping": accounted_step(exact, x, y, 1, train=False),
            "update + 1 probe, exact clipping": accounted_step(exact, x, y, 1),
        }
    )
    count = sum(p.numel() for p in net.parameters())
    print(f"\n{title}, {count / 1e6:.0f} M parameters, batch {len(y)}")
    table(found, PLAIN)
    peak = max(most_gib(found[name]) for name in ("1 probe", "1 probe, exact clipping"))
    if torch.is_autocast_enabled(device.type):
        limits = {"1 probe": 2.0, "update + 1 probe, exact clipping": 4.5}
    elif torch.get_float32_matmul_precision() == "high":
        limits = {"1 probe": 2.2, "update + 1 probe, exact clipping": 4.5}
    else:
        limits = {"1 probe": 2.0, "1 probe, exact clipping": 3.5}
    ratios = {name: found[name]["seconds"] / found[PLAIN]["seconds"] for name in limits}
    claims = {
        f"{name}, over plain step": [ratios[name], most, ratios[name] <= most]
        for name, most in limits.items()
    }
    claims["peak GiB"] = [peak, MOST_GIB[size], peak <= MOST_GIB[size]]
    apart = {}
    if free.scale is not None:
        apart = against_float32(free, net, "tokens", x[:4], y[:4])
        claims |= apart.pop("claims")
    return {"times": found, "parameters": count, "claims": claims, **apart}


def bounded(device: torch.device, small: bool, repeats: int, size: str) -> dict[str, Any]:
    """Measure an update with every record accounted for by steps of the parameters."""
    title, net, x, y = gpt_batch(device, small, size)
    view, how = snn.Embedding("tokens"), "parameters" if small else "auto"
    safe = snn.Engine(net, "cross_entropy", view=view, method=how, clip_derivative="conservative")
    found = Stopwatch(device, repeats).compare(
        {
            PLAIN: training_step(net, x, y),
            "DP-SGD update alone": accounted_step(safe, x, y, 0),
            "update + 1 probe, conservative": accounted_step(safe, x, y, 1),
        }
    )
    count = sum(p.numel() for p in net.parameters())
    print(f"\n{title}, {count / 1e6:.0f} M parameters, batch {len(y)}")
    table(found, PLAIN)
    ours = found["update + 1 probe, conservative"]
    ratio, peak = ours["seconds"] / found[PLAIN]["seconds"], most_gib(ours)
    claims = {"peak GiB": [peak, MOST_GIB[size], peak <= MOST_GIB[size]]}
    if torch.is_autocast_enabled(device.type):
        claims["update and conservative probe over plain step"] = [ratio, 2.4, ratio <= 2.4]
    free = snn.Engine(net, "cross_entropy", clip=snn.NoClip(), view=view, method=how)
    apart = against_float32(free, net, "tokens", x[:4], y[:4], training=True)
    return {"times": found, "parameters": count, **apart, "claims": claims | apart["claims"]}


def radial(device: torch.device, small: bool, repeats: int, size: str) -> dict[str, Any]:
    """Measure what the clip's exact derivative at one step in 32 adds to an accounted step."""
    title, net, x, y = wide_batch(device, small) if size == "wide" else gpt_batch(device, small)
    view: snn.View = snn.Input() if size == "wide" else snn.Embedding("tokens")
    how = "parameters" if small else "auto"
    safe = snn.Engine(net, "cross_entropy", view=view, method=how, clip_derivative="conservative")
    found = Stopwatch(device, min(repeats, 5)).compare(
        {
            PLAIN: training_step(net, x, y),
            "update + 1 probe, conservative": accounted_step(safe, x, y, 1),
            "radial part": lambda: safe.radial_pull(x, y),
        }
    )
    print(f"\n{title}, the radial part of the clip, batch {len(y)}")
    table(found, PLAIN)
    share = found["radial part"]["seconds"] / 32
    ratio = share / found["update + 1 probe, conservative"]["seconds"]
    claims = {"radial part at 1 step in 32, over an accounted step": [ratio, 0.1, ratio <= 0.1]}
    return {"times": found, "claims": claims}


def plain_steps(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Callable[[], None]]:
    """Return a plain training step, eager and, on an accelerator, compiled."""
    steps = {PLAIN: training_step(net, x, y)}
    if x.device.type == "cuda":
        steps[f"{PLAIN}, compiled"] = training_step(net, x, y, compiled=True)
    return steps


def steps_of(engine: snn.Engine) -> dict[str, Any]:
    """Return the size of finite steps and their uncertainty, if any were taken."""
    if engine.scale is None:
        return {}
    told = {"finite step": engine.scale, "doubt": engine.doubt}
    print(f"over steps of {engine.scale:g}; half and twice that differ by {engine.doubt:.2%}")
    return told


if __name__ == "__main__":
    parts = {"mnist": mnist, "wide": wide} | {name: partial(text, size=name) for name in GPT_SIZES}
    parts |= {f"{name}, conservative": partial(bounded, size=name) for name in GPT_SIZES}
    parts |= {f"{name}, radial part": partial(radial, size=name) for name in ("wide", "124M")}
    sys.exit(run("accountant", __doc__.splitlines()[0], parts))

"""How often the intervals of runs that measure only a sample of their steps cover the exact value.

Claims, for private training of a small tanh network on 200 records:

- With ``clip_derivative="sampled"``, the 95 % intervals of η̄ cover 93 to 97 % of exact values over
  50 runs with the hard clip (two probes) and with the smooth clip (one probe), up to two standard
  errors between runs. The squares of η̄ are unbiased.
- In each run with the hard clip, the upper bound of ``clip_derivative="conservative"`` is above the
  exact value in total. At most 2.5 % of its intervals are below it.
- With ``measure_every=4``, intervals cover at least 93 % also at a sampling rate of 0.01 and 1,000
  steps, where a record takes part in ten steps and is measured in two or three. A record that took
  part but was not measured has no interval, and counts as not covered.
- No record that took part is shown as 0.

The exact value is the run's own, for its batches and networks: gradients of single records by
``torch.func`` in float64, clipped by a formula of their own, with all their derivatives, at every
step. It uses no probes and no sample of steps. Every run has its own initial network, batches,
noise, probes and sample; the errors of a run's records are correlated, so the stated standard
errors are those between runs.

The figures are kept in ``results/sampled_steps.json``. ``--small`` takes few runs, and keeps
nothing; names of parts (``hard``, ``smooth``, ``quarter``) run only these.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacfwd, vmap

import seepage as sp
from keeping import keep, made_by
from measuring import show

KEPT = Path(__file__).parent / "results" / "sampled_steps.json"
WIDTHS = (42, 8, 16, 10, 10, 10, 10)
RECORDS, INPUTS, HIDDEN, CLASSES = 200, 6, 8, 3
NOISE, THRESHOLD = 0.5, 1.0
LEAST, MOST, BELOW = 0.93, 0.97, 0.025


def table() -> tuple[Tensor, Tensor]:
    """Return records of three classes, each normal around its centre."""
    chance = torch.Generator().manual_seed(0)
    y = torch.randint(CLASSES, (RECORDS,), generator=chance)
    centres = torch.randn(CLASSES, INPUTS, generator=chance)
    return centres[y] + torch.randn(RECORDS, INPUTS, generator=chance), y


def smooth_phi(n: Tensor) -> Tensor:
    """Return φ of Guo et al. 2022."""
    return nn.functional.gelu(n / THRESHOLD - 1) + 1


def hard_phi(n: Tensor) -> Tensor:
    """Return φ of the usual clip."""
    return torch.clamp(n / THRESHOLD, min=1.0)


PHI: dict[str, Callable[[Tensor], Tensor]] = {"hard": hard_phi, "smooth": smooth_phi}


def exact(
    net: nn.Module, iterates: list[Tensor], batches: list[Tensor], x: Tensor, y: Tensor, clip: str
) -> np.ndarray:
    """Return every record's η̄ over all steps, from all derivatives of its clipped gradients."""
    shapes = {name: p.shape for name, p in net.named_parameters()}

    def loss(flat: Tensor, record: Tensor, label: Tensor) -> Tensor:
        pieces = flat.split([shape.numel() for shape in shapes.values()])
        parts = {n: p.reshape(shapes[n]) for n, p in zip(shapes, pieces, strict=True)}
        output = functional_call(net, parts, (record[None],))
        return nn.functional.cross_entropy(output, label[None])

    def clipped(flat: Tensor, record: Tensor, label: Tensor) -> Tensor:
        g = grad(loss)(flat, record, label)
        return g / PHI[clip](g.norm())

    steps = torch.cat([torch.full((len(b),), k) for k, b in enumerate(batches)])
    index, flats = torch.cat(batches), torch.stack(iterates).double()
    jacobian = vmap(jacfwd(clipped, argnums=1))
    total = torch.zeros(RECORDS, dtype=torch.float64)
    for pairs in torch.arange(len(index)).split(2000):
        i = index[pairs]
        J = jacobian(flats[steps[pairs]], x[i].double(), y[i])
        total.index_add_(0, i, J.square().sum((1, 2)))
    return np.sqrt(total.numpy() / INPUTS) / (NOISE * THRESHOLD)


def trained(
    seed: int, rate: float, steps: int, learning_rate: float, clip: str, *ways: dict[str, Any]
) -> tuple[np.ndarray, list[sp.nn.FisherAccountant]]:
    """Return the exact η̄ of a run, and an accountant for each of the ``ways`` to measure it."""
    x, y = table()
    torch.manual_seed(seed)
    layers = nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)
    net = nn.Sequential(*layers)
    accountants = [
        sp.nn.FisherAccountant(
            net,
            "cross_entropy",
            n=RECORDS,
            batch_size=rate * RECORDS,
            noise_multiplier=NOISE,
            max_grad_norm=THRESHOLD,
            clip=clip,
            amplification="none",
            individual=False,
            seed=seed,
            **way,
        )
        for way in ways
    ]
    iterates, batches = [], []
    for _ in range(steps):
        index = torch.nonzero(torch.rand(RECORDS) < rate).flatten()
        iterates.append(nn.utils.parameters_to_vector(net.parameters()).detach().clone())
        batches.append(index)
        seen = [
            a.observe(index, x[index], y[index], update=a is accountants[0]) for a in accountants
        ]
        with torch.no_grad():
            for name, p in net.named_parameters():
                noise = NOISE * THRESHOLD * torch.randn_like(p)
                p -= learning_rate * (seen[0].gradient[name] + noise) / (rate * RECORDS)
    return exact(net, iterates, batches, x, y, clip), accountants


def judged(true: list[np.ndarray], runs: list[sp.nn.FisherAccountant]) -> dict[str, Any]:
    """Return how often the intervals of all runs cover the exact values, and how far off they are.

    All shares are of the records that took part.
    """
    shares: list[dict[str, float]] = []
    for value, run in zip(true, runs, strict=True):
        part = value > 0
        found = run.records("dfil")
        low, high = (end[part] for end in found.interval())
        value, shown = value[part], np.asarray(found)[part]
        shares.append(
            {
                "covered": np.mean((low <= value) & (value <= high)),
                "interval below": np.mean(high < value),
                "without an interval": np.mean(np.isnan(high)),
                "shown as 0": np.mean(shown == 0),
                "ratio": float(run.information()[0].sum()) / INPUTS / np.sum(value**2),
                "half width": np.nanmedian((high - low) / (2 * value)),
            }
        )
    names = shares[0]
    each = {name: np.array([one[name] for one in shares]) for name in names}
    errors = {name: float(each[name].std(ddof=1) / len(runs) ** 0.5) for name in names}
    intervals = int(sum(np.sum(value > 0) for value in true))
    return {
        "runs": len(runs),
        "intervals": intervals,
        **{name: float(values.mean()) for name, values in each.items()},
        "errors between runs": errors,
        "least ratio": float(each["ratio"].min()),
    }


def radial(clip: str, probes: int, runs: int, *kinds: str) -> dict[str, dict[str, Any]]:
    """Return the figures of runs with these derivatives of the clip."""
    ways = [{"clip_derivative": kind, "probes": probes} for kind in kinds]
    found = [trained(seed, 0.5, 128, 0.1, clip, *ways) for seed in range(runs)]
    true = [value for value, _ in found]
    return {
        f"{kind}, {clip} clip, probes: {probes}": judged(
            true, [accountants[k] for _, accountants in found]
        )
        for k, kind in enumerate(kinds)
    }


def quarter(probes: int, runs: int) -> dict[str, dict[str, Any]]:
    """Return the figures of runs in which each record is measured in a quarter of its steps."""
    way = {"measure_every": 4, "probes": probes}
    found = [trained(seed, 0.01, 1000, 0.02, "hard", way) for seed in range(runs)]
    name = f"measure_every=4, probes: {probes}"
    return {name: judged([value for value, _ in found], [one for _, (one,) in found])}


def verdicts(name: str, one: dict[str, Any]) -> dict[str, bool]:
    """Return the claims about one way of measuring, and whether each is met."""
    claims = {"no record shown as 0": one["shown as 0"] == 0}
    if name.startswith("conservative"):
        claims["above the exact value in every run"] = one["least ratio"] > 1
        claims["at most 2.5 % of intervals below it"] = one["interval below"] <= BELOW
    elif name.startswith("sampled"):
        between = one["errors between runs"]
        off = max(LEAST - one["covered"], one["covered"] - MOST)
        claims["intervals cover 93 to 97 %"] = off <= 2 * between["covered"]
        claims["squares are unbiased"] = abs(one["ratio"] - 1) < 3 * between["ratio"]
    else:
        claims["intervals cover at least 93 %"] = one["covered"] >= LEAST
    return claims


def main(words: list[str]) -> int:
    """Measure, print, compare with the claims, and keep the figures."""
    small = "--small" in words
    runs = 2 if small else 50
    figures: dict[str, dict[str, Any]] = {}
    head = ("", "runs", "covered", "too low", "none", "ratio", "half width")
    show(*head, widths=WIDTHS)
    parts: dict[str, Callable[[], dict[str, dict[str, Any]]]] = {
        "hard": lambda: radial("hard", 2, runs, "sampled", "conservative"),
        "smooth": lambda: radial("smooth", 1, runs, "sampled"),
        "quarter": lambda: quarter(2, max(2, runs // 2)),
    }
    lines, good = [], True
    for part in [word for word in words if word in parts] or list(parts):
        for name, one in parts[part]().items():
            figures[name] = {"made": made_by(), **one}
            error = one["errors between runs"]["covered"]
            show(
                name,
                one["runs"],
                f"{100 * one['covered']:.1f} ± {100 * error:.1f} %",
                *(f"{100 * one[key]:.1f} %" for key in ("interval below", "without an interval")),
                f"{one['ratio']:.3f}",
                f"{one['half width']:.2f}",
                widths=WIDTHS,
            )
            for claim, met in verdicts(name, one).items():
                good &= met
                lines.append(f"{'kept' if met else 'MISSED':<7} {name}: {claim}")
    if small:
        return 0
    print("", *lines, sep="\n")
    old = json.loads(KEPT.read_text("utf-8"))["ways"] if KEPT.exists() else {}
    keep({"records": RECORDS, "ways": old | figures}, KEPT)
    return 0 if good else 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))

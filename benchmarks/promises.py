"""What a run promises for adding, removing and replacing a record, beside two other computations.

Twenty settings of private SGD at δ = 1e-5. Claim: ε for adding or removing agrees with
dp-accounting's own accountant, and δ at every ε of this table, composed by numerical integration
and a Fourier transform of our own, does not exceed 1e-5. Replacing a record costs less than half
the noise would. Last, Opacus at a batch size of n − 1: what it states, what we state, and how well
one record more is told from the release. Run with ``python benchmarks/promises.py``; results are
kept in ``benchmarks/results/promises.json``.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dp_accounting as dp
import numpy as np
import torch
from dp_accounting.pld import PLDAccountant
from scipy.special import ndtr
from scipy.stats import binom, norm
from torch.utils.data import DataLoader, TensorDataset

import seepage as sp
from keeping import keep
from seepage.nn.privacy.run_privacy import Entry, Ledger, guarantee

KEPT = Path(__file__).parent / "results" / "promises.json"
DELTA = 1e-5
SETTINGS = (  # sample rate, noise multiplier, steps
    (0.001, 0.6, 1000),
    (0.001, 1.0, 2000),
    (0.01, 0.7, 100),
    (0.01, 1.0, 1),
    (0.01, 1.0, 1000),
    (0.01, 2.0, 1000),
    (0.05, 0.8, 20),
    (0.05, 1.5, 300),
    (0.1, 0.8, 1),
    (0.1, 1.0, 50),
    (0.1, 4.0, 1000),
    (0.25, 1.5, 10),
    (0.25, 6.0, 500),
    (0.5, 1.0, 1),
    (0.5, 3.0, 40),
    (0.75, 2.0, 5),
    (0.9, 1.2, 1),
    (0.9, 5.0, 60),
    (1.0, 2.0, 1),
    (1.0, 8.0, 30),
)
Mixture = Sequence[tuple[float, float]]  # weights and means of normals of deviation one


def composed_delta(upper: Mixture, lower: Mixture, steps: int, epsilon: float) -> float:
    """Return ``sup_S P(S) − e^ε Q(S)`` of composed steps, by integration and Fourier transform."""
    means = [mean for _, mean in (*upper, *lower)]
    edges = np.linspace(min(means) - 11, max(means) + 11, 400_001)
    middle = (edges[1:] + edges[:-1]) / 2
    mass = sum(weight * np.diff(ndtr(edges - mean)) for weight, mean in upper)
    one, two = (
        np.log(sum(weight * np.exp(-((middle - mean) ** 2) / 2) for weight, mean in mixture))
        for mixture in (upper, lower)
    )
    loss = one - two
    centre, spread = mass @ loss, np.sqrt(max(mass @ (loss - mass @ loss) ** 2, 1e-12))
    most = max(loss.max() - loss.min(), 1e-6)
    reach = min(steps * most, 14 * np.sqrt(steps) * spread + 60 * most / np.sqrt(steps) + 1)
    size = 2**20
    width = 2 * max(reach, most) / size
    # Each cell's loss, less its mean, is shared between the two neighbours on the grid of losses.
    place = (loss - centre) / width
    below = np.floor(place).astype(int)
    grid = np.zeros(size)
    np.add.at(grid, below % size, mass * (1 - (place - below)))
    np.add.at(grid, (below + 1) % size, mass * (place - below))
    total = np.fft.irfft(np.fft.rfft(grid) ** steps, size)
    index = np.fft.fftfreq(size, 1 / size)
    losses = steps * centre + width * index
    return float(np.sum(np.clip(total, 0, None) * np.clip(-np.expm1(epsilon - losses), 0, None)))


def pairs(rate: float, sigma: float) -> dict[str, list[tuple[Mixture, Mixture]]]:
    """Return the pairs whose largest δ counts, for every kind of neighbours."""
    mu, none = 1 / sigma, [(1.0, 0.0)]
    more, less = ([(1 - rate, 0.0), (rate, side * mu)] for side in (1, -1))
    far = [(1 - rate, 0.0), (rate, 2 * mu)]
    return {
        "add-or-remove": [(more, none), (none, more)],
        "replace": [(more, less)],
        "fixed": [(far, none), (none, far)],
    }


def row(rate: float, sigma: float, steps: int) -> dict[str, Any]:
    """Return the line of one setting."""
    ledger = Ledger((Entry(steps, "poisson", rate, sigma, 1.0, 1.0, 10_000, declared=True),))
    fixed = Ledger((Entry(steps, "fixed", rate, sigma, 1.0, 1.0, 10_000),))
    theirs = PLDAccountant()
    theirs.compose(
        dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(sigma)), steps)
    )
    epsilon = {
        kind: guarantee(ledger, DELTA, method="pld", neighbours=kind).epsilon
        for kind in ("add-or-remove", "replace")
    } | {"fixed": guarantee(fixed, DELTA, method="pld").epsilon}
    halved = Ledger((Entry(steps, "poisson", rate, sigma / 2, 1.0, 1.0, 10_000, declared=True),))
    return {
        "q": rate,
        "sigma": sigma,
        "steps": steps,
        "epsilon": epsilon,
        "dp_accounting": float(theirs.get_epsilon(DELTA)),
        "renyi, replace": guarantee(ledger, DELTA, neighbours="replace").epsilon,
        "renyi, half the noise": guarantee(halved, DELTA).epsilon,
        "delta by integration": {
            kind: max(composed_delta(*pair, steps, epsilon[kind]) for pair in both)
            for kind, both in pairs(rate, sigma).items()
        },
    }


def opacus(records: int, batch_size: int, sigma: float) -> dict[str, Any]:
    """Return what Opacus and we state of one step on so many records."""
    from opacus import PrivacyEngine

    torch.manual_seed(0)
    X, y = torch.randn(records, 3), torch.randint(2, (records,))
    net, engine = torch.nn.Linear(3, 2), PrivacyEngine()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net, optimizer, loader = engine.make_private(
            module=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
            data_loader=DataLoader(TensorDataset(torch.arange(records), X, y), batch_size),
            noise_multiplier=sigma,
            max_grad_norm=1.0,
        )
        accountant = sp.nn.attach(optimizer, net, "cross_entropy", loader)
        index, x, target = next(iter(loader))
        accountant.observe(index, x, target)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), target).backward()
        optimizer.step()
    return {
        "records": records,
        "rate": loader.batch_sampler.sample_rate,
        "divisor": optimizer.expected_batch_size,
        "opacus": engine.get_epsilon(DELTA),
        "zero-out": accountant.privacy(DELTA, neighbours="zero-out").epsilon,
        "replace": accountant.privacy(DELTA).epsilon,
    }


def told_apart(rates: tuple[float, float], sigma: float, fpr: float = 0.01) -> float:
    """Return the true positives of the best test of an eleventh record, by integration.

    Ten records have the gradient 1, the eleventh −1; the rates are those of 11 and of 10 records.
    """
    x = np.linspace(-8, 18, 26_001)
    ten = [sum(binom.pmf(k, 10, q) * norm.pdf(x, k, sigma) for k in range(11)) for q in rates]
    shifted = sum(binom.pmf(k, 10, rates[0]) * norm.pdf(x, k - 1, sigma) for k in range(11))
    member, other = (1 - rates[0]) * ten[0] + rates[0] * shifted, ten[1]
    order = np.argsort(other / np.maximum(member, 1e-300))
    true, false = (np.cumsum(each[order]) / each.sum() for each in (member, other))
    return float(np.interp(fpr, false, true))


def main() -> None:
    """Print the table and keep it."""
    rows = []
    print("    q     σ     T | ε add/remove  dp_accounting | replace  Rényi  σ/2 | fixed | δ·1e5")
    for setting in SETTINGS:
        found = row(*setting)
        rows.append(found)
        ours, deltas = found["epsilon"], found["delta by integration"]
        print(
            f"{found['q']:5g} {found['sigma']:5g} {found['steps']:5d} | "
            f"{ours['add-or-remove']:12.4f} {found['dp_accounting']:14.4f} | "
            f"{ours['replace']:7.4f} {found['renyi, replace']:6.3f} "
            f"{found['renyi, half the noise']:6.3f} | {ours['fixed']:6.3f} | "
            + " ".join(f"{1e5 * delta:.4f}" for delta in deltas.values()),
            flush=True,
        )
    runs = [opacus(records, 10, 0.8) for records in (11, 10)]
    more, fewer = (float(run["rate"]) for run in runs)
    promise = float(sp.privacy.SampledGaussianDP(0.8, more).trade_off().tpr(0.01))
    attack = {
        "promised": promise,
        "declared": told_apart((more, more), 0.8),
        "real": told_apart((more, fewer), 0.8),
    }
    for run in runs:
        print(
            f"Opacus, n = {run['records']}, batch size 10: rate {run['rate']:g}, divisor "
            f"{run['divisor']}, states ε = {run['opacus']:.3f}; we state {run['replace']:.3f}, to "
            f"replace a record ({run['zero-out']:.3f} to blank one out)"
        )
    print(
        f"One record more, at 1 % false positives: promised {attack['promised']:.1%}, at this rate "
        f"declared {attack['declared']:.1%}, as Opacus draws {attack['real']:.1%}"
    )
    keep({"delta": DELTA, "settings": rows, "opacus": runs, "attack": attack}, KEPT)


if __name__ == "__main__":
    main()

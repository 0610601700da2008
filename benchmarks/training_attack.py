"""Likelihood-ratio attacks on private training: no promise at a declared rate is beaten.

Twelve settings with sample rates from 0.01 to 0.9 and 10 records or more, up to 5 steps and 50
parameters. Two worlds: the target record is in the data, or it is not. Its gradient is as long as
the clip allows. The attacker sees every noisy sum, knows all other records and even which of them
were in which batch, and computes the exact likelihood ratio. 10,000 runs in each world are counted
against thresholds set on 10,000 others: with Clopper–Pearson intervals of 99.9 % over all
comparisons, no true positive rate lies above the promised curve at its false positive rate. Two
controls must be caught: the rate ``batch_size/n``, and half of the stated noise.

The runs are drawn from the definition of a step. The same is done to runs of ``PrivateSGD``, fewer
of them: what its optimiser receives, less the others' gradients, is counted in the same way, and
its distribution is compared with the definition's. Run with
``python benchmarks/training_attack.py``; results are kept in
``benchmarks/results/training_attack.json``.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import beta, kstest
from torch import nn

import seepage as sp
from keeping import keep
from seepage.privacy import SampledGaussianDP, TradeOff

KEPT = Path(__file__).parent / "results" / "training_attack.json"
RATES = (0.01, 0.05, 0.2, 0.5)  # false positive rates at which thresholds are set


@dataclass(frozen=True)
class Setting:
    """Private training: rate, records with the target, noise, steps, parameters."""

    rate: float
    records: int
    sigma: float
    steps: int
    parameters: int


SETTINGS = (
    Setting(0.01, 10, 0.5, 5, 50),
    Setting(0.01, 1000, 0.4, 5, 10),
    Setting(0.05, 20, 0.6, 5, 20),
    Setting(0.05, 200, 1.0, 3, 50),
    Setting(0.1, 10, 0.5, 2, 5),
    Setting(0.1, 100, 1.0, 5, 10),
    Setting(0.9, 10, 1.0, 2, 3),
    Setting(0.25, 50, 1.5, 5, 20),
    Setting(0.5, 10, 0.7, 1, 10),
    Setting(0.5, 40, 2.0, 4, 30),
    Setting(0.9, 11, 0.8, 1, 12),
    Setting(0.9, 30, 3.0, 5, 50),
)


def ratios(residuals: np.ndarray, setting: Setting) -> np.ndarray:
    """Return log-ratios of runs, given each step's sum along the target, less all others."""
    q, variance = setting.rate, setting.sigma**2
    return np.log1p(q * np.expm1((residuals - 0.5) / variance)).sum(1)


def drawn(
    setting: Setting, runs: int, member: bool, draw: np.random.Generator, noise: float
) -> np.ndarray:
    """Return such sums of runs drawn from the definition of a step."""
    size = (runs, setting.steps)
    present = (draw.random(size) < setting.rate) & member
    return present + noise * draw.standard_normal(size)


def resized(setting: Setting, runs: int, member: bool, draw: np.random.Generator) -> np.ndarray:
    """Return log-ratios where the rate is ``batch_size/n``, by the size and the others' coins."""
    size = round(setting.rate * setting.records)
    q, p = size / setting.records, min(1.0, size / (setting.records - 1))
    others = setting.records - 1
    there = draw.binomial(others, q if member else p, (runs, setting.steps))
    # At p = 1 nobody is left out in the other world: one who is decides it.
    each = math.log((1 - q) / (1 - p)) if p < 1 else 1e9
    left = (others - there) * each
    coins = there * np.log(q / p) + left
    own = (draw.random(there.shape) < q) & member
    sums = own + setting.sigma * draw.standard_normal(there.shape)
    step = np.log1p(q * np.expm1((sums - 0.5) / setting.sigma**2))
    return (coins + step).sum(1)


class Watched(torch.optim.SGD):
    """An optimiser that keeps every gradient it is given: all that private training releases."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.seen: list[torch.Tensor] = []

    def step(self, closure: Any = None) -> Any:
        """Keep the noisy mean, and step."""
        (weight,) = self.param_groups[0]["params"]
        self.seen.append(weight.grad.detach().flatten().double().clone())
        return super().step(closure)


def trained(setting: Setting, member: bool, divisor: float = 7.0) -> np.ndarray:
    """Return the sums of one run of ``PrivateSGD`` along the target, less all others."""
    draw = np.random.default_rng(0)
    X = draw.standard_normal((setting.records, setting.parameters))
    X *= 3 / np.linalg.norm(X, axis=1, keepdims=True)  # beyond the clip, so of length 1 after it
    X = X if member else X[:-1]
    net = nn.Linear(setting.parameters, 1, bias=False).double()
    run = sp.nn.PrivateSGD(
        net,
        lambda output, target: output.squeeze(-1) + target,  # whose gradient is the record
        steps=setting.steps,
        sample_rate=setting.rate,
        expected_batch=divisor,
        noise_multiplier=setting.sigma,
        optimizer=Watched,
        method="derivative",
        probes=1,
        individual=False,
        evaluate_every=setting.steps,
    )
    run.fit(torch.tensor(X), torch.zeros(len(X), dtype=torch.float64))
    target, found = _target(setting), []
    for step, mean in enumerate(run._update.optimizer.seen):
        batch = run._sampler.batch(step).numpy()
        others = X[batch[batch < setting.records - 1]] / 3
        found.append(float((divisor * mean.numpy() - others.sum(0)) @ target))
    return np.array(found)


@cache
def _target(setting: Setting) -> np.ndarray:
    X = np.random.default_rng(0).standard_normal((setting.records, setting.parameters))
    return X[-1] / np.linalg.norm(X[-1])


def counted(
    member: np.ndarray, other: np.ndarray, tried: np.ndarray, curve: TradeOff, level: float
) -> Iterator[dict[str, float]]:
    """Yield, for every threshold, what was found and the promise at its false positive rate.

    Thresholds come from ``tried``, runs of the other world that are not counted. A promise is
    beaten if the lower end of the true positives lies above it at the upper end of the false ones.
    """
    for rate in RATES:
        at = np.quantile(tried, 1 - rate)
        true, false = (int(np.sum(each > at)) for each in (member, other))
        low = float(beta.ppf(level / 2, true, len(member) - true + 1)) if true else 0.0
        high = (
            float(beta.ppf(1 - level / 2, false + 1, len(other) - false))
            if false < len(other)
            else 1.0
        )
        yield {
            "false": false / len(other),
            "true": true / len(member),
            "promised": float(curve.tpr(false / len(other))),
            "beaten": bool(low > float(curve.tpr(high))),
        }


def attacked(
    setting: Setting, runs: int, real: int, draw: np.random.Generator, level: float
) -> dict[str, Any]:
    """Return what was found in one setting, for each way in which the runs were made."""
    curve = SampledGaussianDP(setting.sigma, setting.rate, setting.steps).trade_off()
    worlds = (True, False, False)  # counted, counted, and for the thresholds

    def simulated(noise: float) -> list[np.ndarray]:
        return [ratios(drawn(setting, runs, member, draw, noise), setting) for member in worlds]

    honest = simulated(setting.sigma)
    row = {
        "setting": asdict(setting),
        "declared": list(counted(*honest, curve, level)),
        "half the noise": list(counted(*simulated(setting.sigma / 2), curve, level)),
        "batch_size/n": [],
    }
    if setting.rate * setting.records >= 1:
        sized = [resized(setting, runs, member, draw) for member in worlds]
        row["batch_size/n"] = list(counted(*sized, curve, level))
    sums = [np.stack([trained(setting, member) for _ in range(real)]) for member in worlds[:2]]
    both = [ratios(each, setting) for each in sums]
    row["PrivateSGD"] = list(counted(*both, honest[2], curve, level))
    row["p of its noise"] = float(kstest(sums[1].ravel() / setting.sigma, "norm").pvalue)
    return row


def main() -> None:
    """Attack all settings, and keep what was found."""
    parser = argparse.ArgumentParser(description="Likelihood-ratio attacks on private training.")
    parser.add_argument("--runs", type=int, default=10_000, help="runs in each world")
    parser.add_argument("--trained", type=int, default=40, help="of PrivateSGD in each world")
    asked = parser.parse_args()
    draw = np.random.default_rng(20)
    ways = ("declared", "PrivateSGD", "half the noise", "batch_size/n")
    level = 1e-3 / (len(SETTINGS) * len(RATES) * len(ways))  # 99.9 % over all comparisons
    rows = []
    for setting in SETTINGS:
        row = attacked(setting, asked.runs, asked.trained, draw, level)
        rows.append(row)
        beaten = {way: sum(found["beaten"] for found in row[way]) for way in ways}
        first = row["declared"][0]
        print(
            f"q = {setting.rate:g}, n = {setting.records}, σ = {setting.sigma:g}, "
            f"T = {setting.steps}: {first['true']:.3f} true at {first['false']:.3f} false "
            f"positives, promised {first['promised']:.3f}; beaten {beaten}",
            flush=True,
        )
    keep({"runs": asked.runs, "trained": asked.trained, "level": level, "rows": rows}, KEPT)


if __name__ == "__main__":
    main()

"""Likelihood-ratio attacks on real runs of ``PrivateSGD``: no promise of its is beaten.

Twelve settings with sample rates from 0.01 to 0.9, 10 records or more, up to 5 steps and 50
parameters. Two worlds: the target record is in the data, or it is not. Its gradient is as long as
the clip allows. The attacker sees every noisy gradient that the optimiser receives, knows all other
records and even which of them were in which batch, and computes the exact likelihood ratio. In each
setting, 10,000 runs of each world are trained by :class:`seepage.nn.PrivateSGD`, noise and batches
from the operating system's key as in any run; only the attacker's own draws are seeded.

**Several runs in one fit.** A fit trains ``K`` blocks of parameters on ``K`` groups of records. The
gradients of group ``b`` are zero outside block ``b``. Claim: the blocks are independent runs of a
network with the parameters of one block, on the records of one group. Proof, by induction over the
steps. Rate and divisor are declared, so that neither depends on the other groups. In block ``b``, a
step releases ``Σ_{i in group b} c_i g̃_i + σC z_b``. The coins ``c_i`` are tossed for each record
and the noise ``z_b`` is drawn for each parameter, all independently and anew at each step. A record
is clipped by its whole gradient, which is its block's. That gradient depends on the parameters
through its own block alone, a function of the block's earlier releases. So the releases of block
``b`` are functions of its own records, coins and noise, and those of different blocks are
independent. All groups of a fit have their target, or none has.

**Counting.** Thresholds are set beforehand, on draws from the definition of a step, at four false
positive rates, for tests that find members and for tests that find others. The promise is beaten
where the lower end of the true positive rate lies above the promised curve at the upper end of the
false positive rate, by one-sided Clopper–Pearson limits. If all promises hold, the probability that
any of the 96 comparisons says otherwise is at most 1 %.

**Controls.** Two wrong trainers are attacked in the same way: ``batch_size=``, whose rate
``batch_size/n`` moves with ``n``, called a promise about adding a record; and half of the stated
noise. Before a run, each control's true rates give the probability that it will be caught. Where
that is small, the control cannot bite: 2,000 runs do not tell it from the promise.

Run with ``python benchmarks/training_attack.py`` (``--power`` prints what is known beforehand);
results are kept in ``benchmarks/results/training_attack.json``.
"""

from __future__ import annotations

import argparse
import json
import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import beta, kstest
from torch import nn

import seepage as sp
from keeping import keep
from seepage.privacy import SampledGaussianDP
from seepage.privacy.trade_off import LossTradeOff

KEPT = Path(__file__).parent / "results" / "training_attack.json"
RATES = (0.01, 0.05, 0.2, 0.5)  # false positive rates at which thresholds are set
DRAWS = 200_000  # from the definition, for thresholds and for what is expected
LEVEL = 0.01  # the probability that any promise that holds is called beaten
DECLARED, HALF, SIZED = "declared", "half the noise", "batch_size/n"
WAYS = (DECLARED, HALF, SIZED)
PARAMETERS = 50  # of a fit: as many blocks as go into it


@dataclass(frozen=True)
class Setting:
    """Private training: rate, records with the target, noise, steps, parameters of a block."""

    rate: float
    records: int
    sigma: float
    steps: int
    parameters: int

    @property
    def size(self) -> int:
        """The mean number of records in a batch, of which the rate is a share."""
        return round(self.rate * self.records)


# Fixed before any of them was run.
SETTINGS = (
    Setting(0.01, 100, 0.4, 5, 1),
    Setting(0.01, 1000, 0.5, 5, 1),
    Setting(0.05, 20, 0.6, 5, 2),
    Setting(0.05, 200, 0.5, 3, 1),
    Setting(0.1, 10, 0.5, 2, 2),
    Setting(0.1, 100, 0.7, 5, 1),
    Setting(0.25, 40, 0.8, 5, 1),
    Setting(0.5, 10, 0.8, 1, 5),
    Setting(0.5, 40, 2.0, 4, 2),
    Setting(0.8, 10, 1.5, 3, 1),
    Setting(0.9, 10, 0.8, 1, 5),
    Setting(0.9, 30, 3.0, 5, 2),
)


@dataclass(frozen=True)
class Runs:
    """What the attacker sees of some runs of one world.

    ``sums`` holds, for each run and step, the noisy sum along the target's gradient less the
    others' part of it; ``there`` how many of the others were in the batch.
    """

    sums: np.ndarray
    there: np.ndarray


def ratios(runs: Runs, setting: Setting, way: str) -> np.ndarray:
    """Return the log-likelihood ratio of each run, the target in the data over not.

    A step's sum is ``N(c, s²)``, where the target's coin ``c`` is 1 with probability q if the
    target is there, else 0: ``log(1 + q (exp((sum − ½)/s²) − 1))``. Where the rate moves with the
    number of records, so does the probability of the others' coins.
    """
    q, noise = setting.rate, setting.sigma / (2 if way == HALF else 1)
    logs = np.log1p(q * np.expm1((runs.sums - 0.5) / noise**2))
    if way == SIZED:
        others = setting.records - 1
        other_rate = setting.size / others
        # At a rate of one nobody is left out without the target: one who is decides it.
        left = math.log((1 - q) / (1 - other_rate)) if other_rate < 1 else 1e9
        logs = logs + runs.there * math.log(q / other_rate) + (others - runs.there) * left
    return np.asarray(logs.sum(1))


def by_definition(
    setting: Setting, way: str, member: bool, count: int, draw: np.random.Generator
) -> Runs:
    """Draw runs from the definition of a step, without any trainer."""
    size, others = (count, setting.steps), setting.records - 1
    rate = setting.size / others if way == SIZED and not member else setting.rate
    noise = setting.sigma / (2 if way == HALF else 1)
    present = (draw.random(size) < setting.rate) & member
    sums = present + noise * draw.standard_normal(size)
    return Runs(sums, draw.binomial(others, rate, size) if way == SIZED else np.zeros(size))


class Watched(torch.optim.SGD):
    """An optimiser that keeps every gradient it is given: all that private training releases."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.seen: list[np.ndarray] = []

    def step(self, closure: Any = None) -> Any:
        """Keep the noisy mean, and step."""
        (weight,) = self.param_groups[0]["params"]
        self.seen.append(weight.grad.numpy().flatten())
        return super().step(closure)


def linear(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return a loss whose gradient is the record."""
    return output.squeeze(-1) + target


def by_training(setting: Setting, way: str, member: bool, count: int) -> Runs:
    """Train runs with ``PrivateSGD``, a fit of several blocks at a time."""
    n, d = setting.records, setting.parameters
    blocks = PARAMETERS // d
    draw = np.random.default_rng(0)
    gradients = draw.standard_normal((blocks, n, d))  # the target is the last of its group
    gradients /= np.linalg.norm(gradients, axis=2, keepdims=True)
    kept = n if member else n - 1
    X = np.zeros((blocks, kept, blocks, d))
    for block in range(blocks):
        X[block, :, block] = 3 * gradients[block, :kept]  # beyond the clip, so of length 1 after it
    records = torch.tensor(X.reshape(blocks * kept, blocks * d))
    targets = torch.zeros(len(records), dtype=torch.float64)
    # Each other record's part along the target, by its number in the data.
    along = np.einsum("bnd,bd->bn", gradients, gradients[:, -1])
    divisor = float(setting.size * blocks)
    declared = {"sample_rate": setting.rate, "expected_batch": divisor}
    trainer = sp.nn.PrivateSGD(
        nn.Linear(blocks * d, 1, bias=False).double(),
        linear,
        steps=setting.steps,
        noise_multiplier=setting.sigma / (2 if way == HALF else 1),
        optimizer=Watched,
        method="derivative",
        probes=1,
        individual=False,
        evaluate_every=setting.steps,
        **({"batch_size": setting.size * blocks} if way == SIZED else declared),
    )
    sums, there = [], []
    for _ in range(-(-count // blocks)):
        trainer.fit(records, targets)  # each time with a new key of the operating system
        for step, mean in enumerate(trainer._update.optimizer.seen):
            coins = np.zeros((blocks, n), dtype=bool)
            coins[:, :kept].flat[trainer._sampler.batch(step).numpy()] = True
            coins[:, -1] = False  # the target's own coin is nobody's to know
            noisy = np.einsum("bd,bd->b", mean.reshape(blocks, d), gradients[:, -1])
            sums.append(divisor * noisy - (coins * along).sum(1))
            there.append(coins.sum(1))

    def in_order(values: list[np.ndarray]) -> np.ndarray:
        """Return runs by steps, from fits by steps by blocks."""
        by_fit = np.stack(values).reshape(-1, setting.steps, blocks)
        return by_fit.transpose(0, 2, 1).reshape(-1, setting.steps)[:count]

    return Runs(in_order(sums), in_order(there))


def limits(hits: Any, runs: int, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return Clopper–Pearson's lower and upper limit of a rate, each at this one-sided level."""
    hits = np.asarray(hits)
    low = np.where(hits > 0, beta.ppf(level, np.maximum(hits, 1), runs - hits + 1), 0.0)
    high = beta.ppf(1 - level, hits + 1, np.maximum(runs - hits, 1))
    return low, np.where(hits < runs, high, 1.0)


@cache
def promised(setting: Setting, finds: bool, fpr: float) -> float:
    """Return the promised true positive rate of tests that find members, or that find others."""
    curve = _curve(setting)
    return float((curve if finds else LossTradeOff(curve.added, curve.removed)).tpr(fpr))


@cache
def _curve(setting: Setting) -> LossTradeOff:
    return SampledGaussianDP(setting.sigma, setting.rate, setting.steps).trade_off()


def expected(setting: Setting, way: str, runs: int, level: float) -> list[dict[str, Any]]:
    """Return, for each comparison, its threshold and what is known before a run.

    In the first role false positives are runs without the target, in the second runs with it.
    ``power`` is the probability that the comparison finds the promise beaten.
    """
    draw = np.random.default_rng([20, SETTINGS.index(setting), WAYS.index(way)])
    logs = {
        member: ratios(by_definition(setting, way, member, DRAWS, draw), setting, way)
        for member in (True, False)
    }
    rows = []
    for finds, rate in product((True, False), RATES):
        sign = 1 if finds else -1
        at = float(np.quantile(sign * logs[not finds], 1 - rate))
        true, false = (float(np.mean(sign * logs[world] > at)) for world in (finds, not finds))
        counts = draw.binomial(runs, [true, false], (500, 2)).T
        low, high = limits(counts[0], runs, level)[0], limits(counts[1], runs, level)[1]
        # The promise is nearly straight between the ends of what the false positives may be.
        spread = 4 * math.sqrt(runs * rate * (1 - rate))
        ends = [max(0, round(runs * rate - spread)), min(runs, round(runs * rate + spread))]
        between = limits(ends, runs, level)[1].tolist()
        allowed = np.interp(high, between, [promised(setting, finds, end) for end in between])
        rows.append(
            {
                "finds": "members" if finds else "others",
                "threshold": at,
                "false": false,
                "true": true,
                "power": float(np.mean(low > allowed)),
            }
        )
    return rows


def attacked(task: tuple[Setting, str, int], level: float) -> dict[str, Any]:
    """Return what is expected and what was found in one setting, for one way of training."""
    setting, way, runs = task
    torch.set_num_threads(1)
    before = expected(setting, way, runs, level)
    worlds = {member: by_training(setting, way, member, runs) for member in (True, False)}
    logs = {member: ratios(each, setting, way) for member, each in worlds.items()}
    found = []
    for row in before:
        finds = row["finds"] == "members"
        sign = 1 if finds else -1
        true, false = (
            int(np.sum(sign * logs[world] > row["threshold"])) for world in (finds, not finds)
        )
        low, high = float(limits(true, runs, level)[0]), float(limits(false, runs, level)[1])
        allowed = promised(setting, finds, high)
        found.append(
            {
                "finds": row["finds"],
                "false": false / runs,
                "true": true / runs,
                "lower end": low,
                "allowed": allowed,
                "beaten": low > allowed,
            }
        )
    row = {
        "setting": asdict(setting),
        "way": way,
        "runs": runs,
        "expected": before,
        "found": found,
    }
    if way == DECLARED:
        row["p of its noise"] = float(
            kstest(worlds[False].sums.ravel() / setting.sigma, "norm").pvalue
        )
    return row


def power(rows: list[dict[str, Any]]) -> float:
    """Return how likely a control is caught: at least as likely as by its best comparison."""
    return max(row["power"] for row in rows)


def main() -> None:
    """Attack all settings, and keep what was found."""
    parser = argparse.ArgumentParser(description="Likelihood-ratio attacks on private training.")
    parser.add_argument("--runs", type=int, default=10_000, help="runs in each world")
    parser.add_argument("--controls", type=int, default=2000, help="runs of controls in each world")
    parser.add_argument("--processes", type=int, default=1, help="settings at a time")
    parser.add_argument("--power", action="store_true", help="only what is known beforehand")
    parser.add_argument("--out", type=Path, default=KEPT, help="file to keep the results in")
    parser.add_argument("--go-on", action="store_true", help="keep the rows that --out has")
    asked = parser.parse_args()
    level = LEVEL / (len(SETTINGS) * 2 * len(RATES)) / 2  # a comparison has two ends
    tasks = [
        (setting, way, asked.runs if way == DECLARED else asked.controls)
        for ways in ((DECLARED,), (HALF, SIZED))
        for setting, way in product(SETTINGS, ways)
    ]
    if asked.power:
        for task in tasks:
            print(f"{task[0]}, {task[1]}: power {power(expected(*task, level)):.3f}", flush=True)
        return
    rows = json.loads(asked.out.read_text("utf-8"))["rows"] if asked.go_on else []
    done = {(Setting(**row["setting"]), row["way"], row["runs"]) for row in rows}
    with ProcessPoolExecutor(asked.processes) as pool:
        left = [task for task in tasks if task not in done]
        for row in pool.map(partial(attacked, level=level), left, chunksize=2):
            rows.append(row)
            keep({"runs": asked.runs, "overall level": LEVEL, "rows": rows}, asked.out)
            setting, first = Setting(**row["setting"]), row["found"][0]
            print(
                f"q = {setting.rate:g}, n = {setting.records}, σ = {setting.sigma:g}, "
                f"T = {setting.steps}, {row['way']}: {first['true']:.3f} true at "
                f"{first['false']:.3f} false positives; beaten: {beaten(row)}, expected "
                f"{power(row['expected']):.3f}",
                flush=True,
            )
    for way in WAYS:
        these = [row for row in rows if row["way"] == way]
        chance = sum(power(row["expected"]) for row in these)
        print(f"{way}: beaten in {sum(map(beaten, these))} of {len(these)}, expected {chance:.2f}")


def beaten(row: dict[str, Any]) -> bool:
    """Return whether any comparison of a setting found the promise beaten."""
    return any(each["beaten"] for each in row["found"])


if __name__ == "__main__":
    main()

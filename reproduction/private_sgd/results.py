"""Reads the results of ``private_sgd_grid``, and turns leakages and noise into error bounds.

The results are kept beside this file, so that the figures can be drawn without training anything.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from reproduction.private_sgd.settings import row_key
from seepage.bounds import from_renyi
from seepage.errors import InputError
from seepage.nn.sampling.amplification import paper_epsilon, theorem4_factor
from seepage.privacy.trade_off import replacement_renyi

HOME = Path(__file__).parents[1] / "results"
LONGEST = 1.115  # times C: the largest norm after the smooth clip, as the paper prints it
FAILURE = 1e-5  # probability that theorem 4's factor fails over a run, as in the paper


@dataclass(frozen=True)
class Point:
    """One setting after some steps: a point of Figure 5 for each bound.

    Parameters
    ----------
    accuracy
        On the test images, in percent, averaged over runs.
    rdp
        The bound of theorem 1, from the run's Rényi privacy of order 2 as the paper takes it.
    replaced
        The same for replacing a record, by the pair of mixtures that dominates a step.
    largest, median
        The bounds of theorem 2 from the largest and the median dFIL, with theorem 4's κ.
    mixture
        The bound from the largest dFIL with the factor of a mixture in place of theorem 4's.
    row
        The row of the results.
    """

    accuracy: float
    rdp: float
    replaced: float
    largest: float
    median: float
    mixture: float
    row: dict[str, Any]


def load_results(name: str, asked: str | None = None) -> dict[str, Any]:
    """Return the results of that name; ``asked`` of the grid's command, its data by default."""
    path = HOME / f"{name}.json"
    if not path.is_file():
        asked = asked or name.removeprefix("private_sgd_").replace("_", "-")
        raise InputError(
            f"There is no {path.name}; run `python -m reproduction.private_sgd.grid {asked} --out "
            f"{path}` first, on a GPU."
        )
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def pooled(first: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Return the results of some runs, with those of more runs and more settings taken in.

    Where a setting ran in both, what is largest in a run alone is averaged over all runs, as files
    do not hold the records.
    """
    further = {row_key(row): row for row in more["rows"]}
    rows = [_joined(row, further.pop(row_key(row), None)) for row in first["rows"]]
    return first | {"rows": [*rows, *further.values()]}


def _joined(row: dict[str, Any], other: dict[str, Any] | None) -> dict[str, Any]:
    if other is None or row["diverged"] or other["diverged"]:
        return row
    out = row | {"accuracy": row["accuracy"] + other["accuracy"]}
    weights = len(row["accuracy"]), len(other["accuracy"])
    for name, singles in {"plain": "", "mixture": ", mixture"}.items():
        singles = f"largest of single runs{singles}"
        out[singles] = row[singles] + other[singles]
        medians = row[name]["median"], other[name]["median"]
        out[name] = {
            "largest": sum(out[singles]) / len(out[singles]),
            "median": sum(w * m for w, m in zip(weights, medians, strict=True)) / sum(weights),
        }
    return out


def runs_in_words(row: dict[str, Any]) -> str:
    """State how many runs a row averages over."""
    runs = len(row["accuracy"])
    return "one run" if runs == 1 else f"an average over {runs} runs"


def points(found: dict[str, Any], account: str = "plain") -> list[Point]:
    """Return a point for every setting and number of steps that did not diverge.

    The account ``"one coordinate"`` is that of the authors' estimator.
    """
    rate = found["batch_size"] / found["records"]
    return [_point(row, rate, account) for row in found["rows"] if not row["diverged"]]


def _point(row: dict[str, Any], rate: float, account: str) -> Point:
    sigma, steps = row["noise_multiplier"], row["steps"]
    kappa = theorem4_factor(rate, paper_epsilon(sigma, FAILURE / steps))
    return Point(
        100 * sum(row["accuracy"]) / len(row["accuracy"]),
        float(from_renyi(renyi_two(rate, sigma, steps), 1.0)),
        float(from_renyi(steps * replacement(rate, sigma), 1.0)),
        _error(kappa * row[account]["largest"]),
        _error(kappa * row[account]["median"]),
        _error(row["mixture"]["largest"]),
        row,
    )


@cache
def renyi_two(rate: float, sigma: float, steps: int) -> float:
    """Return the run's Rényi privacy of order 2: ``T log(1 + q²(e^{1/σ²} − 1))``, σ over 1.115.

    The subsampled Gaussian mechanism of Mironov, Talwar and Zhang (2019), as the paper uses it. It
    is about adding or removing a record, whereas theorem 1 requires replacing one.
    """
    exponent = (LONGEST / sigma) ** 2
    return steps * math.log1p(rate**2 * math.expm1(exponent))


@cache
def replacement(rate: float, sigma: float) -> float:
    """Return a step's Rényi privacy of order 2 where one record replaces another."""
    return float(replacement_renyi(LONGEST / sigma, rate, [2.0])[0])


def _error(leakage: float) -> float:
    return 1 / leakage if leakage > 0 else math.inf


def front(found: list[Point], bound: str) -> list[Point]:
    """Return the points that no other beats in both accuracy and bound, by descending accuracy."""
    best = -math.inf
    kept = []
    for point in sorted(found, key=lambda p: (-p.accuracy, -getattr(p, bound))):
        if getattr(point, bound) > best:
            best = getattr(point, bound)
            kept.append(point)
    return kept


def crossing(found: list[Point], bound: str, level: float = 1.0) -> float:
    """Return the highest accuracy at which a bound is still at least ``level``; 0 if nowhere."""
    return max((p.accuracy for p in found if getattr(p, bound) >= level), default=0.0)


def best_bound(found: list[Point], bound: str, accuracy: float) -> float:
    """Return the largest bound of any setting with at least this accuracy; 0 if there is none."""
    return max((getattr(p, bound) for p in found if p.accuracy >= accuracy), default=0.0)

"""What a release folder reveals to an attacker who knows everything but one dose.

One of 200 patients had an extreme dose. The attacker knows every other number of the table, and
works out for every dose from 0 to 150 what would have been published: the noisy numbers, and the
probability of the figures beside them. He even knows which block every record fell into. Claim: his
95 % credible interval is at least 0.9 times as wide as from the noisy numbers alone, in every
draw, for every target (even where the σ that the table needs lies next to a grid point) and every
prior here, for the folder as ``seepage release`` writes it and for declared figures; and it
contains the central interval of the numbers alone that ``interval_kept`` promises. The least σ of
the grid, which follows the extreme dose, is tried for comparison. Run with
``python benchmarks/release_attack.py``; results are kept in
``benchmarks/results/release_attack.json``.

``python benchmarks/release_attack.py --worlds`` makes whole releases instead, σ drawn anew each
time: 4,000 of a table, and 4,000 of the table with its most exposed record left out, with another
label, with other numbers, or with another category. Claim: by the likelihood ratio of all that is
published, error rates included, they are told apart no more often than the ledger's entry of a
release states: left out, by its μ, ε and δ; replaced, by the μ of that finite change with the ε and
δ that it has for such replacements (one-sided Clopper–Pearson, 99.9 % over all tests). Nor more
often than by the ε and δ of that very pair of tables, below which no entry is. What the ε of the
table alone would state, without δ, is refuted by labels and categories that need more noise.
Results are kept in ``results/release_attack-worlds.json``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from seepage.auditing.release.attack import attack_release
from seepage.auditing.release.noise_vote import block_opinions, interval_kept, noise_grid
from seepage.auditing.release.procedure import Prepared, Procedure
from seepage.core.result import COARSER, round_up

KEPT = Path(__file__).parent / "results" / "release_attack.json"
DOSE = 98.5
DOSES = np.linspace(0, 150, 151)
BLOCKS, EPSILON = 50, 0.4  # of the vote, for 200 records
# The defaults, except for σ, which is drawn here, since a vote takes as long as many fits.
DEFAULT = Procedure(target="response", sigma=1.0)
PRIORS = {
    "all alike": np.ones(len(DOSES)),
    "like the others": np.exp(-((DOSES - 30) ** 2) / (2 * 6**2)),
    "like the others, but one in ten": 0.9 * np.exp(-((DOSES - 30) ** 2) / (2 * 6**2)) / 15 + 1e-3,
    "normal, 75 ± 40": np.exp(-((DOSES - 75) ** 2) / (2 * 40**2)),
    "exponential, mean 50": np.exp(-DOSES / 50),
}
_LEAST = ("ratio", "median ratio")
_COUNTED = ("draws", "below 0.9", "promised interval kept", "σ ten times the median or more")
# The table needs σ = 0.1475 / target: those with decimals put it right beside 0.1, 0.05 and 0.02.
TARGETS = (1.0, 1.47, 1.48, 2.0, 2.94, 2.96, 3.0, 5.0, 7.0, 7.36, 7.39, 10.0)


def patients(dose: float = DOSE, count: int = 200) -> pa.Table:
    """Return two hundred patients, the first of whom had an extreme dose and responded little."""
    rng = np.random.default_rng(0)
    age, doses = rng.normal(60, 12, count), rng.normal(30, 6, count)
    response = 0.04 * doses + 0.01 * age + rng.normal(0, 0.5, count)
    doses[0], response[0] = dose, 1.0
    return pa.table({"age": age, "dose": doses, "response": response})


@dataclass(frozen=True, eq=False)
class Tables:
    """The attacker's computation: the procedure's result for every possible dose."""

    true: Prepared
    others: list[Prepared]

    @classmethod
    def of(cls, procedure: Procedure) -> Tables:
        """Run the procedure for all doses."""
        return cls(procedure.prepare(patients()), [procedure.prepare(patients(v)) for v in DOSES])

    @cached_property
    def agree(self) -> np.ndarray:
        """For every dose, whether all figures but σ would be the published ones."""
        ours = {**self.true.figures, "σ": None}
        return np.array([{**q.figures, "σ": None} == ours for q in self.others], dtype=float)

    @cached_property
    def means(self) -> np.ndarray:
        """The numbers that every dose would have led to, before noise."""
        return np.array([numbers(q) for q in self.others])

    @cached_property
    def needed(self) -> np.ndarray:
        """The σ that every dose would need for η = 1."""
        return np.array([np.max(q.eta) for q in self.others])


def numbers(prepared: Prepared) -> np.ndarray:
    """Return the released numbers before noise."""
    model = prepared.trained.model
    return np.concatenate([np.ravel(model.coef_), np.ravel(model.intercept_)])


def chances(opinions: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Return the probability of every grid point, one row for each row of opinions."""
    below = (opinions[:, :, None] <= grid).sum(axis=1)
    before = np.concatenate([[-np.inf], grid[:-1]])
    beyond = (opinions[:, :, None] > before).sum(axis=1)
    short = np.maximum(0.0, BLOCKS / 2 - np.minimum(below, beyond))
    accepted = np.exp(-EPSILON / 2 * (short - short.min(axis=1, keepdims=True)))
    found = np.empty_like(accepted)
    for k in range(len(grid)):
        # The coefficients of Π (1 − x p) over the other points, integrated from 0 to 1.
        rest = np.zeros((len(accepted), len(grid)))
        rest[:, 0] = 1.0
        for p in np.delete(accepted, k, axis=1).T:
            rest[:, 1:] -= p[:, None] * rest[:, :-1]
        found[:, k] = accepted[:, k] * np.sum(rest / np.arange(1, len(grid) + 1), axis=1)
    return found


def opinions_by_dose(tables: Tables, seed: int) -> np.ndarray:
    """Return every block's opinion for η = 1, one row for each dose.

    Only the block of the patient with the extreme dose depends on it.
    """
    block, ones = np.random.default_rng(seed).integers(0, BLOCKS, 200), np.ones(200)
    found = np.tile(block_opinions(tables.true.trained, ones, block, BLOCKS), (len(DOSES), 1))
    alone = np.where(block == block[0], 0, 1)
    for k, other in enumerate(tables.others):
        found[k, block[0]] = block_opinions(other.trained, ones, alone, 1)[0] / BLOCKS
    return found


def draws(
    tables: Tables, opinions: Sequence[np.ndarray], eta: float, seed: int = 0
) -> Iterator[Any]:
    """Yield drawn values of σ, and their probabilities under every dose, endlessly."""
    unit, records = (tables.true.figures[f] for f in ("unit of the target", "number of records"))
    grid = noise_grid(unit / eta, records)
    enough = grid >= tables.needed[:, None] / eta * (1 - 1e-9)
    told = [chances(found / eta, grid) * enough for found in opinions]
    rng, here = np.random.default_rng(seed), int(np.argmin(np.abs(DOSES - DOSE)))
    while True:
        for chance in told:
            drawn = chance / chance.sum(axis=1, keepdims=True)
            k = rng.choice(len(grid), p=drawn[here])
            yield float(grid[k]), drawn[:, k]


def interval(weights: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Return the ends of the central credible interval of the dose."""
    total = np.cumsum(weights / weights.sum())
    tail = (1 - level) / 2
    return float(np.interp(tail, total, DOSES)), float(np.interp(1 - tail, total, DOSES))


def attack(
    tables: Tables, sigma: float, told: np.ndarray, prior: np.ndarray, rng: np.random.Generator
) -> tuple[float, bool]:
    """Return the width of the interval from a folder over that from its numbers alone.

    And whether it contains the interval that ε promises.
    """
    seen = numbers(tables.true) + sigma * rng.standard_normal(tables.means.shape[1])
    loglik = -np.sum((tables.means - seen) ** 2, axis=1) / (2 * sigma**2)
    alone = prior * np.exp(loglik - loglik.max())
    low, high = interval(alone)
    low_with, high_with = interval(alone * told * tables.agree)
    least, most = interval(alone, interval_kept(EPSILON))
    kept = low_with <= least + 1e-9 and high_with >= most - 1e-9
    return (high_with - low_with) / (high - low), kept


def ratios(tables: Tables, sigmas: Iterator[Any], prior: np.ndarray, times: int) -> dict[str, Any]:
    """Return the results of many draws."""
    rng = np.random.default_rng(1)
    drawn = list(islice(sigmas, times))
    found = [attack(tables, sigma, told, prior, rng) for sigma, told in drawn]
    width = np.array([ratio for ratio, _ in found])
    middle = float(np.median([sigma for sigma, _ in drawn]))
    return {
        "draws": times,
        "median σ": middle,
        "σ ten times the median or more": sum(sigma > 9.9 * middle for sigma, _ in drawn),
        "ratio": float(width.min()),
        "median ratio": float(np.median(width)),
        "below 0.9": int(np.sum(width < 0.9)),
        "promised interval kept": sum(kept for _, kept in found),
    }


def held(sigma: float, told: np.ndarray) -> Iterator[Any]:
    """Yield a σ that is not drawn."""
    while True:
        yield sigma, told


def least_of_grid(tables: Tables, eta: float) -> Iterator[Any]:
    """Yield the least σ of the coarse grid, which follows the dose."""
    points = np.array([round_up(need / eta, COARSER) for need in tables.needed])
    sigma = round_up(float(np.max(tables.true.eta)) / eta, COARSER)
    return held(sigma, (points == sigma).astype(float))


def every_way(partitions: int, times: int) -> dict[str, Any]:
    """Return the results of every way of choosing σ, for all targets and priors."""
    tables = Tables.of(DEFAULT)
    domain = ["age=0:120", "dose=0:150"]
    public = Tables.of(replace(DEFAULT, sigma=0.3, target_eta=2.0, domain=domain))
    opinions = [opinions_by_dose(tables, seed) for seed in range(partitions)]
    found: dict[str, Any] = {"default": {}, "declared": {}, "the least of the grid": {}}
    for name, prior in PRIORS.items():
        always = held(0.3, np.ones(len(DOSES)))
        found["declared"][name] = ratios(public, always, prior, times)
        for eta in TARGETS:
            ways = {
                "default": draws(tables, opinions, eta, seed=len(found["default"])),
                "the least of the grid": least_of_grid(tables, eta),
            }
            for way, sigmas in ways.items():
                found[way][f"η = {eta:g}, {name}"] = ratios(tables, sigmas, prior, times)
    return found


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """Return the worst over all targets and priors, for every way."""
    return {
        way: {
            **{f"least {what}": min(r[what] for r in results.values()) for what in _LEAST},
            **{what: sum(r[what] for r in results.values()) for what in _COUNTED},
        }
        for way, results in found.items()
    }


def classified(dose: float, count: int) -> pa.Table:
    """Return patients by whether they responded, in words."""
    table = patients(dose, count)
    good = np.asarray(table.column("response")) > 1.8
    column = pa.array(np.where(good, "yes", "no"))
    return table.set_column(table.column_names.index("response"), "response", column)


def in_wards(count: int) -> pa.Table:
    """Return patients of two wards, in one of which the response is far larger."""
    table = patients(60.0, count)
    east = (np.arange(count) > 0) & (np.arange(count) <= 60)
    response = pa.array(np.asarray(table.column("response")) + 5.0 * east)
    table = table.set_column(table.column_names.index("response"), "response", response)
    return table.append_column("ward", pa.array(np.where(east, "east", "west")))


def told_apart(releases: int = 4000) -> dict[str, Any]:
    """Return how well whole releases of two worlds are told apart, for every table and change."""
    tables = {  # a number of records within its grid, so that nobody's absence changes it
        "230 patients, one with an extreme dose": (patients(DOSE, 230), 1.0),
        "230 patients, η up to 3": (patients(DOSE, 230), 3.0),
        "230 patients in two wards": (in_wards(230), 1.0),
        "700 patients by class": (classified(60.0, 700), 1.0),
        "1,100 patients by class": (classified(60.0, 1100), 1.0),  # with their error rates
    }
    found = {}
    for name, (table, eta) in tables.items():
        # What is declared cannot be disclosed: the range of the columns
        domain = ["age=0:120", "dose=0:150"]
        procedure = Procedure(target="response", target_eta=eta, domain=domain)
        found[name] = list(attack_release(procedure, table, releases=releases))
    tests = [a for attacks in found.values() for a in attacks if not a.disclosed]
    level = 1 - 0.001 / (2 * len(tests))  # each is held to two statements
    return {
        "releases of each world": releases,
        "tests": len(tests),
        "told apart more often than stated": sum(a.exceeds(level) for a in tests),
        "entries below the pair": sum(a.stated < a.of_pair * (1 - 1e-9) for a in tests),
        "told apart more often than ε alone states": sum(a.refutes_epsilon(level) for a in tests),
        "largest excess over the statement": max(a.seen - a.stated for a in tests),
        "largest excess over the pair": max(a.seen - a.of_pair for a in tests),
        "largest seen": max(a.seen for a in tests),
        "each": {
            name: [
                {
                    "change": a.change,
                    "disclosed": list(a.disclosed),
                    "seen": None if a.disclosed else a.seen,
                    "seen at least": None if a.disclosed else a.seen_at_least(level),
                    "stated": a.stated,
                    "by this pair": a.of_pair,
                    "by ε alone": a.by_epsilon,
                    "ε alone refuted": not a.disclosed and a.refutes_epsilon(level),
                }
                for a in attacks
            ]
            for name, attacks in found.items()
        },
    }


def main() -> None:
    """Play the attacker of one dose, or make releases of two worlds, and keep what was found."""
    from keeping import keep

    if "--worlds" in sys.argv[1:]:
        figures = told_apart()
        for name, attacks in figures["each"].items():
            print(name, *attacks, sep="\n  ")
        print(*(f"{what}: {value}" for what, value in figures.items() if what != "each"), sep="\n")
        keep(figures, KEPT.with_name("release_attack-worlds.json"))
        return
    every = every_way(partitions=20, times=200)
    worst = summary(every)
    for way, result in worst.items():
        print(
            f"{way}:",
            *(f"  {what}: {round(value, 4):,}" for what, value in result.items()),
            sep="\n",
        )
    keep({"worst": worst, "each": every}, KEPT)


if __name__ == "__main__":
    main()

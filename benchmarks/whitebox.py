"""All candidate models of the white-box attack, against refitting one for each row and level.

Claims, all measured in this run:

- on UCI Adult (30,162 rows, 86 columns, two levels) the candidate models, including the fit itself,
  are at least 500 times faster than refitting each (timed on a sample of the rows), and on IWPC
  (3,855 rows, 14 columns, three levels) at least 50 times; for linear and logistic regression;
- the guesses about the sampled rows are the same in every one of 100 trials;
- 100 trials at one noise scale take less than 5 seconds.

With the real data sets in SEEPAGE_DATA the tables are Adult and IWPC; otherwise random tables of
the same sizes.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np

import seepage as sp
from measuring import peak_megabytes, seconds, show
from seepage.attacks import NominalAttribute, WhiteBox, draw_releases
from seepage.support.chunks import row_slices

TRIALS = 100
WIDTHS = (44, 12, 14)


class Table(NamedTuple):
    """A table with an attribute under attack, and targets for both kinds of regression."""

    name: str
    X: np.ndarray
    y: np.ndarray
    attribute: NominalAttribute

    @property
    def classes(self) -> np.ndarray:
        """Two classes: those of the data set, or the target's side of its mean."""
        return (self.y > self.y.mean()).astype(float)


def adult() -> Table:
    """Return UCI Adult, whose marital status is attacked."""
    try:
        problem = sp.data.adult_one_hot(sp.data.load_adult(download=False))
    except sp.InputError:
        return made_up("Adult's size, random", 30_162, 86, 2)
    return of_problem("UCI Adult", problem, "marital-status")


def iwpc() -> Table:
    """Return the warfarin data, whose allele of VKORC1 is attacked."""
    try:
        problem = sp.data.iwpc_one_hot(sp.data.load_iwpc(download=False))
    except sp.InputError:
        return made_up("IWPC's size, random", 3_855, 14, 3)
    return of_problem("IWPC", problem, "vkorc1")


def of_problem(name: str, problem: sp.data.Problem, attribute: str) -> Table:
    """Return the training rows of a prepared problem."""
    X = np.ascontiguousarray(problem.X)
    return Table(name, X, problem.y, NominalAttribute.from_problem(problem, attribute))


def made_up(name: str, n: int, d: int, levels: int) -> Table:
    """Return a random table whose first columns encode an attribute."""
    rng = np.random.default_rng(0)
    one_hot = np.eye(levels)[rng.integers(0, levels, n)][:, 1:]
    X = np.hstack([one_hot, rng.standard_normal((n, d - levels + 1))])
    y = X @ rng.standard_normal(d) / np.sqrt(d) + rng.standard_normal(n)
    columns = list(range(levels - 1))
    return Table(name, X, y, NominalAttribute.from_table(X, columns, "level"))


def candidate_models(table: Table, model: Any, y: np.ndarray) -> WhiteBox:
    """Fit the adversary and compute all of its candidate models."""
    white = WhiteBox(table.attribute, model).fit(table.X, y)
    for rows in row_slices(len(y), 4 * len(table.attribute) * table.X.shape[1]):
        white.candidates_.differences(rows)
    return white


def refits(table: Table, model: Any, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the parameters for every level of some rows, each by a separate fit, (b, K, d)."""
    X = table.X.copy()
    columns = list(table.attribute.columns)
    found = np.empty((len(rows), len(table.attribute), X.shape[1]))
    for b, row in enumerate(rows):
        for k, code in enumerate(table.attribute.codes):
            X[row, columns] = code
            found[b, k] = np.ravel(type(model)(l2=model.l2).fit(X, y).coef_)
        X[row] = table.X[row]
    return found


def compare(table: Table, model: Any, y: np.ndarray, sigma: float, sample: int) -> dict[str, float]:
    """Time the candidate models, the refits of a sample and the trials; print and return them."""
    n, d = table.X.shape
    K = len(table.attribute)
    kind = type(model).__name__
    print(
        f"\n{table.name}, {kind}: n = {n:,}, d = {d}, {K} levels, λ = {model.l2:g}, σ = {sigma:g}"
    )
    show("", "seconds", "memory (MB)", widths=WIDTHS)

    def every_model() -> WhiteBox:
        return candidate_models(table, model, y)

    taken, memory = seconds(every_model, repeats=3), peak_megabytes(every_model)
    show(f"all {n * K:,} candidate models", f"{taken:.3f}", f"{memory:.0f}", widths=WIDTHS)

    rows = np.random.default_rng(1).choice(n, sample, replace=False)
    refitted: list[np.ndarray] = []
    once = seconds(lambda: refitted.append(refits(table, model, y, rows)), repeats=1)
    refitting = once / sample * n
    show(f"by refitting (from {sample * K} of them)", f"{refitting:.0f}", "", widths=WIDTHS)

    white = every_model()
    releases = draw_releases(white.model_, sp.Gaussian(sigma), TRIALS, seed=0)

    def trials() -> sp.attacks.InversionResult:
        return white.attack(table.X, y, releases)

    attack, attack_memory = seconds(trials, repeats=3), peak_megabytes(trials)
    show(f"{TRIALS} trials", f"{attack:.3f}", f"{attack_memory:.0f}", widths=WIDTHS)

    gaps = releases.parameters[:, None, None, :] - refitted[0]
    truth = np.argmin(np.sum(gaps**2, axis=3), axis=2)
    guesses = white.predict(table.X, y, releases)[:, rows]
    differing = int(np.sum(guesses != truth))
    print(
        f"{refitting / taken:,.0f} times faster; of {truth.size:,} guesses about the sampled rows "
        f"{differing} differ; {trials()!r}"
    )
    return {"ratio": refitting / taken, "differing": differing, "attack": attack}


def main() -> int:
    """Measure, print, and compare with the claims."""
    people, patients = adult(), iwpc()
    linear, logistic = sp.glm.LinearRegression, sp.glm.LogisticRegression
    results = {
        ("Adult", "linear"): compare(people, linear(l2=1e-3), people.y, 1e-4, 40),
        ("Adult", "logistic"): compare(people, logistic(l2=1e-3), people.classes, 1e-3, 20),
        ("IWPC", "linear"): compare(patients, linear(l2=1e-2), patients.y, 1e-3, 300),
        ("IWPC", "logistic"): compare(patients, logistic(l2=1e-2), patients.classes, 3e-3, 100),
    }
    print()
    kept = True
    for (data, kind), found in results.items():
        times = 500 if data == "Adult" else 50
        claims = [
            (f"at least {times} times faster: {found['ratio']:,.0f}", found["ratio"] >= times),
            (f"no guess differs: {found['differing']}", found["differing"] == 0),
            (f"{TRIALS} trials in 5 s: {found['attack']:.2f} s", found["attack"] < 5),
        ]
        for claim, met in claims:
            kept &= met
            print(f"{'kept' if met else 'MISSED':<7} {data}, {kind}: {claim}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

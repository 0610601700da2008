"""What one fit predicts about LiRA's thousands of shadow models, and how far it may be trusted.

To an attacker who does not know the others, a release without noise is random through them; from
one fit, ``sp.leakage(model, X, y, attacker=…)`` estimates how well she tells members. Claims, for
breast cancer (logistic, λ = 0.01 and 0.1), 3,000 records of UCI Adult (logistic), IWPC (linear) and
3,000 records of the RAND health insurance experiment (Poisson; statsmodels' table ``randhie``):

- **LiRA.** Each record's area under the curve of LiRA on shadow models, fitted on half of them and
  judged on the other (and the other way round), against one fit on the whole table: the mean of
  AUC − ½ within 15 %, the 1 % of the records that LiRA finds best within 0.03 (found by one LiRA
  and judged by another), and a correlation over records of 0.95 once LiRA's own error is corrected
  for (by two LiRAs that share no shadow model; the raw one is printed too). Shadow models take a
  random half of the table: a record moves them by twice as much as the whole model, and the others'
  variance is a quarter of the table's; so LiRA sees what an attacker sees who knows three quarters
  of the others of the whole table.
- **LiRA's own error.** LiRA estimates two means and two deviations for each record. Where the means
  are closer than that, it often has the sign wrong, and its area falls short of the best test's:
  after 4,000 shadow models by a seventh on average over IWPC. So the mean is compared twice, as it
  is, and with every predicted area replaced by what LiRA would reach on as many normal margins that
  far apart. That is a function of one number, which knows nothing of tables or fits, and it is
  convex: it makes relative differences larger. Shown on drawn margins whose distances are known:
  the right prediction passes, predictions of AUC − ½ that are 20 % off do not.
- **White box.** 20 records a table, the 10 most exposed among them (of those that are not
  recognised with certainty): accuracies within 0.03 of cross-fitted tests on refits with random
  weights on the others, or within two standard errors of both.
- **Partial knowledge.** One known set of 0, 50, 80 or 95 % always stays, and random halves of the
  others come and go: the mean μ of one query within 10 % and two standard errors, each at most 4 %.
  300 patients and RAND's 3,000. Margins need not be normal where few others are unknown: a test by
  histograms is judged too, its distance counts where it is larger, and it is not right more often
  than predicted, on average by nothing and about no record by more than 8 in 100. Of the 300
  patients, 95 % leave 14 others, and the question is refused: both worlds taken for normal have the
  right μ, but the test by histograms is right more often than they say.

Refits are made here, by Newton's method on many of them at once, and share no code with what is
judged. Tables that are done are kept in ``results/outsider.json`` and not run again; ``--again``
starts afresh. Real data in SEEPAGE_DATA; 20 minutes of one core.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit, ndtr, ndtri
from scipy.stats import rankdata
from sklearn.datasets import load_breast_cancer
from tqdm import tqdm

import seepage as sp
from glm_rows import adult
from keeping import keep
from measuring import show

WIDTHS = (22, 10, 10, 12, 10, 10, 10, 10)
KEPT = Path(__file__).parent / "results" / "outsider.json"


def cancer() -> tuple[np.ndarray, np.ndarray]:
    """Return standardised breast-cancer records."""
    X, y = load_breast_cancer(return_X_y=True)
    return (X - X.mean(axis=0)) / X.std(axis=0), y.astype(float)


def few_patients() -> tuple[np.ndarray, np.ndarray]:
    """Return 300 of them."""
    X, y = cancer()
    return X[:300], y[:300]


def few_adults() -> tuple[np.ndarray, np.ndarray]:
    """Return 3,000 records of Adult, without levels that none of them has."""
    X, y = adult()
    rows = np.random.default_rng(0).choice(len(X), 3000, replace=False)
    X = X[rows]
    return X[:, (X != 0).any(axis=0)], (y[rows] > 0).astype(float)


def patients() -> tuple[np.ndarray, np.ndarray]:
    """Return IWPC's patients and their doses."""
    problem = sp.data.iwpc_one_hot(sp.data.load_iwpc(download=False))
    return problem.X, problem.y


def visits() -> tuple[np.ndarray, np.ndarray]:
    """Return 3,000 people of the RAND experiment, and how often each saw a physician."""
    import statsmodels.api as sm

    frame = sm.datasets.randhie.load_pandas().data
    rows = np.random.default_rng(0).choice(len(frame), 3000, replace=False)
    X = frame.drop(columns="mdvis").to_numpy(float)[rows]
    return (X - X.mean(axis=0)) / X.std(axis=0), frame["mdvis"].to_numpy(float)[rows]


MODELS = {
    "bernoulli": sp.glm.LogisticRegression,
    "gaussian": sp.glm.LinearRegression,
    "poisson": sp.glm.PoissonRegression,
}


@dataclass(frozen=True)
class Case:
    """A table, its family and λ, and how many refits each question gets."""

    load: Callable[[], tuple[np.ndarray, np.ndarray]]
    family: str
    l2: float
    shadows: int = 40_000  # of each of two LiRAs
    refits: int = 4000  # with and without each record

    def fitted(self) -> tuple[np.ndarray, np.ndarray, Any]:
        """Return the table and its model."""
        X, y = self.load()
        return X, y, MODELS[self.family](l2=self.l2, fit_intercept=True).fit(X, y)


TABLES = {
    "breast cancer, 0.01": Case(cancer, "bernoulli", 0.01),
    "breast cancer, 0.1": Case(cancer, "bernoulli", 0.1),
    "IWPC, 0.01": Case(patients, "gaussian", 0.01),
    "RAND, 0.01": Case(visits, "poisson", 0.01),
    "Adult, 0.01": Case(few_adults, "bernoulli", 0.01, 20_000, 2000),
}
PARTIAL = {
    "300 patients, 0.1": Case(few_patients, "bernoulli", 0.1),
    "RAND, 0.01": TABLES["RAND, 0.01"],
}
SHARES = (0.0, 0.5, 0.8, 0.95)


# Refits -------------------------------------------------------------------------------------------


class Refits:
    """Fits of one table with other weights on its records, by Newton's method on many at once."""

    def __init__(self, case: Case, X: np.ndarray, y: np.ndarray, model: Any) -> None:
        self.family, self.y = case.family, y
        self.x = np.hstack([X, np.ones((len(X), 1))])
        self.start = np.append(np.asarray(model.coef_), np.asarray(model.intercept_))
        self.penalty = case.l2 * np.append(np.ones(X.shape[1]), 0.0)  # none on the intercept
        self.upper = np.triu_indices(self.x.shape[1])
        self.squares = self.x[:, self.upper[0]] * self.x[:, self.upper[1]]

    def fit(self, weights: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
        """Return the parameters, (fits, P), for weights (fits, n)."""
        theta = np.tile(self.start, (len(weights), 1)) if start is None else start.copy()
        penalty = np.outer(weights.sum(axis=1), self.penalty)
        inverses, furthest = np.zeros(0), np.inf
        for _ in range(60):
            mean, bend = self._law(theta @ self.x.T)
            gradient = (weights * (mean - self.y)) @ self.x + penalty * theta
            if furthest > 0.1:  # else the Hessians at hand will do
                inverses = np.linalg.inv(self._hessians(weights * bend, penalty))
            step = (inverses @ gradient[:, :, None])[:, :, 0]
            theta -= step
            furthest = float(np.abs(step @ self.x.T).max())
            if furthest < 1e-5:
                return theta
        raise RuntimeError(f"refits have not converged: {furthest:.1g}")

    def _law(self, margins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and variances."""
        if self.family == "gaussian":
            return margins, np.ones_like(margins)
        mean = expit(margins) if self.family == "bernoulli" else np.exp(margins)
        return mean, mean * (1 - mean) if self.family == "bernoulli" else mean

    def _hessians(self, curvature: np.ndarray, penalty: np.ndarray) -> np.ndarray:
        P = self.x.shape[1]
        H = np.empty((len(curvature), P, P))
        first, second = self.upper
        H[:, first, second] = H[:, second, first] = curvature @ self.squares
        H[:, np.arange(P), np.arange(P)] += penalty
        return H

    def margins(self, taken: np.ndarray) -> np.ndarray:
        """Return every record's margin under models of some of them, (n, models)."""
        margins = np.empty(taken.shape[::-1], dtype=np.float32)
        for begin in tqdm(range(0, len(taken), 500), desc="shadow models", disable=None):
            some = slice(begin, begin + 500)
            margins[:, some] = self.x @ self.fit(taken[some].astype(float)).T
        return margins


def halves(count: int, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return random halves of n records, (count, n)."""
    taken = np.empty((count, n), dtype=bool)
    for some in np.array_split(np.arange(count), max(1, count // 1000)):
        taken[some] = rng.random((len(some), n)).argsort(axis=1) < n // 2
    return taken


# LiRA ---------------------------------------------------------------------------------------------


def area(scores: np.ndarray, member: np.ndarray) -> float:
    """Return the area under the curve of some scores."""
    ranks, count = rankdata(scores)[member].sum(), int(member.sum())
    return float((ranks - count * (count + 1) / 2) / (count * (len(member) - count)))


def ratios(now: np.ndarray, *taught: tuple[float, float]) -> np.ndarray:
    """Return LiRA's log-likelihood ratios, given mean and deviation inside and outside."""
    inside, outside = (
        -(((now - mean) / deviation) ** 2) / 2 - np.log(deviation) for mean, deviation in taught
    )
    return np.asarray(inside - outside)


def lira(margins: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """Return LiRA's area for every record: either half of the models teaches, the other judges."""
    found = np.zeros(len(margins))
    parts = slice(0, len(taken) // 2), slice(len(taken) // 2, None)
    for i, member in enumerate(taken.T):
        own = margins[i].astype(float)
        for taught, judged in (parts, parts[::-1]):
            sides = (own[taught][member[taught]], own[taught][~member[taught]])
            known = [(float(one.mean()), float(one.std())) for one in sides]
            found[i] += area(ratios(own[judged], *known), member[judged]) / 2
    return found


def reached_by_lira(areas: np.ndarray, shadows: int) -> np.ndarray:
    """Return what LiRA reaches on average where the best test has these areas.

    Margins are N(μ, 1) inside and N(0, 1) outside, and LiRA has learnt both from half of the shadow
    models, a quarter of them each.
    """
    rng = np.random.default_rng(7)
    points = ndtri((np.arange(1000) + 0.5) / 1000)
    member = np.arange(2000) < 1000
    grid = np.append(0.0, np.geomspace(0.003, 8.0, 40))
    reached, count = [], shadows // 4
    for mu in grid:
        now, some = np.concatenate([points + mu, points]), []
        for _ in range(200):
            means = rng.normal([mu, 0.0], count**-0.5)
            deviations = np.sqrt(rng.chisquare(count, 2) / count)
            some.append(area(ratios(now, *zip(means, deviations, strict=True)), member))
        reached.append(np.mean(some))
    mu = np.sqrt(2) * ndtri(np.clip(areas, 0.5, 1 - 1e-8))
    return np.interp(mu, grid, reached)


def off_by(predicted: np.ndarray, measured: np.ndarray) -> float:
    """Return by how much the mean of AUC − ½ is too high."""
    return float((predicted.mean() - 0.5) / (measured.mean() - 0.5) - 1)


def planted(predicted: np.ndarray, shadows: int) -> dict[str, float]:
    """Return what is said of predictions that are right, and 20 % off, on drawn margins."""
    rng = np.random.default_rng(3)
    truth = np.sort(predicted)[np.linspace(0, len(predicted) - 1, 400).astype(int)]
    taken = rng.random((shadows, len(truth))) < 0.5
    mu = np.sqrt(2) * ndtri(np.minimum(truth, 1 - 1e-8))
    margins = rng.standard_normal(taken.T.shape) + mu[:, None] * taken.T
    measured = lira(margins, taken)
    return {
        f"{factor:g}": off_by(reached_by_lira(0.5 + factor * (truth - 0.5), shadows), measured)
        for factor in (0.8, 1.0, 1.2)
    }


def examine(case: Case) -> dict[str, Any]:
    """Return how LiRA compares with one fit of a table."""
    X, y, model = case.fitted()
    predicted = predicted_areas(model, X, y)
    refits, rng = Refits(case, X, y, model), np.random.default_rng(1)
    found = []
    for _ in range(2):
        taken = halves(case.shadows, len(X), rng)
        found.append(lira(refits.margins(taken), taken))
    measured = (found[0] + found[1]) / 2
    between = float(np.corrcoef(*found)[0, 1])
    raw = float(np.corrcoef(predicted, measured)[0, 1])
    count = max(1, len(X) // 100)
    top = [np.argsort(-one)[:count] for one in found]  # judged by the other
    reached = reached_by_lira(predicted, case.shadows)
    return {
        "records": len(X),
        "columns": X.shape[1],
        "shadow models": 2 * case.shadows,
        "mean area, predicted": float(predicted.mean()),
        "mean area, predicted of LiRA": float(reached.mean()),
        "mean area, LiRA": float(measured.mean()),
        "off by": off_by(predicted, measured),
        "off by, corrected": off_by(reached, measured),
        "top 1 %, predicted": float(np.mean([predicted[rows].mean() for rows in top])),
        "top 1 %, LiRA": float(
            np.mean([one[rows].mean() for one, rows in zip(found, top[::-1], strict=True)])
        ),
        "correlation": raw,
        "correlation, corrected": raw / float(np.sqrt(2 * between / (1 + between))),
        "planted predictions": planted(predicted, case.shadows),
    }


def predicted_areas(model: Any, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the areas that one fit predicts of LiRA."""
    attacker = sp.Attacker(knows=0.75)
    leak = sp.leakage(model, X, y, attacker=attacker, release=sp.Predictions())
    return np.asarray(leak.membership(exact=0).auc())


def cost(case: Case) -> dict[str, Any]:
    """Return seconds of the processor, and products of the table with a matrix of its width."""
    X, y, model = case.fitted()
    refits, again = Refits(case, X, y, model), MODELS[case.family](l2=case.l2, fit_intercept=True)
    x, H = refits.x, refits.x.T @ refits.x
    taken = halves(2000, len(X), np.random.default_rng(5))
    product = seconds(lambda: [x @ H for _ in range(100)]) / 100
    spent = {
        "fit": seconds(lambda: again.fit(X, y)),
        "prediction": seconds(lambda: predicted_areas(model, X, y)),
        "2,000 shadow models": seconds(lambda: refits.margins(taken), 1),
    }
    return {"seconds": spent, "products": {what: one / product for what, one in spent.items()}}


def seconds(work: Callable[[], object], repeats: int = 5) -> float:
    """Return the least processor time of several runs."""
    times = []
    for _ in range(repeats):
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return min(times)


# White box ----------------------------------------------------------------------------------------


def white_box(case: Case) -> dict[str, Any]:
    """Return accuracies about 20 records from the parameters of one table's model."""
    X, y, model = case.fitted()
    leak = sp.leakage(model, X, y, attacker=sp.Attacker(knows=0.0))
    right = np.asarray(leak.membership(exact=0).accuracy())
    open_ = np.flatnonzero(right < 1 - 1e-12)
    worst = open_[np.argsort(-right[open_])[:10]]
    rest = np.random.default_rng(1).choice(np.setdiff1d(open_, worst), 10, replace=False)
    chosen = np.sort(np.concatenate([worst, rest]))
    risk = leak.membership(rows=chosen, exact=True)
    error = np.zeros(len(chosen))
    given, checked = np.asarray(risk.accuracy()), risk.checked
    decided = np.zeros(len(chosen), dtype=bool)
    decided[checked.people] = given[checked.people] != checked.predicted
    error[checked.people] = np.where(decided[checked.people], checked.error, 0.0)
    refits = Refits(case, X, y, model)
    rng = np.random.default_rng(4)
    others = rng.standard_exponential((case.refits, len(X)))
    base = by_pieces(refits, others * (len(X) / others.sum(axis=1, keepdims=True)), None)
    tested = [told_by_refits(refits, others, base, int(i)) for i in tqdm(chosen, disable=None)]
    return {
        "certain": int(np.sum(right > 1 - 1e-12)),
        "records": chosen.tolist(),
        "most exposed": np.isin(chosen, worst).tolist(),
        "approximated": right[chosen].tolist(),
        "given": given.tolist(),
        "given, standard errors": error.tolist(),
        "decided by refits": decided.tolist(),
        "refitted": [one for one, _ in tested],
        "refitted, standard errors": [one for _, one in tested],
    }


def by_pieces(refits: Refits, weights: np.ndarray, start: np.ndarray | None) -> np.ndarray:
    """Return the parameters of many fits, some at a time."""
    pieces = np.array_split(np.arange(len(weights)), max(1, len(weights) // 500))
    starts = (None if start is None else start[some] for some in pieces)
    return np.concatenate(
        [refits.fit(weights[some], at) for some, at in zip(pieces, starts, strict=True)]
    )


def told_by_refits(
    refits: Refits, others: np.ndarray, base: np.ndarray, i: int
) -> tuple[float, float]:
    """Return how often a test tells refits with a record from those with somebody else instead.

    The test looks along the best linear direction and along the record's own margin, learnt from
    half of the refits, and takes either kind for normal there; it is judged on the other half.
    """
    n, seen = others.shape[1], []
    for inside in (1.0, 0.0):
        weights = others.copy()
        weights[:, i] = 0.0
        weights *= (n - inside) / weights.sum(axis=1, keepdims=True)
        weights[:, i] = inside
        seen.append(by_pieces(refits, weights, base))
    hits = np.zeros(len(others))
    for side in (0, 1):
        taught, judged = ([one[k::2] for one in seen] for k in (side, 1 - side))
        spread = sum(np.cov(one.T) for one in taught)
        apart = taught[0].mean(axis=0) - taught[1].mean(axis=0)
        look = np.column_stack([np.linalg.lstsq(spread, apart)[0], refits.x[i]])
        laws = [((one @ look).mean(axis=0), np.cov((one @ look).T)) for one in taught]
        for own, one in enumerate(judged):
            likely = []
            for mean, covariance in laws:
                white = np.linalg.solve(np.linalg.cholesky(covariance), (one @ look - mean).T)
                likely.append(-np.sum(white**2, axis=0) / 2 - np.linalg.slogdet(covariance)[1] / 2)
            hits[1 - side :: 2] += (likely[own] > likely[1 - own]) / 2
    return float(hits.mean()), float(max(hits.std(), 0.5 / len(hits)) / np.sqrt(len(hits)))


# Partial knowledge --------------------------------------------------------------------------------


def partial_knowledge(case: Case) -> list[dict[str, Any]]:
    """Return the mean distance for several shares of known others, predicted and measured."""
    X, y, model = case.fitted()
    refits, rng, found = Refits(case, X, y, model), np.random.default_rng(2), []
    order = rng.permutation(len(X))
    for share in SHARES:
        pool = np.sort(order[int(share * len(X)) :])
        # Halves come and go: a quarter of the scatter of those who may.
        worlds, refused = predicted_worlds(model, X, y, pool)
        mu = np.sqrt(np.sum(worlds.shift**2 / (1 + worlds.spread / 2), axis=1))
        taken = np.ones((case.shadows, len(X)), dtype=bool)
        taken[:, pool] = halves(case.shadows, len(pool), rng)
        margins, member = refits.margins(taken)[pool].astype(float), taken[:, pool]
        parts = np.array_split(np.arange(case.shadows), 20)
        apart = np.array([distances(margins[:, part], member[part]) for part in parts])
        # The sign is that which the other refits show.
        apart *= np.sign(apart.sum(axis=0) - apart)
        right, reached = worlds.accuracy(), by_histograms(margins, member)
        # Where margins are not normal at all, histograms tell how far apart they are.
        better = (reached > ndtr(apart.mean(axis=0) / 2) + 0.02) & (not refused)
        apart[:, better] = 2 * ndtri(reached[better])
        means = apart.mean(axis=1)
        found.append(
            {
                "known": share,
                "others unknown": len(pool) - 1,
                "refused": refused,
                "predicted": float(mu.mean()),
                "measured": float(means.mean()),
                "standard error": float(means.std(ddof=1) / np.sqrt(len(means))),
                "right, predicted": float(right.mean()),
                "right, by histograms": float(reached.mean()),
                "most above the prediction": float((reached - right).max()),
                "not normal": int(better.sum()),
            }
        )
    return found


def predicted_worlds(
    model: Any, X: np.ndarray, y: np.ndarray, pool: np.ndarray
) -> tuple[Any, bool]:
    """Return both worlds of the pool's records to who knows the rest, and whether that is refused.

    What is refused comes from the formula behind it, both worlds taken for normal.
    """
    known = np.ones(len(X), dtype=bool)
    known[pool] = False
    attacker = sp.Attacker(knows=known if known.any() else 0.0, fraction=0.75)
    leak = sp.leakage(model, X, y, attacker=attacker, release=sp.Predictions())
    try:
        return leak.membership(exact=0).worlds, False
    except sp.InputError:
        from seepage.glm.outsider.others import OtherPeople
        from seepage.glm.outsider.worlds import Worlds

        local = sp.leakage(model, X, y, noise=sp.Gaussian(1.0)).release.finite_changes().model
        others = OtherPeople(local, None, False, known)
        worlds = Worlds(others, 0.25, own=True)
        normal = worlds._normal(worlds.told_apart()[0] / worlds.share, ~known)
        return normal.of(pool), True


def distances(margins: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Return how far apart margins are inside and outside, in deviations, for every record."""
    apart = []
    for own, taken in zip(margins, member.T, strict=True):
        inside, outside = own[taken], own[~taken]
        deviation = np.sqrt((inside.var() + outside.var()) / 2)
        apart.append((inside.mean() - outside.mean()) / deviation)
    return np.array(apart)


def by_histograms(margins: np.ndarray, member: np.ndarray, bins: int = 60) -> np.ndarray:
    """Return how often a test by histograms is right, learnt from half of the refits."""
    right = np.zeros(len(margins))
    for i, own in enumerate(margins):
        for side in (0, 1):
            taught, judged = own[side::2], own[1 - side :: 2]
            inside, truth = member[side::2, i], member[1 - side :: 2, i]
            edges = np.quantile(taught, np.linspace(0, 1, bins + 1)[1:-1])
            places = np.searchsorted(edges, taught)
            counts = [np.bincount(places[one], minlength=bins) for one in (inside, ~inside)]
            shares = [one / one.sum() for one in counts]
            says = (shares[0] > shares[1])[np.searchsorted(edges, judged)]
            right[i] += (np.mean(says[truth]) + np.mean(~says[~truth])) / 4
    return right


# What is claimed ----------------------------------------------------------------------------------


def of_lira(name: str, found: dict[str, Any]) -> list[tuple[str, bool]]:
    """Return what is claimed of a table's shadow models, and whether it holds."""
    top = found["top 1 %, predicted"] - found["top 1 %, LiRA"]
    raw, corrected = found["off by"], found["off by, corrected"]
    low, same, high = (100 * found["planted predictions"][key] for key in ("0.8", "1", "1.2"))
    return [
        (
            f"{name}: mean of AUC − ½ {100 * raw:+.1f} %, {100 * corrected:+.1f} % with LiRA's "
            "own error",
            max(abs(raw), abs(corrected)) <= 0.15,
        ),
        (f"{name}: the top 1 % {top:+.3f}", abs(top) <= 0.03),
        (
            f"{name}: correlation {found['correlation, corrected']:.3f}",
            found["correlation, corrected"] >= 0.95,
        ),
        (
            f"{name}: on drawn margins, predictions 20 % low, right and 20 % high are found "
            f"{low:+.0f}, {same:+.0f}, {high:+.0f} %",
            low < -15 and abs(same) < 5 and high > 15,
        ),
    ]


def of_the_white_box(name: str, found: dict[str, Any]) -> tuple[str, bool]:
    """Return what is claimed of the parameters' accuracies, and whether it holds."""
    given, refitted, first, second = (
        np.array(found[key])
        for key in ("given", "refitted", "given, standard errors", "refitted, standard errors")
    )
    off = np.abs(refitted - given)
    agree = (off <= 0.03) | (off <= 2 * np.hypot(first, second))
    decided = np.sum(found["decided by refits"])
    return (
        f"{name}: parameters, {agree.sum()} of {len(off)} records agree with refits, the furthest "
        f"by {100 * off.max():.1f} in 100 ({decided} by the package's own refits)",
        bool(agree.all()),
    )


def of_the_known(name: str, row: dict[str, Any]) -> tuple[str, bool]:
    """Return what is claimed of one known set, and whether it holds."""
    off, error = abs(row["predicted"] - row["measured"]), row["standard error"]
    above = row["right, by histograms"] - row["right, predicted"]
    enough = above <= 0 and row["most above the prediction"] <= 0.08
    beside = ", refused" if row["refused"] else ""
    return (
        f"{name}, {100 * row['known']:.0f} % known{beside}: μ {row['predicted']:.3f}, measured "
        f"{row['measured']:.3f} ± {error:.3f}; right {100 * row['right, predicted']:.1f}, by "
        f"histograms {100 * row['right, by histograms']:.1f} in 100 (about one record "
        f"{100 * row['most above the prediction']:+.1f})",
        off <= 0.1 * row["measured"] + 2 * error
        and error <= 0.04 * row["measured"]
        and enough != row["refused"],
    )


def main() -> int:
    """Examine every table that is not kept, print, compare with the claims, and keep."""
    kept: dict[str, Any] = {"tables": {}, "cost": {}, "partial knowledge": {}, "white box": {}}
    if KEPT.exists() and "--again" not in sys.argv:
        kept = json.loads(KEPT.read_text("utf-8"))
        kept.pop("made")
    parts = (
        ("tables", TABLES, examine),
        ("cost", TABLES, cost),
        ("partial knowledge", PARTIAL, partial_knowledge),
        ("white box", TABLES, white_box),
    )
    for part, cases, ask in parts:
        for name, case in cases.items():
            if name not in kept[part]:
                kept[part][name] = ask(case)
                keep(kept, KEPT)
    show("table, λ", "AUC", "LiRA", "corrected", "top 1 %", "LiRA", "r, raw", "r", widths=WIDTHS)
    figures = (
        "mean area, predicted",
        "mean area, LiRA",
        "mean area, predicted of LiRA",
        "top 1 %, predicted",
        "top 1 %, LiRA",
        "correlation",
        "correlation, corrected",
    )
    for name, found in kept["tables"].items():
        show(name, *(f"{found[key]:.4f}" for key in figures), widths=WIDTHS)
    for name, found in kept["cost"].items():
        spent, products = found["seconds"], found["products"]
        costs = (f"{what} {spent[what]:.2g} s ({products[what]:,.0f} products)" for what in spent)
        print(f"{name}: {', '.join(costs)}")
    stated = [claim for name, found in kept["tables"].items() for claim in of_lira(name, found)]
    stated += [of_the_white_box(name, found) for name, found in kept["white box"].items()]
    for name, rows in kept["partial knowledge"].items():
        stated += [of_the_known(name, row) for row in rows]
    for sentence, holds in stated:
        print(f"{'kept' if holds else 'MISSED':<7}{sentence}")
    return 0 if all(holds for _, holds in stated) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Simulated attackers with likelihood ratios against releases as people make them.

20,000 releases with a record and 20,000 without it, each judged by a test of likelihood ratios.
Claimed: no test is right more often than predicted, by one-sided intervals of Clopper and Pearson
at a level of 99.9 % for all tests together.

- **Predictions with noise**, to who knows all the rest: two queries of linear, logistic and Poisson
  models, with noise on the answers; membership, and for the logistic the record's label. The ratio
  is the exact one.
- **Objective perturbation**, to who knows all the rest: linear, logistic and Poisson models; the
  ratio of the exact densities, with the determinants.
- **The exponential mechanism**, to who knows all the rest: a choice among five candidates.
- **Printed numbers**, to an outsider: tables of 300 people are drawn from a population, with a
  person in them or somebody else instead, by least squares and logistic regression. What is printed
  are coefficients (to 1, 2 and 3 decimals), predictions for the person (2 decimals), and regression
  tables (3 decimals) with classical and with robust standard errors; and two specifications in one
  table, where the second leaves out those above a limit in one column: the person alone, but for
  the few whom chance puts there. The test compares two normal laws, or the frequencies of what is
  printed where few prints differ, taught by 20,000 other releases of either kind. Predicted is the
  mean over 20 tables with the person in them.

Refits share no code with what is judged. The figures are kept in ``results/as_made.json``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import statsmodels.api as sm
from scipy.special import expit, softmax
from scipy.stats import beta

import seepage as sp
from keeping import keep
from measuring import show

RELEASES, LEVEL = 20_000, 0.999
WIDTHS = (70, 10, 10, 10)
KEPT = Path(__file__).parent / "results" / "as_made.json"
OUTSIDER = sp.Attacker(knows=0.0)
BETA = np.array([0.2, 1.0, -0.5])
FAMILIES: dict[str, Callable[..., tuple[np.ndarray, np.ndarray]]] = {
    "gaussian": lambda m, y: (m - y, np.ones_like(m)),
    "bernoulli": lambda m, y: (expit(m) - y, expit(m) * expit(-m)),
    "poisson": lambda m, y: (np.exp(m) - y, np.exp(m)),
}


@dataclass(frozen=True)
class Attack:
    """How often a simulated attacker was right, beside the prediction."""

    name: str
    predicted: float
    right: int
    tried: int

    def least(self, level: float) -> float:
        """Return the lower end of Clopper and Pearson's interval."""
        return float(beta.ppf(1 - level, self.right, self.tried - self.right + 1))


# Who knows all the rest -------------------------------------------------------------------------


def small_table(family: str, n: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Return a table of three columns, whose first record is unlike the others."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((n, 3)) * 0.7
    X[0] *= 2.5
    m = X @ [0.8, 0.2, -0.6]
    if family == "gaussian":
        return X, m + rng.standard_normal(n)
    y = rng.random(n) < expit(m) if family == "bernoulli" else rng.poisson(np.exp(m))
    return X, y.astype(float)


def minimisers(
    family: str, X: np.ndarray, y: np.ndarray, ridge: float, b: np.ndarray
) -> np.ndarray:
    """Return the minimisers with linear terms b, (B, d), by damped Newton steps."""
    theta = np.zeros_like(b)
    for _ in range(200):
        slope, curvature = FAMILIES[family](theta @ X.T, y)
        gradient = slope @ X + ridge * theta + b
        H = np.einsum("bn,ni,nj->bij", curvature, X, X, optimize=True) + ridge * np.eye(X.shape[1])
        step = np.linalg.solve(H, gradient[:, :, None])[:, :, 0]
        shift = np.abs(step @ X.T).max(axis=1)
        theta = theta - step / np.maximum(shift, 1.0)[:, None]
        if shift.max() < 1e-9:
            return theta
    raise RuntimeError("Newton's method did not arrive.")


def noisy_predictions(releases: int) -> Iterator[Attack]:
    """Yield attacks on answers with noise."""
    rng, sigma = np.random.default_rng(2), 0.1
    for family in FAMILIES:
        X, y = small_table(family)
        ridge, queries = 0.05 * len(X), X[:2] * [1.0, -1.0, 0.5]
        model = sp.glm.GeneralizedLinearRegression(family=family, l2=0.05).fit(X, y)
        leak = sp.leakage(model, X, y, noise=sp.Gaussian(sigma), release=sp.Predictions(queries))
        none = np.zeros((1, 3))
        here = minimisers(family, X, y, ridge, none)[0] @ queries.T
        risks = np.asarray(leak.membership(exact=True).accuracy())
        others = [
            (f"membership of {i}", risks[i], np.delete(X, i, 0), np.delete(y, i)) for i in (0, 3, 9)
        ]
        if family == "bernoulli":
            guessed = np.asarray(leak.guess("label", prior="equal", exact=True).right)
            for i in (0, 3):
                flipped = y.copy()
                flipped[i] = 1 - flipped[i]
                others.append((f"label of {i}", guessed[i], X, flipped))
        for what, predicted, Z, labels in others:
            there = minimisers(family, Z, labels, ridge, none)[0] @ queries.T
            noise = sigma * rng.standard_normal((2, releases, 2))
            far = [
                np.sum((centre + one - there) ** 2, axis=1)
                - np.sum((centre + one - here) ** 2, axis=1)
                for centre, one in zip((here, there), noise, strict=True)
            ]
            right = int(np.sum(far[0] > 0) + np.sum(far[1] < 0))
            name = f"{family}, two noisy predictions: {what}"
            yield Attack(name, float(predicted), right, 2 * releases)


def log_density(
    family: str, X: np.ndarray, y: np.ndarray, ridge: float, sigma: float, theta: np.ndarray
) -> np.ndarray:
    """Return the density of objective perturbation at parameters, up to a constant."""
    slope, curvature = FAMILIES[family](theta @ X.T, y)
    gradient = slope @ X + ridge * theta
    H = np.einsum("bn,ni,nj->bij", curvature, X, X, optimize=True) + ridge * np.eye(X.shape[1])
    return np.asarray(np.linalg.slogdet(H)[1] - np.sum(gradient**2, axis=1) / (2 * sigma**2))


def perturbed_objectives(releases: int) -> Iterator[Attack]:
    """Yield attacks on objective perturbation."""
    rng = np.random.default_rng(3)
    for family in FAMILIES:
        X, y = small_table(family)
        ridge, sigma = 0.05 * len(X), 1.0
        model = sp.glm.GeneralizedLinearRegression(family=family, l2=0.05).fit(X, y)
        told = sp.glm.ObjectivePerturbation(model, X, y, sp.Gaussian(sigma)).membership()
        inside = minimisers(family, X, y, ridge, sigma * rng.standard_normal((releases, 3)))
        for i in (0, 3, 9):
            rest = np.delete(X, i, 0), np.delete(y, i)
            noise = sigma * rng.standard_normal((releases, 3))
            outside = minimisers(family, *rest, ridge, noise)
            ratios = [
                log_density(family, X, y, ridge, sigma, theta)
                - log_density(family, *rest, ridge, sigma, theta)
                for theta in (inside, outside)
            ]
            right = int(np.sum(ratios[0] > 0) + np.sum(ratios[1] < 0))
            name = f"{family}, objective perturbation: membership of {i}"
            yield Attack(name, float(np.asarray(told)[i]), right, 2 * releases)


def class_terms(
    X: np.ndarray, y: np.ndarray, ridge: float, theta: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradients, (B, d·2), and Hessians of softmax on three classes, as differences.

    Written for ``theta`` of classes 1 and 2 less class 0, with the penalty on all three.
    """
    B, d = len(theta), X.shape[1]
    margins = np.concatenate([np.zeros((B, len(X), 1)), X @ theta], axis=2)
    powers = softmax(margins, axis=2)[:, :, 1:]
    # The least penalty of three coefficients with these differences: Σw² − (Σw)²/3.
    shared = np.eye(2) - np.full((2, 2), 1 / 3)
    slopes = powers - np.eye(3)[y][:, 1:]
    gradient = X.T @ slopes + ridge * theta @ shared
    bent = powers[..., None] * np.eye(2) - powers[..., :, None] * powers[..., None, :]
    H = np.einsum("bnkl,ni,nj->bikjl", bent, X, X, optimize=True).reshape(B, 2 * d, 2 * d)
    return gradient.reshape(B, -1), H + np.kron(np.eye(d), ridge * shared)


def perturbed_classes(releases: int) -> Iterator[Attack]:
    """Yield attacks on objective perturbation of softmax on three classes."""
    rng, sigma = np.random.default_rng(7), 1.0
    X, y = small_table("gaussian")[0], rng.integers(0, 3, 40)
    ridge = 0.05 * len(X)
    model = sp.glm.SoftmaxRegression(l2=0.05).fit(X, y)
    told = sp.glm.ObjectivePerturbation(model, X, y, sp.Gaussian(sigma)).membership()
    # A linear term of three classes whose sum over them is zero, on differences to class 0.
    normal = np.linalg.inv(np.eye(2) - np.full((2, 2), 1 / 3))  # of the inverse of its covariance

    def drawn(Z: np.ndarray, labels: np.ndarray) -> np.ndarray:
        b = sigma * rng.standard_normal((releases, 3, 3))
        b = (b - b.mean(axis=2, keepdims=True))[:, :, 1:].reshape(releases, -1)
        theta = np.zeros((releases, 3, 2))
        for _ in range(200):
            gradient, H = class_terms(Z, labels, ridge, theta)
            step = np.linalg.solve(H, (gradient + b)[:, :, None]).reshape(theta.shape)
            shift = np.abs(Z @ step).max(axis=(1, 2))
            theta = theta - step / np.maximum(shift, 1.0)[:, None, None]
            if shift.max() < 1e-9:
                return theta
        raise RuntimeError("Newton's method did not arrive.")

    def density(Z: np.ndarray, labels: np.ndarray, theta: np.ndarray) -> np.ndarray:
        gradient, H = class_terms(Z, labels, ridge, theta)
        g = gradient.reshape(len(theta), 3, 2)
        length = np.einsum("bdk,kl,bdl->b", g, normal, g)
        return np.asarray(np.linalg.slogdet(H)[1] - length / (2 * sigma**2))

    inside = drawn(X, y)
    for i in (0, 3, 9):
        rest = np.delete(X, i, 0), np.delete(y, i)
        outside = drawn(*rest)
        ratios = [density(X, y, theta) - density(*rest, theta) for theta in (inside, outside)]
        right = int(np.sum(ratios[0] > 0) + np.sum(ratios[1] < 0))
        name = f"three classes, objective perturbation: membership of {i}"
        yield Attack(name, float(np.asarray(told)[i]), right, 2 * releases)


def choices(releases: int) -> Iterator[Attack]:
    """Yield attacks on a choice among five candidates."""
    rng, sharpness = np.random.default_rng(6), 0.3
    candidates = rng.standard_normal((5, 3))
    X, y = small_table("bernoulli")
    chosen = sp.glm.ExponentialMechanism(candidates, X, y, sharpness, "bernoulli")
    told = np.asarray(chosen.membership()).tolist()
    loss = np.logaddexp(0, X @ candidates.T) - y[:, None] * (X @ candidates.T)
    for i in (0, 3, 9):
        total = loss.sum(axis=0)
        worlds = [np.exp(-sharpness * one) for one in (total, total - loss[i])]
        inside, outside = (one / one.sum() for one in worlds)
        drawn_in, drawn_out = (rng.choice(5, size=releases, p=one) for one in (inside, outside))
        likely = inside > outside
        right = int(np.sum(likely[drawn_in]) + np.sum(~likely[drawn_out]))
        yield Attack(f"exponential mechanism: membership of {i}", told[i], right, 2 * releases)


# An outsider ------------------------------------------------------------------------------------


def fits(X: np.ndarray, y: np.ndarray, logistic: bool) -> dict[str, np.ndarray]:
    """Return what can be printed of many tables at once, in plain NumPy."""
    n, d = X.shape[1:]
    theta = np.zeros((len(X), d))
    for _ in range(9 if logistic else 1):
        m = np.einsum("bnd,bd->bn", X, theta)
        r, a = FAMILIES["bernoulli" if logistic else "gaussian"](m, y)
        H = np.swapaxes(X * a[:, :, None], 1, 2) @ X
        theta = theta - np.linalg.solve(H, np.einsum("bnd,bn->bd", X, r)[:, :, None])[:, :, 0]
    r, _ = FAMILIES["bernoulli" if logistic else "gaussian"](np.einsum("bnd,bd->bn", X, theta), y)
    back = np.linalg.inv(H)
    robust = back @ (np.swapaxes(X * (r**2)[:, :, None], 1, 2) @ X) @ back
    if logistic:
        q = y.mean(axis=1)
        p = np.where(y == 1, 1 + r, 1 - r)  # the probability of what happened
        fit, null = np.log(p).sum(axis=1), n * (q * np.log(q) + (1 - q) * np.log1p(-q))
        classical, said = back, np.column_stack([1 - fit / null, fit])
    else:
        rss = np.sum(r**2, axis=1)
        classical = back * (rss / (n - d))[:, None, None]
        robust = robust * n / (n - d)
        spread = np.sum((y - y.mean(axis=1)[:, None]) ** 2, axis=1)
        likely = -n / 2 * (np.log(2 * np.pi * rss / n) + 1)
        said = np.column_stack([1 - rss / spread, likely])
    errors = [np.sqrt(np.einsum("bii->bi", V)) for V in (classical, robust)]
    return {"coefficients": theta, "classical": errors[0], "robust": errors[1], "fit": said}


def drawn(rng: np.random.Generator, count: int, logistic: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return tables of 300 people."""
    X = rng.standard_normal((count, 300, 3))
    X[:, :, 0] = 1.0
    m = X @ BETA
    if logistic:
        return X, (rng.random(m.shape) < expit(m)).astype(float)
    return X, m + rng.standard_normal(m.shape)


def printed(
    X: np.ndarray, y: np.ndarray, logistic: bool, person: np.ndarray
) -> dict[str, np.ndarray]:
    """Return what the different releases print of many tables."""
    found = fits(X, y, logistic)
    theta = found["coefficients"]
    margin = (theta @ person)[:, None]
    prints = {f"coefficients, {k} decimals": np.round(theta, k) for k in (1, 2, 3)}
    prints["own prediction, 2 decimals"] = np.round(expit(margin) if logistic else margin, 2)
    for errors in ("classical", "robust"):
        table = np.hstack([theta, found[errors], found["fit"]])
        prints[f"table, {errors} errors"] = np.round(table, 3)
    return prints


def judged(inside: np.ndarray, outside: np.ndarray) -> list[int]:
    """Return how often tests are right that the first half of the releases taught."""
    half = len(inside) // 2
    taught = []
    for one in (inside[:half], outside[:half]):
        covariance = np.cov(one.T).reshape(one.shape[1], -1)
        covariance = covariance + 1e-12 * np.eye(len(covariance))
        taught.append(
            (one.mean(axis=0), np.linalg.inv(covariance), np.linalg.slogdet(covariance)[1])
        )

    def ratio(draws: np.ndarray) -> np.ndarray:
        likely = [
            -np.einsum("bi,ij,bj->b", draws - mean, back, draws - mean) / 2 - size / 2
            for mean, back, size in taught
        ]
        return np.asarray(likely[0] - likely[1])

    found = [int(np.sum(ratio(inside[half:]) > 0) + np.sum(ratio(outside[half:]) < 0))]
    every, codes = np.unique(np.concatenate([inside, outside]), axis=0, return_inverse=True)
    if len(every) < half / 20:  # few prints differ: their frequencies are the ratio
        codes = codes.reshape(2, -1)
        seen = [np.bincount(one[:half], minlength=len(every)) + 0.5 for one in codes]
        likely = seen[0] > seen[1]
        found.append(int(np.sum(likely[codes[0][half:]]) + np.sum(~likely[codes[1][half:]])))
    return found


def predicted(X: np.ndarray, y: np.ndarray, logistic: bool) -> Iterator[tuple[str, float]]:
    """Yield what is predicted about the first person from one table after another."""
    for Z, labels in zip(X, y, strict=True):
        family = "bernoulli" if logistic else "gaussian"
        model = sp.glm.GeneralizedLinearRegression(family=family).fit(Z, labels)
        releases: dict[str, Any] = {
            f"coefficients, {k} decimals": sp.Parameters(digits=k) for k in (1, 2, 3)
        }
        releases["own prediction, 2 decimals"] = sp.Predictions(digits=2)
        for name, release in releases.items():
            leak = sp.leakage(model, Z, labels, attacker=OUTSIDER, release=release)
            risk = leak.membership(rows=[0], exact=0)
            yield name, float(np.asarray(risk.accuracy())[0])
        for errors, kind in (("classical", "nonrobust"), ("robust", "HC1")):
            results = (sm.Logit if logistic else sm.OLS)(labels, Z)
            fitted = results.fit(cov_type=kind, **({"disp": 0} if logistic else {}))
            risk = sp.RegressionTable(fitted, digits=3).membership(rows=[0])
            yield f"table, {errors} errors", float(np.asarray(risk.accuracy())[0])


def outsiders(releases: int, tables: int = 20) -> Iterator[Attack]:
    """Yield attacks on printed numbers."""
    rng = np.random.default_rng(4)
    for logistic in (False, True):
        for person, label in (([1.0, 3.0, -2.0], 0.0), ([1.0, 0.5, 1.0], 3.5)):
            own = np.array(person)
            label = float(own @ BETA < 0) if logistic else label
            prints: list[dict[str, list[np.ndarray]]] = [{}, {}]
            example: tuple[np.ndarray, np.ndarray] | None = None
            for world in (0, 1):
                for _ in range(2 * releases // 500):
                    X, y = drawn(rng, 500, logistic)
                    if world == 0:
                        X[:, 0], y[:, 0] = own, label
                        example = X[:tables], y[:tables]
                    for name, numbers in printed(X, y, logistic, own).items():
                        prints[world].setdefault(name, []).append(numbers)
            said: dict[str, list[float]] = {}
            for name, right in predicted(*example, logistic):  # type: ignore[misc]
                said.setdefault(name, []).append(right)
            for name in prints[0]:
                both = [np.concatenate(one[name]) for one in prints]
                for k, right in enumerate(judged(*both)):
                    how = ("normal laws", "frequencies")[k]
                    kind = "logistic" if logistic else "linear"
                    full = f"{kind}, {name}, x = {person[1:]}, {how}"
                    yield Attack(full, float(np.mean(said[name])), right, 2 * releases)


def two_specifications(releases: int, tables: int = 20) -> Iterator[Attack]:
    """Yield the attack on two columns of a table, the second without people above a limit."""
    rng, limit = np.random.default_rng(5), 3.5
    person, label = np.array([1.0, 4.0, -1.0]), 4.5
    prints: list[list[np.ndarray]] = [[], []]
    said = []
    for world in (0, 1):
        for k in range(2 * releases // 500):
            X, y = drawn(rng, 500, False)
            if world == 0:
                X[:, 0], y[:, 0] = person, label
            inside = X[:, :, 1] <= limit
            # Who is left out of the second column gets a row of zeros, which changes no sum.
            numbers = []
            for kept in (np.ones_like(inside), inside):
                Z, labels, n = X * kept[:, :, None], y * kept, kept.sum(axis=1)
                back = np.linalg.inv(np.swapaxes(Z, 1, 2) @ Z)
                theta = np.einsum("bij,bnj,bn->bi", back, Z, labels)
                rss = np.sum((labels - np.einsum("bnd,bd->bn", Z, theta)) ** 2, axis=1)
                errors = np.sqrt(np.einsum("bii->bi", back) * (rss / (n - 3))[:, None])
                mean = labels.sum(axis=1) / n
                spread = np.sum(labels**2, axis=1) - n * mean**2
                likely = -n / 2 * (np.log(2 * np.pi * rss / n) + 1)
                numbers += [
                    np.round(np.column_stack([theta, errors, 1 - rss / spread, likely]), 3),
                    n[:, None],
                ]
            prints[world].append(np.hstack(numbers))
            if world == 0 and k == 0:
                for Z, labels in zip(X[:tables], y[:tables], strict=True):
                    kept = Z[:, 1] <= limit
                    frames = [
                        sm.OLS(*_labelled(labels, Z, np.flatnonzero(some))).fit()
                        for some in (np.ones(300, dtype=bool), kept)
                    ]
                    risk = sp.RegressionTable(*frames).membership(rows=[0], exact=0)
                    said.append(float(np.asarray(risk.accuracy())[0]))
    both = [np.concatenate(one) for one in prints]
    (right, *_) = judged(*both)
    yield Attack(
        "linear, two specifications that differ by one", float(np.mean(said)), right, 2 * releases
    )


def _labelled(y: np.ndarray, X: np.ndarray, rows: np.ndarray) -> tuple[Any, Any]:
    """Return labels and table as data frames whose rows have names."""
    return pd.Series(y[rows], index=rows), pd.DataFrame(X[rows], index=rows)


def main() -> int:
    """Attack, print, compare with the claim, and keep the figures."""
    releases = int(sys.argv[1]) if len(sys.argv) > 1 else RELEASES
    attacks = [
        *noisy_predictions(releases),
        *perturbed_objectives(releases),
        *perturbed_classes(releases),
        *choices(releases),
        *outsiders(releases),
        *two_specifications(releases),
    ]
    level = 1 - (1 - LEVEL) / len(attacks)
    show("release and attacker", "predicted", "measured", "at least", widths=WIDTHS)
    beaten = 0
    for one in attacks:
        least = one.least(level)
        beaten += least > one.predicted
        figures = (one.predicted, one.right / one.tried, least)
        mark = ", BEATEN" if least > one.predicted else ""
        show(one.name + mark, *(f"{figure:.4f}" for figure in figures), widths=WIDTHS)
    print(f"{len(attacks)} tests of {2 * releases:,} releases: {beaten} right more often than said")
    figures_kept = [
        {
            "release": one.name,
            "predicted": round(one.predicted, 4),
            "measured": round(one.right / one.tried, 4),
            "at least": round(one.least(level), 4),
        }
        for one in attacks
    ]
    if releases == RELEASES:
        keep({"releases": releases, "attacks": figures_kept, "beaten": beaten}, KEPT)
    return 1 if beaten else 0


if __name__ == "__main__":
    sys.exit(main())

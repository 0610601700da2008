"""Linear models to try finite changes on: wide tables, people with several rows, class weights.

``draw`` makes a problem from a seed: what was fitted, what is asked about it, and the refits in 60
digits that say what is true. No table has more than 2,000 numbers.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import problems
from problems import PSEUDO_HUBER
from refit_truth import Refits
from truth import Digits60

import seepage as sp

KINDS = (
    "wide",
    "people",
    "single precision",
    "class weights",
    "nearly equal columns",
    "nearly interpolating",
    "narrow",
    "as for the views",
)
FAMILIES = ("gaussian", "gaussian", "bernoulli", "poisson", "categorical", "pseudo-huber")
MOST_NUMBERS = 2000
_ESTIMATORS = {
    "gaussian": sp.glm.LinearRegression,
    "bernoulli": sp.glm.LogisticRegression,
    "poisson": sp.glm.PoissonRegression,
    "categorical": sp.glm.SoftmaxRegression,
}


@dataclass(frozen=True, eq=False)
class Frame:
    """A model, its data and the noise on it, and what finite changes are about.

    The first column has two levels, where ``levels`` says so. ``person`` has the identity of every
    record, if people have several.
    """

    seed: int
    kind: str
    family: str
    X: np.ndarray
    y: np.ndarray
    l2: float
    intercept: bool
    weights: np.ndarray | None
    balanced: bool
    person: np.ndarray | None
    sigma: np.ndarray
    dtype: str
    classes: int
    levels: bool

    @property
    def ridge(self) -> float:
        """``nλ``, as it is computed from what the model was told."""
        return len(self.X) * self.l2

    def leakage(self, person: np.ndarray | None = None) -> sp.Leakage:
        """Ask for the leakage, as people do."""
        return sp.leakage(
            self.fitted,
            self.X,
            self.y,
            noise=sp.Gaussian(self.sigma),
            sample_weight=self.weights,
            dtype=self.dtype,
            person=person,
        )

    @cached_property
    def fitted(self) -> Any:
        """Return the model."""
        told = {"l2": self.l2, "fit_intercept": self.intercept}
        if self.family == "pseudo-huber":
            model = sp.glm.GeneralizedLinearRegression(PSEUDO_HUBER, **told)
        elif self.balanced:
            from sklearn.linear_model import LogisticRegression

            model = LogisticRegression(
                C=1 / self.ridge,
                fit_intercept=self.intercept,
                class_weight="balanced",
                tol=1e-10,
                max_iter=10_000,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return sp.refine(model.fit(self.X, self.y), self.X, self.y)
        else:
            model = _ESTIMATORS[self.family](**told)
        return model.fit(self.X, self.y, sample_weight=self.weights)

    def weights_of(self, kept: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the weights of the records that stay, balanced anew where classes have weights."""
        weights = np.ones(len(kept)) if self.weights is None else self.weights.copy()
        if self.balanced:
            names, which = np.unique(labels[kept], return_inverse=True)
            weights[kept] = (int(kept.sum()) / (len(names) * np.bincount(which)))[which]
        return np.where(kept, weights, 0.0)

    @cached_property
    def candidates(self) -> Candidates:
        """The table with everything that may come in a record's place."""
        return Candidates(self)


class Candidates:
    """The records of a frame and what may stand in their places, and the refits of them."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        X, y, n = frame.X, frame.y, len(frame.X)
        tables, labels = [X], [y]
        self._first: dict[tuple[str, Any], int] = {}
        if frame.levels:
            self.values = np.unique(X[:, 0])
            other = X.copy()
            other[:, 0] = np.where(X[:, 0] == self.values[0], self.values[1], self.values[0])
            self._first["column", None] = n * len(tables)
            tables, labels = [*tables, other], [*labels, y]
        for c in range(1, frame.classes):
            self._first["label", c] = n * len(tables)
            tables, labels = [*tables, X], [*labels, (y + c) % frame.classes]
        self.X, self.y = np.vstack(tables), np.concatenate(labels)
        several = frame.classes if frame.family == "categorical" else 1
        ridge = 1 / (1 / frame.ridge) if frame.balanced else frame.ridge
        self.refits = Refits(frame.family, self.X, self.y, ridge, frame.intercept, several)
        self.whole = self._weights(np.ones(n, dtype=bool), {})
        self.here = self.refits.minimiser(self.whole)
        self._known: dict[bytes, np.ndarray] = {}

    def _weights(self, kept: np.ndarray, others: dict[int, int], held: bool = True) -> np.ndarray:
        """Return the weights with some records left out and others (their rows) in their places."""
        frame, n = self.frame, len(self.frame.X)
        labels = frame.y.copy()
        for i, row in others.items():
            labels[i] = self.y[row]
        every = np.ones(n, dtype=bool)
        weights = frame.weights_of(every, frame.y) if held else frame.weights_of(kept, labels)
        out = np.zeros(len(self.X))
        out[:n] = np.where(kept, weights, 0.0)
        for i, row in others.items():
            out[i], out[row] = 0.0, weights[i]
        return out

    def without(self, rows: np.ndarray, held: bool = True) -> np.ndarray:
        """Return the parameters when some records have left."""
        kept = np.ones(len(self.frame.X), dtype=bool)
        kept[rows] = False
        return self._refitted(self._weights(kept, {}, held))

    def replaced(self, rows: Any, how: str, by: Any = None, held: bool = True) -> np.ndarray:
        """Return the parameters when records have the other level, or a class that many further."""
        others = {int(i): self._first[how, by] + int(i) for i in rows}
        every = np.ones(len(self.frame.X), dtype=bool)
        return self._refitted(self._weights(every, others, held))

    def _refitted(self, weights: np.ndarray) -> np.ndarray:
        key = weights.tobytes()
        if key not in self._known:
            changed = np.flatnonzero(weights != self.whole)
            if self.frame.family == "gaussian":
                self._known[key] = self.refits.least_squares(self.whole, changed, weights)
            else:
                self._known[key] = self.refits.minimiser(weights, self.here)
        return self._known[key]

    def distance(self, there: np.ndarray, here: np.ndarray | None = None) -> Any:
        """Return how far apart the noise puts two releases; the first from that of all records."""
        return self.refits.distance(self.here if here is None else here, there, self.frame.sigma)

    @cached_property
    def resolution(self) -> Any:
        """The distances that refits cannot tell from zero: they end 40 digits below the release."""
        whole = self.refits.distance(0 * self.here, self.here, self.frame.sigma)
        return whole * Digits60.settled


def draw(seed: int, kind: str | None = None) -> Frame:
    """Make the problem of a seed; of the given kind where one is named."""
    rng = np.random.default_rng([seed, 35])
    drawn = str(rng.choice(KINDS))
    kind = drawn if kind is None else kind
    if kind == "as for the views":
        return _of_the_views(seed, rng)
    balanced = kind == "class weights"
    family = str(rng.choice(("bernoulli", "categorical") if balanced else FAMILIES))
    n, d = _size(rng, kind, family)
    X = rng.standard_normal((n, d))
    # Of two classes scikit-learn makes a logistic model.
    classes = {"bernoulli": 2, "categorical": int(rng.integers(2 + balanced, 4))}.get(family, 1)
    intercept = bool(rng.random() < 0.5)
    alpha = 10.0 ** rng.uniform(-8, -1)
    if kind in ("narrow", "people", "class weights", "single precision") and rng.random() < 0.7:
        alpha = 10.0 ** rng.uniform(-3, 1)
    if kind == "nearly equal columns":
        for j in range(1, d, 2):
            X[:, j] = X[:, j - 1] + 10.0 ** rng.uniform(-9, -2) * rng.standard_normal(n)
    levels = d > 1 and bool(rng.random() < 0.8)
    if levels:
        X[:, 0] = rng.permutation(np.arange(n) % 2)
        if rng.random() < 0.3:  # a rare one
            X[:, 0] = np.arange(n) == rng.integers(n)
    person = None
    if kind == "people" or (kind == "wide" and rng.random() < 0.2):
        person = rng.integers(0, max(2, n // 3), n)
        person[:2] = (0, 1)
    if kind == "people":
        # Rows of one person are alike.
        X = 0.5 * X + rng.standard_normal((n, d))[person]
        if levels:
            X[:, 0] = person % 2
    signal = X @ rng.standard_normal(d) / np.sqrt(d)
    y = _labels(rng, kind, family, classes, signal)
    if kind == "single precision" or rng.random() < 0.1:
        X = X + np.array([0.0, 1e3, 1e5])[rng.integers(0, 3, d)]
    if rng.random() < 0.1:
        X = X * 10.0 ** rng.uniform(-2, 2, d)
    weights = None
    if not balanced and rng.random() < 0.2:
        weights = rng.uniform(0.3, 3.0, n)
    numbers = (d + intercept) * (classes if family == "categorical" else 1)
    sigma = np.asarray(10.0 ** rng.uniform(-2, 1))
    if rng.random() < 0.2:
        sigma = sigma * 10.0 ** rng.uniform(-1, 1, numbers)
    if family == "gaussian" and n > 2 * d and rng.random() < 0.3:
        alpha = 0.0
    return Frame(
        seed=seed,
        kind=kind,
        family=family,
        X=X,
        y=y,
        l2=alpha / n,
        intercept=intercept,
        weights=weights,
        balanced=balanced,
        person=person,
        sigma=sigma,
        dtype="float32" if kind == "single precision" else "float64",
        classes=classes,
        levels=levels,
    )


def _size(rng: np.random.Generator, kind: str, family: str) -> tuple[int, int]:
    """Draw records and columns, mostly few."""
    most = 120 if family == "categorical" else MOST_NUMBERS  # exponentials take their time
    if kind in ("wide", "nearly interpolating"):
        n = int(rng.integers(5, 16 if family == "categorical" else 41))
        if kind == "nearly interpolating":
            return n, max(2, n + int(rng.integers(-2, 1)))
        return n, int(min(n * rng.uniform(1, 5), most // n))
    d = int(rng.integers(1 if kind == "narrow" else 2, 4 if family == "categorical" else 11))
    n = int(np.exp(rng.uniform(np.log(d + 4), np.log(min(most / d, 200)))))
    return max(n, 8), d


def _labels(
    rng: np.random.Generator, kind: str, family: str, classes: int, signal: np.ndarray
) -> np.ndarray:
    n = len(signal)
    noise = 10.0 ** rng.uniform(-6, -1) if kind == "nearly interpolating" else 1.0
    if family in ("gaussian", "pseudo-huber"):
        return np.asarray(signal + noise * rng.standard_normal(n))
    if family == "poisson":
        counts = rng.poisson(np.exp(np.clip(signal, -3, 2))).astype(float)
        counts[:2] += 1
        return np.asarray(counts)
    if classes == 2 and family == "bernoulli":
        share = rng.uniform(0.1, 0.5) if kind == "class weights" else 0.5
        noisy = signal + noise * rng.logistic(size=n)
        y = (noisy > np.quantile(noisy, 1 - share)).astype(float)
        y[:4] = [0, 1, 0, 1]
        return y
    y = np.digitize(signal + rng.logistic(size=n), np.linspace(-1, 1, classes - 1))
    few = min(n, 2 * classes)
    y[:few] = np.arange(few) % classes
    return y


def _of_the_views(seed: int, rng: np.random.Generator) -> Frame:
    """Return a problem as the views are tried on, with Gaussian noise."""
    drawn = problems.draw(seed)
    two = len(np.unique(drawn.X[:, 0])) == 2
    return Frame(
        seed=seed,
        kind="as for the views",
        family=drawn.family,
        X=drawn.X,
        y=drawn.y,
        l2=drawn.l2,
        intercept=drawn.intercept,
        weights=drawn.weights,
        balanced=False,
        person=rng.integers(0, 3, len(drawn.X)) if len(drawn.X) > 5 else None,
        sigma=drawn.scale,
        dtype=drawn.dtype,
        classes=drawn.classes if drawn.family in ("bernoulli", "categorical") else 1,
        levels=two,
    )

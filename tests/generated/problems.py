"""Linear models to try the leakage on: every family, shape, scale and noise that people bring.

``draw`` makes a problem from a seed. A problem knows the objective that was minimised, the model
the package makes of it, and its truth in more digits than floating point has.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from scipy.optimize import linprog
from truth import Digits60, LongDoubles, Objective, Truth

import seepage as sp

KINDS = (
    "plain",
    "weak penalty",
    "strong penalty",
    "more columns than records",
    "scales",
    "offsets",
    "near separable",
    "duplicated records",
    "one record",
    "one column",
    "one-hot",
    "zero weights",
    "everything",
    "single precision",
)
FAMILIES = ("gaussian", "bernoulli", "poisson", "categorical", "pseudo-huber")
NOISES = ("scalar", "vector", "matrix", "laplace", "laplace vector")
_ESTIMATORS = {
    "gaussian": "LinearRegression",
    "bernoulli": "LogisticRegression",
    "poisson": "PoissonRegression",
    "categorical": "SoftmaxRegression",
}


def _root(m: Any, y: Any) -> Any:
    return array_namespace(m).sqrt(1 + (m - y) ** 2)


PSEUDO_HUBER = sp.glm.Family(
    "pseudo-huber",
    loss=lambda m, y: _root(m, y) - 1,
    slope=lambda m, y: (m - y) / _root(m, y),
    curvature=lambda m, y: _root(m, y) ** -3,
    label_slope=lambda m, y: -(_root(m, y) ** -3),
    mean=lambda m: m,
)


@dataclass(frozen=True, eq=False)
class Problem:
    """A model, its data, and the noise on it."""

    seed: int
    kind: str
    family: str
    X: np.ndarray
    y: np.ndarray
    l2: float
    intercept: bool
    weights: np.ndarray | None
    noise_kind: str
    scale: np.ndarray
    dtype: str
    one_hot: tuple[int, ...]
    classes: int
    large: bool

    @property
    def noise(self) -> sp.Gaussian | sp.Laplace:
        """The noise as the package knows it."""
        return sp.Laplace(self.scale) if "laplace" in self.noise_kind else sp.Gaussian(self.scale)

    def estimator(self) -> Any:
        """Return the package's estimator for the problem, not yet fitted."""
        options = {"l2": self.l2, "fit_intercept": self.intercept}
        if self.family == "pseudo-huber":
            return sp.glm.GeneralizedLinearRegression(PSEUDO_HUBER, **options)
        return getattr(sp.glm, _ESTIMATORS[self.family])(**options)

    def leakage(self) -> sp.Leakage:
        """Fit, and ask for the leakage, as people do."""
        model = self.estimator().fit(self.X, self.y, sample_weight=self.weights)
        attributes = {"category": list(self.one_hot)} if self.one_hot else None
        return sp.leakage(
            model,
            self.X,
            self.y,
            noise=self.noise,
            sample_weight=self.weights,
            attributes=attributes,
            dtype=self.dtype,
        )

    @cached_property
    def truth(self) -> Truth:
        """The minimiser and its derivative in many digits."""
        number = LongDoubles() if self.large else Digits60()
        objective = Objective(
            self.family,
            self.X,
            self.y,
            len(self.X) * self.l2,
            self.intercept,
            self.weights,
            self.classes,
        )
        return Truth(objective, number)

    @cached_property
    def separable(self) -> bool:
        """Whether along some direction no loss rises and some fall for ever: by an LP.

        A penalty makes a minimiser all the same, where it is not lost beside the columns' sizes.
        """
        if self.family not in ("bernoulli", "categorical", "poisson"):
            return False
        centre = np.median(self.X, axis=0) if self.intercept else 0.0
        spread = np.max(np.abs(self.X - centre), axis=0)
        design = (self.X - centre) / np.where(spread > 0, spread, 1.0)
        if self.intercept:
            design = np.hstack([design, np.ones((len(design), 1))])
        counted = np.ones(len(design), bool) if self.weights is None else self.weights > 0
        design, y = design[counted], self.y[counted]
        still = np.zeros((1, design.shape[1]))  # margins that may not move at all
        if self.family == "poisson":
            gains = -design[y == 0]
            still = np.vstack([still, design[y > 0]])
        else:
            classes = np.eye(max(self.classes, 2))
            gains = np.array(
                [
                    np.outer(x, classes[own] - classes[other]).ravel()
                    for x, own in zip(design, y.astype(int), strict=True)
                    for other in range(self.classes)
                    if other != own
                ]
            )
            still = np.zeros((1, gains.shape[1]))
        best = linprog(
            -gains.sum(axis=0),
            A_ub=-gains,
            b_ub=np.zeros(len(gains)),
            A_eq=still,
            b_eq=np.zeros(len(still)),
            bounds=(-1, 1),
        )
        return bool(best.fun is not None and -best.fun > 1e-6)


def draw(seed: int, kind: str | None = None) -> Problem:
    """Make the problem of a seed; of the given kind where one is named."""
    rng = np.random.default_rng(seed)
    drawn = str(rng.choice(KINDS))
    kind = drawn if kind is None else kind
    # One record has one class, of which there is nothing to learn.
    suited = ("gaussian", "poisson", "pseudo-huber") if kind == "one record" else FAMILIES
    family = str(rng.choice(suited))
    many = kind == "everything"
    large = kind in ("plain", "scales", "one-hot", "weak penalty") and rng.random() < 0.15
    n, d = _size(rng, kind, family, large)
    intercept = bool(rng.random() < 0.6)
    Z = rng.standard_normal((n, d))
    one_hot: tuple[int, ...] = ()
    if (kind == "one-hot" or (many and rng.random() < 0.3)) and d >= 3:
        Z[:, :3] = np.eye(3)[rng.integers(0, 3, n)]
        one_hot = (0, 1, 2)
    if kind == "duplicated records" or (many and rng.random() < 0.3):
        Z[n // 2 :] = Z[: n - n // 2]
    if kind == "more columns than records" and rng.random() < 0.2:
        Z = np.round(Z)
    spread, offset = np.ones(d), np.zeros(d)
    free = np.array([j not in one_hot for j in range(d)])
    if kind == "scales" or (many and rng.random() < 0.5):
        spread[free] = 10.0 ** rng.uniform(-8, 8, int(free.sum()))
    if kind == "offsets" or (many and rng.random() < 0.5):
        intercept = intercept or kind == "offsets"
        offset[free] = spread[free] * 10.0 ** rng.uniform(0, 9, int(free.sum()))
    if kind == "single precision":
        offset = np.array([0.0, 1e3, 1e5])[rng.integers(0, 3, d)]
    X = Z * spread + offset
    given = rng.random() < 0.15  # in single precision; else the numbers have no such twin
    dtype = "float32" if given or kind == "single precision" else "float64"
    if given:
        X = X.astype(np.float32).astype(float)
    y, classes = _labels(rng, kind, family, Z)
    weights = None
    if kind == "zero weights" or rng.random() < 0.25:
        weights = rng.uniform(0.2, 3.0, n)
        if kind == "zero weights" and n > 2:
            weights[rng.permutation(n)[: max(1, n // 4)]] = 0.0
            if family in ("bernoulli", "categorical"):
                # Of one class alone there is nothing to learn: one record of each keeps its weight.
                kept = np.unique(y, return_index=True)[1]
                weights[kept] = np.where(weights[kept] > 0, weights[kept], 1.0)
    if given and weights is not None:
        weights = weights.astype(np.float32).astype(float)
    if given and family in ("gaussian", "pseudo-huber"):
        y = y.astype(np.float32).astype(float)
    released = (d + intercept) * (classes if family == "categorical" else 1)
    noise_kind = str(rng.choice(NOISES))
    return Problem(
        seed=seed,
        kind=kind,
        family=family,
        X=X,
        y=y,
        l2=_penalty(rng, kind, n, released),
        intercept=intercept,
        weights=weights,
        noise_kind=noise_kind,
        scale=_noise(rng, noise_kind, released),
        dtype=dtype,
        one_hot=one_hot,
        classes=classes,
        large=large,
    )


def _size(rng: np.random.Generator, kind: str, family: str, large: bool) -> tuple[int, int]:
    if large:
        return int(rng.integers(50, 120)), int(
            rng.integers(13, 24 if family != "categorical" else 15)
        )
    d = 1 if kind == "one column" else int(rng.integers(3 if kind == "one-hot" else 1, 6))
    if family == "categorical":
        d = min(d, 3)
    if kind == "one record":
        return 1, d
    if kind == "more columns than records":
        n = int(rng.integers(2, 5))
        return n, n + int(rng.integers(1, 4))
    return int(rng.integers(d + 2, 16)), d


def _labels(
    rng: np.random.Generator, kind: str, family: str, Z: np.ndarray
) -> tuple[np.ndarray, int]:
    n, d = Z.shape
    signal = Z @ rng.standard_normal(d) / np.sqrt(d)
    sharp = 0.05 if kind == "near separable" else 1.0
    noisy = signal + sharp * rng.standard_normal(n)
    if family in ("gaussian", "pseudo-huber"):
        return noisy * 10.0 ** rng.uniform(-1, 1), 1
    if family == "poisson":
        return rng.poisson(np.exp(np.clip(noisy, -3, 3))).astype(float), 1
    if family == "bernoulli":
        y = (noisy > np.median(noisy) - 0.1).astype(float)
        if n > 1:
            y[:2] = (0.0, 1.0)
        return y, 2
    classes = int(rng.integers(2, 4))
    y = np.digitize(noisy, np.quantile(noisy, np.arange(1, classes) / classes))
    y[: min(n, classes)] = np.arange(min(n, classes))
    return y, max(int(y.max()) + 1, 2)


def _penalty(rng: np.random.Generator, kind: str, n: int, released: int) -> float:
    if kind == "weak penalty":
        return float(10.0 ** rng.uniform(-12, -6))
    if kind == "strong penalty":
        return float(10.0 ** rng.uniform(0, 3))
    if kind in ("more columns than records", "one record"):
        return float(10.0 ** rng.uniform(-12, 2))
    if kind == "everything":
        return float(10.0 ** rng.uniform(-12, 3)) if rng.random() < 0.8 else 0.0
    return float(10.0 ** rng.uniform(-4, 0)) if rng.random() < 0.7 else 0.0


def _noise(rng: np.random.Generator, kind: str, size: int) -> np.ndarray:
    level = 10.0 ** rng.uniform(-3, 3)
    if "vector" in kind:
        return np.asarray(level * 10.0 ** rng.uniform(-2, 2, size))
    if kind == "matrix":
        root = rng.standard_normal((size, size)) + 2 * np.eye(size)
        scales = 10.0 ** rng.uniform(-2, 2, size)
        covariance = level**2 * (root @ root.T + np.eye(size)) * np.outer(scales, scales)
        return np.asarray((covariance + covariance.T) / 2)
    return np.asarray(level)

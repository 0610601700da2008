"""Linear models by the book, in dense numpy: what an audit says, found again without seepage.

A model minimises ``Σ ℓ(x_jᵀW + c, y_j) + (nλ/2)‖W‖²``; the intercept c is not penalised. Fits are
Newton's method, Jacobians are whole matrices, and a record that leaves or changes is a refit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from scipy.linalg import null_space, pinvh
from scipy.special import expit, logsumexp, ndtr, ndtri, softmax
from scipy.stats import qmc

GRID = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)  # points of a decade to which figures of the data are rounded


@dataclass(frozen=True)
class Coded:
    """A table as numbers: features, labels, and the features and the unit of every column."""

    X: np.ndarray
    y: np.ndarray  # numbers, or positions among the classes
    classes: tuple
    columns: dict[str, tuple[list[int], str, float]]  # features, kind, standard deviation


def coded(table: pd.DataFrame, target: str, kinds: dict[str, str], classes: bool) -> Coded:
    """Return numbers standardised, two values as 0 and 1, and all levels but the first."""
    parts, columns, at = [], {}, 0
    for name, kind in kinds.items():
        values = table[name]
        if kind == "numeric":
            numbers = values.to_numpy(float)
            spread = numbers.std()
            made = ((numbers - numbers.mean()) / spread)[:, None]
        else:
            levels = sorted(values.unique())
            made = np.stack([(values == v).to_numpy(float) for v in levels[1:]], axis=1)
            shares = values.value_counts(normalize=True).to_numpy()
            spread = made.std() if len(levels) == 2 else math.sqrt(1 - shares @ shares)
        parts.append(made)
        columns[name] = (list(range(at, at + made.shape[1])), kind, float(spread))
        at += made.shape[1]
    labels = table[target]
    if not classes:
        return Coded(np.hstack(parts), labels.to_numpy(float), (), columns)
    known = sorted(labels.unique())
    return Coded(np.hstack(parts), np.searchsorted(known, labels), tuple(known), columns)


@dataclass(frozen=True)
class Model:
    """A kind of model, and its penalty times the records, which refits keep."""

    kind: str  # linear, logistic, poisson or softmax
    ridge: float
    classes: int = 1

    @property
    def outputs(self) -> int:
        """How many margins a record has."""
        return self.classes if self.kind == "softmax" else 1

    def terms(self, margins: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return slopes (n, K) and curvatures (n, K, K) of the losses by their margins."""
        m = margins[:, 0]
        if self.kind == "linear":
            return (m - y)[:, None], np.ones((len(y), 1, 1))
        if self.kind == "logistic":
            return (expit(m) - y)[:, None], (expit(m) * expit(-m))[:, None, None]
        if self.kind == "poisson":
            return (np.exp(m) - y)[:, None], np.exp(m)[:, None, None]
        p = softmax(margins, axis=1)
        curved = p[:, :, None] * np.eye(self.classes) - p[:, :, None] * p[:, None, :]
        return p - np.eye(self.classes)[y], curved

    def value(self, margins: np.ndarray, y: np.ndarray) -> float:
        """Return the sum of the losses."""
        m = margins[:, 0]
        if self.kind == "linear":
            return float(np.sum((m - y) ** 2) / 2)
        if self.kind == "logistic":
            return float(np.sum(np.logaddexp(0, m) - y * m))
        if self.kind == "poisson":
            with np.errstate(over="ignore"):
                return float(np.sum(np.exp(m) - y * m))
        return float(np.sum(logsumexp(margins, axis=1) - margins[np.arange(len(y)), y]))

    def hessian(self, Z: np.ndarray, curved: np.ndarray) -> np.ndarray:
        """Return the second derivatives of the objective, parameters in the order of features."""
        K, P = self.outputs, Z.shape[1]
        H = np.einsum("ni,nkl,nj->ikjl", Z, curved, Z, optimize=True).reshape(P * K, P * K)
        H[np.diag_indices(P * K)] += np.repeat([self.ridge] * (P - 1) + [0.0], K)
        return H

    def inverse(self, H: np.ndarray) -> np.ndarray:
        """Return ``H⁻¹``; intercepts of classes that all move together change nothing."""
        return pinvh(H) if self.kind == "softmax" else np.linalg.inv(H)

    def fit(self, X: np.ndarray, y: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
        """Return the minimiser, (features + 1, K), by Newton's method with halved steps."""
        Z, K = with_ones(X), self.outputs
        if self.kind == "linear":
            root = math.sqrt(self.ridge) * np.eye(Z.shape[1])[:-1]
            stacked = np.vstack([Z, root]), np.r_[y, np.zeros(len(root))]
            return np.linalg.lstsq(*stacked, rcond=None)[0][:, None]
        theta = np.zeros((Z.shape[1], K)) if start is None else start.copy()
        if start is None and self.kind == "poisson":
            theta[-1] = math.log(max(y.mean(), 1e-9))
        held = np.r_[np.full(Z.shape[1] - 1, self.ridge), 0.0][:, None]

        def objective(at: np.ndarray) -> float:
            return self.value(Z @ at, y) + float(np.sum(held * at**2)) / 2

        for _ in range(200):
            slope, curved = self.terms(Z @ theta, y)
            gradient = Z.T @ slope + held * theta
            H = self.hessian(Z, curved)
            if self.kind == "softmax":
                H[-K:, -K:] += 1.0  # along the intercepts together, where nothing pulls
            step = np.linalg.solve(H, gradient.reshape(-1)).reshape(theta.shape)
            fall, here, size = float(np.sum(gradient * step)), objective(theta), 1.0
            # Far from the minimum a step must fall; near it the difference is rounding.
            while fall > 1e-9 * (1 + abs(here)) and size > 1e-8:
                if objective(theta - size * step) <= here - 1e-4 * size * fall:
                    break
                size /= 2
            theta = theta - size * step
            if np.linalg.norm(step) <= 1e-11 * (1 + np.linalg.norm(theta)):
                break
        return theta


def with_ones(X: np.ndarray) -> np.ndarray:
    """Return the features and the column of the intercept."""
    return np.hstack([X, np.ones((len(X), 1))])


@dataclass(frozen=True)
class Release:
    """A fitted model with noise σ on every parameter, and the Jacobian of every record."""

    model: Model
    table: Coded
    theta: np.ndarray
    sigma: float
    step: float  # the unit of the label: its standard deviation, or a whole class
    _kept: dict = field(default_factory=dict)  # releases under every level, once refitted

    @classmethod
    def of(cls, model: Model, table: Coded, sigma: float) -> Release:
        """Fit a model on a table."""
        y = table.y
        step = 1.0 if table.classes else float(y.std())
        return cls(model, table, model.fit(table.X, y), sigma, step)

    def jacobians(self) -> tuple[np.ndarray, np.ndarray]:
        """Return how parameters move with features, (n, P, D), and with labels, (n, P, L).

        ``J_i = −H⁻¹ ∂(x̃_i ⊗ r_i)``, with r the slope of the loss by the margins.
        """
        X, y, W = self.table.X, self.table.y, self.theta[:-1]
        Z, (n, D), K = with_ones(X), X.shape, self.model.outputs
        slope, curved = self.model.terms(Z @ self.theta, y)
        inverse = self.model.inverse(self.model.hessian(Z, curved))
        moved = np.einsum("ni,nkl,jl->nikj", Z, curved, W, optimize=True)
        moved[:, np.arange(D), :, np.arange(D)] += slope
        by_features = inverse @ moved.reshape(n, -1, D)
        # A class moves within the simplex: the shares of all classes add up to one.
        moves = null_space(np.ones((1, K))) if K > 1 else np.eye(1)
        by_label = np.einsum("ni,kl->nikl", Z, moves).reshape(n, -1, moves.shape[1])
        return by_features / self.sigma, inverse @ by_label * (self.step / self.sigma)

    def without_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return the parameters, over σ, without some records."""
        X, y = (np.delete(values, rows, axis=0) for values in (self.table.X, self.table.y))
        return self.model.fit(X, y, self.theta).reshape(-1) / self.sigma

    def changed(self, row: int, x: np.ndarray, label: float | None = None) -> np.ndarray:
        """Return the parameters, over σ, with a record replaced."""
        X, y = self.table.X, self.table.y
        if np.array_equal(x, X[row]) and label in (None, y[row]):
            return self.theta.reshape(-1) / self.sigma
        X, y = X.copy(), y.copy()
        X[row], y[row] = x, y[row] if label is None else label
        return self.model.fit(X, y, self.theta).reshape(-1) / self.sigma

    def without(self, row: int) -> np.ndarray:
        """Return the parameters, over σ, without a record."""
        if row not in self._kept:
            self._kept[row] = self.without_rows(np.array([row]))
        return self._kept[row]

    def left_out(self, rows: np.ndarray) -> np.ndarray:
        """Return how far the release moves without each record, in units of the noise."""
        here = self.theta.reshape(-1) / self.sigma
        return np.array([np.linalg.norm(self.without(int(i)) - here) for i in rows])

    def places(self, row: int, column: str | None) -> np.ndarray:
        """Return the releases under every level of a column of a record, or of its class."""
        if (row, column) not in self._kept:
            self._kept[row, column] = np.array(list(self._changed_each(row, column)))
        return self._kept[row, column]

    def _changed_each(self, row: int, column: str | None) -> Iterator[np.ndarray]:
        if column is None:
            for label in range(len(self.table.classes)):
                yield self.changed(row, self.table.X[row], label)
            return
        features = self.table.columns[column][0]
        for level in range(len(features) + 1):
            x = self.table.X[row].copy()
            x[features] = 0.0
            if level:
                x[features[level - 1]] = 1.0
            yield self.changed(row, x)

    def predicted(self, row: int) -> np.ndarray:
        """Return the probabilities of a record's classes by the model without it."""
        theta = self.without(row).reshape(self.theta.shape) * self.sigma
        margins = with_ones(self.table.X[[row]]) @ theta
        if self.model.kind == "softmax":
            return softmax(margins[0])
        return np.array([expit(-margins[0, 0]), expit(margins[0, 0])])

    def neighbours(self, row: int) -> Iterator[tuple[str, Coded]]:
        """Yield the table with a record left out, relabelled, or at the ends of its numbers."""
        table = self.table
        X, y = table.X, table.y
        kept = np.arange(len(y)) != row
        yield "left out", replace(table, X=X[kept], y=y[kept])
        known = range(len(table.classes)) if table.classes else (y.min(), y.max())
        for label in [k for k in known if k != y[row]][:3]:
            yield "with another label", replace(table, y=np.where(kept, y, label))
        numbers = [j for own, kind, _ in table.columns.values() if kind == "numeric" for j in own]
        for words, end in (("least", X.min(axis=0)), ("most", X.max(axis=0))):
            other = X.copy()
            other[row, numbers] = end[numbers]
            yield f"with its numbers at their {words}", replace(table, X=other)

    def on(self, table: Coded) -> Release:
        """Return the release of nearly the same table, with the label in the unit it has here."""
        model = replace(self.model, ridge=self.model.ridge * len(table.y) / len(self.table.y))
        theta = model.fit(table.X, table.y, self.theta)
        return Release(model, table, theta, self.sigma, self.step)

    def at(self, l2: float) -> Release:
        """Return the release with another penalty."""
        model = replace(self.model, ridge=l2 * len(self.table.X))
        return Release.of(model, self.table, self.sigma)


# Probabilities ------------------------------------------------------------------------------------


def widest(places: np.ndarray) -> float:
    """Return the largest distance between two releases."""
    return float(np.sqrt(np.sum((places[:, None] - places[None]) ** 2, axis=2)).max())


def found_at(mu: np.ndarray | float, rate: float) -> np.ndarray:
    """Return the true positives of the best test with these false positives."""
    return ndtr(ndtri(rate) + np.asarray(mu))


def best_of(places: np.ndarray, prior: np.ndarray) -> float:
    """Return how often the likeliest of some releases is the true one, ``∫ max_k p_k N_k``.

    Two in closed form; of more, the mean of the largest posterior over draws of the release.
    """
    if len(places) == 2:
        mu = float(np.linalg.norm(places[1] - places[0]))
        p = prior[0]
        if mu == 0 or p in (0.0, 1.0):
            return float(max(p, 1 - p))
        cut = mu / 2 + math.log(p / (1 - p)) / mu  # the first wins below, from its own place
        return float(p * ndtr(cut) + (1 - p) * ndtr(mu - cut))
    centred = places - places.mean(axis=0)
    _, sizes, turned = np.linalg.svd(centred, full_matrices=False)
    kept = sizes > 1e-9 * max(sizes[0], 1e-300)
    flat = centred @ turned[kept].T
    draws = ndtri(np.clip(qmc.Sobol(flat.shape[1], seed=0).random(1 << 12), 1e-12, 1 - 1e-12))
    total = 0.0
    with np.errstate(divide="ignore"):
        log_prior = np.log(prior)
    for place, p in zip(flat, prior, strict=True):
        # −‖seen − place‖²/2 for every place, up to what all places share
        scores = (draws + place) @ flat.T - np.sum(flat**2, axis=1) / 2
        total += p * softmax(log_prior + scores, axis=1).max(axis=1).mean()
    return float(total)


def on_grid(value: float) -> float:
    """Return the next point of the coarse grid from a number on."""
    decade = 10.0 ** math.floor(math.log10(value))
    points = [p * decade for p in (*GRID, 10.0)]
    return next(p for p in points if p >= value * (1 - 1e-9))


def middle(values: np.ndarray) -> float:
    """Return the median; where it lies beside infinity, the lower of the two in the middle."""
    low, high = np.sort(values)[[(len(values) - 1) // 2, len(values) // 2]]
    return float((low + high) / 2 if np.isfinite(high) else low)


# Held-out records ---------------------------------------------------------------------------------


def held_out(y: np.ndarray, classes: bool, seed: int) -> np.ndarray:
    """Return which fifth of the records is held out, about the same share of every class."""
    n = len(y)
    order = np.random.default_rng(seed).permutation(n)
    wanted = max(1, round(0.2 * n))
    if not classes:
        return np.sort(order[:wanted])
    seen: dict[int, list[int]] = {}
    for place in order:
        seen.setdefault(int(y[place]), []).append(int(place))
    ranked = [
        ((k + 0.5) / len(own), place)
        for own in seen.values()
        for k, place in enumerate(own)
        if k  # the first of a class stays
    ]
    position = {int(place): k for k, place in enumerate(order)}
    ranked.sort(key=lambda pair: (pair[0], position[pair[1]]))
    return np.sort([place for _, place in ranked[: min(wanted, len(ranked) - 1)]])


@dataclass(frozen=True)
class HeldOut:
    """A model fitted without some records and tried on them with 20 draws of the noise."""

    release: Release
    rows: np.ndarray
    theta: np.ndarray
    seed: int

    @classmethod
    def of(cls, release: Release, l2: float, seed: int) -> HeldOut:
        """Fit without a fifth of the records."""
        table, model = release.table, release.model
        rows = held_out(table.y, bool(table.classes), seed)
        rest = np.setdiff1d(np.arange(len(table.y)), rows)
        theta = replace(model, ridge=l2 * len(rest)).fit(table.X[rest], table.y[rest])
        return cls(release, rows, theta, seed)

    def error(self, sigma: float) -> float:
        """Return the error rate, or the root mean squared error, over the draws."""
        table, y = self.release.table, self.release.table.y[self.rows]
        Z = with_ones(table.X[self.rows])
        noise = np.random.default_rng(self.seed).standard_normal((20, *self.theta.shape))
        losses = []
        for draw in noise:
            margins = Z @ (self.theta + sigma * draw)
            if self.release.model.kind == "softmax":
                losses.append(np.mean(np.argmax(margins, axis=1) != y))
            elif table.classes:
                losses.append(np.mean((margins[:, 0] > 0) != y))
            else:
                guess = margins[:, 0]
                if self.release.model.kind == "poisson":
                    guess = np.minimum(np.exp(np.minimum(guess, 700)), table.y.max())
                losses.append(np.mean((guess - y) ** 2))
        mean = float(np.mean(losses))
        return mean if table.classes else math.sqrt(mean)

    def constant(self) -> float:
        """Return the error of the other records' commonest class, or of their mean."""
        y = self.release.table.y
        own, rest = y[self.rows], np.delete(y, self.rows)
        if self.release.table.classes:
            return float(np.mean(own != np.bincount(rest).argmax()))
        return float(np.sqrt(np.mean((own - rest.mean()) ** 2)))

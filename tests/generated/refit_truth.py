"""Refits of a linear model in 60 digits: records that leave, come, or count for something else.

All that may ever be among the records stands in one table, and a refit is a vector of weights over
it: a record that leaves has the weight zero, and so has one that may come in another's place until
it does. Shares no code with the package, and no formula for what a record's leaving does:

- least squares is solved with the changed weights by Woodbury's identity, whose differences 60
  digits survive;
- other losses are minimised by Newton's method, first in long doubles, then in decimals with the
  Hessian factorised once.
"""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
from truth import (
    Digits60,
    LongDoubles,
    NoMinimiserError,
    UndecidedError,
    cholesky,
    contrasts,
    derivatives,
    losses,
    lower_solve,
    solve,
)

DIVERGED = 300  # margins of a fit without a penalty from which on it has no minimiser
NEAR = 1e-3  # the shift of margins from which on a Newton step is taken whole
SINGULAR = 1e-25  # pivots of a difference from the identity that may be nothing but rounding
ROUGH = 1e-10  # the shift of margins up to which long doubles take a fit
CONTRACTS = 1e-6  # what a step must leave of the one before, or the Hessian is factorised anew


class Refits:
    """The minimisers of ``Σ ω ℓ(wᵀx + w₀, y) + (ridge/2)‖w‖²`` under different weights ω.

    ``y`` holds numbers, or for the family ``categorical`` the positions of the classes.
    """

    def __init__(
        self,
        family: str,
        X: np.ndarray,
        y: np.ndarray,
        ridge: float,
        intercept: bool,
        classes: int = 1,
    ) -> None:
        self.family, self.ridge, self.intercept = family, ridge, intercept
        self.columns, self.labels = X.shape[1], y
        self.rows = Digits60().array(X)
        # No penalised coefficients leave the span of the records: coordinates in it are enough.
        self.basis = _span(self.rows) if ridge > 0 and len(X) < X.shape[1] else None
        self.classes = classes if family == "categorical" else 1
        self._exact = _Arithmetic(self, Digits60())
        self._rough = _Arithmetic(self, LongDoubles())

    @property
    def coordinates(self) -> np.ndarray:
        """The records in as many columns as matter."""
        return self.rows if self.basis is None else self.rows @ self.basis.T

    def minimiser(self, weights: np.ndarray, near: np.ndarray | None = None) -> np.ndarray:
        """Return the parameters, one column for each contrast of the classes.

        ``near`` are others' to start from. Raises where there is no unique minimiser.
        """
        self._check_labels(weights)
        with suppress(NoMinimiserError, UndecidedError):  # in long doubles
            near = self._rough.of(weights).minimiser(near)
        return self._exact.of(weights).minimiser(near)

    def _check_labels(self, weights: np.ndarray) -> None:
        """Refuse records whose intercept has no minimiser."""
        there = self.labels[np.asarray(weights, dtype=float) > 0]
        missing = {
            "bernoulli": lambda: len(set(there.tolist())) < 2,
            "categorical": lambda: len(set(there.tolist())) < self.classes,
            "poisson": lambda: not np.any(there > 0),
        }
        if not len(there) and (self.intercept or self.ridge == 0):
            raise NoMinimiserError("no records")
        if self.intercept and missing.get(self.family, lambda: False)():
            raise NoMinimiserError("the intercept diverges")

    def distance(self, here: np.ndarray, there: np.ndarray, sigma: np.ndarray) -> Any:
        """Return how far apart noise of this scale, or covariance, puts two releases."""
        move = (there - here) @ self._exact.Q.T
        if self.basis is not None:
            back = self.basis.T @ move[: len(self.basis)]
            move = np.vstack([back, move[len(self.basis) :]])
        number, move = Digits60(), move.reshape(-1)
        if np.ndim(sigma) == 2:
            move = lower_solve(cholesky(number.array(sigma), number), move)
        else:
            move = move / number.array(sigma)
        return Digits60.sqrt((move * move).sum())

    @cached_property
    def _normal(self) -> dict[bytes, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        return {}

    def least_squares(
        self, weights: np.ndarray, changed: np.ndarray, there: np.ndarray
    ) -> np.ndarray:
        """Return the parameters of least squares with the weights of a few records changed.

        With U the rows of these, Δ how much their weights grow, r their residuals and H the
        Hessian, all before: ``θ − H⁻¹Uᵀ (I + ΔUH⁻¹Uᵀ)⁻¹ Δr``.
        """
        number, key = Digits60(), weights.tobytes()
        design = self._exact.design
        if key not in self._normal:
            theta = self.minimiser(weights)
            before = self._exact.of(weights)
            solved = solve(cholesky(before.hessian(before.slopes(theta)[1]), number), design.T)
            self._normal[key] = theta, solved, design @ solved
        theta, solved, products = self._normal[key]
        grow = number.array(there[changed]) - number.array(weights[changed])
        r = design[changed] @ theta[:, 0] - number.array(self.labels[changed])
        inner = grow[:, None] * products[np.ix_(changed, changed)]
        inner = inner + number.array(np.eye(len(changed)))
        try:
            pull = _solved(inner, grow * r)
        except NoMinimiserError:  # or hardly one: the Hessian itself has to say
            return self.minimiser(there)
        return theta - (solved[:, changed] @ pull)[:, None]


class _Arithmetic:
    """The objective in one kind of numbers."""

    def __init__(self, refits: Refits, number: Any) -> None:
        self.family, self.number = refits.family, number
        exact = isinstance(number, Digits60)
        X = refits.coordinates
        X = X if exact else number.array(X.astype(float))
        ones = number.array(np.ones((len(X), 1)))
        self.design = np.hstack([X, ones]) if refits.intercept else X
        penalty = np.full(X.shape[1], refits.ridge)
        self.penalty = number.array(np.append(penalty, 0.0) if refits.intercept else penalty)
        several = self.family == "categorical"
        self.y = refits.labels.astype(int) if several else number.array(refits.labels)
        self.Q = contrasts(refits.classes, number) if several else number.array([[1.0]])
        self.free = refits.ridge == 0 and self.family != "gaussian"

    def of(self, weights: np.ndarray) -> _Arithmetic:
        """Return the objective with these weights, of the records that have any."""
        there, one = np.asarray(weights) != 0, copy(self)
        one.design, one.y = self.design[there], self.y[there]
        one.weights = self.number.array(weights[there])
        return one

    def value(self, theta: np.ndarray) -> Any:
        """Return the objective."""
        loss = losses(self.family, self.margins(theta), self.y, self.number)
        return (self.weights * loss).sum() + (self.penalty[:, None] * theta**2).sum() / 2

    def margins(self, theta: np.ndarray) -> np.ndarray:
        """Return the margins of the records."""
        return self.design @ theta @ self.Q.T

    def slopes(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradient, and the records' curvatures."""
        r, a, _ = derivatives(self.family, self.margins(theta), self.y, self.number)
        gradient = self.design.T @ (self.weights[:, None] * r) @ self.Q
        return gradient + self.penalty[:, None] * theta, self.weights[:, None, None] * a

    def hessian(self, a: np.ndarray) -> np.ndarray:
        """Return the Hessian from the records' curvatures."""
        D, k = self.design.shape[1], self.Q.shape[1]
        inner = self.Q.T @ a @ self.Q if k > 1 else a
        H = np.repeat(self.penalty, k) * self.number.array(np.eye(D * k))
        for s in range(k):
            for t in range(s, k):
                H[s::k, t::k] += (self.design * inner[:, s, t][:, None]).T @ self.design
                H[t::k, s::k] = H[s::k, t::k].T
        return H

    def minimiser(self, near: np.ndarray | None) -> np.ndarray:
        """Return the parameters, from others to start at."""
        number, curved = self.number, self.family != "gaussian"
        start = np.zeros((self.design.shape[1], self.Q.shape[1])) if near is None else near
        exact = isinstance(number, Digits60)
        theta = start if exact and start.dtype == object else number.array(start.astype(float))
        factor, last, settled = None, np.inf, False
        for _ in range(200):
            gradient, a = self.slopes(theta)
            if factor is None:
                factor = cholesky(self.hessian(a), number)
            step = solve(factor, gradient.reshape(-1, 1)).reshape(theta.shape)
            shift, size = (abs(self.margins(one)).max(initial=0) for one in (step, theta))
            if not shift == shift or (self.free and size > DIVERGED):
                raise NoMinimiserError("the coefficients diverge")
            if settled:
                return theta - step
            settled = shift <= (number.settled if exact else ROUGH) * (1 + size)
            shift = float(shift)
            length = number.array(1.0)
            if shift > NEAR and curved:
                value, slope = self.value(theta), (gradient * step).sum()
                for _ in range(60):
                    if self.value(theta - length * step) <= value - length * slope / 1000:
                        break
                    length = length / 2
            theta = theta - length * step
            if curved and not settled and shift > CONTRACTS * last:
                factor = None
            last = shift
        # A penalty holds every fit; without one, margins that grow by 1 a step never arrive.
        reason = "Newton's method does not settle"
        raise NoMinimiserError(reason) if self.free else UndecidedError(reason)


def _span(rows: np.ndarray) -> np.ndarray:
    """Return an orthonormal basis of the span of the rows of a table, one vector in each row."""
    number, basis = Digits60(), np.empty((0, rows.shape[1]), dtype=object)
    for row in rows:
        size, rest = number.sqrt((row * row).sum()), row
        for _ in range(2):  # the second time for what rounding left
            rest = rest - basis.T @ (basis @ rest) if len(basis) else rest
        length = number.sqrt((rest * rest).sum())
        if length > number.rounding * size:
            basis = np.vstack([basis, rest / length])
    return basis


def _solved(A: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the solution of a small system, by elimination with pivots."""
    A, b, size = A.copy(), b.copy(), len(A)
    for j in range(size):
        p = j + int(np.argmax(abs(A[j:, j])))
        if not float(abs(A[p, j])) > SINGULAR:
            raise NoMinimiserError("the records that stay do not determine the fit")
        A[[j, p]], b[[j, p]] = A[[p, j]], b[[p, j]]
        for i in range(j + 1, size):
            share = A[i, j] / A[j, j]
            A[i, j:], b[i] = A[i, j:] - share * A[j, j:], b[i] - share * b[j]
    for j in range(size - 1, -1, -1):
        b[j] = (b[j] - (A[j, j + 1 :] * b[j + 1 :]).sum()) / A[j, j]
    return b

"""The truth about what a linear model's release tells, in more digits than floating point has.

It shares no code with the package: its own Newton's method finds the minimiser of the objective on
the data as they are stored, the implicit function theorem differentiates it, and dense matrices say
what the noise lets through. All of it runs in one of two arithmetics: decimals of 60 digits for
small problems however ill they are, NumPy's long doubles for larger ones of good condition.
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import methodcaller
from typing import Any

import numpy as np

DIGITS = 60
# What overflows or is undefined becomes infinite or NaN, as in floating point.
decimal.setcontext(
    decimal.Context(prec=DIGITS, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[])
)


class NoMinimiserError(Exception):
    """The objective has no minimiser, or more than one."""


class UndecidedError(Exception):
    """There is a minimiser, and 60 digits are too few to find it."""


class Digits60:
    """Decimals of 60 digits, in NumPy arrays of objects: the standard library's, written in C."""

    rounding = decimal.Decimal(10) ** (4 - DIGITS)
    settled = decimal.Decimal(10) ** -40
    _exact = np.frompyfunc(decimal.Decimal, 1, 1)
    exp = staticmethod(np.frompyfunc(methodcaller("exp"), 1, 1))
    log = staticmethod(np.frompyfunc(methodcaller("ln"), 1, 1))
    sqrt = staticmethod(np.frompyfunc(methodcaller("sqrt"), 1, 1))

    def array(self, values: Any) -> np.ndarray:
        return self._exact(np.asarray(values, dtype=float)) + decimal.Decimal(0)


class LongDoubles:
    """NumPy's long doubles: 64 bits of precision where the processor has them."""

    rounding = 64 * float(np.finfo(np.longdouble).eps)
    settled = 1e-15

    @staticmethod
    def array(values: Any) -> np.ndarray:
        return np.asarray(values, dtype=np.longdouble)

    exp = staticmethod(np.exp)
    log = staticmethod(np.log)
    sqrt = staticmethod(np.sqrt)


@dataclass(frozen=True, eq=False)
class Objective:
    """What was minimised: ``Σ ω ℓ(wᵀx + w₀, y) + (ridge/2)‖w‖²``, on the data as they are stored.

    ``y`` holds numbers, or for the family ``categorical`` the positions of the classes.
    """

    family: str
    X: np.ndarray
    y: np.ndarray
    ridge: float
    intercept: bool
    weights: np.ndarray | None = None
    classes: int = 1


def contrasts(levels: int, number: Any) -> np.ndarray:
    """Return an orthonormal basis of the vectors of that length that sum to zero."""
    basis = number.array(np.zeros((levels, levels - 1)))
    for k in range(levels - 1):
        root = number.sqrt(number.array((k + 1.0) * (k + 2.0)))
        basis[: k + 1, k] = 1 / root
        basis[k + 1, k] = -(k + 1) / root
    return basis


def losses(family: str, M: np.ndarray, y: np.ndarray, number: Any) -> np.ndarray:
    """Return the loss of every record, from its margins (n, K)."""
    if family == "categorical":
        top = M.max(axis=1)[:, None]
        Y = number.array(np.eye(M.shape[1])[y])
        return number.log(number.exp(M - top).sum(axis=1)) - (Y * (M - top)).sum(axis=1)
    m = M[:, 0]
    if family == "gaussian":
        return (m - y) ** 2 / 2
    if family == "bernoulli":
        return number.log(1 + number.exp(-abs(m))) + np.where(m > 0, m, m * 0) - y * m
    if family == "poisson":
        return number.exp(m) - y * m
    if family == "pseudo-huber":
        return number.sqrt(1 + (m - y) ** 2) - 1
    raise ValueError(family)


def derivatives(family: str, M: np.ndarray, y: np.ndarray, number: Any) -> tuple[np.ndarray, ...]:
    """Return slope (n, K), curvature (n, K, K) and label slope (n, K, L) of the losses."""
    one = number.array(1.0)
    if family == "categorical":
        K = M.shape[1]
        powers = number.exp(M - M.max(axis=1)[:, None])
        total = powers.sum(axis=1)
        P = powers / total[:, None]
        Y = number.array(np.eye(K)[y])
        others = number.array(1 - np.eye(K))
        rest = P @ others
        slope = P * (1 - Y) - Y * rest
        curvature = -P[:, :, None] * P[:, None, :]
        for k in range(K):
            curvature[:, k, k] = P[:, k] * rest[:, k]
        label = np.repeat(-contrasts(K, number)[None, :, :], len(M), axis=0)
        return slope, curvature, label
    m = M[:, 0]
    if family == "gaussian":
        slope, curvature, label = m - y, m * 0 + 1, m * 0 - 1
    elif family == "bernoulli":
        small = number.exp(-abs(m))
        up = np.where(m >= 0, one / (1 + small), small / (1 + small))
        down = np.where(m >= 0, small / (1 + small), one / (1 + small))
        slope, curvature, label = (1 - y) * up - y * down, small / (1 + small) ** 2, m * 0 - 1
    elif family == "poisson":
        mean = number.exp(m)
        slope, curvature, label = mean - y, mean, m * 0 - 1
    elif family == "pseudo-huber":
        root = number.sqrt(1 + (m - y) ** 2)
        slope, curvature, label = (m - y) / root, root**-3, -(root**-3)
    else:
        raise ValueError(family)
    return slope[:, None], curvature[:, None, None], label[:, None, None]


def cholesky(H: np.ndarray, number: Any) -> np.ndarray:
    """Return the lower factor of a definite matrix."""
    size = len(H)
    L = H * 0
    for j in range(size):
        pivot = H[j, j] - (L[j, :j] * L[j, :j]).sum() if j else H[j, j]
        if not pivot > number.rounding * H[j, j]:
            raise NoMinimiserError("the Hessian is singular")
        L[j, j] = number.sqrt(pivot)
        if j + 1 < size:
            below = H[j + 1 :, j] - L[j + 1 :, :j] @ L[j, :j] if j else H[j + 1 :, j]
            L[j + 1 :, j] = below / L[j, j]
    return L


def lower_solve(L: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return ``L⁻¹ right`` for a lower triangular matrix and the columns of another."""
    out = right * 1
    for j in range(len(L)):
        if j:
            out[j] = out[j] - L[j, :j] @ out[:j]
        out[j] = out[j] / L[j, j]
    return out


def solve(L: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return ``(LLᵀ)⁻¹ right``."""
    half = lower_solve(L, right)
    return lower_solve(L.T[::-1, ::-1], half[::-1])[::-1]


class Truth:
    """The minimiser of an objective, and the whitened Jacobian of its release.

    The columns are centred (with an intercept) and divided by powers of two first: a change of
    coordinates that is undone in the end.
    """

    def __init__(self, objective: Objective, number: Any) -> None:
        self.objective, self.number = objective, number
        o, array = objective, number.array
        self.n, self.d = o.X.shape
        self.labels = o.classes - 1 if o.family == "categorical" else 1
        centre = np.median(o.X, axis=0) if o.intercept else np.zeros(self.d)
        spread = np.max(np.abs(o.X - centre), axis=0)
        self.centre = array(centre)
        self.scale = array(2.0 ** np.round(np.log2(np.where(spread > 0, spread, 1.0))))
        X = (array(o.X) - self.centre) / self.scale
        self.design = np.hstack([X, array(np.ones((self.n, 1)))]) if o.intercept else X
        self.weights = array(np.ones(self.n) if o.weights is None else o.weights)
        self.y = o.y if o.family == "categorical" else array(o.y)
        self.Q = contrasts(o.classes, number) if o.family == "categorical" else array([[1.0]])
        penalty = array(o.ridge) / self.scale**2
        self.penalty = np.append(penalty, array(0.0)) if o.intercept else penalty
        self._minimise()

    def _at(self, theta: np.ndarray) -> tuple[Any, ...]:
        told = (self.objective.family, self.design @ theta @ self.Q.T, self.y, self.number)
        loss, (r, a, b) = losses(*told), derivatives(*told)
        w = self.weights
        value = (w * loss).sum() + (self.penalty[:, None] * theta**2).sum() / 2
        return value, w[:, None] * r, w[:, None, None] * a, w[:, None, None] * b

    def _hessian(self, a: np.ndarray) -> np.ndarray:
        D, k = self.design.shape[1], self.Q.shape[1]
        inner = np.stack([self.Q.T @ one @ self.Q for one in a])  # (n, k, k)
        H = self.number.array(np.zeros((D, k, D, k)))
        for s in range(k):
            for t in range(k):
                H[:, s, :, t] = (self.design * inner[:, s, t][:, None]).T @ self.design
        H = H.reshape(D * k, D * k)
        return H + np.diag(np.repeat(self.penalty, k))

    def _minimise(self) -> None:
        theta = self.number.array(np.zeros((self.design.shape[1], self.Q.shape[1])))
        value, r, a, b = self._at(theta)
        last = False
        for _ in range(400):
            gradient = self.design.T @ r @ self.Q + self.penalty[:, None] * theta
            H = self._hessian(a)
            L = cholesky(H, self.number)
            step = solve(L, gradient.reshape(-1, 1)).reshape(theta.shape)
            moved = abs(self.design @ step).max()
            size = abs(self.design @ theta).max()
            if last:
                break
            last = moved <= self.number.settled * (1 + size)
            slope = (gradient * step).sum()
            tiny = self.number.rounding * (1 + abs(value))
            length = self.number.array(1.0)
            for _ in range(80):
                trial = self._at(theta - length * step)
                if last or trial[0] <= value - length * slope / 1000 + tiny:
                    break
                length = length / 2
            theta = theta - length * step
            value, r, a, b = trial
            if self.objective.ridge == 0 and size > 300 and self.objective.family != "gaussian":
                raise NoMinimiserError("the coefficients diverge")
        else:
            raise NoMinimiserError("Newton's method does not settle")
        self.theta, self.r, self.a, self.b, self.hessian, self._factor = theta, r, a, b, H, L

    @cached_property
    def condition(self) -> float:
        """The condition number of the centred Hessian, scaled to a unit diagonal."""
        roots = self.number.sqrt(np.diag(self.hessian))
        unit = (self.hessian / roots[:, None] / roots[None, :]).astype(float)
        values = np.linalg.eigvalsh(unit)
        return float(values[-1] / values[0]) if values[0] > 0 else float("inf")

    @cached_property
    def parameters(self) -> np.ndarray:
        """What is released: ``(D, K)``, an intercept last, in the caller's units."""
        theta = self.theta @ self.Q.T
        w = theta[: self.d] / self.scale[:, None]
        if not self.objective.intercept:
            return w
        return np.vstack([w, theta[self.d] - self.centre @ w])

    @cached_property
    def jacobian(self) -> np.ndarray:
        """The Jacobian of the release, ``(P, n, d + L)``, before it is whitened."""
        o, number = self.objective, self.number
        D, K, k = self.design.shape[1], self.Q.shape[0], self.Q.shape[1]
        W = (self.theta @ self.Q.T)[: self.d] / self.scale[:, None]
        right = number.array(np.zeros((D, k, self.n, self.d + self.labels)))
        for i in range(self.n):
            along = np.hstack([self.a[i] @ W.T, self.b[i]])  # (K, d + L)
            right[:, :, i, :] = self.design[i][:, None, None] * (self.Q.T @ along)[None]
            for j in range(self.d):
                right[j, :, i, j] = right[j, :, i, j] + (self.Q.T @ self.r[i]) / self.scale[j]
        J = -solve(self._factor, right.reshape(D * k, -1)).reshape(D, k, -1)
        out = number.array(np.zeros((D, K, J.shape[2])))
        for p in range(D):
            out[p] = self.Q @ J[p]
        for j in range(self.d):
            out[j] = out[j] / self.scale[j]
        if o.intercept:
            for j in range(self.d):
                out[self.d] = out[self.d] - self.centre[j] * out[j]
        return out.reshape(D * K, self.n, self.d + self.labels)

    def whitened(self, noise: np.ndarray) -> Whitened:
        """Return the Jacobian whitened by noise: a scale, one for each number, or a covariance."""
        J = self.jacobian
        P = len(J)
        flat = J.reshape(P, -1)
        sigma = self.number.array(noise)
        if np.ndim(noise) == 2:
            flat = lower_solve(cholesky(sigma, self.number), flat)
        else:
            flat = flat / (sigma if np.ndim(noise) == 0 else sigma[:, None])
        return Whitened(flat.reshape(J.shape), self.d, self.number)


@dataclass(frozen=True, eq=False)
class Whitened:
    """A whitened Jacobian ``(P, n, d + L)`` and what follows from blocks of it."""

    J: np.ndarray
    d: int
    number: Any

    def block(
        self,
        rows: Sequence[int] | None = None,
        columns: Sequence[int] | None = None,
        label: bool = False,
        simplex: Sequence[int] = (),
    ) -> np.ndarray:
        """Cut out ``(P, rows, unknowns)``; the columns of ``simplex`` move along theirs only."""
        J = self.J if rows is None else self.J[:, list(rows), :]
        which = list(range(self.d)) if columns is None else list(columns)
        parts = [J[:, :, [j for j in which if j not in simplex]]]
        if len(simplex):
            basis = contrasts(len(simplex), self.number)
            parts.append(J[:, :, list(simplex)] @ basis)
        if label:
            parts.append(J[:, :, self.d :])
        return np.concatenate(parts, axis=2)

    @staticmethod
    def norm(block: np.ndarray) -> float:
        """η: the largest singular value of a matrix."""
        if block.size == 0:
            return 0.0
        plain = block.astype(float)
        top = np.max(np.abs(plain))
        return float(np.linalg.norm(plain / top, 2) * top) if top > 0 else 0.0

    def measure(self, block: np.ndarray, measure: str) -> float:
        """FIL or dFIL of a block, ``(P, rows, unknowns)``."""
        flat = block.reshape(len(block), -1)
        if measure == "fil":
            return self.norm(flat)
        return float(self.number.sqrt((flat * flat).sum() / flat.shape[1]))

    def inverse_diagonal(self, block: np.ndarray) -> tuple[np.ndarray, float]:
        """Return the diagonal of the inverse information, and the unit information's condition.

        Infinite where the information is singular.
        """
        flat = block.reshape(len(block), -1)
        information = flat.T @ flat
        sizes = self.number.sqrt(np.diag(information))
        if not np.all(sizes > 0):
            return np.full(len(information), np.inf), np.inf
        unit = information / sizes[:, None] / sizes[None, :]
        values = np.linalg.svd((flat / sizes).astype(float), compute_uv=False)
        rank = len(flat) >= flat.shape[1]
        condition = float((values[0] / values[-1]) ** 2) if rank and values[-1] > 0 else np.inf
        try:
            L = cholesky(unit, self.number)
        except NoMinimiserError:
            return np.full(len(information), np.inf), np.inf
        root = lower_solve(L, self.number.array(np.eye(len(unit))))
        diagonal = (root * root).sum(axis=0) / sizes**2
        return diagonal.astype(float), condition

"""The parameters a model would have had, had one of its records been another.

Replacing ``(x, y)`` by ``(z, t)`` changes the Hessian at the fitted parameters by two ranks, with
``ω`` the row's weight and ``a``, ``a'`` its curvature before and after::

    H' = H + U S Uᵀ,    U = [x̃ z̃],    S = ω diag(−a, a')

Steps ``−H'⁻¹∇F'`` are repeated until the gradient is rounding. For least squares the first step is
exact. Elsewhere each one shrinks the gradient by a large factor, because a single record bends the
objective little; where it does not (a record that decides the fit), Newton's method starts from the
fitted parameters and takes over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from seepage.core.noise import Noise
from seepage.errors import InputError
from seepage.glm.fitting.newton import minimise
from seepage.glm.fitting.objective import FittedGLM, Objective, cholesky_factor
from seepage.glm.jacobian.operator import GLMJacobian
from seepage.glm.leakage import jacobian_of_some_rows
from seepage.glm.losses import Categorical
from seepage.support.chunks import row_slices
from seepage.tables.source import as_numpy

_MARGINS = 1 << 22  # numbers held at a time for the margins of all replacements
_MOST_STEPS = 40
_CONVERGED = 1e-11  # the gradient, relative to what it is a difference of
_PERFECT_FIT = 1e-4  # the share of the labels below which a residual is no scale to measure by
_SINGULAR = 1e-11


class RowRefits:
    """Refits of one model with a record replaced, all other records kept, in NumPy's float64."""

    rounding = 1e-14

    def __init__(self, fit: FittedGLM, X: np.ndarray) -> None:
        self.fit, self.X, self.target = fit, X, fit.target
        self.objective = Objective.of(fit, X)
        self.theta = np.asarray(fit.parameters)
        margins = self.objective.margins(self.theta)
        self._margins = margins
        self._factor = cholesky_factor(self.objective.definite(self.objective.hessian(margins)))
        slopes = self.objective.slopes(margins)
        self._scale = self.objective.gradient_scale(self.theta, slopes)
        self._scale += _PERFECT_FIT * self.objective.label_scale()

    @classmethod
    def of(cls, fit: FittedGLM, X: Any) -> RowRefits:
        """Return the refits of a model whose arrays may be those of another library."""
        local = replace(
            fit,
            coef=as_numpy(fit.coef),
            intercept=None if fit.intercept is None else as_numpy(fit.intercept),
            sample_weight=None if fit.sample_weight is None else as_numpy(fit.sample_weight),
            target=as_numpy(fit.target),
        )
        return cls(local, as_numpy(X).astype(np.float64, copy=False))

    def moves(self, row: int, features: Any, labels: Any = None) -> np.ndarray:
        """Return how far the parameters of each replacement lie from the actual ones, (K, P)."""
        found = self.parameters(row, features, labels)
        return np.asarray(found.reshape(len(found), -1) - self.theta.reshape(-1))

    def parameters(self, row: int, features: Any, labels: Any = None) -> np.ndarray:
        """Return the refits for some replacements of a row, (K, P) or (K, P, classes).

        ``features`` are (K, d), and ``labels`` (K,), or (K, classes) for softmax; the label it has
        where not given. The intercept comes last; NaN where no minimiser exists.
        """
        Z = np.atleast_2d(np.asarray(features, dtype=float))
        T = self._labels(row, labels, len(Z))
        out = np.full((len(Z), *self.theta.shape), np.nan)
        if not isinstance(self.fit.family, Categorical) and self._factor is not None:
            for piece in row_slices(len(Z), len(self.X), chunk=_MARGINS):
                out[piece] = self._repeated_steps(row, Z[piece], T[piece])
        for k in np.flatnonzero(~np.isfinite(out).all(axis=tuple(range(1, out.ndim)))):
            out[k] = self._newton(row, Z[k], T[k])
        return out

    def jacobian(
        self, row: int, features: np.ndarray, label: Any, theta: np.ndarray, noise: Noise
    ) -> GLMJacobian:
        """Return the Jacobian about the replaced row, at a refit that :meth:`parameters` gave."""
        fit, X = self._replaced(row, features, label)
        d = X.shape[1]
        intercept = None if fit.intercept is None else theta[d, ...]
        refitted = replace(fit, coef=theta[:d, ...], intercept=intercept)
        return jacobian_of_some_rows(refitted, X, slice(row, row + 1), noise)

    def _labels(self, row: int, labels: Any, count: int) -> np.ndarray:
        own = self.fit.target[row, ...]
        if labels is None:
            return np.broadcast_to(own, (count, *np.shape(own)))
        return np.asarray(labels, dtype=float).reshape((count, *np.shape(own)))

    def _replaced(self, row: int, features: np.ndarray, label: Any) -> tuple[FittedGLM, np.ndarray]:
        X, target = self.X.copy(), np.array(self.fit.target)
        X[row] = features
        target[row] = label
        return replace(self.fit, target=target), X

    def _newton(self, row: int, features: np.ndarray, label: Any) -> np.ndarray:
        fit, X = self._replaced(row, features, label)
        try:
            return np.asarray(minimise(Objective.of(fit, X), start=self.theta).parameters)
        except InputError:  # no minimiser: separable classes without a penalty, and the like
            return np.full(self.theta.shape, np.nan)

    def _repeated_steps(self, row: int, Z: np.ndarray, T: np.ndarray) -> np.ndarray:
        """Step with the Hessian at hand until the gradient no longer halves; NaN if that fails."""
        with np.errstate(over="ignore", invalid="ignore"):
            extended = self._extended(Z)
            precondition = self._preconditioner(row, extended, T)
            theta = np.repeat(self.theta[None, :], len(Z), axis=0)
            gradient, size = self._gradient(row, extended, T, theta)
            for _ in range(_MOST_STEPS):
                nearer = theta - precondition(gradient)
                next_gradient, next_size = self._gradient(row, extended, T, nearer)
                better = next_size < size
                theta[better] = nearer[better]
                going = next_size < 0.5 * size
                gradient[better], size[better] = next_gradient[better], next_size[better]
                if not np.any(going & (size > 0)):
                    break
        theta[~(size <= _CONVERGED)] = np.nan
        return theta

    def _extended(self, Z: np.ndarray) -> np.ndarray:
        return np.hstack([Z, np.ones((len(Z), 1))]) if self.objective.intercept else Z

    def _preconditioner(self, row: int, Z: np.ndarray, T: np.ndarray) -> Any:
        """Return the function that applies ``H'⁻¹`` to one gradient per replacement, (K, P)."""
        family, solve = self.fit.family, self._factor.solve  # type: ignore[union-attr]
        weight = self._weight(row)
        x = self._extended(self.X[row : row + 1])[0]
        own = family.curvature(self._margins[row : row + 1], self.fit.target[row : row + 1])
        a, b = -weight * float(own[0]), weight * family.curvature(Z @ self.theta, T)
        on_x, on_z = solve(x), solve(Z.T).T
        gxx, gxz, gzz = float(x @ on_x), Z @ on_x, np.sum(Z * on_z, axis=1)
        # (I + S G)⁻¹ S, two by two, for each replacement.
        determinant = (1 + a * gxx) * (1 + b * gzz) - a * b * gxz**2
        usable = np.where(determinant > _SINGULAR, determinant, np.nan)
        s11, s12 = a * (1 + b * gzz) / usable, -a * b * gxz / usable
        s22 = b * (1 + a * gxx) / usable

        def apply(gradient: np.ndarray) -> np.ndarray:
            plain = solve(gradient.T).T
            p, q = plain @ x, np.sum(plain * Z, axis=1)
            along_x, along_z = s11 * p + s12 * q, s12 * p + s22 * q
            return np.asarray(plain - along_x[:, None] * on_x - along_z[:, None] * on_z)

        return apply

    def _gradient(
        self, row: int, Z: np.ndarray, T: np.ndarray, theta: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return ``∇F'`` of every replacement, (K, P), and its norm over what it is made of."""
        family, d = self.fit.family, self.X.shape[1]
        margins = self.X @ theta[:, :d].T
        if self.objective.intercept:
            margins += theta[:, d]
        slopes = np.asarray(family.slope(margins, self.fit.target[:, None]))
        if self.fit.sample_weight is not None:
            slopes = slopes * self.fit.sample_weight[:, None]
        slopes[row] = 0.0
        own = self._weight(row) * family.slope(np.sum(Z * theta, axis=1), T)
        gradient = own[:, None] * Z
        gradient[:, :d] += slopes.T @ self.X + self.fit.ridge * theta[:, :d]
        if self.objective.intercept:
            gradient[:, d] += slopes.sum(axis=0)
        scale = self._scale + np.abs(own) * np.linalg.norm(Z, axis=1)
        return gradient, np.linalg.norm(gradient, axis=1) / np.maximum(scale, 1e-300)

    def _weight(self, row: int) -> float:
        return 1.0 if self.fit.sample_weight is None else float(self.fit.sample_weight[row])

"""The leakage of a release whose noise covariance is computed from the private records.

For ``N(θ(D), Σ(D))``, the Fisher information about a record's unknowns is (Kay 1993, section 3.9)::

    I_ab = ∂_aθᵀ Σ⁻¹ ∂_bθ + ½ tr(Σ⁻¹ ∂_aΣ Σ⁻¹ ∂_bΣ)

Here ``Σ = σ² S`` with the shape ``S = (1 − ρ) P G/tr G + ρ I`` of :func:`noise_shape` at the
model's own records, and ``G = H⁻¹``. A record changes ``H = Σ_j ω_j a_j x̃_j x̃_jᵀ + penalty``
directly. The record also changes the curvature of all records through the minimiser (``c =
∂³ℓ/∂m³``)::

    ∂H = Σ_j ω_j c_j (x̃_jᵀ∂θ) x̃_j x̃_jᵀ + ω_i (c_i ∂m_i + ∂a_i) x̃_i x̃_iᵀ + ω_i a_i ∂(x̃_i x̃_iᵀ)

Here ``∂m_i`` is the derivative of the margin with respect to the record's own features, and ``∂a_i
= ∂³ℓ/∂m²∂y`` for its label. Scaling Σ by a common factor does not change the second term, so more
noise does not reduce it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from seepage.core.noise import Gaussian
from seepage.core.result import Result
from seepage.errors import InputError
from seepage.glm.adapters.registry import describe
from seepage.glm.fitting.objective import FittedGLM
from seepage.glm.losses import Categorical, Elementwise
from seepage.glm.shaped_noise import noise_shape
from seepage.support.number_check import check_positive
from seepage.tables.source import as_numpy, read_table


def private_shape_leakage(
    model: Any,
    X: Any,
    y: Any,
    *,
    sigma: float,
    rows: Sequence[int] | None = None,
    plain: float = 0.05,
) -> Result:
    """Return the leakage η of records when the noise's shape is also computed from them.

    The covariance of the released numbers is ``σ² S``, where ``S`` is :func:`noise_shape` for the
    model's own records. If possible, use a shape computed from public records instead.

    Parameters
    ----------
    model
        A fitted linear, logistic or Poisson model, or a model with one output from a registered
        family.
    X, y
        The records the model was fitted on.
    sigma
        The scale σ of the noise, chosen without looking at the records.
    rows
        The positions of the records to measure; by default all.
    plain
        ρ, the share of isotropic noise, as for :func:`noise_shape`.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> X = np.random.default_rng(0).normal(size=(40, 2))
    >>> model = sp.glm.LinearRegression(l2=0.01).fit(X, X[:, 0] + np.sin(np.arange(40)))
    >>> eta = sp.glm.private_shape_leakage(model, X, X[:, 0] + np.sin(np.arange(40)), sigma=1e9)
    >>> float(np.round(np.max(eta), 2))  # the noise is endless, and its shape still tells
    0.07
    """
    check_positive(sigma, "sigma")
    table = read_table(X)
    fit = describe(model, table, as_numpy(y), None)
    family = fit.family
    if isinstance(family, Categorical):
        raise InputError(
            "Noise shaped by the private records is supported for models with one output only; "
            "pass public records to noise_shape instead."
        )
    third, mixed = family.curvature_slope, family.curvature_label_slope
    if third is None or mixed is None:
        raise InputError(
            f"The family {family.name!r} lacks third derivatives that this calculation requires; "
            "define its curvature_slope and curvature_label_slope."
        )
    values = np.asarray(as_numpy(table.values), dtype=float)
    shape = noise_shape(model, X, y, plain=plain)
    asked = np.arange(len(values)) if rows is None else np.asarray(rows, dtype=int)
    derivatives = (family.slope, family.curvature, family.label_slope, third, mixed)
    counted = _Counted(fit, values, np.asarray(shape.sigma), plain, derivatives)
    eta = np.asarray([np.sqrt(counted.largest(int(row), sigma)) for row in asked])
    return Result(
        eta, "rows", "fil", "exact", "all columns and the label", asked, noise=(Gaussian(sigma),)
    )


class _Counted:
    """The quantities that determine the information about a record: the model and the shape."""

    def __init__(
        self,
        fit: FittedGLM,
        X: np.ndarray,
        shape: np.ndarray,
        plain: float,
        derivatives: Sequence[Elementwise],
    ) -> None:
        ones = np.ones((len(X), 0 if fit.intercept is None else 1))
        self.design, self.coef = np.hstack([X, ones]), np.ravel(np.asarray(fit.coef))
        self.plain, margins, y = plain, np.asarray(fit.margins(X)), np.asarray(fit.target)
        weight = np.ones(len(X)) if fit.sample_weight is None else np.asarray(fit.sample_weight)
        self.slope, self.bend, self.label, self.third, self.mixed = (
            weight * np.asarray(derivative(margins, y)) for derivative in derivatives
        )
        penalty = np.zeros(self.design.shape[1])
        penalty[: X.shape[1]] = fit.ridge
        H = (self.design * self.bend[:, None]).T @ self.design + np.diag(penalty)
        self.inverse, self.shape_inverse = np.linalg.inv(H), np.linalg.inv(shape)

    def largest(self, row: int, sigma: float) -> float:
        """Return the largest eigenvalue of the information about a record and its label."""
        x, d, P = self.design[row], len(self.coef), self.design.shape[1]
        # How far the gradient of the objective moves with each feature, and last with the label
        gradient = np.zeros((P, d + 1))
        gradient[:, :d] = self.bend[row] * np.outer(x, self.coef)
        gradient[:d, :d] += self.slope[row] * np.eye(d)
        gradient[:, d] = self.label[row] * x
        moves = -self.inverse @ gradient
        shifts = self.third[:, None] * (self.design @ moves)
        direct = np.append(self.third[row] * self.coef, self.mixed[row])
        seen = np.empty((d + 1, P, P))
        for k in range(d + 1):
            change = (self.design * shifts[:, k, None]).T @ self.design
            change += direct[k] * np.outer(x, x)
            if k < d:
                change[k] += self.bend[row] * x
                change[:, k] += self.bend[row] * x
            seen[k] = self.shape_inverse @ self._shape_change(change)
        of_shape = 0.5 * np.einsum("apq,bqp->ab", seen, seen)
        information = moves.T @ self.shape_inverse @ moves / sigma**2 + of_shape
        return float(np.linalg.eigvalsh(information)[-1])

    def _shape_change(self, change: np.ndarray) -> np.ndarray:
        """Return ``∂S`` for a given change in curvature."""
        G = self.inverse
        moved, size = -G @ change @ G, np.trace(G)
        moved = moved / size - G * (np.trace(moved) / size**2)
        return np.asarray((1 - self.plain) * len(G) * moved)

"""The models a training set would have given, had one record another level of an attribute.

Let row i be ``x`` with the level it has and ``x' = x + δ`` with another; let ``r`` be the slope of
its loss, ``a`` the curvature and ``ω`` its weight, ``r'`` and ``a'`` those at ``x'``. At the
minimiser ``w`` of the known table, whose Hessian is ``H``, the changed objective has::

    gradient  g = U c,            U = [x δ],   c = ω (r' − r, r')
    Hessian   H' = H + U S Uᵀ,                 S = ω [[a' − a, a'], [a', a']]

so that one Newton step, with ``G = UᵀH⁻¹U``, is::

    Δ = −H'⁻¹ g = −H⁻¹U (I + S G)⁻¹ c

a combination of ``H⁻¹x`` and one of a few vectors ``H⁻¹δ``, with coefficients from 2×2 systems. For
linear regression the objective is quadratic and ``w + Δ`` is the refit itself (a rank-two update).
For other families see :mod:`seepage.attacks.attribute.newton_models`.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np

from seepage.attacks.attribute.nominal import NominalAttribute
from seepage.errors import InputError
from seepage.glm.fitting.factorisations import cholesky_factor
from seepage.glm.fitting.objective import Objective
from seepage.glm.losses.families import Family

# A smaller determinant of I + SG is rounding: without the row's level some direction is empty.
_SINGULAR = 1e-11


class RankTwo(NamedTuple):
    """What a chunk of b rows with K candidate levels each changes, to first and second order.

    Candidates run along the second axis; the level a row has comes out as a change of zero.
    """

    x: np.ndarray  # (b, P): the rows, with a last 1 for an intercept
    z: np.ndarray  # (b, P): H⁻¹x
    delta: np.ndarray  # (b, K, t): the change of the attribute's columns
    zeta: np.ndarray  # (b, K, P): H⁻¹δ
    weight: np.ndarray  # (b, 1): ω
    slope: np.ndarray  # (b, K): r'
    curvature: np.ndarray  # (b, 1): a
    new_curvature: np.ndarray  # (b, K): a'
    margin: np.ndarray  # (b, K): that of x + δ
    system: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # (b, K) each: I + S G
    determinant: np.ndarray  # (b, K): its determinant
    step: np.ndarray  # (b, K, P): Δ

    def along(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return ``H⁻¹U (I + S G)⁻¹ (first, second)``, (b, K, P)."""
        s11, s12, s21, s22 = self.system
        alpha = (s22 * first - s12 * second) / self.determinant
        beta = (s11 * second - s21 * first) / self.determinant
        return np.asarray(alpha[:, :, None] * self.z[:, None, :] + beta[:, :, None] * self.zeta)


class CandidateModels:
    """The refits for every level of every row under attack, as differences from the known fit.

    Parameters
    ----------
    objective
        What the model minimises on the known table, of a family with one margin.
    theta
        Its minimiser, (P,), the intercept last.
    attribute
        The attribute that is replaced.
    levels
        The level each row of the known table has, (n,).
    rows
        The rows under attack, (m,).
    """

    def __init__(
        self,
        objective: Objective,
        theta: np.ndarray,
        attribute: NominalAttribute,
        levels: np.ndarray,
        rows: np.ndarray,
    ) -> None:
        self.objective, self.theta, self.attribute = objective, theta, attribute
        self.family = cast(Family, objective.family)
        self.levels, self.rows = levels, rows
        margins = objective.margins(theta)
        self.inverse = _inverse(objective.hessian(margins))
        self.margins = margins

    @property
    def size(self) -> int:
        """How many numbers one candidate has, P."""
        return len(self.theta)

    def differences(self, which: slice) -> np.ndarray:
        """Return the refits less the known fit, (b, K, P), for a slice of the rows under attack."""
        return self.rank_two(self.rows[which], np.arange(len(self.attribute))[None, :]).step

    def rank_two(self, rows: np.ndarray, candidates: np.ndarray) -> RankTwo:
        """Return the changes that candidate levels, (b, K) or (1, K), of rows of the table make."""
        codes, columns = self.attribute.codes, list(self.attribute.columns)
        own = self.levels[rows]
        x = design(self.objective, rows)
        z = x @ self.inverse
        delta = codes[candidates] - codes[own][:, None, :]
        steps = codes @ self.inverse[columns, :]
        zeta = steps[candidates] - steps[own][:, None, :]
        y, margin = self.objective.target[rows, None], self.margins[rows, None]
        new_margin = margin + delta @ self.theta[columns]
        weight = np.ones_like(y)
        if self.objective.sample_weight is not None:
            weight = self.objective.sample_weight[rows, None]
        slope, new_slope = self.family.slope(margin, y), self.family.slope(new_margin, y)
        a, new_a = self.family.curvature(margin, y), self.family.curvature(new_margin, y)

        gxx = np.sum(x * z, axis=1)[:, None]
        gxd = np.einsum("bt,bkt->bk", z[:, columns], delta)
        gdd = np.einsum("bkt,bkt->bk", zeta[:, :, columns], delta)
        bend = new_a - a
        system = (
            1 + weight * (bend * gxx + new_a * gxd),
            weight * (bend * gxd + new_a * gdd),
            weight * new_a * (gxx + gxd),
            1 + weight * new_a * (gxd + gdd),
        )
        # A sum without negative terms; what is left of H without the row shows in the first.
        determinant = np.maximum(1 - weight * a * gxx, 0)
        determinant = determinant * (1 + weight * new_a * (gxx + 2 * gxd + gdd))
        determinant = determinant + weight**2 * a * new_a * (gxx + gxd) ** 2
        self._check_unique(determinant, rows, candidates)
        row = (x, z, delta, zeta, weight, new_slope, a, new_a, new_margin)
        found = RankTwo(*row, system, determinant, np.empty(0))
        step = -found.along(weight * (new_slope - slope), weight * new_slope)
        return found._replace(step=step)

    def _check_unique(
        self, determinant: np.ndarray, rows: np.ndarray, candidates: np.ndarray
    ) -> None:
        """Raise where a changed Hessian is singular."""
        singular = ~(determinant > _SINGULAR)
        if not np.any(singular):
            return
        b, k = np.argwhere(singular)[0]
        level = self.attribute.levels[np.broadcast_to(candidates, singular.shape)[b, k]]
        raise InputError(
            f"With {level!r} for {self.attribute.name!r} in row {rows[b]} the columns are linearly "
            "dependent, so the model has no unique refit there; set l2 above 0, or leave the row "
            "out of those attacked (rows=)."
        )


def design(objective: Objective, rows: np.ndarray | slice) -> np.ndarray:
    """Return rows of the known table, with a last 1 for an intercept."""
    x = objective.X[rows, :]
    return np.hstack([x, np.ones((len(x), 1))]) if objective.intercept else np.asarray(x)


def _inverse(hessian: np.ndarray) -> np.ndarray:
    """Return ``H⁻¹``, through the Cholesky factor of ``H`` with its columns scaled alike."""
    sizes = np.sqrt(np.diagonal(hessian))
    scaling = np.outer(sizes, sizes)
    factor = cholesky_factor(hessian / scaling) if np.all(sizes > 0) else None
    if factor is None:
        raise InputError(
            "The columns of X are linearly dependent to rounding, so refits are not unique; set l2 "
            "above 0, or drop a column."
        )
    inverse = factor.solve(np.eye(len(sizes))) / scaling
    return np.asarray(inverse + inverse.T) / 2

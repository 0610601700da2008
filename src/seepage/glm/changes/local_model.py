"""The second-order model of a fit at its minimiser: slopes, curvatures, solver and noise units.

All finite changes are computed from this model, which covers all records or one chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from seepage.core.finite_changes import Alternatives
from seepage.core.noise import Gaussian, Noise
from seepage.errors import InputError
from seepage.glm.changes.outputs import Outputs
from seepage.glm.changes.solver import SingularValues, Solver, best_solver
from seepage.glm.fitting.objective import FittedGLM, hessian
from seepage.glm.jacobian.optimum import Optimum
from seepage.glm.losses import Categorical
from seepage.support.chunks import row_slices
from seepage.support.double_double import EPS, Double
from seepage.tables.source import as_numpy


@dataclass(frozen=True)
class LargestShifts:
    """The largest margin shifts of the records for a unit change; ``+`` combines two chunks."""

    largest: float = 0.0  # q = x̃ᵀH⁻¹x̃ over the records
    quartic: Any = 0.0  # Σ ω q x̃ a x̃ᵀ, (P, P)

    def __add__(self, other: LargestShifts) -> LargestShifts:
        return LargestShifts(max(self.largest, other.largest), self.quartic + other.quartic)


class LocalModel:
    """The second-order model of a fit, for all or some records.

    Parameters
    ----------
    optimum
        The minimiser on all records, with its ``H⁻¹``.
    X
        The records, (n, d), in the caller's columns.
    noise
        Gaussian noise on the parameters, or several noises if the parameters are released several
        times.
    fit
        The model with the labels and weights of these records; by default, the model of all
        records.
    shifts
        The largest margin shifts over all records, if the given records are only a part.
    """

    def __init__(
        self,
        optimum: Optimum,
        X: Any,
        noise: tuple[Noise, ...],
        fit: FittedGLM | None = None,
        shifts: LargestShifts | None = None,
    ) -> None:
        near = optimum.near if fit is None else fit
        X = X if optimum.centre is None else X - optimum.centre[None, :]
        self.fit, self.X = in_numpy(near, X)
        self.shifts = shifts
        self.centre = None if optimum.centre is None else as_numpy(optimum.centre).astype(float)
        self.target, self.theta = self.fit.target, np.asarray(self.fit.parameters)
        self.outputs = Outputs(self.fit.family)
        # ``v ↦ Φ^½v`` on vectors of the free parameters, along the last axis. The solver stores it
        # instead of the model: a reference cycle would keep the records of every chunk in memory
        # until garbage collection.
        self.seen = Whitening(noise, self.theta.size, self.centre, self.outputs)
        # M in |ℓ‴| ≤ M ℓ″; where it is 0 centres are exact: no error of the slopes has an effect.
        # Where none is known it counts as 0 too, and :attr:`ChangedRecords.certifies` sees to it
        # that no certificate is asked for.
        self.constant = self.fit.family.self_concordance or 0.0
        weight = self.fit.sample_weight
        self.weight: np.ndarray = np.ones(len(self.X)) if weight is None else weight
        inverse = optimum.inverse
        every = as_numpy(inverse.high if isinstance(inverse, Double) else inverse)
        self.inverse = self.outputs.inverse_within(every)
        self._known_slopes: tuple[np.ndarray, np.ndarray] | None = None
        if not isinstance(near.family, Categorical):
            alike = replace(near, sample_weight=None)
            derivatives, _, error = optimum.derivatives(alike, X, every=False)
            slope = derivatives(slice(0, X.shape[0]))[0][:, 0]
            self._known_slopes = as_numpy(slope), as_numpy(error)

    # The records at the minimiser -------------------------------------------------------------

    @cached_property
    def margins(self) -> np.ndarray:
        """The margins, (n, c)."""
        return self.outputs.within(np.asarray(self.fit.margins(self.X)))

    @cached_property
    def curvatures(self) -> np.ndarray:
        """``a`` without the weights, of shape (n, c, c)."""
        return self.outputs.curvature(self.margins, self.target)

    @property
    def slopes(self) -> np.ndarray:
        """``r`` without the weights, of shape (n, c)."""
        return self._slopes_and_errors[0]

    @property
    def slope_errors(self) -> np.ndarray:
        """The rounding errors of ``r``, of shape (n,)."""
        return self._slopes_and_errors[1]

    @cached_property
    def _slopes_and_errors(self) -> tuple[np.ndarray, np.ndarray]:
        if self._known_slopes is None:
            slopes, d = self.outputs.slope(self.margins, self.target), self.X.shape[1]
            margin = np.abs(self.X) @ np.abs(self.theta[:d]).reshape(d, -1)
            curvature = np.einsum("nkk->n", self.curvatures)
            errors = curvature * margin.max(axis=1) + np.abs(slopes).max(axis=1)
            return slopes, 4 * EPS * errors
        slope, errors = self._known_slopes
        if self.fit.family.name == "gaussian" and isinstance(self.solver, SingularValues):
            by_values, off = self.solver.least_squares_slopes(self.target)
            # The same but for rounding, unless the model is not the minimiser.
            better = (off < errors) & (np.abs(by_values - slope) <= off + errors)
            slope, errors = np.where(better, by_values, slope), np.where(better, off, errors)
        return slope[:, None], errors

    @cached_property
    def gram_solver(self) -> Solver:
        """``H⁻¹``, computed from the Gram matrix."""
        curvature = self.weight[:, None, None] * self.curvatures
        intercept = self.fit.intercept is not None
        return Solver(self.X, curvature, self.inverse, self.fit.ridge, intercept, self.seen)

    @cached_property
    def solver(self) -> Solver:
        """``H⁻¹`` by the best method for the records; decomposing a table requires all records."""
        return self.gram_solver if self.shifts is not None else best_solver(self.gram_solver)

    # Other records in their places ------------------------------------------------------------

    def near(self, others: Alternatives) -> np.ndarray:
        """Return the alternatives' values minus the centre, of shape (K, columns)."""
        values = np.asarray(others.values)
        return values if self.centre is None else values - self.centre[list(others.columns)]

    def changes(self, rows: np.ndarray, others: Alternatives) -> tuple[np.ndarray, np.ndarray]:
        """Return each alternative's column differences, (m, K, columns), and its labels."""
        shape = (len(rows), len(others))
        change = np.zeros((*shape, 0))
        if others.values is not None:
            change = self.near(others)[None, :, :] - self.X[rows][:, None, list(others.columns)]
        own = self.target[rows][:, None, ...]
        labels = own if others.labels is None else np.asarray(others.labels, float)[None, ...]
        return change, np.broadcast_to(labels, (*shape, *own.shape[2:]))

    def unchanged(self, rows: np.ndarray, change: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return whether each alternative equals the record itself, of shape (m, K)."""
        same = labels == self.target[rows][:, None]
        same = same.reshape(*change.shape[:2], -1).all(axis=2)
        return np.asarray(np.all(change == 0, axis=2) & same)

    def changes_together(
        self, rows: np.ndarray, others: Alternatives
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the differences if all records of a set, (m, k), have the same alternative.

        The result contains the differences, (m, K, k, columns), the labels, (m, K, k, …), and
        whether nothing changes, (m, K).
        """
        m, k = rows.shape
        change, labels = self.changes(rows.reshape(-1), others)
        still = self.unchanged(rows.reshape(-1), change, labels).reshape(m, k, -1)
        change, labels = (
            np.swapaxes(values.reshape(m, k, *values.shape[1:]), 1, 2)
            for values in (change, labels)
        )
        return change, labels, np.asarray(still.all(axis=1))

    def margins_before(
        self, rows: np.ndarray, change: np.ndarray, columns: Sequence[int]
    ) -> np.ndarray:
        """Return the changed records' margins at ``θ̂``, of shape (m, K, …, c)."""
        slope = self.outputs.within(self.theta[list(columns)])
        return np.asarray(self.margins[rows][:, None] + change @ slope)

    # What all records have in common ----------------------------------------------------------

    @cached_property
    def per_span(self) -> np.ndarray:
        """``v``, of shape (n,): each record's largest ``tᵀa t`` over shifts ``t`` of span 1."""
        return self.outputs.per_span(self.margins, self.curvatures)

    @cached_property
    def largest_shifts(self) -> LargestShifts:
        """The largest ``q`` of any record of positive weight, and ``Σ ω q x̃ a x̃ᵀ``."""
        if not self.constant:
            return LargestShifts()
        return self.shifts_here() if self.shifts is None else self.shifts

    def shifts_here(self) -> LargestShifts:
        """Return :attr:`largest_shifts` for the available records only.

        ``q`` is ``x̃ᵀH⁻¹x̃``; with several outputs, the largest value for a difference of two
        outputs.
        """
        c = self.outputs.count
        largest, quartic = 0.0, np.zeros_like(self.inverse)
        for piece in row_slices(len(self.X), c * c * self.X.shape[1]):
            x, weight = self.X[piece], self.weight[piece]
            rows = np.arange(*piece.indices(len(self.X)))[:, None]
            q = self.outputs.widest(self.solver.products(rows, [])[0])
            largest = max(largest, float(np.max(q[weight > 0], initial=0.0)))
            curvature = np.maximum(weight * q, 0.0)[:, None, None] * self.curvatures[piece]
            curvature = curvature[:, 0, 0] if c == 1 else curvature
            quartic += hessian(x, curvature, ridge=0.0, intercept=self.fit.intercept is not None)
        return LargestShifts(largest, quartic)

    @cached_property
    def stretch(self) -> float:
        """``max_e (Σ ω q tᵀa t)^¼`` over e of H-norm 1, which bounds ``r`` of the certificate."""
        # Of a unit diagonal, and never below what rounding hides: a root of ``H⁻¹``, or of more.
        sizes = np.sqrt(np.diagonal(self.inverse))
        values, vectors = np.linalg.eigh(self.inverse / np.outer(sizes, sizes))
        root = sizes[:, None] * vectors * np.sqrt(np.maximum(values, len(values) * EPS))
        values = np.linalg.eigvalsh(root.T @ self.largest_shifts.quartic @ root)
        return float(max(values[-1], 0.0) ** 0.25)

    @cached_property
    def bend(self) -> Bend | None:
        """The Hessian's first-order change; ``None`` if unknown for this loss or too expensive."""
        P, family = len(self.inverse), self.fit.family
        known = isinstance(family, Categorical) or family.curvature_bend is not None
        # Up to 10¹⁰ multiplications, the sum costs less than it saves.
        cheap = 2.0 * len(self.X) * (self.outputs.count + 1) * P**3 <= 1e10
        if not (known and self.constant and self.shifts is None and cheap):
            return None
        if not self.gram_solver.rounding < 1e-9:
            return None
        sizes, P = np.sqrt(np.diagonal(self.inverse)), len(self.inverse)
        root = sizes[:, None] * np.linalg.cholesky(self.inverse / np.outer(sizes, sizes))
        bend = Bend(root, np.zeros((P, P * P)), self.outputs.count)
        for piece in row_slices(len(self.X), (bend.outputs + 1) * P * P):
            x = bend.seen(self.solver.design(self.X[piece]))
            weights, along = self.outputs.third_parts(self.margins[piece], self.target[piece])
            z = (along @ x).reshape(-1, P)
            weights = (self.weight[piece, None] * weights).reshape(-1, 1)
            bend.third[:] += (weights * z).T @ (z[:, :, None] * z[:, None, :]).reshape(len(z), -1)
        return bend

    @cached_property
    def error_effect(self) -> np.ndarray:
        """``Φ^½H⁻¹X̃ᵀDX̃H⁻¹Φ^½``: the squared effect of slope errors on the parameter change."""
        penalised = self.inverse[:, : self.outputs.count * self.X.shape[1]]
        inner = self.inverse - self.fit.ridge * penalised @ penalised.T
        seen = self.seen(self.seen(inner).T)
        return np.asarray((seen + seen.T) / 2)

    @cached_property
    def sight(self) -> float:
        """``‖Φ^½H⁻¹Φ^½‖^½``: the largest whitened length of a change of norm 1 in H."""
        seen = self.seen(self.seen(self.inverse).T)
        return float(np.sqrt(max(np.linalg.eigvalsh((seen + seen.T) / 2)[-1], 0.0)))

    @cached_property
    def spread(self) -> float:
        """``‖Φ^½H⁻¹X̃ᵀD^½‖``: the largest effect of slope errors on the parameter change."""
        if not self.constant:
            return 0.0
        return float(np.sqrt(max(np.linalg.eigvalsh(self.error_effect)[-1], 0.0)))


@dataclass(frozen=True, eq=False)
class Bend:
    """The sum of the losses' third derivatives, ``T = Σ ω ℓ‴``, in coordinates where H is I."""

    root: np.ndarray  # A with AAᵀ = H⁻¹, so that changes are δ = Au, (P, P)
    third: np.ndarray  # T, (P, P²)
    outputs: int

    def seen(self, design: np.ndarray) -> np.ndarray:
        """Return ``x̂ = Aᵀx̃`` of records, one vector per output, (m, D) → (m, c, P)."""
        return np.tensordot(design, self.root.reshape(-1, self.outputs, len(self.root)), 1)

    def along(self, u: np.ndarray) -> np.ndarray:
        """Return ``T[u]`` of changes, (B, P) → (B, P, P)."""
        return np.asarray((u @ self.third).reshape(len(u), *self.root.shape))


class Whitening:
    """Multiplies rows by ``Φ^½``, to express them in units of one or several Gaussian noises.

    The rows are parameters for centred columns, or with ``outputs`` the free part of them; they are
    first converted to the released parameters, which belong to the caller's columns.
    """

    def __init__(
        self,
        noise: tuple[Noise, ...],
        size: int,
        centre: np.ndarray | None = None,
        outputs: Outputs | None = None,
    ) -> None:
        self.centre, self.outputs = centre, outputs
        for one in noise:
            if not isinstance(one, Gaussian):
                raise InputError(
                    f"Risks are not supported for {one!r}, only for Gaussian noise, whose "
                    "trade-off curve depends on a single distance. Use sp.Gaussian."
                )
        if len(noise) == 1:
            self.root = noise[0].root(size)
        else:
            total = [one.information(size) for one in noise]
            if any(np.ndim(one) == 2 for one in total):
                total = [one if np.ndim(one) == 2 else one * np.eye(size) for one in total]
                self.root = np.linalg.cholesky(sum(total)).T
            else:
                self.root = np.sqrt(sum(total))
        full = np.ndim(self.root) == 2
        scales = np.linalg.svd(self.root, compute_uv=False) if full else self.root
        self.largest = float(np.max(scales))  # ‖Φ^½‖: the greatest length of a unit of the release
        # How much more an error of one number may count than the numbers it belongs to
        self.skew = float(np.max(scales) / np.min(scales))
        # The least length of a unit move of the parameters of columns less their centre: moving the
        # centre c back into the intercept shortens it to no less than (√(‖c‖² + 4) − ‖c‖)/2.
        far = 0.0 if centre is None else float(np.linalg.norm(centre))
        longer = (math.hypot(far, 2.0) + far) / 2
        self.smallest = float(np.min(scales)) / longer
        self.reach = self.largest * longer  # and the greatest length of such a move

    def __call__(self, moves: np.ndarray) -> np.ndarray:
        """Return ``Φ^½v`` for vectors along the last axis."""
        moves = moves if self.outputs is None else self.outputs.of_all(moves)
        moves = callers_moves(moves, self.centre)
        return np.asarray(moves @ self.root.T if self.root.ndim == 2 else moves * self.root)

    def most(self, sizes: np.ndarray) -> np.ndarray:
        """Return upper bounds on the entries of ``Φ^½v``, for vectors v of these sizes."""
        if self.outputs is not None and self.outputs.basis is not None:
            by_feature = sizes.reshape(*sizes.shape[:-1], -1, self.outputs.count)
            every = by_feature @ np.abs(self.outputs.basis).T
            sizes = every.reshape(*sizes.shape[:-1], -1)
        # Less a centre below zero, sizes add up.
        rows = callers_moves(sizes, None if self.centre is None else -np.abs(self.centre))
        root = np.abs(self.root)
        return np.asarray(rows @ root.T if root.ndim == 2 else rows * root)


def in_numpy(fit: FittedGLM, X: Any) -> tuple[FittedGLM, np.ndarray]:
    """Convert a model and its table from any array library to NumPy, in float64."""
    local = replace(
        fit,
        coef=as_numpy(fit.coef),
        intercept=None if fit.intercept is None else as_numpy(fit.intercept),
        sample_weight=None if fit.sample_weight is None else as_numpy(fit.sample_weight),
        target=as_numpy(fit.target),
    )
    return local, as_numpy(X).astype(np.float64, copy=False)


def callers_moves(moves: np.ndarray, centre: np.ndarray | None) -> np.ndarray:
    """Convert parameter changes for centred columns, (…, P), to the original columns."""
    if centre is None:
        return moves
    features = len(centre)
    outputs = moves.shape[-1] // (features + 1)
    out = moves.reshape(*moves.shape[:-1], features + 1, outputs).copy()
    out[..., features, :] -= np.einsum("...jk,j->...k", out[..., :features, :], centre)
    return np.asarray(out.reshape(moves.shape))

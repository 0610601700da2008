"""Corrections: steps to a refit that avoid systems with its Hessian, and the distance left.

Let ``Q`` be the Hessian of the other records at ``θ̂``, plus the curvature of the record that is
added, at its present margin. ``Q`` differs from the fit's Hessian by the changed record alone, so
Woodbury's formula gives its inverse. The steps are ``s = −Q⁻¹g``, where g is the gradient of the
changed objective; a step costs two products of the table with a vector per refit.

**Distance of the refit.** Let the other records' margins have shifted by a span of at most S, and
let the refit be ``v`` away. If ``|ℓ‴| ≤ M ℓ″``, the mean Hessian along ``v`` lies between ``e^{−c}
Q`` and ``e^c Q`` with ``c = M S + d``. Here d is M times the largest span of a shift due to ``v``.
Since ``v`` is minus the inverse of that mean Hessian times g, it is near the step::

    ‖v − s‖_Q ≤ (e^c − 1) ‖s‖_Q

The norm of g at the present Hessian is ``λ ≤ e^{MS/2} ‖s‖_Q``. A change of norm 1 there shifts no
margin by a span above ``e^{MS/2} R``, where R is the largest such span for norm 1 in Q. For a
generalised self-concordant function (Bach 2010), ``d ≤ −log(1 − M R e^{MS/2} λ)`` follows. In units
of the noise, an error of norm 1 in Q is at most ``(‖Φ^½H⁻¹Φ^½‖/(1 − h))^½``.

**Another ridge.** If the changed objective has the ridge ``ρ′`` and the fit ``ρ``, Q still contains
ρ. Both the Hessian with ρ and that with ρ′ are at least their ridge in the penalised directions, so
they differ by a factor between ``e^−l`` and ``e^l`` with ``l = |log(ρ′/ρ)|``. The same bounds hold
with ``M S + l`` for M S.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seepage.glm.changes.batched_refits import BatchedRefits, Change, ChangedTables
from seepage.glm.changes.local_model import Bend
from seepage.glm.changes.outputs import times


@dataclass(frozen=True)
class Corrected:
    """The refits' changes, with certified errors, of shape (B, …) each."""

    moves: np.ndarray  # of the free parameters, (B, P)
    radius: np.ndarray  # their errors in units of the noise, infinite where nothing is certified
    weaker: np.ndarray  # upper bounds on the loss of curvature, as of ``BatchedRefits.weakening``


def correct(
    refits: BatchedRefits, changes: list[Change], starts: np.ndarray, free: np.ndarray
) -> Corrected:
    """Return refits on tables with one changed record each, from starts (B, P).

    ``free (B,)`` are the other records' smallest shares of the curvature. Changes of several
    records at once, and those that do not converge in a few steps, have an infinite radius.
    """
    moves, radius = np.array(starts), np.full(len(changes), np.inf)
    weaker = np.ones(len(changes))
    # Woodbury's formula is precise if the others have some share of the curvature.
    able = np.array([len(c.removed) == 1 for c in changes]) & (free > 0.05)
    able &= np.isfinite(starts).all(axis=1)
    which = np.flatnonzero(able)
    for some in refits.passes([changes[k] for k in which]):
        here = which[some]
        batch = ChangedTables(refits, [changes[k] for k in here])
        moves[here], radius[here], weaker[here] = _steps(batch, starts[here], free[here])
    return Corrected(moves, radius, weaker)


def _steps(
    batch: ChangedTables, moved: np.ndarray, free: np.ndarray, begun: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    model, bend = batch.model, batch.model.bend
    inverse = _Inverse(batch)
    bent = None if bend is None else _Bent(batch, bend)
    M = model.constant
    unit, penalty = model.sight / np.sqrt(free), np.zeros(len(moved))
    if model.fit.ridge > 0:
        penalty = np.abs(np.log(batch.ridge / model.fit.ridge))
    reach = np.full(len(moved), model.largest_shifts.largest)
    if batch.z is not None:  # an added record may shift further than any of the others
        own = inverse.products[:, inverse.c :, inverse.c :]
        reach = np.maximum(reach, model.outputs.widest(own))
    reach = np.sqrt(reach / free)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        # Others begin at their expansion, if they have one.
        if bent is not None and not begun and (model.outputs.count > 1 or not moved.any()):
            moved = bent.start(moved)
        for _ in range(16):  # what converges, does so in fewer; others are refitted
            shift = batch.shifts(moved)
            gradient = batch.gradient(moved, shift)
            shifted = M * batch.largest_spans(shift)
            S = shifted + penalty
            off, ends = S, np.exp(S / 2)  # ``c − d``, and the norm in the Hessian of 1 in Q
            first = np.zeros(len(S), dtype=bool)
            if bent is not None:
                share = np.exp(2 * shifted) * shifted**2 / 2 + np.expm1(penalty)
                first = share < np.minimum(0.5, np.expm1(S))
                off = np.where(first, -np.log1p(-np.where(first, share, 0.0)), S)
                ends = np.where(first, 1 / np.sqrt(1 - np.where(first, share, 0.0)), ends)
            if bent is not None and first.any():
                step = -bent.solved(gradient, moved, first)
            else:
                step = -inverse.times(gradient, shift)
            norm = np.sqrt(np.maximum(-np.sum(gradient * step, axis=1), 0.0))
            d = -np.log1p(-np.minimum(M * reach * np.exp(S / 2) * ends * norm, 1.0))
            moved = moved + step
            radius = unit * np.where(first, np.exp(S / 2) * ends, 1.0) * np.expm1(off + d) * norm
            # Newton's refits stop at the same distance, relative to the change.
            close = radius <= 1e-11 * np.linalg.norm(model.seen(moved), axis=1)
            far = ~close & (norm > 0)
            # Where errors do not shrink to half at every step, Newton's method is as fast.
            if not (far & (np.expm1(off + d) < 0.5)).any() or 2 * far.sum() <= len(far):
                break
        radius, weaker = np.where(far, np.inf, radius), np.exp(S + d)
        # Where most are near, the others go on alone.
        rest = np.flatnonzero(far & (np.expm1(off + d) < 0.5))
        if len(rest) and 2 * far.sum() <= len(far):
            moved[rest], radius[rest], weaker[rest] = _steps(
                batch.of(rest), moved[rest], free[rest], begun=True
            )
    return moved, radius, weaker


class _Bent:
    """``(Q + T[δ])⁻¹`` for a batch of changes, each of which removes one record and may add one.

    All quantities are in coordinates where H is I.
    """

    def __init__(self, batch: ChangedTables, bend: Bend) -> None:
        self.batch, self.bend, model, rows = batch, bend, batch.model, batch.rows
        self.inverse = np.linalg.inv(bend.root)
        self.weight = model.weight[rows, None]
        self.x = bend.seen(model.gram_solver.design(model.X[rows]))  # (B, c, P)
        self.thirds = model.outputs.third_parts(model.margins[rows], model.target[rows])
        self.z = None if batch.z is None else bend.seen(batch.z[0])

    def _leaves(self, u: np.ndarray, bent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the removed records' shifts, (B, c), and changes of curvature, (B, c, c)."""
        shift, (weights, along) = times(self.x, u), self.thirds
        scaled = (weights * times(along, shift) * bent[:, None])[..., None] * along
        return shift, np.swapaxes(scaled, 1, 2) @ along

    def _hessian(self, u: np.ndarray, bent: np.ndarray) -> np.ndarray:
        """Return ``Q``, plus ``T[δ]`` where ``bent`` is true, (B, P, P)."""
        batch, outputs = self.batch, self.batch.model.outputs
        Q = self.bend.along(u * bent[:, None])
        Q += np.eye(Q.shape[1])
        leaves = batch.model.curvatures[batch.rows] + self._leaves(u, bent)[1]
        leaves = self.weight[..., None] * leaves
        Q -= np.swapaxes(self.x, 1, 2) @ (leaves @ self.x)
        if self.z is not None:
            curved = outputs.curvature(batch.own_margins[0] + times(self.z, u), batch.labels[0])
            curved = batch.own_weight[0, :, None, None] * curved
            Q += np.swapaxes(self.z, 1, 2) @ (curved @ self.z)
        return Q

    def solved(self, gradient: np.ndarray, moved: np.ndarray, bent: np.ndarray) -> np.ndarray:
        """Return ``(Q + T[δ])⁻¹g``, (B, P); without ``T[δ]`` where not ``bent``."""
        Q, root = self._hessian(moved @ self.inverse.T, bent), self.bend.root
        return np.asarray(_solutions(Q, gradient @ root) @ root.T)

    def start(self, moved: np.ndarray) -> np.ndarray:
        """Return solutions of the equation expanded to second order in the shifts, (B, P)."""
        batch, model = self.batch, self.batch.model
        u, every = moved @ self.inverse.T, np.ones(len(moved), dtype=bool)
        pull = self.weight * model.slopes[batch.rows]
        for _ in range(4):
            shift, bent = self._leaves(u, every)
            own = times(model.curvatures[batch.rows] + bent / 2, shift)
            own = pull + self.weight * own
            left = u + times(self.bend.along(u), u) / 2
            left -= times(np.swapaxes(self.x, 1, 2), own)
            if self.z is not None:
                slope = model.outputs.slope(
                    batch.own_margins[0] + times(self.z, u), batch.labels[0]
                )
                slope = batch.own_weight[0, :, None] * slope
                left += times(np.swapaxes(self.z, 1, 2), slope)
            step = _solutions(self._hessian(u, every), left)
            u = u - step
            # The next error is about the square of this step, and no larger than what is left out.
            if not np.any(np.abs(step) > 1e-3 * np.abs(u).max(axis=1, keepdims=True)):
                break
        near = np.isfinite(u).all(axis=1, keepdims=True)
        return np.where(near, u @ self.bend.root.T, moved)


def _solutions(Q: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return ``Q⁻¹b`` for every table, (B, P); NaN where Q is singular, or has overflowed."""
    try:
        return np.asarray(np.linalg.solve(Q, right[..., None])[..., 0])
    except np.linalg.LinAlgError:
        if len(Q) == 1:
            return np.full_like(right, np.nan)
        parts = zip(np.array_split(Q, 2), np.array_split(right, 2), strict=True)
        return np.concatenate([_solutions(*part) for part in parts])


class _Inverse:
    """``Q⁻¹`` for a batch of changes, each of which removes one record and may add one."""

    def __init__(self, batch: ChangedTables) -> None:
        self.batch, model, rows = batch, batch.model, batch.rows
        self.c, self.inverse = model.outputs.count, model.inverse
        self.records = [model.gram_solver.design(model.X[rows])]  # x̃ and z̃, (B, D) each
        self.leaves = -model.weight[rows, None, None] * model.curvatures[rows]
        if batch.z is not None:
            self.records.append(batch.z[0])
        by_record = self.inverse.reshape(len(self.inverse), -1, self.c)
        solved = [np.tensordot(x, by_record, axes=(1, 1)) for x in self.records]
        self.solved = np.concatenate(solved, axis=2)  # H⁻¹x̃ and H⁻¹z̃, (B, P, w)
        self.products = self._seen(self.solved)

    def _seen(self, values: np.ndarray) -> np.ndarray:
        """Return the margin shifts of the changed records, (B, P, k) → (B, w, k)."""
        B, _, k = values.shape
        by_feature = values.reshape(B, -1, self.c * k)
        shifts = [(x[:, None] @ by_feature).reshape(B, self.c, k) for x in self.records]
        return np.concatenate(shifts, axis=1)

    def times(self, gradient: np.ndarray, shift: np.ndarray) -> np.ndarray:
        """Return ``Q⁻¹g``, (B, P), where the margins have shifted by ``shift``."""
        batch, c = self.batch, self.c
        curved = np.zeros_like(self.products)
        curved[:, :c, :c] = self.leaves
        if batch.z is not None:
            margins = batch.own_margins[0] + shift[-1]
            arrives = batch.model.outputs.curvature(margins, batch.labels[0])
            curved[:, c:, c:] = batch.own_weight[0, :, None, None] * arrives
        solved = gradient @ self.inverse
        seen = self._seen(solved[..., None])
        share = np.linalg.solve(np.eye(curved.shape[1]) + curved @ self.products, curved @ seen)
        return np.asarray(solved - times(self.solved, share[..., 0]))

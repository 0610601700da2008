"""The centre of a parameter change: the change if the other records' curvature is fixed.

Without record i, ``H₀ = H − ω x̃ a x̃ᵀ`` has the inverse ``H⁻¹ + H⁻¹x̃ U x̃ᵀH⁻¹`` (Woodbury). With
W such that ``WWᵀ = ω a`` and ``Wᵀx̃ᵀH⁻¹x̃W = diag h``, ``U = W diag(1/(1 − h)) Wᵀ``. Leaving the
record out moves the fit by ``H₀⁻¹x̃ ω r = H⁻¹x̃ u``. Adding ``(z, y')`` in its place moves the fit
further by ``−H₀⁻¹z̃ σ``, where the new record's margin m solves one equation::

    m = z̃ᵀθ₀ − z̃ᵀH₀⁻¹z̃ σ,       σ = ω ℓ'(m, y'),       θ₀ the fit without record i

Changing k records together is treated as changing one record with k outputs: ``a`` has their
curvatures on its diagonal, and the margins of the added records solve k equations. In the
following, ``rows`` contains m sets of k records, (m, k). Each set has w = k·c margins, where c is
the number of free outputs.

All changes due to a record lie in the span of its ``H⁻¹x̃`` and of ``H⁻¹e`` for the unit vectors e
of the columns that differ. So the inner products of these changes, in the norms of the Hessian, the
noise and the penalty, require only a few vectors per record
(:meth:`~seepage.glm.changes.solver.Solver.products`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from seepage.core.finite_changes import Alternatives
from seepage.glm.changes.local_model import LocalModel
from seepage.glm.changes.outputs import SOLVED, JointOutputs, modes_of, times
from seepage.glm.changes.solver import others_decide
from seepage.support.double_double import EPS


@dataclass(frozen=True)
class WithoutRecord:
    """Quantities of m records, and of the fit without each record, of shape (m, …) each."""

    pull: np.ndarray  # ω r
    curvature: np.ndarray  # ω a
    modes: np.ndarray  # W
    shares: np.ndarray  # h
    left: np.ndarray  # 1 − h
    error: np.ndarray  # the rounding of these numbers, relative to them
    removal_error: np.ndarray  # and that of ``removal``, with the error of r
    alone: np.ndarray  # where the other records determine nothing
    update: np.ndarray  # U
    removal: np.ndarray  # u

    @classmethod
    def of(cls, model: LocalModel, rows: np.ndarray, lengths: np.ndarray) -> WithoutRecord:
        """Build an instance from the records' ``x̃ᵀH⁻¹x̃``, (m, w, w)."""
        joint, weight = JointOutputs(model.outputs, rows.shape[1]), model.weight[rows]
        pull = (weight[:, :, None] * model.slopes[rows]).reshape(len(rows), -1)
        curvature = joint.joined(weight[:, :, None, None] * model.curvatures[rows])
        modes, shares, left, error = model.solver.share_left(rows, curvature, lengths)
        alone = ~others_decide(error) & (weight > 0).any(axis=1)
        left, error = np.where(alone[:, None], 1.0, left), np.where(alone, 1.0, error)
        update = (modes / left[:, None, :]) @ np.swapaxes(modes, 1, 2)
        factor = np.eye(lengths.shape[1]) + update @ lengths
        removal, size = times(factor, pull), np.linalg.norm(factor, axis=(1, 2))
        lost = np.linalg.norm(weight * model.slope_errors[rows], axis=1) * size
        if rows.shape[1] > 1:  # what leaves may cancel
            lost += 8 * lengths.shape[1] * EPS * size * np.linalg.norm(pull, axis=1)
        removal_error = error + _ratio(lost, np.linalg.norm(removal, axis=1))
        return cls(
            pull, curvature, modes, shares, left, error, removal_error, alone, update, removal
        )


@dataclass(frozen=True)
class Replacements:
    """Added records and their margins in the fit without the removed ones, (m, K, …) each."""

    along: np.ndarray  # H₀⁻¹z̃ in the basis of the centres
    lengths: np.ndarray  # z̃ᵀH₀⁻¹z̃
    before: np.ndarray  # the margins under θ̂
    given: np.ndarray  # the margins under the fit without the record
    given_error: np.ndarray  # and their errors
    along_error: np.ndarray  # the error of ``along``, and
    lengths_error: np.ndarray  # that of ``lengths``: sums of products that may cancel, (m, K)
    labels: np.ndarray
    still: np.ndarray  # which are the record as it is

    def off_by_residual(
        self, margin: np.ndarray, slope: np.ndarray, weight: np.ndarray
    ) -> Replacements:
        """Return a copy whose errors, (m, K), include the residual of ``m + G σ = given``.

        Here m, σ and G are ``margin``, ``slope`` and ``lengths``. A residual affects the slopes in
        the same way as an error of ``given``.
        """
        moved = times(self.lengths, slope)
        residual = np.linalg.norm(margin + moved - self.given, axis=2)
        steep = np.linalg.norm(slope, axis=2) + np.linalg.norm(weight, axis=2)
        terms = np.linalg.norm(margin, axis=2) + np.linalg.norm(self.given, axis=2)
        terms = terms + np.linalg.norm(self.lengths, axis=(2, 3)) * steep
        error = self.given_error + residual + 8 * slope.shape[2] * EPS * terms
        return replace(self, given_error=error)

    @classmethod
    def of(
        cls,
        model: LocalModel,
        rows: np.ndarray,
        others: Alternatives,
        by_inverse: np.ndarray,
        rest: WithoutRecord,
    ) -> Replacements:
        """Build an instance from the inner products of the basis in the norm of the Hessian."""
        (m, k), K, c = rows.shape, len(others), model.outputs.count
        change, labels, still = model.changes_together(rows, others)
        distinct = change if others.columns else change[:, :1]  # one stands for all if none changes
        # Each z̃ is its own x̃, and its changes times the columns' e.
        Z = np.zeros((*distinct.shape[:2], k + distinct.shape[3], c, k, c))
        for i in range(k):
            Z[:, :, i, :, i] = np.eye(c)
            Z[:, :, k:, :, i] = distinct[:, :, i, :, None, None] * np.eye(c)
        Z = Z.reshape(*distinct.shape[:2], -1, k * c)
        xz = by_inverse[:, None, : k * c, :] @ Z
        zx, update = np.swapaxes(xz, 2, 3), rest.update[:, None]
        # Where z̃ is nearly what only this record carries, x̃ᵀH⁻¹z̃ is a small difference.
        rounding, sizes = 8 * EPS * by_inverse.shape[1], np.abs(by_inverse[:, None]) @ np.abs(Z)
        lost = rounding * np.linalg.norm(sizes[:, :, : k * c], axis=(2, 3))
        along_error = np.linalg.norm(rest.update, axis=(1, 2))[:, None] * lost
        lengths_error = 2 * along_error * np.linalg.norm(xz, axis=(2, 3))
        lengths_error += rounding * np.linalg.norm(
            np.swapaxes(np.abs(Z), 2, 3) @ sizes, axis=(2, 3)
        )
        lengths = np.swapaxes(Z, 2, 3) @ (by_inverse[:, None] @ Z) + zx @ (update @ xz)
        Z[:, :, : k * c, :] += update @ xz
        before = model.margins_before(rows, change, others.columns).reshape(m, K, k * c)
        given = before + times(zx, rest.removal[:, None, :])
        # The margin of a record itself is off by the error of its slope over its curvature.
        own = _ratio(model.slope_errors[rows], np.einsum("mkcc->mk", model.curvatures[rows]))
        shift = np.linalg.norm(xz, axis=(2, 3)) * np.linalg.norm(rest.removal, axis=1)[:, None]
        largest = np.abs(model.margins[rows]).max(axis=(1, 2))[:, None]
        largest = 1 + np.abs(given).max(axis=2) + largest
        root = 8 * EPS * k if c == 1 else SOLVED
        own = np.linalg.norm(own, axis=1)[:, None]
        error = own + rest.removal_error[:, None] * shift + root * largest
        error = error + lost * np.linalg.norm(rest.removal, axis=1)[:, None]
        return cls(Z, lengths, before, given, error, along_error, lengths_error, labels, still)


@dataclass(frozen=True)
class Centres:
    """The changes due to m records with K alternatives, with the other records' curvature fixed."""

    columns: list[int]
    gram: np.ndarray  # (m, K, K), whitened
    coefs: np.ndarray  # of H⁻¹x̃ and of H⁻¹e, for every output, (m, K, …)
    energy: np.ndarray  # ‖δ‖ in the norm of H₀, (m, K)
    norm: np.ndarray  # N, that of the records alone, (m, K)
    own_energy: np.ndarray  # ω tᵀa t with t = x̃ᵀδ, of the record as it is, (m, K)
    pull: np.ndarray  # ω rᵀt, (m, K)
    free: np.ndarray  # the smallest share of the others in the curvature along x̃, (m,)
    widest: np.ndarray  # q of the record as it is, the least of several, (m,)
    per_error: np.ndarray  # how far E moves the release; infinite where the rest says nothing, (m,)
    unsolved: np.ndarray  # where the equation of the margin has no root found, (m, K)
    error: np.ndarray  # the rounding of the products, relative to them, (m,)
    rounding: np.ndarray  # and of the whitened move, (m, K)
    own: OwnRecord | None  # what the record that comes adds

    @property
    def size(self) -> np.ndarray:
        """The lengths of the parameter changes, of shape (m, K)."""
        return np.asarray(np.sqrt(np.maximum(np.einsum("mkk->mk", self.gram), 0.0)))

    @classmethod
    def of(cls, model: LocalModel, rows: np.ndarray, others: Alternatives | None) -> Centres:
        """Return the centres of changes; ``others=None`` means that records are left out."""
        joint = JointOutputs(model.outputs, rows.shape[1])
        columns, w = [] if others is None else list(others.columns), joint.count
        by_inverse, by_noise, by_penalty = model.solver.products(rows, columns)
        rest = WithoutRecord.of(model, rows, by_inverse[:, :w, :w])
        by_own, error, left = by_noise[:, :w, :w], rest.error, rest.left
        removed = np.sqrt(np.maximum(quadratic(rest.removal[:, None, :], by_own), 0.0))
        sight_own = np.sqrt(np.maximum(np.einsum("mkk->m", by_own), 0.0))
        if rows.shape[1] > 1:  # vectors that nearly cancel are off by more than their sum
            removed = (np.linalg.norm(rest.removal, axis=1) * sight_own)[:, None]
        rounding = rest.removal_error[:, None] * removed
        cancelled = model.solver.lost_to_cancelling(rows)[:, None]
        rounding = rounding + cancelled * np.linalg.norm(rest.removal, axis=1)[:, None]
        added = by_inverse.shape[1] - w
        coefs = np.concatenate([rest.removal, np.zeros((len(rows), added))], axis=1)[:, None, :]
        own, unsolved = None, np.zeros((len(rows), 1), dtype=bool)
        if others is not None:
            new = Replacements.of(model, rows, others, by_inverse, rest)
            Z, weight = new.along, model.weight[rows][:, None, :]
            margin, slope, solved = _own_slope(model, new, weight)
            coefs = np.where(new.still[:, :, None], 0.0, coefs - times(Z, slope))
            unsolved = ~solved & ~new.still
            curved = joint.curvature(margin, new.labels, weight)
            curved = np.minimum(curved, 1e150)  # as good as infinite, and its square is a number
            noise_zz = np.swapaxes(Z, 2, 3) @ (by_noise[:, None] @ Z)
            if rows.shape[1] > 1:
                new = new.off_by_residual(margin, slope, weight)
            size = np.linalg.norm(slope, axis=2)
            new = replace(new, given_error=new.given_error + new.lengths_error * size)
            rounding = rounding + (new.along_error * sight_own[:, None] + cancelled) * size
            rounding = rounding + _arrival_error(error, noise_zz, slope, curved, new)
            shift = np.where(unsolved[:, :, None], np.nan, margin - new.before)
            own = OwnRecord.at(joint, curved, noise_zz, new, shift)
        on_own = coefs @ by_inverse[:, :, :w]
        own_energy, length = quadratic(on_own, rest.curvature), quadratic(coefs, by_inverse)
        # Differences, and upper ends: what rounding may have taken is added.
        lost = 4 * (EPS + error * left.min(axis=1))[:, None] * length
        gram = coefs @ by_noise @ np.swapaxes(coefs, 1, 2)
        terms = by_inverse.shape[1]
        if terms > 1:  # a sum of several vectors, which may be shorter than each of them
            lost = lost + 8 * terms * EPS * quadratic(np.abs(coefs), np.abs(by_inverse))
            off = 8 * terms * EPS * quadratic(np.abs(coefs), np.abs(by_noise))
            size = np.sqrt(np.maximum(np.einsum("mkk->mk", gram), 0.0))
            rounding = rounding + off / np.maximum(size, np.sqrt(off) + 1e-300)
        energy = np.maximum(length - own_energy, 0.0) + lost
        norm = np.maximum(energy - model.fit.ridge * quadratic(coefs, by_penalty), 0.0) + lost
        sight = np.einsum("mbk,mbc,mck->mk", rest.modes, by_own, rest.modes)
        spread = np.sqrt(np.maximum(np.sum(sight * rest.shares / left**2, axis=1), 0.0))
        return cls(
            columns,
            np.where(rest.alone[:, None, None], 0.0, gram),
            coefs,
            np.sqrt(energy),
            np.sqrt(norm),
            own_energy,
            np.sum(rest.pull[:, None, :] * on_own, axis=2),
            np.asarray(left.min(axis=1)),
            model.outputs.widest(joint.blocks(by_inverse[:, :w, :w])).min(axis=1),
            np.where(rest.alone, np.inf, model.spread + spread),
            unsolved,
            error,
            np.broadcast_to(model.seen.skew * rounding, coefs.shape[:2]),
            own,
        )

    def part(self, some: np.ndarray) -> Centres:
        """Return the centres of some of the records."""
        own = None if self.own is None else self.own.part(some)
        each = {name: of[some] for name, of in vars(self).items() if isinstance(of, np.ndarray)}
        return replace(self, **each, own=own)

    def moves(self, model: LocalModel, rows: np.ndarray) -> np.ndarray:
        """Return the centres as changes of the free parameters, of shape (m, K, P)."""
        w, solver = model.outputs.count * rows.shape[1], model.solver
        moves = self.coefs[:, :, :w] @ solver.solved(rows)
        return np.asarray(moves + self.coefs[:, :, w:] @ solver.solved_columns(self.columns))


@dataclass(frozen=True)
class OwnRecord:
    """The quantities that determine an added record's effect on errors, of shape (m, K, …) each."""

    shares: np.ndarray  # the curvature at the centre along its principal directions, relative to H₀
    sights: np.ndarray  # and their squared length in the noise's norm, where it is 1 in that of H₀
    widest: np.ndarray  # z̃ᵀH₀⁻¹z̃
    margin: np.ndarray  # under θ̂
    shift: np.ndarray  # and how far the centre moves it
    labels: np.ndarray

    @classmethod
    def at(
        cls,
        joint: JointOutputs,
        curvature: np.ndarray,
        by_noise: np.ndarray,
        new: Replacements,
        shift: np.ndarray,
    ) -> OwnRecord:
        """Build an instance from the curvature and the inner products of ``H₀⁻¹z̃``, whitened."""
        modes, shares = modes_of(curvature, new.lengths)
        sights = _ratio(np.sum(modes * (by_noise @ modes), axis=-2), shares)
        widest = joint.each.widest(joint.blocks(new.lengths)).max(axis=-1)
        return cls(shares, sights, widest, new.before, shift, new.labels)

    def part(self, some: np.ndarray) -> OwnRecord:
        """Return the quantities of some of the records."""
        return OwnRecord(*(each[some] for each in vars(self).values()))

    def per_error(self, constant: float, E: np.ndarray) -> np.ndarray:
        """Return how an error from the other records propagates through the added record's slope.

        The added record's margin shifts by a span of at most ``√widest·E``, which bounds the growth
        of its curvature.
        """
        growth = np.exp(constant * np.sqrt(np.maximum(self.widest, 0.0)) * E)[:, :, None]
        with np.errstate(divide="ignore", over="ignore"):
            taken = 1 / (1 + 1 / np.where(self.shares > 0, growth * self.shares, 0.0))
        seen = np.sum(np.maximum(self.sights, 0.0) * taken, axis=2)
        return np.asarray(np.sqrt(taken.max(axis=2) * seen))


def _own_slope(
    model: LocalModel, new: Replacements, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the added records' margins and weighted slopes, and whether each solution was found.

    If the record outweighs all others, the slope is computed from the distance to the record's
    margin in the others' fit, ``z̃ᵀH₀⁻¹z̃ σ = given − m``. The slope at m would lose precision: it
    is the difference between a prediction and a nearly equal label.
    """
    joint, zz = JointOutputs(model.outputs, weight.shape[2]), new.lengths
    if joint.records > 1 and not model.constant:
        return _slopes_together(joint, new, weight)
    if joint.records > 1:
        margin, solved = joint.own_margin(new.given, zz, new.labels, weight)
        return margin, joint.slope(margin, new.labels, weight), solved
    single = new.labels[:, :, 0]
    if joint.count == 1:  # the record as it is needs no solution
        margin, solved, moved = new.given.copy(), np.ones_like(new.still), ~new.still
        rate = np.broadcast_to(weight[..., None] * zz, (*moved.shape, 1, 1))[moved]
        roots, _ = model.outputs.own_margin(
            new.given[moved][:, None], rate[:, None], single[moved][:, None]
        )
        margin[moved] = roots[:, 0]
    else:
        margin, solved = model.outputs.own_margin(new.given, weight[..., None] * zz, single)
    slope = joint.slope(margin, new.labels, weight)
    if joint.count == 1:
        curvature = joint.curvature(margin, new.labels, weight)[..., 0]
        with np.errstate(over="ignore", invalid="ignore"):
            outweighs = curvature * zz[..., 0] > 1
        by_margin = (new.given - margin) / np.where(outweighs, zz[..., 0], 1.0)
        slope = np.where(outweighs, by_margin, slope)
    return margin, slope, solved


def _slopes_together(
    joint: JointOutputs, new: Replacements, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the margins and slopes of several records with a quadratic loss (linear slope).

    ``σ = R(I + R G R)⁻¹R⁻¹ ω ℓ'(given)`` with ``R² = ω a`` and ``G = z̃ᵀH₀⁻¹z̃``.
    """
    root = np.sqrt(np.einsum("mkaa->mka", joint.curvature(new.given, new.labels, weight)))
    slope = joint.slope(new.given, new.labels, weight)
    slope = np.divide(slope, root, out=np.zeros_like(slope), where=root > 0)
    curved = np.eye(joint.count) + root[..., :, None] * new.lengths * root[..., None, :]
    slope = root * np.linalg.solve(curved, slope[..., None])[..., 0]
    margin = new.given - times(new.lengths, slope)
    return margin, slope, np.ones(slope.shape[:2], dtype=bool)


def _arrival_error(
    error: np.ndarray,
    by_noise: np.ndarray,
    slope: np.ndarray,
    curvature: np.ndarray,
    new: Replacements,
) -> np.ndarray:
    """Return the whitened error of the parameter change due to added records, (m, K).

    The error combines the relative error of the products and the error of the slope σ. The error of
    σ is the error of the margin times ``∂σ = ω a/(1 + ω a z̃ᵀH₀⁻¹z̃)``.
    """
    size = np.sqrt(np.maximum(np.einsum("mkb,mkbc,mkc->mk", slope, by_noise, slope), 0.0))
    if new.labels.shape[2] > 1:
        modes, shares = modes_of(curvature, new.lengths)
        sight = np.einsum("mkab,mkac,mkcb->mkb", modes, by_noise, modes)
        seen = np.sqrt(np.sum(np.maximum(sight, 0.0) / (1 + shares) ** 2, axis=2))
        rate = np.sqrt(np.max(np.einsum("mkaa->mka", curvature), axis=2))
        if curvature.shape[-1] > new.labels.shape[2]:  # several outputs each
            rate = np.sqrt(np.linalg.norm(curvature, axis=(2, 3)))
        most = np.linalg.norm(slope, axis=2) * np.sqrt(np.einsum("mkbb->mk", by_noise))
        return np.asarray(error[:, None] * most + rate * new.given_error * seen)
    if curvature.shape[-1] == 1:
        rate = (curvature / (1 + curvature * new.lengths))[..., 0, 0]
    else:
        rate = np.linalg.norm(curvature, axis=(2, 3))
    seen = np.sqrt(np.maximum(np.einsum("mkbb->mk", by_noise), 0.0))
    return np.asarray(error[:, None] * size + rate * new.given_error * seen)


def quadratic(coefs: np.ndarray, gram: np.ndarray) -> np.ndarray:
    """Return ``cᵀGc`` for each change, of shape (m, K)."""
    return np.asarray(np.sum((coefs @ gram) * coefs, axis=2))


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return a quotient, or zero if the denominator is zero."""
    return np.asarray(np.divide(part, whole, out=np.zeros_like(part), where=whole > 0))

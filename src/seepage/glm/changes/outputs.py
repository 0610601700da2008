"""The free margins of a record, and their losses.

A single-output model has one margin per record; softmax has K margins, of which only the
differences matter. Finite changes are expressed in c free coordinates, where c = 1 or K − 1.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from seepage.core.jacobian import simplex_basis
from seepage.glm.losses import Categorical, Elementwise, Family
from seepage.support.double_double import EPS

SOLVED = 1e-12  # the largest residual, relative to the terms of its equation, of a root


class Outputs:
    """The free part of a record's margins, and the span that measures their shifts.

    With one margin, the free part is the margin, and a shift ``t`` has the span ``|t|``. For
    softmax only the differences of the K margins matter. All quantities are expressed in an
    orthonormal basis of the directions that sum to zero, in which curvatures are positive definite.
    Let ``π`` be the class probabilities at the margins ``m + st``, and h any vector with one number
    per class. Then ``d/ds Var_π(h) = Cov_π((h − Eh)², t) ≤ Var_π(h)·span(t)``, where the span of t
    is its largest minus its smallest entry. So the self-concordance constant of softmax is 1.
    """

    def __init__(self, family: Family | Categorical) -> None:
        self.family = family
        self.basis = simplex_basis(family.outputs) if isinstance(family, Categorical) else None
        self.count = 1 if self.basis is None else self.basis.shape[1]

    def within(self, values: np.ndarray) -> np.ndarray:
        """Return the free part, (…, c), of margins or slopes, (…) or (…, K)."""
        return np.asarray(values[..., None] if self.basis is None else values @ self.basis)

    def of_all(self, moves: np.ndarray) -> np.ndarray:
        """Convert changes of the free part, (…, D·c), to changes of all parameters, (…, D·K)."""
        if self.basis is None:
            return moves
        features = moves.shape[-1] // self.count
        every = moves.reshape(*moves.shape[:-1], features, self.count) @ self.basis.T
        return np.asarray(every.reshape(*moves.shape[:-1], features * len(self.basis)))

    def inverse_within(self, inverse: np.ndarray) -> np.ndarray:
        """Return ``H⁻¹`` of all parameters, restricted to the free part.

        The Hessian is block diagonal: the free part is one block.
        """
        if self.basis is None:
            return inverse
        K, c = self.basis.shape
        half = inverse.reshape(len(inverse), -1, K) @ self.basis
        both = half.reshape(-1, K, half.shape[1] * c).transpose(0, 2, 1) @ self.basis
        inverse = both.transpose(0, 2, 1).reshape(half.shape[1] * c, -1)
        return np.asarray((inverse + inverse.T) / 2)

    def loss(self, m: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the losses, (…)."""
        margins, labels = self._flat(m, labels)
        return np.asarray(self.family.loss(margins, labels)).reshape(m.shape[:-1])

    def slope(self, m: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the slopes, (…, c)."""
        if self.basis is None:
            margins, labels = self._flat(m, labels)
            return np.asarray(self.family.slope(margins, labels)).reshape(m.shape)
        # π (1 − y) − y (1 − π), with 1 − π as the sum of the others: no digits cancel. Labels are
        # one-hot, so the others are what is left of π once the record's own class is zero.
        left, y = self._powers(m), np.ascontiguousarray(np.moveaxis(labels, -1, 0))
        y = y.reshape(len(left), *(1,) * (m.ndim - labels.ndim), *labels.shape[:-1])
        left *= 1 - y
        left -= y * left.sum(axis=0)
        return self._free(left)

    def slopes_at(self, m: np.ndarray, shift: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the slopes at margins (r, c) with shifts (r, B, c), of the shape of the shifts."""
        if self.basis is None:
            return self.slope(m[:, None] + shift, labels[:, None])
        # As in :meth:`slope`, with the classes first and the fewest passes over (K, r, B).
        every = np.tensordot(self.basis, np.moveaxis(shift, -1, 0), 1)
        every += (self.basis @ m.T)[:, :, None]
        every -= every.max(axis=0)
        np.exp(every, out=every)
        total = every.sum(axis=0)
        every *= (1 - labels.T)[:, :, None]
        others = every.sum(axis=0)
        slopes = np.tensordot(self.basis.T, every, 1)
        slopes -= (self.basis.T @ labels.T)[:, :, None] * others
        slopes /= total
        return np.moveaxis(slopes, 0, -1)

    def curvature(self, m: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the curvatures, (…, c, c)."""
        margins, labels = self._flat(m, labels)
        matrices = np.asarray(self.family.curvature(margins, labels))
        if self.basis is not None:
            matrices = self.basis.T @ matrices @ self.basis
        return matrices.reshape(*m.shape, self.count)

    def third_parts(self, m: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the third derivatives as sums of cubes ``Σ_k w_k d_k⊗d_k⊗d_k``.

        The result contains the weights w, (…, q), and the directions d, (…, q, c). For softmax,
        whose third derivatives are the third central moments of a class drawn by π, q is K.
        """
        if self.basis is None:
            margins, labels = self._flat(m, labels)
            slope = cast(Family, self.family).curvature_slope
            third = np.asarray(cast(Elementwise, slope)(margins, labels)).reshape(m.shape)
            return third, np.ones((*m.shape, 1))
        powers = np.moveaxis(self._powers(m), 0, -1)
        return powers, self.basis - (powers @ self.basis)[..., None, :]

    def curvature_parts(self, m: np.ndarray, labels: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Return the factors of curvatures that :meth:`curvature_times` uses, (p, …).

        With one output, the factor is the weighted curvature; for softmax, whose curvature is
        ``ω(diag π − ππᵀ)``, the factors are π and ω.
        """
        if self.basis is None:
            margins, labels = self._flat(m, labels)
            curvature = np.asarray(self.family.curvature(margins, labels))
            return np.asarray(weight * curvature.reshape(m.shape[:-1]))[None]
        return np.concatenate([self._powers(m), np.broadcast_to(weight, (1, *m.shape[:-1]))])

    def curvature_times(self, parts: np.ndarray, shifts: np.ndarray) -> np.ndarray:
        """Return weighted curvatures times shifts, of shape (…, c)."""
        if self.basis is None:
            return np.asarray(parts[0, ..., None] * shifts)
        powers, weight, every = parts[:-1], parts[-1], self._every(shifts)
        every -= np.sum(powers * every, axis=0)
        every *= powers
        every *= weight
        return self._free(every)

    def _every(self, values: np.ndarray) -> np.ndarray:
        """Return all K numbers of a free part, (…, c) → (K, …).

        The classes come first in memory too: NumPy reduces a short last axis ten times as slowly.
        """
        basis = np.asarray(self.basis).astype(values.dtype, copy=False)
        return np.tensordot(basis, values, axes=(1, values.ndim - 1))

    def _free(self, every: np.ndarray) -> np.ndarray:
        """Return the free part of K numbers, (K, …) → (…, c)."""
        return np.moveaxis(np.tensordot(np.asarray(self.basis).T, every, 1), 0, -1)

    def _powers(self, m: np.ndarray) -> np.ndarray:
        """Return the class probabilities π, (…, c) → (K, …)."""
        powers = self._every(m)
        powers -= powers.max(axis=0)
        np.exp(powers, out=powers)
        powers /= powers.sum(axis=0)
        return powers

    def _flat(self, m: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return margins and labels in the family's shapes, with all records along one axis."""
        flat = m.reshape(-1, self.count)
        if self.basis is None:
            return flat[:, 0], np.broadcast_to(labels, m.shape[:-1]).reshape(-1)
        K = len(self.basis)
        return flat @ self.basis.T, np.broadcast_to(labels, (*m.shape[:-1], K)).reshape(-1, K)

    def spans(self, shifts: np.ndarray) -> np.ndarray:
        """Return the spans of shifts, (…, c) → (…)."""
        if self.count == 1:
            unit = 1.0 if self.basis is None else np.ptp(self.basis)
            return np.asarray(np.abs(shifts[..., 0]) * shifts.dtype.type(unit))
        every = self._every(shifts)
        return np.asarray(every.max(axis=0) - every.min(axis=0))

    def widest(self, products: np.ndarray) -> np.ndarray:
        """Return the largest ``(u − v)ᵀG(u − v)`` over outputs u and v, (…, c, c) → (…)."""
        if self.basis is None:
            return np.asarray(products[..., 0, 0])
        G = self.basis @ products @ self.basis.T
        own = np.einsum("...kk->...k", G)
        return np.asarray((own[..., :, None] + own[..., None, :] - 2 * G).max(axis=(-2, -1)))

    def per_span(self, m: np.ndarray, curvatures: np.ndarray) -> np.ndarray:
        """Return the largest ``tᵀa t`` for a shift of span 1; for softmax, it is at most ¼."""
        if self.basis is None:
            return np.asarray(curvatures[:, 0, 0])
        powers = np.asarray(self.family.mean(m @ self.basis.T))
        top = powers.max(axis=1)
        return np.where(top > 0.5, top * (1 - top), 0.25)

    def steepest(self, m: np.ndarray, labels: np.ndarray, span: np.ndarray) -> np.ndarray:
        """Return the largest increase of a loss per unit of span, for shifts of this span, (…)."""
        if self.basis is None:
            ends = [np.abs(self.slope(m + side * span[..., None], labels)) for side in (-1, 1)]
            return np.asarray(np.maximum(*ends)[..., 0])  # slopes are monotone
        # No sum of entries of π moves by more than a quarter of the span.
        off = np.sum(np.abs(self.slope(m, labels) @ self.basis.T), axis=-1) / 2
        return np.asarray(np.minimum(off + span / 4, 1.0))

    def own_margin(
        self, given: np.ndarray, weight: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the roots ``m`` of ``m + weight·ℓ'(m, y) = given``, and whether each was found.

        Each root is unique, since ``ℓ'`` is increasing. The arguments have the shapes (m, K, c),
        (m, K, c, c) and (m, K, …).
        """
        shape = labels.shape[:2]
        given = np.broadcast_to(given, (*shape, self.count))
        if self.count == 1:
            return self._bracketed(given, weight[..., 0], labels), np.ones(shape, dtype=bool)
        return JointOutputs(self, 1).own_margin(given, weight, labels[:, :, None], np.ones(1))

    def _bracketed(self, given: np.ndarray, weight: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return one output's roots, each between ``given`` and ``given − weight·ℓ'(given)``.

        The roots are computed by Newton's method; a step that leaves the bracket, or is longer than
        half the previous step, is replaced by a step to the middle.
        """
        shape = given.shape[:2]
        every = labels.reshape(shape[0] * shape[1], *labels.shape[2:])
        given, weight = (
            np.broadcast_to(value[..., 0], shape).reshape(-1) for value in (given, weight)
        )

        def excess(m: np.ndarray, at: Any = slice(None)) -> np.ndarray:
            slope = self.slope(m[:, None], every[at])[:, 0]
            return np.asarray(m + weight[at] * slope - given[at])

        with np.errstate(over="ignore", invalid="ignore"):
            step, reach = -excess(given), 1.0
            # A slope that overflows gives no step length: a step of one is doubled instead.
            step = np.where(np.isfinite(step), step, -1.0)
            low, high = given + np.minimum(step, 0.0), given + np.maximum(step, 0.0)
            while np.any(over := excess(low) > 0):
                reach *= 2
                low = np.where(over, given - reach, low)
            root, active = np.clip(given, low, high), np.arange(len(given))
            last = np.full(len(given), np.inf)
            for _ in range(200):
                m, lo, hi = root[active], low[active], high[active]
                off = excess(m, active)
                low[active] = lo = np.where(off < 0, m, lo)
                high[active] = hi = np.where(off > 0, m, hi)
                curved = self.curvature(m[:, None], every[active])[:, 0, 0]
                new = m - off / (1 + weight[active] * curved)
                # The rounding of the margins, which Replacements counts anyway
                lost = 4 * EPS * (1 + np.abs(given[active]))
                inside = (new > lo) & (new < hi) & (np.abs(new - m) <= last[active] / 2)
                inside |= np.abs(new - m) <= lost
                # The middle of a wide bracket is that on a logarithmic scale.
                wide, even = hi - lo > 1 + np.abs(lo + hi) / 4, (lo + hi) / 2
                middle = np.where(wide, np.sinh((np.arcsinh(lo) + np.arcsinh(hi)) / 2), even)
                root[active] = new = np.where(inside, new, middle)
                last[active] = np.abs(new - m)
                active = active[last[active] > lost]
                if not len(active):
                    break
        return np.asarray(root.reshape(*shape, 1))


class JointOutputs:
    """The margins of k records that change together, treated as one record with k·c outputs."""

    def __init__(self, each: Outputs, records: int) -> None:
        self.each, self.records, self.count = each, records, records * each.count

    def apart(self, values: np.ndarray) -> np.ndarray:
        """Split joint margins or slopes, (…, kc), by record, into (…, k, c)."""
        return values.reshape(*values.shape[:-1], self.records, self.each.count)

    def blocks(self, products: np.ndarray) -> np.ndarray:
        """Return the diagonal block of every record, (…, kc, kc) → (…, k, c, c)."""
        k, c = self.records, self.each.count
        by_record = products.reshape(*products.shape[:-2], k, c, k, c)
        return np.stack([by_record[..., i, :, i, :] for i in range(k)], axis=-3)

    def joined(self, blocks: np.ndarray) -> np.ndarray:
        """Return a matrix with these blocks along its diagonal, (…, k, c, c) → (…, kc, kc)."""
        k, c = self.records, self.each.count
        if k == 1:
            return blocks[..., 0, :, :]
        out = np.zeros((*blocks.shape[:-3], k, c, k, c))
        for i in range(k):
            out[..., i, :, i, :] = blocks[..., i, :, :]
        return out.reshape(*blocks.shape[:-3], k * c, k * c)

    def slope(self, m: np.ndarray, labels: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Return the weighted slopes, (…, kc), with weights (…, k)."""
        slopes = weight[..., None] * self.each.slope(self.apart(m), labels)
        return np.asarray(slopes.reshape(m.shape))

    def curvature(self, m: np.ndarray, labels: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Return the weighted curvatures, (…, kc, kc)."""
        blocks = self.each.curvature(self.apart(m), labels)
        return self.joined(weight[..., None, None] * blocks)

    def loss(self, m: np.ndarray, labels: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """Return the sums of the weighted losses, (…)."""
        return np.asarray(np.sum(weight * self.each.loss(self.apart(m), labels), axis=-1))

    def own_margin(
        self, given: np.ndarray, lengths: np.ndarray, labels: np.ndarray, weight: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the roots ``m`` of ``m + G·ωℓ'(m, y) = given``, and whether each was found.

        The arguments have the shapes (m, K, kc), (m, K, kc, kc) for G, (m, K, k, …) and (m, K, k).
        With ``m = given + G^½v``, the roots minimise ``‖v‖²/2 + Σ ω ℓ(m, y)``. The roots are
        computed by Newton's method with step halving.
        """
        shape, w = labels.shape[:2], self.count
        labels = labels.reshape(-1, *labels.shape[2:])
        given = np.broadcast_to(given, (*shape, w)).reshape(-1, w)
        root = symmetric_root(np.broadcast_to(lengths, (*shape, w, w)).reshape(-1, w, w))
        omega = np.broadcast_to(weight, (*shape, self.records)).reshape(-1, self.records)
        v, left = np.zeros_like(given), np.full(len(given), np.inf)
        active = np.arange(len(given))
        for _ in range(60):
            R, y, heavy, here = root[active], labels[active], omega[active], v[active]
            m = given[active] + times(R, here)
            pull = times(R, self.slope(m, y, heavy))
            gradient = here + pull
            size = np.linalg.norm(here, axis=1) + np.linalg.norm(pull, axis=1)
            left[active] = now = np.linalg.norm(gradient, axis=1) / np.where(size > 0, size, 1.0)
            going = now > 1e-14
            if not going.any():
                break
            active, R, y, heavy, here, gradient = (
                a[going] for a in (active, R, y, heavy, here, gradient)
            )
            start = given[active]
            curved = np.eye(w) + R @ self.curvature(m[going], y, heavy) @ R
            step = -np.linalg.solve(curved, gradient[..., None])[..., 0]
            slope = np.sum(step * gradient, axis=1)
            value = np.sum(here**2, axis=1) / 2 + self.loss(m[going], y, heavy)
            length = np.ones(len(active))
            for _ in range(60):
                tried = here + length[:, None] * step
                new = np.sum(tried**2, axis=1) / 2
                new = new + self.loss(start + times(R, tried), y, heavy)
                high = new > value + 1e-4 * length * slope + 4 * EPS * np.abs(value)
                if not high.any():
                    break
                length = np.where(high, length / 2, length)
            v[active] = here + length[:, None] * step
        found = (given + times(root, v)).reshape(*shape, w)
        return found, (left <= SOLVED).reshape(shape)


def symmetric_root(matrices: np.ndarray) -> np.ndarray:
    """Return the symmetric roots of semidefinite matrices, (…, c, c)."""
    if matrices.shape[-1] == 1:
        return np.asarray(np.sqrt(np.maximum(matrices, 0.0)))
    values, vectors = np.linalg.eigh(matrices)
    scaled = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
    return np.asarray(scaled @ np.swapaxes(vectors, -1, -2))


def modes_of(curvature: np.ndarray, products: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``W`` with ``WWᵀ = curvature`` and diagonal ``WᵀGW``, (…, c, c), and the diagonal."""
    root = symmetric_root(curvature)
    if root.shape[-1] == 1:
        return root, (root * products * root)[..., 0]
    values, vectors = np.linalg.eigh(root @ products @ root)
    return root @ vectors, np.maximum(values, 0.0)


def times(matrices: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return the product of each matrix with the corresponding vector."""
    return np.asarray((matrices @ vectors[..., None])[..., 0])

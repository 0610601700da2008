"""The informed adversary's algebra for softmax models, for many rows and releases at once.

The method is that of :mod:`seepage.attacks.record.informed_margin`; parameters and gradients have a
column for each of K classes. The known records yield ``B = x̃ sᵀ − G``, (P, K), which is ``x̃ ρᵀ``
up to noise, with ``ρ = ω (softmax(Wᵀx̃) − y)``. Adding one vector to all classes leaves every loss
unchanged, so the component of B in that direction is noise and is removed.

*A coordinate κ is known*: an intercept's 1, or a constant column's c. This coordinate determines
``ρ = B_κ/c``; then ``x = B ρ/‖ρ‖²`` by least squares. The label is the only class whose entry in ρ
is negative.

*Only the label is known.* ρ is parallel to the leading right singular vector v of B, with ``v_y <
0``; the length of x solves ``ω (softmax_y − 1) = ρ_y``. If there are several solutions, the one
whose length is nearest the typical record length is used.
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np

from seepage.attacks.record.informed_margin import InformedAttack, nearest_length
from seepage.errors import InputError
from seepage.glm.fitting.objective import FittedGLM, Sums
from seepage.glm.losses import Categorical


class SolvedClasses(NamedTuple):
    """The reconstruction of m rows from a chunk of T releases: ``x̂ = (x (s·d) − G d)·scale``."""

    s: np.ndarray  # (T, m, K)
    G: np.ndarray  # (T, P, K)
    direction: np.ndarray  # (T, m, K): that of ρ
    scale: np.ndarray  # (T, m)
    labels: np.ndarray  # (T, m): the class


class SoftmaxAttack(InformedAttack):
    """Reconstructs unknown rows from releases of a softmax model that was fitted on all rows."""

    def __init__(self, fit: FittedGLM, X: np.ndarray, label_known: bool) -> None:
        super().__init__(fit, X, label_known)
        self.family = cast(Categorical, fit.family)
        self.outputs = self.family.outputs
        self.classes = np.argmax(fit.target, axis=1)
        if not label_known and self.column is None and self.outputs == 2:
            raise InputError(
                "Without an intercept or a constant column, two classes cannot be distinguished "
                "for an unknown record; pass label='known'."
            )

    def reconstruct(self, theta: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows, (T, m, d), and labels, (T, m), reconstructed from releases ``theta``."""
        solved, d = self.solve(theta, rows), self.X.shape[1]
        along = np.sum(solved.s * solved.direction, axis=2)
        B = along[..., None] * self.X[rows]
        B -= np.einsum("tdk,tmk->tmd", solved.G[:, :d], solved.direction)
        return np.asarray(B * solved.scale[..., None]), np.array(solved.labels, dtype=float)

    def errors(self, theta: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``‖x̂ − x‖²`` of every row and release, (m, T), and ``Σ_t (x̂ − x)``, (m, d)."""
        off = self.reconstruct(theta, rows)[0] - self.X[rows]
        return np.sum(off**2, axis=2).T, off.sum(axis=0)

    def solve(self, theta: np.ndarray, rows: np.ndarray) -> SolvedClasses:
        """Solve for the given rows from releases ``theta``, (T, P·K), by feature, then by class."""
        K, d = self.outputs, self.X.shape[1]
        W = theta.reshape(len(theta), -1, K)
        S, G = np.empty((len(W), len(rows), K)), np.empty_like(W)
        for t, parameters in enumerate(W):
            objective = self.objective
            margins = objective.margins(parameters)
            slopes = objective.weighted(objective.family.slope(margins, objective.target))
            total = objective.X.T @ slopes
            if objective.intercept:
                total = np.concatenate([total, slopes.sum(axis=0)[None, :]])
            S[t], G[t] = slopes[rows], objective.with_penalty(Sums(parameters, 0, total)).gradient
        G = G - G.mean(axis=2, keepdims=True)
        if self.column is not None:
            rho = S - G[:, None, self.column, :] / self.value
            with np.errstate(divide="ignore", invalid="ignore"):
                scale = 1 / np.sum(rho * rho, axis=2)
            label = self.classes[rows] if self.label_known else np.argmin(rho, axis=2)
            return SolvedClasses(S, G, rho, scale, np.broadcast_to(label, scale.shape))
        X, inner = self.X[rows], G[:, :d]
        mixed = np.einsum("md,tdk->tmk", X, inner)
        gram = S[..., :, None] * S[..., None, :] * np.sum(X * X, axis=1)[:, None, None]
        cross = S[..., :, None] * mixed[..., None, :]
        gram -= cross + np.swapaxes(cross, -1, -2)
        gram += np.einsum("tdj,tdk->tjk", inner, inner)[:, None]
        values, vectors = np.linalg.eigh(gram)
        v, size = vectors[..., -1], np.sqrt(np.maximum(values[..., -1], 1e-300))
        if self.label_known:
            label = np.broadcast_to(self.classes[rows], v.shape[:2])
        else:  # the entries sum to zero and only one is negative, so it is the largest in size
            label = np.argmax(np.abs(v), axis=2)
        own = np.take_along_axis(v, label[..., None], axis=2)[..., 0]
        v = np.where(own[..., None] > 0, -v, v)
        # Wᵀ times the unit vector along B v: the growth of the margins with the length.
        margins = np.einsum("tdk,md->tmk", W[:, :d], X) * np.sum(S * v, axis=2)[..., None]
        margins -= np.einsum("tdk,tdj,tmj->tmk", W[:, :d], inner, v)
        length = self._length(margins / size[..., None], label, -np.abs(own) * size, rows)
        return SolvedClasses(S, G, v, length / size, label)

    def _length(
        self, slope: np.ndarray, label: np.ndarray, pull: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        """Solve ``ω (softmax_y(ℓ slope) − 1) = pull/ℓ`` for ℓ, (T, m), near the typical length."""
        weight, K = self.weights(rows)[:, 0], self.outputs

        def gap(length: np.ndarray, _: np.ndarray) -> np.ndarray:
            P = self.family.mean((length[..., None] * slope).reshape(-1, K)).reshape(slope.shape)
            others = 1 - np.take_along_axis(P, label[..., None], axis=2)[..., 0]
            return np.asarray(-weight * others * length / pull - 1)

        return nearest_length(gap, pull.shape, self.usual)[0]

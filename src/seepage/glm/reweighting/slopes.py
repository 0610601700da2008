"""How a row's leakage per unit of weight moves with its data, the parameters and the Hessian.

Per unit of weight, row i leaks ``eᵢ = ‖A Mᵢ‖₂`` with ``A = Φ^½ H⁻¹`` and
``Mᵢ = [a x̃ w_Vᵀ + r E_V, b x̃]``: V are the unknown features, and the label's column is there where
the label is unknown. With the leading singular vectors u and v of ``A M``, with ``g = Aᵀu`` and
``h = H⁻¹Mv``, first-order perturbation of a singular value gives::

    de = uᵀ d(A M) v = −gᵀ dH h + gᵀ dM v

Third derivatives of the loss enter through dM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from seepage.core.noise import Noise
from seepage.core.unknowns import Unknowns
from seepage.errors import InputError
from seepage.glm.fitting.fitted import FittedGLM
from seepage.glm.jacobian.assembly import whitened_inverse

_TIED = 1e-9  # relative gap of the two leading singular values below which e has no derivative


class RowSlopes(NamedTuple):
    """What some rows contribute, with the derivatives of their leakage per unit of weight."""

    design: np.ndarray  # x̃, (m, P)
    r: np.ndarray
    a: np.ndarray
    a_m: np.ndarray  # ∂a/∂m
    a_y: np.ndarray  # ∂a/∂y
    M: np.ndarray  # (m, P, q)
    tied: np.ndarray  # whether the leading singular value is not alone, so that the rest is void
    own: np.ndarray  # ∂e/∂z by the row's own unknowns, (m, q)
    by_theta: np.ndarray  # ∂e/∂θ, (m, P)
    by_hessian: np.ndarray  # ∂e/∂H, packed, (m, P(P+1)/2)


@dataclass(frozen=True, eq=False)
class SlopeMaker:
    """Makes the :class:`RowSlopes` of rows of a table.

    Parameters
    ----------
    fit, X
        A model with one output and its table, as NumPy arrays.
    H
        The Hessian of its objective, (P, P).
    unknowns, noise
        What the leakage is about, and the noise it is measured at.
    """

    fit: FittedGLM
    X: np.ndarray
    H: np.ndarray
    unknowns: Unknowns
    noise: Noise

    @property
    def selection(self) -> np.ndarray:
        """``E_V``, (P, t): how the unknown features enter the design."""
        identity = np.eye(len(self.H), self.X.shape[1])
        return np.asarray(self.unknowns.of(identity, axis=1))

    def design(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return ``x̃`` of the rows, (m, P)."""
        X = self.X[rows, :]
        return X if self.fit.intercept is None else np.hstack([X, np.ones((len(X), 1))])

    def derivatives(self, rows: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return r, a and b of the rows, (m,) each."""
        family: Any = self.fit.family
        at = self.fit.margins(self.X[rows, :]), self.fit.target[rows]
        return family.slope(*at), family.curvature(*at), family.label_slope(*at)

    def slopes(self, rows: slice | np.ndarray) -> RowSlopes:
        """Return what the rows contribute."""
        family: Any = self.fit.family
        at = self.fit.margins(self.X[rows, :]), self.fit.target[rows]
        a_m, a_y, b_y = (
            f(*at)
            for f in (family.curvature_slope, family.curvature_label_slope, family.label_curvature)
        )
        r, a, b = self.derivatives(rows)
        design, E, w = self.design(rows), self.selection, self.unknowns.of(self.fit.coef)
        label = self.unknowns.label
        M = (a[:, None] * design)[:, :, None] * w + r[:, None, None] * E
        if label:
            M = np.concatenate([M, (b[:, None] * design)[:, :, None]], axis=2)
        A = whitened_inverse(self.H, self.noise)
        u, v, tied = _leading(A @ M)
        g, h = u @ A, np.linalg.solve(self.H, (M @ v[:, :, None])[:, :, 0].T).T
        v_x, v_y = v[:, : len(w)], v[:, -1] if label else np.zeros(len(v))
        g_x, g_V = np.vecdot(g, design), g @ E
        wv, gv = v_x @ w, np.vecdot(g_V, v_x)
        # gᵀ dM v by a change of the margin alone, of the label alone, and of x̃ where it stands in M
        by_margin = (a_m * wv + a_y * v_y) * g_x + a * gv
        by_label = (a_y * wv + b_y * v_y) * g_x + b * gv
        own = by_margin[:, None] * w + (a * wv + b * v_y)[:, None] * g_V
        if label:
            own = np.concatenate([own, by_label[:, None]], axis=1)
        by_theta = by_margin[:, None] * design + (a * g_x)[:, None] * (v_x @ E.T)
        return RowSlopes(design, r, a, a_m, a_y, M, tied, own, by_theta, -packed_form(g, h))


def check_third_derivatives(family: Any) -> None:
    """Raise unless the family states its third derivatives."""
    third = ("curvature_slope", "curvature_label_slope", "label_curvature")
    missing = [name for name in third if getattr(family, name) is None]
    if missing:
        raise InputError(
            f"The leakage of the whole procedure takes third derivatives of the loss: the family "
            f"{family.name!r} does not state {', '.join(missing)}."
        )


def _leading(B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the leading singular vectors of each matrix, (m, P) and (m, q), and where they tie."""
    tall = B.shape[1] > B.shape[2]
    transposed = np.matrix_transpose(B)
    # The gram of the shorter side: of the leading vectors it costs no digits.
    squares, vectors = np.linalg.eigh(transposed @ B if tall else B @ transposed)
    near = vectors[:, :, -1]
    far = ((B if tall else transposed) @ near[:, :, None])[:, :, 0]
    length = np.sqrt(np.vecdot(far, far))
    far = far / np.where(length > 0, length, 1.0)[:, None]
    second = squares[:, -2] if squares.shape[1] > 1 else np.zeros(len(B))
    tied = squares[:, -1] - second <= 2 * _TIED * squares[:, -1]
    return (far, near, tied) if tall else (near, far, tied)


def packed(p: np.ndarray) -> np.ndarray:
    """Return the upper triangles of ``p pᵀ``, row by row, (m, P(P+1)/2)."""
    i, j = np.triu_indices(p.shape[1])
    return np.asarray(p[:, i] * p[:, j])


def packed_form(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return, row by row, what gives ``pᵀSq`` when multiplied by a packed symmetric S."""
    i, j = np.triu_indices(p.shape[1])
    once = p[:, i] * q[:, j]
    return np.asarray(np.where(i == j, once, once + p[:, j] * q[:, i]))


def unpacked_form(forms: np.ndarray, P: int) -> np.ndarray:
    """Return symmetric matrices F with ``Σ F∘S`` = the packed form's product with a packed S."""
    i, j = np.triu_indices(P)
    out = np.zeros((len(forms), P, P))
    out[:, i, j] = np.where(i == j, forms, forms / 2)
    out[:, j, i] = out[:, i, j]
    return out

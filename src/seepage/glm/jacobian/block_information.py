"""What a release of K outputs sees of a block of rows, as one sum over the rows.

With ``G_i`` as in :mod:`seepage.glm.jacobian.operator`, ``V`` the unknown feature directions and
``B_i = [a_i W_Vᵀ, b_i]`` (without ``b_i`` where the label is known)::

    Σ_i G_i G_iᵀ = Σ x̃x̃ᵀ ⊗ B Bᵀ + VVᵀ ⊗ Σ r rᵀ + T + Tᵀ,      T = Σ_i V W_V-weighted x̃ᵀ ⊗ r a

The information about the block has the same largest eigenvalue as ``A (Σ G Gᵀ) Aᵀ``, P×P, and the
sums of two blocks add up to that of both.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from seepage.core.spectra import dense_largest
from seepage.core.unknowns import Unknowns
from seepage.glm.fitting.curvature import hessian
from seepage.glm.jacobian.operator import GLMJacobian

Array = Any


def block_information(jacobian: GLMJacobian, unknowns: Unknowns, rows: Array) -> Array:
    """Return ``Σ_i G_i G_iᵀ`` over some rows, (P, P), before it is whitened."""
    K, D = jacobian.outputs, jacobian.size // jacobian.outputs
    X = jacobian.X[rows, :]
    r, a, b = jacobian.derivatives(rows)
    W = unknowns.of(jacobian.coef)  # (t, K)
    B = a @ W.T
    if unknowns.label:
        B = np.concatenate([B, b], axis=2)
    total = hessian(X, B @ np.swapaxes(B, 1, 2), ridge=0.0, intercept=jacobian.intercept)
    V = np.zeros((D, W.shape[0]))
    V[: jacobian.features, :] = unknowns.of(np.eye(jacobian.features), axis=1)
    total = total + np.kron(V @ V.T, r.T @ r)
    design = jacobian.design(rows)
    # T[(p, k), (q, l)] = Σ_t V_pt Σ_l' W_tl' Σ_i r_ik a_ill' x̃_iq
    flat = np.reshape(a, (a.shape[0], K * K))
    VW = V @ W
    cross = np.empty((D, K, D, K))
    for k in range(K):
        seen = np.reshape(design.T @ (r[:, k : k + 1] * flat), (D, K, K))  # (q, l, l')
        cross[:, k, :, :] = np.einsum("qlm,pm->pql", seen, VW)
    cross = np.reshape(cross, (D * K, D * K))
    return total + cross + cross.T


def seen_norm(jacobian: GLMJacobian, information: Array) -> float:
    """Return the largest eigenvalue of the information about a block, from its sum."""
    A = jacobian.whitener
    return float(dense_largest((A @ information @ A.T)[None, :, :])[0])

"""Sums over rows from which the leakage about blocks of a table follows, for GLMs with one output.

Whatever block of rows is asked about, the release sees it through a P×P matrix that is put together
from three sums over the rows: ``Σ c x̃x̃ᵀ``, ``Σ a r x̃`` and ``Σ r²`` (the module
:mod:`seepage.glm.jacobian.closed_form` has the formula). The sums of two blocks add up to that of both, so
rows may come in any pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from array_api_compat import array_namespace

from seepage.core.spectra import dense_largest
from seepage.core.unknowns import Unknowns
from seepage.glm.fitting.curvature import bordered_gram
from seepage.glm.jacobian.secular import largest_eigenvalue
from seepage.glm.jacobian.updated_spectrum import largest_after_update
from seepage.support.chunks import progress, row_slices

if TYPE_CHECKING:
    from seepage.glm.jacobian.closed_form import SingleOutputJacobian

Array = Any


@dataclass(frozen=True)
class BlockSums:
    """``Σ c x̃x̃ᵀ``, ``Σ a r x̃`` and ``Σ r²`` over a block of rows, and their number."""

    gram: Array  # (P, P)
    along: Array  # (P,)
    spread: Array  # ()
    rows: int

    def __add__(self, other: BlockSums) -> BlockSums:
        return BlockSums(
            self.gram + other.gram,
            self.along + other.along,
            self.spread + other.spread,
            self.rows + other.rows,
        )


def sum_rows(jacobian: SingleOutputJacobian, c: Array, rows: Array) -> BlockSums:
    """Return the sums over some rows, copying no more than a chunk of them.

    Parameters
    ----------
    jacobian
        Whose rows they are.
    c
        The weight of every row of the table in the first sum, ``(n,)``.
    rows
        Positions; all rows are read in place.
    """
    xp = array_namespace(jacobian.X)
    s = jacobian.a * jacobian.r
    if rows.shape[0] == jacobian.rows:
        gram, along = bordered_gram(jacobian.X, c, jacobian.intercept), jacobian.X.T @ s
    else:
        gram = along = 0.0
        for piece in row_slices(rows.shape[0], jacobian.size, chunk=jacobian.chunk):
            here = rows[piece]
            X = jacobian.X[here, :]
            gram = gram + bordered_gram(X, c[here], jacobian.intercept)
            along = along + X.T @ s[here]
    if jacobian.intercept:
        along = xp.concat([along, xp.reshape(xp.sum(s[rows]), (1,))])
    return BlockSums(gram, along, xp.sum(jacobian.r[rows] ** 2), int(rows.shape[0]))


def block_norm(jacobian: SingleOutputJacobian, unknowns: Unknowns, sums: BlockSums) -> float:
    """Return the largest eigenvalue of ``Σ_i A G_i G_iᵀ Aᵀ`` over the block: a P×P matrix.

    ``sums`` are those with ``c = a²‖w_V‖² + b²`` (without ``b²`` where the label is known).
    """
    A, A_V, w_V = jacobian.restricted(unknowns)
    Ah, Aw = A @ sums.along, A_V @ w_V
    total = A @ sums.gram @ A.T + Ah[:, None] * Aw[None, :] + Aw[:, None] * Ah[None, :]
    total += sums.spread * (A_V @ A_V.T)
    return float(dense_largest(total[None, :, :])[0])


def column_norms(
    jacobian: SingleOutputJacobian, attributes: list[Unknowns], sums: BlockSums
) -> Array:
    """Return the largest eigenvalue of the information about each attribute over the rows.

    With ``N = A X̃ᵀdiag(a²)X̃ Aᵀ`` and ``h = A X̃ᵀ(a r)`` it is that of::

        ‖w_V‖² N + (Σr²) A_V A_Vᵀ + (A_V w_V) hᵀ + h (A_V w_V)ᵀ

    ``N`` is diagonalised once. A single column is then a secular equation, all of them solved
    together; a group of columns an update of a diagonal by as many ranks as it has columns.
    ``sums`` are those with ``c = a²``.
    """
    xp = array_namespace(jacobian.X)
    A = jacobian.whitener
    delta, Q = xp.linalg.eigh(A @ sums.gram @ A.T)
    delta, h = xp.where(delta > 0, delta, xp.zeros_like(delta)), (A @ sums.along) @ Q
    whitener = Q.T @ A
    out = jacobian.zeros(len(attributes))
    single = {
        k: u.columns[0]
        for k, u in enumerate(attributes)
        if u.columns is not None and len(u.columns) == 1 and u.basis is None
    }
    for k in progress([k for k in range(len(attributes)) if k not in single], "attributes"):
        w = attributes[k].of(jacobian.w)
        U = attributes[k].of(whitener[:, : jacobian.features], axis=1)
        S = jacobian.zeros(w.shape[0] + 1, w.shape[0] + 1)
        S[:-1, :-1] = sums.spread * xp.eye(w.shape[0], dtype=w.dtype, device=w.device)
        S[:-1, -1] = S[-1, :-1] = w
        U = xp.concat([U, h[:, None]], axis=1)
        out[k] = largest_after_update(xp.sum(w * w) * delta, U, S)
    if single:
        columns = xp.asarray(list(single.values()), device=jacobian.X.device)
        w = jacobian.w[columns]
        values = largest_eigenvalue(
            w**2, delta, whitener[:, columns].T, h, sums.spread * xp.ones_like(w), w
        )
        out[list(single)] = xp.where(values > 0, values, xp.zeros_like(values))
    return out


def cell_totals(jacobian: SingleOutputJacobian, unknowns: Unknowns, sums: BlockSums) -> Array:
    """Return ``w_j² Σa²‖Ax̃‖² + 2 w_j (A_Vᵀ A X̃ᵀ(a r))_j + C_jj Σr²``, ``(t,)``.

    ``sums`` are those with ``c = a²``.
    """
    xp = array_namespace(jacobian.X)
    A, A_V, w_V = jacobian.restricted(unknowns)
    constant = xp.sum((A @ sums.gram) * A) * w_V**2
    spread = sums.spread * xp.sum(A_V**2, axis=0)
    return constant + 2 * w_V * (A_V.T @ (A @ sums.along)) + spread

"""The exact Cramér–Rao bound for records, cells and blocks; estimates may be biased or unbiased."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from seepage.core.jacobian import MeasuredRelease, Unknowns, inverse_gram_diagonal
from seepage.core.leakage import Columns, Leakage, PerRecord
from seepage.core.result import UNBIASED, Result
from seepage.errors import InputError
from seepage.support.number_check import check_choice
from seepage.tables.source import Array, Chunk, as_numpy

_BIASED = "The adversary's estimate has the stated bias."
_BLOCK_LIMIT = 5000  # most unknowns in a block, or released numbers, to form a matrix of


def cramer_rao_rows(
    leak: Leakage[PerRecord], columns: Columns = None, label: bool = False
) -> PerRecord:
    """Return the exact Cramér–Rao bound for each record, ``Tr(I⁻¹)/d``.

    ``I`` is the information about the record's d unknowns: its columns or the named columns, and
    with ``label=True`` its label. All else is assumed known. No unbiased estimate of all d unknowns
    has a smaller mean squared error per unknown. The bound is infinite if no unbiased estimate has
    a finite variance.
    """
    unknowns, about = leak.unknowns(columns, label)
    return leak.per_record("cramer_rao", unknowns, "rows", about, "mse", "bound", UNBIASED)


def cramer_rao_cells(leak: Leakage[PerRecord], columns: Columns = None) -> PerRecord:
    """Return the exact Cramér–Rao bound for each cell if all cells of its row are unknown.

    The bound for column j is ``(I⁻¹)_jj``, where ``I`` is the information about all unknown columns
    of the row: no unbiased estimate of the cell has a smaller variance. The adversary knows the
    other records and the label, but none of the row's columns (or none of the named columns). The
    bound is never below ``leak.cells().mse_bound()``, which assumes that the other cells of the row
    are known.
    """
    unknowns, _ = leak.unknowns(columns, False)
    about = "one cell, with the rest of its row unknown"
    assumptions = (
        UNBIASED[0],
        "The adversary knows the other records and the label, but nothing else in the row.",
        UNBIASED[2],
    )
    question = "cramer_rao_cells"
    return leak.per_record(question, unknowns, "cells", about, "mse", "bound", assumptions)


def cramer_rao(
    leak: Leakage[Any],
    rows: int | Sequence[int],
    columns: Columns = None,
    label: bool = False,
    rest: str = "known",
) -> Result:
    """Return the Cramér–Rao bound for any block of m unknowns, per unknown: ``Tr(I⁻¹)/m``.

    Parameters
    ----------
    leak
        The leakage of the release.
    rows, columns, label
        The block: from one cell (one row and one column) up to 5,000 unknowns. Labels are assumed
        known unless ``label=True``.
    rest
        ``"known"``: the adversary knows everything outside the block, the worst case.
        ``"unknown"``: the adversary knows nothing outside the block. The bound is then taken from
        the inverse of the full information; it is never below the bound with ``"known"`` (Hannun et
        al. 2021, equation 12). It is infinite if changes elsewhere in the table can move the
        release as some change of the block does, which is nearly always possible.
    """
    check_choice(rest, "rest", ("known", "unknown"))
    unknowns, about = leak.unknowns(columns, label)
    positions = as_numpy(leak.row_positions(rows))
    size = unknowns.count(leak.release.template) * len(positions)
    if size > _BLOCK_LIMIT:
        raise InputError(
            f"The block has {size} unknowns, more than the {_BLOCK_LIMIT} that can be inverted; "
            "choose fewer rows or columns."
        )
    if rest == "unknown" and leak.release.template.size > _BLOCK_LIMIT:
        raise InputError(
            f"More than {_BLOCK_LIMIT} numbers are released, too many to separate the block from "
            "the rest of the table; use rest='known'."
        )
    ask = partial(_write_out, release=leak.release, unknowns=unknowns, positions=positions)
    block = leak.source.total(partial(ask, rest=rest == "unknown"), "one block")
    J, assumptions = block.J, UNBIASED
    if rest == "unknown":
        J = block.out_of_reach_of_rest()
        assumptions = (UNBIASED[0], "The adversary knows nothing outside the block.", *UNBIASED[2:])
    xp = array_namespace(J)
    diagonal, errors = inverse_gram_diagonal(J[None, :, :], xp.reshape(xp.max(block.off), (1,)))
    return Result(
        xp.sum(diagonal) / size,
        "subset",
        "mse",
        kind="bound",
        about=about,
        assumptions=(*assumptions, *leak.assumptions(unknowns.label)),
        library=leak.source.library,
        noise=leak.noise,
        accuracy=float(xp.max(errors)),
        held=leak.held_about(unknowns.label),
    )


def biased(
    information: Any, bias_jacobian: Any = None, bias: Any = 0.0, *, mean_jacobian: Any = None
) -> Result:
    """Return the Cramér–Rao bound for an adversary with a known bias.

    The bound is infinite if the estimate depends on a direction about which there is no
    information.

    Let ``ψ(z) = z + bias(z)`` be the mean of the estimate and ``J_ψ = ∂ψ/∂z``. Then (Hannun et al.
    2021, equations 7 to 10; Guo et al. 2022, theorem 2, where ψ is called μ)::

        MSE per unknown  ≥  Tr(J_ψ I⁻¹ J_ψᵀ)/d + ‖bias‖²/d

    Parameters
    ----------
    information
        The information matrix ``I`` about the d unknowns, (d, d).
    bias_jacobian
        The Jacobian ``∂bias/∂z``, (d, d); minus the identity for an adversary who ignores the
        release.
    bias
        The bias at the true record, (d,) or one number.
    mean_jacobian
        ``J_ψ`` itself, as in the papers, in place of ``bias_jacobian``: the identity for an
        unbiased estimate, zero for an adversary who ignores the release.

    Examples
    --------
    Halving an unbiased estimate divides its variance by four and adds a bias:

    >>> import seepage as sp
    >>> float(sp.bounds.biased([[4.0]], mean_jacobian=[[0.5]], bias=-1.0))
    1.0625
    """
    I = square(information, "information")  # noqa: E741
    if (bias_jacobian is None) == (mean_jacobian is None):
        raise InputError("Give exactly one of bias_jacobian and mean_jacobian.")
    name = "mean_jacobian" if bias_jacobian is None else "bias_jacobian"
    slope = square(mean_jacobian if bias_jacobian is None else bias_jacobian, name)
    d = I.shape[0]
    if slope.shape != I.shape:
        raise InputError(
            f"{name} must have the shape {I.shape} of the information, not {slope.shape}."
        )
    J_psi = slope if bias_jacobian is None else np.eye(d) + slope
    offset = np.broadcast_to(np.asarray(bias, dtype=float), (d,))
    # Scaled to a unit diagonal, so that small units are not mistaken for a lack of information.
    diagonal = np.diagonal(I)
    scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    values, vectors = np.linalg.eigh((I + I.T) / 2 * np.outer(scale, scale))
    # Directions that the estimate ignores need no information; all others need some.
    along = ((J_psi @ (scale[:, None] * vectors)) ** 2).sum(axis=0)
    reached = ((np.abs(J_psi) @ np.abs(scale[:, None] * vectors)) ** 2).sum(axis=0)
    informed = values > 64 * d * np.finfo(float).eps * max(values[-1], 0.0)
    if np.any(along[~informed] > 1e-20 * np.maximum(reached[~informed], 1e-300)):
        variance = np.inf
    else:
        variance = float(np.sum(along[informed] / values[informed])) / d
    value = np.asarray(variance + float(offset @ offset) / d)
    assumptions = (_BIASED, *UNBIASED[1:])
    return Result(value, "subset", "mse", kind="bound", assumptions=assumptions)


def biased_leakage(result: Result, slope: Any = 1.0, bias: Any = 0.0) -> Result:
    """Return the bound that FIL or dFIL implies for an adversary with a known bias.

    Suppose that the mean of the estimate of unknown ``z_k`` has the slope ``γ_k`` in ``z_k`` and
    does not depend on the other unknowns. Let ``I`` be the information about the unknowns. Then
    (Guo et al. 2022, theorem 2, with ``(I⁻¹)_kk ≥ 1/η²`` for FIL and ``Σγ_k²(I⁻¹)_kk ≥
    (Σ|γ_k|)²/Tr(I)`` for dFIL)::

        MSE per unknown  ≥  mean(γ²)/η² + mean(bias²)      from FIL
        MSE per unknown  ≥  mean(|γ|)²/η̄² + mean(bias²)    from dFIL

    Parameters
    ----------
    result
        The result of ``leak.records()``, ``leak.records(measure="dfil")``, or another view.
    slope
        The slope γ: one number, or one per unknown of a record. With a slope of 1, the bias is
        constant; with a slope of 0, the estimate ignores the release.
    bias
        The bias at the true record, one number or one per unknown.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> model = sp.glm.LinearRegression(l2=1.0).fit(np.eye(3), np.arange(3.0))
    >>> leak = sp.leakage(model, np.eye(3), np.arange(3.0), noise=sp.Gaussian(1.0))
    >>> halved = sp.bounds.biased_leakage(leak.records(), slope=0.5)
    >>> float(halved[2] / leak.records().mse_bound()[2])
    0.25
    """
    unbiased = result.mse_bound()
    gamma, offset = np.atleast_1d(slope).astype(float), np.atleast_1d(bias).astype(float)
    if not (np.all(np.isfinite(gamma)) and np.all(np.isfinite(offset))):
        raise InputError("slope and bias must be finite numbers.")
    share = np.mean(gamma**2) if result.measure == "fil" else np.mean(np.abs(gamma)) ** 2
    xp = array_namespace(unbiased.values)
    # An estimate that ignores the release has no variance, however little leaks.
    variance = unbiased.values * float(share) if share else xp.zeros_like(unbiased.values)
    fixed = float(np.mean(offset**2))
    assumed = (_BIASED, *UNBIASED[1:], *result.assumptions)
    found = replace(unbiased, values=variance + fixed, assumptions=assumed)
    if not fixed:
        return found
    # More noise adds to the variance, and nothing to the bias.
    return replace(
        found, rescaled=lambda factor: replace(found, values=variance * factor**2 + fixed)
    )


def square(matrix: Any, what: str) -> np.ndarray:
    """Return a square matrix as an array, or raise an error."""
    out = as_numpy(matrix).astype(float)
    if out.ndim != 2 or out.shape[0] != out.shape[1]:
        raise InputError(f"{what} must be a square matrix, not of shape {out.shape}.")
    return out


@dataclass(frozen=True, eq=False)
class BlockAndRest:
    """A block's whitened Jacobian, and ``J Jᵀ`` of everything else; ``+`` combines two chunks."""

    J: Array  # the block's columns, ``(P, unknowns)``
    off: Array  # the columns' relative errors, ``(unknowns,)``
    reach: Array  # ``J Jᵀ`` of everything outside the block, ``(P, P)``, if asked for

    def __add__(self, other: BlockAndRest) -> BlockAndRest:
        xp = array_namespace(self.J)
        J, off = xp.concat([self.J, other.J], axis=1), xp.concat([self.off, other.off])
        return BlockAndRest(J, off, self.reach + other.reach)

    def out_of_reach_of_rest(self) -> Array:
        """Return ``J`` projected orthogonally to the columns of all other unknowns."""
        xp = array_namespace(self.reach)
        values, vectors = xp.linalg.eigh(self.reach)
        rounding = 64 * values.shape[0] * float(xp.finfo(values.dtype).eps)
        J = vectors[:, values <= rounding * float(values[-1])].T @ self.J
        # The rounding residue of a column within reach is no information.
        left, before = (xp.sum(part * part, axis=0) for part in (J, self.J))
        return xp.where(left > rounding**2 * before, J, xp.zeros_like(J))


def _write_out(
    chunk: Chunk, release: MeasuredRelease, unknowns: Unknowns, positions: np.ndarray, rest: bool
) -> BlockAndRest:
    """Return a chunk's part of the block; with ``rest``, also ``J Jᵀ`` of the rest of the chunk."""
    jacobian = release.jacobian(chunk)
    xp, size, d = array_namespace(jacobian.X), jacobian.size, jacobian.features
    first, last = np.searchsorted(positions, [chunk.start, chunk.start + len(chunk)])
    inside = positions[first:last] - chunk.start
    rows = xp.asarray(inside, device=jacobian.X.device)
    units = xp.eye(size, dtype=jacobian.X.dtype, device=jacobian.X.device)
    J, off = units[:, :0], units[0, :0]
    if len(inside):
        each = jacobian.row_jacobians(unknowns, rows)
        J = xp.reshape(xp.permute_dims(each, (1, 0, 2)), (size, -1))
        off = xp.reshape(jacobian.accuracy.entries(each, unknowns, rows), (-1,))
    if not rest:
        return BlockAndRest(J, off, 0.0)
    reach = xp.zeros_like(units)
    known = range(d) if unknowns.columns is None else unknowns.columns
    same_rows = Unknowns(tuple(j for j in range(d) if j not in known), not unknowns.label)
    others = np.setdiff1d(np.arange(len(chunk)), inside)
    others = xp.asarray(others, device=jacobian.X.device)
    for block, where in ((same_rows, rows), (Unknowns(None, True), others)):
        if where.shape[0] == 0 or block.count(jacobian) == 0:
            continue
        for k, unit in enumerate(units):
            change = jacobian.adjoint(unit, block, where)
            reach[k, :] += jacobian.forward(change, block, where)
    return BlockAndRest(J, off, reach)

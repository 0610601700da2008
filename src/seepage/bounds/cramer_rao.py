"""The exact Cramér–Rao bound on records, cells and blocks, for unbiased and biased estimates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from seepage.core.leakage import Columns, Leakage, PerRecord
from seepage.core.result import UNBIASED, Result
from seepage.core.spectra import inverse_diagonal
from seepage.core.unknowns import Unknowns
from seepage.errors import InputError
from seepage.tables.frames import as_numpy

Array = Any

_BIASED = "The adversary's estimate has the stated bias."
_BLOCK_LIMIT = 5000  # unknowns in a block whose information is written out


def cramer_rao_rows(
    leak: Leakage[PerRecord], columns: Columns = None, label: bool = False
) -> PerRecord:
    """Return the exact Cramér–Rao bound on each record, ``Tr(I⁻¹)/d``.

    No unbiased estimate of all the unknowns of a record together (its columns, or the named ones)
    has a smaller mean squared error per unknown. The label is known unless ``label`` is given.
    Infinite where no unbiased estimate exists. Of data that are read in chunks, the answer is
    computed as it is read or written.
    """
    unknowns, about = leak.unknowns(columns, label)
    return leak.per_record("cramer_rao", unknowns, "rows", about, "mse", "bound", UNBIASED)


def cramer_rao_cells(leak: Leakage[PerRecord], columns: Columns = None) -> PerRecord:
    """Return the exact Cramér–Rao bound on each cell while the rest of its row is unknown too.

    ``(I⁻¹)_jj``: no unbiased estimate of the cell has a smaller variance, when the adversary knows
    the other records and the label but none of the row's columns (or none of the named ones). It
    is never below ``leak.cells().mse_bound()``, where the rest of the row is known.
    """
    unknowns, _ = leak.unknowns(columns, False)
    about = "one cell, with the rest of its row unknown"
    assumptions = (
        UNBIASED[0],
        "The adversary knows the other records and the label, but nothing else of the row.",
        UNBIASED[2],
    )
    question = "cramer_rao_cells"
    return leak.per_record(question, unknowns, "cells", about, "mse", "bound", assumptions)


def cramer_rao(
    leak: Leakage,
    rows: int | Sequence[int],
    columns: Columns = None,
    label: bool = False,
    rest: str = "known",
) -> Result:
    """Return the Cramér–Rao bound on any block of the table, per unknown: ``Tr(I⁻¹)/m``.

    Parameters
    ----------
    leak
        The leakage of the release.
    rows, columns, label
        The block: one entry (one row and one column) up to a few thousand unknowns. The label is
        known unless ``label`` is given.
    rest
        ``"known"``: the adversary knows the rest of the table, the worst case. ``"unknown"``: none
        of it. The inverse of the full information then replaces that of the block; it can only be
        larger (paper 001, equation 12), and is infinite as soon as the rest of the table can
        explain every change of the release, as it nearly always can.
    """
    if rest not in ("known", "unknown"):
        raise InputError(f"rest must be 'known' or 'unknown', not {rest!r}.")
    jacobian = leak.jacobian
    unknowns, about = leak.unknowns(columns, label)
    positions = leak.row_positions(rows)
    size = jacobian.unknown_count(unknowns) * positions.shape[0]
    if size > _BLOCK_LIMIT:
        raise InputError(
            f"The block has {size} unknowns, more than the {_BLOCK_LIMIT} that can be inverted; "
            "ask about fewer rows or columns."
        )
    J = _dense(leak, unknowns, positions)
    assumptions = UNBIASED
    if rest == "unknown":
        J = _out_of_reach_of_rest(leak, unknowns, positions) @ J
        assumptions = (UNBIASED[0], "Nothing outside the block is known.", *UNBIASED[2:])
    xp = array_namespace(J)
    value = xp.sum(inverse_diagonal((J.T @ J)[None, :, :])) / size
    return Result(
        value,
        "subset",
        "mse",
        kind="bound",
        about=about,
        assumptions=assumptions,
        library=leak.table.library,
        noise=leak.noise,
    )


def biased(information: Any, bias_jacobian: Any, bias: Any = 0.0) -> Result:
    """Return the Cramér–Rao bound for an adversary with a known bias.

    Infinite where the estimate responds to a direction about which there is no information.

    With ``ψ(z) = z + bias(z)`` the mean of the estimate and ``J_ψ = I + ∂bias/∂z`` (paper 001,
    equation 9)::

        MSE per unknown  ≥  Tr(J_ψ I⁻¹ J_ψᵀ)/d + ‖bias‖²/d

    Parameters
    ----------
    information
        The information matrix ``I`` about the d unknowns.
    bias_jacobian
        ``∂bias/∂z``, (d, d); −1 times the identity for an adversary who ignores the release.
    bias
        The bias itself at the true record, (d,) or one number.
    """
    I = square(information, "information")  # noqa: E741
    slope = square(bias_jacobian, "bias_jacobian")
    d = I.shape[0]
    if slope.shape != I.shape:
        raise InputError(
            f"bias_jacobian must be {I.shape} like the information, not {slope.shape}."
        )
    J_psi = np.eye(d) + slope
    offset = np.broadcast_to(np.asarray(bias, dtype=float), (d,))
    # Directions the estimate ignores need no information; any other one needs some.
    values, vectors = np.linalg.eigh((I + I.T) / 2)
    along = ((J_psi @ vectors) ** 2).sum(axis=0)
    informed = values > 64 * d * np.finfo(float).eps * max(values[-1], 0.0)
    if np.any(along[~informed] > 1e-20 * d):
        variance = np.inf
    else:
        variance = float(np.sum(along[informed] / values[informed])) / d
    value = np.asarray(variance + float(offset @ offset) / d)
    assumptions = (_BIASED, *UNBIASED[1:])
    return Result(value, "subset", "mse", kind="bound", assumptions=assumptions)


def biased_leakage(result: Result, slope: Any = 1.0, bias: Any = 0.0) -> Result:
    """Return the bound that FIL or dFIL implies for an adversary with a known bias.

    With ``γ_k = ∂ψ_k/∂z_k`` the slope of the mean ``ψ(z)`` of each estimate in its own unknown, and
    all other slopes zero (paper 004, theorem 2, with ``(I⁻¹)_kk ≥ 1/η²`` for FIL and
    ``Σγ_k²(I⁻¹)_kk ≥ (Σ|γ_k|)²/Tr(I)`` for dFIL)::

        MSE per unknown  ≥  mean(γ²)/η² + mean(bias²)      from FIL
        MSE per unknown  ≥  mean(|γ|)²/η̄² + mean(bias²)    from dFIL

    Parameters
    ----------
    result
        ``leak.rows()``, ``leak.rows(measure="dfil")``, or another view.
    slope
        γ: one number, or one for each unknown of a record. 1 is unbiased up to a constant, 0
        ignores the release.
    bias
        The bias at the true record, one number or one for each unknown.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> model = sp.glm.LinearRegression(l2=1.0).fit(np.eye(3), np.arange(3.0))
    >>> leak = sp.leakage(model, np.eye(3), np.arange(3.0), noise=sp.Gaussian(1.0))
    >>> halved = sp.bounds.biased_leakage(leak.rows(), slope=0.5)
    >>> float(halved[2] / leak.rows().mse_bound()[2])
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
    values = variance + float(np.mean(offset**2))
    return replace(unbiased, values=values, assumptions=(_BIASED, *UNBIASED[1:]))


def square(matrix: Any, what: str) -> np.ndarray:
    """Read a square matrix."""
    out = as_numpy(matrix).astype(float)
    if out.ndim != 2 or out.shape[0] != out.shape[1]:
        raise InputError(f"{what} must be a square matrix, not of shape {out.shape}.")
    return out


def _dense(leak: Leakage, unknowns: Unknowns, rows: Array) -> Array:
    """Return the whitened Jacobian of a block, ``(P, unknowns)``, from products with it."""
    jacobian = leak.jacobian
    xp = array_namespace(jacobian.X)
    units = xp.eye(jacobian.size, dtype=jacobian.X.dtype, device=jacobian.X.device)
    lines = [xp.reshape(jacobian.adjoint(unit, unknowns, rows), (-1,)) for unit in units]
    return xp.stack(lines)


def _out_of_reach_of_rest(leak: Leakage, unknowns: Unknowns, rows: Array) -> Array:
    """Return an orthonormal basis of the release's directions that the rest cannot explain."""
    jacobian = leak.jacobian
    xp = array_namespace(jacobian.X)
    inside = set(range(jacobian.features)) if unknowns.columns is None else set(unknowns.columns)
    beside = tuple(j for j in range(jacobian.features) if j not in inside)
    mask = np.ones(jacobian.rows, dtype=bool)
    mask[as_numpy(rows)] = False
    others = xp.asarray(np.flatnonzero(mask), device=jacobian.X.device)
    reach = xp.zeros(
        (jacobian.size, jacobian.size), dtype=jacobian.X.dtype, device=jacobian.X.device
    )
    same_rows = Unknowns(beside, not unknowns.label)
    for block, where in ((same_rows, rows), (Unknowns(None, True), others)):
        if where.shape[0] == 0 or jacobian.unknown_count(block) == 0:
            continue
        for k in range(jacobian.size):
            unit = xp.zeros_like(reach[0, :])
            unit[k] = 1.0
            change = jacobian.adjoint(unit, block, where)
            reach[k, :] += jacobian.forward(change, block, where)
    values, vectors = xp.linalg.eigh(reach)
    tolerance = 64 * jacobian.size * float(xp.finfo(values.dtype).eps) * float(values[-1])
    return vectors[:, values <= tolerance].T

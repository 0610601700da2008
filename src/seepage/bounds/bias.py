"""Bounds for adversaries with a known bias, who may trade it for variance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from seepage.core.result import UNBIASED, Result
from seepage.errors import InputError
from seepage.tables.frames import as_numpy

BIASED = "The adversary's estimate has the stated bias."


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
    assumptions = (BIASED, *UNBIASED[1:])
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
    return replace(unbiased, values=values, assumptions=(BIASED, *UNBIASED[1:]))


def square(matrix: Any, what: str) -> np.ndarray:
    """Read a square matrix."""
    out = as_numpy(matrix).astype(float)
    if out.ndim != 2 or out.shape[0] != out.shape[1]:
        raise InputError(f"{what} must be a square matrix, not of shape {out.shape}.")
    return out

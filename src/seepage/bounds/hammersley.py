"""The Hammersley–Chapman–Robbins bound for a cell: a Cramér–Rao bound with finite changes.

Let ``w(Δ)`` be the release without noise if one cell were increased by Δ, let ``w = w(0)``, and let
the noise be Gaussian with standard deviation σ. An estimate that is unbiased at the cell's value
and at the increased value satisfies (Guo et al. 2022, theorem A.1)::

    variance  ≥  Δ² / χ²,     χ² = exp(‖w(Δ) − w‖²/σ²) − 1

This inequality is true for every Δ that keeps the cell within its domain; as Δ → 0, it becomes the
Cramér–Rao bound. The change of the release is computed exactly: a linear model is refitted; for a
gradient, the record's contribution is recomputed. For a linear model on an unbounded domain, the
bound is infinite: one cell changes the model by a limited amount, so no estimate of finite variance
is unbiased at every real number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seepage.bounds.van_trees import Domain
from seepage.core.leakage import Leakage
from seepage.core.noise import Gaussian, Laplace, Noise
from seepage.core.result import UNBIASED, Result
from seepage.errors import InputError
from seepage.tables.result_table import SummaryTable


@dataclass(frozen=True)
class FiniteChangeBound(SummaryTable):
    """The Hammersley–Chapman–Robbins bound for one cell.

    Parameters
    ----------
    bound
        The bound on the variance.
    change
        The change Δ of the cell that gives the bound; 0 if no finite change improves on the
        Cramér–Rao bound.
    cramer_rao
        The Cramér–Rao bound for the same cell, which never exceeds ``bound``.
    """

    bound: Result
    change: float
    cramer_rao: float

    def spans(self) -> Mapping[str, tuple[float, float, float]]:
        """Return both bounds on the variance, each as an interval without an upper end."""
        both = {"Hammersley–Chapman–Robbins": float(self), "Cramér–Rao": self.cramer_rao}
        return {name: (value, value, math.nan) for name, value in both.items()}

    def html_notes(self) -> tuple[str, ...]:
        """Return the assumptions shown in a notebook."""
        return self.bound.assumptions

    def __float__(self) -> float:
        return float(self.bound)


def hammersley_chapman_robbins(
    leak: Leakage[Any], row: int, column: str | int, *, domain: Any = None
) -> FiniteChangeBound:
    """Return the Hammersley–Chapman–Robbins bound for one cell if all other data are known.

    Parameters
    ----------
    leak
        The leakage of one release.
    row, column
        The cell: a row position, and a column by name or position.
    domain
        The domain on which the adversary's estimate is unbiased: the cell's limits ``(lower,
        upper)``, or the limits of every column in a form that :meth:`Domain.of
        <seepage.bounds.Domain.of>` accepts. The default is the column's range in the data.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(size=(60, 2))
    >>> y = (X[:, 0] > rng.uniform(size=60)).astype(int)
    >>> model = sp.glm.LogisticRegression(l2=1e-2).fit(X, y)
    >>> leak = sp.leakage(model, X, y, noise=sp.Gaussian(1.0))
    >>> found = sp.bounds.hammersley_chapman_robbins(leak, 0, "x1", domain=(0, 1))
    >>> float(found) >= found.cramer_rao
    True
    """
    refits, noise = leak.refits(), leak.noise[0]
    unknowns, about = leak.unknowns(column, False)
    assert unknowns.columns is not None  # noqa: S101 - told to the type checker
    if len(unknowns.columns) != 1:
        raise InputError("This bound applies to one cell; name a single column.")
    (j,) = unknowns.columns
    position = int(leak.row_positions([row])[0])
    limits = Domain.of_column(domain, leak.source, j)
    cells = leak.per_record("cells", unknowns, "cells", about)
    cramer_rao = float(cells.mse_bound()[position, 0])
    here = refits.X[position]
    rounding = refits.rounding * float(np.max(np.abs(refits.theta)))

    moves: dict[float, np.ndarray] = {}  # by change; they do not depend on the noise

    def moved(changes: np.ndarray) -> np.ndarray:
        new = [change for change in changes.tolist() if change not in moves]
        if new:
            features = np.repeat(here[None, :], len(new), axis=0)
            features[:, j] += new
            moves.update(zip(new, refits.moves(position, features), strict=True))
        return np.stack([moves[change] for change in changes.tolist()])

    def at_noise(noise: Noise, cramer_rao: float) -> tuple[float, float]:
        """Return the bound under this noise, and the change that gives it."""

        def logarithms(changes: np.ndarray) -> np.ndarray:
            """Return the logarithm of the bound for each change; −∞ if there is no minimiser."""
            shift = moved(changes)
            # Rounded away from zero: a move lost to rounding must not count as no move.
            divergence = renyi_of_shift(shift + np.copysign(rounding, shift), noise)
            # log(e^D − 1), without overflow
            chi = divergence + np.log(-np.expm1(-divergence))
            bounds = 2 * np.log(np.abs(changes)) - chi
            return np.where(np.isfinite(divergence), bounds, -np.inf)

        best, change = math.log(cramer_rao) if cramer_rao < math.inf else math.inf, 0.0
        for reach in (limits.lower[0] - here[j], limits.upper[0] - here[j]):
            if reach != 0 and best < math.inf:
                top, at = _largest(logarithms, float(reach))
                if top > best:
                    best, change = top, at
        return cramer_rao if change == 0 else math.exp(min(best, 709.0)), change

    value, change = at_noise(noise, cramer_rao)
    assumptions = (
        "The adversary's estimate is unbiased at every value that the cell may have.",
        UNBIASED[1],
        UNBIASED[2],
        limits.words,
        *leak.assumptions(label=False),
    )
    result = Result(
        np.asarray(value),
        "subset",
        "mse",
        kind="bound",
        about=f"{about} of one record",
        assumptions=assumptions,
        noise=leak.noise,
        held=leak.held_about(label=False),
    )

    def rescaled(factor: float) -> Result:
        found, _ = at_noise(noise.scaled(factor), cramer_rao * factor**2)
        return replace(result, values=np.asarray(found))

    return FiniteChangeBound(replace(result, rescaled=rescaled), change, cramer_rao)


def renyi_of_shift(shift: np.ndarray, noise: Noise) -> np.ndarray:
    """Return ``log(1 + χ²)`` between the noise and the noise shifted by each row of ``shift``.

    For a shift s and Gaussian noise of covariance Σ, the value is ``sᵀΣ⁻¹s``. For Laplace noise of
    scale b, it is ``Σ_k log(⅔e^t + ⅓e^(−2t))`` with ``t = |s_k|/b``.
    """
    if isinstance(noise, Laplace):
        t = np.abs(shift) / noise.scale
        return np.asarray(np.sum(t + np.log1p((np.exp(-3 * t) - 1) / 3), axis=1))
    if not isinstance(noise, Gaussian):
        raise InputError(
            f"The divergence of {noise!r} is not known; use sp.Gaussian or sp.Laplace."
        )
    information = noise.information(shift.shape[1])
    weighted = shift @ information if information.ndim == 2 else shift * information
    return np.asarray(np.sum(weighted * shift, axis=1))


def _largest(logarithms: Callable[[np.ndarray], np.ndarray], reach: float) -> tuple[float, float]:
    """Return the largest log bound over changes up to ``reach``, and the change that attains it."""
    from scipy.optimize import minimize_scalar

    # Below a thousandth of the way to the limit the refits' rounding shows, and the bound is all
    # but Cramér–Rao's.
    changes = reach * np.geomspace(1e-3, 1.0, 40)
    tried = logarithms(changes)
    k = int(np.argmax(tried))
    between = sorted((changes[max(k - 1, 0)], changes[min(k + 1, len(changes) - 1)]))
    found = minimize_scalar(
        lambda change: -float(logarithms(np.array([change]))[0]), bounds=between, method="bounded"
    )
    if -found.fun > tried[k]:
        return -float(found.fun), float(found.x)
    return float(tried[k]), float(changes[k])

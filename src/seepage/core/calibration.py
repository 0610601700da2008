"""Finds the noise that meets a target for the leakage or for a reconstruction error bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import brentq

from seepage.core.noise import Gaussian, Laplace, Noise
from seepage.core.result import GRID, RecordStream, Result, round_up
from seepage.errors import InputError, accepts_other_names
from seepage.risks.guessing import distance

_FURTHEST = 60.0  # the logarithm of the largest factor tried: double precision ends beyond


@accepts_other_names
def calibrate(
    leak: Any,
    *,
    eta: float | None = None,
    mse: float | None = None,
    right: float | None = None,
    over: str | float = "max",
    view: Result | RecordStream | None = None,
    grid: Sequence[float] | None = GRID,
) -> Noise:
    """Return the release's noise, scaled so that the leakage meets a target.

    The required noise depends on the data, above all on the most exposed record. Publishing its
    scale to many digits leaks information about that record; even an unpublished scale ``σ(D)`` of
    Gaussian noise on ``d`` numbers adds the Fisher information ``2d (∂ log σ)²``. The scale is
    therefore rounded up to a coarse grid. Small changes to a record then rarely affect the scale,
    but a larger change may move it to another grid point. Only a scale that is chosen without
    looking at the data reveals nothing about them.

    Leakage is inversely proportional to the scale of the noise (the information is ``JᵀJ/σ²``), so
    one measurement at any noise is enough: ``σ_new = σ · η(σ)/η_target``. Bounds that scale
    differently (van Trees, Hammersley–Chapman–Robbins, or with a stated bias) are recomputed until
    the noise meets the target.

    Parameters
    ----------
    leak
        The :class:`~seepage.core.leakage.Leakage`, with noise of any scale. For an attacker who
        does not know all other records, the randomness of the unknown records also protects each
        record.
    eta
        The target leakage.
    mse
        Instead of ``eta``, the target bound on the mean squared error: ``eta = 1/√mse``.
    right
        Instead of ``eta``, the largest success rate of membership inference (above 0.5, which is
        chance). For an attacker who knows all other records, ``μ`` is inversely proportional to σ.
        For any other attacker, μ is an estimate, recomputed without refits: check the result with
        ``membership(exact=10)``.
    over
        The statistic that must meet the target: the ``"max"`` over the view, its ``"mean"``, or a
        quantile between 0 and 1. With 0.99, for example, all but the most exposed 1 % meet the
        target. With ``mse``, ``"mean"`` is the mean of the bounds.
    view
        A result of ``leak`` to calibrate, such as ``leak.columns()``,
        ``leak.records(measure="dfil")`` or the bound ``sp.bounds.cramer_rao_rows(leak)``. The
        default is the FIL of every record, or of every person if identities are known.
    grid
        The grid points in a decade: 1, 1.5, 2, 3, 5 and 7 by default. The grid applies to σ itself;
        for noise with a vector or a covariance matrix, it applies to the factor that scales the
        noise. ``None`` returns the exact value, which is as sensitive as the records.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> X, y = np.eye(4), np.arange(4.0)
    >>> leak = sp.leakage(sp.glm.LinearRegression(l2=1.0).fit(X, y), X, y, noise=sp.Gaussian(1.0))
    >>> sp.calibrate(leak, eta=0.01)
    Gaussian(70)
    >>> noise = sp.calibrate(leak, eta=0.01, grid=None)
    >>> model = sp.glm.LinearRegression(l2=1.0).fit(X, y)
    >>> round(sp.leakage(model, X, y, noise=noise).records().max(), 12)
    0.01
    """
    if sum(one is not None for one in (eta, mse, right)) != 1:
        raise InputError(
            "Give exactly one target: eta (leakage), mse (error bound) or right (largest success "
            "rate of membership inference)."
        )
    if right is not None:
        if not 0.5 < right < 1:
            raise InputError(f"right must be a probability between 0.5 and 1, not {right!r}.")
        eta = float(distance(right, 0.5))
    target = eta if mse is None else mse
    if target is None or not math.isfinite(target) or target <= 0:
        raise InputError(f"The target must be a finite number above zero, not {target}.")
    if not leak.noise:
        raise InputError(
            "There is no noise to scale; first measure with noise=sp.Gaussian(1.0), or with any "
            "other scale."
        )
    if len(leak.noise) != 1:
        raise InputError(
            "Only a single release can be calibrated; calibrate each release separately."
        )
    if view is None and right is not None:
        view = leak.membership().mu
    elif view is None:
        view = leak.records(measure="fil") if leak.person is None else leak.people()
    result = view.result()
    if result.noise != leak.noise:
        raise InputError(
            "The view was measured with different noise; use a view of the leakage to be "
            "calibrated."
        )
    if result.rescaled is not None:
        factor = _factor(result, target, mse is not None, over)
    elif mse is not None and over == "mean":
        # The mean of 1/η² grows as σ².
        factor = math.sqrt(mse / _mean_bound(result))
    else:
        now = _summary(result, over)
        if now == 0:
            raise InputError(
                "Nothing leaks in this view, so the target is met without noise; calibrate with "
                "another view."
            )
        if right is not None and math.isinf(now):
            raise InputError(
                "No amount of noise is enough: without one of the records, the model has no "
                "unique fit, so membership inference on that record always succeeds. Leave out "
                "the column that only this record determines, or add a penalty."
            )
        factor = now / (eta if eta is not None else target**-0.5)
    return leak.noise[0].scaled(factor) if grid is None else _coarse(leak.noise[0], factor, grid)


def _coarse(noise: Noise, factor: float, grid: Sequence[float]) -> Noise:
    """Return noise of at least ``factor`` times the given noise.

    The scale of the noise (the factor, if there are several scales) is rounded up to the grid.
    """
    if isinstance(noise, Gaussian) and np.ndim(noise.sigma) == 0:
        return replace(noise, sigma=round_up(factor * noise.sigma, grid))
    if isinstance(noise, Laplace) and np.ndim(noise.scale) == 0:
        return Laplace(round_up(factor * noise.scale, grid))
    return noise.scaled(round_up(factor, grid))


def _factor(result: Result, target: float, error: bool, over: str | float) -> float:
    """Return the noise factor for a bound that is not proportional to the variance of the noise.

    The bound still increases with the noise, so a root search finds the factor if one exists.
    """

    def excess(logarithm: float) -> float:
        rescaled = result.rescaled(math.exp(logarithm))  # type: ignore[misc]
        if error and over == "mean":
            return math.log(float(np.mean(np.asarray(rescaled, dtype=float)))) - math.log(target)
        reached = max(_summary(rescaled, over), 1e-300)
        wanted = target**-0.5 if error else target
        return 2 * (math.log(wanted) - math.log(reached))

    low, high = -1.0, 1.0
    while excess(low) > 0:
        low *= 2
        if low < -_FURTHEST:
            raise InputError(
                "The target is met without noise, so there is nothing to calibrate; choose a "
                "stricter target, or an attacker who knows more."
            )
    while excess(high) < 0:
        high *= 2
        if high > _FURTHEST:
            raise InputError(
                "No amount of noise makes this bound meet the target, because the prior, or the "
                "stated bias and domain, limits it; choose a smaller mse or a larger eta."
            )
    return math.exp(float(brentq(excess, low, high, xtol=1e-10)))


def _summary(result: Result, over: str | float) -> float:
    """Return the largest leakage of a view, its mean or a quantile."""
    leakage = _as_leakage(result)
    if over == "max":
        return float(np.max(leakage))
    if over == "mean":
        return float(np.mean(leakage))
    if not (isinstance(over, int | float) and 0 <= over <= 1):
        raise InputError(f"over must be 'max', 'mean' or a quantile between 0 and 1, not {over!r}.")
    return float(np.quantile(leakage, over))


def _as_leakage(result: Result) -> np.ndarray:
    """Return leakage unchanged; convert a bound to the leakage that implies it."""
    values = np.asarray(result, dtype=float)
    power = {"mse": -0.5, "std": -1.0}.get(result.measure, 1.0)
    return values if power == 1.0 else np.asarray(values**power)


def _mean_bound(result: Result) -> float:
    """Return the mean of the bounds ``1/η²`` that the leakage implies."""
    leakage = _as_leakage(result)
    if not np.all(leakage > 0):
        raise InputError(
            "Some entries do not leak, so the mean of the bounds is infinite; use "
            "over='max' or a quantile."
        )
    return float(np.mean(leakage**-2.0))

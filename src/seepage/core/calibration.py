"""How much noise buys a wanted leakage, or a wanted bound on the reconstruction error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from seepage.core.leakage import Leakage
from seepage.core.noise import Noise
from seepage.core.record_stream import RecordStream
from seepage.core.result import Result
from seepage.errors import InputError


def calibrate(
    leak: Leakage[Any],
    *,
    eta: float | None = None,
    mse: float | None = None,
    over: str | float = "max",
    view: Result | RecordStream | None = None,
) -> Noise:
    """Return the noise, of the same shape, with which the leakage meets a target.

    Leakage is inversely proportional to the scale of the noise (the information is ``JᵀJ/σ²``),
    so one measurement at any noise answers for all: ``σ_new = σ · η(σ)/η_wanted``.

    Parameters
    ----------
    leak
        The leakage at any noise.
    eta
        The wanted leakage.
    mse
        Instead of ``eta``, the wanted bound on the mean squared error: ``eta = 1/√mse``.
    over
        What the target is about: the ``"max"`` over the view, its ``"mean"``, or a quantile
        between 0 and 1 (0.99: all but the most leaked hundredth meet the target). With ``mse``,
        ``"mean"`` is the mean of the bounds.
    view
        A result of ``leak`` to calibrate, such as ``leak.columns()``, ``leak.rows(measure="dfil")``
        or the bound ``sp.bounds.cramer_rao_rows(leak)``; the records' FIL when not given.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> X, y = np.eye(4), np.arange(4.0)
    >>> leak = sp.leakage(sp.glm.LinearRegression(l2=1.0).fit(X, y), X, y, noise=sp.Gaussian(1.0))
    >>> noise = sp.calibrate(leak, eta=0.01)
    >>> model = sp.glm.LinearRegression(l2=1.0).fit(X, y)
    >>> float(np.max(sp.leakage(model, X, y, noise=noise).rows()).round(12))
    0.01
    """
    if (eta is None) == (mse is None):
        raise InputError("Give either eta (the wanted leakage) or mse (the wanted error bound).")
    target = eta if mse is None else mse
    if target is None or not math.isfinite(target) or target <= 0:
        raise InputError(f"The target must be a finite number above zero, not {target}.")
    if len(leak.noise) != 1:
        raise InputError("Only a single release can be calibrated; calibrate each part alone.")
    result = leak.rows() if view is None else view
    if over == "max" and isinstance(result, RecordStream):
        result = result.top(1)  # all that is needed of it, without holding the rest
    if result.noise != leak.noise:
        raise InputError("The view was measured at another noise; take it from this very leak.")
    values = _as_leakage(result)
    if mse is not None and over == "mean":
        if not np.all(values > 0):
            raise InputError("Some entries do not leak: the mean of their bounds is infinite.")
        # The mean of 1/η² grows as σ².
        return leak.noise[0].scaled(math.sqrt(mse / float(np.mean(values**-2.0))))
    now = _summary(values, over)
    if now == 0:
        raise InputError("Nothing leaks in this view, so no noise is needed to meet the target.")
    wanted = eta if eta is not None else target**-0.5
    return leak.noise[0].scaled(now / wanted)


def _as_leakage(result: Result | RecordStream) -> np.ndarray:
    """Return leakage as it is and bounds as the leakage that would imply them."""
    values = np.asarray(result, dtype=float)
    if result.measure == "mse":
        return np.asarray(values**-0.5)
    return np.asarray(values**-1.0) if result.measure == "std" else values


def _summary(values: np.ndarray, over: str | float) -> float:
    if over == "max":
        return float(np.max(values))
    if over == "mean":
        return float(np.mean(values))
    if isinstance(over, int | float) and 0 <= over <= 1:
        return float(np.quantile(values, over))
    raise InputError(f"over must be 'max', 'mean' or a quantile between 0 and 1, not {over!r}.")

"""The error rates that leave with a large release: without noise, with it, and how likely they are.

Given the released model, which is counted already, adding, removing or replacing a record moves the
share of wrong predictions by at most ``1/(n − 1)``, and so the least such share of all constants;
with Laplace noise of scale ``2/((n − 1) ε)`` on each, both together are ε-differentially private.
Of n people, each with any number of records, the share is the mean of everybody's own, which one
person moves by no more than that.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import laplace

from seepage.auditing.release.card import Usefulness
from seepage.auditing.release.procedure import Prepared
from seepage.auditing.release.released_model import ReleasedModel
from seepage.auditing.report.words import many
from seepage.core.noise import Laplace
from seepage.tables.source import distinct


def noisy_error_rates(model: ReleasedModel, prepared: Prepared) -> Usefulness | None:
    """Return how often the noisy model and a constant are wrong on its own records, with noise.

    Nothing of fewer than a thousand: the noise would hide it.
    """
    unit_of = prepared.trained.unit
    least = prepared.figures[f"number of {many(unit_of)}"]
    if least < 1000:
        return None
    noise, epsilon = rate_noise(least)
    exact = exact_error_rates(model, prepared)
    share, constant = np.clip(noise.rounded(exact + noise.draw(2)), 0, 1).tolist()
    unit = prepared.figures.get("unit of the target")
    return Usefulness(share, constant, noise.scale, epsilon, unit, unit_of)


def rate_noise(people: int, epsilon: float = 0.05) -> tuple[Laplace, float]:
    """Return the noise on each error rate, and the ε of both together."""
    return Laplace(2 / ((people - 1) * epsilon)), epsilon


def exact_error_rates(model: ReleasedModel, prepared: Prepared) -> np.ndarray:
    """Return the error rates of a model with noise, and of the best constant, before their noise.

    A number is wrong if it is off by more than the published unit.
    """
    source = prepared.trained.records
    weight = 1 / np.bincount(source.owner)[source.owner]
    weight /= weight.sum()
    predicted = model.estimator.predict(source.X)
    truth, unit = source.y, prepared.figures.get("unit of the target")
    if unit is not None:
        wrong = np.abs(np.asarray(predicted, float) - np.asarray(truth, float)) > unit
    else:
        wrong = np.asarray(predicted) != np.asarray(truth)
    return np.array([weight @ wrong, wrong_constant(np.asarray(truth), unit, weight)])


def wrong_constant(truth: np.ndarray, unit: float | None, weight: np.ndarray) -> float:
    """Return how often the best constant is wrong: the commonest class, or the fullest window.

    Every record counts by its weight; they add up to one. A number is off by more than the unit
    outside a window of two units around the constant; the fullest window may begin at a record.
    """
    if unit is None:
        return float(1 - np.bincount(distinct(truth)[1], weight).max())
    order = np.argsort(truth.astype(float), kind="stable")
    numbers, below = truth.astype(float)[order], np.cumsum([0.0, *weight[order]])
    inside = below[np.searchsorted(numbers, numbers + 2 * unit, "right")] - below[:-1]
    return float(1 - inside.max())


def log_likelihood(rates: Usefulness, exact: np.ndarray) -> float:
    """Return the log-likelihood of published error rates, up to a constant, if these are exact.

    A rate that was cut to 0 or 1 may have been anything beyond.
    """
    seen = np.array([rates.share, rates.constant])
    apart = (seen - exact) / rates.scale
    inside = np.where(seen <= 0, laplace.logcdf(apart), laplace.logpdf(apart))
    return float(np.sum(np.where(seen >= 1, laplace.logsf(apart), inside)))

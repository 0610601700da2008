"""Errors of a model on training and held-out records: its usefulness, and the generalisation gap.

All errors are those of shadow models fitted on random halves of the records. Such models tend to be
a little worse than a model fitted on all records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri
from scipy.stats import ks_2samp

from seepage.attacks.intervals import Contrast, contrast
from seepage.auditing.findings import UsefulnessFinding


@dataclass(frozen=True)
class HeldOutFinding:
    """A model's held-out error, compared with that of a constant prediction.

    Parameters
    ----------
    error_name
        ``error rate`` for a classifier, ``root mean squared error`` for a regressor.
    error, low, high
        The held-out error, with a 95 % interval.
    constant
        The held-out error of a constant prediction: the most frequent class, or the mean, of the
        training records.
    advantage, advantage_low, advantage_high
        The held-out error of the constant prediction minus that of the model, with a 95 % interval.
    own
        The error on the training records.
    gap, gap_low, gap_high
        The generalisation gap: held-out error minus training error, with a 95 % interval.
    distance, p_value
        The Kolmogorov–Smirnov distance between the losses of members and non-members, and its
        P-value. The distance and the P-value are for the attacked model with the smallest P-value.
        The P-value is multiplied by the number of attacked models (Bonferroni).
    models
        The number of fitted models.
    """

    error_name: str
    error: float
    low: float
    high: float
    constant: float
    advantage: float
    advantage_low: float
    advantage_high: float
    own: float
    gap: float
    gap_low: float
    gap_high: float
    distance: float
    p_value: float
    models: int

    @property
    def compared(self) -> str:
        """A comparison with a constant prediction: ``better``, ``not told apart`` or ``worse``."""
        ends = self.advantage_low, self.advantage_high
        return UsefulnessFinding(self.advantage, *ends, self.models).compared


def record_errors(model: Any, X: Any, y: np.ndarray) -> np.ndarray:
    """Return whether each record is misclassified, or its squared residual, (n,)."""
    said = np.asarray(model.predict(X)).reshape(len(y), -1)[:, 0]
    if getattr(model, "classes_", None) is not None:
        return np.asarray(said != y, dtype=float)
    return np.asarray((said.astype(float) - y.astype(float)) ** 2)


def compare_held_out(
    errors: np.ndarray,
    signals: np.ndarray,
    inside: np.ndarray,
    y: np.ndarray,
    *,
    classes: bool,
    targets: int,
) -> HeldOutFinding:
    """Return the errors of models fitted on random halves, for members and for non-members.

    For each of M models and n records, (M, n), ``errors`` contains the result of
    :func:`record_errors`, ``signals`` the model's confidence in the record, and ``inside`` whether
    the model was fitted on it. ``y`` contains the labels, (n,). The first ``targets`` models are
    attacked.
    """
    constants = np.stack([_constant_errors(y, half, classes) for half in inside])
    model, constant = contrast(errors, inside), contrast(constants, inside)
    if classes:
        own, held, beside = model.inside, model.outside, constant.outside
        gap, gain = contrast(errors, inside), contrast(constants - errors, inside)
        apart = -gap.difference, gap.difference_error
        error = held, model.outside_error
    else:
        # The delta method: d√m = dm / 2√m
        own, held, beside = (
            math.sqrt(max(value, 0.0)) for value in (model.inside, model.outside, constant.outside)
        )
        # A perfect fit has no error to divide by, and none to divide
        least = 1e-12 * max(held, beside, np.finfo(float).tiny)
        scaled = errors / max(2 * held, least)
        gain = contrast(constants / max(2 * beside, least) - scaled, inside)
        weights = np.where(inside, -np.where(inside, errors, 0.0) / max(2 * own, least), scaled)
        apart = held - own, _sum_error(weights, inside)
        error = held, contrast(scaled, inside).outside_error
    tests = [
        ks_2samp(-signal[half], -signal[~half])
        for signal, half in zip(signals[:targets], inside[:targets], strict=True)
    ]
    worst = min(tests, key=lambda test: float(test.pvalue))
    return HeldOutFinding(
        "error rate" if classes else "root mean squared error",
        held,
        *_ends(*error),
        beside,
        beside - held,
        *_ends(beside - held, gain.outside_error),
        own,
        apart[0],
        *_ends(*apart),
        float(worst.statistic),
        min(1.0, targets * float(worst.pvalue)),
        len(inside),
    )


def _sum_error(values: np.ndarray, inside: np.ndarray) -> float:
    """Return the standard error of the sum of two means: over members, and over non-members."""
    found: Contrast = contrast(np.where(inside, values, -values), inside)
    return found.difference_error


def _constant_errors(y: np.ndarray, half: np.ndarray, classes: bool) -> np.ndarray:
    if classes:
        known, counts = np.unique(y[half], return_counts=True)
        return np.asarray(y != known[np.argmax(counts)], dtype=float)
    numbers = y.astype(float)
    return np.asarray((numbers - numbers[half].mean()) ** 2)


def _ends(middle: float, error: float) -> tuple[float, float]:
    reach = float(ndtri(0.975)) * error
    return middle - reach, middle + reach

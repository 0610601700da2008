"""How exposed a record or a column is, measured against the limit that matters to the caller."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seepage.auditing.measures.findings import AttributeFinding, Findings

_TOLERANCE = 1e-6  # of the limit: noise calibrated to a target meets it up to rounding


@dataclass(frozen=True)
class Limit:
    """The leakage a record should not exceed, and where that number comes from, in words."""

    eta: float
    words: str


def find_limit(audit: Findings) -> Limit:
    """Return the caller's gate, else the target of the calibration, else one standard deviation."""
    for gate in audit.gates:
        if gate.name == "--max-eta":
            return Limit(gate.limit, "your limit")
    if audit.target_eta is not None:
        return Limit(audit.target_eta, "the target")
    return Limit(1.0, "the yardstick")


def count_over(audit: Findings) -> int:
    """Return how many records leak more than the limit."""
    return audit.records.over(find_limit(audit).eta * (1 + _TOLERANCE))


def relative_error(attribute: AttributeFinding, error: float) -> float:
    """Return an attack's error as a share of what a column varies by anyway.

    That is its standard deviation for numbers. A category's error is on its one-hot code, where 1
    is a whole level, and stays as it is.
    """
    if attribute.kind == "numeric" and np.isfinite(attribute.spread) and attribute.spread > 0:
        return float(error / attribute.spread)
    return float(error)


def protection(attribute: AttributeFinding) -> str:
    """Return ``strong``, ``partial`` or ``weak`` for the easiest record of a column.

    Strong: the best unbiased attack errs by at least the spread of the column (a whole level of a
    category), so it tells less than the column's own variation. Weak: by less than half of it.
    """
    error = relative_error(attribute, attribute.smallest_error)
    if error >= 1 - _TOLERANCE:
        return "strong"
    return "partial" if error >= 0.5 else "weak"


def most_exposed(attributes: tuple[AttributeFinding, ...]) -> tuple[AttributeFinding, ...]:
    """Return the attributes from the easiest to attack to the hardest."""
    return tuple(sorted(attributes, key=lambda a: relative_error(a, a.smallest_error)))


def error_at(audit: Findings, sigma: float) -> float | None:
    """Return the model's test error at a noise scale, read off the curve, or None outside it."""
    scales, errors = np.asarray(audit.curve.sigma), np.asarray(audit.curve.error)
    order = np.argsort(scales)
    scales, errors = scales[order], errors[order]
    if not (len(scales) and scales[0] > 0 and scales[0] <= sigma <= scales[-1]):
        return None
    return float(np.interp(np.log(sigma), np.log(scales), errors))


def usefulness(audit: Findings, sigma: float) -> float | None:
    """Return how much of the model's advantage over a constant prediction survives the noise.

    1 is all of it, 0 none; None where the curve does not tell.
    """
    error = error_at(audit, sigma)
    gain = audit.curve.trivial_error - audit.curve.noiseless_error
    if error is None or not gain > 0:
        return None
    return float(np.clip((audit.curve.trivial_error - error) / gain, 0, 1))

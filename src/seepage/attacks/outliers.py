"""How well a score detects records from another distribution: ROC curve and its area.

Mueller et al. (2022) find that records with a high total PLIS are often atypical or from another
distribution. A test with known outliers measures how well the score detects them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seepage.attacks.intervals import ConfidenceInterval, area_under_curve
from seepage.errors import InputError
from seepage.tables.result_table import ResultTable, draw_curve
from seepage.tables.source import as_numpy, build_frame

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class OutlierDetection(ResultTable):
    """Detection rates when all records with a score at or above a threshold are flagged.

    Parameters
    ----------
    area
        The area under the ROC curve: the probability that an outlier has a higher score than an
        ordinary record.
    interval
        The confidence interval of the area (:mod:`seepage.attacks.intervals`).
    thresholds
        The scores in descending order; the first threshold is infinite and flags no record.
    false_alarms, detections
        The false and true positive rates at each threshold: the shares of ordinary records and of
        outliers that are flagged.
    level
        The confidence level.
    kind
        ``attack``: an empirical test.
    """

    area: float
    interval: ConfidenceInterval
    thresholds: Numbers
    false_alarms: Numbers
    detections: Numbers
    level: float = 0.95
    kind: str = "attack"

    value_column = "detections"

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with one row per threshold."""
        columns = {
            "threshold": self.thresholds,
            "false_alarms": self.false_alarms,
            "detections": self.detections,
        }
        return build_frame(columns, library or "pyarrow")

    def plot(self, ax: Any = None) -> Any:
        """Draw the ROC curve, and return the matplotlib axes."""
        label = f"area {self.area:.3f}"
        return draw_curve(ax, self.false_alarms, self.detections, label)

    def __repr__(self) -> str:
        low, high = self.interval.low, self.interval.high
        return (
            f"<outlier detection: area under the curve {self.area:.3f} "
            f"({100 * self.level:g} % CI {low:.3f} to {high:.3f})>"
        )

    def detected_at(self, false_alarms: float) -> float:
        """Return the share of outliers flagged at this false positive rate or below."""
        if not 0 <= false_alarms <= 1:
            raise InputError(
                f"A false positive rate must be between 0 and 1, but is {false_alarms!r}."
            )
        return float(self.detections[self.false_alarms <= false_alarms].max())


def out_of_distribution(inside: Any, outside: Any, level: float = 0.95) -> OutlierDetection:
    """Test how well a score per record, such as PLIS, detects known outliers.

    Parameters
    ----------
    inside
        The scores of ordinary records: numbers, a tensor, or ``sp.nn.plis(…).records()``.
    outside
        The scores of records from another distribution.
    level
        The level of the confidence interval.

    Examples
    --------
    >>> import seepage as sp
    >>> found = sp.attacks.out_of_distribution([0.1, 0.2, 0.3, 0.9], [0.5, 0.8, 1.0])
    >>> round(found.area, 3), found.detected_at(0.0)
    (0.833, 0.3333333333333333)
    """
    scores = []
    for name, given in (("inside", inside), ("outside", outside)):
        numbers = np.asarray(as_numpy(getattr(given, "values", given)), dtype=np.float64)
        if numbers.ndim != 1 or not len(numbers):
            raise InputError(f"{name} must contain one score per record.")
        if not np.isfinite(numbers).all():
            raise InputError(f"{name} contains scores that are not finite; drop those records.")
        scores.append(numbers)
    from sklearn.metrics import roc_curve

    every = np.concatenate(scores)
    truth = np.repeat([False, True], [len(part) for part in scores])
    area, interval = area_under_curve(every, truth, level)
    alarms, detections, thresholds = roc_curve(truth, every, drop_intermediate=False)
    return OutlierDetection(area, interval, thresholds, alarms, detections, level)

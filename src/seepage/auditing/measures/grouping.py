"""How evenly leakage is spread over groups of records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seepage.auditing.measures.findings import GroupFinding, GroupingFinding
from seepage.auditing.measures.measure import Measured, group_leakage
from seepage.errors import InputError

_MOST_GROUPS = 100


def compare_groups(
    column: str, labels: np.ndarray, measured: Measured, sigma: float
) -> GroupingFinding:
    """Return the leakage of the records of each group, and how evenly it is spread."""
    known, inverse = np.unique(np.asarray(labels).astype(str), return_inverse=True)
    if len(known) > _MOST_GROUPS:
        raise InputError(
            f"The grouping column {column!r} has {len(known)} different values, more than the "
            f"{_MOST_GROUPS} groups that can be compared; group by a column with fewer, such as "
            "age bands instead of ages."
        )
    groups = []
    for k, label in enumerate(known):
        rows = np.flatnonzero(inverse.reshape(-1) == k)
        eta = measured.eta[rows] / sigma
        groups.append(
            GroupFinding(
                str(label),
                len(rows),
                float(np.mean(eta)),
                float(np.max(eta)),
                group_leakage(measured, rows) / sigma,
            )
        )
    return grouping_of(column, groups)


def grouping_of(column: str, groups: Sequence[GroupFinding]) -> GroupingFinding:
    """Return how evenly leakage is spread over the groups of a column."""
    ordered = sorted(groups, key=lambda group: group.mean_eta)
    least, most = ordered[0].mean_eta, ordered[-1].mean_eta
    ratio = most / least if least > 0 else (1.0 if most == 0 else float("inf"))
    return GroupingFinding(column, tuple(groups), ratio, ordered[0].label, ordered[-1].label)

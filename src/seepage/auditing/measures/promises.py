"""Every bound on what can be found out about the most exposed record, for the report."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from seepage.auditing.measures.subject import Subject
from seepage.bounds.guarantees import Guarantees, guarantees
from seepage.core.noise import Gaussian
from seepage.errors import InputError
from seepage.glm.leakage import leakage

_TOO_HEAVY = 2e9  # multiplications in one pass over the table; the table of bounds takes many
_DRAWS = 64  # from the adversary's prior: an uncertainty of a few per cent


def find_guarantees(subject: Subject, sigma: float) -> Guarantees | None:
    """Return the bounds on the record with the largest dFIL, in standard deviations.

    ``None`` where they are not known: for columns that are not features themselves, and for tables
    so large that they would take minutes.
    """
    rows, features = subject.X.shape
    if subject.basis() is not None or float(rows) * features * features > _TOO_HEAVY:
        return None
    table = pa.table(list(subject.X.T), names=_feature_names(subject))
    leak = leakage(
        subject.model, table, subject.y, noise=Gaussian(sigma), sample_weight=subject.sample_weight
    )
    try:
        found = guarantees(leak, draws=_DRAWS)
    except InputError:
        return None
    return replace(found, label=str(subject.row_index[found.row]))


def _feature_names(subject: Subject) -> list[str]:
    """Return a name for every feature; those of one category are counted."""
    names = [f"feature {j}" for j in range(subject.X.shape[1])]
    for attribute in subject.attributes:
        for k, j in enumerate(attribute.columns, 1):
            several = len(attribute.columns) > 1
            names[j] = f"{attribute.name} ({k})" if several else attribute.name
    taken: set[str] = set()
    for j in range(len(names)):
        while names[j] in taken:  # a column may well be called like another's feature
            names[j] += "′"
        taken.add(names[j])
    return names

"""People with several records: the person of each record, and which records change together.

Records with the same identity belong to one person. Results about people cover all their records:
the records are unknown together (:meth:`~seepage.core.leakage.Leakage.people`) and removed together
(membership), and an attribute of the person changes in all of them (attribute inference).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from seepage.core.questions import is_missing, members
from seepage.errors import InputError
from seepage.tables.source import Chunk, RowSource, as_numpy, check_length, check_order, row_labels


@dataclass(frozen=True, eq=False)
class Together:
    """Sets of records that are removed or changed together, one for each entry of a result."""

    view: str  # of the result: ``groups`` or ``people``
    names: np.ndarray  # what each set is called, sorted
    sets: np.ndarray  # the positions of its records, arrays as objects

    @classmethod
    def of(cls, view: str, labels: np.ndarray) -> Together:
        """Return the set of records with each label, in the order of the labels."""
        by_label = members(labels)
        return cls(view, np.fromiter(by_label, object), np.fromiter(by_label.values(), object))

    def at(self, which: np.ndarray | None) -> Together:
        """Return the sets at the given positions; ``None`` means all."""
        if which is None:
            return self
        return replace(self, names=self.names[which], sets=self.sets[which])

    def holding(self, rows: np.ndarray | None) -> Together:
        """Return the sets that contain any of the given records; ``None`` means all."""
        if rows is None:
            return self
        chosen = [bool(np.isin(positions, rows).any()) for positions in self.sets]
        return replace(self, names=self.names[chosen], sets=self.sets[chosen])


class Identities:
    """The person of each record of a source.

    Parameters
    ----------
    by
        The name of a column that is not a feature, or an identity for each record.
    source
        The records.
    """

    def __init__(self, by: Any, source: RowSource) -> None:
        self.source = source
        self.by: str | np.ndarray = by if isinstance(by, str) else identities(by, source)
        if isinstance(by, str) and by in (*source.names, *source.attributes):
            raise InputError(is_a_feature(by))

    @property
    def beside(self) -> tuple[str, ...]:
        """The columns that a pass over the records must read in addition to the features."""
        return (self.by,) if isinstance(self.by, str) else ()

    @cached_property
    def together(self) -> Together:
        """The records of each person, in the order of the identities."""
        labels = self.by
        if isinstance(labels, str):
            read = self.source.each(self._of_chunk, "people", self.beside)
            labels = identities(np.concatenate(list(read)), self.source)
        return Together.of("people", labels)

    def _of_chunk(self, chunk: Chunk) -> np.ndarray:
        return as_numpy(chunk.extra[self.beside[0]])

    def same(self, other: Identities) -> bool:
        """Return whether both objects have the same identities."""
        return type(self.by) is type(other.by) and bool(np.array_equal(self.by, other.by))


def identities(values: Any, source: RowSource) -> np.ndarray:
    """Return every record's identity as an array; missing values or mixed types raise an error."""
    labels = as_numpy(values)
    check_length(labels, source, "person")
    check_order(row_labels(values), source, "person")
    gaps = [row for row, value in enumerate(labels.tolist()) if is_missing(value)]
    if gaps:
        raise InputError(
            f"The identity is missing for {len(gaps):,} of {len(labels):,} records (first in row "
            f"{gaps[0]:,}); leave such records out before the fit, or give each its own identity."
        )
    try:
        np.unique(labels)
    except TypeError:
        raise InputError(
            "The identities mix text and numbers, which have no common order; make them all text."
        ) from None
    return labels


def is_a_feature(name: str) -> str:
    """Return the error message for an identity column that is also a feature."""
    return (
        f"Column {name!r} identifies people, but the model uses it as a feature; fit the model "
        "without it, or pass the identities as an array."
    )

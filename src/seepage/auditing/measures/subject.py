"""What is audited: a fitted model, its table, and how the caller's own columns move that table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from seepage.core.unknowns import Unknowns
from seepage.errors import InputError, nearest


@dataclass(frozen=True, eq=False)
class Attribute:
    """One column of the caller's table, and the model's features that it moves.

    Parameters
    ----------
    name, kind
        As in :class:`~seepage.auditing.measures.findings.AttributeFinding`.
    columns
        The positions of the model's features that depend on it.
    directions
        ``(len(columns), t)``: how far those features move for one unit of the column (t = 1), or,
        for a category, for a whole level in place of the first one (one direction per level).
    spread
        The standard deviation of the column in its own units (of a category: of its code).
    """

    name: str
    kind: str
    columns: tuple[int, ...]
    directions: np.ndarray
    spread: float

    @property
    def scale(self) -> float:
        """The size of one step of the column that counts as one in the leakage of a record."""
        return self.spread if self.kind == "numeric" and self.spread > 0 else 1.0

    def unknowns(self) -> Unknowns:
        """Return the column as unknown, in steps of :attr:`scale`."""
        return Unknowns(self.columns, False, self.directions * self.scale)

    def plain_column(self) -> int | None:
        """Return the feature that is this column times a factor, where there is just one."""
        return self.columns[0] if self.directions.shape == (1, 1) else None


@dataclass(frozen=True, eq=False)
class Subject:
    """A fitted model with its data and what its columns mean.

    Parameters
    ----------
    model, X, y, sample_weight
        What was fitted on what; ``X`` are the model's features, ``(n, D)``.
    attributes
        The caller's columns.
    target, target_kind, label_spread
        The target's name, ``numeric``, ``count``, ``binary`` or ``multiclass``, and the step of the
        label that counts as one: a standard deviation of a number, a whole class.
    groups
        The group of every record, for every grouping column.
    row_index
        The number of every record in the caller's table.
    """

    model: Any
    X: np.ndarray
    y: np.ndarray
    attributes: tuple[Attribute, ...]
    target: str
    target_kind: str
    label_spread: float
    row_index: np.ndarray
    groups: dict[str, np.ndarray] = field(default_factory=dict)
    sample_weight: np.ndarray | None = None
    source: str = ""
    steps: tuple[str, ...] = ()

    def basis(self) -> np.ndarray | None:
        """Return how the features move with the columns, each in its own step, ``(D, t)``.

        ``None`` stands for the identity: every feature is a column of its own step.
        """
        return basis_of(self.attributes, self.X.shape[1])


def basis_of(attributes: Sequence[Attribute], features: int) -> np.ndarray | None:
    """Return how so many features move with the columns; see :meth:`Subject.basis`."""
    steps = np.zeros(features)
    if all(_selects(a) for a in attributes):
        for a in attributes:
            steps[list(a.columns)] = np.diag(a.directions) * a.scale
        if np.allclose(steps, 1.0, rtol=1e-9, atol=0):
            return None
    blocks = []
    for a in attributes:
        block = np.zeros((features, a.directions.shape[1]))
        block[list(a.columns), :] = a.directions * a.scale
        blocks.append(block)
    return np.concatenate(blocks, axis=1)


def check_sensitive(sensitive: Sequence[str], subject: Subject) -> tuple[str, ...]:
    """Return the sensitive columns' names, or say which of them is not there."""
    known = [a.name for a in subject.attributes] + [subject.target]
    for name in sensitive:
        if name not in known:
            raise InputError(
                f"There is no column {name!r} among those the model uses{nearest(name, known)}, so "
                "its leakage cannot be measured; name another, or do not drop it."
            )
    return tuple(dict.fromkeys(sensitive))


def label_step(y: np.ndarray, target_kind: str) -> float:
    """Return a standard deviation of a numeric label, or 1: a whole class."""
    if target_kind not in ("numeric", "count"):
        return 1.0
    spread = float(np.std(np.asarray(y, dtype=float)))
    return spread if spread > 0 else 1.0


def _selects(attribute: Attribute) -> bool:
    """Say whether every direction of the column is one feature, scaled."""
    rows, columns = attribute.directions.shape
    return rows == columns and not np.any(
        attribute.directions - np.diag(np.diag(attribute.directions))
    )

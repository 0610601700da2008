"""What each chunk of rows contributes to a view of the leakage, as functions of the chunk alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.core.row_choice import positions_of_each
from seepage.core.unknowns import Unknowns
from seepage.errors import InputError
from seepage.glm.jacobian.block_information import block_information
from seepage.glm.jacobian.block_sums import sum_rows
from seepage.glm.jacobian.closed_form import SingleOutputJacobian
from seepage.glm.jacobian.operator import GLMJacobian
from seepage.glm.jacobian.release import Release
from seepage.tables.source import Chunk

HELD = 1 << 25  # numbers in the sums of all groups or attributes at a time
_FEWEST = 100  # groups that are always allowed


def measured_rows(jacobian: GLMJacobian, unknowns: Unknowns, measure: str) -> np.ndarray:
    """Return ``fil``, ``dfil``, ``cramer_rao`` or ``cells`` of every row of a Jacobian."""
    if measure == "cramer_rao":
        return np.asarray(jacobian.inverse_traces(unknowns)) / jacobian.unknown_count(unknowns)
    if measure == "cells":
        squared = jacobian.cell_information(unknowns)
    elif measure == "fil":
        squared = jacobian.row_norms(unknowns)
    else:
        squared = jacobian.row_traces(unknowns) / jacobian.unknown_count(unknowns)
    return np.asarray(np.sqrt(np.maximum(squared, 0.0)))


def row_values(chunk: Chunk, release: Release, unknowns: Unknowns, measure: str) -> np.ndarray:
    """Return one measure of every row of a chunk."""
    return measured_rows(release.jacobian(chunk), unknowns, measure)


@dataclass(frozen=True)
class Traces:
    """The trace of the information about some rows, and their number."""

    trace: float
    rows: int

    def __add__(self, other: Traces) -> Traces:
        return Traces(self.trace + other.trace, self.rows + other.rows)


class Groups(dict[Any, Any]):
    """The sums of every group; those of two chunks are added group by group."""

    most: int = _FEWEST

    def __add__(self, other: Groups) -> Groups:
        both = Groups(self)
        for group, sums in other.items():
            both[group] = both[group] + sums if group in both else sums
        both.most = max(self.most, other.most)
        if len(both) > both.most:
            raise InputError(
                f"There are more than {both.most:,} different groups, too many to measure in one "
                "pass; put groups together, or measure the records one by one."
            )
        return both


def block_sums_of(chunk: Chunk, release: Release, unknowns: Unknowns, measure: str) -> Any:
    """Return the sums from which the measure of all rows together follows."""
    return _sums(release.jacobian(chunk), unknowns, np.arange(len(chunk)), measure)


def group_sums(chunk: Chunk, release: Release, unknowns: Unknowns, by: str, measure: str) -> Groups:
    """Return those of the rows of each group, by the group."""
    labels = chunk.extra[by]
    missing = [i for i, v in enumerate(labels.tolist()) if v is None or v != v]
    if missing:
        raise InputError(
            f"Column {by!r} has no value in row {chunk.start + missing[0]:,}; leave such rows out "
            "or name a group."
        )
    known, inverse = np.unique(labels, return_inverse=True)
    jacobian = release.jacobian(chunk)
    found = Groups(
        (group, _sums(jacobian, unknowns, rows, measure))
        for group, rows in zip(known.tolist(), positions_of_each(inverse, len(known)), strict=True)
    )
    found.most = max(_FEWEST, HELD // jacobian.size**2)
    return found


def _sums(jacobian: GLMJacobian, unknowns: Unknowns, rows: np.ndarray, measure: str) -> Any:
    if measure == "dfil":
        return Traces(float(np.sum(jacobian.row_traces(unknowns)[rows])), len(rows))
    if isinstance(jacobian, SingleOutputJacobian):
        return sum_rows(jacobian, jacobian.rank_two(unknowns)[0], rows)
    return block_information(jacobian, unknowns, rows)


def curved_sums(chunk: Chunk, release: Release) -> Any:
    """Return the sums from which the leakage of every column follows, for one output."""
    jacobian: Any = release.jacobian(chunk)
    return sum_rows(jacobian, jacobian.a**2, np.arange(len(chunk)))


def seen_blocks(chunk: Chunk, release: Release, some: list[Unknowns]) -> np.ndarray:
    """Return what a release of several outputs sees of each attribute, (attributes, P, P)."""
    jacobian, every = release.jacobian(chunk), np.arange(len(chunk))
    return np.stack([block_information(jacobian, unknowns, every) for unknowns in some])


def column_traces(chunk: Chunk, release: Release, attributes: list[Unknowns]) -> np.ndarray:
    """Return the trace of the information about each attribute over the rows."""
    jacobian = release.jacobian(chunk)
    return np.asarray(jacobian.column_traces(attributes, np.arange(len(chunk))))

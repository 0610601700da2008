"""What an audit asks about every record of data that are read in chunks, before the pass begins."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from seepage.auditing.subject import Attribute
from seepage.glm.closed_form import SingleOutputJacobian
from seepage.glm.jacobian import GLMJacobian
from seepage.glm.release import Release
from seepage.streams.source import Chunk
from seepage.unknowns import Unknowns

_SAMPLED = 200_000  # records at most from which medians are taken


@dataclass(frozen=True, eq=False)
class Questions:
    """What is asked about every record: fixed before the pass begins.

    Parameters
    ----------
    release
        The model and its noise.
    attributes
        The caller's columns.
    basis
        How the features move with them; see :meth:`Subject.basis`.
    label_step
        The step of the label that counts as one.
    groups
        Columns to compare groups by.
    sensitive
        Columns of which every record's error is kept.
    held_out
        The rows (sorted) whose features and labels are to be kept.
    rows
        How many rows there are.
    """

    release: Release
    attributes: tuple[Attribute, ...]
    basis: np.ndarray | None
    label_step: float
    groups: tuple[str, ...]
    sensitive: tuple[str, ...]
    held_out: np.ndarray
    rows: int

    def jacobian(self, chunk: Chunk) -> GLMJacobian:
        """Return the Jacobian about a chunk, with the label in steps of its spread."""
        jacobian = self.release.jacobian(chunk)
        if self.label_step == 1.0 or not isinstance(jacobian, SingleOutputJacobian):
            return jacobian
        b = jacobian.b * self.label_step
        return jacobian.about(jacobian.X, jacobian.r, jacobian.a, b, jacobian.target)

    @property
    def every(self) -> Unknowns:
        """A whole record with its label."""
        return Unknowns(None, True, self.basis)

    @property
    def features(self) -> Unknowns:
        """A record without its label."""
        return Unknowns(None, False, self.basis)

    def asked(self) -> list[Unknowns]:
        """Return the unknowns of every column."""
        return [
            a.unknowns() if a.plain_column() is None else Unknowns(a.columns, False)
            for a in self.attributes
        ]

    @property
    def stride(self) -> int:
        """Every how many rows one is in the sample that medians are taken from."""
        most = max(1, min(_SAMPLED, (1 << 24) // max(1, len(self.attributes))))
        return max(1, math.ceil(self.rows / most))

"""What an audit found: plain numbers and sentences, ready to be gated, written and drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from seepage.auditing.measures.records import NUMBERS, RecordArrays, Records
from seepage.bounds.guarantees import Guarantees


@dataclass(frozen=True)
class AttributeFinding:
    """The leakage about one attribute (a column of the caller's table, as they know it).

    Parameters
    ----------
    name
        The column's name in the table.
    kind
        ``numeric``, ``boolean`` or ``categorical``.
    eta
        FIL of the attribute over all records together.
    smallest_error
        The least standard error of any unbiased attack on this attribute of a single record, in
        the column's own units (for a category: on its one-hot code, where 1 is a whole level).
    easiest_row
        The record it is smallest for.
    median_error
        The median of that error over the records.
    spread
        The standard deviation of the column, in its own units.
    sensitive
        Whether the caller named it so.
    """

    name: str
    kind: str
    eta: float
    smallest_error: float
    easiest_row: int
    median_error: float
    spread: float
    sensitive: bool = False


@dataclass(frozen=True)
class GroupFinding:
    """The leakage of the records that share one value of a grouping column."""

    label: str
    count: int
    mean_eta: float
    worst_eta: float
    eta_together: float


@dataclass(frozen=True)
class GroupingFinding:
    """How evenly leakage is spread over the groups of one column.

    ``ratio`` is the largest mean leakage of a group over the smallest.
    """

    column: str
    groups: tuple[GroupFinding, ...]
    ratio: float
    most_protected: str
    least_protected: str


@dataclass(frozen=True)
class Curve:
    """What privacy costs: test error and leakage as the noise grows.

    Parameters
    ----------
    sigma, error, median_eta, worst_eta
        One entry per noise scale; ``error`` is the mean over several draws of the noise.
    error_name
        What the error is, in words (``"share of wrong predictions"``, ``"mean squared error"``).
    noiseless_error, trivial_error
        The error without noise, and that of predicting the mean or the most frequent class.
    """

    sigma: np.ndarray
    error: np.ndarray
    median_eta: np.ndarray
    worst_eta: np.ndarray
    error_name: str
    noiseless_error: float
    trivial_error: float


@dataclass(frozen=True)
class Remedy:
    """One way to bring the worst record's leakage down to the target, with what it takes."""

    name: str  # "more noise", "more regularisation"
    text: str  # one sentence with the number it would take and what that costs


@dataclass(frozen=True)
class Gate:
    """One limit the caller set: what it is, what was measured, and who is over it."""

    name: str  # "--max-eta", "--min-mse", "--max-group-ratio"
    limit: float
    measured: float
    passed: bool
    text: str  # one sentence for people; offenders by row index, never by value


@dataclass(frozen=True, kw_only=True)
class Findings(ABC):
    """Everything one audit found, but for the numbers of the single records.

    Parameters
    ----------
    source
        What was audited, in words (a file's name, never its folder).
    target, model, l2, intercept, classes
        What was fitted: the target column, ``linear``, ``logistic``, ``poisson`` or ``softmax``,
        the penalty λ, whether there is an intercept, and the class names where there are classes.
    sigma, sigma_reason
        The noise on every released number, and why it is that, in words.
    released
        How many numbers are released.
    steps
        What was done to the data, one sentence each.
    attributes, groupings, curve, remedies, gates
        See their classes.
    dataset_eta
        FIL of the whole table.
    target_eta
        The leakage asked for, if any; ``calibrated_sigma`` is the noise that meets it.
    values
        The caller's own values of the audited rows, only where they asked to show them.
    guarantees
        Every bound on what can be found out about the most exposed record, where they are known.
    versions
        Names and versions of what computed this.
    """

    source: str
    target: str
    model: str
    l2: float
    intercept: bool
    sigma: float
    sigma_reason: str
    released: int
    steps: tuple[str, ...]
    attributes: tuple[AttributeFinding, ...]
    dataset_eta: float
    curve: Curve
    groupings: tuple[GroupingFinding, ...] = ()
    classes: tuple[str, ...] = ()
    target_eta: float | None = None
    calibrated_sigma: float | None = None
    remedies: tuple[Remedy, ...] = ()
    gates: tuple[Gate, ...] = ()
    values: dict[str, list[str]] | None = None
    guarantees: Guarantees | None = None
    versions: dict[str, str] = field(default_factory=dict)

    @property
    @abstractmethod
    def records(self) -> Records:
        """The leakage of the single records."""


@dataclass(frozen=True, kw_only=True)
class Audit(Findings):
    """Everything one audit of a table in memory found.

    Parameters
    ----------
    row_index
        The number of every audited record in the table (0 for the first data row).
    eta
        FIL of every record with its label.
    eta_features, eta_label
        The same about its columns alone and about its label alone.
    exact_error
        Root of the exact Cramér–Rao bound per column of every record, in standard deviations of
        the columns (infinite where no unbiased attack exists).
    cell_errors
        For every sensitive attribute, the least standard error of an unbiased attack on it for
        every record, in the column's own units.
    """

    row_index: np.ndarray
    eta: np.ndarray
    eta_features: np.ndarray
    eta_label: np.ndarray
    exact_error: np.ndarray
    cell_errors: dict[str, np.ndarray] = field(default_factory=dict)

    @cached_property
    def records(self) -> RecordArrays:
        """The leakage of the single records."""
        numbers = {name: np.asarray(getattr(self, name), dtype=float) for name in NUMBERS}
        return RecordArrays(np.asarray(self.row_index), numbers, self.cell_errors)


@dataclass(frozen=True, kw_only=True)
class StreamedAudit(Findings):
    """Everything one audit of data that are read in chunks found.

    Parameters
    ----------
    kept
        What is known of the single records, and how to ask for more.
    """

    kept: Records

    @property
    def records(self) -> Records:
        """The leakage of the single records."""
        return self.kept

"""The error of a reconstruction, split into bias and variance.

The mean squared error of an estimate is its variance plus its squared bias. Bounds for unbiased
adversaries do not apply to biased adversaries. An error below a bound for unbiased adversaries is
due either to bias (see also :meth:`seepage.attacks.InformedAdversary.slopes`) or to too few trials
for a heavy-tailed mean (compare the median).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.support.chunks import row_slices
from seepage.tables.names import counted
from seepage.tables.result_table import PlottedNumbers, RecordResult
from seepage.tables.source import as_numpy, build_frame


@dataclass(frozen=True, eq=False, repr=False)
class ReconstructionErrors(RecordResult):
    """The errors of an attack on each attacked record, over many trials.

    Parameters
    ----------
    rows
        The names or positions of the attacked records, (m,).
    mse
        The mean over the trials of ``‖ẑ − z‖²/d``, (m,), with ``z`` the d unknowns of a record and
        ``ẑ`` their reconstruction.
    standard_error
        The standard error of the mean over the trials.
    median_error
        The median of ``‖ẑ − z‖²/d`` over the trials.
    bias_squared, variance
        The squared bias, ``‖E ẑ − z‖²/d``, corrected for the finite number of trials, and the
        variance, ``E‖ẑ − E ẑ‖²/d``; they sum to ``mse``.
    trials
        The number of attacked releases.
    kind
        Always ``attack``.
    """

    rows: np.ndarray
    mse: np.ndarray
    standard_error: np.ndarray
    median_error: np.ndarray
    bias_squared: np.ndarray
    variance: np.ndarray
    trials: int
    kind: str = "attack"

    def __len__(self) -> int:
        return len(self.rows)

    value_column = "mse"

    @property
    def less_is_worse(self) -> bool:
        """Whether smaller values mean more leakage, which is true for errors."""
        return True

    def drawing(self) -> PlottedNumbers:
        """Return the data for :meth:`plot`: errors with 95 % intervals, in ascending order."""
        worst, name = self.sort(), "mean squared error of the attack"
        return PlottedNumbers(worst.mse, worst.rows, name, "records", *worst.interval_ends())

    def interval_ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the 95 % intervals over the trials, from the standard errors."""
        reach = 1.96 * self.standard_error
        return np.maximum(self.mse - reach, 0.0), self.mse + reach

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with one row per record."""
        columns = {
            "row": self.rows,
            "mse": self.mse,
            "standard_error": self.standard_error,
            "median": self.median_error,
            "bias_squared": self.bias_squared,
            "variance": self.variance,
        }
        return build_frame(columns, library or "pyarrow")

    def __repr__(self) -> str:
        return (
            f"<attack on {counted(len(self), 'record')}, {counted(self.trials, 'trial')}: "
            f"mean squared error, median {np.median(self.mse):.4g}, smallest "
            f"{np.min(self.mse):.4g} at {self.rows[int(np.argmin(self.mse))]!s}>"
        )


class ErrorTally:
    """Accumulates errors over chunks of trials, so that reconstructions need not be stored.

    ``rows`` names the attacked records; ``size`` is the number of unknowns per record.
    """

    def __init__(self, rows: np.ndarray, size: int) -> None:
        self.rows, self.size = rows, size
        self._seen = 0
        self._total, self._squares = np.zeros(len(rows)), np.zeros(len(rows))
        self._offset = np.zeros((len(rows), size))
        self._each: list[np.ndarray] = []

    def add(self, squared: np.ndarray, offset: np.ndarray) -> None:
        """Add a chunk: ``‖ẑ − z‖²/d`` of every trial, (m, t), and ``Σ_t (ẑ − z)``, (m, d)."""
        self._each.append(squared.astype(np.float32))  # single precision is plenty for a median
        self._total += squared.sum(axis=1)
        self._squares += np.einsum("mt,mt->m", squared, squared)
        self._offset += offset
        self._seen += squared.shape[1]

    def result(self) -> ReconstructionErrors:
        """Return the errors over all trials added so far."""
        trials = self._seen
        freedom = max(trials - 1, 1)
        mse = self._total / trials
        spread = np.maximum(self._squares / trials - mse**2, 0.0) / freedom
        offset = self._offset / trials
        variance = np.maximum(mse - np.sum(offset**2, axis=1) / self.size, 0.0) * (trials / freedom)
        median = np.empty(len(self.rows))
        for rows in row_slices(len(median), trials):  # np.median copies its argument
            each = np.concatenate([chunk[rows] for chunk in self._each], axis=1)
            median[rows] = np.median(each, axis=1, overwrite_input=True)
        return ReconstructionErrors(
            rows=self.rows,
            mse=mse,
            standard_error=np.sqrt(spread),
            median_error=median,
            bias_squared=np.maximum(mse - variance, 0.0),
            variance=variance,
            trials=trials,
        )


def reconstruction_errors(estimates: Any, truth: Any, rows: Any = None) -> ReconstructionErrors:
    """Return the errors of reconstructions, split into bias and variance.

    Parameters
    ----------
    estimates
        The reconstructions: (trials, m, d) for m records, or (trials, d) for one record.
    truth
        The true records, (m, d) or (d,).
    rows
        The names of the records; by default, their positions.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.attacks import reconstruction_errors
    >>> found = reconstruction_errors([[[1.0, 0.0]], [[3.0, 0.0]]], [[0.0, 0.0]])
    >>> found.mse.tolist(), found.variance.tolist(), found.bias_squared.tolist()
    ([2.5], [1.0], [1.5])
    """
    guesses, records = _read(estimates, truth)
    names = np.arange(len(records)) if rows is None else as_numpy(rows)
    off = guesses - records
    tally = ErrorTally(names, records.shape[1])
    tally.add(np.mean(off**2, axis=2).T, off.sum(axis=0))
    return tally.result()


def categorical_accuracy(estimates: Any, truth: Any, codes: Any) -> np.ndarray:
    """Return, for each record, the share of trials in which the nearest level is correct.

    Parameters
    ----------
    estimates, truth
        As for :func:`reconstruction_errors`, but only the columns of the attribute.
    codes
        The entries of the attribute's columns for each level, (K, t), as in
        :class:`seepage.attacks.NominalAttribute`.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.attacks import categorical_accuracy
    >>> guesses = np.array([[[0.9, 0.2]], [[0.1, 0.2]]])  # two trials, one record
    >>> categorical_accuracy(guesses, [[1, 0]], codes=[[1, 0], [0, 1], [0, 0]])
    array([0.5])
    """
    guesses, records = _read(estimates, truth)
    levels = as_numpy(codes).astype(float)
    if levels.ndim != 2 or levels.shape[1] != records.shape[1]:
        raise InputError(
            "codes must have one row per level and one column for each column of the attribute "
            f"({records.shape[1]}), not the shape {levels.shape}."
        )
    return np.asarray(np.mean(_nearest(guesses, levels) == _nearest(records, levels), axis=0))


def _read(estimates: Any, truth: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the reconstructions, (trials, m, d), and the records, (m, d)."""
    guesses = as_numpy(estimates).astype(float)
    given = guesses.shape
    records = np.atleast_2d(as_numpy(truth).astype(float))
    if guesses.ndim == 2:
        guesses = guesses[:, None, :]
    if guesses.ndim != 3 or guesses.shape[1:] != records.shape or len(guesses) == 0:
        raise InputError(
            f"estimates must have the shape (trials, {', '.join(map(str, records.shape))}) to "
            f"match truth, with at least one trial, not {given}."
        )
    return guesses, records


def _nearest(values: np.ndarray, levels: np.ndarray) -> np.ndarray:
    lengths = np.sum(levels**2, axis=1)
    return np.asarray(np.argmin(lengths - 2 * (values @ levels.T), axis=-1))

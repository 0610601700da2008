"""Common methods of results: conversion to a table, an array or a plot; sorting; summaries.

A class defines its numbers in ``table`` (a data frame of any library) and ``to_numpy``; this module
adds the other methods. :class:`ResultTable` is the base of all results. :class:`ResultNumbers` adds
the maximum, mean and similar summaries of numbers that all measure the same quantity.
:class:`RankedResult` sorts numbers that each describe a record, column, group, person or layer.
"""

from __future__ import annotations

import html
import math
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from seepage.errors import InputError
from seepage.support.lazy import offered
from seepage.tables.source import build_frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOTICE = "These numbers depend on the data and are themselves sensitive: do not publish them."

# Every kind of colour vision tells these apart (Okabe and Ito 2008).
BLUE, ORANGE, INK, GREY = "#0072b2", "#d55e00", "#1c2530", "#8a8f96"


@dataclass(frozen=True)
class PlottedNumbers:
    """The contents of a plot of numbers.

    Parameters
    ----------
    values, labels
        The numbers, with the worst first if ``ranked``, and the label of each.
    name
        The quantity that the numbers measure.
    unit
        The plural noun for the labelled objects, such as ``records``.
    low, high
        The ends of the numbers' confidence intervals, if known.
    mark
        A reference value and its name, such as ``(0.5, "chance")``.
    columns
        The column names, if the numbers belong to single cells of a table.
    ranked
        Whether the first number is the worst and is therefore drawn in another colour.
    """

    values: np.ndarray
    labels: Any
    name: str
    unit: str = "records"
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    mark: tuple[float, str] | None = None
    columns: Sequence[str] = ()
    ranked: bool = True


class Listing(ABC):
    """An object that can be displayed as a table, in a data frame and in a notebook."""

    #: The number of leading columns that identify a row of the table.
    index_columns: ClassVar[int] = 1
    #: Whether the numbers depend on the data; the notebook then shows a notice.
    sensitive: ClassVar[bool] = True

    @abstractmethod
    def table(self, library: str | None = None) -> Any:
        """Return a data frame from the library ``pandas``, ``polars`` or ``pyarrow``."""

    def to_pandas(self, **options: Any) -> Any:
        """Return a pandas data frame, indexed by the object that each row describes.

        ``options`` are passed to ``table``. The columns ``low`` and ``high`` contain 95 %
        intervals, if known. This method needs pandas; ``table()`` does not.
        """
        if find_spec("pandas") is None:
            raise ImportError(
                "to_pandas() needs pandas, which is not installed; run: pip install pandas. "
                "Without pandas, table() returns a pyarrow table."
            )
        frame = self.table(library="pandas", **options)
        ends = self.interval_ends()
        if ends is not None and not {"low", "high"} & set(frame.columns):
            frame["low"], frame["high"] = (np.atleast_1d(end) for end in ends)
        return frame.set_index(list(frame.columns[: self.index_columns]))

    def interval_ends(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the ends of the 95 % intervals, or ``None`` if unknown or already in the table."""
        return None

    def html_notes(self) -> tuple[str, ...]:
        """Return the assumptions behind the numbers as sentences, for a notebook."""
        return ()

    def html_table(self) -> Any:
        """Return the rows that are displayed in a notebook, as a ``pyarrow`` table."""
        return self.table(library="pyarrow")

    def _repr_html_(self) -> str:
        """Return the notebook display: the one-line text and the first ten rows of the table."""
        text, frame, index = repr(self), self.html_table(), self.index_columns
        text = text[1:-1] if text.startswith("<") else text
        names = frame.column_names[:13]
        titles = [name if k >= index else "" for k, name in enumerate(names)]
        lines = []
        for line in frame.slice(0, 10).select(names).to_pylist():
            cells = [html.escape(_shown(value)) for value in line.values()]
            named = "".join(f"<th>{cell}</th>" for cell in cells[:index])
            rest = "".join(f"<td>{cell}</td>" for cell in cells[index:])
            lines.append(f"<tr>{named}{rest}</tr>")
        heads = "".join(f"<th>{html.escape(title)}</th>" for title in titles)
        assumed = "".join(f"<li>{html.escape(note)}</li>" for note in self.html_notes())
        assumed = f"<p>Assuming:</p><ul>{assumed}</ul>" if assumed else ""
        notice = f"<p><em>{NOTICE}</em></p>" if self.sensitive else ""
        return (
            f"<p><strong>{html.escape(text)}</strong></p><table><thead><tr>{heads}</tr></thead>"
            f"<tbody>{''.join(lines)}</tbody></table>{assumed}{notice}"
        )


class Reportable:
    """A result for which a report can be written."""

    def report(self, folder: str | os.PathLike[str] = "seepage-audit") -> Path:
        """Write the report to a folder that only its owner can read, and return the page's path.

        This is the same as ``sp.report(result, folder)``.
        """
        page: Path = offered("report")(self, folder)
        return page


class ResultTable(Listing):
    """A result that can be displayed as a table, an array and a plot."""

    #: The column of the table that ``to_numpy`` returns.
    value_column: ClassVar[str] = "value"

    def to_numpy(self) -> np.ndarray:
        """Return the numbers as a NumPy array, in the order of the table."""
        return np.asarray(self.table(library="pyarrow")[self.value_column])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.to_numpy(), dtype=dtype, copy=copy)

    def plot(self, ax: Axes | None = None) -> Any:
        """Draw the numbers with matplotlib, and return the axes.

        Without ``ax``, a new ``matplotlib.pyplot`` figure is created:
        ``result.plot().figure.savefig("result.png")``.
        """
        return draw(self.drawing(), ax)

    def drawing(self) -> PlottedNumbers:
        """Return the numbers that :meth:`plot` draws, in the order of the table."""
        frame = self.table(library="pyarrow")
        index = frame.select(frame.column_names[: self.index_columns]).to_pylist()
        labels = [", ".join(map(str, line.values())) for line in index]
        values, name = np.asarray(frame[self.value_column]), self.value_column
        return PlottedNumbers(values, labels, name, ranked=False)


class SummaryTable(ResultTable):
    """A result with a few named numbers, some with the ends of a 95 % interval."""

    #: A reference value and its name, for plots.
    mark: ClassVar[tuple[float, str] | None] = None

    @abstractmethod
    def spans(self) -> Mapping[str, tuple[float, float, float]]:
        """Return each number by name, with the ends of its interval (NaN if it has none)."""

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with one row per number, including the ends of its 95 % interval."""
        values, low, high = np.array(list(self.spans().values()), dtype=float).T
        columns = {"measure": list(self.spans()), "value": values, "low": low, "high": high}
        return build_frame(columns, library or "pyarrow")

    def drawing(self) -> PlottedNumbers:
        """Return the numbers that :meth:`plot` draws."""
        values, low, high = np.array(list(self.spans().values()), dtype=float).T
        names = list(self.spans())
        return PlottedNumbers(values, names, "", "", low, high, self.mark, ranked=False)


class ResultNumbers(ResultTable):
    """A result whose numbers all measure the same quantity."""

    def max(self, axis: Any = None, out: Any = None, **options: Any) -> Any:
        """Return the largest number, ignoring numbers that were not measured (NaN).

        The arguments are the same as for ``numpy.max``.
        """
        return self._reduced(np.nanmax, axis=axis, out=out, **options)

    def min(self, axis: Any = None, out: Any = None, **options: Any) -> Any:
        """Return the smallest number, ignoring numbers that were not measured (NaN)."""
        return self._reduced(np.nanmin, axis=axis, out=out, **options)

    def mean(self, axis: Any = None, dtype: Any = None, out: Any = None, **options: Any) -> Any:
        """Return the mean, ignoring numbers that were not measured (NaN)."""
        return self._reduced(np.nanmean, axis=axis, dtype=dtype, out=out, **options)

    def median(self, axis: Any = None, out: Any = None) -> Any:
        """Return the median, ignoring numbers that were not measured (NaN)."""
        return self._reduced(np.nanmedian, axis=axis, out=out)

    def _reduced(self, function: Callable[..., Any], **options: Any) -> Any:
        numbers = self.to_numpy()
        if not numbers.size:
            return math.nan
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # where nothing was measured
            found = function(numbers, **options)
        return float(found) if np.ndim(found) == 0 else found


class RankedResult(ResultNumbers):
    """A result with a number for each record, column, group, person or layer."""

    @property
    def less_is_worse(self) -> bool:
        """Whether smaller numbers are worse: true for an attacker's errors, false for leakage."""
        return False

    @abstractmethod
    def labels(self) -> np.ndarray:
        """Return the label of each number."""

    @abstractmethod
    def select(self, positions: Any) -> Any:
        """Return the entries at the given positions, in that order."""

    def worst_first(self) -> np.ndarray:
        """Return the positions of the entries, sorted from worst to best."""
        numbers, less = self.to_numpy(), self.less_is_worse
        if numbers.ndim == 2:
            numbers = numbers.min(axis=1) if less else numbers.max(axis=1)
        return np.argsort(numbers if less else -numbers, kind="stable")

    def top(self, count: int = 10) -> Self:
        """Return the ``count`` entries with the most leakage, worst first.

        For a bound on an error, these are the entries with the smallest bounds. Rows of cells are
        ranked by their worst cell.
        """
        chosen: Self = self.select(self.worst_first()[:count])
        return chosen

    def sort(self, reverse: bool = False) -> Self:
        """Return all entries, worst first; with ``reverse``, worst last."""
        order = self.worst_first()
        chosen: Self = self.select(order[::-1] if reverse else order)
        return chosen

    def html_table(self) -> Any:
        """Return the ten worst rows, as a ``pyarrow`` table."""
        return self.top(10).table(library="pyarrow")


class RecordResult(RankedResult):
    """Numbers about records; every array among its fields has one entry for each record."""

    rows: np.ndarray | None

    def labels(self) -> np.ndarray:
        """Return the records' positions, or their names."""
        return np.arange(len(self.to_numpy())) if self.rows is None else self.rows

    def select(self, positions: Any) -> Self:
        """Return the records at the given positions, in that order."""
        chosen, order = copy(self), np.asarray(positions)
        for name, value in (vars(self) | {"rows": self.labels()}).items():
            if isinstance(value, np.ndarray):
                vars(chosen)[name] = value[order]
        return chosen


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# Pictures -----------------------------------------------------------------------------------------


def new_axes(ax: Any, **figure: Any) -> Any:
    """Return the given axes, or the axes of a new ``matplotlib.pyplot`` figure."""
    if isinstance(ax, str | os.PathLike):
        raise InputError(
            "plot() draws on matplotlib axes and does not write files; use "
            f".plot().figure.savefig({os.fspath(ax)!r})."
        )
    if ax is not None:
        return ax
    if find_spec("matplotlib") is None:
        raise ImportError(
            "plot() needs matplotlib, which is not installed; run: pip install matplotlib"
        )
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained", **figure)[1]


def draw(drawing: PlottedNumbers, ax: Any = None) -> Any:
    """Draw a few numbers as bars, many numbers as dots, or the numbers of cells as a heat map."""
    if np.ndim(drawing.values) == 2:
        return _draw_cells(drawing, ax)
    known = np.isfinite(drawing.values)
    few = len(drawing.values) <= 30  # labels that can be read
    ax = _draw_bars(drawing, known, ax) if few else _draw_dots(drawing, known, ax)
    ax.spines[["top", "right"]].set_visible(False)
    if not known.all():
        missing = np.count_nonzero(~known)
        ax.set_title(
            f"{missing:,} not shown (infinite or not measured)", loc="right", fontsize="small"
        )
    return ax


def _draw_bars(drawing: PlottedNumbers, known: np.ndarray, ax: Any) -> Any:
    """Draw a bar for each number, with the first on top."""
    count = len(drawing.values)
    ax = new_axes(ax, figsize=(6.4, 1.2 + 0.3 * count))
    places = np.arange(count)[::-1]
    colours = [ORANGE if drawing.ranked else BLUE, *[BLUE] * (count - 1)]
    values = np.where(known, drawing.values, 0.0)
    ax.barh(places, values, color=colours[:count], height=0.7)
    if drawing.low is not None and drawing.high is not None:
        reach = np.abs([values - drawing.low, drawing.high - values])
        reach = np.where(np.isfinite(reach), reach, 0.0)
        ax.errorbar(values, places, xerr=reach, fmt="none", ecolor=INK, capsize=3)
    if drawing.mark is not None:
        ax.axvline(drawing.mark[0], color=GREY, ls=":", label=drawing.mark[1])
        ax.legend(frameon=False)
    ax.set_yticks(places, [str(label) for label in drawing.labels])
    ax.set_xlabel(drawing.name)
    return ax


def _draw_dots(drawing: PlottedNumbers, known: np.ndarray, ax: Any) -> Any:
    """Draw a dot for each number, in the given order, with labels on the first three."""
    ax = new_axes(ax, figsize=(6.4, 4.0))
    rank = np.arange(1, len(drawing.values) + 1)
    values = np.where(known, drawing.values, np.nan)
    if drawing.low is not None and drawing.high is not None:
        ax.fill_between(rank, drawing.low, drawing.high, color=BLUE, alpha=0.2, lw=0)
    ax.plot(rank, values, ".", color=BLUE, markersize=4)
    for position in np.flatnonzero(known)[:3]:
        ax.plot(rank[position], values[position], "o", color=ORANGE, markersize=5)
        ax.annotate(
            str(drawing.labels[position]),
            (rank[position], values[position]),
            xytext=(7, -3),
            textcoords="offset points",
            color=ORANGE,
        )
    if drawing.mark is not None:
        ax.axhline(drawing.mark[0], color=GREY, ls=":", label=drawing.mark[1])
        ax.legend(frameon=False)
    shown = values[known]
    if len(shown) and shown.min() > 0 and shown.max() > 100 * shown.min():
        ax.set_yscale("log")
    ax.set_xlabel(f"rank among the {drawing.unit} (1: most exposed)")
    ax.set_ylabel(drawing.name)
    return ax


def _draw_cells(drawing: PlottedNumbers, ax: Any) -> Any:
    """Draw the cells of the twenty worst records as a heat map."""
    values, labels = drawing.values[:20], drawing.labels[:20]
    ax = new_axes(ax, figsize=(2.5 + 0.5 * min(values.shape[1], 20), 1.5 + 0.25 * len(values)))
    image = ax.imshow(np.where(np.isfinite(values), values, np.nan), aspect="auto", cmap="cividis")
    ax.set_yticks(np.arange(len(values)), [str(label) for label in labels])
    if len(drawing.columns) <= 30:  # labels that can be read
        ax.set_xticks(np.arange(len(drawing.columns)), drawing.columns, rotation=45, ha="right")
    ax.figure.colorbar(image, ax=ax, label=drawing.name)
    ax.set_ylabel("records, by descending exposure")
    return ax


def draw_curve(ax: Any, fpr: Any, tpr: Any, label: str | None = None) -> Any:
    """Draw a ROC curve: true against false positive rates, with the chance line."""
    ax = new_axes(ax, figsize=(4.6, 4.4))
    ax.plot([0, 1], [0, 1], color=GREY, ls=":", label="chance")
    ax.plot(fpr, tpr, color=ORANGE, label=label)
    ax.set_xlabel("false positive rate")
    ax.set_ylabel("true positive rate")
    ax.legend(frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    return ax

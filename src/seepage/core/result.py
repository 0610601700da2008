"""Results: numbers with an index, a kind, and the bounds they imply.

A :class:`RecordStream` computes its numbers on demand, chunk by chunk: :class:`EachRecord` asks the
release for those of one chunk. This module also defines the coarse grid to which figures are
rounded for publication.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from html import escape
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from array_api_compat import array_namespace
from numpy.lib.mixins import NDArrayOperatorsMixin

from seepage.core.jacobian import ReleaseJacobian, Unknowns, inverse_traces, inverses
from seepage.core.noise import Noise
from seepage.core.questions import ChunkQuestion
from seepage.errors import InaccurateWarning, InputError
from seepage.support.files import file_to_write
from seepage.support.room import room_for
from seepage.tables.result_table import NOTICE as NOTICE
from seepage.tables.result_table import PlottedNumbers, RankedResult
from seepage.tables.source import Array, Chunk, RowSource, as_numpy, build_frame

if TYPE_CHECKING:
    import pyarrow as pa


UNBIASED = (
    "The adversary's estimate is unbiased.",
    "Everything outside the view is known to the adversary.",
    "Nothing is published besides the measured release, with the stated noise.",
)

SAME = 1e-9  # numbers this close, relative to their size, are the same

_SYMBOLS = {
    "fil": "FIL η",
    "dfil": "dFIL η̄",
    "jacsens": "JacSens",
    "plis": "PLIS",
    "mse": "mean squared error",
    "std": "standard error",
    "membership": "membership μ",
    "advantage": "advantage",
    "right": "success rate",
    "gain": "gain in probability",
    "tpr": "true positive rate",
    "auc": "area under the curve",
}
_UNITS = {
    "rows": "records",
    "cells": "cells",
    "columns": "attributes",
    "groups": "groups",
    "people": "people",
    "layers": "layers",
    "scales": "records and step sizes",
}


@dataclass(frozen=True, eq=False, repr=False)
class Result(NDArrayOperatorsMixin, RankedResult):
    """The numbers of a view: one per record, cell, attribute, group or person, or one for a block.

    ``numpy.asarray`` and arithmetic (``leak.records() > 1``) return plain numbers; ``values``
    contains them in the table's array library (a tensor if the table is one).

    Parameters
    ----------
    values
        The numbers.
    view
        The view: ``rows``, ``cells``, ``columns``, ``groups``, ``people``, ``subset``, ``dataset``,
        ``layers``, or for networks ``scales`` (sizes of finite steps).
    measure
        The measure: ``fil``, ``dfil``, for a bound ``mse`` or ``std``, and for a risk
        ``membership``, ``advantage``, ``right``, ``gain``, ``tpr`` or ``auc``.
    kind
        ``exact``, ``estimate``, ``bound`` or ``attack``.
    about
        The unknowns, in words.
    index
        The label of each entry of the first axis: row labels, attributes, group labels,
        identities.
    names
        For cells, the column names; for scales, the step sizes.
    assumptions
        The assumptions behind the numbers, as sentences.
    library
        The data-frame library of the caller's table.
    noise
        The noise of the release or releases.
    accuracy
        The relative error of exact numbers and of exactly computed bounds, from the condition
        number and the rounding; one number, or one per entry. For numbers below 10⁻⁸ times the
        largest, the error is relative to 10⁻⁸ times the largest.
    held
        Values learnt from the data that are held fixed, as machine-readable terms such as ``("class
        weights", "scaling")``: see :func:`held_sentences`. The tuple is empty only if nothing is
        held fixed.
    rescaled
        For a bound that is not proportional to the noise's variance, a function that returns the
        bound with the noise scaled by a factor.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage import Result
    >>> eta = Result(np.array([0.5, 2.0, 1.0]), "rows", "fil", index=np.array(["a", "b", "c"]))
    >>> eta.to_pandas()
         fil
    row
    a    0.5
    b    2.0
    c    1.0
    >>> eta.to_numpy().tolist(), eta.max(), eta.min(), eta.median(), round(eta.mean(), 2)
    ([0.5, 2.0, 1.0], 2.0, 0.5, 1.0, 1.17)
    >>> eta.sort().labels().tolist(), eta.top(1).labels().tolist()
    (['b', 'c', 'a'], ['b'])
    >>> eta.plot().get_xlabel()
    'FIL η'
    """

    values: Array
    view: str
    measure: str
    kind: str = "exact"
    about: str = ""
    index: np.ndarray | None = None
    names: tuple[str, ...] | None = None
    assumptions: tuple[str, ...] = ()
    library: str = "numpy"
    noise: tuple[Noise, ...] = ()
    accuracy: Any = None
    held: tuple[str, ...] = ()
    rescaled: Callable[[float], Result] | None = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(as_numpy(self.values), dtype=dtype, copy=copy)

    def to_numpy(self) -> np.ndarray:
        """Return the numbers as a NumPy array, in the order of the table."""
        return np.asarray(self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        plain = (np.asarray(i) if isinstance(i, Result) else i for i in inputs)
        return getattr(ufunc, method)(*plain, **options)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("This result is a single number; use float(result).")
        return self.shape[0]

    def __getitem__(self, which: Any) -> Any:
        return self.values[which]

    def __iter__(self) -> Iterator[Any]:
        return iter(as_numpy(self.values))

    def __float__(self) -> float:
        return float(self.values)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the numbers."""
        return tuple(self.values.shape)

    @property
    def less_is_worse(self) -> bool:
        """Whether smaller numbers mean more leakage, as for bounds on an adversary's error."""
        return self.kind == "bound" and self.measure in ("mse", "std")

    def labels(self) -> np.ndarray:
        """Return the label of each entry: the index, or positions if there is none."""
        return np.arange(len(self)) if self.index is None else self.index

    def result(self) -> Result:
        """Return this result, whose numbers are already computed (unlike a stream's)."""
        return self

    def histogram(self, title: str) -> str:
        """Return a small SVG histogram of the finite positive numbers on a logarithmic axis."""
        values = np.asarray(self)
        shown = values[np.isfinite(values) & (values > 0)]
        if not len(shown):
            return ""
        low, high = float(shown.min()), float(shown.max())
        edges = np.array([low / 2, 2 * low])
        if low < high:
            edges = np.geomspace(low, high * (1 + SAME), 31)
        counts = np.histogram(shown, edges)[0]
        width, height = 360 / len(counts), 90 / counts.max()
        bars = "".join(
            f'<rect x="{10 + k * width:.1f}" y="{100 - n * height:.1f}" width="{width - 1:.1f}" '
            f'height="{n * height:.1f}" fill="#4477aa"/>'
            for k, n in enumerate(counts.tolist())
        )
        return (
            f'<svg width="380" height="135" role="img" aria-label="{title}" '
            f'font-family="sans-serif" font-size="11">{bars}'
            '<line x1="10" x2="370" y1="100" y2="100" stroke="#666"/>'
            f'<text x="10" y="114">{low:.3g}</text>'
            f'<text x="370" y="114" text-anchor="end">{high:.3g}</text>'
            f'<text x="190" y="130" text-anchor="middle">{title} (logarithmic)</text></svg>'
        )

    def select(self, positions: Any) -> Self:
        """Return the entries at the given positions, in that order."""
        order = np.asarray(positions)
        where = array_namespace(self.values).asarray(order)
        picked = self.values[where] if self.values.ndim == 1 else self.values[where, :]
        accuracy = self.accuracy
        if accuracy is not None and np.ndim(accuracy):
            accuracy = as_numpy(accuracy)[order]
        return replace(self, values=picked, index=self.labels()[order], accuracy=accuracy)

    @property
    def worst_accuracy(self) -> float:
        """The largest of the relative errors; 0 if none are stated."""
        if self.accuracy is None:
            return 0.0
        return float(np.max(as_numpy(self.accuracy), initial=0.0))

    def mse_bound(self) -> Result:
        """Return the smallest mean squared error per unknown that the leakage allows.

        For FIL, the bound is ``1/η²``: no unbiased estimate of any single number in the view has a
        smaller variance (Hannun et al. 2021, equation 3). For dFIL, the bound is ``1/η̄²``: no
        unbiased estimate of the whole view has a smaller mean squared error per number (Guo et al.
        2022, theorem 2). The bound is infinite if nothing leaks.
        """
        if self.measure not in ("fil", "dfil", "mse", "std"):
            name = _SYMBOLS.get(self.measure, self.measure)
            raise InputError(f"{name} implies no bound on an adversary's error; use FIL or dFIL.")
        if self.measure not in ("fil", "dfil"):
            raise InputError(
                f"This result is already a bound on the {_SYMBOLS[self.measure]}; use its numbers."
            )
        xp = array_namespace(self.values)
        squared = self.values * self.values
        safe = xp.where(squared > 0, squared, xp.ones_like(squared))
        bound = xp.where(squared > 0, 1 / safe, xp.full_like(squared, float("inf")))
        bound = xp.where(xp.isnan(squared), squared, bound)  # no bound for what was not measured
        accuracy = None if self.accuracy is None else 2 * self.accuracy
        assumed = (*UNBIASED, *self.assumptions)
        return replace(
            self, values=bound, measure="mse", kind="bound", assumptions=assumed, accuracy=accuracy
        )

    def std_bound(self) -> Result:
        """Return the square root of :meth:`mse_bound`, in the units of the data."""
        bound = self if self.measure == "mse" else self.mse_bound()
        again = bound.rescaled
        return replace(
            bound,
            values=array_namespace(bound.values).sqrt(bound.values),
            measure="std",
            accuracy=None if bound.accuracy is None else bound.accuracy / 2,
            rescaled=None if again is None else lambda factor: again(factor).std_bound(),
        )

    def table(self, library: str | None = None) -> Any:
        """Return a data frame in the caller's own library (pyarrow for arrays and tensors).

        ``library`` selects another library: ``pandas``, ``polars`` or ``pyarrow``.
        """
        numbers = np.asarray(self)
        columns: dict[str, Any]
        if not self.shape:
            columns = {"view": [self.view], self.measure: [float(self)]}
        elif numbers.ndim == 1:
            columns = {singular(self.view): self.labels(), self.measure: numbers}
        else:
            columns = {singular("rows"): self.labels()}
            for j, name in enumerate(self.names or ()):
                columns[name if name not in columns else f"{name} ({j})"] = numbers[:, j]
        return build_frame(columns, library or self.library)

    def __repr__(self) -> str:
        what, kind = _SYMBOLS[self.measure], self.kind
        if self.worst_accuracy > 1e-6:
            kind += f", to {self.worst_accuracy:.1g}"
        link = "on" if self.less_is_worse else "about"
        about = f" {link} {self.about}" if self.about else ""
        what += f", {kind}" if self.less_is_worse else f" ({kind})"
        if not self.shape:
            return f"<{self.view}: {what}{about}: {float(self):.4g}>"
        numbers = np.asarray(self)
        unit = _UNITS[self.view]
        if numbers.size == 1:
            unit = "person" if unit == "people" else unit.removesuffix("s")
        size = "×".join(map(str, numbers.shape))
        worst = self.top(1)
        value = np.asarray(worst).min() if self.less_is_worse else np.asarray(worst).max()
        known = numbers[~np.isnan(numbers)]
        middle = np.median(known) if known.size else np.nan
        unknown = f"; {numbers.size - known.size} not measured" if known.size < numbers.size else ""
        return (
            f"<{size} {unit}: {what}{about}: median {middle:.4g}, "
            f"worst {value:.4g} at {worst.labels()[0]!s}{unknown}>"
        )

    def drawing(self) -> PlottedNumbers:
        """Return the data for :meth:`plot`."""
        name = _SYMBOLS.get(self.measure, self.measure)
        if not self.shape:
            return PlottedNumbers(np.atleast_1d(self.to_numpy()), [self.view], name)
        worst = self.sort()
        unit = _UNITS[self.view]
        return PlottedNumbers(
            worst.to_numpy(), worst.labels(), name, unit, columns=self.names or ()
        )

    def html_notes(self) -> tuple[str, ...]:
        """Return the assumptions, for display in a notebook."""
        return self.assumptions

    def html_table(self) -> Any:
        """Return the ten worst rows, or the single number, as a ``pyarrow`` table."""
        return super().html_table() if self.shape else self.table(library="pyarrow")


def singular(view: str) -> str:
    """Return the name of one entry of a view."""
    names = {"rows": "row", "columns": "attribute", "groups": "group", "people": "person"}
    return names.get(view, view)


# Numbers of records that are read in chunks -------------------------------------------------------


Numbers = Callable[[Chunk], np.ndarray]


@dataclass(frozen=True, eq=False)
class RecordStream(RankedResult):
    """The leakage about every record of data read in chunks: a result computed on demand.

    Numbers are computed only on request, chunk by chunk: iterate over :meth:`chunks`, :meth:`write`
    them to Parquet, or call :meth:`result`, which stores all of them.

    Parameters
    ----------
    source
        The data.
    function
        The function that computes the numbers of one chunk's records.
    view, measure, kind, about, names, assumptions, noise, held
        As in :class:`~seepage.core.result.Result`.
    """

    source: RowSource
    function: Callable[[Chunk], RecordNumbers]
    view: str
    measure: str
    about: str
    kind: str = "exact"
    names: tuple[str, ...] | None = None
    assumptions: tuple[str, ...] = ()
    noise: tuple[Any, ...] = ()
    held: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        return (
            f"<{len(self):,} {'records' if self.view == 'rows' else 'rows of cells'}: "
            f"{self.measure}, {self.kind}, about {self.about}; not computed yet>"
        )

    def to_numpy(self) -> np.ndarray:
        """Compute all numbers, and return them as a NumPy array."""
        return np.asarray(self.result())

    def table(self, library: str | None = None) -> Any:
        """Compute all numbers, and return them as a data frame; see :meth:`Result.table`."""
        return self.result().table(library)

    @property
    def less_is_worse(self) -> bool:
        """Whether smaller numbers mean more leakage; see :attr:`Result.less_is_worse`."""
        return self._described(np.empty(0), None).less_is_worse

    def labels(self) -> np.ndarray:
        """Return the label of each entry from the index, or its position if there is no index."""
        return np.arange(len(self)) if self.source.index is None else self.source.index

    def select(self, positions: Any) -> Result:
        """Compute all numbers, and return the entries at the given positions, in that order."""
        return self.result().select(positions)

    def drawing(self) -> PlottedNumbers:
        """Compute all numbers, and return the data for :meth:`plot`."""
        return self.result().drawing()

    def _repr_html_(self) -> str:
        """Return a line of text without numbers, which are not computed yet."""
        return f"<p><strong>{escape(repr(self)[1:-1])}</strong></p>"

    def histogram(self, title: str) -> str:
        """Return an empty string, since the numbers are not computed yet."""
        return ""

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield the numbers of the records, chunk by chunk, in the order of the rows."""
        yield from self.source.each(self.numbers, self.view)

    @property
    def numbers(self) -> Numbers:
        """The function that computes the numbers of one chunk's records, without their accuracy."""
        return partial(numbers_alone, function=self.function)

    def result(self) -> Result:
        """Compute all numbers once and store them, in memory or, if there are many, on disk.

        The result needs eight bytes per number, or sixteen if each number has its own accuracy. The
        numbers of Dask data are transferred from the workers to this machine, a few partitions at a
        time.
        """
        if "kept" not in self.__dict__:
            every = reduce(add, self.source.each(self.function, self.view))
            self.__dict__["kept"] = self._described(every.values, every.accuracy)
        return warned(self.__dict__["kept"])

    def to_dask(self) -> Any:
        """Return the numbers of Dask data as a Dask array that stays on the workers."""
        width = None if self.names is None else len(self.names)
        return self.source.lazily(self.numbers, width, self.view)

    def mse_bound(self) -> RecordStream:
        """Return the smallest mean squared error per unknown; see :meth:`Result.mse_bound`."""
        return self._bound("mse_bound")

    def std_bound(self) -> RecordStream:
        """Return the square root of :meth:`mse_bound`, in the units of the data."""
        return self._bound("std_bound")

    def _bound(self, name: str) -> RecordStream:
        described = getattr(self._described(np.empty(0), None), name)()
        function = partial(_bound_of, function=self.function, measure=self.measure, name=name)
        return replace(
            self,
            function=function,
            measure=described.measure,
            kind=described.kind,
            assumptions=described.assumptions,
        )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the column ``row`` and the measure (for cells, one per table column) to Parquet.

        The file (for Dask data, a new folder of files) is written completely or not at all. Only
        the owner can read it, since the numbers are as sensitive as the data. Returns its path.
        """
        names = self.names if self.names is not None else (self.measure,)
        return write_records(self.source, path, {names: self.numbers})

    def _described(self, values: np.ndarray, accuracy: Any) -> Result:
        return Result(
            values,
            self.view,
            self.measure,
            self.kind,
            self.about,
            self.source.index,
            self.names,
            self.assumptions,
            self.source.library,
            self.noise,
            accuracy,
            self.held,
        )


def write_records(
    source: RowSource,
    path: str | os.PathLike[str],
    measures: dict[tuple[str, ...], Numbers],
) -> Path:
    """Write the results of several functions of every record to Parquet, in one pass.

    Each function is paired with the names of the columns that it fills.
    """
    out = file_to_write(path)
    source.write(partial(_table, measures=measures), out, "writing")
    return out


def _table(chunk: Chunk, measures: dict[tuple[str, ...], Numbers]) -> pa.Table:
    import pyarrow as pa

    columns: dict[str, Any] = {"row": np.arange(chunk.start, chunk.start + len(chunk))}
    for names, function in measures.items():
        numbers = function(chunk)
        for k, name in enumerate(names):
            unused = name if name not in columns else f"{name} ({k})"
            columns[unused] = numbers if numbers.ndim == 1 else numbers[:, k]
    return pa.table(columns).replace_schema_metadata({"notice": NOTICE})


def numbers_alone(chunk: Chunk, function: Callable[[Chunk], RecordNumbers]) -> np.ndarray:
    """Return the numbers of a chunk's records without their accuracy."""
    return np.asarray(function(chunk).values)


def _bound_of(
    chunk: Chunk, function: Callable[[Chunk], RecordNumbers], measure: str, name: str
) -> RecordNumbers:
    numbers = function(chunk)
    bound = getattr(Result(numbers.values, "rows", measure, accuracy=numbers.accuracy), name)()
    return replace(numbers, values=bound.values, accuracy=bound.accuracy)


@dataclass(frozen=True, eq=False)
class RecordNumbers:
    """The numbers of a chunk's records; ``+`` merges chunks into one array for all records."""

    values: Array  # (m,), or (m, k)
    accuracy: Any  # as :class:`~seepage.core.result.Result` has it
    start: int  # the position of the first record
    rows: int  # how many records there are in all

    def __add__(self, other: RecordNumbers) -> RecordNumbers:
        every = self if len(self.values) == self.rows else self._among_all()
        here = slice(other.start, other.start + len(other.values))
        every.values[here] = other.values
        if every.accuracy is not None:
            every.accuracy[here] = other.accuracy
        return every

    def _among_all(self) -> RecordNumbers:
        """Return an array for all records, with these numbers filled in."""
        several = self.values.shape[1:]

        def room() -> np.ndarray:
            return room_for(*several, self.rows).T  # one number of all records is contiguous

        every = replace(self, values=room(), accuracy=None if self.accuracy is None else room())
        return every + self


@dataclass(frozen=True, eq=False)
class EachRecord(ChunkQuestion):
    """One number per record, or one per cell.

    ``measure`` is ``fil``, ``dfil``, ``cells``, ``cramer_rao`` (``Tr(I⁻¹)`` over the number of
    unknowns) or ``cramer_rao_cells`` (the diagonal of ``I⁻¹``); ``rows`` is the total number of
    records, and ``stated`` is whether relative errors are computed.
    """

    measure: str
    unknowns: Unknowns
    rows: int
    stated: bool = True

    per_record = True

    def of(self, jacobian: ReleaseJacobian, chunk: Chunk, before: Mapping[str, Any]) -> Any:
        """Return the numbers of a chunk's records, with their relative errors if known."""
        values, accuracy = self.numbers(jacobian)
        return RecordNumbers(values, accuracy, chunk.start, self.rows)

    def numbers(self, jacobian: ReleaseJacobian) -> tuple[Array, Any]:
        """Return the numbers of a Jacobian's records, and their relative errors if known."""
        unknowns, stated = self.unknowns, self.stated and jacobian.accuracy.stated
        count = unknowns.count(jacobian)
        if self.measure == "cramer_rao_cells":
            values, accuracy = inverses(jacobian, unknowns)
            return values, accuracy if stated else None
        if self.measure == "cramer_rao":
            traces, accuracy = inverse_traces(jacobian, unknowns)
            return traces / count, accuracy if stated else None
        if self.measure == "cells":
            squared = jacobian.cell_information(unknowns)
            return root(squared), jacobian.accuracy.cells(squared, unknowns) if stated else None
        if self.measure == "dfil":
            squared = jacobian.row_traces(unknowns)
        else:
            squared, count = jacobian.row_norms(unknowns), 1
        accuracy = jacobian.accuracy.rows(squared, unknowns) if stated else None
        return root(squared / count if count > 1 else squared), accuracy


def root(squared: Array) -> Array:
    """Return the square root of a number, or zero if rounding made the number negative."""
    xp = array_namespace(squared)
    if squared.shape and not bool(xp.any(squared < 0)):
        return xp.sqrt(squared)
    return xp.sqrt(xp.where(squared > 0, squared, xp.zeros_like(squared)))


# What results hold fixed: one word for a machine, one sentence for a reader ---------------------
#
# A procedure learns more from the data than the numbers it releases: a penalty, the weights of
# classes, the scaling of columns. A measure differentiates or refits some of that; the rest stays
# what it is with the record, and is *held*. Adapters and steps say what was learnt, measures
# what they choose anew, and ``Result.held`` is the difference.

CLASS_WEIGHTS = "class weights"
COLUMNS = "selected columns"
LEVELS = "levels"
NOISE = "noise"
PENALTY = "penalty"
SCALING = "scaling"
SETTINGS = "settings"

# The preparation of columns is one sentence, which lists the words that have no sentence here.
_SENTENCES = {
    CLASS_WEIGHTS: (
        "class_weight='balanced' computed the class weights from all labels. These weights are "
        "held fixed, although changing or removing a record would change the weights of all "
        "others."
    ),
    COLUMNS: (
        "The data determined which columns the model keeps. This selection and the signs of "
        "L1-penalised coefficients are held fixed; the leakage of the selection is not counted."
    ),
    NOISE: (
        "The data determined the noise, which is held fixed, although leaving out a record might "
        "have changed it."
    ),
    PENALTY: (
        "The penalty nλ is held fixed, although it would change if a record were changed or "
        "removed. The leakage of its choice is not counted."
    ),
    SETTINGS: (
        "A search on the data chose the settings, which are held fixed, and the leakage of their "
        "choice is not counted."
    ),
}


def held_sentences(held: Iterable[str]) -> tuple[str, ...]:
    """Return sentences for the terms that are held fixed; preprocessing terms share the last one.

    >>> held_sentences(("scaling", "levels"))[0]
    'The preprocessing learnt from the data (scaling, levels) is held fixed, and counts as public.'
    """
    words = tuple(held)
    told = [_SENTENCES[word] for word in words if word in _SENTENCES]
    prepared = [word for word in words if word not in _SENTENCES]
    if prepared:
        told.append(
            f"The preprocessing learnt from the data ({', '.join(prepared)}) is held fixed, and "
            "counts as public."
        )
    return tuple(told)


def joined(*parts: Iterable[str]) -> tuple[str, ...]:
    """Return all terms of several lists, in order and without repeats."""
    return tuple(dict.fromkeys(word for part in parts for word in part))


def less(held: Iterable[str], anew: Iterable[str]) -> tuple[str, ...]:
    """Return the terms of ``held`` that are not in ``anew``."""
    chosen = set(anew)
    return tuple(word for word in held if word not in chosen)


# The coarse public grid on which figures that depend on the data may be published --------------
#
# A figure on the grid does not move with small changes of a record, so its Fisher information is
# zero almost everywhere; it takes one of a few values, and the mutual information with the data is
# at most the logarithm of their number. Finite changes are *not* hidden: whoever knows all other
# records learns something for certain if the figures with and without a record are different
# points.

GRID = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)  # points of a decade
COARSER = (1.0, 2.0, 5.0)  # for publication: fewer records move a figure across a point


def round_up(value: float, grid: Sequence[float] = GRID) -> float:
    """Return the smallest grid point at or above a positive number.

    >>> round_up(0.0213), round_up(3.0), round_up(712)
    (0.03, 3.0, 1000.0)
    """
    decade = math.floor(math.log10(value)) - 1
    points = (float(f"{step:g}e{k}") for k in range(decade, decade + 4) for step in grid)
    return next(point for point in points if point >= value * (1 - SAME))


def round_down(value: float, grid: Sequence[float] = GRID) -> float:
    """Return the largest grid point at or below a positive number.

    >>> round_down(0.0213), round_down(569, (1.0, 2.0, 5.0))
    (0.02, 500.0)
    """
    decade = math.floor(math.log10(value)) + 1
    steps = sorted(grid, reverse=True)
    points = (float(f"{step:g}e{k}") for k in range(decade, decade - 4, -1) for step in steps)
    return next(point for point in points if point <= value * (1 + SAME))


def round_to_multiple(value: float, step: float) -> float:
    """Return a multiple of a step within 0.63 steps of a number.

    The rounding thresholds are not at half steps: means often lie exactly at half steps, and one
    record could then change the result.

    >>> round_to_multiple(28.4, 5.0), round_to_multiple(30.0, 20.0)
    (30.0, 20.0)
    """
    return round(value / step - 0.13) * step


def warned(result: Result) -> Result:
    """Return the result; issue a warning if rounding has visibly affected its numbers."""
    if result.worst_accuracy > 1e-2:
        warnings.warn(
            f"The relative rounding error of these numbers is up to {result.worst_accuracy:.1g} "
            f"(see .accuracy of the {result.view}), because the data barely determine them. A "
            "larger penalty, fewer collinear columns, or dtype='float64' helps.",
            InaccurateWarning,
            stacklevel=4,
        )
    return result

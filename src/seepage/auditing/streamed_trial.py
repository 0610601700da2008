"""What noise costs in accuracy, for data that are read in chunks: a fit without some rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from seepage.auditing.recipe import Recipe
from seepage.auditing.tradeoff import HELD_OUT, TESTED, Trial, noisy_margins
from seepage.errors import InputError
from seepage.streams.column_scan import ColumnSums
from seepage.streams.source import Chunk, RowSource

Answer = TypeVar("Answer")


def held_out_rows(rows: int, seed: int) -> np.ndarray:
    """Return the positions of the rows that are held out, sorted: a fifth, or 20,000."""
    wanted = min(TESTED, max(1, round(HELD_OUT * rows)))
    generator = np.random.default_rng(seed)
    chosen = np.unique(generator.integers(0, rows, wanted))
    while len(chosen) < wanted:
        chosen = np.unique(np.concatenate([chosen, generator.integers(0, rows, wanted)]))
    return np.sort(generator.permutation(chosen)[:wanted])


def try_out_streamed(
    source: RowSource,
    model: Any,
    recipe: Recipe,
    held_out: np.ndarray,
    records: tuple[np.ndarray, np.ndarray],
    labels: ColumnSums,
    eta: np.ndarray,
    seed: int,
) -> tuple[Trial, bool]:
    """Fit without the held-out rows and draw noise for them; say whether that fit was possible.

    The fit starts at the model of all rows, from which a few held-out ones take it only a step or
    two away. Where it does not exist (all records of a class are held out), the model of all rows
    is tried on them instead.

    Parameters
    ----------
    source
        All rows.
    model, recipe
        The model of all rows, and how it was fitted.
    held_out
        The rows to leave out.
    records
        Their features and labels.
    labels
        What a scan found of the labels.
    eta
        The leakage of all records at σ = 1.
    seed
        Of the noise.
    """
    fitted, possible = recipe.estimator(), True
    fitted._start = model._parameters()
    try:
        fitted.fit(_Without(source, held_out))
    except InputError:
        fitted, possible = model, False
    X, y = records
    margins, shifts = noisy_margins(fitted, recipe, X, seed)
    if recipe.classifies:
        truth = np.searchsorted(model.classes_, y)
        counts: Mapping[Any, int] = labels.levels or {}
        most = max(counts, key=lambda label: counts[label])
        trivial = float(np.mean(truth != np.searchsorted(model.classes_, most)))
    else:
        truth = np.asarray(y, dtype=float)
        trivial = float(np.sqrt(np.mean((truth - labels.mean) ** 2)))
    ceiling = 0.0 if recipe.classifies else labels.most
    return Trial(margins, shifts, truth, eta, recipe, trivial, ceiling), possible


class _Without(RowSource):
    """Another source without some of its rows."""

    def __init__(self, source: RowSource, rows: np.ndarray) -> None:
        self._source, self._rows = source, rows
        self.names, self.attributes = source.names, source.attributes
        self.target, self.weighted = source.target, source.weighted

    def __len__(self) -> int:
        return len(self._source) - len(self._rows)

    def classes(self) -> np.ndarray:
        """Return the labels of all rows."""
        return self._source.classes()

    def each(
        self, function: Callable[[Chunk], Answer], what: str, extra: Sequence[str] = ()
    ) -> Iterator[Answer]:
        """Yield the function's answer on what is left of every chunk, if anything is."""
        ask = partial(_left, rows=self._rows, function=function)
        for answers in self._source.each(ask, what, extra):
            yield from answers.given

    def total(
        self, function: Callable[[Chunk], Answer], what: str, extra: Sequence[str] = ()
    ) -> Answer:
        """Return the sum of the function's answers on what is left."""
        ask = partial(_left, rows=self._rows, function=function)
        found: Answer = self._source.total(ask, what, extra).given[0]
        return found


@dataclass(frozen=True)
class _Answers:
    """The answer on some rows, or none where no row was left; two add up to one."""

    given: tuple[Any, ...]

    def __add__(self, other: _Answers) -> _Answers:
        if not (self.given and other.given):
            return _Answers(self.given + other.given)
        return _Answers((self.given[0] + other.given[0],))


def _left(chunk: Chunk, rows: np.ndarray, function: Callable[[Chunk], Any]) -> _Answers:
    """Return the function's answer on a chunk without some rows of the table."""
    kept = ~np.isin(np.arange(chunk.start, chunk.start + len(chunk)), rows)
    if not kept.any():
        return _Answers(())
    weight = None if chunk.weight is None else chunk.weight[kept]
    others = {name: values[kept] for name, values in chunk.extra.items()}
    there = replace(chunk, X=chunk.X[kept], y=chunk.y[kept], weight=weight, extra=others)
    return _Answers((function(there),))

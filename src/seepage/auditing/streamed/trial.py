"""What noise costs in accuracy, for data that are read in chunks: a fit without some rows.

The error on the rows that were held out is a sum of losses over them, formed where they are: the
draws of the noise, a few parameter vectors, go to the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np

from seepage.auditing.intake.recipe import Recipe
from seepage.auditing.measures.tradeoff import HELD_OUT, TESTED, losses, noisy_margins
from seepage.errors import InputError
from seepage.streams.disk.column_scan import ColumnSums
from seepage.tables.source import Answers, Chunk, RowSource

Answer = TypeVar("Answer")


@lru_cache(maxsize=4)
def held_out_rows(rows: int, seed: int) -> np.ndarray:
    """Return the positions of the rows that are held out, sorted: a fifth, or 20,000."""
    wanted = min(TESTED, max(1, round(HELD_OUT * rows)))
    generator = np.random.default_rng(seed)
    chosen = np.unique(generator.integers(0, rows, wanted))
    while len(chosen) < wanted:
        chosen = np.unique(np.concatenate([chosen, generator.integers(0, rows, wanted)]))
    found = np.sort(generator.permutation(chosen)[:wanted])
    found.flags.writeable = False
    return found


@dataclass(frozen=True, eq=False)
class _Setting:
    """All that the loss of a held-out record depends on besides the record."""

    model: Any
    recipe: Recipe
    usual: Any  # the answer of always giving the same one
    ceiling: float
    rows: int
    seed: int


@dataclass(frozen=True, eq=False)
class _Losses:
    """Sums over held-out records: with noise, (scales, draws), and of the usual answer."""

    count: int
    noisy: np.ndarray
    usual: float

    def __add__(self, other: _Losses) -> _Losses:
        return _Losses(self.count + other.count, self.noisy + other.noisy, self.usual + other.usual)


@dataclass(eq=False)
class StreamedTrial:
    """A model fitted without some rows, with what its noisy copies predict for them.

    Parameters
    ----------
    source
        All rows.
    setting
        The model, and what else the losses depend on.
    median_eta, worst_eta
        The leakage of the release at σ = 1.
    """

    source: RowSource
    setting: _Setting
    median_eta: float
    worst_eta: float
    trivial_error: float = np.nan
    known: dict[float, float] = field(default_factory=dict)

    @property
    def recipe(self) -> Recipe:
        """How the model was fitted."""
        return self.setting.recipe

    def prepare(self, scales: Iterable[float]) -> None:
        """Find the errors at several noise scales in one pass."""
        wanted = tuple(dict.fromkeys(float(s) for s in scales if float(s) not in self.known))
        ask = partial(_lost, setting=self.setting, scales=wanted)
        total: _Losses = self.source.total(ask, "held-out records")
        found = np.mean(total.noisy / total.count, axis=1)
        self.known |= {s: self._named(float(loss)) for s, loss in zip(wanted, found, strict=True)}
        self.trivial_error = self._named(total.usual / total.count)

    def error(self, sigma: float) -> float:
        """Return the error with noise σ, the mean over the draws (a root mean square of numbers).

        Draws are the same for every σ, so that errors differ by the noise and not by chance.
        """
        if sigma not in self.known:
            self.prepare([sigma])
        return self.known[sigma]

    def noiseless_error(self) -> float:
        """Return the error without noise."""
        return self.error(0.0)

    def _named(self, loss: float) -> float:
        return loss if self.recipe.classifies else float(np.sqrt(loss))


def try_out_streamed(
    source: RowSource,
    model: Any,
    recipe: Recipe,
    labels: ColumnSums,
    eta: tuple[float, float],
    seed: int,
) -> tuple[StreamedTrial, bool]:
    """Fit without the held-out rows; say whether that was possible.

    The fit starts at the model of all rows, from which a few held-out ones take it only a step or
    two away. Where it does not exist (all records of a class are held out), the model of all rows
    is tried on them instead.

    Parameters
    ----------
    source
        All rows.
    model, recipe
        The model of all rows, and how it was fitted.
    labels
        What a scan found of the labels.
    eta
        The median and the largest leakage of a record at σ = 1.
    seed
        Of the held-out rows and of the noise.
    """
    fitted, possible = recipe.estimator(), True
    fitted._start = model._parameters()
    try:
        fitted.fit(_Without(source, seed))
    except InputError:
        fitted, possible = model, False
    usual: Any = labels.mean
    if recipe.classifies:
        counts: Mapping[Any, int] = labels.levels or {}
        usual = int(np.searchsorted(model.classes_, max(counts, key=lambda k: counts[k])))
    ceiling = 0.0 if recipe.classifies else labels.most
    setting = _Setting(fitted, recipe, usual, ceiling, len(source), seed)
    return StreamedTrial(source, setting, *eta), possible


def _lost(chunk: Chunk, setting: _Setting, scales: tuple[float, ...]) -> _Losses:
    """Return the losses of the held-out records among those of a chunk."""
    out = _is_held_out(chunk, setting.rows, setting.seed)
    model, recipe = setting.model, setting.recipe
    margins, shifts = noisy_margins(model, recipe, chunk.X[out], setting.seed)
    if recipe.classifies:
        truth = np.searchsorted(model.classes_, chunk.y[out])
        usual = np.sum(truth != setting.usual)
    else:
        truth = np.asarray(chunk.y[out], dtype=float)
        usual = np.sum((truth - setting.usual) ** 2)
    noisy = [
        [np.sum(losses(recipe, margins + s * shift, truth, setting.ceiling)) for shift in shifts]
        for s in scales
    ]
    return _Losses(int(out.sum()), np.asarray(noisy, dtype=float), float(usual))


def _is_held_out(chunk: Chunk, rows: int, seed: int) -> np.ndarray:
    return np.isin(np.arange(chunk.start, chunk.start + len(chunk)), held_out_rows(rows, seed))


class _Without(RowSource):
    """Another source without the rows that are held out."""

    def __init__(self, source: RowSource, seed: int) -> None:
        self._source, self._seed = source, seed
        self.names, self.attributes = source.names, source.attributes
        self.target, self.weighted = source.target, source.weighted

    def __len__(self) -> int:
        return len(self._source) - len(held_out_rows(len(self._source), self._seed))

    def classes(self) -> np.ndarray:
        """Return the labels of all rows."""
        return self._source.classes()

    def each(
        self, function: Callable[[Chunk], Answer], what: str, extra: Sequence[str] = ()
    ) -> Iterator[Answer]:
        """Yield the function's answer on what is left of every chunk, if anything is."""
        for answers in self._source.each(self._ask(function), what, extra):
            yield from answers.given

    def total(
        self, function: Callable[[Chunk], Answer], what: str, extra: Sequence[str] = ()
    ) -> Answer:
        """Return the sum of the function's answers on what is left."""
        found: Answer = self._source.total(self._ask(function), what, extra).given[0]
        return found

    def _ask(self, function: Callable[[Chunk], Any]) -> Callable[[Chunk], Answers]:
        return partial(_left, rows=len(self._source), seed=self._seed, function=function)


def _left(chunk: Chunk, rows: int, seed: int, function: Callable[[Chunk], Any]) -> Answers:
    """Return the function's answer on a chunk without the rows that are held out."""
    kept = ~_is_held_out(chunk, rows, seed)
    if not kept.any():
        return Answers(())
    weight = None if chunk.weight is None else chunk.weight[kept]
    others = {name: values[kept] for name, values in chunk.extra.items()}
    there = replace(chunk, X=chunk.X[kept], y=chunk.y[kept], weight=weight, extra=others)
    return Answers((function(there),))

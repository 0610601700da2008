"""Membership- and attribute-inference risks of a release, as success rates.

Unlike η, these rates limit every adversary who knows all other records, biased or unbiased. With
Gaussian noise, each candidate table gives a normal distribution of the release, and the distances μ
between these distributions determine every risk. The release object (``MeasuredRelease``) computes
the distances; :mod:`seepage.risks` converts them to probabilities.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy.special import ndtr

from seepage.core.finite_changes import (
    Alternatives,
    FiniteChanges,
    Moves,
    Reruns,
)
from seepage.core.jacobian import Attributes, MeasuredRelease
from seepage.core.noise import Noise
from seepage.core.people import Identities, Together
from seepage.core.result import (
    CLASS_WEIGHTS,
    RecordNumbers,
    Result,
    held_sentences,
    joined,
    less,
    singular,
)
from seepage.errors import InputError
from seepage.risks import guessing
from seepage.risks.guessing import (
    Success,
    Within,
    best_guess,
    best_within,
    checked_prior,
    guess_limit,
    windows,
)
from seepage.support.chunks import progress, row_slices
from seepage.support.files import write_frame
from seepage.support.room import computed
from seepage.tables.names import counted
from seepage.tables.result_table import PlottedNumbers, RankedResult
from seepage.tables.source import Chunk, RowSource, as_numpy, build_frame, looked_up

Prior = str | Sequence[float] | np.ndarray
Changes = Callable[[Chunk], FiniteChanges]  # how far the release moves with a chunk's records

_KNOWN = {
    "rows": "The adversary knows every other record and everything about this record except the "
    "unknowns.",
    "groups": "The adversary knows every record outside the group.",
    "people": "The adversary knows all records of other people, and everything about this person "
    "except the unknowns.",
}
_FIXED = (
    "The noise, and any earlier preparation of the table, are held fixed while a record is changed "
    "or removed."
)
_REFITTED = "Everything that the given refit function chooses is chosen again without the record."
_RERUN = (
    "Everything that the procedure learns is learnt again with the record changed or left out; "
    "apart from the released numbers, nothing it learns may be published."
)
_ONLY = "Nothing is published besides the measured release, with the stated noise."
_UNITS = {"rows": "records", "groups": "groups", "people": "people"}

_FREE_WORK = 1e11  # multiplications allowed to refits unless all are asked for
_FREE_FITS = 2000  # fits of whole procedures allowed unless all are asked for: half a minute
_EXACT = 1e-6  # the relative width of an interval up to which it is a number
_PRODUCTS_HELD = 1 << 27  # inner products held at a time
_MOST_DISTINCT = 1 << 20  # the most different values of a column that are counted


class MeasuredTable(Protocol):
    """A release about a table, with the attributes of a :class:`~seepage.core.leakage.Leakage`.

    That class describes these attributes.
    """

    release: MeasuredRelease
    source: RowSource
    noise: tuple[Noise, ...]
    attributes: Attributes
    notes: tuple[str, ...]
    person: Identities | None
    held: tuple[str, ...]
    procedure: Reruns | None


@dataclass(frozen=True, eq=False, repr=False)
class Membership(RankedResult):
    """The membership risk of every record, group or person.

    ``numpy.asarray`` returns the distances μ.

    Parameters
    ----------
    mu
        The distance, in units of the noise, between the releases with and without the record: the μ
        of Gaussian differential privacy. The distance is infinite if the other records alone have
        no unique minimiser. If only an interval is known, ``mu`` is its upper end, and the kind is
        ``bound``.
    lower
        The lower ends of the intervals.
    """

    mu: Result
    lower: np.ndarray

    def advantage(self) -> Result:
        """Return the largest difference between true and false positive rates, ``2Φ(μ/2) − 1``."""
        return self._told(guessing.advantage(self.mu), "advantage")

    def accuracy(self, prior: float = 0.5) -> Result:
        """Return the largest success rate if records are members with this probability."""
        return self._told(guessing.accuracy(self.mu, prior), "right")

    def tpr(self, fpr: float = 0.01) -> Result:
        """Return the largest true positive rate, ``Φ(Φ⁻¹(fpr) + μ)``, at a false positive rate."""
        return self._told(guessing.true_positive_rate(self.mu, fpr), "tpr")

    def to_numpy(self) -> np.ndarray:
        """Return the distances μ."""
        return np.asarray(self.mu)

    def labels(self) -> np.ndarray:
        """Return the label of each entry: a record, group or person."""
        return self.mu.labels()

    def select(self, positions: Any) -> Membership:
        """Return the entries at the given positions, in that order."""
        return Membership(self.mu.select(positions), self.lower[positions])

    def drawing(self) -> PlottedNumbers:
        """Return the data for :meth:`plot`: the success rate of the best test."""
        worst = self.sort()
        right, lower = (np.asarray(worst.accuracy()), guessing.accuracy(worst.lower, 0.5))
        unit = _UNITS[self.mu.view]
        name, chance = "membership inference: success rate", (0.5, "chance")
        return PlottedNumbers(right, worst.labels(), name, unit, lower, right, chance)

    def html_notes(self) -> tuple[str, ...]:
        """Return the assumptions, for display in a notebook."""
        return self.mu.assumptions

    def table(self, library: str | None = None) -> Any:
        """Return a data frame: μ with its interval, and the largest success rate."""
        columns = {
            singular(self.mu.view): self.mu.labels(),
            "mu": np.asarray(self.mu),
            "mu_lower": self.lower,
            "right": np.asarray(self.accuracy()),
        }
        return build_frame(columns, library or self.mu.library)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the table to a Parquet file that only its owner can read; return its path."""
        return write_frame(self.table("pyarrow"), path)

    def _told(self, values: np.ndarray, measure: str) -> Result:
        return replace(self.mu, values=values, measure=measure, accuracy=None)

    def __len__(self) -> int:
        return len(self.mu)

    def __repr__(self) -> str:
        right = 100 * np.asarray(self.accuracy())
        worst = self.mu.top(1)
        return (
            f"<{len(self)} {_UNITS[self.mu.view]}: membership inference, {self.mu.kind}: "
            f"success rate {np.median(right):.1f} % (median; chance 50 %), worst "
            f"{right.max():.1f} % at {worst.labels()[0]!s} (μ = {float(np.asarray(worst)[0]):.4g})>"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Guess(RankedResult):
    """The attribute-inference risk of every record: success rates with and without the release.

    If all records of each person share the value, there is one entry per person.

    ``numpy.asarray`` returns the success rates.

    Parameters
    ----------
    right
        The success rate with the release. If only an interval is known, this is its upper end (kind
        ``bound``); if the rate is estimated, the upper end of the 99 % interval (kind
        ``estimate``).
    lower
        The lower ends of the intervals.
    baseline
        The success rate of the best guess without the release, from the prior alone.
    levels
        The candidate values.
    mu
        The largest distance, in units of the noise, between the releases under two of the levels;
        if only an interval is known, its upper end. ``None`` for a number guessed to within a
        tolerance.
    """

    right: Result
    lower: np.ndarray
    baseline: np.ndarray
    levels: tuple[Any, ...]
    mu: np.ndarray | None = None

    def gain(self) -> Result:
        """Return the gain in success rate due to the release."""
        return replace(self.right, values=np.asarray(self.right) - self.baseline, measure="gain")

    def tpr(self, fpr: float = 0.01) -> Result:
        """Return the largest true positive rate of a test between two levels.

        The rate is ``Φ(Φ⁻¹(fpr) + μ)`` at this false positive rate. Unlike the gain, it does not
        depend on the prior: a rare level has a small gain even if it can be recognised.
        """
        if self.mu is None:
            raise InputError(
                "A guess to within a tolerance has no pair of levels to test; use gain()."
            )
        return replace(
            self.right,
            values=guessing.true_positive_rate(self.mu, fpr),
            measure="tpr",
            accuracy=None,
        )

    def to_numpy(self) -> np.ndarray:
        """Return the success rates with the release."""
        return np.asarray(self.right)

    def labels(self) -> np.ndarray:
        """Return the label of each entry: a record, group or person."""
        return self.right.labels()

    def worst_first(self) -> np.ndarray:
        """Return the positions of the entries, sorted by descending gain from the release."""
        return self.gain().worst_first()

    def select(self, positions: Any) -> Guess:
        """Return the entries at the given positions, in that order."""
        order = np.asarray(positions)
        mu = None if self.mu is None else self.mu[order]
        right = self.right.select(order)
        return Guess(right, self.lower[order], self.baseline[order], self.levels, mu)

    def drawing(self) -> PlottedNumbers:
        """Return the data for :meth:`plot`: the gain in success rate, with its interval."""
        worst = self.sort()
        gain = np.asarray(worst.gain())
        name, unit = f"{self.right.about}: gain in probability", _UNITS[self.right.view]
        return PlottedNumbers(gain, worst.labels(), name, unit, worst.lower - worst.baseline, gain)

    def html_notes(self) -> tuple[str, ...]:
        """Return the assumptions, for display in a notebook."""
        return self.right.assumptions

    def table(self, library: str | None = None) -> Any:
        """Return a data frame: the success rates with their interval, and the baseline."""
        columns = {
            singular(self.right.view): self.right.labels(),
            "right": np.asarray(self.right),
            "right_lower": self.lower,
            "baseline": self.baseline,
            "gain": np.asarray(self.gain()),
        }
        return build_frame(columns, library or self.right.library)

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the table to a Parquet file that only its owner can read; return its path."""
        return write_frame(self.table("pyarrow"), path)

    def __len__(self) -> int:
        return len(self.right)

    def __repr__(self) -> str:
        right, worst = 100 * np.asarray(self.right), self.top(1)
        return (
            f"<{len(self)} {_UNITS[self.right.view]}: {self.right.about}, {self.right.kind}: "
            f"success rate {np.median(right):.1f} % (median; "
            f"{100 * np.median(self.baseline):.1f} % without the release), largest gain "
            f"{100 * float(worst.gain()[0]):.1f} points at {worst.right.labels()[0]!s} "
            f"({100 * float(worst.right[0]):.1f} % instead of "
            f"{100 * float(worst.baseline[0]):.1f} %)>"
        )


# The views ----------------------------------------------------------------------------------------


def membership(
    leak: MeasuredTable,
    rows: np.ndarray | None,
    together: Together | None,
    exact: bool | int,
    refit: Callable[[np.ndarray], Any] | str | None,
    changes: Changes | None = None,
) -> Membership:
    """Return the membership risk of records, or of groups or people removed together.

    ``changes`` is the result of :func:`changes_of`, if already computed.
    """
    held: tuple[str, ...] = ()
    assumed: tuple[str, ...]
    if callable(refit):
        every = np.arange(len(leak.source)) if rows is None else rows
        sets = every if together is None else together.sets
        moves = _by_given_refit(leak, [np.atleast_1d(some) for some in sets], refit)
        assumed = (_KNOWN["rows" if together is None else together.view], _REFITTED, _ONLY)
        ends = np.stack([end[:, 0] for end in moves.distances()], axis=1)
    else:
        way = way_of(leak, refit)
        way.check_work(rows, together, 1, exact)
        held = joined(way.held, way.kept)
        assumed = way.assumptions(together, held)
        ask = partial(_without, changes=changes or way.changes(), exact=exact)
        ends = _of_each(leak, ask, rows, together, "membership")
    least, most = ends.T
    mu = _upper_ends(leak, least, most, rows, together, "membership", "membership", assumed, held)
    return Membership(mu, least)


def _upper_ends(
    leak: MeasuredTable,
    low: np.ndarray,
    high: np.ndarray,
    rows: np.ndarray | None,
    together: Together | None,
    measure: str,
    about: str,
    assumptions: tuple[str, ...],
    held: tuple[str, ...],
    estimated: bool = False,
) -> Result:
    """Return intervals' upper ends: as exact if all are narrow, else as a bound or an estimate."""

    def relative(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):
            off = np.where(high > 0, 1 - low / high, 0.0)
        return np.asarray(np.where(np.isinf(high), np.where(np.isinf(low), 0.0, np.inf), off))

    widths = computed(relative, low, high)
    index = leak.source.index if together is None else together.names
    if together is None and rows is not None:
        index = rows if index is None else np.asarray(np.asarray(index)[rows])
    return Result(
        high,
        "rows" if together is None else together.view,
        measure,
        "estimate" if estimated else "exact" if widths.max() <= _EXACT else "bound",
        about,
        index,
        assumptions=assumptions,
        library=leak.source.library,
        noise=leak.noise,
        accuracy=widths,
        held=held,
    )


@dataclass(frozen=True)
class Way:
    """States whether learnt values are refitted or held fixed under finite changes."""

    leak: MeasuredTable
    procedure: Reruns | None  # which is rerun; ``None`` if the model alone is refitted
    fixed: bool  # whether everything but the model is held fixed, even what need not be
    held: tuple[str, ...]  # what they hold fixed
    kept: tuple[str, ...]  # and besides when a record leaves
    asked: bool  # whether reruns were asked for, however many they are

    def changes(self) -> Changes:
        """Return a function that gives a chunk's finite changes."""
        procedure = self.procedure
        return changes_of(self.leak, self.fixed) if procedure is None else lambda _: procedure

    def assumptions(self, together: Together | None, held: tuple[str, ...]) -> tuple[str, ...]:
        """Return the assumptions: the adversary's knowledge, everything held fixed, and notes."""
        treated = _FIXED if self.procedure is None else _RERUN
        known = _KNOWN["rows" if together is None else together.view]
        return (known, treated, *held_sentences(held), _ONLY, *self.leak.notes)

    def check_work(
        self, rows: np.ndarray | None, together: Together | None, changes: int, exact: bool | int
    ) -> None:
        """Raise an error if too many runs of the whole procedure are needed, unless requested.

        ``changes`` is the number of runs for each queried record or set of records.
        """
        procedure = self.procedure
        if procedure is None or self.asked or exact is True:
            return
        queried = self.leak.source if rows is None else rows
        runs = changes * len(queried if together is None else together.sets)
        affordable = int(min(_FREE_FITS / procedure.fits, _FREE_WORK / procedure.work))
        if runs > max(affordable, exact):
            raise InputError(
                f"This query needs {counted(runs, 'run')} of the whole procedure, which learns "
                f"more from the data than the released numbers ({', '.join(procedure.learnt)}); "
                f"by default, at most {affordable:,} are allowed. Select records with rows=, "
                "request all runs with exact=True, or refit only the model with refit='model'."
            )


def way_of(leak: MeasuredTable, refit: str | None) -> Way:
    """Return whether a query refits the values that the procedure learnt, or holds them fixed.

    The procedure is rerun if refitting only the model would hold some learnt value fixed.
    """
    if refit not in (None, "model", "pipeline"):
        raise InputError(
            "refit must be 'pipeline', 'model' or a function (functions only for membership), not "
            f"{refit!r}."
        )
    release, procedure = leak.release, leak.procedure
    fixed, asked = refit == "model", refit == "pipeline"
    if procedure is None and asked:
        raise InputError(
            "refit='pipeline' needs a pipeline, but this release comes from a model alone. Pass "
            "the fitted pipeline and its raw table to sp.leakage or, for membership, pass a "
            "function as refit=."
        )
    left = procedure is not None and bool(less(procedure.learnt, release.anew))
    if procedure is not None and not fixed and (asked or left):
        return Way(leak, procedure, False, (), procedure.kept, asked)
    held = less(leak.held, () if fixed else release.anew)
    return Way(leak, None, fixed, held, release.kept, False)


def _without(
    chunk: Chunk, rows: np.ndarray, asked: np.ndarray, changes: Changes, exact: bool | int
) -> np.ndarray:
    """Return bounds on how far leaving out each record moves the release, (m, 2)."""
    moves = _refined(changes(chunk), rows, None, exact)
    return np.stack([ends[:, 0] for ends in moves.distances()], axis=1)


def changes_of(leak: MeasuredTable, fixed: bool = False) -> Changes:
    """Return a function that gives a chunk's finite changes; for data in chunks, bounds on them.

    With ``fixed``, everything except the released numbers is held fixed.
    """
    if leak.source.lazy:
        return leak.release.changes_in_chunks(leak.source)
    changes = leak.release.finite_changes()
    changes = changes.fixed if fixed else changes
    return lambda _: changes


def _of_each(
    leak: MeasuredTable,
    ask: Callable[..., np.ndarray],
    rows: np.ndarray | None,
    together: Together | None,
    what: str,
) -> np.ndarray:
    """Return the numbers that ``ask`` computes for each queried record or set of records, (m, k).

    The function is called with positions in the chunk and positions among all queried records.
    """
    if together is None:
        count = len(leak.source if rows is None else rows)
        put = partial(_of_chunk, ask=ask, rows=rows, count=count)
        parts = (part for part in leak.source.each(put, what) if part is not None)
        return np.asarray(reduce(add, parts).values)
    asked = list(leak.source.holding(together.sets))
    numbers = [ask(chunk, rows=sets, asked=which) for chunk, sets, which in asked]
    order = np.argsort(np.concatenate([which for _, _, which in asked]))
    return np.asarray(np.concatenate(numbers)[order])


def _of_chunk(
    chunk: Chunk, ask: Callable[..., np.ndarray], rows: np.ndarray | None, count: int
) -> RecordNumbers | None:
    ends = (chunk.start, chunk.start + len(chunk))
    first, last = ends if rows is None else np.searchsorted(rows, ends)
    if first == last:
        return None
    here = np.arange(len(chunk)) if rows is None else rows[first:last] - chunk.start
    numbers = ask(chunk, rows=here, asked=np.arange(first, last))
    return RecordNumbers(numbers, None, int(first), count)


@dataclass(frozen=True)
class Candidates:
    """The candidates of a guess, and all settings that the records share."""

    others: Alternatives
    levels: tuple[Any, ...]
    shares: np.ndarray  # of the levels in the table
    about: str
    precision: float
    covered: np.ndarray | None = None  # by each guess, of a number to within a tolerance
    together: Together | None = None  # the people whose records all have the same value, if any

    def baseline(self, believed: np.ndarray) -> np.ndarray:
        """Return the success rate of the best guess without the release, (m,)."""
        if self.covered is None:
            return np.asarray(believed.max(axis=1))
        return np.asarray((believed @ self.covered.T.astype(float)).max(axis=1))

    def answer(
        self,
        moves: Moves,
        believed: np.ndarray,
        doubt: np.ndarray,
        seed: int,
        integrals: int | None = None,
        beyond: float = -np.inf,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return both bounds on the best guess's success rate, and the integral's error, (m,) each.

        ``doubt`` is the total error of the prior probabilities. With more than three candidates,
        ``integrals`` limits the number of records whose integral is computed; the others have the
        upper bound that follows from the distances. Records are processed in descending order of
        the gain that these bounds allow, until no remaining record can exceed the largest gain
        computed so far. No integral is computed if the bounds show no gain above ``beyond``, a
        known gain.
        """
        baseline = self.baseline(believed)
        if integrals is not None and self.covered is None and believed.shape[1] > 3:
            most = guess_limit(moves.between(), believed)
            low, high, error = baseline - doubt, most + doubt, np.zeros(len(most))
            order, largest = np.argsort(baseline - high, kind="stable")[:integrals], beyond
            for place in order:
                if high[place] - baseline[place] <= largest:
                    break
                one = np.array([place])
                found = self.answer(moves.of(one), believed[one], doubt[one], seed)
                low[one], error[one] = found[0], found[2]
                high[one] = np.minimum(high[one], found[1])
                largest = max(largest, float(high[place] - baseline[place]))
            return np.maximum(low, 0.0), np.minimum(high, 1.0), error
        if self.covered is None and believed.shape[1] == 2:
            least, most = moves.apart()
            p, none = believed[:, 0], np.zeros(len(believed))
            low, high = guessing.accuracy(least, p), guessing.accuracy(most, p)
            return np.maximum(low - doubt, 0.0), np.minimum(high + doubt, 1.0), none
        success: Success | Within
        if self.covered is None:
            success = best_guess(moves.gram, believed, self.precision)
        else:
            rng = np.random.default_rng(seed)
            success = best_within(moves.gram, believed, self.covered, rng=rng)
        # The largest change in any success rate due to the uncertainty of the moves
        between = 2 * ndtr(moves.radius / 2) - 1
        off = success.error + np.sum(believed * between, axis=1)
        low = np.maximum(success.right - off, baseline) - doubt
        high = np.maximum(success.right + off, baseline) + doubt
        return np.maximum(low, 0.0), np.minimum(high, 1.0), success.error


def guess_among(
    leak: MeasuredTable,
    changes: Changes,
    candidates: Candidates,
    priors: Sequence[Prior],
    rows: np.ndarray | None,
    exact: bool | int,
    integrals: int | None = None,
    way: Way | None = None,
    scales: Sequence[float] = (1.0,),
    beyond: Sequence[float] = (-np.inf,),
) -> list[Guess]:
    """Return the success rate of the best guess among some candidates, under each prior.

    The guess is about each record, or about each person if the candidates are people's values.
    ``integrals`` is as in :meth:`Candidates.answer`, for the records of each chunk. With several
    ``scales``, there is a result for each prior and scale, in which the noise is divided by the
    scale, so distances are multiplied by it. ``beyond`` contains, for each scale, a gain that is
    already known; smaller gains need no integral.
    """
    way = way_of(leak, None) if way is None else way
    believed = [p if isinstance(p, str) else np.asarray(p, dtype=float) for p in priors]
    together = None if candidates.together is None else candidates.together.holding(rows)
    others = len(candidates.others) - 1  # each has one level already
    way.check_work(rows, together, others, exact)
    held = way.held
    if candidates.others.labels is None:
        held = less(held, [CLASS_WEIGHTS])  # the labels alone decide these
    ask = partial(
        _guess_each,
        changes=changes,
        candidates=candidates,
        priors=believed,
        exact=exact,
        integrals=integrals,
        scales=tuple(zip(scales, beyond, strict=True)),
    )
    numbers = _of_each(leak, ask, rows, together, "guesses")
    guesses = []
    for k, scale in enumerate([*scales] * len(priors)):
        mu = scale * numbers[:, 0] if candidates.covered is None else None
        low, high, baseline, error = numbers[:, 1 + 4 * k : 5 + 4 * k].T
        right = _upper_ends(
            *(leak, low, high, rows, together, "right", candidates.about),
            assumptions=way.assumptions(together, held),
            held=held,
            estimated=candidates.covered is not None or bool(error.max() > _EXACT),
        )
        guesses.append(Guess(right, low, baseline, candidates.levels, mu))
    return guesses


def _guess_each(
    chunk: Chunk,
    rows: np.ndarray,
    asked: np.ndarray,
    changes: Changes,
    candidates: Candidates,
    priors: Sequence[Any],
    exact: bool | int,
    integrals: int | None,
    scales: Sequence[tuple[float, float]],
) -> np.ndarray:
    """Return μ and the success rates of a guess for k pairs of prior and scale, (m, 1 + 4k).

    For each success rate there are four numbers: lower bound, upper bound, baseline and integration
    error.
    """
    here, others = changes(chunk), candidates.others
    pieces = list(row_slices(len(rows), len(others) ** 2, chunk=_PRODUCTS_HELD))
    refits = None if isinstance(exact, bool) else exact
    answers = []
    for piece in pieces:
        some, places = rows[piece], asked[piece]
        moves = _refined(here, some, others, exact, len(pieces))
        numbers = [np.zeros(len(some))]
        if candidates.covered is None:
            numbers = [moves.between().max(axis=(1, 2))]
        for prior in priors:
            own = not isinstance(prior, str) and prior.ndim == 2
            given = prior[places] if own else prior
            believed, doubt = belief_of(given, here, some, others, candidates.shares, refits)
            first, baseline = int(places[0]), candidates.baseline(believed)
            for scale, known in scales:
                low, high, error = candidates.answer(
                    moves.scaled(scale), believed, doubt, first, integrals, known
                )
                numbers += [low, high, baseline, error]
        answers.append(np.stack(numbers, axis=1))
    return np.concatenate(answers)


# Refits and priors --------------------------------------------------------------------------------


def _refined(
    changes: FiniteChanges,
    rows: np.ndarray,
    others: Alternatives | None,
    exact: bool | int,
    pieces: int = 1,
) -> Moves:
    """Return the moves; refit as many records as a piece of the records has a budget for.

    The most exposed and least certain records are refitted first.

    If the budget does not cover all records, results known to three digits are not refitted (to
    within 0.1 %, if no refits are asked for). If the budget exceeds a thousand times their number,
    even results known to six digits are refitted.
    """
    if np.isinf(changes.work) and exact:
        raise InputError(
            "Refits need all records in memory, but these are read in chunks; leave out exact=, or "
            "load all rows of the fit into memory first."
        )
    budget = float(exact)
    if isinstance(exact, bool):
        alternatives = 1 if others is None else len(others)
        budget = np.inf if exact else _FREE_WORK / (changes.work * alternatives)
    budget, moves = budget / pieces, changes.moves(rows, others)
    width = _widest(moves)
    open_ = np.flatnonzero(width > (1e-9 if budget > 1000 * len(width) else _EXACT))
    if len(open_) > budget:
        known = 1e-3 if exact else 2e-3
        count, open_ = int(budget), open_[width[open_] > known]
    if len(open_) > budget:
        expected = moves.expected().max(axis=1)
        exposed = open_[np.argsort(-expected[open_], kind="stable")]
        first = exposed[: (count + 1) // 2]
        rest = exposed[(count + 1) // 2 :]
        wide = rest[width[rest] > 0.05]  # the widest intervals first
        then = np.concatenate([wide, np.setdiff1d(rest, wide, assume_unique=True)])
        open_ = np.concatenate([first, then[: count - len(first)]])
    if len(open_):
        refitted = changes.moves_exactly(rows[open_], others)
        # Where hardly anything determines a refit, what was certified may be known better.
        closer = ~(_widest(refitted) > width[open_])
        moves.put(open_[closer], refitted.of(closer))
    return moves


def _widest(moves: Moves) -> np.ndarray:
    """Return the relative width of the interval of each record's longest move, (m,)."""
    least, most = (ends.max(axis=1) for ends in moves.distances())
    with np.errstate(invalid="ignore", divide="ignore"):
        width = np.where(most > 0, 1 - least / most, 0.0)
    return np.where(np.isinf(most) & np.isfinite(least), 1.0, np.nan_to_num(width))


def _by_given_refit(
    leak: MeasuredTable, sets: list[np.ndarray], refit: Callable[[np.ndarray], Any]
) -> Moves:
    """Return the moves that result from the caller's own procedure on the remaining records."""
    every = np.arange(len(leak.source))
    here = np.asarray(as_numpy(refit(every)), dtype=float).reshape(-1)
    size = leak.release.template.size
    if len(here) != size:
        raise InputError(
            f"refit returned {counted(len(here), 'number')}, but the release has {size}; return "
            "one for each released number."
        )
    moves = np.full((len(sets), size), np.inf)
    for k, rows in enumerate(progress(sets, "refits")):
        there = np.asarray(as_numpy(refit(np.setdiff1d(every, rows))), dtype=float).reshape(-1)
        if len(there) == size:  # a release of another length gives the record away
            moves[k] = there - here
    lost = ~np.isfinite(moves).all(axis=1)
    moves[lost] = 0.0
    squares = np.zeros(len(moves))
    for noise in leak.noise:
        information = noise.information(size)
        seen = moves @ information if information.ndim == 2 else moves * information
        squares += np.sum(seen * moves, axis=1)
    return Moves(np.where(lost, np.inf, squares)[:, None, None], np.zeros((len(moves), 1)))


@dataclass(frozen=True)
class Levels:
    """The distinct values of some columns (or of the labels), with their counts."""

    counts: dict[tuple[float, ...], int]
    classes: np.ndarray | None

    def __add__(self, other: Levels) -> Levels:
        counts = dict(self.counts)
        for level, count in other.counts.items():
            counts[level] = counts.get(level, 0) + count
        if len(counts) > _MOST_DISTINCT:
            raise InputError(
                f"There are more than {_MOST_DISTINCT:,} different values, too many to count in "
                "one pass; round them before the fit, or choose another column."
            )
        return Levels(counts, self.classes)

    def sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the values in ascending order, (K, c), and their counts."""
        levels = sorted(self.counts)
        return np.array(levels, dtype=float), np.array([self.counts[level] for level in levels])


def _counted(
    leak: MeasuredTable,
    changes: Changes,
    columns: tuple[int, ...] | None,
    what: str,
    classes: bool = False,
    grid: np.ndarray | None = None,
) -> tuple[Levels, Together | None]:
    """Return the values of the columns (or labels), and the people if each has a single value.

    A value counts once per person if no person has two different values, and otherwise once per
    record. With a ``grid``, each number counts as the nearest number of the grid.
    """
    ask = partial(_levels_of_chunk, changes=changes, columns=columns, classes=classes, grid=grid)
    if leak.person is not None:
        together = leak.person.together
        counted = [ask(chunk, sets=sets) for chunk, sets, _ in leak.source.holding(together.sets)]
        if None not in counted:
            return reduce(add, counted), together
    return leak.source.total(ask, what), None


def _levels_of_chunk(
    chunk: Chunk,
    changes: Changes,
    columns: tuple[int, ...] | None,
    classes: bool,
    grid: np.ndarray | None,
    sets: np.ndarray | None = None,
) -> Any:
    """Return the values of some columns of a chunk, or of its labels as the model uses them.

    With ``sets`` of records, each value counts once per set; the result is ``None`` if a set has
    several values. A ``grid`` is as in :func:`_counted`.
    """
    if columns is None:
        here = changes(chunk)
        numbers = here.target.reshape(len(chunk), -1)
        known = here.class_labels() if classes else None
    else:
        numbers, known = as_numpy(chunk.X)[:, list(columns)], None
    numbers = np.asarray(numbers, dtype=float)
    if sets is not None:
        firsts = np.array([rows[0] for rows in sets])
        members = np.concatenate(list(sets))
        own = np.repeat(firsts, [len(rows) for rows in sets])
        if not np.array_equal(numbers[members], numbers[own]):
            return None
        numbers = numbers[firsts]
    if grid is not None and len(grid) and numbers.shape[1] == 1:
        numbers = grid[np.searchsorted((grid[1:] + grid[:-1]) / 2, numbers)]
    values, counts = distinct_rows(numbers)
    return Levels(dict(zip(map(tuple, values.tolist()), counts.tolist(), strict=True)), known)


def distinct_rows(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows of a table in order, and how often each occurs.

    Rows are identified by their product with one random vector, which avoids sorting whole rows. If
    two different rows have the same product, the whole rows are sorted.
    """
    direction = np.random.default_rng(0).standard_normal(table.shape[1])
    known, inverse = looked_up(table @ direction + 0.0)  # + 0.0 turns −0.0 into 0.0
    first = np.empty(len(known), dtype=np.int64)
    first[inverse[::-1]] = np.arange(len(table))[::-1]
    if not np.array_equal(table[first][inverse], table):
        values, counts = np.unique(table, axis=0, return_counts=True)
        return values, counts
    values, which = np.unique(table[first], axis=0, return_inverse=True)
    return values, np.bincount(which.reshape(-1)[inverse], minlength=len(values))


def among_levels(
    leak: MeasuredTable, changes: Changes, column: Any, precision: float
) -> Candidates:
    """Return the candidates for a guess among a few levels."""
    if _is_label(leak, column):
        level_counts, together = _counted(leak, changes, None, "levels", classes=True)
        labels = np.asarray(level_counts.classes)
        codes = [tuple(code) for code in labels.reshape(len(labels), -1).tolist()]
        counts = np.array([level_counts.counts.get(code, 0) for code in codes])
        if counts.sum() != sum(level_counts.counts.values()):
            raise InputError(
                "Some labels are between classes, so there is no class to guess; pass class "
                "labels without fractions."
            )
        names = leak.source.classes.tolist()
        levels = tuple(names if len(names) == len(labels) else range(len(labels)))
        shares = counts / counts.sum()
        about = "a guess of the label"
        others = Alternatives(labels=labels)
        return Candidates(others, levels, shares, about, precision, together=together)
    unknowns, about = leak.attributes.unknowns(column, False)
    columns = unknowns.columns or ()
    level_counts, together = _counted(leak, changes, columns, "levels")
    values, counts = level_counts.sorted()
    if not 1 < len(values) <= 64:
        problem = "one value only" if len(values) == 1 else f"{len(values)} different values"
        raise InputError(
            f"Attribute inference needs 2 to 64 levels, but {about} has {problem}; choose another "
            "column or, for a number, use leak.within(column, tolerance)."
        )
    levels = tuple(v[0] if len(v) == 1 else tuple(v) for v in values.tolist())
    others, shares = Alternatives(columns, values), counts / counts.sum()
    about = f"a guess of {about}"
    return Candidates(others, levels, shares, about, precision, together=together)


def to_within(
    leak: MeasuredTable,
    changes: Changes,
    column: Any,
    tolerance: float,
    values: Any,
    prior: Prior,
) -> Candidates:
    """Return the candidates for a guess of a number to within a tolerance."""
    if not (np.ndim(tolerance) == 0 and np.isfinite(tolerance) and tolerance > 0):
        raise InputError("The tolerance must be a number above zero, in the unit of the column.")
    columns: tuple[int, ...] | None = None
    about = "the label"
    if not _is_label(leak, column):
        unknowns, about = leak.attributes.unknowns(column, False)
        columns = unknowns.columns or ()
        if len(columns) != 1:
            raise InputError(f"{about} has several columns; for a category, use leak.guess().")
    grid: np.ndarray | None = None
    if values is not None:
        try:
            grid = np.unique(np.asarray(values, dtype=float))
        except (TypeError, ValueError):
            grid = np.empty(0)
        if len(grid) != np.size(values) or not np.isfinite(grid).all():
            raise InputError(
                "values= must contain distinct finite numbers; remove duplicates, NaN and infinity."
            )
    level_counts, together = _counted(leak, changes, columns, "values", grid=grid)
    observed, counts = level_counts.sorted()
    if observed.shape[1] != 1:
        raise InputError("This label is a class; use leak.guess().")
    observed = observed[:, 0]
    if grid is None and isinstance(prior, str) and prior == "equal":
        grid = np.linspace(observed.min(), observed.max(), 65)
    elif grid is None and len(observed) > 129:
        grid = np.unique(np.quantile(np.repeat(observed, counts), np.linspace(0, 1, 129)))
    elif grid is None:
        grid = observed
    if len(grid) < 2:
        raise InputError(
            f"{about} has fewer than two values, so there is nothing to guess; choose "
            "another column."
        )
    nearest = np.abs(observed[:, None] - grid[None, :]).argmin(axis=1)
    shares = np.bincount(nearest, weights=counts, minlength=len(grid)) / counts.sum()
    others = Alternatives(labels=grid) if columns is None else Alternatives(columns, grid[:, None])
    about = f"a guess of {about} to within {tolerance:g}"
    covered = windows(grid, float(tolerance))
    return Candidates(others, tuple(grid.tolist()), shares, about, 0.0, covered, together)


def _is_label(leak: MeasuredTable, column: Any) -> bool:
    if column is None:
        return True
    known = {*leak.source.names, *leak.attributes.declared}
    return (
        isinstance(column, str) and column not in known and column in ("label", leak.source.target)
    )


def belief_of(
    prior: Prior,
    changes: FiniteChanges,
    rows: np.ndarray,
    others: Alternatives,
    shares: np.ndarray,
    refits: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return each record's prior probabilities, (m, K), and their total error, (m,)."""
    shape = (len(rows), len(others))
    sure = np.zeros(len(rows))
    if not isinstance(prior, str):
        return checked_prior(np.asarray(prior, dtype=float), shape), sure
    if prior == "equal":
        return np.full(shape, 1 / shape[1]), sure
    if prior == "frequencies":
        return np.asarray(np.broadcast_to(shares, shape)), sure
    if prior != "model":
        raise InputError(
            f"There is no prior {prior!r}; choose 'equal', 'frequencies' or 'model', or give "
            "probabilities."
        )
    scores, off = changes.log_likelihoods(rows, others, refits)
    if others.values is not None:  # by Bayes' rule, from the frequencies of the levels
        with np.errstate(divide="ignore"):
            scores = scores + np.log(shares)
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    believed = odds / odds.sum(axis=1, keepdims=True)
    # Odds have an error factor of exp(±2 off), and probabilities no more.
    return np.asarray(believed), np.asarray(np.minimum(np.expm1(np.minimum(2 * off, 1.0)), 1.0))

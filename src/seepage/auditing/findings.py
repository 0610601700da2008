"""Findings of an audit, as typed numbers for gates, reports and figures.

The module ``verdict`` of :mod:`seepage.auditing.report` selects sentences, and the templates fill
in the numbers. Only ``steps`` and ``notices`` contain text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from seepage.bounds.guarantees import Guarantees
from seepage.core.result import SAME
from seepage.support.files import write_each
from seepage.support.room import computed, room_for, sorted_numbers
from seepage.tables.result_table import PlottedNumbers, Reportable, ResultNumbers
from seepage.tables.source import build_frame

if TYPE_CHECKING:
    import pyarrow as pa

    from seepage.support.files import Writer

SCHEMA = "seepage-audit/4"
NUMBERS = ("eta", "eta_features", "eta_label", "exact_error")
MU = "mu"  # one more number of every record, once it is known how well its membership is recognised
ONE_ROW, ONE_PERSON = "row", "person"  # what a statement is about: the unit
# What is done to a record
LEFT_OUT, RELABELLED, OTHER_LEVEL = "left out", "with another label", "with another category"
OVER_ALL = "all releases in the ledger"  # where a risk was measured, if not in one release
WIDEST = 60  # features up to which the leakage of reweighting as a whole is quick to compute
# The rates at which true positives of telling a value are stated: the first also counts in badges
# and gates
FALSE_POSITIVES = (0.01, 0.001)
NOT_MEASURED = "not measured"
FEW = 10  # records in a cell, or degrees of freedom: below it, ACRO's default holds outputs back
WRITTEN = 1 << 17  # records written to a file at a time
SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)  # of the records, at which quantiles are reported


@dataclass(frozen=True)
class AttributeFinding:
    """The leakage about one attribute, a column of the caller's table."""

    name: str  # the column's name in the table
    kind: str  # ``numeric``, ``boolean`` or ``categorical``
    eta: float  # FIL of the attribute over all records together
    # The least standard error of any unbiased attack on this attribute of a single record, in the
    # column's own units (for a category: on its one-hot code, where 1 is a whole level)
    smallest_error: float
    easiest_row: int  # the record for which it is smallest
    median_error: float  # the median of that error over the records
    spread: float  # the standard deviation of the column, in its own units
    sensitive: bool = False  # whether the caller declared it sensitive
    # What the release adds to the best guess of a category, as a probability; ``None`` for numbers
    gain: float | None = None
    # The largest true positive rate, at 1 % and at 0.1 % false positives, of telling one of its
    # levels from another; ``None`` for numbers
    tpr: float | None = None
    tpr_strict: float | None = None
    # What the errors are about: a person's one value, the same in all of their rows, or one row's
    unit: str = ONE_ROW


@dataclass(frozen=True)
class GroupFinding:
    """The leakage of the records, or people, that share one value of a grouping column."""

    label: str
    count: int
    mean_eta: float
    worst_eta: float
    eta_together: float


@dataclass(frozen=True)
class GroupingFinding:
    """The leakage of the groups of one column.

    ``ratio`` is the largest mean leakage of a group divided by the smallest.
    """

    column: str
    groups: tuple[GroupFinding, ...]
    ratio: float
    most_protected: str
    least_protected: str

    def ranked(self, most: int | None = None) -> list[GroupFinding]:
        """Return the groups, most exposed first; with ``most``, half that many from each end."""
        every = sorted(self.groups, key=lambda group: -group.mean_eta)
        if most is None or len(every) <= most:
            return every
        return every[: most // 2] + every[-(most // 2) :]


@dataclass(frozen=True)
class UsefulnessFinding:
    """The advantage of a noisy model over a constant prediction, with a 95 % interval.

    ``advantage`` is the held-out error of the constant prediction minus that of the model. With
    several ``splits``, the interval allows for records shared between splits (Nadeau and Bengio
    2003). With a single split, it is the interval of the mean difference over held-out records.
    """

    advantage: float
    low: float
    high: float
    splits: int

    @property
    def compared(self) -> str:
        """A comparison with a constant prediction: ``better``, ``not told apart`` or ``worse``."""
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "not told apart"


@dataclass(frozen=True)
class TradeoffCurve:
    """The privacy–utility curve: test error and leakage at each noise scale."""

    # One entry per noise scale; ``error`` is the mean over several draws of the noise
    sigma: np.ndarray
    error: np.ndarray
    median_eta: np.ndarray
    worst_eta: np.ndarray
    # What the error is, in words (``"error rate"``, ``"root mean squared error"``)
    error_name: str
    # The error without noise, and that of predicting the mean or the most frequent class
    noiseless_error: float
    trivial_error: float
    # The penalty of the model it was drawn with, another than the audited one's where that is not
    # determined on a part of the records; and whether this model was fitted without those tried
    l2: float | None = None
    held_out: bool = True
    # How each noisy model compares with a constant prediction, one for each scale; nothing where
    # that is not known
    usefulness: tuple[UsefulnessFinding, ...] = ()

    def usefulness_at(self, sigma: float) -> UsefulnessFinding | None:
        """Return how the model with this noise compares with a constant prediction, if known.

        Between two noise scales of the curve, the larger scale is used; outside the curve, the
        comparison is unknown.
        """
        place = int(np.searchsorted(self.sigma, sigma * (1 - SAME)))
        known = self.usefulness and self.sigma[0] * (1 - SAME) <= sigma and place < len(self.sigma)
        return self.usefulness[place] if known else None


@dataclass(frozen=True)
class NoiseVote:
    """A σ chosen by a private vote of blocks of records, with the settings of the vote."""

    sigma: float
    blocks: int
    epsilon: float
    probability: float  # that a draw is enough
    # The largest probability, over everybody, that σ shows whether they are in the table: that it
    # is not enough with them, or without
    delta: float = 0.0


@dataclass(frozen=True)
class NoiseChoice:
    """Describes how σ was chosen."""

    # ``given`` to an audit, calibrated to a ``target`` or, without one, to η = 1 (``default``);
    # for a release ``declared`` beforehand, drawn by a ``vote``, or the ``least`` that is enough
    how: str
    # For a release, the least σ of its grid with which no record leaks more than it may, whether
    # earlier releases count in that, and the vote
    least: float | None = None
    with_earlier: bool = False
    vote: NoiseVote | None = None


#: What a record changes if nothing could be released without it, or with other values of it.
RELEASED_OR_NOT = "whether anything can be released"


@dataclass(frozen=True)
class Disclosure:
    """A change to one record that alters a published figure; only the data owner may see it."""

    row: int  # the record in the table
    change: str  # what was done to it, in words
    figures: tuple[str, ...]  # the names of the figures that would change


@dataclass(frozen=True)
class DisclosureCheck:
    """The published figures that would change if a single record were removed or replaced."""

    checked: int  # how many of the most exposed records were left out and replaced
    found: tuple[Disclosure, ...] = ()
    everything: bool = False  # whether all figures of a release were looked at, or σ alone
    unit: str = ONE_ROW  # whether single rows were changed, or all rows of a person

    def rows(self, figure: str | None = None) -> tuple[int, ...]:
        """Return, without duplicates, the records whose change alters any (or the given) figure."""
        told = (d.row for d in self.found if figure is None or figure in d.figures)
        return tuple(dict.fromkeys(told))


@dataclass(frozen=True)
class LedgerFinding:
    """Privacy losses recorded in the ledger for the records of this release."""

    releases: int  # how many there were
    known: int  # records that were in one of them
    spent: float  # the largest η of a record over the earlier releases together
    eta: float  # the same with this release
    doubts: tuple[str, ...] = ()  # what the owner must know about how records were recognised
    unit: str = ONE_ROW  # whether the numbers are about rows or people
    # Over all of them with this release: how often membership inference succeeds at most, and of
    # whom; the largest sums of ε and δ; and the level of the central interval that a 95 % credible
    # one keeps for whoever has δ = 0, ``None`` where nothing is promised about that
    membership: float = 0.5
    row: int = 0
    certain: int = 0  # of how many nothing hides the membership, or nobody knows what does
    epsilon: float = 0.0
    delta: float = 0.0
    interval: float | None = None
    enough: float | None = None  # the σ with which that membership is within its limit, if any is
    # What all of them add to a guess of a class or category at most, of which column, and how often
    # a value is recognised at 1 % false positives; ``None`` where there is nothing to guess
    gain: float | None = None
    guessed: str = ""
    tpr: float | None = None


class RemedyKind(StrEnum):
    """Kinds of remedies; the values are those of ``--remedies``."""

    NOISE = "noise"
    PENALTY = "penalty"
    COMBINATION = "combination"  # another penalty, with the noise that it then takes
    WEIGHTS = "weights"
    SHAPE = "shape"
    REFITS = "refits"  # any that takes another fit, where none could be tried


REMEDY_NAMES = {
    RemedyKind.NOISE: "more noise",
    RemedyKind.PENALTY: "more regularisation",
    RemedyKind.COMBINATION: "regularisation and noise",
    RemedyKind.WEIGHTS: "reweighting",
    RemedyKind.SHAPE: "shaped noise",
    RemedyKind.REFITS: "refitting",
}


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """Stores a remedy for the most exposed record, with its settings, protection and cost.

    Quantities that were not measured are ``None``.
    """

    kind: RemedyKind
    # What it takes: the noise (of shaped noise, times the unit of its shape), the penalty, the
    # rounds of reweighting, and the public records that the shape comes from
    sigma: float | None = None
    l2: float | None = None
    rounds: int | None = None
    public: int | None = None
    # The protection it reaches: the leakage of the most exposed record, how often membership
    # inference then succeeds, what a guess of a class or category then gains, and how often one is
    # then recognised at 1 % false positives, as far as these were measured: upper limits, all
    eta: float | None = None
    membership: float | None = None
    gain: float | None = None
    tpr: float | None = None
    # Whether they are within what was asked, all of them that were measured for the release itself
    reaches_target: bool = False
    # What it costs: the error on held-out records, that of a constant prediction, and how the two
    # compare
    error: float | None = None
    constant: float | None = None
    usefulness: UsefulnessFinding | None = None
    # Why it does not help or was not tried: ``no penalty`` is enough, there is ``no gain`` over
    # more noise, it would be ``slow``, the table is too ``large``, what it leaks is ``unknown``, it
    # is about single ``rows`` and not about people, or the fit ``failed``, with the ``problem`` in
    # words
    reason: str | None = None
    problem: str | None = None

    @property
    def name(self) -> str:
        """The name in the report, such as ``more noise`` or ``more regularisation``."""
        return REMEDY_NAMES[self.kind]

    @property
    def compared(self) -> str:
        """The comparison of the remedy's error with a constant prediction's, if known."""
        return NOT_MEASURED if self.usefulness is None else self.usefulness.compared

    @property
    def no_better(self) -> bool:
        """Whether the remedy's model was tested and is no better than a constant prediction."""
        return self.usefulness is not None and self.usefulness.compared != "better"

    @property
    def rank(self) -> tuple[bool, bool, bool, float]:
        """The remedy's sort key: remedies that reach the target come first, ordered by error.

        Remedies that miss the target or were not measured follow, then remedies not tried or
        without effect. Remedies whose model is no better than a constant prediction come last.
        """
        unknown = self.error is None or self.reason is not None
        return self.no_better, unknown, not self.reaches_target, self.error or 0.0


@dataclass(frozen=True)
class GuessFinding:
    """The success rate of guessing a category or class, for the record with the largest gain.

    The attacker knows the rest of the record and all other records.
    """

    name: str  # the column
    # The prior: the ``frequencies`` in the table, or what the ``model`` fitted
    # without the record predicts
    prior: str
    # The probabilities with and without the release, and the record
    right: float
    baseline: float
    row: int
    # Over the records examined
    median_right: float
    median_baseline: float
    # How many these are: all, unless refits of all would take too long
    looked_at: int
    levels: int = 2  # how many answers there are to choose from
    # The largest true positive rates, at 1 % and at 0.1 % false positives, of telling one level
    # from another with the release, whatever the prior; how often that is right at even odds; the
    # distance μ between the two releases, from which all follow; and the record
    tpr: float | None = None
    tpr_strict: float | None = None
    even: float | None = None
    mu: float | None = None
    tpr_row: int | None = None
    held: tuple[str, ...] = ()  # what it holds fixed: see core.result
    # Whether it is guessed for one row, or for a person, who has the same in all rows
    unit: str = ONE_ROW

    @property
    def gain(self) -> float:
        """The gain in success rate from the release."""
        return self.right - self.baseline


@dataclass(frozen=True, eq=False)
class RiskCurve:
    """The risks at other noise scales, with one entry per scale of the privacy–utility curve."""

    sigma: np.ndarray
    # How often membership is recognised, for the most exposed record and for the median one
    membership: np.ndarray
    median: np.ndarray
    # How often the guess is right to which the release adds most at that noise, how often without
    # the release, and of which column; nothing where nothing is guessed, or for too many records
    right: np.ndarray | None = None
    baseline: np.ndarray | None = None
    names: tuple[str, ...] = ()
    priors: tuple[str, ...] = ()  # as in GuessFinding
    levels: tuple[int, ...] = ()  # how many answers there are to choose from


@dataclass(frozen=True)
class RiskFinding:
    """Upper limits on the success rates of membership and attribute inference."""

    membership: float  # the largest probability over the records; a coin has 0.5
    row: int  # the record for which it is largest
    median: float  # the median of it
    mu: float  # the distance it follows from
    looked_at: int  # how many records
    exact: bool  # or the upper ends of intervals
    guesses: tuple[GuessFinding, ...] = ()
    # Who the attacker is, and what is held fixed or redone when a record changes
    assumptions: tuple[str, ...] = ()
    # The ε and δ of the figures that leave beside the noisy numbers, which membership counts; and
    # those for two values of a class or category, which guesses count
    epsilon: float = 0.0
    delta: float = 0.0
    guess_epsilon: float = 0.0
    guess_delta: float = 0.0
    # The rows without which a published figure would be another, and the names of such figures:
    # the membership of these rows is certain
    disclosed: tuple[int, ...] = ()
    disclosing: tuple[str, ...] = ()
    # The rows with which a published figure would be another if they had another class or category
    # or other numbers, and the names of such figures: those values are ruled out for certain
    replaced: tuple[int, ...] = ()
    replacing: tuple[str, ...] = ()
    # What membership holds fixed of that which was learnt from the data: see core.result
    held: tuple[str, ...] = ()
    curve: RiskCurve | None = None  # the same with other noise, where that was computed

    @property
    def recognised(self) -> float:
        """The largest success rate of membership inference against the whole release."""
        return 1.0 if self.disclosed else self.membership

    @property
    def worst_guess(self) -> GuessFinding | None:
        """The guess whose success rate the release increases most, if there is one."""
        return max(self.guesses, key=lambda guess: guess.gain, default=None)

    @property
    def told_best(self) -> GuessFinding | None:
        """The guess with the largest true positive rate, if there is one."""
        known = (guess for guess in self.guesses if guess.tpr is not None)
        return max(known, key=lambda guess: guess.tpr or 0.0, default=None)

    @property
    def recognised_row(self) -> int:
        """The record for which membership inference has the largest success rate."""
        return self.disclosed[0] if self.disclosed else self.row


@dataclass(frozen=True)
class OutsiderFinding:
    """Estimated success of membership inference if the attacker does not know all other records."""

    attacker: str  # who she is, in words
    sigma: float | None  # the noise on the release; ``None`` for a model that is published as it is
    # What she sees: the ``parameters``, or where people are too few for these, ``predictions``:
    # the model's answer for the record itself alone
    seen: str
    # How often she is right about the most exposed record, which that is, and the median; a coin
    # has 0.5
    membership: float
    row: int
    median: float
    # The same of an attacker who knows all others
    informed: float
    informed_median: float
    others: int  # how many others there are
    # How many of them she must know to be right about the median record 90 times in 100; ``None``
    # with noise
    must_know: int | None
    # How many of the most exposed were checked by refits on other people, and how often these were
    # right beyond the approximation where the two differ most
    checked: int
    apart: float | None
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gate:
    """One limit set by the caller: its value, the measured number, and the records above it."""

    name: str  # "--max-eta", "--max-membership", "--max-group-ratio" and the like
    limit: float
    measured: float | None  # ``None`` if it was not measured
    passed: bool
    enough: float | None = None  # the σ that would meet it, if it is not met and some σ is known to
    # How many records are over it, where all were looked at; the most exposed of these, or the one
    # that was measured: by row, never by value
    over: int | None = None
    rows: tuple[int, ...] = ()
    # The column, or the layer of a network, that was measured; or :data:`OVER_ALL`
    where: str | None = None
    # The 95 % interval of what was measured, of an attack
    low: float | None = None
    high: float | None = None
    attacker: str | None = None  # which of several attackers gave the number
    # The part of a probability of membership that figures drawn beside the noisy numbers allow by
    # themselves, where that alone is over the limit
    beside: float | None = None

    @property
    def of_attack(self) -> bool:
        """Whether the number comes from an attack.

        An attack can show that a limit is exceeded, but not that it is met.
        """
        return self.low is not None


@dataclass(frozen=True)
class StructuralRisk:
    """One structural risk of a model.

    Parameters
    ----------
    name
        The name of the risk.
    found
        Whether the risk was found; ``None`` if it does not apply to this model.
    records, among
        The number of affected records, and the number of all records.
    value
        The number compared with ``limit``. A risk concerning cells, leaves or degrees of freedom is
        found if this number is below the limit. The generalisation gap counts as a risk if it is
        significant. Any other risk is found if this number is above the limit. ``None`` if there is
        no such number.
    limit, whose
        A rule of thumb, and its source if it is external.
    reason
        The reason why the risk does not apply.
    """

    name: str
    found: bool | None
    records: int
    among: int
    value: float | None = None
    limit: float | None = None
    whose: str = ""
    reason: str = ""
    # Of leaves: how many trees there are, and records in a small leaf of every one of them
    trees: int | None = None
    in_every_tree: int | None = None
    parameters: int | None = None  # how many numbers the model has learnt
    keeper: str | None = None  # the class that keeps records as they are

    @classmethod
    def of_freedom(cls, learnt: int, records: int) -> StructuralRisk:
        """Return the check of the degrees of freedom: records minus learnt parameters."""
        left, name = records - learnt, "degrees of freedom"
        few, affected = left < FEW, records if left < FEW else 0
        whose = "ACRO's default"
        return cls(name, few, affected, records, float(left), FEW, whose, parameters=learnt)


@dataclass(frozen=True, eq=False)
class SomeRecords:
    """Stores the results for a few records."""

    # Their positions among the audited records, and their numbers in the table; of a person, the
    # first row, and how many there are
    place: np.ndarray
    row: np.ndarray
    held: np.ndarray
    # Under each name of :data:`NUMBERS`, and :data:`MU` where it is known, one number for each
    numbers: Mapping[str, np.ndarray]
    # For every sensitive attribute, the least error of an attack on it for each
    errors: Mapping[str, np.ndarray]


class RecordLeakage:
    """The leakage of all records, or people, at noise σ, scaled from its values at σ = 1.

    ``row`` contains the row number of every record in the table, or of the person's first record.
    ``held`` is the number of rows of each person, or one if the unit is the record. The numbers are
    those of :class:`SomeRecords`, for all records. The numbers may be stored in a memory-mapped
    file, and are scaled to the noise σ on access.
    """

    def __init__(
        self,
        row: np.ndarray,
        numbers: Mapping[str, np.ndarray],
        errors: Mapping[str, np.ndarray],
        sigma: float = 1.0,
        held: np.ndarray | None = None,
    ) -> None:
        self.row, self._numbers, self._errors, self._sigma = row, numbers, errors, sigma
        self._held = held
        self._ordered: dict[str, np.ndarray] = {}
        self.count = len(row)  # of the records or people
        self.rows = self.count if held is None else int(held.sum())
        # What each number is about: a ``row``, or all rows of a ``person``
        self.unit = ONE_ROW if held is None else ONE_PERSON
        self.sensitive = tuple(errors)  # attributes for which every record's error is known

    def held_by(self, row: int) -> int:
        """Return the number of rows of the person with this first row."""
        return 1 if self._held is None else int(self._held[self.place_of(row)].sum())

    def with_noise(self, sigma: float) -> RecordLeakage:
        """Return the leakages with the noise multiplied by ``sigma``."""
        noise = self._sigma * sigma
        other = RecordLeakage(self.row, self._numbers, self._errors, noise, self._held)
        other._ordered = self._ordered
        return other

    def with_membership(self, mu: np.ndarray, places: np.ndarray | None) -> RecordLeakage:
        """Return the leakages together with the distances μ of membership inference.

        ``mu`` contains distances at the current noise, for all records or for those at some
        positions; the distances of all other records are NaN.
        """
        distances = computed(lambda some: some * self._sigma, mu)
        if places is not None:
            every = room_for(self.count)
            every[:] = np.nan
            every[places] = distances
            distances = every
        numbers = {**self._numbers, MU: distances}
        other = RecordLeakage(self.row, numbers, self._errors, self._sigma, self._held)
        other._ordered = {k: v for k, v in self._ordered.items() if k != MU}
        return other

    @property
    def examined(self) -> int:
        """The number of records with known membership risk."""
        known = self._in_order(MU) if MU in self._numbers else np.zeros(0)
        return int(np.searchsorted(known, np.nan))

    def recognised(self, count: int) -> list[int]:
        """Return the row numbers with the largest membership risk, the worst first."""
        mu = self._numbers[MU]
        among = np.flatnonzero(mu >= self._in_order(MU)[max(self.examined - count, 0)])
        order = among[np.argsort(-mu[among], kind="stable")][:count]
        return [int(row) for row in self.row[order]]

    def reaching(self, distances: np.ndarray, places: np.ndarray | None = None) -> np.ndarray:
        """Return, for each value, how many records have a distance μ of at least that value.

        With ``places``, only the records at these positions count.
        """
        if places is None:
            known = self._in_order(MU)[: self.examined]
        else:
            known = np.sort(self._numbers[MU][places])
            known = known[: np.searchsorted(known, np.nan)]
        return np.asarray(len(known) - np.searchsorted(known, distances * self._sigma))

    @property
    def every(self) -> SomeRecords:
        """All records."""
        return self.at(slice(None))

    def at(self, which: np.ndarray | slice) -> SomeRecords:
        """Return some of the records, in the given order."""
        return SomeRecords(
            np.arange(self.count)[which] if isinstance(which, slice) else np.asarray(which),
            np.asarray(self.row[which], dtype=np.int64),
            np.ones(len(self.row[which]), np.int64) if self._held is None else self._held[which],
            {
                name: values[which] * (self._sigma if name == "exact_error" else 1 / self._sigma)
                for name, values in self._numbers.items()
            },
            {name: values[which] * self._sigma for name, values in self._errors.items()},
        )

    def place_of(self, row: int) -> np.ndarray:
        """Return the (first) position of the record with this table row, if there is one."""
        return np.flatnonzero(self.row == row)[:1]

    def _in_order(self, name: str) -> np.ndarray:
        """Return one of the :data:`NUMBERS` at σ = 1, in ascending order."""
        if name not in self._ordered:
            self._ordered[name] = sorted_numbers(self._numbers[name])
        return self._ordered[name]

    def quantile(self, name: str, share: float) -> float:
        """Return a quantile of one of the :data:`NUMBERS`: 1 stands for the largest.

        If a quantile falls between two observations, the lower one is returned. Only the median is
        their mean, unless the upper one is infinite.
        """
        ordered = self._in_order(name)
        lower = ordered[math.floor((len(ordered) - 1) * share)]
        value = median_of(ordered) if share == 0.5 else lower
        return float(value * (self._sigma if name == "exact_error" else 1 / self._sigma))

    def over(self, limit: float) -> int:
        """Return how many records leak more than this limit."""
        reached = np.searchsorted(self._in_order("eta"), limit * self._sigma, side="right")
        return self.count - int(reached)

    def most(self, count: int, least: bool = False) -> SomeRecords:
        """Return the most exposed records, the worst first; with ``least``, the least exposed."""
        eta, ordered, count = self._numbers["eta"], self._in_order("eta"), min(count, self.count)
        last = ordered[count - 1 if least else self.count - count]
        among = np.flatnonzero(eta <= last if least else eta >= last)
        order = np.argsort(eta[among] if least else -eta[among], kind="stable")
        return self.at(among[order][:count])

    def span(self) -> tuple[float, float] | None:
        """Return the range of the finite, positive leakages, if there are any."""
        ordered = self._in_order("eta")
        first, last = np.searchsorted(ordered, [np.nextafter(0.0, 1.0), np.inf])
        if first == last:
            return None
        return ordered[first] / self._sigma, ordered[last - 1] / self._sigma

    def histogram(self, edges: np.ndarray) -> np.ndarray:
        """Count the finite leakages in each bin; values outside the bins count in the end bins."""
        inner = [*(edges[1:-1] * self._sigma), np.inf]
        return np.diff(np.searchsorted(self._in_order("eta"), inner), prepend=0)

    def writer(self, make: Callable[[SomeRecords], pa.Table]) -> Writer:
        """Return a function that writes a table of all records to a file, in batches."""
        starts = range(0, self.count, WRITTEN)
        tables = (make(self.at(slice(start, start + WRITTEN))) for start in starts)
        return partial(write_each, tables)

    def worst(self) -> tuple[int, float]:
        """Return the row number of the most exposed record in the table, and its leakage."""
        first = self.most(1)
        return int(first.row[0]), float(first.numbers["eta"][0])


def median_of(ordered: np.ndarray) -> float:
    """Return the median of numbers in ascending order.

    For an even count, the median is the mean of the two middle numbers, or the lower of them if the
    upper one is infinite.
    """
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return float((low + high) / 2 if np.isfinite(high) else low)


class Rendering(Protocol):
    """The interface for displaying an audit, which the report implements."""

    def text(self, audit: Audit) -> str:
        """Return the text that an interpreter prints."""

    def html(self, audit: Audit) -> str:
        """Return the HTML that a notebook shows."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Audit(Reportable, ResultNumbers):
    """The findings of one audit.

    Parameters
    ----------
    source
        The audited data, in words (a file's name without its folder).
    target, model, l2, intercept, classes
        The fit: the target column, ``linear``, ``logistic``, ``poisson`` or ``softmax``, the
        penalty λ, whether there is an intercept, and the class names, if any.
    sigma, noise
        The standard deviation of the noise on every released number, and how it was chosen.
    released
        The number of released numbers.
    steps, notices
        The processing of the data, and notices to read before the numbers, one sentence each.
    attributes, groupings, curve, remedies, gates, disclosures, ledger
        Findings that their own classes describe. ``disclosures`` and ``ledger`` are ``None``
        without a disclosure check or a ledger.
    dataset_eta
        The FIL of the whole table.
    records
        The leakage of the single records, or of people, each with all of their records.
    target_eta
        The requested leakage, if any; ``calibrated_sigma`` is the noise that meets it.
    values
        The caller's own values of the audited rows, stored only on request.
    guarantees
        All bounds on attacks against the most exposed record, if known.
    held
        Quantities learnt from the data that η treats as fixed: see ``Result.held``.
    risks
        Success rates of membership and attribute inference; ``None`` if unknown (``risks_reason``
        gives the reason).
    outsider
        The estimate for an attacker who does not know all other records, if one was named; ``None``
        if unknown (``outsider_reason`` gives the reason).
    preset
        The preset of the limits, if one was named: see ``auditing.decision.presets``.
    codes
        The number of distinct whole numbers in a target that was read as a number or count but may
        contain class codes. The number is 0 for other targets, and if the model kind was given.
    labels
        The index labels of a pandas table, if they differ from row numbers.
    people
        The identity of the person in every row, for tables in Python; not shown in the report.
    members
        The positions of the records, or people, of each group (column and label), if they are in
        memory.
    versions
        Names and versions of the software that computed the audit.
    rendering
        Displays the audit in an interpreter and in a notebook.
    """

    source: str
    target: str
    model: str
    l2: float
    intercept: bool
    sigma: float
    noise: NoiseChoice
    released: int
    steps: tuple[str, ...]
    attributes: tuple[AttributeFinding, ...]
    dataset_eta: float
    curve: TradeoffCurve
    records: RecordLeakage
    rendering: Rendering = field(compare=False)
    groupings: tuple[GroupingFinding, ...] = ()
    classes: tuple[str, ...] = ()
    target_eta: float | None = None
    calibrated_sigma: float | None = None
    remedies: tuple[Remedy, ...] = ()
    gates: tuple[Gate, ...] = ()
    values: dict[str, list[str]] | None = None
    guarantees: Guarantees | None = None
    held: tuple[str, ...] = ()
    risks: RiskFinding | None = None
    risks_reason: str = ""
    outsider: OutsiderFinding | None = None
    outsider_reason: str = ""
    disclosures: DisclosureCheck | None = None
    ledger: LedgerFinding | None = None
    preset: str | None = None
    codes: int = 0
    labels: np.ndarray | None = None
    people: np.ndarray | None = None
    members: Mapping[tuple[str, str], np.ndarray] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)

    value_column = "eta"

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with one row per record, or person: its η and its error bound."""
        columns = {self.unit: self._named(), **self.records.every.numbers}
        return build_frame(columns, library or "pyarrow")

    def _named(self) -> np.ndarray:
        """Return the label of every record, or the identity of every person if known."""
        return self.index if self.people is None else self.people[self.row_index]

    def to_numpy(self) -> np.ndarray:
        """Return the η of every record, or person."""
        return self.eta

    def drawing(self) -> PlottedNumbers:
        """Return the data of :meth:`plot`: η of every record, or person, in descending order."""
        order = np.argsort(-self.eta, kind="stable")
        unit = "people" if self.unit == ONE_PERSON else "records"
        target = 1.0 if self.target_eta is None else self.target_eta
        labels, mark = self._named()[order], (target, f"target η = {target:g}")
        return PlottedNumbers(self.eta[order], labels, "FIL η", unit, mark=mark)

    def __repr__(self) -> str:
        return self.rendering.text(self)

    def _repr_html_(self) -> str:
        """Return the report as an HTML frame for display in a notebook."""
        return self.rendering.html(self)

    @property
    def structure(self) -> tuple[StructuralRisk, ...]:
        """The structural check: how many numbers are released for how many records or people."""
        return (StructuralRisk.of_freedom(self.released, self.records.count),)

    @property
    def unit(self) -> str:
        """The unit of all statements: a ``row``, or a ``person`` with all of their rows."""
        return self.records.unit

    @property
    def usefulness(self) -> UsefulnessFinding | None:
        """The comparison of the noisy model with a constant prediction, if known."""
        return self.curve.usefulness_at(self.sigma)

    @property
    def published_as_it_is(self) -> bool:
        """Whether the audited model has no noise: an attacker was named, but no noise was given."""
        asked = self.outsider is not None or bool(self.outsider_reason)
        return asked and self.noise.how == "default"

    @property
    def meets_target(self) -> bool:
        """Whether no record leaks more than the target, or more than η = 1 without a target."""
        target = 1.0 if self.target_eta is None else self.target_eta
        return self.records.quantile("eta", 1) <= target * (1 + SAME)

    @property
    def row_index(self) -> np.ndarray:
        """The table row of every audited record (0 for the first data row).

        If the unit is the person, these are the people's first rows.
        """
        return self.records.every.row

    @property
    def index(self) -> np.ndarray:
        """The caller's label of every audited record; the row number if there are no labels."""
        return self.row_index if self.labels is None else self.labels[self.row_index]

    def called(self, row: int) -> str:
        """Return the caller's label of a row, or its number."""
        return str(row if self.labels is None else self.labels[row])

    @property
    def eta(self) -> np.ndarray:
        """The FIL of every record with its label, or of all records of each person."""
        return self.records.every.numbers["eta"]

    @property
    def eta_features(self) -> np.ndarray:
        """The FIL of every record about its columns alone."""
        return self.records.every.numbers["eta_features"]

    @property
    def eta_label(self) -> np.ndarray:
        """The FIL of every record about its label alone."""
        return self.records.every.numbers["eta_label"]

    @property
    def exact_error(self) -> np.ndarray:
        """The square root of every record's exact Cramér–Rao bound, averaged over its columns.

        The unit is the columns' standard deviations; the value is infinite where no unbiased attack
        exists.
        """
        return self.records.every.numbers["exact_error"]

    @property
    def cell_errors(self) -> Mapping[str, np.ndarray]:
        """The minimum standard error of an unbiased attack on every record's sensitive attributes.

        The error is given in each column's own units.
        """
        return self.records.every.errors

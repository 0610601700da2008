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
    easiest_row: int  # the record for which this error is smallest
    median_error: float  # the median of the least error over the records
    spread: float  # the standard deviation of the column, in its own units
    sensitive: bool = False  # whether the caller declared it sensitive
    # How much the release raises the success rate of the best guess; ``None`` for numbers
    gain: float | None = None
    # The largest true positive rate of distinguishing two of its levels, at false positive rates of
    # 1 % and 0.1 %; ``None`` for numbers
    tpr: float | None = None
    tpr_strict: float | None = None
    # Whether the errors are about a value that is the same in all rows of a person, or about a row
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
    """The privacy–utility curve: held-out error and leakage at each noise scale."""

    # One entry per noise scale; ``error`` is the mean over several draws of the noise
    sigma: np.ndarray
    error: np.ndarray
    median_eta: np.ndarray
    worst_eta: np.ndarray
    # The name of the error (``"error rate"``, ``"root mean squared error"``)
    error_name: str
    # The error without noise, and that of predicting the mean or the most frequent class
    noiseless_error: float
    trivial_error: float
    # The penalty of the tested model, which is larger than the audited model's if the training
    # records of a split determine no model; and whether the model was fitted without the test
    # records
    l2: float | None = None
    held_out: bool = True
    # How each noisy model compares with a constant prediction, one entry per scale; empty if
    # unknown
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
    probability: float  # the probability that one draw is large enough
    # The largest probability, over all records or people, that σ alone reveals membership, because
    # it is too small for the table with or without them
    delta: float = 0.0


@dataclass(frozen=True)
class NoiseChoice:
    """Describes how σ was chosen."""

    # ``given`` to an audit, calibrated to a ``target`` or, without one, to η = 1 (``default``);
    # for a release ``declared`` beforehand, drawn by a ``vote``, or the ``least`` that is enough
    how: str
    # For a release: the smallest σ of its grid with which no record leaks more than allowed,
    # whether this includes earlier releases, and the vote
    least: float | None = None
    with_earlier: bool = False
    vote: NoiseVote | None = None

    @property
    def has_target(self) -> bool:
        """Whether the noise was to meet a target for η; releases always have one."""
        return self.how not in ("given", "default")


#: What a record changes if nothing could be released without it, or with other values of it.
RELEASED_OR_NOT = "whether anything can be released"


@dataclass(frozen=True)
class Disclosure:
    """A change to one record that alters a published figure; only the data owner may see it."""

    row: int  # the row number of the record in the table
    change: str  # the change to the record, in words
    figures: tuple[str, ...]  # the names of the figures that would change


@dataclass(frozen=True)
class DisclosureCheck:
    """The published figures that would change if a single record were removed or replaced."""

    checked: int  # how many of the most exposed records were left out and replaced
    found: tuple[Disclosure, ...] = ()
    everything: bool = False  # whether all figures of a release were checked, or σ and classes only
    unit: str = ONE_ROW  # whether single rows were changed, or all rows of a person

    def rows(self, figure: str | None = None) -> tuple[int, ...]:
        """Return, without duplicates, the records whose change alters any (or the given) figure."""
        told = (d.row for d in self.found if figure is None or figure in d.figures)
        return tuple(dict.fromkeys(told))


@dataclass(frozen=True)
class LedgerFinding:
    """Privacy losses recorded in the ledger for the records of this release."""

    releases: int  # the number of earlier releases
    known: int  # the number of records that were in one of them
    spent: float  # the largest η of a record over the earlier releases together
    eta: float  # the largest η of a record over these and this release
    doubts: tuple[str, ...] = ()  # warnings about the recognition of records
    unit: str = ONE_ROW  # whether the numbers are about rows or people
    # Over the earlier releases and this one: the largest success rate of membership inference, and
    # the record with this rate; the largest sums of ε and δ; and the level of the central credible
    # interval that a 95 % credible interval contains for records with δ = 0, ``None`` if unknown
    membership: float = 0.5
    row: int = 0
    certain: int = 0  # the number of records whose membership has no (known) protection
    epsilon: float = 0.0
    delta: float = 0.0
    interval: float | None = None
    enough: float | None = None  # a σ with which membership inference meets its limit, if any does
    # Over the same releases: the largest gain of a guess of a class or category, its column, and
    # the largest true positive rate at a 1 % false positive rate; ``None`` if nothing is guessed
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
    """A remedy for the most exposed records, with its settings, protection and cost.

    Quantities that were not measured are ``None``.
    """

    kind: RemedyKind
    # The settings: the noise (for shaped noise, the factor of the shape), the penalty, the rounds
    # of reweighting, and the number of public records that determine the shape
    sigma: float | None = None
    l2: float | None = None
    rounds: int | None = None
    public: int | None = None
    # The protection, in upper bounds: the leakage of the most exposed record, the success rate of
    # membership inference, the gain of a guess of a class or category, and the true positive rate
    # of attribute inference at a 1 % false positive rate
    eta: float | None = None
    membership: float | None = None
    gain: float | None = None
    tpr: float | None = None
    # Whether all of these that were measured for the release itself meet the target
    reaches_target: bool = False
    # The cost: the error on held-out records, that of a constant prediction, and how the two
    # compare
    error: float | None = None
    constant: float | None = None
    usefulness: UsefulnessFinding | None = None
    # Why it does not help or was not tried: ``no penalty`` is enough, there is ``no gain`` over
    # more noise, it would be ``slow``, the table is too ``large``, its leakage is ``unknown``, it
    # applies only to single ``rows`` and not to people, or the fit ``failed``, with the ``problem``
    # in words
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

        Remedies that miss the target follow, then remedies that were not tried or do not help.
        Remedies whose model is no better than a constant prediction come last.
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
    # The success rates with and without the release, and the record
    right: float
    baseline: float
    row: int
    # Over the records examined
    median_right: float
    median_baseline: float
    # The number of records examined: all, unless refits without each would take too long
    looked_at: int
    levels: int = 2  # the number of possible values
    # The largest true positive rates of distinguishing one level from another with the release, at
    # false positive rates of 1 % and 0.1 %; the success rate at even odds; the distance μ between
    # the two releases, from which these rates follow; and the record
    tpr: float | None = None
    tpr_strict: float | None = None
    even: float | None = None
    mu: float | None = None
    tpr_row: int | None = None
    held: tuple[str, ...] = ()  # the quantities held fixed: see core.result
    # Whether the value of one row is guessed, or that of a person, which is the same in all rows
    unit: str = ONE_ROW

    @property
    def gain(self) -> float:
        """The gain in success rate from the release."""
        return self.right - self.baseline


@dataclass(frozen=True, eq=False)
class RiskCurve:
    """The risks at other noise scales, with one entry per scale of the privacy–utility curve."""

    sigma: np.ndarray
    # The success rate of membership inference for the most exposed record and the median record
    membership: np.ndarray
    median: np.ndarray
    # For the guess with the largest gain at each noise scale: its success rate with and without the
    # release, and its column; ``None`` without guesses or for too many records
    right: np.ndarray | None = None
    baseline: np.ndarray | None = None
    names: tuple[str, ...] = ()
    priors: tuple[str, ...] = ()  # as in GuessFinding
    levels: tuple[int, ...] = ()  # the number of possible values


@dataclass(frozen=True)
class RiskFinding:
    """Upper bounds on the success rates of membership and attribute inference."""

    membership: float  # the largest success rate over the records (chance: 0.5)
    row: int  # the record with this rate
    median: float  # the median success rate over the records
    mu: float  # the distance μ from which the largest rate follows
    looked_at: int  # the number of records examined
    exact: bool  # whether the rates are exact, not upper ends of intervals
    guesses: tuple[GuessFinding, ...] = ()
    # Who the attacker is, and what is held fixed or redone when a record changes
    assumptions: tuple[str, ...] = ()
    # The ε and δ of the figures published with the noisy numbers: for the removal of a record,
    # included in membership; and for a change of class or category, included in guesses
    epsilon: float = 0.0
    delta: float = 0.0
    guess_epsilon: float = 0.0
    guess_delta: float = 0.0
    # The rows without which a published figure would change, and the names of these figures: the
    # membership of these rows is certain
    disclosed: tuple[int, ...] = ()
    disclosing: tuple[str, ...] = ()
    # The rows with which a published figure would change if they had another class or category or
    # other numbers, and the names of these figures: these other values are ruled out with certainty
    replaced: tuple[int, ...] = ()
    replacing: tuple[str, ...] = ()
    # Quantities learnt from the data that membership inference holds fixed: see core.result
    held: tuple[str, ...] = ()
    curve: RiskCurve | None = None  # the risks with other noise, if computed

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

    attacker: str  # a description of the attacker
    sigma: float | None  # the noise on the release; ``None`` for a model published without noise
    # What the attacker sees: the ``parameters`` or, with too few people for these, ``predictions``:
    # only the model's prediction for the record itself
    seen: str
    # The success rate for the most exposed record, this record, and the median success rate
    membership: float
    row: int
    median: float
    # The largest and the median success rate of an attacker who knows all other records
    informed: float
    informed_median: float
    others: int  # the number of other records
    # How many of these the attacker must know to succeed 90 % of the time for the median record;
    # ``None`` with noise
    must_know: int | None
    # The number of most exposed records checked by refits on other people, and the largest
    # difference of the checked rate from the approximation
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
    enough: float | None = None  # a σ that would meet the limit, if it is not met and one is known
    # The number of records above the limit, if all were examined; and the rows of the most exposed
    # of these, or of the measured record
    over: int | None = None
    rows: tuple[int, ...] = ()
    # The column, or the layer of a network, that was measured; or :data:`OVER_ALL`
    where: str | None = None
    # The 95 % confidence interval of ``measured``, for an attack
    low: float | None = None
    high: float | None = None
    attacker: str | None = None  # the attacker with this result, if there are several
    # The success rate of membership inference that the figures drawn at random allow by themselves,
    # if it exceeds the limit
    beside: float | None = None

    @property
    def of_attack(self) -> bool:
        """Whether the number comes from an attack.

        An attack can show that a limit is exceeded, but not that it is met.
        """
        return self.low is not None

    @property
    def inconclusive(self) -> bool:
        """Whether the limit is not exceeded, but the confidence interval extends beyond it."""
        return self.passed and self.high is not None and self.high > self.limit


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
    # For leaves: the number of trees, and the number of records in a small leaf of every tree
    trees: int | None = None
    in_every_tree: int | None = None
    parameters: int | None = None  # the number of parameters that the model learnt
    keeper: str | None = None  # the class that stores records verbatim

    @classmethod
    def of_freedom(cls, learnt: int, records: int) -> StructuralRisk:
        """Return the check of the degrees of freedom: records minus learnt parameters."""
        left, name = records - learnt, "degrees of freedom"
        few, affected = left < FEW, records if left < FEW else 0
        whose = "ACRO's default"
        return cls(name, few, affected, records, float(left), FEW, whose, parameters=learnt)


@dataclass(frozen=True, eq=False)
class SomeRecords:
    """The results for some of the records."""

    # The positions among the audited records; the row numbers in the table (for a person, of the
    # first row); and the number of rows of each record or person
    place: np.ndarray
    row: np.ndarray
    held: np.ndarray
    # One number per record for each name in :data:`NUMBERS`, and :data:`MU` if it is known
    numbers: Mapping[str, np.ndarray]
    # For every sensitive attribute, the least error of an attack on each record
    errors: Mapping[str, np.ndarray]


class RecordLeakage:
    """The leakage of all records, or people, at noise σ, scaled from its values at σ = 1.

    ``row`` contains the row number of every record in the table, or of each person's first record.
    ``held`` is the number of rows of each person, ``None`` if the unit is the record. ``numbers``
    and ``errors`` are those of :class:`SomeRecords`, for all records. They may be stored in a
    memory-mapped file, and are scaled to the noise σ on access.
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
        """Return one of the :data:`NUMBERS`, or :data:`MU`, at σ = 1 in ascending order."""
        if name not in self._ordered:
            self._ordered[name] = sorted_numbers(self._numbers[name])
        return self._ordered[name]

    def quantile(self, name: str, share: float) -> float:
        """Return a quantile of one of the :data:`NUMBERS`; a ``share`` of 1 gives the largest.

        A quantile between two observations is the lower one, except for the median, which is their
        mean unless the upper one is infinite.
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
    target_eta, calibrated_sigma
        The target for the largest leakage of a record (1 if none was given), and the smallest noise
        on a coarse grid that meets it.
    values
        The caller's own values of the audited rows, stored only on request.
    guarantees
        All bounds on attacks against the record with the largest mean leakage over its columns, if
        known.
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
    in_python
        Whether ``sp.audit`` read the table, so that sentences name its arguments, not options.
    labels
        The index labels of a pandas table, if they differ from row numbers.
    people
        The identity of the person in every row, for audits from Python; not shown in the report.
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
    in_python: bool = False
    labels: np.ndarray | None = None
    people: np.ndarray | None = None
    members: Mapping[tuple[str, str], np.ndarray] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)

    value_column = "eta"

    def table(self, library: str | None = None) -> Any:
        """Return a data frame of η, its parts and the error bound, one row per record or person."""
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
        """The least root mean squared error of an unbiased attack on all columns of a record.

        The mean is over the columns, in units of their standard deviations. The value is the square
        root of the averaged exact Cramér–Rao bound, and infinite where no unbiased attack exists.
        """
        return self.records.every.numbers["exact_error"]

    @property
    def cell_errors(self) -> Mapping[str, np.ndarray]:
        """The minimum standard error of an unbiased attack on every record's sensitive attributes.

        The error is given in each column's own units.
        """
        return self.records.every.errors

"""The steps of a run and their joint differential privacy, computed with dp-accounting.

A :class:`Ledger` records the steps so far, with their noise, clip and batches. Rényi DP and (ε, δ)
follow from the ledger. The smooth clip allows gradients of norm up to 1.11522 C, so the effective
noise multiplier is ``σC/sensitivity``.

The guarantee depends on the settings that were declared before the data were seen. Suppose that
each record is drawn with a declared probability, and sums are divided by a declared number. Adding
or removing a record then changes no setting, and the guarantee covers that change. If the sampling
rate or divisor depends on the number of records (a batch size, shuffled epochs, Opacus), adding a
record changes the rate for all records. The number of records then counts as public, and the
guarantee covers replacing a record.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.nn.privacy.randomness import UNSTATED, conditions_of, marked, refuse_experiment
from seepage.nn.sampling.samplers import FIXED, POISSON
from seepage.privacy.statements import NEIGHBOURS, DifferentialPrivacy
from seepage.privacy.trade_off import (
    PromisedTradeOff,
    fixed_size_losses,
    gaussian_losses,
    replacement_renyi,
)
from seepage.support.number_check import check_choice, check_count, check_share
from seepage.tables.names import counted
from seepage.tables.result_table import SummaryTable

ADD_OR_REMOVE, REPLACE = "add or remove one record", "replace one record"
ZERO_OUT = "zero out one record (zero gradient instead)"
RELATIONS = {"add-or-remove": ADD_OR_REMOVE, "replace": REPLACE, "zero-out": ZERO_OUT}

_DECLARED = (
    "Rate, divisor and number of steps were declared before the data were seen and do not depend "
    "on the number of records."
)
_PUBLIC_COUNT = (
    "The number of records counts as public, because the sampling rate follows from it. The "
    "presence of one more or one fewer record is not protected; a declared sample_rate protects it."
)


@dataclass(frozen=True)
class Entry:
    """Consecutive steps with the same settings.

    Parameters
    ----------
    steps
        The number of steps.
    sampler
        How the batches were drawn: ``poisson``, ``fixed`` (sets of fixed size) or ``other``.
    sample_rate
        The probability that a record takes part in a step.
    noise_multiplier
        The noise multiplier σ. The noise on the sum has the standard deviation ``σC``.
    max_grad_norm
        The clipping threshold C.
    sensitivity
        The largest norm of a clipped gradient; infinite without clipping.
    records
        The number of records from which batches are drawn.
    randomness
        The origin of noise and batches, as in :mod:`seepage.nn.privacy.randomness`.
    declared
        Whether the sampling rate and the divisor were declared before the data were seen. If they
        were not declared, they follow from the number of records, which counts as public.
    filtered
        Whether each record took part only until its budget was spent.
    """

    steps: int
    sampler: str
    sample_rate: float
    noise_multiplier: float
    max_grad_norm: float
    sensitivity: float
    records: int
    randomness: str = UNSTATED
    declared: bool = False
    filtered: bool = False

    @property
    def noise(self) -> float:
        """The standard deviation of the noise on the sum, ``σC``."""
        return self.noise_multiplier * self.max_grad_norm

    def __str__(self) -> str:
        settings = (
            f"{counted(self.steps, 'step')}: {self.sampler} batches of "
            f"{'declared ' * self.declared}rate {self.sample_rate:.4g}, "
            f"σ = {self.noise_multiplier:.4g}, C = {self.max_grad_norm:.4g}, "
            f"gradients no longer than {self.sensitivity:.4g}"
            f"{', each record until its budget is spent' if self.filtered else ''}"
        )
        return marked(settings, conditions_of([self.randomness]))


class Ledger:
    """The entries of a run, in the order of its steps.

    Examples
    --------
    >>> from seepage.nn.privacy.run_privacy import Entry, Ledger
    >>> ledger = Ledger()
    >>> for _ in range(3):
    ...     ledger.add(Entry(1, "poisson", 0.01, 1.0, 1.0, 1.0, 6000))
    >>> print(ledger)
    3 steps: poisson batches of rate 0.01, σ = 1, C = 1, gradients no longer than 1
    """

    def __init__(self, entries: tuple[Entry, ...] = ()) -> None:
        self._entries = list(entries)

    def add(self, entry: Entry) -> None:
        """Add steps, and merge them with the last entry if the settings are the same."""
        if self._entries and replace(self._entries[-1], steps=entry.steps) == entry:
            entry = replace(entry, steps=entry.steps + self._entries.pop().steps)
        self._entries.append(entry)

    @property
    def steps(self) -> int:
        """The number of steps."""
        return sum(entry.steps for entry in self._entries)

    @property
    def conditions(self) -> tuple[str, ...]:
        """The conditions on the origin of noise and batches, for every statement about the run."""
        return conditions_of(entry.randomness for entry in self._entries)

    @property
    def filtered(self) -> bool:
        """Whether each record was excluded once its budget was spent."""
        return any(entry.filtered for entry in self._entries)

    def declare(self, randomness: str) -> None:
        """Set the stated origin of noise and batches for all steps so far."""
        self._entries = [replace(entry, randomness=randomness) for entry in self._entries]

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self._entries == other._entries

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return "\n".join(map(str, self._entries)) or "no steps"

    def to_json(self) -> str:
        """Return the ledger as JSON text."""
        return json.dumps([asdict(entry) for entry in self._entries])

    @classmethod
    def from_json(cls, text: str) -> Ledger:
        """Return the ledger from the output of :meth:`to_json`."""
        return cls(tuple(Entry(**entry) for entry in json.loads(text)))


@dataclass(frozen=True)
class PrivacyGuarantee(SummaryTable):
    """The (ε, δ)-differential privacy of a run.

    Parameters
    ----------
    epsilon, delta
        The values ε and δ of the guarantee.
    relation
        The neighbouring relation between data sets, in words.
    method
        ``rdp`` (Rényi), ``pld`` (privacy loss distributions), or the name of Opacus's own method.
    order
        The Rényi order from which ε follows, if the method is ``rdp``.
    conditions
        Conditions on the declared settings and on the origin of noise and batches.
    """

    epsilon: float
    delta: float
    relation: str
    method: str
    order: float | None = None
    conditions: tuple[str, ...] = ()

    sensitive = False

    def spans(self) -> Mapping[str, tuple[float, float, float]]:
        """Return ε and δ as upper bounds; there are no lower bounds."""
        ends = {"epsilon": self.epsilon, "delta": self.delta}
        return {name: (value, math.nan, value) for name, value in ends.items()}

    def plot(self, ax: Any = None) -> Any:
        """Plot the largest true positive rate of membership inference under the guarantee."""
        return PromisedTradeOff(self.epsilon, self.delta).plot(ax)

    def html_notes(self) -> tuple[str, ...]:
        """Return the conditions, for display in a notebook."""
        return self.conditions

    def __float__(self) -> float:
        return self.epsilon

    def __str__(self) -> str:
        promise = f"(ε = {self.epsilon:.4g}, δ = {self.delta:.3g}), to {self.relation}"
        return marked(promise, self.conditions)

    def statement(self) -> DifferentialPrivacy:
        """Return the guarantee as a :mod:`seepage.privacy` statement, for ``sp.guarantees(dp=…)``.

        Experiments, whose noise can be regenerated, raise an error.
        """
        refuse_experiment(self.conditions)
        named = {words: name for name, words in RELATIONS.items() if name in NEIGHBOURS}
        if self.relation not in named:
            raise InputError(
                "Bounds need a guarantee for adding, removing or replacing one record, but the "
                f"relation here is '{self.relation}'; use privacy(delta, neighbours='replace')."
            )
        return DifferentialPrivacy(self.epsilon, self.delta, named[self.relation], self.conditions)

    def to_json(self) -> str:
        """Return the guarantee as JSON text for publication; experiments raise an error."""
        refuse_experiment(self.conditions)
        return json.dumps(asdict(self), ensure_ascii=False)


def relation_of(ledger: Ledger) -> str:
    """Return ``add-or-remove`` if all steps use declared Poisson batches, otherwise ``replace``."""
    return "add-or-remove" if all(_declared(entry) for entry in ledger) else "replace"


def own_relation(ledger: Ledger) -> str:
    """Return ``add-or-remove`` if the run supports this relation, otherwise ``zero-out``."""
    return "add-or-remove" if relation_of(ledger) == "add-or-remove" else "zero-out"


def conditions_of_relation(ledger: Ledger) -> tuple[str, ...]:
    """Return sentences that state the conditions on the sampling of batches."""
    return (_DECLARED if relation_of(ledger) == "add-or-remove" else _PUBLIC_COUNT,)


def checked_relation(ledger: Ledger, neighbours: str | None) -> str:
    """Return the requested relation (default: the run's own); if unsupported, raise an error."""
    if neighbours is None:
        return relation_of(ledger)
    check_choice(neighbours, "neighbours", tuple(RELATIONS))
    if neighbours == "add-or-remove" and relation_of(ledger) != neighbours:
        raise InputError(
            "The run has no guarantee for adding or removing a record, which requires Poisson "
            "batches with a declared sampling rate. Use neighbours='replace', or train with a "
            "declared sample_rate= (in PrivateSGD, also expected_batch=)."
        )
    if neighbours == "zero-out" and any(entry.sampler == FIXED for entry in ledger):
        raise InputError(
            "For batches of fixed size, only replacing a record is supported; use "
            "neighbours='replace'."
        )
    return neighbours


def renyi(ledger: Ledger, orders: Sequence[float], neighbours: str | None = None) -> np.ndarray:
    """Return the Rényi differential privacy of the run at each order.

    For adding, removing or zeroing out a record, the result is that of Mironov, Talwar and Zhang
    (2019) for Poisson batches, and that of the plain Gaussian mechanism for other batches. For
    replacing a record, it follows from the dominating pair
    (:func:`~seepage.privacy.trade_off.replacement_renyi`) for Poisson batches. For other batches,
    the sensitivity is doubled: batches of fixed size use Wang, Balle and Kasiviswanathan (2019),
    and all others the plain Gaussian mechanism.
    """
    from dp_accounting import NeighboringRelation
    from dp_accounting.rdp import RdpAccountant

    relation = checked_relation(ledger, neighbours)
    if relation != "replace":
        accountant = RdpAccountant(list(orders), NeighboringRelation.ADD_OR_REMOVE_ONE)
        _compose(accountant, ((entry, _event(entry)) for entry in ledger))
        return np.asarray(accountant.rdp)
    accountant = RdpAccountant(list(orders), NeighboringRelation.REPLACE_ONE)
    _compose(accountant, ((e, _replacement_event(e)) for e in ledger if e.sampler != POISSON))
    total = np.asarray(accountant.rdp, dtype=float)
    for entry in ledger:
        if entry.sampler == POISSON and math.isinf(entry.sensitivity):
            total = total + math.inf
        elif entry.sampler == POISSON:
            step = replacement_renyi(entry.sensitivity / entry.noise, entry.sample_rate, orders)
            total = total + entry.steps * step
    return total


def losses(ledger: Ledger, neighbours: str | None = None, *, group: int = 1) -> Any:
    """Return the privacy loss distribution of a run, composed over its steps by dp-accounting."""
    relation = checked_relation(ledger, neighbours)
    if not len(ledger):
        raise InputError(
            "No step has been taken yet, so there is no release; observe at least one step first."
        )
    total: Any = None
    for entry in ledger:
        multiplier = entry.noise / entry.sensitivity
        if entry.sampler == FIXED:
            steps = fixed_size_losses(multiplier, entry.sample_rate, entry.steps)
        else:
            steps = gaussian_losses(
                multiplier,
                entry.sample_rate if entry.sampler == POISSON else 1.0,
                entry.steps,
                replace=relation == "replace",
                group=group,
            )
        total = steps if total is None else total.compose(steps)
    return total


def guarantee(
    ledger: Ledger,
    delta: float,
    *,
    method: str = "rdp",
    orders: Sequence[float] | None = None,
    neighbours: str | None = None,
    group: int = 1,
) -> PrivacyGuarantee:
    """Return the (ε, δ) guarantee of the run, for one record or a group of records."""
    check_share(delta, "delta")
    check_count(group, "group")
    check_choice(method, "method", ("rdp", "pld"))
    relation = checked_relation(ledger, neighbours)
    words, conditions = RELATIONS[relation], conditions_of_relation(ledger) + ledger.conditions
    if group > 1:
        if relation == "replace":
            raise InputError(
                "A group guarantee covers only adding or removing the records together; use "
                "neighbours='zero-out', or train with a declared sample_rate=."
            )
        method, words = "pld", words.replace("one record", f"{group} records")
    order = None
    if any(math.isinf(entry.sensitivity) for entry in ledger):
        epsilon = math.inf
    elif method == "pld":
        epsilon = float(losses(ledger, relation, group=group).get_epsilon_for_delta(delta))
    else:
        from dp_accounting.rdp import RdpAccountant
        from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

        chosen = RdpAccountant(orders).orders
        costs = renyi(ledger, chosen, relation)
        found, order = compute_epsilon(chosen, costs, delta) if len(ledger) else (0.0, None)
        epsilon, order = float(found), None if order is None else float(order)
    return PrivacyGuarantee(epsilon, delta, words, method, order, conditions)


def least_noise(entry: Entry, epsilon: float, delta: float) -> float:
    """Return the smallest σ, a multiple of 0.001, for which these steps are (ε, δ)-private.

    σ is found by bisection on :func:`guarantee`, which also computes the guarantee of the run
    itself.

    Examples
    --------
    >>> from seepage.nn.privacy.run_privacy import Entry, least_noise
    >>> least_noise(Entry(1000, "poisson", 0.01, 1.0, 1.0, 1.0, 6000, declared=True), 2.0, 1e-5)
    1.023
    """
    if math.isinf(entry.sensitivity):
        raise InputError(
            "Without clipping, no amount of noise meets a privacy budget; leave out clip, or use "
            "clip='smooth'."
        )

    def suffices(thousandths: int) -> bool:
        steps = replace(entry, noise_multiplier=thousandths / 1000)
        return guarantee(Ledger((steps,)), delta).epsilon <= epsilon

    high = 1000
    while not suffices(high):
        high *= 2
        if high > 10**9:
            raise InputError(
                f"No noise multiplier up to a million gives ε = {epsilon:g} at δ = {delta:g} over "
                f"{counted(entry.steps, 'step')}; take fewer steps, or raise target_epsilon."
            )
    low = high // 2 if high > 1000 else 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high / 1000


def _declared(entry: Entry) -> bool:
    return entry.sampler == POISSON and entry.declared


def _compose(accountant: Any, events: Iterable[tuple[Entry, Any]]) -> None:
    """Compose steps in an accountant from dp-accounting."""
    from dp_accounting import SelfComposedDpEvent

    # It logs every order that it does not support; these count as infinite, so the log is not
    # needed.
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        for entry, event in events:
            accountant.compose(SelfComposedDpEvent(event, entry.steps))
    finally:
        logger.setLevel(level)


def _event(entry: Entry) -> Any:
    """Return a step as a dp-accounting event, for adding or removing a record."""
    import dp_accounting as dp

    if math.isinf(entry.sensitivity):
        return dp.NonPrivateDpEvent()
    step = dp.GaussianDpEvent(entry.noise / entry.sensitivity)
    return dp.PoissonSampledDpEvent(entry.sample_rate, step) if entry.sampler == POISSON else step


def _replacement_event(entry: Entry) -> Any:
    """Return a step as a dp-accounting event with twice the sensitivity, for replacing a record."""
    import dp_accounting as dp

    if math.isinf(entry.sensitivity):
        return dp.NonPrivateDpEvent()
    half = dp.GaussianDpEvent(entry.noise / entry.sensitivity / 2)
    if entry.sampler != FIXED:
        return half
    size = round(entry.sample_rate * entry.records)
    return dp.SampledWithoutReplacementDpEvent(entry.records, size, half)

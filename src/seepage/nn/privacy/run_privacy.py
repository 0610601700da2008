"""The steps of a run and their joint differential privacy, from dp-accounting.

A :class:`Ledger` keeps the releases so far: the number of steps, with their noise, clip and
batches. Rényi DP and (ε, δ) follow from it. The smooth clip allows gradients of norm 1.1152 C, so
the effective noise multiplier is ``σC/sensitivity``.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.nn.privacy.randomness import UNSTATED, conditions_of, marked
from seepage.nn.sampling.samplers import FIXED, POISSON
from seepage.support.number_check import check_share

ADD_OR_REMOVE, REPLACE = "add or remove one record", "replace one record"


@dataclass(frozen=True)
class Entry:
    """Consecutive steps with the same settings.

    Parameters
    ----------
    steps
        Their number.
    sampler
        How the batches were drawn: ``poisson``, ``fixed`` or ``other``.
    sample_rate
        The probability that a record takes part in one of them.
    noise_multiplier
        σ: the noise on the sum has the standard deviation ``σC``.
    max_grad_norm
        C.
    sensitivity
        The largest norm of a clipped gradient; infinite without clipping.
    records
        The number of records that batches are drawn from.
    randomness
        Where noise and batches came from, as in :mod:`seepage.nn.privacy.randomness`.
    filtered
        Whether a record took part only while its budget lasted.
    """

    steps: int
    sampler: str
    sample_rate: float
    noise_multiplier: float
    max_grad_norm: float
    sensitivity: float
    records: int
    randomness: str = UNSTATED
    filtered: bool = False

    @property
    def noise(self) -> float:
        """The standard deviation of the noise on the sum, ``σC``."""
        return self.noise_multiplier * self.max_grad_norm

    def __str__(self) -> str:
        settings = (
            f"{self.steps:,} steps: {self.sampler} batches of rate {self.sample_rate:.4g}, "
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
        """Add steps; they join the last entry if their settings are the same."""
        if self._entries and replace(self._entries[-1], steps=entry.steps) == entry:
            entry = replace(entry, steps=entry.steps + self._entries.pop().steps)
        self._entries.append(entry)

    @property
    def steps(self) -> int:
        """The number of steps."""
        return sum(entry.steps for entry in self._entries)

    @property
    def conditions(self) -> tuple[str, ...]:
        """What must hold of the origin of noise and batches, for every statement about the run."""
        return conditions_of(entry.randomness for entry in self._entries)

    @property
    def filtered(self) -> bool:
        """Whether records stopped when their budgets were spent."""
        return any(entry.filtered for entry in self._entries)

    def declare(self, randomness: str) -> None:
        """State the origin of the noise and batches of all steps so far."""
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
        """Return it as text."""
        return json.dumps([asdict(entry) for entry in self._entries])

    @classmethod
    def from_json(cls, text: str) -> Ledger:
        """Return the ledger that :meth:`to_json` wrote."""
        return cls(tuple(Entry(**entry) for entry in json.loads(text)))


@dataclass(frozen=True)
class PrivacyGuarantee:
    """(ε, δ)-differential privacy of a run.

    Parameters
    ----------
    epsilon, delta
        The guarantee.
    relation
        Which data sets count as neighbours.
    method
        ``rdp`` (Rényi), ``pld`` (privacy loss distributions), or Opacus's own.
    order
        The Rényi order that gave ε, if there is one.
    conditions
        What must hold of the origin of noise and batches.
    """

    epsilon: float
    delta: float
    relation: str
    method: str
    order: float | None = None
    conditions: tuple[str, ...] = ()

    def __float__(self) -> float:
        return self.epsilon

    def __str__(self) -> str:
        promise = f"(ε = {self.epsilon:.4g}, δ = {self.delta:.3g}), to {self.relation}"
        return marked(promise, self.conditions)


def relation_of(ledger: Ledger) -> str:
    """Return which data sets count as neighbours in the guarantees of a run.

    A batch of fixed size cannot lose a record without gaining another; all other steps count as
    adding and removing.
    """
    fixed = {entry.sampler == FIXED for entry in ledger}
    if len(fixed) > 1:
        raise InputError(
            "The run mixes batches of fixed size with others, whose guarantees are about "
            "different neighbouring data sets and do not add up; use one sampler throughout."
        )
    return REPLACE if fixed == {True} else ADD_OR_REMOVE


def renyi(ledger: Ledger, orders: Sequence[float]) -> np.ndarray:
    """Return the Rényi differential privacy of the run at each order.

    Poisson batches: Mironov, Talwar and Zhang 2019. Batches of fixed size: Wang, Balle and
    Kasiviswanathan 2019, with twice the sensitivity, since one record replaces another. Other
    batches: the plain Gaussian mechanism in every step.
    """
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(list(orders), _neighbours(ledger))
    _compose(accountant, ledger)
    return np.asarray(accountant.rdp)


def guarantee(
    ledger: Ledger, delta: float, *, method: str = "rdp", orders: Sequence[float] | None = None
) -> PrivacyGuarantee:
    """Return the (ε, δ) of the run."""
    check_share(delta, "delta")
    relation, conditions = relation_of(ledger), ledger.conditions
    if any(math.isinf(entry.sensitivity) for entry in ledger):
        return PrivacyGuarantee(math.inf, delta, relation, method, None, conditions)
    if method == "rdp":
        from dp_accounting.rdp import RdpAccountant

        rdp = RdpAccountant(orders, _neighbours(ledger))
        _compose(rdp, ledger)
        epsilon, order = rdp.get_epsilon_and_optimal_order(delta)
        return PrivacyGuarantee(float(epsilon), delta, relation, method, float(order), conditions)
    if method == "pld":
        from dp_accounting.pld import PLDAccountant

        if relation == REPLACE:
            raise InputError(
                "Privacy loss distributions are not available for batches of fixed size; use "
                "method='rdp'."
            )
        pld = PLDAccountant(_neighbours(ledger))
        _compose(pld, ledger)
        return PrivacyGuarantee(
            float(pld.get_epsilon(delta)), delta, relation, method, None, conditions
        )
    raise InputError(f"method must be 'rdp' or 'pld', not {method!r}.")


def _neighbours(ledger: Ledger) -> Any:
    from dp_accounting import NeighboringRelation

    if relation_of(ledger) == REPLACE:
        return NeighboringRelation.REPLACE_ONE
    return NeighboringRelation.ADD_OR_REMOVE_ONE


def _compose(accountant: Any, ledger: Ledger) -> None:
    """Compose the run's steps in a dp-accounting accountant."""
    from dp_accounting import SelfComposedDpEvent

    # It logs every order that it does not support; these count as infinite, so the log is not
    # needed.
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        for entry in ledger:
            accountant.compose(SelfComposedDpEvent(_event(entry), entry.steps))
    finally:
        logger.setLevel(level)


def _event(entry: Entry) -> Any:
    import dp_accounting as dp

    if math.isinf(entry.sensitivity):
        return dp.NonPrivateDpEvent()
    multiplier = entry.noise / entry.sensitivity
    if entry.sampler == POISSON:
        return dp.PoissonSampledDpEvent(entry.sample_rate, dp.GaussianDpEvent(multiplier))
    if entry.sampler == FIXED:
        size = round(entry.sample_rate * entry.records)
        half = dp.GaussianDpEvent(multiplier / 2)
        return dp.SampledWithoutReplacementDpEvent(entry.records, size, half)
    return dp.GaussianDpEvent(multiplier)

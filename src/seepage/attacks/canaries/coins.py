"""Canaries (records included by fair coin flips), and an audit that derives a lower bound on ε."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from seepage.attacks.canaries.one_run import epsilon_lower_bound
from seepage.errors import InputError, accepts_other_names
from seepage.support.keyed_stream import KeyedStream
from seepage.support.number_check import check_count, check_not_negative, check_share
from seepage.tables.names import counted
from seepage.tables.result_table import SummaryTable
from seepage.tables.source import as_numpy

CONDITIONS = (
    "The result is a lower bound: a stronger attack, or more atypical canaries, may show a "
    "larger ε.",
    "The bound is for adding or removing one canary, and assumes that the number of guesses was "
    "fixed before the run.",
)


@dataclass(frozen=True, repr=False)
class CanaryAudit(SummaryTable):
    """A lower bound on ε from guesses about the canaries in one run.

    Parameters
    ----------
    correct, guesses, abstentions
        The numbers of correct guesses, of all guesses, and of abstentions.
    delta, confidence
        The δ and the confidence level of the bound.
    promised
        The ε guaranteed at this δ, for adding or removing one record; ``None`` without a guarantee.
    experiment
        A note if the run's noise can be regenerated (the run is then only an experiment); otherwise
        empty.
    kind
        ``attack``: a lower bound on ε, never an upper bound.

    Examples
    --------
    >>> from seepage.attacks import CanaryAudit
    >>> print(CanaryAudit(correct=195, guesses=200, abstentions=800, delta=1e-5, promised=8.0))
    promised: ε at most 8; a run with 1,000 canaries shows ε ≥ 2.9 (95 % confidence, δ = 1e-05)
    """

    correct: int
    guesses: int
    abstentions: int
    delta: float
    confidence: float = 0.95
    promised: float | None = None
    experiment: str = ""
    kind: str = "attack"

    def __post_init__(self) -> None:
        if self.promised is not None and self.promised != math.inf:
            check_not_negative(self.promised, "promised")

    @property
    def canaries(self) -> int:
        """The number of canaries."""
        return self.guesses + self.abstentions

    @cached_property
    def epsilon(self) -> float:
        """The lower bound on ε."""
        return epsilon_lower_bound(
            self.correct,
            self.guesses,
            abstentions=self.abstentions,
            delta=self.delta,
            confidence=self.confidence,
        )

    def spans(self) -> Mapping[str, tuple[float, float, float]]:
        """Return the lower bound on ε and the promised ε, if any."""
        spans = {"ε shown, at least": (self.epsilon, self.epsilon, math.nan)}
        if self.promised is not None:
            spans["ε promised, at most"] = (self.promised, math.nan, self.promised)
        return spans

    @property
    def refuted(self) -> bool:
        """Whether the lower bound exceeds the promised ε."""
        return self.promised is not None and self.epsilon > self.promised

    @property
    def conditions(self) -> tuple[str, ...]:
        """The assumptions behind the bound."""
        return (*CONDITIONS, *((self.experiment,) if self.experiment else ()))

    def __str__(self) -> str:
        shows = (
            f"a run with {self.canaries:,} canaries shows ε ≥ {self.epsilon:.3g} "
            f"({100 * self.confidence:g} % confidence, δ = {self.delta:.3g})"
        )
        if self.promised is not None:
            shows = f"promised: ε at most {self.promised:.3g}; {shows}"
        if self.refuted:
            shows += ": the promised ε is refuted"
        return f"{shows}; {self.experiment}" if self.experiment else shows

    def __repr__(self) -> str:
        return (
            f"<canaries, attack: {self.correct} of {self.guesses} guesses correct, "
            f"{self.abstentions} abstentions; {self}>"
        )


@accepts_other_names
class Canaries:
    """Records whose inclusion in a run is decided by independent fair coin flips.

    Parameters
    ----------
    count
        The number of canaries.
    guesses
        The number of canaries to guess: half are guessed to be included, half to be excluded. The
        default is a fifth of all canaries. Choose this number before the run, because a later
        choice would invalidate the bound. The best number depends on the noise.
    seed
        The seed of the coin flips, for repeatable experiments.

    Attributes
    ----------
    included
        Whether each canary is included. Scores may depend on this mask only through the run's
        output.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.attacks import Canaries
    >>> canaries = Canaries(1000, seed=0)
    >>> sums = canaries.included + np.random.default_rng(1).normal(0, 0.3, 1000)
    >>> print(canaries.audit(sums, delta=1e-5))
    a run with 1,000 canaries shows ε ≥ 4.17 (95 % confidence, δ = 1e-05)
    """

    def __init__(self, count: int, *, guesses: int | None = None, seed: int | None = None) -> None:
        check_count(count, "count", 10)
        self.guesses = max(2, count // 5) if guesses is None else guesses
        check_count(self.guesses, "guesses")
        if self.guesses > count:
            raise InputError(
                f"guesses={self.guesses} exceeds the number of canaries, {count}; choose at most "
                f"guesses={count}."
            )
        stream = KeyedStream.fresh() if seed is None else KeyedStream.of_seed(seed)
        self.included = np.asarray(stream.child("canaries").words(count) >> np.uint64(63), bool)

    def __len__(self) -> int:
        return len(self.included)

    def audit(
        self,
        scores: Any,
        *,
        delta: float,
        confidence: float = 0.95,
        promised: float | None = None,
        experiment: str = "",
    ) -> CanaryAudit:
        """Return a lower bound on ε from guesses; ``scores`` contains one score per canary.

        The canaries with the highest scores are guessed to be included, and those with the lowest
        scores to be excluded.
        """
        check_share(confidence, "confidence")
        values = as_numpy(scores).astype(float)
        infinite = not np.all(np.isfinite(values))
        if values.shape != (len(self),) or infinite:
            raise InputError(
                f"scores must be {len(self)} finite numbers in one dimension, one per canary; the "
                f"given array has shape {values.shape}"
                f"{' and contains NaN or infinity' if infinite else ''}."
            )
        order = np.argsort(values, kind="stable")  # ties by position, which the coins do not know
        low = self.guesses // 2
        out, into = order[:low], order[len(order) - (self.guesses - low) :]
        right = int(np.sum(~self.included[out]) + np.sum(self.included[into]))
        return CanaryAudit(
            correct=right,
            guesses=self.guesses,
            abstentions=len(self) - self.guesses,
            delta=delta,
            confidence=confidence,
            promised=promised,
            experiment=experiment,
        )

    def chosen(self, records: Sequence[Any]) -> list[Any]:
        """Return the included canaries, given the records of all canaries."""
        if len(records) != len(self):
            raise InputError(
                f"There are {len(self)} canaries, but {counted(len(records), 'record')}; pass one "
                "record for each canary."
            )
        return [record for record, is_in in zip(records, self.included, strict=True) if is_in]

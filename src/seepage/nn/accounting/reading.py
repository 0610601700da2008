"""Reads an accounted run: the leakage of every record, and differential privacy."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from seepage.errors import InputError
from seepage.nn.jacobian.finite_changes import condition_of_steps, over_steps
from seepage.nn.privacy.run_membership import RunMembership, run_membership
from seepage.nn.privacy.run_privacy import Ledger, PrivacyGuarantee, guarantee, renyi
from seepage.nn.sampling.samplers import OTHER

if TYPE_CHECKING:
    from seepage.nn.measures.estimate import Estimate

_RELEASED = (
    "Nothing leaves but the noisy gradients of the steps, or results computed from them.",
    "The figure is a Monte-Carlo estimate: the mean over runs is what bounds the information "
    "(paper 004, theorem 3).",
)
_HIDDEN = "Nobody learns which records were in which batch, nor how many."


class RunReader(ABC):
    """Reads a run, or the average of several; shared by all classes that keep runs."""

    n: int  # the number of training records
    ledger: Ledger  # the steps that were taken
    unknowns: int  # the number of unknowns of one record; zero until one is seen
    about: str  # the unknowns, in words
    step_size: float  # the size of the finite steps; zero for derivatives
    doubt: float  # how much the results for half and twice the step differ; zero if not tried

    @abstractmethod
    def information(self, amplified: bool = True) -> tuple[Tensor, Tensor]:
        """Return the trace of the information about each record, and its variance.

        ``amplified=False`` leaves out the factor κ of subsampling.
        """

    @abstractmethod
    def measured(self) -> Tensor:
        """Return which records were measured at all, ``(n,)``."""

    @abstractmethod
    def degrees(self, amplified: bool = True) -> float | Tensor:
        """Return the degrees of freedom of the variances; infinite if unknown."""

    @abstractmethod
    def chance(self) -> tuple[str, ...]:
        """Return, in words, the sources of chance that the standard errors cover."""

    @property
    @abstractmethod
    def failure_probability(self) -> float:
        """The probability that the factor κ fails over the steps taken so far.

        Zero except for ``amplification="theorem4"``, where it is the part of ``delta`` spent so
        far.
        """

    @property
    def steps(self) -> int:
        """The number of steps taken."""
        return self.ledger.steps

    def records(self, measure: str | None = None, *, amplified: bool = True) -> Estimate:
        """Return the leakage of every record over the run, with standard errors; also ``rows()``.

        A record that was in no batch is not measured: its number and error are nan. With
        ``survey_every`` all records are measured.

        Parameters
        ----------
        measure
            ``"dfil"``: ``η̄ = sqrt(Tr I/d)`` (paper 004, section 7.1). ``"fil"``: ``sqrt(Tr I)``,
            an upper bound on FIL ``η = sqrt(‖I‖₂)``, since no norm exceeds the trace. There is no
            default.
        amplified
            Whether the factor κ for hidden batches is applied.
        """
        # Imported here, so that training needs only torch and numpy.
        from seepage.nn.measures.estimate import Estimate

        if measure is None:
            raise InputError(
                "Name the measure: 'dfil', the average over a record's unknowns, or 'fil', for "
                "which the same sums give an upper bound at no extra cost (fil() is tighter, for "
                "records whose sketches were kept)."
            )
        if measure not in ("dfil", "fil"):
            raise InputError(f"measure must be 'dfil' or 'fil', not {measure!r}.")
        trace, variance = (np.asarray(t.cpu()) for t in self.information(amplified))
        if not self.unknowns:
            raise InputError(
                "No record has been observed yet; call observe(index, x, y) with the batches of "
                "the run first."
            )
        broken = np.flatnonzero(~np.isfinite(trace))
        if broken.size:
            raise InputError(
                f"The leakage of record {broken[0]} is not a finite number (and that of "
                f"{broken.size - 1} more): its loss or gradient overflowed during the run; clip "
                "the gradients, or use a smaller learning rate."
            )
        size = self.unknowns if measure == "dfil" else 1
        measured = np.asarray(self.measured().cpu())
        values = np.where(measured, np.sqrt(trace / size), np.nan)
        # d sqrt(t) = dt/(2 sqrt(t)); a record that does not leak at all has no error.
        scale = 2 * size * values
        errors = np.where(measured, 0.0, np.nan)
        np.divide(np.sqrt(variance), scale, out=errors, where=scale > 0)
        degrees = self.degrees(amplified)
        hidden = amplified and any(entry.sampler != OTHER for entry in self.ledger)
        return Estimate(
            values,
            "rows",
            measure,
            "estimate",
            about=over_steps(self.about, self.step_size) if self.step_size else self.about,
            standard_errors=errors,
            conditions=(
                *_RELEASED,
                *self.chance(),
                *((condition_of_steps(self.step_size, self.doubt),) if self.step_size else ()),
                *_told(int(np.count_nonzero(~measured)), self.n),
                *(self._hidden() if hidden else ()),
                *self.ledger.conditions,
            ),
            degrees=degrees.cpu().numpy() if isinstance(degrees, Tensor) else degrees,
        )

    rows = records

    def _hidden(self) -> tuple[str, ...]:
        """Return the assumptions of the factor κ."""
        if not self.failure_probability:
            return (_HIDDEN,)
        may_fail = (
            "The factor κ of theorem 4 fails to hold for a record with a probability of at most "
            f"{self.failure_probability:.3g} over the steps of the run."
        )
        return _HIDDEN, may_fail

    def worst(self) -> float:
        """Return the largest dFIL of any record that was measured."""
        trace, _ = self.information()
        return math.sqrt(float(trace.max()) / self.unknowns) if self.unknowns else 0.0

    def rdp(self, order: float = 2.0) -> float:
        """Return the Rényi differential privacy of the run at an order."""
        return float(renyi(self.ledger, [order])[0])

    def privacy(
        self,
        delta: float | None = None,
        *,
        method: str = "rdp",
        orders: Sequence[float] | None = None,
    ) -> PrivacyGuarantee:
        """Return the (ε, δ)-differential privacy of the run.

        Parameters
        ----------
        delta
            δ; by default one over the number of records.
        method
            ``"rdp"``, or ``"pld"``: privacy loss distributions, tighter but slower.
        orders
            The Rényi orders to choose from; by default those of dp-accounting.
        """
        chosen = self.default_delta() if delta is None else delta
        return guarantee(self.ledger, chosen, method=method, orders=orders)

    def membership(self) -> RunMembership:
        """Return how well anybody can tell whether a record was in the data: a trade-off curve.

        It holds for every record, because the clip bounds the contribution of each to a step, and
        is refused without a clip; ``individual_privacy().membership(record)`` estimates one
        record's own.
        """
        return run_membership(self.ledger)

    def default_delta(self) -> float:
        """Return the default δ: one over the number of records."""
        if self.n == 1:
            raise InputError(
                "With a single record 1/n is not a usable δ; give delta, for instance 1e-5."
            )
        return 1 / self.n


def _told(unmeasured: int, n: int) -> tuple[str, ...]:
    if not unmeasured:
        return ()
    return (
        f"{unmeasured:,} of {n:,} records were in no batch and are not measured (nan), which says "
        "nothing about what the procedure gives away about them.",
    )

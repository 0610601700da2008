"""Stores the measurements of one run: sums for every record, and the ledger of steps."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seepage.errors import InputError
from seepage.nn.accounting.measured_share import MeasuredShare
from seepage.nn.accounting.radial_part import RadialSample
from seepage.nn.accounting.run_identity import Measurement, first_difference, identity
from seepage.nn.accounting.spectrum_sketch import SpectrumBracket, SpectrumSketch
from seepage.nn.accounting.survey import Survey
from seepage.nn.jacobian.finite_changes import condition_of_steps, over_steps
from seepage.nn.privacy.individual_loss import CONDITIONS, IndividualLoss
from seepage.nn.privacy.individual_privacy import IndividualCosts, IndividualPrivacy
from seepage.nn.privacy.run_membership import RunMembership, run_membership
from seepage.nn.privacy.run_privacy import (
    Ledger,
    PrivacyGuarantee,
    guarantee,
    own_relation,
    relation_of,
    renyi,
)
from seepage.nn.problem.views import sent_to
from seepage.nn.sampling.amplification import FailureBudget
from seepage.nn.sampling.samplers import OTHER, POISSON
from seepage.support.number_check import check_choice
from seepage.tables.names import counted

if TYPE_CHECKING:
    from seepage.nn.measures.estimate import Estimate

VERSION = 6  # of the format of a saved state
# Plain attributes of a run in its state; the largest of the processes' steps and unknowns count
_KEPT = ("about", "measurement", "unknowns", "step_size", "doubt", "finite_from", "unobserved")
LARGEST = ("unknowns", "step_size", "doubt", "finite_from")

_RELEASED = (
    "Only the noisy gradients of the steps, or results computed from them, are released.",
    "The figure is a Monte Carlo estimate; the bound on the information is the mean over runs "
    "(Guo et al. 2022, theorem 3).",
)
_HIDDEN = "Attackers do not learn which records were in a batch, or how many records it had."
_AS_PRINTED = (
    "The factor κ is that of algorithm 1 as printed in Guo et al. 2022. The ε of that algorithm "
    "does not bound the ratio of densities, as theorem 4 requires, so the figure reproduces the "
    "paper and is not an upper bound."
)
_OWN_BATCHES = (
    "The figure is for the batches that this run drew; its interval accounts only for the "
    "randomness of the probes. To include other batches, use survey_every=…; to include other "
    "runs, use merge_runs."
)
_SHARE = (
    "Each record was measured at one in {0} of the steps that it took part in, from a random "
    "start. The norms of its clipped gradients, known at every step, extend the sum to the other "
    "steps; its interval accounts for them by the variance between measured steps, of this record "
    "and of all records. A record that took part but has not been measured yet counts as a record "
    "in no batch. Gradient norms and the differential-privacy accounting cover every step."
)
_SAMPLED = (
    "The effect of a record on its clipping factor was measured at one in {0} steps, more at "
    "first, drawn at random, and predicted at all other steps; the interval accounts for the "
    "prediction error."
)
_REDRAWN = (
    "The figure and its interval are for batches redrawn at the iterates of this run; to include "
    "other runs, use merge_runs."
)


Numbers = NDArray[np.float64]


class RunReader(ABC):
    """The base class for results of one run or of the average of several runs."""

    n: int  # the number of training records
    ledger: Ledger  # the steps that were taken
    unknowns: int  # the number of unknowns of one record; zero until one is seen
    about: str  # the unknowns, in words
    step_size: float  # the size of the finite steps; zero for derivatives
    doubt: float  # how much the results for half and twice the step differ; zero if not tried
    finite_from: int  # the steps measured by derivatives, before a kink was found
    target_delta: float | None = None  # the δ of a privacy budget that the noise was chosen for
    subtracts = False  # whether estimates were subtracted, so that a total may be below zero

    @abstractmethod
    def information(self, amplified: bool = True) -> tuple[Tensor, Tensor]:
        """Return the trace of the information about each record, and its variance.

        ``amplified=False`` leaves out the amplification factor κ for hidden batches.
        """

    @abstractmethod
    def measured(self) -> Tensor:
        """Return which records were measured, ``(n,)``."""

    @abstractmethod
    def degrees(self, amplified: bool = True) -> float | Tensor:
        """Return the degrees of freedom of the variances; infinite if unknown."""

    @abstractmethod
    def chance(self) -> tuple[str, ...]:
        """Return, in words, the sources of randomness in the standard errors."""

    @property
    @abstractmethod
    def failure_probability(self) -> float:
        """The probability that the amplification factor κ fails over the steps taken so far.

        With ``amplification="theorem4"``, it is the part of ``delta`` spent so far. With
        ``"algorithm1"``, which has no guarantee, the probability is one. In all other cases, the
        probability is zero.
        """

    @property
    def steps(self) -> int:
        """The number of steps taken."""
        return self.ledger.steps

    def __repr__(self) -> str:
        steps, records = counted(self.steps, "step"), counted(self.n, "record")
        return f"<{type(self).__name__}: {steps} on {records}>"

    def records(self, measure: str | None = None, *, amplified: bool = True) -> Estimate:
        """Return the run's leakage about every record, with standard errors; also named ``rows()``.

        A record that was in no batch is not measured, and its leakage and standard error are NaN.
        With ``survey_every``, all records are measured.

        Parameters
        ----------
        measure
            Required: ``"dfil"`` for ``η̄ = sqrt(Tr I/d)`` (Guo et al. 2022, section 7.1), or
            ``"fil"`` for ``sqrt(Tr I)``, which is an upper bound on FIL ``η = sqrt(‖I‖₂)`` because
            the norm never exceeds the trace.
        amplified
            Whether to apply the amplification factor κ for hidden batches.
        """
        # Imported here, so that training needs only torch and numpy.
        from seepage.nn.measures.estimate import Estimate

        if measure is None:
            raise InputError(
                "Name the measure: 'dfil', the root mean square over a record's unknowns, or "
                "'fil', an upper bound on FIL from the same sums (for records with sketches, fil() "
                "gives a tighter bound)."
            )
        check_choice(measure, "measure", ("dfil", "fil"))
        self._refuse_if_filtered()
        trace, variance = (np.asarray(t.cpu()) for t in self.information(amplified))
        if not self.unknowns:
            raise InputError(
                "No record has been observed yet; first call observe(index, x, y) with the run's "
                "batches."
            )
        broken = np.flatnonzero(~np.isfinite(trace))
        if broken.size:
            raise InputError(
                f"The leakage is not finite for {counted(broken.size, 'record')} (the first is "
                f"record {broken[0]}), because a loss or gradient overflowed during the run. Clip "
                "the gradients, or use a smaller learning rate."
            )
        size = self.unknowns if measure == "dfil" else 1
        measured = np.asarray(self.measured().cpu())
        roots = _roots(trace, np.sqrt(variance), self.subtracts)
        values, errors = (np.where(measured, root / math.sqrt(size), np.nan) for root in roots)
        unseen: tuple[str, ...] = ()
        if not measured.all():
            unseen = (
                f"Records in no batch ({np.count_nonzero(~measured):,} of {self.n:,}) have no "
                "measured leakage (nan); the training procedure may still leak about such records.",
            )
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
                *self._of_finite_steps(),
                *unseen,
                *(self._of_hidden_batches() if hidden else ()),
                *self.ledger.conditions,
            ),
            degrees=degrees.cpu().numpy() if isinstance(degrees, Tensor) else degrees,
        )

    rows = records

    def _of_finite_steps(self) -> tuple[str, ...]:
        if not self.step_size and not self.doubt:
            return ()
        condition = condition_of_steps(self.step_size, self.doubt)
        if not self.finite_from:
            return (condition,)
        before = (
            f"Before a kink was found, {counted(self.finite_from, 'step was', 'steps were')} "
            "measured by derivatives."
        )
        return condition, before

    def _refuse_if_filtered(self) -> None:
        """Raise an error if records stopped once their budgets were spent.

        The step at which a record stops depends on the record. Two nearly equal records can stop at
        different steps, after which their releases differ by a whole gradient. Fisher information,
        a limit for small changes, is then infinite, even if the sums over one run are finite.
        """
        if self.ledger.filtered:
            raise InputError(
                "In a run with budget=, a record stops at a step that depends on the record "
                "itself, so the Fisher information about the record is infinite, and η, η̄ and "
                "PLIS are not bounds. Use trainer.promise(), or train without budget=."
            )

    def _of_hidden_batches(self) -> tuple[str, ...]:
        """Return the assumptions behind the factor κ."""
        if self.failure_probability == 1:
            return _HIDDEN, _AS_PRINTED
        if not self.failure_probability:
            return (_HIDDEN,)
        may_fail = (
            "For each record, the probability that the bound with the factor κ (Guo et al. 2022, "
            f"theorem 4) fails in some step of the run is at most {self.failure_probability:.3g}."
        )
        return _HIDDEN, may_fail

    def worst(self) -> float:
        """Return the largest dFIL of any measured record; NaN for a run with budgets."""
        if self.ledger.filtered:
            return math.nan
        if not self.unknowns:
            return 0.0
        trace, variance = (t.cpu().numpy() for t in self.information())
        roots, _ = _roots(trace, np.sqrt(variance), self.subtracts)
        return float(np.max(roots[self.measured().cpu().numpy()], initial=0.0)) / math.sqrt(
            self.unknowns
        )

    def rdp(self, order: float = 2.0, neighbours: str | None = None) -> float:
        """Return the run's Rényi DP at an order; ``neighbours`` is as for :meth:`privacy`."""
        return float(renyi(self.ledger, [order], neighbours)[0])

    def privacy(
        self,
        delta: float | None = None,
        *,
        method: str = "rdp",
        orders: Sequence[float] | None = None,
        neighbours: str | None = None,
        group: int = 1,
    ) -> PrivacyGuarantee:
        """Return the (ε, δ)-differential privacy of the run.

        Parameters
        ----------
        delta
            The probability δ, which should be far below 1/n for n records. The default is the
            trainer's ``target_delta``, or else 1/n if the number of records counts as public.
        method
            ``"rdp"``, or ``"pld"`` for privacy loss distributions, which are tighter but slower.
        orders
            The Rényi orders to choose from; by default those of dp-accounting.
        neighbours
            The neighbouring relation of ε. ``"add-or-remove"``, to add or remove one record, is the
            default if the sampling rate was declared. It raises an error if the rate follows from
            the number of records, as with a batch size. ``"replace"``, to replace one record, is
            the default otherwise. ``"zero-out"``, to replace one record by a record with zero
            gradient, is the relation of Opacus's ε for a given batch size.
        group
            The number of records that are added or removed together, such as all records of one
            person. Groups always use privacy loss distributions.
        """
        chosen = self.default_delta() if delta is None else delta
        return guarantee(
            self.ledger, chosen, method=method, orders=orders, neighbours=neighbours, group=group
        )

    def membership(self, neighbours: str | None = None) -> RunMembership:
        """Return the trade-off curve of membership inference for the run.

        The curve is valid for every record, because clipping bounds each record's contribution to a
        step; a run without clipping raises an error. ``individual_privacy().membership(record)``
        estimates the curve of one record. ``neighbours`` is as for :meth:`privacy`. If the number
        of records counts as public, the curve compares runs with a record and with another record
        in its place.
        """
        return run_membership(self.ledger, neighbours)

    def default_delta(self) -> float:
        """Return the default δ: the trainer's target, or 1/n if the number of records is public."""
        if self.target_delta is not None:
            return self.target_delta
        if len(self.ledger) and relation_of(self.ledger) == "add-or-remove":
            raise InputError(
                "Give delta, for instance 1e-6: the default of 1/n would reveal the number of "
                "records, which a declared sample_rate keeps secret."
            )
        if self.n == 1:
            raise InputError(
                "For a single record, 1/n is not a usable δ; give delta, for instance 1e-5."
            )
        return 1 / self.n


@dataclass
class TraceSums:
    """Sums of every record's trace estimates ``t`` over steps, each ``(n,)``."""

    kept: ClassVar[tuple[str, ...]] = ("total", "within", "squares")

    total: Tensor  # ``Σ t``
    within: Tensor  # ``Σ`` of the variance of ``t`` between the probes of a step
    squares: Tensor  # ``Σ t²``

    @classmethod
    def zeros(cls, n: int) -> TraceSums:
        """Return the sums before the first step."""
        return cls(*(torch.zeros(n, dtype=torch.float64) for _ in cls.kept))


class InformationSums:
    """The sums from which a run's leakage about each of ``n`` records is computed.

    The sums are over the steps in which a record took part, and ``uses`` counts these steps. Let
    ``t̂`` be the mean of a step's trace estimates and ``s`` the standard deviation of the noise.
    ``amplified`` contains the sums of ``κ t̂/s²``, whose total estimates ``Tr I`` or an upper bound
    on it, and ``plain`` the same sums with κ = 1. ``privacy_loss`` contains the sums of
    ``‖g̃‖²/s²``.

    With ``every`` above 1, only a share of each record's uses is measured (``measured_share.py``).
    """

    def __init__(self, n: int, every: int = 1) -> None:
        self.every = every
        self.kept = ("uses", "privacy_loss")
        self.share = MeasuredShare(n, every) if every > 1 else None
        self.uses = torch.zeros(n, dtype=torch.int64)
        self.privacy_loss = torch.zeros(n, dtype=torch.float64)
        self.amplified, self.plain = TraceSums.zeros(n), TraceSums.zeros(n)
        self._copy: tuple[Tensor, int, Tensor] | None = None  # of the uses, for the host

    @property
    def counted(self) -> Tensor:
        """The number of measured uses of each record."""
        return self.uses if self.share is None else self.share.counted

    def due(self, index: Tensor, seed: int) -> Tensor | None:
        """Return which records of a batch to measure, ``(B,)``; ``None`` if all."""
        if self.share is None:
            return None
        return self.share.due(index.cpu(), self._uses_on_host(), seed)

    def _uses_on_host(self) -> Tensor:
        """Return the uses in the host's memory, without waiting for an accelerator at every step.

        A copy is advanced with the uses. It is made anew once anything else has changed them.
        """
        uses, copied = self.uses, self._copy
        if not uses.is_cuda:
            return uses
        if copied is None or copied[0] is not uses or copied[1] != uses._version:
            self._copy = copied = (uses, uses._version, uses.cpu())
        return copied[2]

    def add(
        self,
        index: Tensor,
        traces: Tensor,
        factors: Tensor,
        lengths: Tensor,
        noise: float,
        due: Tensor | None = None,
    ) -> None:
        """Add a step for the records of a batch, each at most once.

        ``traces`` contains independent estimates of ``‖∂g̃/∂z‖_F²``, ``(B, probes)``; ``factors``
        contains each record's κ, and ``lengths`` its ``‖g̃‖``. ``noise`` is the standard deviation
        of the noise on the sum. Only the traces of the records that were ``due`` are used.
        """
        given, index = index, sent_to(index, self.uses.device)
        self.privacy_loss.index_add_(0, index, (lengths.to(torch.float64) / noise) ** 2)
        host = self._uses_on_host() if self.share is not None and self.uses.is_cuda else None
        self.uses.index_add_(0, index, torch.ones_like(index))
        if host is not None:
            host.index_add_(0, given.cpu(), torch.ones(len(given), dtype=torch.int64))
            self._copy = self.uses, self.uses._version, host
        traces = traces.to(torch.float64) / noise**2
        if self.share is not None:
            # Places are found where the mask is, so that no accelerator is waited for.
            due = torch.ones(len(index), dtype=torch.bool) if due is None else due
            places = sent_to(torch.nonzero(due).flatten(), index.device)
            traces = traces[places]
            self.share.add(index, traces.mean(1), factors, lengths, noise, places)
            index, factors = index[places], factors[places]
            if not len(index):
                return
        probes = traces.shape[1]
        mean = traces.mean(1)
        variance = traces.var(1) / probes if probes > 1 else torch.zeros_like(mean)
        for sums, factor in ((self.amplified, factors), (self.plain, torch.ones_like(factors))):
            sums.total.index_add_(0, index, factor * mean)
            sums.within.index_add_(0, index, factor**2 * variance)
            sums.squares.index_add_(0, index, (factor * mean) ** 2)

    def moments(self, probes: int, amplified: bool) -> tuple[Tensor, Tensor]:
        """Return the totals and their variances.

        With several probes per step, the variance is computed between probes. With a single probe,
        the variance is computed between the record's steps. It then includes true changes between
        steps and is therefore conservative; for a record in a single step, it is nan. A share of
        the steps has its own moments (:meth:`RatioSums.moments`).
        """
        if self.share is not None:
            return self._of_share(self.share, probes, amplified)[:2]
        sums = self.amplified if amplified else self.plain
        if probes > 1:
            return sums.total, sums.within
        count = self.uses.double()
        between = (sums.squares - sums.total**2 / count.clamp(min=1.0)).clamp(min=0.0)
        variance = count * between / (count - 1).clamp(min=1.0)  # N s²
        return sums.total, torch.where(count == 1, float("nan"), variance)

    def degrees(self, probes: int, amplified: bool) -> float | Tensor:
        """Return the degrees of freedom of the variances; infinite if every step is measured."""
        if self.share is None:
            return math.inf
        return self._of_share(self.share, probes, amplified)[2]

    def _of_share(
        self, share: MeasuredShare, probes: int, amplified: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        sums = self.amplified if amplified else self.plain
        ratios = share.amplified if amplified else share.plain
        return ratios.moments(sums.total, sums.within if probes > 1 else None, share.counted)


class MeasuredRun(RunReader):
    """The measurements of a run without its network, for reading, storing and joining runs.

    Parameters
    ----------
    n
        The number of records in the data set.
    probes
        The number of trace estimates per step.
    about
        A description of the unknowns.
    individual
        Whether the differential privacy of each record is stored.
    sketch
        Sketches of the information about some records, or ``None``.
    passes
        The survey with its passes over all records, or ``None``.
    measurement
        The identity of the measurement (:mod:`seepage.nn.accounting.run_identity`); ``None`` if it
        will be loaded with a state.
    measure_every
        Each record is measured at every ``measure_every``-th step in which it takes part.
    radial
        The clip's derivative at a sample of the steps, or ``None``.
    """

    def __init__(
        self,
        n: int,
        probes: int,
        about: str,
        *,
        individual: bool,
        sketch: SpectrumSketch | None,
        passes: Survey | None = None,
        measurement: Measurement | None = None,
        measure_every: int = 1,
        radial: RadialSample | None = None,
    ) -> None:
        self.n = n
        self.radial, self.subtracts = radial, radial is not None
        self.measure_every = measure_every
        self.probes = probes
        self.about = about
        self.measurement = None if measurement is None else dict(measurement)
        self.unknowns = 0
        self.step_size = 0.0
        self.doubt = 0.0  # how much the results for half and twice that size differ, if tried
        self.finite_from = 0
        self.unobserved = 0
        self.ledger = Ledger()
        self.sums = InformationSums(n, measure_every)
        self.individual = IndividualCosts(n) if individual else None
        self.sketch = sketch
        self.passes = passes

    def information(self, amplified: bool = True) -> tuple[Tensor, Tensor]:
        """Return the trace of the information about each record, and its variance.

        For a surveyed run, the trace is the mean over redrawn batches; otherwise it is the sum over
        the batches drawn.
        """
        if self.unobserved:
            raise InputError(
                f"{counted(self.unobserved, 'step was', 'steps were')} taken without observe(), so "
                "the leakage of the run is unknown; call observe(index, x, y) before every step."
            )
        if self.passes is not None:
            return self.passes.moments(self.steps, amplified)
        total, variance = self.sums.moments(self.probes, amplified)
        if self.radial is None:
            return total, variance
        less, more = self.radial.moments(amplified)
        return total - less, variance + more

    def measured(self) -> Tensor:
        """Return which records were measured, in a batch or in a survey's pass, ``(n,)``."""
        if self.passes is not None:
            any_pass = bool(self.passes.passes(self.steps))
            return torch.full_like(self.sums.uses, any_pass, dtype=torch.bool)
        return self.sums.counted > 0

    def degrees(self, amplified: bool = True) -> float | Tensor:
        """Return the degrees of freedom of the variances; infinite if unknown."""
        if self.passes is None:
            return self.sums.degrees(self.probes, amplified)
        return self.passes.degrees(self.steps, amplified)

    def chance(self) -> tuple[str, ...]:
        """Return, in words, the sources of randomness in the standard errors."""
        if self.passes is None:
            share = _SHARE.format(self.measure_every) if self.measure_every > 1 else None
            clip = None
            if self.radial is not None and not self.radial.needed:
                clip = _SAMPLED.format(self.radial.every)
            return _OWN_BATCHES, *(sentence for sentence in (share, clip) if sentence)
        count = sum(self.passes.passes(self.steps))
        beside = int(self.sums.uses.sum())
        cost = (
            f"The figure is based on {counted(count, 'pass', 'passes')} over all {self.n:,} "
            f"records. These are {count * self.n:,} measurements, in addition to the "
            f"{beside:,} in the batches."
        )
        return _REDRAWN, cost

    @property
    def failure_probability(self) -> float:
        """The probability that the amplification factor κ fails over the steps taken so far.

        With ``amplification="theorem4"``, it is the part of ``delta`` spent so far. With
        ``"algorithm1"``, which has no guarantee, the probability is one. In all other cases, the
        probability is zero.
        """
        facts = self.measurement or {}
        if facts.get("amplification") == "algorithm1":
            return 1.0  # nothing smaller is known
        if facts.get("amplification") != "theorem4":
            return 0.0
        return FailureBudget(facts["delta"], facts["announced steps"]).spent(self.steps)

    def fil(self) -> SpectrumBracket:
        """Return lower and upper bounds on FIL, ``sqrt(‖I‖₂)``, of the sketched records."""
        if self.sketch is None:
            raise InputError(
                "The run has no sketches; pass sketch=8 and sketch_records=[…] to the accountant."
            )
        self._refuse_if_filtered()
        return self.sketch.bracket().of_run(self.sums.uses > 0, self.ledger.conditions)

    def individual_loss(self) -> IndividualLoss:
        """Return the privacy loss of each record, as μ, ε and Rényi divergence.

        The loss is that to an adversary who knows the batches and all other records. Without
        clipping, the values are NaN.
        """
        conditions = (*CONDITIONS, *self.ledger.conditions)
        return IndividualLoss(self.sums.privacy_loss.cpu().numpy(), conditions)

    def individual_privacy(self) -> IndividualPrivacy:
        """Return the Rényi differential privacy of each record.

        No record's ε exceeds the ε of the whole run, which is valid for every record.
        """
        if self.individual is None:
            raise InputError(
                "The privacy of single records was not stored (individual=False); train with "
                "individual=True."
            )
        if self.ledger.filtered:
            raise InputError(
                "With budget=, a stopped record loses no more privacy, but the average cost over "
                "its batches ignores this. Use trainer.budgets_.filter.spent for each record's "
                "spent budget, or trainer.promise() for the guarantee for all records."
            )
        if any(math.isinf(entry.sensitivity) for entry in self.ledger):
            raise InputError(
                "Without clipping there is no differential privacy; train with a clip."
            )
        if any(entry.sampler != POISSON for entry in self.ledger):
            raise InputError(
                "The privacy of single records is available only for Poisson batches, because with "
                "other samplers a record is replaced by another record, whose gradient is unknown. "
                "Draw Poisson batches."
            )
        orders = self.individual.orders
        most = renyi(self.ledger, orders, own_relation(self.ledger))
        worst = torch.as_tensor(most, device=self.sums.uses.device)
        total, error = self.individual.totals(self.steps, self.sums.uses, worst)
        total = torch.fmin(total, worst)
        so_far = Ledger(tuple(self.ledger))
        return IndividualPrivacy(
            orders,
            total.cpu().numpy(),
            error.cpu().numpy(),
            partial(self.run_epsilon, so_far),
            so_far,
            self.individual.norms.cpu().numpy().copy(),
        )

    def run_epsilon(self, ledger: Ledger, delta: float) -> float:
        """Return the ε of a ledger's steps at δ, which is an upper bound on every record's ε."""
        return guarantee(ledger, delta, neighbours=own_relation(ledger)).epsilon

    def places(self) -> dict[str, tuple[Any, str]]:
        """Return the object and attribute of each stored tensor, by its name in a saved state.

        The tensors of several processes can be added, except those of the sketch.
        """
        owners: list[tuple[str, Any]] = [
            ("information.", self.sums),
            ("information.", self.sums.amplified),
            ("information.plain_", self.sums.plain),
            ("individual.", self.individual),
            ("sketch.", self.sketch),
        ]
        share = self.sums.share
        if share is not None:
            owners.append(("share.", share))
            owners.append(("share.amplified_", share.amplified))
            owners.append(("share.plain_", share.plain))
        if self.passes is not None:
            owners.append(("survey.amplified_", self.passes.amplified))
            owners.append(("survey.plain_", self.passes.plain))
        if self.radial is not None:
            owners.append(("radial.", self.radial))
            owners.append(("radial.amplified_", self.radial.amplified))
            owners.append(("radial.plain_", self.radial.plain))
        return {
            f"{prefix}{name}": (owner, name)
            for prefix, owner in owners
            if owner is not None
            for name in owner.kept
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return the stored tensors by name."""
        return {name: getattr(*place) for name, place in self.places().items()}

    def replace_sums(self, change: Callable[[str, Tensor], Tensor]) -> None:
        """Replace every stored tensor by a function of its name and value."""
        for name, (owner, attribute) in self.places().items():
            setattr(owner, attribute, change(name, getattr(owner, attribute)))

    def to(self, device: torch.device) -> None:
        """Move all sums to a device."""
        self.replace_sums(lambda _, tensor: tensor.to(device))

    def clear(self) -> None:
        """Set all sums to zero; the ledger of steps is unchanged."""
        self.replace_sums(lambda _, tensor: torch.zeros_like(tensor))

    def state_dict(self) -> dict[str, Any]:
        """Return all tensors by name, and everything else as text under ``"facts"``.

        The state can be stored without pickle: safetensors stores the tensors and the text.
        """
        state: dict[str, Any] = {
            name: tensor.detach().cpu().clone() for name, tensor in self.tensors().items()
        }
        state["facts"] = json.dumps(self.facts())
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state that :meth:`state_dict` returned for a run with the same settings."""
        facts = read_facts(state)
        mine = self.facts()
        if self.measurement is None:
            mine["measurement"] = facts["measurement"]
        names = ("records", "probes", "sketched", "survey_every", "measure_every")
        theirs, own = identity(facts, names), identity(mine, names)
        name = first_difference(theirs, own)
        if name is not None:
            raise InputError(
                f"The state belongs to a run with {name} = {theirs.get(name)!r}, not "
                f"{own.get(name)!r}; resume with the same settings."
            )
        wanted = self.tensors()
        odd = sorted((set(state) - {"facts"}) ^ set(wanted))
        if odd:
            raise InputError(
                f"The state and this accountant store different quantities ({odd[0]!r}); give the "
                "accountant the settings of the stored run."
            )
        for name, tensor in wanted.items():
            if (
                state[name].shape[:3] != tensor.shape[:3]
            ):  # a sketch learns its width from the first step
                raise InputError(
                    f"{name} of the state has the shape {tuple(state[name].shape)}, not "
                    f"{tuple(tensor.shape)}; load the state of a run with the same settings."
                )
        self.replace_sums(lambda name, tensor: state[name].to(tensor.device, copy=True))
        if self.passes is not None:
            self.passes.follow(facts["survey_plan"])
        for name in _KEPT:
            setattr(self, name, facts[name])
        self.ledger = Ledger.from_json(facts["ledger"])

    def absorb(self, share: MeasuredRun) -> None:
        """Add another process's share of the same run."""
        if self.sketch is not None and share.sketch is not None:
            self.sketch.absorb(share.sketch)
        theirs = share.tensors()
        for name, tensor in self.tensors().items():
            if not name.startswith("sketch."):
                tensor += theirs[name].to(tensor.device)

    def facts(self) -> dict[str, Any]:
        """Return everything except the sums, in a form that can be stored in a file."""
        return {
            "version": VERSION,
            "records": self.n,
            "probes": self.probes,
            "sketched": None if self.sketch is None else self.sketch.chosen.tolist(),
            "survey_every": None if self.passes is None else self.passes.every,
            "measure_every": self.measure_every,
            "survey_plan": None if self.passes is None else self.passes.plan(),
            "ledger": self.ledger.to_json(),
            **{name: getattr(self, name) for name in _KEPT},
        }


def _roots(totals: Numbers, errors: Numbers, subtracts: bool) -> tuple[Numbers, Numbers]:
    """Return ``√T`` for every total ``T``, and its standard error, given that of ``T``, ``s``.

    The error is ``s/(2√T)``. If parts were subtracted, ``T`` is nearly normal and may be near or
    below zero. The result is then ``√(T + s) − √T`` with ``T`` at least ``s``: a record that took
    part is not shown as zero, and the upper end of the 95 % interval is at least
    ``√(T + 1.96 s)``. A record with ``T = s = 0`` does not leak.
    """
    if subtracts:
        totals = np.where(np.isnan(errors) & (totals <= 0), np.nan, np.fmax(totals, errors))
        return np.sqrt(totals), np.sqrt(totals + errors) - np.sqrt(totals)
    roots = np.sqrt(np.where(totals > 0, totals, np.fmax(errors, 0.0)))
    return roots, np.divide(errors, 2 * roots, out=np.zeros_like(roots), where=roots > 0)


def read_facts(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a stored state; raise an error if its version is not supported."""
    try:
        facts = json.loads(state["facts"])
        version = facts["version"]
    except (KeyError, TypeError, ValueError):
        raise InputError(
            "This is not the state of an accountant; load the output of state_dict(), including "
            "its text under 'facts'."
        ) from None
    if version != VERSION:
        raise InputError(
            f"The state has the format {version!r}, not {VERSION}: a state from another version of "
            "seepage does not fully identify a run; start a new run."
        )
    # A share could not be measured at first, nor could kinks be found later in a run.
    return {"measure_every": 1, "finite_from": 0} | dict(facts)

"""Joins measured runs: adds the shares of one run, and averages repeated runs.

In data-parallel training, every process accounts for its part of the batches. The sums of all
processes are added at the end of training; until then, the processes exchange no sums. Runs of one
training procedure with different seeds are averaged instead, because the expectation over runs
bounds the information.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from seepage.errors import InputError
from seepage.nn.accounting.measured_run import LARGEST, MeasuredRun, RunReader
from seepage.nn.accounting.processes import own_part, process_rank, reduced, world_size
from seepage.nn.accounting.radial_part import RadialSample
from seepage.nn.accounting.run_identity import first_difference, identity, ledger_difference
from seepage.nn.accounting.spectrum_sketch import SpectrumBracket, SpectrumSketch
from seepage.nn.privacy.run_privacy import Ledger


def join_shares(shares: Sequence[MeasuredRun]) -> MeasuredRun:
    """Return the whole run, given the share that each process observed.

    In data-parallel training, every process observes its own part of each batch. The sums of each
    record are then added over the processes. All shares must contain the same steps.
    """
    if not shares:
        raise InputError("There are no shares to join; give one share per process.")
    _check_alike(shares)
    # A share without records does not know what a model calls its own input.
    first = next((share for share in shares if share.unknowns), shares[0])
    whole = MeasuredRun(
        first.n,
        first.probes,
        first.about,
        individual=first.individual is not None,
        sketch=None if first.sketch is None else first.sketch.emptied(),
        passes=None if first.passes is None else first.passes.emptied(),
        measurement=first.measurement,
        measure_every=first.measure_every,
        radial=None if first.radial is None else RadialSample(first.n),
    )
    vars(whole).update(_largest(shares))
    whole.ledger = Ledger(tuple(first.ledger))
    whole.unobserved = max(share.unobserved for share in shares)
    for share in shares:
        whole.absorb(share)
    return whole


def gather_shares(mine: MeasuredRun, group: dist.ProcessGroup | None = None) -> MeasuredRun:
    """Return the joint measured run of all processes, which is the same in every process.

    Every process of the group must call this function. The shares remain unchanged, so training can
    continue, and the shares can be gathered again.
    """
    whole = join_shares([mine])
    if world_size() == 1:
        return whole
    _check_steps(whole, group)
    known = torch.tensor([whole.unknowns, whole.step_size, whole.doubt], dtype=torch.float64)
    unknowns, *steps = reduced(known, dist.ReduceOp.MAX, group).tolist()
    whole.unknowns, (whole.step_size, whole.doubt) = int(unknowns), steps
    own, whole.sketch = whole.sketch, None  # sketches are not sums: they are added one by one
    whole.replace_sums(lambda _, tensor: reduced(tensor, dist.ReduceOp.SUM, group))
    if own is not None:
        whole.sketch = _gathered(own, group)
    return whole


def whole_state(mine: MeasuredRun) -> dict[str, Any]:
    """Return the state of the whole run, to store or load it; every process must call this."""
    if world_size() == 1:
        return mine.state_dict()
    whole = gather_shares(mine)
    # A process that has seen no record yet does not know these.
    mine.unknowns, mine.step_size, mine.doubt = whole.unknowns, whole.step_size, whole.doubt
    sums = {name: tensor for name, tensor in whole.state_dict().items() if name != "facts"}
    return mine.state_dict() | sums


def keep_one_share(whole: MeasuredRun) -> None:
    """Keep the sums of a whole run in the first process only, so that they are counted once.

    A survey compares two passes and is not a plain sum, so every process keeps the survey results
    of its own records.
    """
    passes, whole.passes = whole.passes, None
    if process_rank() > 0:
        whole.clear()
    whole.passes = passes
    if passes is not None:
        passes.keep(own_part(torch.arange(whole.n)))


def _check_steps(record: MeasuredRun, group: dist.ProcessGroup | None) -> None:
    steps = torch.tensor([record.steps, -record.steps])
    most = reduced(steps, dist.ReduceOp.MAX, group)
    if int(most[0]) != -int(most[1]):
        raise InputError(
            f"The processes took between {-int(most[1])} and {int(most[0])} steps; call observe() "
            "in every process with its part of every batch, even an empty one."
        )


def _gathered(sketch: SpectrumSketch, group: dist.ProcessGroup | None) -> SpectrumSketch:
    """Return the sum of all processes' sketches, which are received one after another."""
    width = int(reduced(torch.tensor(sketch.rows.shape[3]), dist.ReduceOp.MAX, group))
    total = sketch.emptied()
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    for sender in range(ranks):
        share = sketch.emptied()
        # In float64 throughout, since a process that saw no record does not know their type.
        share.rows = torch.zeros(*sketch.rows.shape[:3], width, dtype=torch.float64)
        if sender == rank and sketch.rows.shape[3]:
            share.rows, share.lost = sketch.rows.double().cpu(), sketch.lost.cpu().clone()
        share.rows = reduced(share.rows, dist.ReduceOp.SUM, group)
        share.lost = reduced(share.lost, dist.ReduceOp.SUM, group)
        total.absorb(share)
    return total


class MergedRuns(RunReader):
    """The average of several runs with different seeds.

    The information in one released model is bounded by the *expected* sum of the information in a
    run's steps (Guo et al. 2022, theorem 3 and equation 4). A single run is one sample of that sum.
    The standard errors are for the mean over runs and account for all sources of randomness:
    batches, noise, initial parameters and probes.

    Like the guarantee of differential privacy, the result applies to the release of only *one* of
    the models. Individual privacy losses are stored separately for each run, because their average
    is not a guarantee.
    """

    def __init__(self, runs: Sequence[MeasuredRun]) -> None:
        if len(runs) < 2:
            raise InputError(f"An average requires at least two runs, not {len(runs)}.")
        _check_alike(runs)
        self.runs = tuple(runs)
        first = next((run for run in runs if run.unknowns), runs[0])
        self.n, self.ledger, self.about = first.n, first.ledger, first.about
        self.subtracts = any(run.subtracts for run in runs)
        vars(self).update(_largest(runs))

    def information(self, amplified: bool = True) -> tuple[Tensor, Tensor]:
        """Return the mean of each record's trace over runs, and the variance of that mean."""
        every = torch.stack([run.information(amplified)[0].cpu() for run in self.runs])
        return every.mean(0), every.var(0) / len(self.runs)

    def measured(self) -> Tensor:
        """Return which records were measured in at least one run."""
        return torch.stack([run.measured().cpu() for run in self.runs]).any(0)

    def degrees(self, amplified: bool = True) -> float:
        """Return the degrees of freedom of variances between runs: the number of runs minus one."""
        return len(self.runs) - 1

    def chance(self) -> tuple[str, ...]:
        """Return, in words, the sources of randomness in the standard errors."""
        return (
            "The figure is the mean over several runs; its interval accounts for the randomness of "
            "the runs and of the probes.",
        )

    @property
    def failure_probability(self) -> float:
        """The probability that the factor κ fails in one run; it is the same for all runs."""
        return self.runs[0].failure_probability

    def fil(self) -> SpectrumBracket:
        """Return lower and upper bounds on FIL, ``sqrt(‖mean of I‖₂)``, of the sketched records.

        ``records("fil")`` needs no sketches and gives an upper bound for all records.
        """
        kept = [run.sketch for run in self.runs if run.sketch is not None]
        if not kept:
            raise InputError(
                "The runs have no sketches; pass sketch=8 and sketch_records=[…] to the "
                "accountants."
            )
        mean = kept[0].emptied()
        for sketch in kept:
            mean.absorb(sketch, 1 / len(kept))
        drawn = torch.stack([run.sums.uses.cpu() for run in self.runs]).sum(0) > 0
        return mean.bracket().of_run(drawn, self.ledger.conditions)


def merge_runs(runs: Sequence[MeasuredRun]) -> MergedRuns:
    """Return the average of several measured runs of one training procedure.

    Examples
    --------
    >>> import torch
    >>> import seepage as sp
    >>> def run(seed):
    ...     torch.manual_seed(seed)
    ...     net = torch.nn.Linear(3, 2)
    ...     x, y = torch.randn(8, 3), torch.randint(2, (8,))
    ...     accountant = sp.nn.FisherAccountant(
    ...         net, "cross_entropy", n=8, sample_rate=1.0, noise_multiplier=1.0, seed=seed
    ...     )
    ...     accountant.observe(range(8), x, y)
    ...     return accountant
    >>> sp.nn.merge_runs([run(0), run(1)]).records("dfil").shape
    (8,)
    """
    return MergedRuns(runs)


def _largest(runs: Sequence[MeasuredRun]) -> dict[str, Any]:
    """Return the largest value over the runs of each fact in ``LARGEST``."""
    return {name: max(getattr(run, name) for run in runs) for name in LARGEST}


def _check_alike(runs: Sequence[MeasuredRun]) -> None:
    """Raise an error unless the measured runs have the same settings and the same steps."""
    if len({id(run) for run in runs}) < len(runs):
        raise InputError("The same run is given twice; give different runs.")
    for other in runs[1:]:
        _check_pair(runs[0], other)
    # A run that saw only empty batches does not know the number of unknowns.
    sizes = sorted({run.unknowns for run in runs} - {0})
    if len(sizes) > 1:
        raise InputError(
            f"The runs have records with {sizes[0]} and {sizes[1]} unknowns; measure all runs with "
            "the same view."
        )
    steps = sorted({run.step_size for run in runs if run.unknowns})
    if len(steps) > 1:
        raise InputError(
            f"The runs used finite steps of {steps[0]:g} and {steps[1]:g}, which follow from their "
            f"first batches; give all runs the same scale, for instance scale={steps[1]:g}."
        )


def _check_pair(first: MeasuredRun, other: MeasuredRun) -> None:
    names = ("records", "probes")
    mine, theirs = (identity(run.facts(), names) for run in (first, other))
    name = first_difference(mine, theirs)
    if name is not None:
        raise InputError(
            f"The runs differ in {name}: {mine.get(name)!r} and {theirs.get(name)!r}; use the same "
            "setting for all runs."
        )
    difference = ledger_difference(first.ledger, other.ledger)
    if difference is not None:
        raise InputError(
            f"The runs took different steps: {difference}; give all runs the same settings and "
            "number of steps."
        )
    if list(first.places()) != list(other.places()):
        raise InputError(
            "Only some of the runs stored sketches or individual privacy; use the same settings "
            "for all runs."
        )

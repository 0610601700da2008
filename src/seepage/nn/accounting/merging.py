"""Several runs of one training procedure, averaged: the expectation that bounds the information."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seepage.errors import InputError
from seepage.nn.accounting.accounted import Accounted
from seepage.nn.accounting.run_record import RunRecord, check_alike
from seepage.nn.accounting.spectrum_sketch import SpectrumBracket, SpectrumSketch


class MergedRuns(Accounted):
    """The average of several runs with different seeds.

    The information that one released model carries is bounded by the *expectation* of the sum of a
    run's informations (paper 004, theorem 3 and equation 4); a single run gives one draw of it. The
    standard errors are those of the mean over runs and hold all sources of chance: batches, noise,
    initial parameters and probes.

    This is about releasing *one* of the models. The privacy that is told, too, is that of one run.
    What single records lose of it is told by each run alone: its average promises nothing.
    """

    def __init__(self, runs: Sequence[RunRecord]) -> None:
        if len(runs) < 2:
            raise InputError(f"An average needs at least two runs, not {len(runs)}.")
        check_alike(runs)
        self.runs = tuple(runs)
        self.records = runs[0].records
        self.ledger = runs[0].ledger
        self.unknowns = max(run.unknowns for run in runs)  # zero where all batches were empty
        self.about = runs[0].about

    def information(self, amplified: bool = True) -> tuple[Tensor, Tensor]:
        """Return the mean over runs of each record's trace, and the variance of that mean."""
        every = torch.stack([run.information(amplified)[0].cpu() for run in self.runs])
        return every.mean(0), every.var(0) / len(self.runs)

    @property
    def failure_probability(self) -> float:
        """The probability with which the factor κ may fail in one run; all spend the same."""
        return self.runs[0].failure_probability

    def fil(self) -> SpectrumBracket:
        """Return FIL of the sketched records, ``sqrt(‖mean of I‖₂)``, between two bounds.

        For all records, ``rows("fil")`` is an upper bound that needs no sketch.
        """
        kept = [run.sketch for run in self.runs if run.sketch is not None]
        if not kept:
            raise InputError(
                "No sketches were kept; give sketch=8 and sketch_records=[…] to the accountants."
            )
        mean = SpectrumSketch(kept[0].chosen.tolist(), kept[0].rank, self.records)
        for sketch in kept:
            mean.absorb(sketch, 1 / len(kept))
        return mean.bracket()


def merge_runs(runs: Sequence[RunRecord]) -> MergedRuns:
    """Average the accountants of several runs of one training procedure.

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
    >>> sp.nn.merge_runs([run(0), run(1)]).rows().shape
    (8,)
    """
    return MergedRuns(runs)

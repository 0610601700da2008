"""Beyond Guo et al. 2022: private SGD that weights records by their leakage so far, as IRFIL does.

IRFIL (Hannun et al. 2021) reweights the records of a linear model until all leak the same. Here the
clipped gradient of a record is multiplied by ``w = min(1, leakage so far, on average/its own)``:
records that have leaked more than others contribute less from then on. No clipped gradient becomes
longer, so the noise protects as before. A step's leakage falls with ``w²``; the weights count as
constants, as in IRFIL.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reproduction.drawing import Figure, draw_figure, power_ticks
from reproduction.outcome import Outcome, Quantity
from reproduction.private_sgd.ensemble import EnsembleStep
from reproduction.private_sgd.run import ImageTensors, Run, load_images
from reproduction.private_sgd.settings import Grid, Hyperparameters, find_grid
from seepage.auditing.report.figures import BLUE, VERMILLION
from seepage.auditing.report.words import number
from seepage.support.chunks import progress

RECORDS, BATCH, STEPS, RUNS = 3_000, 100, 300, 2
NOISES = (0.5, 1.0)
RATE, THRESHOLD = 0.1, 4.0
KINDS = ("plain", "weighted")
_TOP = 100  # one record in a hundred counts as most exposed
_SETTING = (
    f"The authors' MNIST network on {RECORDS:,} images, Poisson batches of {BATCH}, {STEPS} steps, "
    f"ρ = {RATE:g}, C = {THRESHOLD:g}, averages of {RUNS} runs with a common initialisation. "
    "Weighted (not in the paper): a record's clipped gradient is multiplied by the mean dFIL² of "
    "all records so far over its own dFIL², capped at one. The dFIL treats the weights as "
    "constants and takes κ = 1. In every step, one random probe is for the weights and another for "
    "the reported dFIL."
)


class EvenRun(Run):
    """A run of networks with the same start, some of which weight records by their leakage.

    Parameters
    ----------
    grid, images, seed
        As for :class:`~reproduction.private_sgd.run.Run`; all networks run together.
    weighted
        Whether each network weights records.
    """

    accounts = (*Run.accounts, "steering")

    def __init__(
        self, grid: Grid, images: ImageTensors, seed: int, weighted: tuple[bool, ...]
    ) -> None:
        super().__init__(grid, images, seed, probes=2)
        (networks,) = self.networks
        networks.parameters[1:] = networks.parameters[0]
        self._weighted = torch.tensor(weighted, device=self.device)[:, None]

    def weighed(self, index: Tensor, counted: Tensor) -> Tensor:
        """Return the weights of a batch: smaller for records that have leaked more than others."""
        paid = self.sums["steering"]
        fair = paid.mean(1, keepdim=True) / paid[:, index]
        weights = fair.nan_to_num(1.0).clamp(max=1.0).to(counted.dtype)
        self._weights = torch.where(self._weighted, weights, 1.0)
        return counted * self._weights

    def account(self, index: Tensor, found: EnsembleStep, standing: Tensor) -> None:
        """Add the step to the sums, one probe to those that steer and one to those reported."""
        lengths, traces = found.lengths * self._weights, found.traces * self._weights**2
        self.sums["steering"].index_add_(1, index, self.shares(traces[:1], standing))
        super().account(index, replace(found, lengths=lengths, traces=traces[1:]), standing)


@dataclass(frozen=True, eq=False)
class TrainingCost:
    """The outcome of one kind of training at one noise level.

    Parameters
    ----------
    kind, noise
        Plain or weighted; the noise multiplier.
    accuracy
        On the test images, in percent.
    dfil
        η̄ of every record.
    """

    kind: str
    noise: float
    accuracy: float
    dfil: NDArray[np.float64]

    @property
    def name(self) -> str:
        """The prefix of its numbers' names."""
        return f"{self.noise_in_words}, {self.kind}"

    @property
    def noise_in_words(self) -> str:
        """The noise multiplier in words."""
        return f"σ = {self.noise:g}"

    @property
    def largest(self) -> float:
        """The η̄ of the most exposed record."""
        return float(self.dfil.max())

    @property
    def unequal(self) -> float:
        """The largest η̄ over the median."""
        return self.largest / float(np.median(self.dfil))

    def quantities(self) -> list[Quantity]:
        """Return its numbers."""
        squares = np.sort(self.dfil**2)
        top = squares[-max(1, len(squares) // _TOP) :].sum() / squares.sum()
        return [
            Quantity(f"{self.name}: test accuracy in percent", self.accuracy),
            Quantity(f"{self.name}: largest dFIL", self.largest),
            Quantity(f"{self.name}: median dFIL", float(np.median(self.dfil))),
            Quantity(f"{self.name}: largest over median dFIL", self.unequal),
            Quantity(f"{self.name}: share of all dFIL² that one record in 100 has", float(top)),
        ]


def reproduce(quick: bool) -> Outcome:
    """Train with and without weights at two noises, and compare."""
    grid = find_grid("mnist-as-run")
    images = load_images(grid)
    found = train(grid, images, 400, 12, 1) if quick else train(grid, images, RECORDS, STEPS, RUNS)
    quantities = tuple(q for one in found for q in one.quantities())
    return Outcome(_SETTING, quantities, _seen(found), _draw(found))


def train(
    grid: Grid, images: ImageTensors, records: int, steps: int, runs: int
) -> list[TrainingCost]:
    """Return both kinds of training at every noise, on the first images."""
    cases = list(product(NOISES, KINDS))
    settings = tuple(Hyperparameters(noise, RATE, THRESHOLD) for noise, _ in cases)
    grid = replace(grid, settings=settings, batch_size=BATCH)
    few = ImageTensors(images.X[:records], images.y[:records], images.X_test, images.y_test)
    weighted = tuple(kind == "weighted" for _, kind in cases)
    accuracies, sums = np.zeros(len(cases)), np.zeros((len(cases), records))
    with torch.inference_mode():
        for seed in range(runs):
            run = EvenRun(grid, few, seed, weighted)
            for _ in progress(range(steps), f"steps of run {seed + 1}"):
                run.advance()
            accuracies += 100 * np.array(run.accuracies()) / runs
            sums += run.sums["plain"].numpy() / runs
    dfil = np.sqrt(sums / few.X[0].numel())
    return [
        TrainingCost(kind, noise, float(accuracies[k]), dfil[k])
        for k, (noise, kind) in enumerate(cases)
    ]


def _seen(found: list[TrainingCost]) -> str:
    plain, even, louder, _ = found
    evened = even.unequal < plain.unequal
    verdict = "equalise the leakage" if evened else "do not equalise the leakage"
    return (
        f"Weights {verdict}: at {plain.noise_in_words} the largest dFIL is {plain.unequal:.1f} "
        f"times the median without weights and {even.unequal:.1f} times with weights. Weights "
        f"change the largest dFIL from {number(plain.largest)} to {number(even.largest)} and the "
        f"accuracy from {plain.accuracy:.1f} to {even.accuracy:.1f} %. With "
        f"{louder.noise_in_words} instead of weights, the largest dFIL is "
        f"{number(louder.largest)} and the accuracy {louder.accuracy:.1f} %"
        f"{_against(even, louder)}."
    )


def _against(even: TrainingCost, louder: TrainingCost) -> str:
    """Compare weights with more noise, if one of them is better at both."""
    if louder.largest <= even.largest and louder.accuracy >= even.accuracy:
        return ": for the most exposed record, noise is the better remedy"
    if even.largest <= louder.largest and even.accuracy >= louder.accuracy:
        return ": weights are the better remedy"
    return ""


def _draw(found: list[TrainingCost]) -> Figure:
    def draw(canvas: Any) -> None:
        left, right = canvas.subplots(1, 2)
        for kind, colour in zip(KINDS, (BLUE, VERMILLION), strict=True):
            own = [one for one in found if one.kind == kind]
            left.plot(
                [one.largest for one in own],
                [one.accuracy for one in own],
                color=colour,
                marker="o",
                lw=2,
                label=kind,
            )
            least = own[0]
            right.plot(
                np.sort(least.dfil)[::-1],
                (np.arange(len(least.dfil)) + 1) / len(least.dfil),
                color=colour,
                lw=2,
                label=least.name,
            )
        left.set(xlabel="largest dFIL η̄ of a record", ylabel="test accuracy, percent")
        left.legend(loc="lower right")
        right.set(xscale="log", yscale="log", xlabel="dFIL η̄", ylabel="share of records above")
        right.legend(loc="lower left")
        power_ticks(right.xaxis)
        power_ticks(right.yaxis)

    alternative = "Accuracy against the largest dFIL, plain and weighted, and its spread. " + (
        "; ".join(
            f"{one.name}: {one.accuracy:.1f} percent at {number(one.largest)}" for one in found
        )
    )
    return draw_figure("bounds-weighted-sgd", alternative, draw, (11, 4.2))

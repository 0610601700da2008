"""Beyond paper 004: private SGD that weighs records by what they have leaked, as IRFIL does.

IRFIL (001) reweights the records of a linear model until all leak the same. Here the clipped
gradient of a record is multiplied by ``w = min(1, leakage so far, on average/its own)``: who has
given away more than others contributes less from then on. No clipped gradient becomes longer, so
the noise protects as before. A step's leakage falls with ``w²``; the weights are counted as
constants, as IRFIL counts them.
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

RECORDS, BATCH, STEPS = 3_000, 100, 300
NOISES = (0.5, 0.7, 1.0)
RATE, THRESHOLD = 0.1, 4.0
KINDS = ("plain", "weighted")
_TOP = 100  # of a hundred records one is among those that leak most
_SETTING = (
    f"The network of 004's code for MNIST on {RECORDS:,} of its images, Poisson batches of "
    f"{BATCH}, {STEPS} steps, ρ = {RATE:g}, C = {THRESHOLD:g}, σ from {NOISES[0]:g} to "
    f"{NOISES[-1]:g}, one run. Weighted: a record's clipped gradient is multiplied by the records' "
    "mean dFIL² so far over its own, and by one at most. dFIL counts the weights as constants and "
    "takes κ = 1; one random probe a step steers the weights and another measures, so that what is "
    "measured is not what was steered by. The paper has no such weights."
)


class EvenRun(Run):
    """A run in which some of the networks weigh records by what they have leaked.

    Parameters
    ----------
    grid, images, seed
        As for :class:`~reproduction.private_sgd.run.Run`; all networks go together.
    weighted
        Of every network, whether it weighs records.
    """

    accounts = (*Run.accounts, "steering")

    def __init__(
        self, grid: Grid, images: ImageTensors, seed: int, weighted: tuple[bool, ...]
    ) -> None:
        super().__init__(grid, images, seed, probes=2)
        self._weighted = torch.tensor(weighted, device=self.device)[:, None]

    def weighed(self, index: Tensor, counted: Tensor) -> Tensor:
        """Return the weights of a batch: less for those who have leaked more than others."""
        paid = self.sums["steering"]
        fair = paid.mean(1, keepdim=True) / paid[:, index]
        weights = fair.nan_to_num(1.0).clamp(max=1.0).to(counted.dtype)
        self._weights = torch.where(self._weighted, weights, 1.0)
        return counted * self._weights

    def account(self, index: Tensor, found: EnsembleStep, standing: Tensor) -> None:
        """Add the step to the sums, one probe to those that steer and one to those told."""
        lengths, traces = found.lengths * self._weights, found.traces * self._weights**2
        self.sums["steering"].index_add_(1, index, self.shares(traces[:1], standing))
        super().account(index, replace(found, lengths=lengths, traces=traces[1:]), standing)


@dataclass(frozen=True, eq=False)
class TrainingCost:
    """What came of one kind of training at one noise.

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
        """What its numbers are called."""
        return f"σ = {self.noise:g}, {self.kind}"

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
    """Train with and without weights at several noises, and compare."""
    grid = find_grid("mnist-as-run")
    images = load_images(grid)
    found = train(grid, images, 400, 12) if quick else train(grid, images, RECORDS, STEPS)
    quantities = [q for one in found for q in one.quantities()]
    gains = [compared(found, noise) for noise in NOISES]
    quantities += [
        Quantity(f"σ = {noise:g}: accuracy at equal largest dFIL, weighted less plain", gain)
        for noise, gain in zip(NOISES, gains, strict=True)
        if gain is not None
    ]
    return Outcome(_SETTING, tuple(quantities), _seen(found, gains), _draw(found))


def train(grid: Grid, images: ImageTensors, records: int, steps: int) -> list[TrainingCost]:
    """Return both kinds of training at every noise, on the first images."""
    cases = list(product(NOISES, KINDS))
    settings = tuple(Hyperparameters(noise, RATE, THRESHOLD) for noise, _ in cases)
    grid = replace(grid, settings=settings, batch_size=BATCH)
    few = ImageTensors(images.X[:records], images.y[:records], images.X_test, images.y_test)
    with torch.inference_mode():
        run = EvenRun(grid, few, 0, tuple(kind == "weighted" for _, kind in cases))
        for _ in progress(range(steps), "steps"):
            run.advance()
        accuracies = run.accuracies()
    dfil = np.sqrt(run.sums["plain"].numpy() / few.X[0].numel())
    return [
        TrainingCost(kind, noise, 100 * accuracies[k], dfil[k])
        for k, (noise, kind) in enumerate(cases)
    ]


def compared(found: list[TrainingCost], noise: float) -> float | None:
    """Return how much more accurate weighted training is than plain at the same largest dFIL.

    Between the noises of plain training its accuracy is taken to be linear in the logarithm of the
    largest dFIL; beyond them nothing is said.
    """
    plain = sorted((one for one in found if one.kind == "plain"), key=lambda one: one.largest)
    (mine,) = (one for one in found if (one.kind, one.noise) == ("weighted", noise))
    if not plain[0].largest <= mine.largest <= plain[-1].largest:
        return None
    places = np.log([one.largest for one in plain])
    return mine.accuracy - float(
        np.interp(np.log(mine.largest), places, [one.accuracy for one in plain])
    )


def _seen(found: list[TrainingCost], gains: list[float | None]) -> str:
    pairs = [[one for one in found if one.noise == noise] for noise in NOISES]
    told = [
        f"σ = {plain.noise:g}: largest dFIL {number(plain.largest)} to {number(even.largest)}, "
        f"{plain.unequal:.1f} to {even.unequal:.1f} times the median, accuracy "
        f"{plain.accuracy:.1f} to {even.accuracy:.1f} %"
        for plain, even in pairs
    ]
    evened = all(even.unequal < plain.unequal for plain, even in pairs)
    verdict = "even out who pays" if evened else "do not even out who pays at every noise"
    known = [gain for gain in gains if gain is not None]
    beside = "what noise alone would cost for that largest dFIL was not measured"
    if known:
        ends = " to ".join(
            f"{gain:+.1f}".replace("-", "−") for gain in sorted({min(known), max(known)})
        )
        beside = f"beside noise alone at that same largest dFIL, it is {ends} points of accuracy"
    return f"Weights {verdict}. From plain to weighted, {'; '.join(told)}; {beside}."


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
            middle = own[len(own) // 2]
            right.plot(
                np.sort(middle.dfil)[::-1],
                (np.arange(len(middle.dfil)) + 1) / len(middle.dfil),
                color=colour,
                lw=2,
                label=middle.name,
            )
        left.set(xscale="log", xlabel="largest dFIL η̄ of a record", ylabel="test accuracy, percent")
        left.legend(loc="lower right")
        right.set(xscale="log", yscale="log", xlabel="dFIL η̄", ylabel="share of records above")
        right.legend(loc="lower left")
        power_ticks(right.yaxis)

    alternative = "Accuracy against the largest dFIL, plain and weighted, and its spread. " + (
        "; ".join(
            f"{one.name}: {one.accuracy:.1f} percent at {number(one.largest)}" for one in found
        )
    )
    return draw_figure("bounds-weighted-sgd", alternative, draw, (11, 4.2))

"""One private training run of all settings of Guo et al. 2022's grid at once, with its account.

It needs only torch and numpy, so that it runs on a machine with little else installed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from reproduction.private_sgd.captured import Captured
from reproduction.private_sgd.ensemble import Ensemble, EnsembleStep
from reproduction.private_sgd.settings import Grid
from seepage.nn.sampling.amplification import MixtureFactor
from seepage.nn.sampling.samplers import PoissonSampler

_TEST_ROWS = 500
_FILLED_TO = 32  # examples: batches are padded to multiples of it, so that few sizes occur


@dataclass(frozen=True)
class ImageTensors:
    """Training and test images as the networks see them, and their classes."""

    X: Tensor
    y: Tensor
    X_test: Tensor
    y_test: Tensor

    def to(self, device: str) -> ImageTensors:
        """Move everything to a device."""
        return ImageTensors(*(t.to(device) for t in (self.X, self.y, self.X_test, self.y_test)))


def load_images(grid: Grid) -> ImageTensors:
    """Read the data set and prepare it as the grid says."""
    from seepage import data

    found = (data.load_mnist if grid.data == "mnist" else data.load_cifar10)()
    parts = []
    for split in (found.train, found.test):
        pixels = torch.tensor(split.pixels, dtype=torch.float32) / 255
        pixels = pixels[:, None] if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2)
        parts += [((pixels - grid.centre) / grid.scale).contiguous(), torch.tensor(split.labels)]
    return ImageTensors(*parts)


class QuickPoissonSampler(PoissonSampler):
    """The same draws from NumPy's generator, which is not secret: an experiment need not be."""

    def __init__(self, records: int, batch_size: int, seed: int) -> None:
        super().__init__(records, batch_size, seed)
        self._seed = seed

    def batch(self, step: int) -> Tensor:
        """Return the records of the batch of a step, in ascending order."""
        coins = np.random.default_rng((self._seed, step)).random(self.records)
        return torch.from_numpy(np.flatnonzero(coins <= self.sample_rate))


class Run:
    """One training run of all settings together.

    Parameters
    ----------
    grid
        The settings.
    images
        The data, on the device to train on.
    seed
        Of initial parameters, batches, noise and probes.
    probes
        Random directions per step.
    dtype
        The networks' type; parameters and sums are kept in at least single precision.
    """

    def __init__(
        self,
        grid: Grid,
        images: ImageTensors,
        seed: int,
        probes: int = 1,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.grid, self.images, self.probes = grid, images, probes
        self.device = images.X.device
        self.X = images.X.to(dtype)
        count, records = len(grid.settings), len(images.X)
        shape = tuple(images.X.shape[1:])
        seeds = range(seed * count, (seed + 1) * count)
        make, size = grid.make_network(), grid.together or count
        self.networks = [
            Ensemble(make, seeds[k : k + size], shape).to(self.device)
            for k in range(0, count, size)
        ]
        self.velocity = torch.zeros_like(self.parameters)
        self.sampler = QuickPoissonSampler(records, grid.batch_size, seed)
        self.filled_to = _FILLED_TO if self.device.type == "cuda" else 1
        self.source = torch.Generator(self.device).manual_seed(seed)
        self.mixture = MixtureFactor(self.sampler.sample_rate)
        self.sums = {name: self._nothing() for name in self.accounts}
        self.rates = self._column("learning_rate")
        self.thresholds = self._column("max_grad_norm")
        self.noises = self._column("noise_multiplier") * self.thresholds
        self._stepped = Captured(self._one_step)
        self.step = 0

    #: Tr I of every record, for each setting: without κ, and with the factor of a mixture.
    accounts: tuple[str, ...] = ("plain", "mixture")

    def _nothing(self) -> Tensor:
        shape = len(self.grid.settings), len(self.images.X)
        return torch.zeros(shape, dtype=torch.float64, device=self.device)

    @property
    def parameters(self) -> Tensor:
        """All parameters of all networks, a row for each setting."""
        return torch.cat([networks.parameters for networks in self.networks])

    def _column(self, name: str) -> Tensor:
        values = [getattr(setting, name) for setting in self.grid.settings]
        return torch.tensor(values, dtype=torch.float32, device=self.device)

    def advance(self) -> None:
        """Take one step with every setting."""
        index, counted, standing = self._drawn()
        x, y = self.X[index], self.images.y[index]
        directions = self.directions(x[: len(standing)]).to(x.dtype)
        found = self._stepped(x, y, directions, self.weighed(index, counted))
        self.account(index[: len(standing)], found, standing)
        drawn = torch.randn(self.velocity.shape, generator=self.source, device=self.device)
        noisy = found.gradients.addcmul(self.noises[:, None], drawn).div_(self.grid.batch_size)
        self.velocity.mul_(self.grid.momentum).add_(noisy)
        moves = self._apart(self.rates[:, None] * self.velocity)
        for networks, move in zip(self.networks, moves, strict=True):
            networks.parameters.sub_(move)
        self.step += 1

    def weighed(self, index: Tensor, counted: Tensor) -> Tensor:
        """Return the factors of a batch's clipped gradients, ``(B,)`` or ``(G, B)``."""
        return counted

    def _one_step(self, x: Tensor, y: Tensor, directions: Tensor, counted: Tensor) -> EnsembleStep:
        steps = [
            networks.step(x, y, directions, thresholds, counted)
            for networks, thresholds in zip(
                self.networks, self._apart(self.thresholds), strict=True
            )
        ]
        return EnsembleStep(
            torch.cat([step.norms for step in steps]),
            torch.cat([step.lengths for step in steps]),
            torch.cat([step.traces for step in steps], 1),
            torch.cat([step.gradients for step in steps]),
        )

    def _apart(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the rows of each group of networks."""
        return tuple(rows.split([len(networks.parameters) for networks in self.networks]))

    def _drawn(self) -> tuple[Tensor, Tensor, Tensor]:
        """Draw a batch, those to be probed first.

        Returns its records, padded; whether each counts; and how many records each probed one
        stands for. If only a share of the batch is probed, half of that share are the records that
        have leaked most so far, in any setting, and the other half is drawn from the rest: no
        estimate is biased, since the choice depends only on earlier steps, and the candidates for
        the largest are measured best.
        """
        drawn = self.sampler.batch(self.step)
        if self.device.type == "cuda":
            drawn = drawn.pin_memory()
        index = drawn.to(self.device, non_blocking=True)
        size = math.ceil(len(drawn) / self.filled_to) * self.filled_to
        counted = torch.zeros(size, device=self.device)
        counted[: len(drawn)].fill_(1.0)
        standing = counted
        if self.grid.probed < 1:
            few = math.ceil(self.grid.probed * size)
            most = few // 2
            keys = torch.rand(len(drawn), generator=self.source, device=self.device)
            keys.index_fill_(0, self._exposures(index).topk(most).indices, 2.0)
            index = index[keys.argsort(descending=True)]
            standing = torch.ones(few, device=self.device)
            standing[most:].fill_((len(drawn) - most) / (few - most))
        filled = torch.zeros(size, dtype=index.dtype, device=self.device)
        filled[: len(drawn)].copy_(index)
        return filled, counted, standing

    def _exposures(self, index: Tensor) -> Tensor:
        """Return how near each record is to the largest leakage, in its nearest setting."""
        plain = self.sums["plain"]
        return (plain[:, index] / plain.amax(1, keepdim=True)).nan_to_num(0.0).amax(0)

    def directions(self, x: Tensor) -> Tensor:
        """Return random signs, the directions along which the traces are measured."""
        return self.signs(self.probes, x)

    def signs(self, count: int, x: Tensor) -> Tensor:
        """Return directions that are random signs."""
        coins = torch.rand(count, *x.shape, generator=self.source, device=self.device)
        return torch.where(coins < 0.5, -1.0, 1.0)

    def coordinates(self, count: int, x: Tensor) -> Tensor:
        """Return directions that are random coordinates times ``√d``."""
        size = math.prod(x.shape[1:])
        picked = torch.randint(size, (count, len(x), 1), generator=self.source, device=self.device)
        flat = torch.zeros(count, len(x), size, device=self.device)
        return flat.scatter_(2, picked, size**0.5).reshape(count, *x.shape)

    def account(self, index: Tensor, found: EnsembleStep, standing: Tensor) -> None:
        """Add the step's leakage to the sums of its records."""
        share = self.shares(found.traces, standing)
        lengths = found.lengths[:, : len(index)].double()
        kappa = self.mixture(lengths / self.noises[:, None])
        self.sums["plain"].index_add_(1, index, share)
        self.sums["mixture"].index_add_(1, index, kappa * share)

    def shares(self, traces: Tensor, standing: Tensor) -> Tensor:
        """Return Tr I of a step from traces ``(P, G, M)``, per unit of a pixel in [0, 1]."""
        noise = self.noises[:, None].double() * self.grid.scale
        return traces.double().mean(0) * standing / noise**2

    def state(self) -> dict[str, np.ndarray]:
        """Return everything that the next steps depend on, for :meth:`restore`."""
        numbered = {f"tensor {k}": tensor.cpu().numpy() for k, tensor in enumerate(self._kept())}
        return numbered | {"step": np.array(self.step), "source": self.source.get_state().numpy()}

    def restore(self, found: Mapping[str, np.ndarray]) -> None:
        """Resume from a state of the same run."""
        for k, tensor in enumerate(self._kept()):
            tensor.copy_(torch.from_numpy(found[f"tensor {k}"]))
        self.source.set_state(torch.from_numpy(found["source"]))
        self.step = int(found["step"])

    def _kept(self) -> list[Tensor]:
        return [*(n.parameters for n in self.networks), self.velocity, *self.sums.values()]

    def accuracies(self) -> list[float]:
        """Return each network's accuracy on the test images."""
        right = torch.zeros(len(self.grid.settings), device=self.device)
        for rows, wanted in zip(
            self.images.X_test.split(_TEST_ROWS), self.images.y_test.split(_TEST_ROWS), strict=True
        ):
            named = torch.cat([networks.logits(rows).argmax(-1) for networks in self.networks])
            right += (named == wanted).sum(1)
        return [float(r) / len(self.images.y_test) for r in right]


class CoordinateRun(Run):
    """A run also measured as in Guo et al. 2022's public code: by one coordinate per step."""

    accounts = (*Run.accounts, "one coordinate")

    def directions(self, x: Tensor) -> Tensor:
        """Return random signs, followed by a coordinate."""
        return torch.cat((super().directions(x), self.coordinates(1, x)))

    def account(self, index: Tensor, found: EnsembleStep, standing: Tensor) -> None:
        """Add the step to all sums."""
        super().account(index, replace(found, traces=found.traces[:-1]), standing)
        share = self.shares(found.traces[-1:], standing)
        self.sums["one coordinate"].index_add_(1, index, share)

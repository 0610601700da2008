"""One private training run of all settings of paper 004's grid at once, with its account.

It takes torch and numpy only, so that it runs on a machine where little else is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reproduction.private_sgd.ensemble import Ensemble, EnsembleStep
from reproduction.private_sgd.settings import Grid
from seepage.nn.sampling.amplification import MixtureFactor
from seepage.nn.sampling.samplers import PoissonSampler

_TEST_ROWS = 500


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
    """

    def __init__(self, grid: Grid, images: ImageTensors, seed: int, probes: int) -> None:
        self.grid, self.images, self.probes = grid, images, probes
        self.device = images.X.device
        count, records = len(grid.settings), len(images.X)
        shape = tuple(images.X.shape[1:])
        seeds = [seed * count + k for k in range(count)]
        self.networks = Ensemble(grid.make_network(), seeds, shape).to(self.device)
        self.velocity = [torch.zeros_like(p) for p in self.networks.parameters]
        self.sampler = PoissonSampler(records, grid.batch_size, seed)
        self.source = torch.Generator(self.device).manual_seed(seed)
        self.mixture = MixtureFactor(self.sampler.sample_rate)
        # Tr I of every record, for each setting: without κ, and with the factor of a mixture.
        self.plain = torch.zeros(count, records, dtype=torch.float64, device=self.device)
        self.mixed = torch.zeros_like(self.plain)
        self.rates = self._column("learning_rate")
        self.thresholds = self._column("max_grad_norm")
        self.noises = self._column("noise_multiplier") * self.thresholds
        self.step = 0

    def _column(self, name: str) -> Tensor:
        values = [getattr(setting, name) for setting in self.grid.settings]
        return torch.tensor(values, dtype=torch.float32, device=self.device)

    def advance(self) -> None:
        """Take one step with every setting."""
        index = self.sampler.batch(self.step).to(self.device)
        x, y = self.images.X[index], self.images.y[index]
        found = self.networks.step(x, y, self.directions(x), self.thresholds)
        self.account(index, found)
        gradients = [tensor for pair in found.gradients for tensor in pair]
        for p, v, g in zip(self.networks.parameters, self.velocity, gradients, strict=True):
            apart = (-1, *[1] * (p.dim() - 1))
            drawn = torch.randn(p.shape, generator=self.source, device=self.device)
            noisy = (g + self.noises.reshape(apart) * drawn) / self.grid.batch_size
            v.mul_(self.grid.momentum).add_(noisy)
            p.sub_(self.rates.reshape(apart) * v)
        self.step += 1

    def directions(self, x: Tensor) -> Tensor:
        """Return random signs, the directions along which the traces are measured."""
        coins = torch.rand(self.probes, *x.shape, generator=self.source, device=self.device)
        return torch.where(coins < 0.5, -1.0, 1.0)

    def account(self, index: Tensor, found: EnsembleStep) -> None:
        """Add what the step gives away to the sums of its records."""
        # Per unit of a pixel in [0, 1], not of the network's input.
        noise = self.noises[:, None].double() * self.grid.scale
        share = found.traces.double().mean(0) / noise**2
        self.plain.index_add_(1, index, share)
        kappa = self.mixture(found.lengths.double() / self.noises[:, None])
        self.mixed.index_add_(1, index, kappa * share)

    def state(self) -> dict[str, np.ndarray]:
        """Return all that the next steps depend on, for :meth:`restore`."""
        tensors = [*self.networks.parameters, *self.velocity, self.plain, self.mixed]
        numbered = {f"tensor {k}": tensor.cpu().numpy() for k, tensor in enumerate(tensors)}
        return numbered | {"step": np.array(self.step), "source": self.source.get_state().numpy()}

    def restore(self, found: Mapping[str, np.ndarray]) -> None:
        """Go on from a state of the same run."""
        tensors = [*self.networks.parameters, *self.velocity, self.plain, self.mixed]
        for k, tensor in enumerate(tensors):
            tensor.copy_(torch.from_numpy(found[f"tensor {k}"]))
        self.source.set_state(torch.from_numpy(found["source"]))
        self.step = int(found["step"])

    def accuracies(self) -> list[float]:
        """Return the share of test images that each network names rightly."""
        right = torch.zeros(len(self.grid.settings), device=self.device)
        for rows, wanted in zip(
            self.images.X_test.split(_TEST_ROWS), self.images.y_test.split(_TEST_ROWS), strict=True
        ):
            right += (self.networks.logits(rows).argmax(-1) == wanted).sum(1)
        return [float(r) / len(self.images.y_test) for r in right]

"""The study behind Figure 3 and Table 1: chest X-rays reconstructed from gradients.

Two networks are trained on PneumoniaMNIST, one of them privately. For each, the gradients of the
same records are attacked, and their PLIS measured. Figure and table share one computation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from reproduction.outcome import Quantity
from seepage.attacks import GradientInversion, ImageQuality, intervals, release_gradients
from seepage.data import load_pneumoniamnist
from seepage.data.structures import Images
from seepage.nn import Engine, NoClip, PoissonSampler, SmoothClip, plis
from seepage.nn.problem.clipping import Clip
from seepage.nn.training.private_sgd import measure_accuracy
from seepage.support.chunks import progress

RECORDS = 128
EPSILON, DELTA = 1.0, 1e-5
STEPS, VARIATION = 100, 1e-3
_RESAMPLES = 5_000  # of the bootstrap intervals
SETTING = (
    f"PneumoniaMNIST, {RECORDS} of the 4,708 training images at random. A tanh network of six "
    "convolutions and two dense layers, trained for four epochs with Adam, or for ten with "
    "private SGD at (ε, δ) = (1, 0.00001), C = 1. The attack uses the cost of Geiping et al. 2020 "
    f"(cosine, total variation {VARIATION:g}), {STEPS} evaluations of L-BFGS, known labels, "
    "and the best of six sets of options on 32 records. Without DP, it sees each record's "
    "gradient; with DP, each record's clipped gradient with the noise of one step, as if all other "
    "records of the batch were known. PLIS without DP is that of the gradient signal; a record's "
    "PLIS is the norm over its pixels. Intervals cover only the random choice of records."
)

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Attacked:
    """The measurements and reconstructions of the records with one network.

    Parameters
    ----------
    accuracy
        Of the network on the test images.
    heat
        The gradient signal's PLIS, (n, 28, 28). Clipping and noise multiply it by one number for
        each record, and so do not change the picture.
    subjects
        The norm of each record's PLIS, clipped and noised like its gradient, (n,). It vanishes if
        the gradient is so long that its clipped norm is constant.
    norms
        The norm of every record's gradient before clipping.
    images
        The reconstructions, (n, 28, 28).
    quality
        Their similarity to the originals.
    """

    accuracy: float
    heat: Array
    subjects: Array
    norms: Array
    images: Array
    quality: ImageQuality


@dataclass(frozen=True, eq=False)
class Study:
    """The records, and their results without and with DP.

    Parameters
    ----------
    rows
        The records' positions in the training data.
    originals, labels
        (n, 28, 28), from 0 to 1, and (n,).
    plain, private
        Without and with DP.
    noise_multiplier
        Of the private run.
    """

    rows: NDArray[np.intp]
    originals: Array
    labels: NDArray[np.int64]
    plain: Attacked
    private: Attacked
    noise_multiplier: float

    @property
    def low(self) -> int:
        """The record with the lowest PLIS without DP."""
        return int(np.argmin(self.plain.subjects))

    @property
    def high(self) -> int:
        """The record with the highest PLIS without DP."""
        return int(np.argmax(self.plain.subjects))


@cache
def chest_study(quick: bool) -> Study:
    """Train, measure and attack; cached, since the figure and the table both use it."""
    data = load_pneumoniamnist()
    x, y = (values[: 1024 if quick else None] for values in _tensors(data.train))
    test = _tensors(data.test)
    epochs, private_epochs, count, steps = (1, 1, 12, 20) if quick else (4, 10, RECORDS, STEPS)
    chosen = np.sort(np.random.default_rng(0).choice(len(x), count, replace=False))
    records = x[chosen], y[chosen]

    net = chest_network()
    train(net, x, y, epochs)
    plain = _attacked(net, records, test, NoClip(), 0.0, steps)

    net = chest_network()
    sigma = train_privately(net, x, y, private_epochs)
    private = _attacked(net, records, test, SmoothClip(1.0), sigma, steps)
    originals = records[0][:, 0].double().numpy()
    return Study(chosen, originals, records[1].numpy(), plain, private, sigma)


def chest_network() -> nn.Module:
    """Return the network, the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        before = 1
        for width in (8, 16, 32):
            for _ in range(2):
                layers += [nn.Conv2d(before, width, 3, padding=1), nn.Tanh()]
                before = width
            layers.append(nn.AvgPool2d(2))
        layers += [nn.Flatten(), nn.Linear(9 * before, 32), nn.Tanh(), nn.Linear(32, 2)]
        return nn.Sequential(*layers)


def train(net: nn.Module, x: Tensor, y: Tensor, epochs: int, batch_size: int = 128) -> None:
    """Train without privacy, with Adam."""
    draw = torch.Generator().manual_seed(0)
    optimiser = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in progress(range(epochs), "training"):
        for rows in torch.randperm(len(x), generator=draw).split(batch_size):
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimiser.step()


def train_privately(
    net: nn.Module, x: Tensor, y: Tensor, epochs: int, batch_size: int = 256
) -> float:
    """Train with private SGD to (ε, δ), and return the required noise multiplier."""
    sampler = PoissonSampler(len(x), batch_size, seed=0)
    steps = epochs * len(x) // batch_size
    engine = Engine(net, "cross_entropy", clip=SmoothClip(1.0))
    sigma = engine.clip.sensitivity * noise_for(batch_size / len(x), steps)
    draw = torch.Generator().manual_seed(1)
    velocity = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for step in progress(range(steps), "private training"):
        rows = sampler.batch(step)
        gradient = engine.clipped_gradient(x[rows], y[rows]).gradient
        with torch.no_grad():
            for name, parameter in net.named_parameters():
                noise = sigma * torch.randn(parameter.shape, generator=draw)
                velocity[name].mul_(0.9).add_((gradient[name] + noise) / batch_size)
                parameter.sub_(0.1 * velocity[name])
    return sigma


@cache
def noise_for(rate: float, steps: int) -> float:
    """Return the noise over the sensitivity with which Poisson batches give (ε, δ)."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    def event(noise: float) -> dp_accounting.DpEvent:
        step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
        return dp_accounting.SelfComposedDpEvent(step, steps)

    def accountant() -> RdpAccountant:
        return RdpAccountant(list(range(2, 129)))  # integer orders have a closed form

    bracket = dp_accounting.LowerEndpointAndGuess(0.7, 3.0)
    return float(dp_accounting.calibrate_dp_mechanism(accountant, event, EPSILON, DELTA, bracket))


def _attacked(
    net: nn.Module,
    records: tuple[Tensor, Tensor],
    test: tuple[Tensor, Tensor],
    clip: Clip,
    sigma: float,
    steps: int,
) -> Attacked:
    x, y = records
    seen = release_gradients(net, "cross_entropy", x, y, clip=clip, noise_multiplier=sigma, seed=2)
    adversary = GradientInversion(
        net, shape=(1, 28, 28), optimizer="lbfgs", total_variation=VARIATION, steps=steps
    )
    found = adversary.reconstruct(seen, labels=y)
    noise, threshold = (sigma, clip.max_grad_norm) if sigma else (None, None)
    measured = plis(
        net, "cross_entropy", x, y, noise_multiplier=noise, max_grad_norm=threshold, clip="smooth"
    )
    return Attacked(
        measure_accuracy(net, *test),
        measured.signal().values[:, 0].double().numpy(),
        measured.values.double().flatten(1).norm(dim=1).numpy(),
        measured.norms.double().numpy(),
        found.records[:, 0, 0].double().numpy(),
        found.quality(x),
    )


def _tensors(images: Images) -> tuple[Tensor, Tensor]:
    pixels = torch.as_tensor(images.pixels).float()[:, None] / 255
    return pixels, torch.as_tensor(images.labels)


@dataclass(frozen=True)
class Correlation:
    """A correlation with the ends of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float

    def quantities(self, name: str) -> list[Quantity]:
        """Return it under that name, with the ends of its interval."""
        return [
            Quantity(name, self.value),
            Quantity(f"{name}, 95 % interval from", self.low),
            Quantity(f"{name}, 95 % interval to", self.high),
        ]

    @property
    def verdict(self) -> str:
        """Its direction, in words."""
        if self.low <= 0 <= self.high:
            return "no clear way"
        return "up" if self.value > 0 else "down"

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})".replace("-", "−")


def rank_correlation(a: Array, b: Array) -> Correlation:
    """Return Spearman's correlation, with a bootstrap interval over records (percentiles)."""
    found = intervals.rank_correlation(a, b)
    return Correlation(found.value, *found.interval)


def mean_of(values: Array) -> Correlation:
    """Return the mean of one correlation per record, with a bootstrap interval over records."""
    rows = np.random.default_rng(0).integers(len(values), size=(_RESAMPLES, len(values)))
    low, high = np.quantile(values[rows].mean(axis=1), (0.025, 0.975))
    return Correlation(float(values.mean()), float(low), float(high))

"""Figure 2: which pixels of MNIST images cost privacy, with DP and without.

Two networks are trained, one of them privately. Batches are disjoint and may be known to everybody,
so no amplification is claimed: a record takes part in one step of every epoch, and its (ε, δ) over
the run comes from the Gaussian noise of those steps alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reproduction.drawing import Figure, draw_figure
from reproduction.outcome import Outcome, Quantity
from seepage.attacks.outliers import OutlierDetection, out_of_distribution
from seepage.auditing.report.figures import BLUE, GREEN, MUTED, VERMILLION
from seepage.auditing.report.words import number
from seepage.data import load_mnist, load_pneumoniamnist
from seepage.privacy.gaussian_mechanism import gaussian_mu
from seepage.support.chunks import progress

if TYPE_CHECKING:
    from torch import Tensor, nn

Numbers = NDArray[np.float64]

EPSILON, DELTA = 1.0, 1e-5
THRESHOLD, EPOCHS, BATCH, RATE, MOMENTUM = 1.0, 3, 1_500, 1.0, 0.8
PLAIN_EPOCHS, PLAIN_BATCH, PLAIN_RATE = 2, 100, 0.1
MEASURED = 5_000  # of the training images
NEAREST = 10  # the neighbour to which an image's distance is taken
SLIGHT = 0.1  # a correlation that explains a hundredth of the spread
_SETTING = (
    "The smooth network of Guo et al. 2022, Table 1, on MNIST. "
    f"With DP: {EPOCHS} epochs of disjoint batches of {BATCH:,}, smooth clip at {THRESHOLD:g}, "
    f"({EPSILON:g}, {DELTA:g})-differential privacy without amplification by sampling. Without "
    f"DP: {PLAIN_EPOCHS} epochs of plain SGD. PLIS is measured in one more step, for the first "
    f"{MEASURED:,} training images and the 624 test images of PneumoniaMNIST with their labels 0 "
    "and 1. Records with a gradient norm far above the threshold have a PLIS of zero, so PLIS "
    "before the clip is also reported. A digit's distance to its class is the pixel distance to "
    f"the tenth nearest digit of this class among the {MEASURED:,}."
)


@dataclass(frozen=True)
class Trained:
    """A network and its noise multiplier; ``None`` without noise."""

    net: nn.Module
    noise_multiplier: float | None


@dataclass(frozen=True, eq=False)
class Seen:
    """PLIS of the digits and the X-rays, pixel by pixel, under one network."""

    title: str
    digits: Numbers
    outside: Numbers

    def subjects(self) -> tuple[Numbers, Numbers]:
        """Return the norms over whole images, of digits and of X-rays."""
        return _norms(self.digits), _norms(self.outside)

    def detection(self) -> OutlierDetection:
        """Return how well subject-level PLIS finds the X-rays."""
        return out_of_distribution(*self.subjects())


def reproduce(quick: bool) -> Outcome:
    """Train both networks and measure PLIS of every pixel."""
    mnist, chest = load_mnist(), load_pneumoniamnist()
    train = 3_000 if quick else len(mnist.train.labels)
    x, y = _tensors(mnist.train.pixels[:train], mnist.train.labels[:train])
    few = slice(0, 300 if quick else MEASURED)
    others = _tensors(chest.test.pixels[: 100 if quick else None], chest.test.labels)
    others = (others[0], others[1][: len(others[0])])
    private, plain = train_privately(x, y), train_plainly(x, y)
    measured = [_plis(trained, (x[few], y[few]), others) for trained in (private, plain)]
    titles = ("with DP", "with DP, before the clip", "without DP")
    seen = tuple(
        Seen(title, *found) for title, found in zip(titles, measured[0] + measured[1], strict=True)
    )
    test = _tensors(mnist.test.pixels, mnist.test.labels)
    quantities = [
        Quantity(f"{title}: test accuracy in percent", accuracy(trained.net, *test))
        for title, trained in (("with DP", private), ("without DP", plain))
    ]
    quantities += [q for one in seen for q in _quantities(one)]
    quantities += _between(seen)
    strange = distance_to_class(x[few, 0].double().numpy(), y[few].numpy())
    ranks = {one.title: _spearman(one.subjects()[0], strange) for one in seen}
    quantities += [
        Quantity(f"{title}: rank correlation of a digit's PLIS and its distance to its class", rank)
        for title, rank in ranks.items()
    ]
    shown = _shown(seen[1])
    pictures = (x[shown[0], 0].numpy(), x[shown[1], 0].numpy(), others[0][shown[2], 0].numpy())
    figure = _draw(pictures, shown, seen)
    return Outcome(_SETTING, tuple(quantities), f"{_words(seen)} {_atypical(ranks)}", figure)


def _tensors(pixels: Any, labels: Any) -> tuple[Any, Any]:
    import torch

    x = torch.tensor(np.asarray(pixels)).float().reshape(-1, 1, 28, 28) / 255
    return x, torch.tensor(np.asarray(labels)).long()


def _plis(trained: Trained, *sets: tuple[Any, Any]) -> list[tuple[Numbers, ...]]:
    """Return PLIS of every pixel of both sets; with noise, also before the clip."""
    from seepage.nn import plis

    s = trained.noise_multiplier
    found = [
        plis(
            trained.net,
            "cross_entropy",
            x,
            y,
            noise_multiplier=s,
            max_grad_norm=None if s is None else THRESHOLD,
            clip="smooth",
        )
        for x, y in sets
    ]
    each = [tuple(part.values[:, 0].double().numpy() for part in found)]
    if s is not None:
        scale = (s * THRESHOLD) ** 2
        each.append(tuple(part.signal().values[:, 0].double().numpy() / scale for part in found))
    return each


def _norms(values: Numbers) -> Numbers:
    return np.asarray(np.linalg.norm(values.reshape(len(values), -1), axis=1))


def _shown(seen: Seen) -> tuple[int, int, int]:
    """Return the digits with the smallest (above zero) and largest PLIS, and the middle X-ray."""
    digits, outside = seen.subjects()
    above = np.where(digits > 0, digits, np.inf)
    return int(above.argmin()), int(digits.argmax()), int(np.argsort(outside)[len(outside) // 2])


def _quantities(seen: Seen) -> list[Quantity]:
    digits, outside = seen.subjects()
    found = seen.detection()
    return [
        Quantity(f"{seen.title}: median PLIS of a digit", float(np.median(digits))),
        Quantity(f"{seen.title}: largest PLIS of a digit", float(digits.max())),
        Quantity(f"{seen.title}: median PLIS of an X-ray", float(np.median(outside))),
        Quantity(f"{seen.title}: X-rays among digits, area under the curve", found.area),
        Quantity(f"{seen.title}: lower end of its 95 % interval", found.interval.low),
        Quantity(f"{seen.title}: upper end of its 95 % interval", found.interval.high),
        Quantity(
            f"{seen.title}: X-rays found with one digit in a hundred flagged, in percent",
            100 * found.detected_at(0.01),
        ),
        Quantity(f"{seen.title}: pixels that hold half of a digit's PLIS, median", _half(seen)),
    ]


def _half(seen: Seen) -> float:
    """Return the number of pixels that make up half of the squared norm, for the median digit."""
    squares = np.sort(seen.digits.reshape(len(seen.digits), -1) ** 2, axis=1)[:, ::-1]
    kept = squares[squares.sum(1) > 0]
    return float(np.median((np.cumsum(kept, 1) < kept.sum(1, keepdims=True) / 2).sum(1) + 1))


def _between(seen: tuple[Seen, ...]) -> list[Quantity]:
    digits = [one.subjects()[0] for one in seen]
    return [
        Quantity(
            f"rank correlation of the digits' PLIS: {seen[a].title} and {seen[b].title}",
            _spearman(digits[a], digits[b]),
        )
        for a, b in ((0, 1), (0, 2), (1, 2))
    ]


def _spearman(a: Numbers, b: Numbers) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(a, b).statistic)


def distance_to_class(images: Numbers, labels: NDArray[np.int64]) -> Numbers:
    """Return every image's distance to the tenth nearest of its class: how odd it is, (n,)."""
    flat = images.reshape(len(images), -1)
    found = np.zeros(len(flat))
    for label in np.unique(labels):
        own = np.flatnonzero(labels == label)
        squares = np.sum(flat[own] ** 2, axis=1)
        apart = squares[:, None] + squares - 2 * flat[own] @ flat[own].T
        nearest = min(NEAREST, len(own) - 1)
        found[own] = np.sqrt(np.maximum(np.partition(apart, nearest, axis=1)[:, nearest], 0))
    return found


def _atypical(ranks: dict[str, float]) -> str:
    """Judge the claim that samples with high PLIS are often atypical."""
    listed = "; ".join(f"{rank:.2f} {title}" for title, rank in ranks.items()).replace("-", "−")
    rising = [title for title, rank in ranks.items() if rank > SLIGHT]
    claim = f"in {len(rising)} of {len(ranks)} cases" if rising else "in no case"
    return (
        f"A digit's PLIS rises with its distance to its own class "
        f"{claim} (rank correlations {listed})."
    )


def _words(seen: tuple[Seen, ...]) -> str:
    found = [one.detection() for one in seen]
    ends = [f"{f.area:.3f} ({f.interval.low:.3f} to {f.interval.high:.3f})" for f in found]
    after = (
        ". The clip affects X-rays most, so their PLIS falls below that of digits"
        if found[0].area < 0.5
        else ""
    )
    return (
        "As a detector of X-rays among digits, a record's PLIS has an area under the ROC curve of "
        f"{ends[2]} without DP, {ends[1]} with DP before the clip and {ends[0]} after it{after}."
    )


def train_privately(x: Tensor, y: Tensor, epochs: int = EPOCHS, seed: int = 0) -> Trained:
    """Train with smoothly clipped, noised gradients to (1, 1e-5) in all."""
    import torch

    from reproduction.private_sgd.networks import mnist_cnn
    from seepage.nn import Engine, SmoothClip

    torch.manual_seed(seed)
    net, clip = mnist_cnn(), SmoothClip(THRESHOLD)
    engine = Engine(net, "cross_entropy", clip=clip)
    # A record shifts one step of every epoch: μ = √epochs · sensitivity/(σC).
    sigma = math.sqrt(epochs) * clip.sensitivity / THRESHOLD / gaussian_mu(EPSILON, DELTA)
    generator = torch.Generator().manual_seed(seed)
    speed = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
    for rows in progress(list(_batches(len(y), BATCH, epochs, generator)), "private steps"):
        total = engine.clipped_gradient(x[rows], y[rows]).gradient
        for name, p in net.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            mean = (total[name] + sigma * THRESHOLD * noise) / len(rows)
            speed[name].mul_(MOMENTUM).add_(mean)
            p.data.sub_(RATE * speed[name])
    return Trained(net, sigma)


def train_plainly(x: Tensor, y: Tensor, epochs: int = PLAIN_EPOCHS, seed: int = 0) -> Trained:
    """Train the same network without privacy, by stochastic gradients with momentum."""
    import torch
    from torch.nn.functional import cross_entropy

    from reproduction.private_sgd.networks import mnist_cnn

    torch.manual_seed(seed)
    net = mnist_cnn()
    optimiser = torch.optim.SGD(net.parameters(), lr=PLAIN_RATE, momentum=0.9)
    generator = torch.Generator().manual_seed(seed)
    for rows in progress(list(_batches(len(y), PLAIN_BATCH, epochs, generator)), "plain steps"):
        optimiser.zero_grad()
        cross_entropy(net(x[rows]), y[rows]).backward()
        optimiser.step()
    return Trained(net, None)


def accuracy(net: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of correctly classified images, in percent."""
    import torch

    with torch.no_grad():
        right = [(net(part).argmax(1) == label) for part, label in _pairs(x, y)]
    return 100 * float(torch.cat(right).double().mean())


def _pairs(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(1_000), y.split(1_000), strict=True))


def _batches(count: int, size: int, epochs: int, generator: Any) -> list[Tensor]:
    """Return the rows of every step, reshuffled every epoch."""
    import torch

    return [
        rows
        for _ in range(epochs)
        for rows in torch.randperm(count, generator=generator).split(size)
    ]


def _draw(
    pictures: tuple[Numbers, ...], shown: tuple[int, int, int], seen: tuple[Seen, ...]
) -> Figure:
    names = ("A: smallest", "B: largest", "C: not a digit")
    heats = [
        [np.abs(one.digits[shown[0]]), np.abs(one.digits[shown[1]]), np.abs(one.outside[shown[2]])]
        for one in seen
    ]

    def draw(canvas: Any) -> None:
        left, right = canvas.subfigures(1, 2, width_ratios=(1.25, 1))
        grid = left.subplots(3, 4)
        for k, title in enumerate(("image", "with DP", "before the clip", "without DP")):
            grid[0, k].set_title(title, fontsize=10)
        for row, (name, picture) in enumerate(zip(names, pictures, strict=True)):
            grid[row, 0].imshow(picture, cmap="gray", vmin=0, vmax=1)
            grid[row, 0].set_ylabel(name, fontsize=10)
            for axes, heat in zip(grid[row, 1:], (h[row] for h in heats), strict=True):
                size = float(heat.max())
                axes.imshow(heat, cmap="magma", vmin=0, vmax=size or 1.0)
                axes.set_xlabel(f"up to {_short(size)}", color=MUTED, fontsize=9)
        for axes in grid.flat:
            axes.set(xticks=[], yticks=[])
            axes.grid(False)
            axes.spines[:].set_visible(False)
        curve = right.subplots()
        for one, colour in zip(seen, (BLUE, GREEN, VERMILLION), strict=True):
            found = one.detection()
            curve.plot(
                found.false_alarms,
                found.detections,
                color=colour,
                lw=2,
                label=f"{one.title}: {found.area:.3f}",
            )
        curve.plot([0, 1], [0, 1], color=MUTED, lw=1, ls=":")
        curve.set(xlabel="share of digits flagged", ylabel="share of X-rays flagged")
        curve.set(xlim=(0, 1), ylim=(0, 1.01))
        curve.set_title("X-rays among digits, by subject-level PLIS", fontsize=10)
        curve.legend(loc="center", title="area under the curve", fontsize=9)

    areas = ", ".join(f"{one.title} {one.detection().area:.2f}" for one in seen)
    sizes = "; ".join(
        f"{name}: {', '.join(_short(float(h[row].max())) for h in heats)}"
        for row, name in enumerate(names)
    )
    alternative = (
        "Heat maps of the PLIS of three images with DP, before the clip and without DP (largest "
        f"pixels, {sizes}), and ROC curves of telling X-rays from digits, with areas: {areas}."
    )
    return draw_figure("plis-figure2", alternative, draw, (12.5, 6))


def _short(value: float) -> str:
    return number(float(f"{value:.2g}")) if value > 1e-30 else "0"

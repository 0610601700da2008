"""Images reconstructed from FedAvg updates: local steps modelled, or divided by lr times steps.

``python benchmarks/fedavg_inversion.py`` lets ten clients with one MNIST image each (the first ten
training images) train a small tanh network from its start (fixed seed) by 1, 5 and 10 local steps
of SGD, and attacks the updates they send in two ways: as if each were one gradient, divided by lr
times the number of steps; and with the local steps repeated for every candidate. Then five clients
with two images each, one image per step, over 1 and 5 epochs, with known labels. The claims:

- at one step both ways reconstruct all ten images, SSIM above 0.95;
- at 5 and 10 steps the first reconstructs none, and the second still all.

``--small`` takes three images and 1 and 3 steps. Without MNIST (see ``SEEPAGE_DATA``), the images
are scikit-learn's digits, enlarged. Figures are written to ``benchmarks/results/``.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import seepage as sp
from keeping import keep
from measuring import show

LR = 0.1
CLEAR = 0.95
WIDTHS = (40, 7, 9, 8, 8, 8, 9)
COSTS = {
    "Euclidean": {"cost": "euclidean"},
    "cosine": {"cost": "cosine"},
}


def images(count: int) -> tuple[Tensor, Tensor, str]:
    """Return images (n, 1, side, side) between 0 and 1, their labels, and their source."""
    try:
        train = sp.data.load_mnist(download=False).train
    except sp.InputError:
        from sklearn.datasets import load_digits

        digits = load_digits()
        pixels = np.kron(digits.images[:count] / 16, np.ones((3, 3)))
        x = torch.tensor(pixels, dtype=torch.float32)[:, None]
        return x, torch.tensor(digits.target[:count]), "digits of scikit-learn, enlarged"
    x = torch.tensor(train.pixels[:count]).float()[:, None] / 255
    return x, torch.as_tensor(train.labels[:count]).long(), "MNIST"


def network(side: int) -> nn.Module:
    """Return two strided convolutions and a full layer, with tanh."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 12, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.Conv2d(12, 12, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(12 * (-(-side // 4)) ** 2, 10),
    )


def divided(seen: sp.attacks.GradientReleases) -> sp.attacks.GradientReleases:
    """Return updates as gradients assumed constant over all local steps."""
    reach = seen.training.reach(seen.batch_size)
    gradients = {name: values / reach for name, values in seen.gradients.items()}
    return sp.attacks.GradientReleases(gradients, seen.batch_size)


def attack(
    net: nn.Module, seen: sp.attacks.GradientReleases, x: Tensor, y: Tensor, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the similarity of the reconstructed images to the originals."""
    adversary = sp.attacks.GradientInversion(
        net, shape=tuple(x.shape[1:]), optimizer="lbfgs", total_variation=0.0, **options
    )
    start = time.perf_counter()
    # With several images the adversary is given the labels, since it must know which image each
    # step takes.
    known = y.reshape(-1, seen.batch_size) if seen.batch_size > 1 else None
    found = adversary.reconstruct(seen, labels=known)
    took = time.perf_counter() - start
    similar = found.quality(x).ssim
    wanted = y.reshape(found.labels.shape)
    return {
        "seconds": took,
        "ssim": [round(float(value), 4) for value in similar],
        "above 0.95": int((similar > CLEAR).sum()),
        "labels right": int((found.labels == wanted).sum()),
        "labels given": found.labels_known,
        "mismatch": float(found.mismatch.median()),
    }


def line(name: str, row: dict[str, Any]) -> None:
    """Print one line."""
    similar = np.array(row["ssim"])
    cells = [f"{value:.3f}" for value in (similar.min(), np.median(similar), similar.max())]
    of = f"{row['above 0.95']}/{len(similar)}"
    show(name, f"{row['seconds']:.0f} s", *cells, of, f"{row['labels right']}", widths=WIDTHS)


def main() -> int:
    """Attack, print, and say which claims hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="three images and few steps")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    x, y, source = images(4 if options.small else 10)
    net = network(x.shape[-1]).to(options.device)
    evaluations = {"steps": 60 if options.small else 300}
    settings = [
        (1, epochs, cost)
        for cost in (["Euclidean"] if options.small else COSTS)
        for epochs in ((1, 3) if options.small else (1, 5, 10))
    ]
    settings += [(2, epochs, "Euclidean") for epochs in ((2,) if options.small else (1, 5))]
    print(f"{len(x)} images, {source}; SGD at lr {LR}")
    show("", "took", "SSIM min", "median", "max", "> 0.95", "labels", widths=WIDTHS)
    rows, good = [], True
    for own, epochs, cost in settings:
        training = sp.layers.LocalTraining(lr=LR, epochs=epochs, batch_size=1)
        seen = sp.attacks.release_updates(
            net,
            "cross_entropy",
            x.to(options.device),
            y.to(options.device),
            training=training,
            batch_size=own,
        )
        steps = own * epochs
        for way, releases in (("divided", divided(seen)), ("modelled", seen)):
            row = attack(net, releases, x, y, COSTS[cost] | evaluations)
            images_of = "1 image" if own == 1 else f"{own} images"
            plural = "s" if steps > 1 else ""
            line(f"{images_of}, {steps} step{plural}, {cost}, {way}", row)
            rows.append(
                {"images per client": own, "local steps": steps, "cost": cost, "way": way} | row
            )
            if own == 1:
                wanted = len(x) if way == "modelled" or epochs == 1 else 0
                good &= row["above 0.95"] == wanted
    print(
        f"at 1 step both ways rebuild all, at more the division none and the model all: "
        f"{'holds' if good else 'FAILS'}"
    )
    kind = "small" if options.small else torch.device(options.device).type
    setting = {"images": source, "lr": LR, "evaluations": evaluations["steps"]}
    keep(
        {"setting": setting, "rows": rows},
        options.out / f"fedavg_inversion-{kind}.json",
        options.device,
    )
    return 0 if good or options.small else 1


if __name__ == "__main__":
    sys.exit(main())

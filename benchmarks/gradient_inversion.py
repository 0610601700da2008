"""Chest X-rays reconstructed from gradients: all attacked at once, with and without DP noise.

``python benchmarks/gradient_inversion.py`` releases the gradients of the first 20 training images
of PneumoniaMNIST from a small tanh network at its start (fixed seed) and attacks them, undefended
and with noise at (ε, δ) = (1, 0.00001): one release of the record's gradient, clipped to C = 1,
with Gaussian noise calibrated analytically (sensitivity C: the record is there or not). The claims:

- undefended, SSIM above 0.95 on at least 18 of the 20, all at once in under a minute on two cores;
- at ε = 1, SSIM below 0.2 on all.

The score of an image that ignores the gradient is printed as well: only an SSIM above that of the
mean training image, or of plain grey, is a sign of a leak. ``--small`` takes five images and few
steps, and random images if the data set is not available. Figures are written to
``benchmarks/results/``.
"""

from __future__ import annotations

import argparse
import resource
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

SIDE = 28
WIDTHS = (44, 8, 10, 10, 10, 10)
ATTACKS: dict[str, dict[str, Any]] = {
    "Zhu et al. 2019, L-BFGS": {
        "cost": "euclidean",
        "optimiser": "lbfgs",
        "total_variation": 0.0,
        "steps": 300,
    },
    "Geiping et al. 2020, signed Adam": {"total_variation": 1e-4, "steps": 600},
}


def images(count: int) -> tuple[Tensor, Tensor, np.ndarray, str]:
    """Return the first training images with their labels, and the mean of all training images."""
    try:
        train = sp.data.load_pneumoniamnist(download=False).train
    except sp.InputError:
        draw = torch.Generator().manual_seed(0)
        x = torch.rand(count, 1, SIDE, SIDE, generator=draw)
        return x, torch.arange(count) % 2, x.mean((0, 1)).numpy(), "random images"
    x = torch.tensor(train.pixels[:count]).float()[:, None] / 255
    mean = train.pixels.mean(axis=0) / 255
    return x, torch.as_tensor(train.labels[:count]), mean, "PneumoniaMNIST"


def network() -> nn.Module:
    """Return two strided convolutions and a full layer, with tanh."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 12, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.Conv2d(12, 24, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(24 * 49, 2),
    )


def attack(
    net: nn.Module,
    seen: sp.attacks.GradientReleases,
    labels: Tensor | None,
    options: dict[str, Any],
) -> tuple[sp.attacks.GradientReconstruction, float]:
    """Return the reconstruction, and the seconds it took."""
    adversary = sp.attacks.GradientInversion(net, shape=(1, SIDE, SIDE), **options)
    start = time.perf_counter()
    found = adversary.reconstruct(seen, labels=labels)
    return found, time.perf_counter() - start


def line(name: str, quality: sp.attacks.ImageQuality, seconds: float | None) -> dict[str, Any]:
    """Print one line, and return it."""
    similar = quality.ssim
    row = {
        "seconds": seconds,
        "ssim smallest": float(similar.min()),
        "ssim median": float(np.median(similar)),
        "ssim largest": float(similar.max()),
        "haarpsi median": float(np.median(quality.haarpsi)),
        "above 0.95": int((similar > 0.95).sum()),
    }
    cells = [f"{row[k]:.3f}" for k in ("ssim smallest", "ssim median", "ssim largest")]
    took = "" if seconds is None else f"{seconds:.1f}"
    show(name, took, *cells, f"{row['haarpsi median']:.3f}", widths=WIDTHS)
    return row


def main() -> int:
    """Attack, print, and say which claims hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="five images and few steps")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    count = 5 if options.small else 20
    x, y, mean, source = images(count)
    x, y, net = x.to(options.device), y.to(options.device), network().to(options.device)
    sigma = sp.privacy.analytic_gaussian_sigma(1.0, 1e-5)
    clip = sp.nn.HardClip(1.0)
    plain = sp.attacks.release_gradients(net, "cross_entropy", x, y)
    private = sp.attacks.release_gradients(
        net, "cross_entropy", x, y, clip=clip, noise_multiplier=sigma
    )
    print(f"{count} images, {source}; noise at ε = 1, δ = 0.00001: σ = {sigma:.3f} C")
    show("", "seconds", "SSIM min", "median", "max", "HaarPSI", widths=WIDTHS)
    rows: dict[str, Any] = {}
    for name, given in ATTACKS.items():
        chosen = given | {"steps": 200} if options.small else given
        found, seconds = attack(net, plain, None, chosen)
        labels = bool((found.labels[:, 0] == y.cpu()).all())
        rows[name] = line(f"{name}, undefended", found.quality(x.cpu()), seconds)
        rows[name]["all labels read off"] = labels
        alone = attack(net, plain.rows(slice(0, 1)), None, chosen)[1]
        rows[name]["seconds for one record alone"] = alone
        found, seconds = attack(net, private, y, chosen)
        rows[f"{name}, ε = 1"] = line(f"{name}, ε = 1", found.quality(x.cpu()), seconds)
    for name, guess in (("mean training image", mean), ("plain grey", np.full((SIDE, SIDE), 0.5))):
        same = np.broadcast_to(guess, (count, 1, SIDE, SIDE))
        rows[name] = line(name, sp.attacks.compare_images(same, x.cpu()), None)
    for name in ATTACKS:
        ratio = rows[name]["seconds"] / rows[name]["seconds for one record alone"]
        print(f"{name}: all {count} at once take {ratio:.1f} times one alone")
        read = "all" if rows[name]["all labels read off"] else "not all"
        print(f"{name}: {read} labels read off the last layer")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of the process: {memory:.0f} MB")
    good = True
    needed = -(-9 * count // 10)
    for name in ATTACKS:
        hits, worst = rows[name]["above 0.95"], rows[f"{name}, ε = 1"]["ssim largest"]
        for words, holds in (
            (f"SSIM above 0.95 on {hits} of {count} (claimed {needed})", hits >= needed),
            (f"in {rows[name]['seconds']:.1f} s (claimed 60)", rows[name]["seconds"] < 60),
            (f"at ε = 1 SSIM at most {worst:.3f} (claimed 0.2)", worst < 0.2),
        ):
            print(f"{name}: {words}: {'holds' if holds else 'FAILS'}")
            good &= holds
    kind = "small" if options.small else torch.device(options.device).type
    keep(
        {"memory": memory, "rows": rows},
        options.out / f"gradient_inversion-{kind}.json",
        options.device,
    )
    return 0 if good or options.small else 1


if __name__ == "__main__":
    sys.exit(main())

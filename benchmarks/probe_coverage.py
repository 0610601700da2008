"""How often the stated 95 % intervals of 400 probes cover the value they estimate.

Claim: for tanh, attention, ReLU, max-pooling, SELU and quantised networks on scikit-learn's digits,
``sp.nn.leakage(…).records("dfil", probes=400).interval()`` covers the dFIL in 93 to 97 % of at
least 1,000 intervals from independent directions. A 3 × 3 patch of each image is unknown, so all
``2^9`` directions of signs can be enumerated.

The value comes from code of its own: gradients of single records by ``torch.autograd.grad`` in
float64. Over finite steps it is ``E‖g̃(z + hv) − g̃(z)‖²/h²`` over all directions of signs, and for
smooth networks the squared norm of the derivative, by central differences of every unknown.

With clipping, and over finite steps, every position of a batch has directions of its own, so a
batch with copies of the same records gives independent intervals. Derivatives without clipping
share their directions among the records of a batch: there, each interval has its own seed.

The share of all intervals does not hold for every record. If a kink lies within one direction in
several hundred only, 400 probes may miss it. The share of the record with the fewest covering
intervals is printed, and how many records have less than 80 %. The figures of each network are kept
in ``results/probe_coverage.json``. ``--small`` runs fewer intervals and keeps nothing; names of
networks run only these.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import seepage as sp
from keeping import keep, made_by
from measuring import show

KEPT = Path(__file__).parent / "results" / "probe_coverage.json"
WIDTHS = (32, 10, 10, 10, 14, 12, 9)
PROBES, RECORDS, COPIES, NOISE, THRESHOLD = 400, 40, 30, 1.0, 1.0
LEAST, MOST = 0.93, 0.97
SELDOM = 0.8  # of a record's 30 intervals, fewer cover only if their coverage is below 95 %
PATCH = torch.zeros(1, 8, 8, dtype=torch.bool)
PATCH[:, 3:6, 3:6] = True


class Attention(nn.Module):
    """Self-attention over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        rows = x.squeeze(1)
        return self.head(self.attention(rows, rows, rows, need_weights=False)[0].mean(1))


class Rounded(nn.Module):
    """Rounds to sixteenths; its gradient passes straight through."""

    def forward(self, x: Tensor) -> Tensor:
        """Return rounded numbers."""
        return x + ((16 * x).round() / 16 - x).detach()


class FakeQuantised(nn.Module):
    """Rounds to 8-bit integers times a scale, as torch's quantisation-aware training does."""

    def forward(self, x: Tensor) -> Tensor:
        """Return rounded numbers."""
        return torch.fake_quantize_per_tensor_affine(x, 1 / 32, 0, -128, 127)


def dense(*middle: nn.Module) -> nn.Module:
    """Return a network of two dense layers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), *middle, nn.Linear(32, 10))


def pooled() -> nn.Module:
    """Return a convolution with max-pooling."""
    first = nn.Conv2d(1, 4, 3, padding=1)
    return nn.Sequential(first, nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 10))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], bool]] = {  # and whether gradients are clipped
    "tanh": (lambda: dense(nn.Tanh()), True),
    "attention": (Attention, True),
    "ReLU": (lambda: dense(nn.ReLU()), True),
    "max-pooling": (pooled, True),
    "SELU": (lambda: dense(nn.SELU()), True),
    "quantised, straight through": (lambda: dense(nn.Tanh(), Rounded()), True),
    "quantised, torch's": (lambda: dense(nn.Tanh(), FakeQuantised()), True),
    "tanh, not clipped": (lambda: dense(nn.Tanh()), False),
}


def fitted(make: Callable[[], nn.Module], x: Tensor, y: Tensor) -> nn.Module:
    """Return a network after 30 steps of Adam."""
    torch.manual_seed(0)
    net = make()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net


def true_dfil(net: nn.Module, x: Tensor, y: Tensor, clipped: bool, h: float | None) -> np.ndarray:
    """Return every record's dFIL over steps of ``h``, or as a derivative, by single gradients."""
    places = PATCH.flatten().nonzero().flatten()
    d = len(places)

    def gradient(record: Tensor, label: Tensor, move: Tensor) -> Tensor:
        moved = record.flatten().clone()
        moved[places] += move
        loss = nn.functional.cross_entropy(net(moved.reshape(1, *record.shape)), label[None])
        parts = torch.autograd.grad(loss, list(net.parameters()))
        g = torch.cat([part.flatten() for part in parts])
        return g / max(1.0, float(g.norm()) / THRESHOLD) if clipped else g

    def squared(record: Tensor, label: Tensor) -> float:
        if h is None:
            units = 1e-5 * torch.eye(d, dtype=torch.float64)
            changes = [
                (gradient(record, label, unit) - gradient(record, label, -unit)) / 2e-5
                for unit in units
            ]
            return float(sum(change.square().sum() for change in changes))
        own = gradient(record, label, torch.zeros(d, dtype=torch.float64))
        every = torch.tensor(list(product((-h, h), repeat=d)), dtype=torch.float64)
        changes = [gradient(record, label, move) - own for move in every]
        return float(sum(change.square().sum() for change in changes)) / h**2 / len(every)

    net.double()
    values = [squared(record, label) for record, label in zip(x.double(), y, strict=True)]
    net.float()
    scale = NOISE * (THRESHOLD if clipped else 1.0)
    return np.sqrt(np.array(values) / d) / scale


def cover(name: str, copies: int) -> dict[str, Any]:
    """Return how many intervals of a network cover the truth, over all and for each record."""
    make, clipped = NETWORKS[name]
    digits = load_digits()
    every = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    net = fitted(make, every, torch.tensor(digits.target))
    x, y = every[:RECORDS], torch.tensor(digits.target[:RECORDS])
    given: dict[str, Any] = {"noise_multiplier": NOISE, "view": sp.nn.Input(PATCH)}
    if clipped:
        given["max_grad_norm"] = THRESHOLD
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sp.nn.KinkWarning)
        if clipped:
            many = x.repeat(copies, 1, 1, 1), y.repeat(copies)
            leak = sp.nn.leakage(net, "cross_entropy", *many, **given)
            found = leak.records("dfil", probes=PROBES)
            low, high = (end.reshape(copies, RECORDS) for end in found.interval())
        else:
            ends = []
            for seed in range(copies):
                k = seed % RECORDS
                one = x[k : k + 1], y[k : k + 1]
                leak = sp.nn.leakage(net, "cross_entropy", *one, **given, seed=seed)
                found = leak.records("dfil", probes=PROBES)
                ends.append(found.interval())
            low, high = (np.array(end).reshape(-1, RECORDS) for end in zip(*ends, strict=True))
    taken = time.process_time() - start
    finite = "over steps of" in found.about
    h = leak.engine.step_size(x, y) if finite else None
    true = true_dfil(net, x, y, clipped, h)
    covers = (low <= true) & (true <= high)
    below, above = float(np.mean(high < true)), float(np.mean(low > true))
    return {
        "intervals": int(covers.size),
        "covered": float(covers.mean()),
        "too low": below,
        "too high": above,
        "worst record": float(covers.mean(0).min()),
        "records below 80 %": int((covers.mean(0) < SELDOM).sum()),
        "half width": float(np.median((high - low) / (2 * true))),
        "step": h,
        "by record": covers.mean(0).round(4).tolist(),
        "seconds": round(taken, 1),
    }


def main(words: list[str]) -> int:
    """Measure, print, compare with the claims, and keep the figures."""
    small = "--small" in words
    chosen = [word for word in words if word in NETWORKS] or list(NETWORKS)
    copies = 4 if small else COPIES
    head = ("", "step", "intervals", "covered", "worst record", "half width", "seconds")
    show(*head, widths=WIDTHS)
    figures: dict[str, Any] = {}
    lines, good = [], True
    for name in chosen:
        found = cover(name, copies if NETWORKS[name][1] else copies * RECORDS)
        figures[name] = found
        step = "none" if found["step"] is None else f"{found['step']:g}"
        shares = (f"{100 * found[key]:.1f} %" for key in ("covered", "worst record", "half width"))
        show(name, step, found["intervals"], *shares, found["seconds"], widths=WIDTHS)
        met = LEAST <= found["covered"] <= MOST and found["intervals"] >= 1000
        good &= met
        lines.append(
            f"{'kept' if met else 'MISSED':<7} {name}: {found['intervals']:,} intervals cover "
            f"{100 * found['covered']:.1f} % ({100 * found['too low']:.1f} % below the value, "
            f"{100 * found['too high']:.1f} % above); records below 80 %: "
            f"{found['records below 80 %']} of {RECORDS}"
        )
    if small:
        return 0
    print("", *lines, sep="\n")
    old = json.loads(KEPT.read_text("utf-8"))["networks"] if KEPT.exists() else {}
    every = old | {name: {"made": made_by(), **figures[name]} for name in figures}
    networks = {name: every[name] for name in NETWORKS if name in every}
    keep({"probes": PROBES, "records": RECORDS, "networks": networks}, KEPT)
    return 0 if good else 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))

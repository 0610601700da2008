"""Trains a private network on MNIST, kills it with SIGKILL in mid-run, and resumes it.

Two runs with the same seed, one undisturbed and one killed, must end with the same numbers to the
last bit, with at least 95 % accuracy, and with a leakage for each of the 60,000 records. Run:
``python benchmarks/private_sgd_mnist.py`` (some minutes on two cores).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from reproduction.private_sgd.networks import mnist_cnn
from seepage import data
from seepage.nn.training.checkpoints import read_checkpoint
from seepage.nn.training.private_sgd import PrivateSGD

STEPS, KILLED_AFTER, WANTED = 400, 150, 0.95


def trainer(checkpoint: Path) -> PrivateSGD:
    """Return the trainer: the network of paper 004's Table 1, and settings that learn quickly."""
    torch.manual_seed(0)
    return PrivateSGD(
        mnist_cnn(),
        "cross_entropy",
        steps=STEPS,
        batch_size=600,
        learning_rate=2.5,
        momentum=0.5,
        noise_multiplier=0.5,
        max_grad_norm=2.0,
        clip="smooth",
        seed=0,
        checkpoint=checkpoint,
        checkpoint_every=10,
        evaluate_every=50,
        chunk_size=300,
    )


def train(checkpoint: Path) -> PrivateSGD:
    """Train, or resume from the checkpoint."""
    images = data.load_mnist()
    parts = []
    for split in (images.train, images.test):
        parts.append(torch.tensor(split.pixels, dtype=torch.float32)[:, None] / 255)
        parts.append(torch.tensor(split.labels))
    return trainer(checkpoint).fit(*parts)


def child(checkpoint: Path) -> subprocess.Popen[bytes]:
    """Start the training in a separate process."""
    return subprocess.Popen([sys.executable, __file__, str(checkpoint)])  # noqa: S603


def steps_in(checkpoint: Path) -> int:
    """Return the progress of a checkpoint in steps; zero if there is none."""
    return int(read_checkpoint(checkpoint)[1]["step"]) if checkpoint.exists() else 0


def main() -> int:
    """Run both, compare, and report."""
    with tempfile.TemporaryDirectory() as folder:
        alone, killed = Path(folder, "alone.safetensors"), Path(folder, "killed.safetensors")
        start = time.perf_counter()
        if child(alone).wait():
            return 1
        seconds = time.perf_counter() - start
        process = child(killed)
        while process.poll() is None and steps_in(killed) < KILLED_AFTER:
            time.sleep(0.2)
        process.kill()
        process.wait()
        reached = steps_in(killed)
        if child(killed).wait():
            return 1
        same = equal(alone, killed)
        done = train(alone)  # it only reads the finished checkpoint
    accuracy = done.history_[-1].accuracy or 0.0
    rows = np.asarray(done.accountant_.records("dfil"))
    print(f"{STEPS} steps of 600 records in {seconds:.0f} s; accuracy {100 * accuracy:.2f} %")
    print(f"{done.accountant_.privacy(1e-5)}")
    middle, largest = np.nanmedian(rows), np.nanmax(rows)
    print(f"dFIL of {len(rows):,} records: median {middle:.3g}, largest {largest:.3g}")
    print(f"killed after {reached} steps and resumed: {'same' if same else 'OTHER'} final numbers")
    return 0 if same and accuracy >= WANTED and 0 < reached < STEPS else 1


def equal(first: Path, second: Path) -> bool:
    """Return whether two checkpoints hold the same bits and facts."""
    (a, known), (b, other) = read_checkpoint(first), read_checkpoint(second)
    return known == other and a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]))
        sys.exit(0)
    sys.exit(main())

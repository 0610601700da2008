"""The cost of recording over 200 rounds: constant per round, and a folder linear in rounds.

Twelve clients send a CNN with BatchNorm (17,000 parameters) back to a server that records their
updates. Two servers are timed: one recorder for all rounds, and one that is made anew for every
round (``resume=True``), as by clients that Flower starts anew for every message. Times are
processor time, so that other work on the machine does not count. Beside them is the time in which
one client trains for an epoch on 64 images. The claims:

- the median round of the last fifth costs at most 1.5 times that of the first fifth;
- every round adds the same number of bytes, within 1 %.

Figures are written to ``benchmarks/results/federated_recording.json`` by
``python benchmarks/federated_recording.py``; ``--rounds 20`` takes seconds and keeps nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from keeping import keep
from measuring import show
from seepage.layers.federated.flower import UpdateRecorder

CLIENTS, ROUNDS, RECORDS = 12, 200, 64
WIDTHS = (34, 14, 14, 14, 14)
RESULTS = Path(__file__).parent / "results" / "federated_recording.json"


def network() -> nn.Module:
    """Return a CNN with BatchNorm for images of 28 × 28."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 49, 8),
    )


def training_seconds(net: nn.Module) -> float:
    """Return the processor time of one client's epoch."""
    x, y = torch.rand(RECORDS, 1, 28, 28), torch.randint(0, 8, (RECORDS,))
    optimizer = torch.optim.Adam(net.parameters())
    took = []
    for _ in range(5):
        start = time.process_time()
        for rows in torch.randperm(RECORDS).split(16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
        took.append(time.process_time() - start)
    return float(np.median(took))


def replies(state: dict[str, Tensor], number: int) -> list[dict[str, Tensor]]:
    """Return what the clients return in a round: the state, changed at random."""
    draw = torch.Generator().manual_seed(number)
    return [
        {
            name: value + 0.01 * torch.randn(value.shape, generator=draw)
            if value.is_floating_point()
            else value + 4
            for name, value in state.items()
        }
        for _ in range(CLIENTS)
    ]


def record(folder: Path, rounds: int, *, anew: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds and the folder's bytes after every round."""
    net = network()
    state = net.state_dict()
    recorder = UpdateRecorder(net, folder)
    took, size = [], []
    for number in range(1, rounds + 1):
        returned = replies(state, number)
        start = time.process_time()
        if anew:
            recorder = UpdateRecorder(net, folder, resume=True)
        for client, each in enumerate(returned):
            metrics = {"num-examples": RECORDS}
            recorder.add(state, each, number, client + 1, metrics, 1, client)
        recorder.save()
        took.append(time.process_time() - start)
        size.append(sum(file.stat().st_size for file in folder.iterdir()))
    return np.array(took), np.array(size)


def main() -> int:
    """Record, print, and say which claims hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    fifth = max(1, rounds // 5)
    trained = training_seconds(network())
    print(f"one client's epoch: {1e3 * trained:.0f} ms; recording {CLIENTS} clients:")
    show("", "first fifth", "last fifth", "ratio", "bytes a round", widths=WIDTHS)
    rows: dict[str, Any] = {}
    good = True
    for name, anew in (("one recorder", False), ("a new recorder every round", True)):
        with tempfile.TemporaryDirectory() as place:
            took, size = record(Path(place) / "updates", rounds, anew=anew)
        first, last = (float(np.median(part)) for part in (took[:fifth], took[-fifth:]))
        added = np.diff(size)
        spread = float(np.ptp(added) / added.mean())
        good &= last <= 1.5 * first and spread <= 0.01
        rows[name] = {
            "milliseconds a round, first fifth": 1e3 * first,
            "milliseconds a round, last fifth": 1e3 * last,
            "ratio": last / first,
            "bytes a round": float(added.mean()),
            "largest difference between rounds, share": spread,
            "megabytes after all rounds": size[-1] / 1e6,
        }
        cells = [f"{1e3 * first:.1f} ms", f"{1e3 * last:.1f} ms", f"{last / first:.2f}"]
        show(name, *cells, f"{added.mean():.0f}", widths=WIDTHS)
    print(f"cost per round constant, folder linear: {'holds' if good else 'FAILS'}")
    if rounds == ROUNDS:
        setting = {"clients": CLIENTS, "rounds": rounds, "one client's epoch, ms": 1e3 * trained}
        keep({**setting, "recorders": rows, "holds": good}, RESULTS)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

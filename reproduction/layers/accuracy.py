"""Trains the networks of Mo et al. 2021 until their accuracy no longer rises, round by round.

``python -m reproduction.layers.accuracy --device cuda --out FILE`` trains every network with
several seeds, with people kept apart and with images drawn at random, and writes the accuracy on
test and training images at :data:`POINTS` rounds. The training is that of
:mod:`reproduction.layers.experiment`: FedSGD with two clients whose batches have one size, which is
a step along the mean gradient of both batches together. An existing file is continued.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reproduction.layers.image_sets import LabelledImages
from reproduction.layers.measuring import (
    NETWORKS,
    Amounts,
    LayerRepetition,
    LayerSetting,
    started,
)
from reproduction.layers.pool import NotPreparedError, run_jobs, write_runs
from reproduction.provenance import made_by
from seepage.errors import InputError
from seepage.nn.training.private_sgd import measure_accuracy

_MODULE = "reproduction.layers.accuracy"
TASK = LayerSetting("FCNet", "Gender", ("Glasses",))  # the rows are those of Figure 1
SPLITS = ("people", "images")
POINTS = 40
WARM_UP = 3  # rounds before a step is recorded as a graph, as PyTorch asks

_data: LabelledImages | None = None  # of a worker, read once


class FederatedTraining:
    """FedSGD with two clients, one step a round, its batches drawn in advance."""

    def __init__(self, net: nn.Module, x: Tensor, y: Tensor, batches: Tensor, lr: float) -> None:
        self.net, self.x, self.y, self.batches, self.lr = net, x, y, batches, lr
        self.round = torch.zeros(1, dtype=torch.long, device=x.device)
        self._parameters = list(net.parameters())

    def step(self) -> None:
        """Take one round."""
        rows = self.batches.index_select(0, self.round)[0]
        output = self.net(self.x.index_select(0, rows))
        loss = nn.functional.cross_entropy(output, self.y.index_select(0, rows))
        gradients = torch.autograd.grad(loss, self._parameters)
        with torch.no_grad():
            torch._foreach_add_(self._parameters, gradients, alpha=-self.lr)
            self.round += 1

    def recorded(self) -> Callable[[], None]:
        """Return what takes one round: on an accelerator a recorded graph, which starts faster."""
        if self.x.device.type != "cuda":
            return self.step
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.step()
        except RuntimeError as error:
            print(f"no graph: {error}", flush=True)
            return self.step
        replay: Callable[[], None] = graph.replay
        return replay


def draw_batches(clients: Sequence[np.ndarray], size: int, rounds: int, seed: int) -> Tensor:
    """Return the places of every round's records: ``size`` of each client without replacement."""
    draw = torch.Generator().manual_seed(seed)
    parts, first = [], 0
    for rows in clients:
        places = [torch.randperm(len(rows), generator=draw)[:size] for _ in range(rounds)]
        parts.append(torch.stack(places) + first)
        first += len(rows)
    return torch.cat(parts, dim=1)


def accuracy_by_round(
    data: LabelledImages, network: str, split: str, lr: float, seed: int, rounds: int
) -> dict[str, Any]:
    """Train once; return the accuracies at :data:`POINTS` rounds and at the last."""
    setting = LayerSetting(network, TASK.task, TASK.properties, split=split)
    repetition = LayerRepetition(data, setting, Amounts(), seed)
    sides = (repetition.adversary, repetition.client)
    x, y = repetition.task(np.concatenate(sides))
    test = repetition.task(repetition.test)
    torch.manual_seed(seed)
    net = started(NETWORKS[network](size=data.size)).to(x.device)
    batches = draw_batches(sides, Amounts.batch_size, rounds, seed).to(x.device)
    training = FederatedTraining(net, x, y, batches, lr)
    step = training.recorded()
    done = int(training.round)
    seen: dict[str, list[float]] = {"rounds": [], "test": [], "train": []}
    for last in np.unique(np.linspace(0, rounds, POINTS + 1).round().astype(int))[1:]:
        for _ in range(done, last):
            step()
        done = max(done, int(last))
        if not all(bool(p.isfinite().all()) for p in net.parameters()):
            raise InputError(f"{network} has diverged at learning rate {lr}; choose a smaller one.")
        seen["rounds"].append(done)
        seen["test"].append(round(measure_accuracy(net, *test), 5))
        seen["train"].append(round(measure_accuracy(net, x, y), 5))
    return {"network": network, "split": split, "lr": lr, "seed": seed, **seen}


def _prepare(folder: str | None, device: str) -> None:
    """Read the images once in every worker."""
    global _data
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True  # the same few shapes over and over
    _data = LabelledImages.load("lfw", folder, device)


def _work(network: str, split: str, lr: float, seed: int, rounds: int) -> dict[str, Any]:
    begin = time.monotonic()
    if _data is None:
        raise RuntimeError("The worker has no images.")
    found = accuracy_by_round(_data, network, split, lr, seed, rounds)
    return found | {"seconds": time.monotonic() - begin}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}", description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", help="the folder that holds lfw/, or a packed file")
    parser.add_argument("--network", action="append", choices=list(NETWORKS))
    parser.add_argument("--split", action="append", choices=SPLITS)
    parser.add_argument("--lr", type=float, action="append")
    parser.add_argument("--rounds", type=int, default=12_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0, help="processes; 0 for most cores")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--commit", help="of this code, where there is no repository to ask")
    given = parser.parse_args(arguments)
    stop = time.monotonic() + 60 * given.minutes
    told = sys.argv[1:] if arguments is None else arguments
    record: dict[str, Any] = {
        **made_by(_MODULE, told, given.out, given.device, given.commit),
        "rounds": given.rounds,
        "batch_size": Amounts.batch_size,
        "runs": [],
    }
    if given.out.exists():
        record = json.loads(given.out.read_text(encoding="utf-8"))
        if record["rounds"] != given.rounds:
            sys.exit(f"{given.out} was made with other rounds; name another file.")
    names = ("seed", "lr", "split", "network")
    done = {tuple(run[name] for name in names) for run in record["runs"]}
    cases = itertools.product(
        range(given.seeds),
        given.lr or [Amounts.lr],
        given.split or SPLITS,
        given.network or NETWORKS,
    )
    jobs = [(*case[::-1][:2], case[1], case[0]) for case in cases if case not in done]

    def keep(found: dict[str, Any]) -> None:
        print(
            f"{found['network']}, {found['split']}, seed {found['seed']}: "
            f"test {found['test'][-1]:.3f}, train {found['train'][-1]:.3f}, "
            f"{found.pop('seconds'):.0f} s",
            flush=True,
        )
        record["runs"].append(found)
        write_runs(record, given.out, names)

    try:
        run_jobs(
            _work,
            [(*job, given.rounds) for job in jobs],
            keep=keep,
            prepare=_prepare,
            given=(given.data, given.device),
            workers=given.workers,
            stop=stop,
        )
    except NotPreparedError as error:
        sys.exit(f"error: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Whether an attacker with auxiliary data finds a property of the clients, and how often wrongly.

Small clients train by FedAvg on images, and every update is recorded with the models that were
sent. Half of the clients have a property. **Planted**: a corner of 10, 30 or 100 % of a client's
images is brighter. **Natural**: the client's images have much ink (or light): they come from the
brighter half of the images of their class, so labels say nothing. **Null**: random labels on the
same recordings, which neither attacker may find in more than 5 of 100.

The attacker has other images, trains 20 shadow clients of each kind from the sent models by the
clients' recipe (:class:`seepage.attacks.ShadowClients`), and attacks every layer. "Found" is a
P-value of at most 5 % over all layers and both attackers: this one, and the one who knows the
property of the other clients. Three data sets (scikit-learn's digits; MNIST and CIFAR-10,
two by two pixels averaged) and two networks, one with BatchNorm.

Figures are written to ``benchmarks/results/planted_property.json`` by
``python benchmarks/planted_property.py``; ``--runs 1`` takes a minute. ``--data``, ``--cases``,
``--shadows``, ``--rounds``, ``--first`` (seed) and ``--keep`` (file) change it. The least clear
case on seeds that no choice has seen: ``--data cifar10 --cases "100 %" --first 500 --keep
benchmarks/results/planted_property-cifar10.json``.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import seepage as sp
from keeping import keep
from measuring import show
from seepage.layers.measures.first_round import compare_attackers

RESULTS = Path(__file__).parent / "results" / "planted_property.json"
RUNS = 10
LABELLINGS = 10  # random ones, for each run of the planted share of 100 %
CLIENTS, ROUNDS, RECORDS, SHADOWS = 12, 2, 50, 20
IMAGES = 8000  # of MNIST and CIFAR-10
BRIGHTER = 1.0  # added to a corner, where images lie between 0 and 1
FIRST_SEED = 100  # sizes were chosen on seeds below
WIDTHS = (9, 12, 10, 12, 14, 12, 10)
CASES = ("10 %", "30 %", "100 %", "natural")
Data = tuple[Tensor, Tensor]
IMAGES_OF: dict[str, Data] = {}


def images(name: str) -> Data:
    """Return the images of a data set, small and with one channel, and their classes."""
    if name == "digits":
        found = sp.data.load_bundled("digits")
        return torch.tensor(found.X / 16).float().view(-1, 1, 8, 8), torch.tensor(found.y)
    found = getattr(sp.data, f"load_{name}")(download=False).train
    x = torch.tensor(found.pixels[:IMAGES]).float() / 255
    x = x[:, None] if x.dim() == 3 else x.mean(3)[:, None]
    return nn.functional.avg_pool2d(x, 2), torch.tensor(found.labels[:IMAGES])


def network(side: int, norm: bool, seed: int) -> nn.Module:
    """Return a small convolutional network, with or without BatchNorm."""
    torch.manual_seed(seed)
    left = side // 2
    net = nn.Sequential()
    net.add_module("conv", nn.Conv2d(1, 6, 3, padding=1))
    if norm:
        net.add_module("norm", nn.BatchNorm2d(6))
    net.add_module("bend", nn.ReLU())
    net.add_module("pool", nn.MaxPool2d(2))
    net.add_module("flat", nn.Flatten())
    net.add_module("hidden", nn.Linear(6 * left * left, 16))
    net.add_module("bend2", nn.ReLU())
    net.add_module("exit", nn.Linear(16, 10))
    return net


def bright_corner(x: Tensor, rows: Tensor) -> Tensor:
    """Return images of which some have a brighter corner."""
    side = round(0.35 * x.shape[-1])
    changed = x.clone()
    changed[rows, :, :side, :side] += BRIGHTER
    return changed


def much_ink(x: Tensor, y: Tensor) -> Tensor:
    """Return whether an image is brighter than half of the images of its class."""
    ink = x.mean((1, 2, 3))
    return torch.stack([ink > ink[y == k].median() for k in range(10)])[y, torch.arange(len(y))]


def run(
    name: str, data: Data, norm: bool, case: str, seed: int, shadows: int, rounds: int
) -> dict[str, Any]:
    """Return what is found in one recording, and with random labels."""
    draw = torch.Generator().manual_seed(seed)
    x, y = data
    order = torch.randperm(len(y), generator=draw)
    mine, theirs = order[: len(y) // 2], order[len(y) // 2 :]
    having = torch.randperm(CLIENTS, generator=draw) % 2
    ink = much_ink(x, y)
    clients = []
    for client in range(CLIENTS):
        pool = mine[ink[mine] == bool(having[client])] if case == "natural" else mine
        rows = pool[torch.randperm(len(pool), generator=draw)[:RECORDS]]
        own = x[rows]
        if case != "natural" and having[client]:
            share = int(case.removesuffix(" %")) / 100
            own = bright_corner(
                own, torch.randperm(RECORDS, generator=draw)[: round(share * RECORDS)]
            )
        clients.append((own, y[rows]))
    net, seen = network(x.shape[-1], norm, seed), []
    recipe = {"method": "fedavg", "lr": 0.1, "batch_size": 25, "local_epochs": 1}
    trained = sp.layers.simulate(
        net,
        "cross_entropy",
        clients,
        rounds=rounds,
        snapshots=range(rounds),
        observe=seen.append,
        seed=seed,
        **recipe,
    )
    recording = sp.layers.record_updates(net, seen)
    if case == "natural":
        auxiliary, has = (x[theirs], y[theirs]), ink[theirs].numpy()
    else:
        both = torch.cat([theirs, theirs])
        has = np.repeat([False, True], len(theirs))
        auxiliary = (bright_corner(x[both], torch.from_numpy(has)), y[both])
    attacker = sp.attacks.ShadowClients(
        net,
        "cross_entropy",
        auxiliary,
        has.astype(int),
        records=RECORDS,
        clients=shadows,
        mix="matched",
        seed=seed,
        **recipe,
    )
    scores = attacker.scores(recording, models=trained.snapshots)
    labels = having.numpy()[np.asarray(recording.nodes).astype(int)]
    found = judged(recording, labels, scores, seed)
    alone, _ = compare_attackers(recording, labels, None, permutations=199, seed=seed)
    found["without_auxiliary"] = float(alone.p_values.min()) <= 0.05
    if case == "100 %":
        draws = np.random.default_rng(seed)
        nodes = np.asarray(recording.nodes).astype(int)
        false = [
            judged(recording, draws.permutation(np.arange(CLIENTS) % 2)[nodes], scores, seed + k)
            for k in range(LABELLINGS)
        ]
        found["null_found"] = sum(each["found"] for each in false)
    return {"data": name, "batch_norm": norm, "case": case, "seed": seed, **found}


def judged(recording: Any, labels: np.ndarray, scores: Any, seed: int) -> dict[str, Any]:
    """Return what both attackers find, adjusted for both."""
    over, test = compare_attackers(recording, labels, scores, permutations=199, seed=seed)
    known, auxiliary = float(over.p_values.min()), float(test.p_values.min())
    return {
        "found": min(known, auxiliary) <= 0.05,
        "with_auxiliary": auxiliary <= 0.05,
        "auc": round(float(test.auc[test.best]), 4),
        "layer": test.layers[test.best],
    }


def run_all(
    cell: tuple[str, bool, str], seeds: range, shadows: int, rounds: int
) -> list[dict[str, Any]]:
    """Return what is found with every seed, for one data set, network and property."""
    name, norm, case = cell
    return [run(name, IMAGES_OF[name], norm, case, seed, shadows, rounds) for seed in seeds]


def main() -> None:
    """Print how often the property is found, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--first", type=int, default=FIRST_SEED)
    parser.add_argument("--data", nargs="*", default=["digits", "mnist", "cifar10"])
    parser.add_argument("--shadows", type=int, default=SHADOWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--keep", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows, table, began = [], [], time.perf_counter()
    show("data", "BatchNorm", "share", "found", "one attacker", "median AUC", "null", widths=WIDTHS)
    for name in given.data:
        IMAGES_OF[name] = images(name)
    cells = list(product(given.data, (False, True), given.cases))
    seeds = range(given.first, given.first + given.runs)
    options = (seeds, given.shadows, given.rounds)
    with ProcessPoolExecutor(2) as workers:  # they inherit the images
        for (name, norm, case), some in zip(
            cells, workers.map(run_all, cells, *map(repeat, options)), strict=True
        ):
            rows += some
            line = {
                "data": name,
                "batch_norm": norm,
                "case": case,
                "runs": len(some),
                "found": sum(each["found"] for each in some),
                "found_without_auxiliary": sum(each["without_auxiliary"] for each in some),
                "median_auc": float(np.median([each["auc"] for each in some])),
                "null_tests": LABELLINGS * len(some) if case == "100 %" else 0,
                "null_found": sum(each.get("null_found", 0) for each in some),
            }
            table.append(line)
            show(
                name,
                "yes" if norm else "no",
                case,
                f"{line['found']} of {line['runs']}",
                f"{line['found_without_auxiliary']} of {line['runs']}",
                f"{line['median_auc']:.3f}",
                f"{line['null_found']} of {line['null_tests']}" if line["null_tests"] else "-",
                widths=WIDTHS,
            )
    minutes = (time.perf_counter() - began) / 60
    print(f"\n{minutes:.1f} minutes")
    if given.runs == RUNS and (given.keep != RESULTS or len(table) == 3 * 2 * len(CASES)):
        sizes = {
            "shadow_clients_of_a_kind": given.shadows,
            "clients": CLIENTS,
            "records": RECORDS,
            "rounds": given.rounds,
        }
        keep({"minutes": round(minutes, 1), **sizes, "table": table, "runs": rows}, given.keep)


if __name__ == "__main__":
    main()

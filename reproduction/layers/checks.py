"""Checks of where the LFW experiment departs from the paper: who is tested, on how many numbers.

``python -m reproduction.layers.checks --out FILE`` trains FCNet on the CPU, in minutes, and writes

- its accuracy when people are kept apart, and when images are drawn at random, so that the training
  set has other pictures of most people in the test set;
- the AUC of the attack on its first two layers when the adversary sees 2,048 random combinations
  of a layer's numbers, as for the figures, and when he sees all of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reproduction.layers.image_sets import LabelledImages
from reproduction.layers.measuring import (
    NETWORKS,
    Amounts,
    LayerRepetition,
    LayerSetting,
    started,
)
from reproduction.provenance import made_by
from seepage.attacks import attack_layers
from seepage.layers import FederatedRun, simulate
from seepage.nn.training.private_sgd import measure_accuracy

_MODULE = "reproduction.layers.checks"
SETTING = LayerSetting("FCNet", "Gender", ("Glasses",))
MIXED = replace(SETTING, split="images")
LAYERS = ("fc1", "fc2")
REPETITIONS = 1
WHOLE = 10**6  # numbers, more than any layer has


def trained(repetition: LayerRepetition) -> tuple[FederatedRun, float]:
    """Return the run of a repetition, and its accuracy on the test images."""
    amounts, number = repetition.amounts, repetition.number
    torch.manual_seed(number)
    last = amounts.rounds
    run = simulate(
        started(NETWORKS[SETTING.network](size=repetition.data.size)),
        "cross_entropy",
        [repetition.task(repetition.adversary), repetition.task(repetition.client)],
        rounds=last,
        batch_size=amounts.batch_size,
        lr=amounts.lr,
        snapshots=np.linspace(last // 2, last, amounts.snapshots + 1).round().astype(int).tolist(),
        seed=number,
    )
    return run, measure_accuracy(run.net, *repetition.task(repetition.test))


def attacked(repetition: LayerRepetition, run: FederatedRun, width: int) -> dict[str, float]:
    """Return the AUC of the attack on the first layers, given how many numbers are seen."""
    seeing = LayerRepetition(
        repetition.data, SETTING, replace(repetition.amounts, width=width), repetition.number
    )
    (name,) = SETTING.properties
    parts = [
        seeing.at_snapshots(name, run, rows, seeing.task(rows), count, "matched", seed)
        for rows, count, seed in (
            (seeing.adversary, seeing.amounts.known, 2),
            (seeing.client, seeing.amounts.seen, 3),
        )
    ]
    (known, known_property), (seen, seen_property) = parts
    found = {}
    for layer in LAYERS:
        sides = [{layer: part.blocks[layer]} for part in (known, seen)]
        attack = attack_layers(
            sides[0], known_property, sides[1], seen_property, seed=repetition.number
        )
        found[layer] = float(attack.values[0])
    return found


def check(data: LabelledImages, amounts: Amounts, repetitions: int) -> list[dict[str, Any]]:
    """Return a row for every repetition."""
    rows = []
    for number in range(repetitions):
        apart = LayerRepetition(data, SETTING, amounts, number)
        run, accuracy = trained(apart)
        _, mixed = trained(LayerRepetition(data, MIXED, amounts, number))
        rows.append(
            {
                "people apart": round(accuracy, 4),
                "images at random": round(mixed, 4),
                "projected": attacked(apart, run, amounts.width),
                "whole": attacked(apart, run, WHOLE),
            }
        )
        print(rows[-1], flush=True)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog=f"python -m {_MODULE}")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    given = parser.parse_args(arguments)
    amounts = Amounts()
    rows = check(LabelledImages.load("lfw", None, "cpu"), amounts, given.repetitions)
    told = sys.argv[1:] if arguments is None else arguments
    found = {
        **made_by(_MODULE, told, given.out, "cpu"),
        "amounts": asdict(amounts),
        "rows": rows,
    }
    given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs Mo et al. 2021's experiment, many repetitions at a time, and writes the results.

``python -m reproduction.layers.experiment --device cuda --minutes 9 --out FILE`` goes through the
settings of Figures 1 to 3, repetition by repetition, until all are done or the time is up. An
existing file is continued, and names each command that did so. ``--set`` names the images
(``lfw``, ``celeba``, ``pubfig``, ``pubfig83`` for crops with the publishers' numbers, ``cifar10``)
or a folder of images with ``labels.csv``; ``--network``, ``--task`` and ``--property`` choose
another setting, ``--split`` and ``--attacker`` how it is split and attacked::

    python -m reproduction.layers.experiment --set cifar10 --task Animal --property Flies --out FILE
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from reproduction.layers.image_sets import LabelledImages
from reproduction.layers.measuring import NETWORKS, Amounts, LayerRepetition, LayerSetting
from reproduction.layers.pool import run_jobs, write_runs
from reproduction.provenance import made_by

SETTINGS = (
    LayerSetting("VGG11Net", "Glasses", ("Age", "Gender", "Hair")),  # the longest first
    LayerSetting("VGG11Net", "Gender", ("Glasses",), confounded=True),
    LayerSetting("FCNet", "Gender", ("Glasses",), confounded=True),
    LayerSetting("AlexNet", "Gender", ("Glasses",), confounded=True),
    LayerSetting("VGG11Net", "Hair"),
    LayerSetting("AlexNet", "Glasses"),
    LayerSetting("AlexNet", "Hair"),
)
FACTORS = {"set": "lfw", "images": None, "split": "people", "attacker": "random_forest"}
REPETITIONS = 20
SMALL = Amounts(rounds=4, snapshots=2, known=5, seen=4, measured=10, samples=8, width=256)

_data: LabelledImages | None = None  # of a worker, read once


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", default="lfw", help="such as lfw or cifar10, or a folder")
    parser.add_argument(
        "--data", help="the folder that holds lfw/ and the others, or a packed file"
    )
    parser.add_argument("--images", type=int, help="how many, from the first; all by default")
    parser.add_argument("--size", type=int, nargs=2, default=(64, 64), help="of a folder's images")
    parser.add_argument("--network", action="append", choices=list(NETWORKS))
    parser.add_argument("--task", help="a label of the images, in place of the paper's settings")
    parser.add_argument("--property", action="append", default=[], help="a label of the images")
    parser.add_argument("--split", default="people", choices=("people", "images"))
    parser.add_argument(
        "--attacker", default="random_forest", help="or logistic or mlp, a small network"
    )
    parser.add_argument("--workers", type=int, default=0, help="processes; 0 for most cores")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--rounds", type=int, default=Amounts.rounds)
    parser.add_argument(
        "--only",
        action="append",
        choices=[setting.name for setting in SETTINGS],
        help="one setting; may be given several times",
    )
    parser.add_argument("--commit", help="of this code, where there is no repository to ask")
    parser.add_argument("--small", action="store_true", help="next to nothing, to see it run")
    given = parser.parse_args(arguments)
    amounts = SMALL if given.small else replace(Amounts(), rounds=given.rounds)
    stop = time.monotonic() + 60 * given.minutes
    told = sys.argv[1:] if arguments is None else arguments
    made = made_by("reproduction.layers.experiment", told, given.out, given.device, given.commit)
    factors = {name: getattr(given, name) for name in FACTORS}
    record = _begin(given.out, amounts, made, factors)
    done = {(r["network"], r["task"], r["repetition"]) for r in record["runs"]}
    jobs = [
        (setting, number)
        for number in range(given.repetitions)
        for setting in _settings(given)
        if not given.only or setting.name in given.only
        if (setting.network, setting.task, number) not in done
    ]
    begin = time.monotonic()

    def keep(found: dict[str, Any]) -> None:
        record["runs"].append(found)
        print(
            f"{time.monotonic() - begin:6.0f} s  {found['network']}, {found['task']}, "
            f"repetition {found['repetition']}: accuracy {found['accuracy']:.3f}, "
            f"{found.pop('seconds'):.0f} s",
            flush=True,
        )
        write_runs(record, given.out, ("network", "task", "repetition"))

    run_jobs(
        _work,
        [(setting, amounts, number) for setting, number in jobs],
        keep=keep,
        prepare=_prepare,
        given=(given.set, given.data, given.device, tuple(given.size), given.images),
        workers=given.workers,
        stop=stop,
    )
    return 0


def _settings(given: argparse.Namespace) -> list[LayerSetting]:
    """Return the paper's settings, or one for each network with the task that was asked for."""
    if given.task is None:
        chosen = [s for s in SETTINGS if not given.network or s.network in given.network]
    else:
        chosen = [
            LayerSetting(network, given.task, tuple(given.property), confounded=True)
            for network in given.network or NETWORKS
        ]
    return [replace(s, split=given.split, attacker=given.attacker) for s in chosen]


def _prepare(
    name: str, folder: str | None, device: str, size: tuple[int, int], count: int | None
) -> None:
    """Read the images once in every worker."""
    global _data
    import torch

    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True  # the same few shapes over and over
    _data = LabelledImages.load(name, folder, device, size, count)


def _work(setting: LayerSetting, amounts: Amounts, number: int) -> dict[str, Any]:
    begin = time.monotonic()
    assert _data is not None  # noqa: S101  set by the initialiser
    found = LayerRepetition(_data, setting, amounts, number).run()
    return found | {"seconds": time.monotonic() - begin}


def _begin(
    out: Path, amounts: Amounts, made: dict[str, str], factors: dict[str, Any]
) -> dict[str, Any]:
    """Return the results so far: the file's content, or nothing."""
    import sklearn
    import torch

    if out.exists():
        record: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        if record["amounts"] != asdict(amounts):
            sys.exit(f"{out} was made with other amounts; name another file.")
        # Files of before had LFW, people apart and the forest.
        if FACTORS | record.get("factors", {}) != factors:
            sys.exit(f"{out} was made with another set, split or attacker; name another file.")
        record.setdefault("continued", []).append(made)
        return record
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
        "scikit-learn": sklearn.__version__,
    }
    return {
        **made,
        "versions": versions,
        "amounts": asdict(amounts),
        "factors": factors,
        "runs": [],
    }


if __name__ == "__main__":
    sys.exit(main())

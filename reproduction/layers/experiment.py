"""Runs Mo et al. 2021's experiment, many repetitions at a time, and writes the results.

``python -m reproduction.layers.experiment --device cuda --minutes 9 --out FILE`` goes through the
settings of Figures 1 to 3, repetition by repetition, until all are done or the time is up. An
existing file is continued. ``--set`` names the images (``lfw``, ``celeba``, ``pubfig``,
``cifar10``) or a folder of images with ``labels.csv``; ``--network``, ``--task`` and ``--property``
choose another setting, ``--split`` and ``--attacker`` how it is split and attacked::

    python -m reproduction.layers.experiment --set cifar10 --task Animal --property Flies --out FILE
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from reproduction.layers.image_sets import LabelledImages
from reproduction.layers.measuring import NETWORKS, Amounts, LayerRepetition, LayerSetting
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
FACTORS = {"set": "lfw", "split": "people", "attacker": "random_forest"}
REPETITIONS = 20
SMALL = Amounts(rounds=4, snapshots=2, known=5, seen=4, measured=10, samples=8, width=256)

_data: LabelledImages | None = None  # of a worker, read once


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", default="lfw", help="lfw, celeba, pubfig, cifar10 or a folder")
    parser.add_argument("--data", default=None, help="the folder that holds lfw/ and the others")
    parser.add_argument("--size", type=int, nargs=2, default=(64, 64), help="of a folder's images")
    parser.add_argument("--network", action="append", choices=list(NETWORKS))
    parser.add_argument("--task", help="a label of the images, in place of the paper's settings")
    parser.add_argument("--property", action="append", default=[], help="a label of the images")
    parser.add_argument("--split", default="people", choices=("people", "images"))
    parser.add_argument(
        "--attacker", default="random_forest", help="as for attack_layers: logistic, …"
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
    factors = {"set": given.set, "split": given.split, "attacker": given.attacker}
    record = _begin(given.out, amounts, made, factors)
    done = {(r["network"], r["task"], r["repetition"]) for r in record["runs"]}
    jobs = [
        (setting, number)
        for number in range(given.repetitions)
        for setting in _settings(given)
        if not given.only or setting.name in given.only
        if (setting.network, setting.task, number) not in done
    ]
    workers = given.workers or max(1, (os.cpu_count() or 1) - 2)
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_prepare,
        initargs=(given.set, given.data, given.device, tuple(given.size)),
    )
    finished = False
    try:
        finished = _collect(pool, jobs, amounts, stop, record, given.out)
    finally:
        if not finished:
            for process in list((pool._processes or {}).values()):
                process.terminate()  # unfinished work is not waited for
        pool.shutdown(wait=finished, cancel_futures=True)
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


def _collect(
    pool: ProcessPoolExecutor,
    jobs: list[tuple[LayerSetting, int]],
    amounts: Amounts,
    stop: float,
    record: dict[str, Any],
    out: Path,
) -> bool:
    """Hand out the jobs, write the file after each result; return whether all finished."""
    waiting: set[Future[dict[str, Any]]] = {
        pool.submit(_work, setting, amounts, number) for setting, number in jobs
    }
    begin = time.monotonic()
    while waiting:
        finished, waiting = wait(
            waiting, timeout=max(0.0, stop - time.monotonic()), return_when=FIRST_COMPLETED
        )
        if not finished:
            print(f"time is up: {len(waiting)} repetitions are left out", flush=True)
            return False
        for future in finished:
            found = future.result()
            record["runs"].append(found)
            print(
                f"{time.monotonic() - begin:6.0f} s  {found['network']}, {found['task']}, "
                f"repetition {found['repetition']}: accuracy {found['accuracy']:.3f}, "
                f"{found.pop('seconds'):.0f} s",
                flush=True,
            )
        _write(record, out)
    return True


def _prepare(name: str, folder: str | None, device: str, size: tuple[int, int]) -> None:
    """Read the images once in every worker."""
    global _data
    import torch

    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True  # the same few shapes over and over
    _data = LabelledImages.load(name, folder, device, size)


def _work(setting: LayerSetting, amounts: Amounts, number: int) -> dict[str, Any]:
    begin = time.monotonic()
    assert _data is not None  # noqa: S101  set by the initialiser
    found = LayerRepetition(_data, setting, amounts, number).run()
    return found | {"seconds": time.monotonic() - begin}


def _begin(
    out: Path, amounts: Amounts, made: dict[str, str], factors: dict[str, str]
) -> dict[str, Any]:
    """Return the results so far: the file's content, or nothing."""
    import sklearn
    import torch

    if out.exists():
        record: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        if record["amounts"] != asdict(amounts):
            sys.exit(f"{out} was made with other amounts; name another file.")
        # Files of before had LFW, people apart and the forest.
        if record.get("factors", FACTORS) != factors:
            sys.exit(f"{out} was made with another set, split or attacker; name another file.")
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


def _write(record: dict[str, Any], out: Path) -> None:
    """Write the file whole or not at all, one run per line."""
    runs = sorted(record["runs"], key=lambda r: (r["network"], r["task"], r["repetition"]))
    head = json.dumps({k: v for k, v in record.items() if k != "runs"}, ensure_ascii=False)
    lines = ",\n".join(json.dumps(run, ensure_ascii=False) for run in runs)
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(out.name + ".part")
    part.write_text(f'{head[:-1]}, "runs": [\n{lines}\n]}}\n', encoding="utf-8")
    part.replace(out)


if __name__ == "__main__":
    sys.exit(main())

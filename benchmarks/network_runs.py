"""Runs the benchmarks of neural networks: the same networks, options, tables and files for each."""

from __future__ import annotations

import argparse
import gc
import json
import platform
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import seepage.nn as snn
from keeping import made_by
from measuring import show

ON_PROCESSORS = ("mnist", "README", "CNN")  # networks too small for an accelerator
WIDTHS = (58, 10, 9, 10)
Measure = Callable[[torch.device, bool, int], dict[str, Any]]


def images(count: int) -> tuple[Tensor, Tensor, str]:
    """Return MNIST's first training images, or random ones of the same size."""
    import seepage as sp

    try:
        data = sp.data.load_mnist(download=False).train
        x = torch.tensor(data.pixels[:count]).reshape(count, 1, 28, 28).float()
        return x / 255, torch.as_tensor(data.labels[:count]).long(), "MNIST"
    except sp.InputError:
        return torch.rand(count, 1, 28, 28), torch.randint(0, 10, (count,)), "random images"


def table(found: dict[str, dict[str, float]], base: str) -> None:
    """Print seconds, ratios to one of the tasks, and peak memory."""
    show("", "seconds", "ratio", "peak GiB", widths=WIDTHS)
    for name, value in found.items():
        ratio = value["seconds"] / found[base]["seconds"]
        gib = f"{value['gib']:.1f}" if value["gib"] else ""
        show(name, f"{value['seconds']:.4f}", f"{ratio:.2f}", gib, widths=WIDTHS)


def machine(device: torch.device, precision: str, autocast: str | None = None) -> dict[str, Any]:
    """Return a description of the machine."""
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    version = torch.__version__
    found = {"device": name, "torch": version, "threads": threads, "float32 products": precision}
    return found | ({"autocast": autocast} if autocast else {})


def run(benchmark: str, about: str, parts: dict[str, Measure], everywhere: bool = False) -> int:
    """Measure the requested networks, judge their claims and write the figures.

    Without ``--only``, a CPU takes only the small networks, or all of them if they are to be
    measured ``everywhere``, and an accelerator takes the others; ``--small`` takes toy sizes of all
    of them, on any device, as a smoke test.

    Parameters
    ----------
    benchmark
        Its name, which begins the name of the file of results.
    about
        What it measures, for ``--help``.
    parts
        For each network a function of the device, whether to take the toy size, and the number of
        repeats; it returns the figures, among them ``claims`` of the form
        ``name: [value, limit, holds]``.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--small", action="store_true", help="toy sizes")
    parser.add_argument("--only", nargs="*", choices=list(parts))
    parser.add_argument(
        "--precision", default="highest", choices=["highest", "high"], help="of float32 products"
    )
    parser.add_argument("--autocast", choices=["bf16"], help="run under torch.autocast")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    device = torch.device(options.device)
    torch.set_float32_matmul_precision(options.precision)
    torch.backends.cudnn.allow_tf32 = (
        options.precision == "high"
    )  # convolutions like matrix products
    on_cpu = device.type == "cpu"
    there = [name for name in parts if (everywhere and on_cpu) or (name in ON_PROCESSORS) == on_cpu]
    options.out.mkdir(parents=True, exist_ok=True)
    kind = "small" if options.small else device.type
    short = f"-{options.autocast}" if options.autocast else "-tf32" * (options.precision == "high")
    path = options.out / f"{benchmark}-{kind}{short}.json"
    results: dict[str, Any] = {
        "made": made_by(),
        "machine": machine(device, options.precision, options.autocast),
        "small": options.small,
    }
    good = True
    numbers = torch.autocast(device.type, torch.bfloat16) if options.autocast else nullcontext()
    with warnings.catch_warnings(), numbers:
        warnings.simplefilter("ignore", snn.FallbackWarning)
        for name in options.only or (parts if options.small else there):
            results[name] = parts[name](device, options.small, options.repeats)
            good &= judged(results[name]["claims"])
            path.write_text(json.dumps(results, indent=2) + "\n")
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
    print(f"\nwritten to {path}")
    return 0 if good or options.small else 1


def judged(claims: dict[str, list[Any]]) -> bool:
    """Print whether each claim holds, and return whether all do."""
    for claim, (value, limit, holds) in claims.items():
        print(f"{claim}: {value:.2f} (claimed {limit:g}): {'holds' if holds else 'FAILS'}")
    return all(holds for _, _, holds in claims.values())

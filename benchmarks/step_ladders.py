"""Steps of many sizes in bf16 on networks of 0.1, 1.3 and 7 billion parameters, against float32.

Thin finite steps choose their size by a ladder of steps and remove what rounding and curvature add
to the result. This measures ladders of four records along several directions, with the squared
change in float32 along the same directions, in three networks: GPT-2's shape under autocast, and
the decoder of ``lora.py`` with its base in bf16. Whichever ladder chooses the step, claims for
every network and record, over the directions with a float32 value:

- within a tenth of float32;
- within the stated uncertainty and three standard errors of the mean over directions.

The ladders are kept (``results/step_ladders-cuda.json``). Without ``--measure``, the kept ladders
are judged by the code as it is, which needs no accelerator.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

import seepage.nn as snn
from against_float32 import MOST, squared_change
from big_networks import gpt_batch
from keeping import keep
from lora import network
from measuring import show
from seepage.nn.jacobian.finite_changes import StepLadder
from seepage.nn.jacobian.random_directions import key_of

KEPT = Path(__file__).parent / "results" / "step_ladders-cuda.json"
RECORDS, LADDERS, DIRECTIONS = 4, 6, 3
OCTAVES = [1 + k / 2 for k in range(20)]
WIDTHS = (8, 10, 10, 10, 12, 10)


def measured(
    net: nn.Module, whole: nn.Module, x: Tensor, y: Tensor, how: str = "auto"
) -> dict[str, Any]:
    """Return ladders of a network in short numbers, and float32 along some of their directions."""
    view, ladders = snn.Embedding("tokens"), []
    engine = snn.Engine(net, "cross_entropy", clip=snn.NoClip(), view=view, method=how)
    scale = view.scale(net, x, y)
    for seed in range(LADDERS):
        engine.seed = seed
        steps = engine.ladder(x, y, scale, OCTAVES)
        ladders.append(
            {
                "octaves": list(steps.sizes),
                "sizes": list(steps.sizes.values()),
                "squared": [[float(f"{s:.6g}") for s in each] for each in steps.squared.values()],
                "norms": steps.norms.tolist(),
            }
        )
    torch.set_float32_matmul_precision("highest")
    curve = {}
    with torch.autocast(x.device.type, enabled=False):

        def changes(seed: int, h: float | None = None) -> list[float]:
            key = key_of(seed, "size of steps")
            return [squared_change(whole, "tokens", x, y, i, key, h) for i in range(len(y))]

        true = [changes(seed) for seed in range(DIRECTIONS)]
        for h in ladders[0]["sizes"][2:16:2]:
            shares = [np.divide(changes(seed, h), true[seed]) for seed in range(DIRECTIONS)]
            curve[f"{h:g}"] = float(np.mean(shares))
    return {"ladders": ladders, "float32": true, "float32 by step, over a small step": curve}


def misfit(curve: dict[str, float]) -> float:
    """Return how far ``1/(1 + c h²)`` is from float32 at most, where that is above a sixth."""
    seen = np.array(list(curve.values()))
    steps = np.array([float(h) for h in curve])[seen > 1 / 6]
    seen = seen[seen > 1 / 6]
    return float(
        minimize_scalar(
            lambda c: np.abs(1 / (1 + math.exp(c) * steps**2) - seen).max(),
            bounds=(0, 25),
            method="bounded",
        ).fun
    )


def networks(device: torch.device, small: bool) -> dict[str, Any]:
    """Measure the three networks."""
    found, how = {}, "thin" if small else "auto"
    with torch.autocast(device.type, torch.bfloat16):
        for size in ("124M", "1.3B"):
            _, net, x, y = gpt_batch(device, small, size)
            found[size] = measured(net, net, x[:RECORDS], y[:RECORDS], how)
            del net
        torch.manual_seed(0)
        net = network("7B", small, device)
        tokens = net.get_submodule("tokens").num_embeddings
        shape = (2, 16 * RECORDS, 8 if small else 512)
        x, y = torch.randint(0, tokens, shape, device=device)[:, :RECORDS]
        found["7B"] = measured(net, deepcopy(net).float(), x, y, how)
    return found


def judged(size: str, found: dict[str, Any]) -> dict[str, Any]:
    """Print one line for every ladder that may choose the step; return the worst of them."""
    steps = [
        StepLadder(
            dict(zip(each["octaves"], each["sizes"], strict=True)),
            dict(zip(each["octaves"], torch.tensor(each["squared"]).double(), strict=True)),
            torch.tensor(each["norms"]).double(),
        )
        for each in found["ladders"]
    ]
    true = torch.tensor(found["float32"], dtype=torch.float64)
    worst, kept, doubts = 0.0, True, []
    for chosen in steps:
        best = chosen.balanced()
        errors, h, doubt = chosen.errors(best), chosen.sizes[best], chosen.doubt(best)
        seen = torch.stack(
            [errors.removed(s.squared[best], s.norms, h) for s in steps[: len(true)]]
        )
        off = (seen.mean(0) / true.mean(0) - 1).abs()
        scatter = ((seen - true) / true.mean(0)).std(0) / len(true) ** 0.5
        raw = (
            torch.stack([s.squared[best] for s in steps[: len(true)]]).mean(0) / true.mean(0)
        ) - 1
        kept &= bool((off <= doubt + 3 * scatter.mean()).all())
        worst = max(worst, float(off.max()))
        doubts.append(doubt)
        show(
            size,
            f"{h:.2g}",
            f"{float(raw.abs().max()):.1%}",
            f"{float(off.max()):.1%}",
            f"{doubt:.1%}",
            f"{float(scatter.mean()):.1%}",
            widths=WIDTHS,
        )
    off_curve = misfit(found["float32 by step, over a small step"])
    print(f"{size}: float32 is within {off_curve:.2g} of 1/(1 + c h²)")
    return {
        "worst record": worst,
        "misfit": off_curve,
        "uncertainties": [min(doubts), max(doubts)],
        "claims": {
            "worst record against float32": [worst, MOST, worst <= MOST],
            "misfit of 1/(1 + c h²) where it is above a sixth": [
                off_curve,
                0.01,
                off_curve <= 0.01,
            ],
            "every record within the uncertainty and three errors": [kept, True, kept],
        },
    }


def main() -> int:
    """Measure if asked to, judge, and return 1 if a claim fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure on an accelerator")
    parser.add_argument("--small", action="store_true", help="tiny networks on the processor")
    asked = parser.parse_args()
    device = torch.device("cpu" if asked.small else "cuda")
    if asked.measure or asked.small:
        found = networks(device, asked.small)
    else:
        found = json.loads(KEPT.read_text("utf-8"))
        found.pop("made")
    show("network", "step", "raw", "removed", "uncertainty", "error", widths=WIDTHS)
    for size, each in found.items():
        each |= judged(size, each)
    if asked.measure and not asked.small:
        keep(found, KEPT, "cuda")
    claims = [claim for each in found.values() for claim in each["claims"].values()]
    return 0 if asked.small or all(held for *_, held in claims) else 1


if __name__ == "__main__":
    sys.exit(main())

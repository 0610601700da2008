"""How often ordinary clients are named as outliers, and how often unusual ones are.

Twelve clients train a small network by federated averaging, in plain loops of NumPy that share no
code with the package. Their data are draws from one population of four kinds: equal sizes; sizes
between 20 and 200; features with heavy tails (Student's t, two degrees of freedom); label mixes
from one Dirichlet distribution. Each client is compared with simulated clients of its own size,
trained from the same models. Claims, over the runs of each kind:

- somebody is named at the 5 % level in at most 5 % of the runs, plus two standard errors;
- without a reference, nobody is named.

The power is shown beside it: in a quarter as many runs, the features of one client are shifted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import seepage as sp
from keeping import keep
from measuring import show

KEPT = Path(__file__).parent / "results" / "outlying_clients.json"
CLIENTS, ROUNDS, STEPS, RATE = 12, 3, 5, 0.3
FEATURES, HIDDEN, CLASSES = 6, 5, 3
SIMULATED = 20 * CLIENTS  # the fewest that can name one of the clients at the 5 % level, and one
SHIFTS = (0.5, 1.0)
WIDTHS = (16, 12, 14, 14)
CENTRES = np.random.default_rng(0).standard_normal((CLASSES, FEATURES))

Data = tuple[np.ndarray, np.ndarray, np.ndarray]  # features, one-hot labels, weights of records
Draw = Callable[[np.random.Generator, np.ndarray], Data]


def drawn(
    draw: np.random.Generator, sizes: np.ndarray, *, heavy: bool = False, skewed: bool = False
) -> Data:
    """Return the data of clients with these sizes, padded to the largest."""
    shape = (len(sizes), int(sizes.max()))
    mix = draw.dirichlet(np.full(CLASSES, 0.5 if skewed else 1e6), len(sizes))
    labels = (draw.random(shape)[..., None] > mix.cumsum(axis=1)[:, None]).sum(axis=2)
    labels = labels.clip(max=CLASSES - 1)
    noise = (
        draw.standard_t(2, (*shape, FEATURES))
        if heavy
        else draw.standard_normal((*shape, FEATURES))
    )
    taken = np.arange(shape[1])[None] < sizes[:, None]
    return CENTRES[labels] + noise, np.eye(CLASSES)[labels], taken / sizes[:, None]


def trained(model: list[np.ndarray], data: Data) -> list[np.ndarray]:
    """Return every client's weights after some steps of gradient descent on its own records."""
    x, y, weights = data
    first, second = (np.repeat(layer[None], len(x), axis=0) for layer in model)
    for _ in range(STEPS):
        inner = np.tanh(np.einsum("cnf,cfh->cnh", x, first))
        scores = np.einsum("cnh,chk->cnk", inner, second)
        odds = np.exp(scores - scores.max(axis=2, keepdims=True))
        error = (odds / odds.sum(axis=2, keepdims=True) - y) * weights[..., None]
        back = np.einsum("cnk,chk->cnh", error, second) * (1 - inner**2)
        second = second - RATE * np.einsum("cnh,cnk->chk", inner, error)
        first = first - RATE * np.einsum("cnf,cnh->cfh", x, back)
    return [first, second]


def recording(updates: list[list[np.ndarray]], clients: int) -> sp.layers.LayerGradients:
    """Return updates of all rounds as the package records them."""
    blocks = {
        name: np.concatenate([each[k].reshape(clients, -1) for each in updates])
        for k, name in enumerate(("first", "second"))
    }
    return replace(
        sp.layers.LayerGradients.of(blocks),
        nodes=np.tile(np.arange(clients), ROUNDS),
        rounds=np.repeat(np.arange(ROUNDS), clients),
    )


def named(kind: str, shift: float, seed: int) -> tuple[bool, bool, bool]:
    """Run one training; return whether client 0, another, and without reference any is named."""
    draw = np.random.default_rng([seed, int(1000 * shift)])
    more: dict[str, Any] = {"heavy": kind == "heavy tails", "skewed": kind == "label skew"}
    unequal = kind == "unequal sizes"
    sizes = draw.integers(20, 201, CLIENTS) if unequal else np.full(CLIENTS, 60)
    data = drawn(draw, sizes, **more)
    data[0][0] += shift
    model = [0.3 * draw.standard_normal(s) for s in ((FEATURES, HIDDEN), (HIDDEN, CLASSES))]
    sent, updates = [], []
    for _ in range(ROUNDS):
        sent.append(model)
        after = trained(model, data)
        updates.append([a - m for a, m in zip(after, model, strict=True)])
        model = [np.average(a, axis=0, weights=sizes) for a in after]
    references = {}
    for size in np.unique(sizes):
        others = drawn(draw, np.full(SIMULATED, size), **more)
        theirs = [
            [a - m for a, m in zip(trained(start, others), start, strict=True)] for start in sent
        ]
        references[int(size)] = recording(theirs, SIMULATED)
    seen = recording(updates, CLIENTS)
    tested = sp.layers.standing_out(
        seen, reference={k: references[int(size)] for k, size in enumerate(sizes)}
    )
    alone = sp.layers.standing_out(seen).named()
    return 0 in tested.named(), any(k != 0 for k in tested.named()), bool(alone)


def main() -> int:
    """Run every kind with and without an unusual client; return 1 if a claim fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--small", action="store_true", help="five runs, kept nowhere")
    asked = parser.parse_args()
    runs = 5 if asked.small else asked.runs
    most = 0.05 + 2 * (0.05 * 0.95 / runs) ** 0.5
    found: dict[str, Any] = {"runs": runs}
    show("clients", "null", *(f"shift {s:g}" for s in SHIFTS), widths=WIDTHS)
    for kind in ("equal", "unequal sizes", "heavy tails", "label skew"):
        null = [named(kind, 0.0, seed) for seed in range(runs)]
        wrong = float(np.mean([a or b for a, b, _ in null]))
        power = [
            float(np.mean([named(kind, shift, seed)[0] for seed in range(-(-runs // 4))]))
            for shift in SHIFTS
        ]
        alone = int(sum(c for *_, c in null))
        found[kind] = {
            "runs in which an ordinary client was named": wrong,
            "named without a reference": alone,
            "power by shift": dict(zip(map(str, SHIFTS), power, strict=True)),
            "claims": {
                "runs in which an ordinary client was named": [wrong, most, wrong <= most],
                "named without a reference": [alone, 0, alone == 0],
            },
        }
        show(kind, f"{wrong:.1%}", *(f"{p:.1%}" for p in power), widths=WIDTHS)
    if not asked.small:
        keep(found, KEPT)
    claims = [
        c for each in found.values() if isinstance(each, dict) for c in each["claims"].values()
    ]
    return 0 if asked.small or all(held for *_, held in claims) else 1


if __name__ == "__main__":
    sys.exit(main())

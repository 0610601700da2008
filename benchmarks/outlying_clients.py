"""How often the test of outlying clients names an ordinary client, and how often a planted one.

Twelve clients train a logistic regression of five columns; a run has three rounds, and every
client's records stay the same. The models sent are given, or the clients' own: they are averages
(FedAvg) over the clients after 25 local steps each, so that the models sent in the later rounds
depend on the records of the tested client, but not on those of simulated clients. Four kinds of
clients: **iid** (20 records each), **unequal** (8, 20 or 60 records), **heavy-tailed** (columns
from Student's t with two degrees of freedom) and **label-skewed** (every client's label mix is a
draw from a Dirichlet distribution with parameters 0.5). The reference of each client is 239
simulated clients of the same kind and size.

- **Ordinary**: all clients are draws of the same kind. At the 5 % level, someone may be named in at
  most 10 of 200 runs, give or take 3 standard deviations of 3.1. This is proved for given models
  (a client's rank among 240 is uniform, and 12/240 is 5 %), and simulated for the clients' own.
- **Planted**: all columns of one client of 20 records are shifted by 2 or 4 standard deviations
  (of the normal columns). Counted are the runs in which this client is named, and those in which it
  is merely the furthest.

Clients and gradients are plain loops in NumPy. Figures are written to
``benchmarks/results/outlying_clients.json`` by ``python benchmarks/outlying_clients.py``;
``--runs 5`` keeps nothing. ``--more`` adds 4,000 further runs of ordinary iid clients, of whom
someone was named in more than 10 of 200 runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.special import expit

from keeping import keep, made_here
from measuring import show
from seepage.layers import LayerGradients, standing_out

RESULTS = Path(__file__).parent / "results" / "outlying_clients.json"
RUNS, SIMULATED, COLUMNS, ROUNDS = 200, 239, 5, 3
MORE = 4000  # further runs, with --more
SIZES = {"unequal": (8, 20, 60) * 4}
KINDS = ("iid", "unequal", "heavy-tailed", "label-skewed")
SHIFTS = (0.0, 2.0, 4.0)
PLANTED = 4  # the client that is shifted
MODELS = np.random.default_rng(9).standard_normal((ROUNDS, COLUMNS)) / np.sqrt(COLUMNS)
LOCAL_STEPS, LEARNING_RATE = 25, 0.5
WIDTHS = (16, 14, 18, 18)

Client = tuple[np.ndarray, np.ndarray]  # features and labels


def client_of(kind: str, records: int, draw: np.random.Generator, shift: float = 0.0) -> Client:
    """Draw one client's records, which stay the same in all rounds."""
    share = draw.dirichlet((0.5, 0.5))[0] if kind == "label-skewed" else 0.5
    y = draw.random(records) < share
    if kind == "heavy-tailed":
        x = draw.standard_t(2, (records, COLUMNS))
    else:
        x = draw.standard_normal((records, COLUMNS))
    return x + y[:, None] + shift, y.astype(float)


def update(client: Client, model: np.ndarray, steps: int) -> np.ndarray:
    """Return the sum of the gradients over a client's local steps from a model."""
    (x, y), own = client, model
    for _ in range(steps):
        own = own - LEARNING_RATE * (x.T @ (expit(x @ own) - y)) / len(y)
    return (model - own) / LEARNING_RATE


def rounds_of(clients: list[Client], models: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the models sent, ``(rounds, d)``, and the updates, ``(rounds, clients, d)``.

    With given ``models``, an update is one gradient; else the clients train the models.
    """
    if models is not None:
        return models, np.stack([[update(c, model, 1) for c in clients] for model in models])
    sent, updates = [MODELS[0]], []
    for _ in range(ROUNDS):
        updates.append(np.stack([update(c, sent[-1], LOCAL_STEPS) for c in clients]))
        sent.append(sent[-1] - LEARNING_RATE * updates[-1].mean(axis=0))
    return np.stack(sent[:-1]), np.stack(updates)


def recording(updates: np.ndarray) -> LayerGradients:
    """Return a recording of updates, ``(rounds, clients, d)``."""
    blocks = {"fc": updates.reshape(-1, COLUMNS), "out": updates[..., 0].reshape(-1, 1)}
    client = np.tile(np.arange(updates.shape[1]), ROUNDS)
    number = np.repeat(np.arange(1, ROUNDS + 1), updates.shape[1])
    return replace(LayerGradients.of(blocks), nodes=client, rounds=number)


def run(
    kind: str, shift: float, draw: np.random.Generator, trained: bool = False
) -> tuple[bool, bool, bool]:
    """Return whether anyone is named, whether the planted client is, and whether it is furthest.

    ``trained`` states whether the models sent were trained by the clients themselves.
    """
    sizes = SIZES.get(kind, (20,) * 12)
    simulated = {n: [client_of(kind, n, draw) for _ in range(SIMULATED)] for n in set(sizes)}
    shifts = np.where(np.arange(len(sizes)) == PLANTED, shift, 0.0)
    clients = [client_of(kind, n, draw, by) for n, by in zip(sizes, shifts, strict=True)]
    models, updates = rounds_of(clients, None if trained else MODELS)
    seen, of_size = recording(updates), {}
    for n, others in simulated.items():
        steps = LOCAL_STEPS if trained else 1
        of_size[n] = recording(
            np.stack([[update(c, model, steps) for c in others] for model in models])
        )
    found = standing_out(seen, reference={c: of_size[n] for c, n in enumerate(sizes)})
    furthest = standing_out(seen).sort().clients[0]
    return bool(found.named()), PLANTED in found.named(), furthest == PLANTED


def further_runs() -> int:
    """Count how often an ordinary iid client is named in further runs, and keep the count."""
    draw = np.random.default_rng([KINDS.index("iid"), 0, 2])
    anyone = sum(run("iid", 0.0, draw)[0] for _ in range(MORE))
    show("iid", "0", f"{anyone} of {MORE}", "", widths=WIDTHS)
    kept = json.loads(RESULTS.read_text("utf-8"))
    kept["more"] = {"made": made_here(), "clients": "iid", "runs": MORE, "anyone_named": anyone}
    RESULTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


def main() -> int:
    """Simulate, print, and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--more", action="store_true", help="further runs of ordinary clients")
    given = parser.parse_args()
    runs = given.runs
    if given.more:
        return further_runs()
    show("clients", "shift", "named", "furthest", widths=WIDTHS)
    rows, good = [], True
    for number, kind in enumerate(KINDS):
        for shift, trained in (*((each, False) for each in SHIFTS), (0.0, True)):
            draw = np.random.default_rng([number, round(shift), *([1] if trained else [])])
            each = [run(kind, shift, draw, trained) for _ in range(runs)]
            anyone, planted, furthest = np.sum(each, axis=0).tolist()
            row = {"clients": kind, "shift": shift, "trained": trained, "runs": runs}
            row |= {"anyone_named": anyone}
            if shift:
                row |= {"planted_named": planted, "planted_furthest": furthest}
            else:
                good &= anyone <= 0.05 * runs + 3 * np.sqrt(0.05 * 0.95 * runs)
            rows.append(row)
            show(
                kind,
                "own models" if trained else f"{shift:g}",
                f"{planted if shift else anyone} of {runs}",
                f"{furthest} of {runs}" if shift else "",
                widths=WIDTHS,
            )
    print(f"ordinary clients named no more often than the level: {'holds' if good else 'FAILS'}")
    if runs == RUNS:
        setting = {"clients": 12, "simulated": SIMULATED, "rounds": ROUNDS, "planted records": 20}
        keep({**setting, "holds": bool(good), "table": rows, "more": None}, RESULTS)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

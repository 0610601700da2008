"""A typical ten-client Flower run, recorded and reported by one command, over ten seeds.

A CNN with BatchNorm and ReLU, FedAvg, and in every client two local epochs of Adam; the clients are
Flower's own ``ClientApp``, the server its ``FedAvg``, and the messages go from one to the other
within this process. Three runs of each seed are recorded and given to ``seepage layers``:

- **half**: in the images of five of the ten clients, drawn by the seed, a corner is brighter. That
  property should be found, and one drawn independently of the images should not.
- **one**: the same with one client alone. Ten clients can exchange such a label in only ten ways,
  so no test of a property can find it; its updates should be the furthest from the others'.
- **none**: no client differs from the others. No property should be found.

Where there is nothing, something is still found in 5 of 100 cases: that is the level of the test.
So the runs without differences are also tested for twenty more meaningless properties.

Figures are written to ``benchmarks/results/federated_run.json`` by
``python benchmarks/federated_run.py``; ``--seeds 1`` takes seconds.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity
from torch import nn
from typer.testing import CliRunner

from keeping import keep
from measuring import show
from seepage.cli import app
from seepage.layers.federated.flower import RecordingStrategy, UpdateRecorder
from seepage.layers.federated.stored_recordings import load_gradients
from seepage.layers.measures.first_round import since_when

SEEDS = 10
FIRST_SEED = 100  # the size of the difference and the statistic were chosen on seeds 0 to 9
LABELLINGS = 20
RESULTS = Path(__file__).parent / "results" / "federated_run.json"
CLIENTS, ROUNDS, RECORDS, SIDE = 10, 8, 64, 10
WIDTHS = (6, 22, 16, 20)


def network() -> nn.Module:
    """Return a CNN with BatchNorm for images of 10 × 10."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 25, 2),
    )


def images(seed: int, client: int, bright: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a client's images and labels; the property is a brighter corner."""
    draw = torch.Generator().manual_seed(1000 * seed + client)
    y = torch.randint(0, 2, (RECORDS,), generator=draw)
    x = torch.randn(RECORDS, 1, SIDE, SIDE, generator=draw)
    x[y == 1, :, :, 4:6] += 1.0
    if bright:
        x[:, :, :3, :3] += 3.0
    return x, y


def client_app(seed: int, bright: set[int]) -> ClientApp:
    """Return clients who train for two epochs with Adam."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        part = int(context.node_config["partition-id"])
        x, y = images(seed, part, part in bright)
        net = network()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.Adam(net.parameters(), lr=3e-3)
        number = int(message.content["config"]["server-round"])
        torch.manual_seed(1000 * number + 100 * seed + part)
        for _ in range(2):
            for rows in torch.randperm(len(y)).split(16):
                optimiser.zero_grad()
                loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
                loss.backward()
                optimiser.step()
        content = RecordDict(
            {
                "arrays": ArrayRecord(net.state_dict()),
                "metrics": MetricRecord({"num-examples": len(y), "train-loss": loss.item()}),
            }
        )
        return Message(content=content, reply_to=message)

    return app


class InProcess(Grid):
    """Carries messages to clients in this process."""

    def __init__(self, client: ClientApp, nodes: list[int]) -> None:
        self.client, self.nodes = client, nodes

    def get_node_ids(self) -> list[int]:
        """Return the available nodes."""
        return list(self.nodes)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: Any = None
    ) -> list[Message]:
        """Return the clients' answers."""
        return [self._answer(message) for message in messages]

    def _answer(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        config = {"partition-id": self.nodes.index(node)}
        return self.client(message, Context(1, node, config, RecordDict(), {}))

    def set_run(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Any:
        """Return nothing: nobody asks."""

    def create_message(self, *args: Any, **kwargs: Any) -> Any:
        """Return nothing: messages are made by the strategy."""

    def push_messages(self, messages: Iterable[Message]) -> Any:
        """Return nothing: messages go by ``send_and_receive``."""

    def pull_messages(self, message_ids: Iterable[str]) -> Any:
        """Return nothing: messages go by ``send_and_receive``."""


def record(seed: int, bright: set[int], path: Path) -> list[int]:
    """Record a run into a file, and return the nodes."""
    for name in ("run_id", "task_id", "node_id"):  # set by Flower in a server's process
        setattr(TaskIdentity, f"_{name}", 1)
    nodes = [int(n) for n in np.random.default_rng(seed).integers(1 << 62, 1 << 63, CLIENTS)]
    recorder = UpdateRecorder(network(), path)
    plain = FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS, min_train_nodes=CLIENTS)
    RecordingStrategy(plain, recorder).start(
        grid=InProcess(client_app(seed, bright), nodes),
        initial_arrays=ArrayRecord(network().state_dict()),
        num_rounds=ROUNDS,
    )
    return nodes


def ask(recording: Path, known: dict[int, str], out: Path) -> tuple[dict[str, Any], list[int]]:
    """Run ``seepage layers``, and return its summary and the nodes, the furthest first."""
    table = out.with_suffix(".csv")
    table.write_text("node,bright\n" + "".join(f"{node},{v}\n" for node, v in known.items()))
    command = ["layers", str(recording), "--property", str(table), "--out", str(out)]
    done = CliRunner().invoke(app, [*command, "--family", "logistic"])
    if done.exit_code != 0:
        raise RuntimeError(done.output)
    clients = pq.read_table(out / "clients.parquet").to_pylist()
    order = sorted(clients, key=lambda row: (row["p_value"], -row["times_the_median"]))
    nodes = [int(row["client"]) for row in order]
    return json.loads((out / "summary.json").read_text("utf-8")), nodes


def run_seed(seed: int, folder: Path) -> dict[str, Any]:
    """Return the findings in the runs of one seed."""
    draw = np.random.default_rng(500 + seed)
    half = set(draw.permutation(CLIENTS)[: CLIENTS // 2].tolist())
    one = int(draw.integers(CLIENTS))
    nothing = set(draw.permutation(CLIENTS)[: CLIENTS // 2].tolist())

    def known(nodes: list[int], chosen: set[int]) -> dict[int, str]:
        return {node: "yes" if k in chosen else "no" for k, node in enumerate(nodes)}

    def told(summary: dict[str, Any]) -> dict[str, int]:
        return {x["layer"]: x["since_round"] for x in summary["layers"] if x["tells"]}

    path = folder / f"half-{seed}"
    nodes = record(seed, half, path)
    planted, _ = ask(path, known(nodes, half), folder / f"planted-{seed}")
    null, _ = ask(path, known(nodes, nothing), folder / f"null-{seed}")
    path = folder / f"one-{seed}"
    nodes = record(seed, {one}, path)
    _, furthest = ask(path, known(nodes, {one}), folder / f"alone-{seed}")
    path = folder / f"none-{seed}"
    same = record(seed, set(), path)
    quiet, _ = ask(path, known(same, nothing), folder / f"quiet-{seed}")
    sent = load_gradients(path)[0].with_metrics()
    place = np.array([same.index(int(node)) for node in sent.nodes])
    found = 0
    for k in range(LABELLINGS):
        label = draw.permutation(np.arange(CLIENTS) % 2)[place]
        found += since_when(sent, label, permutations=199, seed=k).first() is not None
    return {
        "seed": seed,
        "property_told_by": told(planted),
        "null_property_told_by": told(null),
        "null_property_of_like_clients_told_by": told(quiet),
        "planted_client_is_furthest": furthest[0] == nodes[one],
        "of_further_null_properties_found": found,
    }


def main() -> None:
    """Print the findings over the seeds, and keep them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    seeds = parser.parse_args().seeds
    logging.disable(logging.CRITICAL)  # Flower logs every round
    rows = []
    head = ("seed", "property told since", "null property", "furthest client")
    show(*head, widths=WIDTHS)
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            row = run_seed(seed, Path(folder))
            rows.append(row)
            since = row["property_told_by"].values()
            null = row["null_property_told_by"] or row["null_property_of_like_clients_told_by"]
            show(
                seed,
                f"round {min(since)}" if since else "not found",
                "found" if null else "not found",
                "the planted one" if row["planted_client_is_furthest"] else "another",
                widths=WIDTHS,
            )
    counts = {
        "seeds": seeds,
        "property_found": sum(bool(row["property_told_by"]) for row in rows),
        "null_property_found": sum(bool(row["null_property_told_by"]) for row in rows),
        "null_property_of_like_clients_found": sum(
            bool(row["null_property_of_like_clients_told_by"]) for row in rows
        ),
        "planted_client_is_furthest": sum(row["planted_client_is_furthest"] for row in rows),
        "further_null_properties": LABELLINGS * seeds,
        "further_null_properties_found": sum(
            row["of_further_null_properties_found"] for row in rows
        ),
    }
    print()
    for name, count in counts.items():
        print(f"{name.replace('_', ' ')}: {count}")
    if seeds == SEEDS:
        keep({**counts, "runs": rows}, RESULTS)


if __name__ == "__main__":
    main()

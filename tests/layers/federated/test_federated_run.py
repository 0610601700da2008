"""Ten Flower clients with BatchNorm, Adam and two local epochs, reported by one command."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'seepage[flower]'")

from flwr.supercore.task_identity import TaskIdentity

from seepage.layers import since_when, standing_out
from seepage.layers.federated.stored_recordings import load_gradients

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for name in ("run_id", "task_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    import federated_run

    monkeypatch.setattr(federated_run, "ROUNDS", 3)
    return federated_run


@pytest.mark.minutes
def test_the_property_of_half_the_clients_is_found_and_another_is_not(bench, tmp_path):
    path, half = tmp_path / "half", {1, 2, 4, 8, 9}
    nodes = bench.record(1, half, path)
    known = {node: "yes" if k in half else "no" for k, node in enumerate(nodes)}
    summary, _ = bench.ask(path, known, tmp_path / "report")
    told = {row["layer"]: row["since_round"] for row in summary["layers"] if row["tells"]}
    assert told["1.buffers"] == 1
    assert summary["recording"]["metrics"] == ["num-examples", "train-loss"]
    assert summary["recording"]["rounds"] == [1, 3]
    assert (tmp_path / "report" / "report.html").is_file()
    seen, _ = load_gradients(path)
    other = dict(zip(nodes, np.arange(10) % 2, strict=True))
    null = since_when(seen.with_metrics(), [other[int(node)] for node in seen.nodes])
    assert null.first() is None


@pytest.mark.minutes
def test_the_one_client_who_differs_is_the_furthest(bench, tmp_path):
    nodes = bench.record(1, {6}, tmp_path / "one")
    found = standing_out(load_gradients(tmp_path / "one")[0])
    assert found.clients[found.order()[0]] == nodes[6]
    assert found.layer[found.clients.index(nodes[6])] in {"1.buffers", "5.buffers"}

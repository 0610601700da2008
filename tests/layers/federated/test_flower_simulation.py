"""Flower's own simulation, in which ray runs the clients, recorded like any other run."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'seepage[flower]'")
pytest.importorskip("ray", reason="ray is not installed: pip install 'flwr[simulation]'")

from seepage.layers.federated.stored_recordings import load_gradients

APP = Path(__file__).parent / "flower_app"
PROGRAM = """
import sys
from pathlib import Path
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from loopback import clients, server
from seepage.layers.federated.flower import UpdateRecorder

app = ServerApp()

@app.main()
def main(grid, context):
    recorder = UpdateRecorder(server.network(), Path(sys.argv[1]) / "updates")
    server.strategy(recorder).start(
        grid=grid,
        initial_arrays=ArrayRecord(server.network().state_dict()),
        num_rounds=2,
    )

if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(app, clients.client, num_supernodes=3, backend_config=resources)
"""


def test_simulated_clients_are_recorded(tmp_path):
    program = tmp_path / "simulated.py"
    program.write_text(PROGRAM, encoding="utf-8")
    where = os.pathsep.join([str(APP), *(str(Path(path).resolve()) for path in sys.path if path)])
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-W", "ignore", str(program), str(tmp_path)],
        env=os.environ | quiet | {"PYTHONPATH": where},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    updates, who = load_gradients(tmp_path / "updates")
    assert len(updates) == 6
    assert len(list(updates)) == 2  # layers
    assert np.asarray(who["round"]).tolist() == [1, 1, 1, 2, 2, 2]
    assert len(set(np.asarray(who["node"]).tolist())) == 3

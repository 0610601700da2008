"""The page on Flower, word for word, in real processes: SuperLink, SuperNodes, ``flwr run``."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'seepage[flower]'")

from seepage.layers.federated.stored_recordings import load_gradients

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "flower.md"
COMMANDS = Path(sys.executable).parent
WATCH = "read -r _ || { trap '' TERM; kill 0; sleep 5; kill -9 0; }\n"


def blocks(kind):
    """Return the page's blocks of one language, in order."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)


class Deployment:
    """The page's files in a folder, and the processes that its commands start."""

    def __init__(self, folder, clients=12, rounds=4, app=None):
        self.folder, self.count = folder, clients
        self.link, self.first = free_ports(clients)
        project, config = blocks("toml")
        self.start_block, self.run_block = blocks("bash")
        code = app or blocks("python")[0].replace("num_rounds=4", f"num_rounds={rounds}")
        code = code.replace("nodes=CLIENTS", f"nodes={clients}")  # the first of the twelve
        (folder / "hospitals.py").write_text(code)
        (folder / "pyproject.toml").write_text(project)
        (folder / "flwr").mkdir()
        (folder / "flwr" / "config.toml").write_text(self.here(config))
        (folder / "seepage").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m seepage "$@"\n')
        (folder / "seepage").chmod(0o755)
        self.surroundings = os.environ | {
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
            "OMP_NUM_THREADS": "1",
            "PATH": os.pathsep.join([str(folder), str(COMMANDS), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(str(Path(p).resolve()) for p in sys.path if p),
        }

    def here(self, text):
        """Return a block of the page with this machine's free ports."""
        text = text.replace("127.0.0.1:8000", f"127.0.0.1:{self.link}")
        text = text.replace("flower-superlink ", f"flower-superlink --port {self.link} ")
        text = text.replace("seq 0 11", f"seq 0 {self.count - 1}")
        return text.replace("9100", str(self.first))

    @contextlib.contextmanager
    def running(self):
        """Start the server and the clients, and stop all their processes at the end."""
        with (self.folder / "log").open("ab") as log:
            shell = subprocess.Popen(  # noqa: S603
                # It ends all when its input closes: even where this process is killed.
                ["/bin/bash", "-euc", self.here(self.start_block) + WATCH],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self.surroundings,
                start_new_session=True,
            )
            try:
                wait_for(self.link)
                yield
            finally:
                stop(shell)
                shell.stdin.close()

    def run(self, lines=None, timeout=600):
        """Run what the page runs, and return its output."""
        done = subprocess.run(  # noqa: S603
            ["/bin/bash", "-euc", "\n".join(self.run_block.splitlines()[:lines])],
            cwd=self.folder,
            env=self.surroundings,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        log = (self.folder / "log").read_text("utf-8", "replace")
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:] + log[-8000:]
        return done.stdout


def stop(shell):
    """Stop a group of processes, and those that their own processes started in other groups."""
    family = [shell.pid, *descendants(shell.pid)]
    for how in (signal.SIGTERM, signal.SIGKILL):
        for process in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            shell.wait(10)
        time.sleep(2 * any(map(alive, family)))


def alive(process):
    return Path(f"/proc/{process}").exists()


def descendants(process):
    """Return the processes that a process started, and those started by them."""
    try:
        tasks = [*Path(f"/proc/{process}/task").iterdir()]
        own = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    except OSError:  # it has ended
        return []
    return [*own, *(pid for each in own for pid in descendants(each))]


def free_ports(clients):
    """Return a port for the server, and the first of as many in a row as there are clients."""
    draw = np.random.default_rng(os.getpid())
    for _ in range(100):
        first = int(draw.integers(20_000, 30_000))
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + clients + 1):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first, first + 1
    pytest.fail("no free ports")


def wait_for(port):
    for _ in range(2000):
        with socket.socket() as knock:
            if knock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail("Flower's SuperLink did not start")


pytestmark = [
    pytest.mark.minutes,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes by /proc"),
    pytest.mark.skipif(
        not (COMMANDS / "flower-superlink").exists(), reason="Flower's commands are elsewhere"
    ),
]


@pytest.mark.parametrize(("clients", "rounds"), [(4, 1)])  # all of the page, (12, 4), is slow
def test_the_page_word_for_word_and_again_after_a_restart(tmp_path, clients, rounds):
    deployment = Deployment(tmp_path, clients, rounds)
    with deployment.running():
        deployment.run()
    _, columns = load_gradients(tmp_path / "updates")
    first = set(columns["node"].tolist())
    (tmp_path / "seepage-layers").rename(tmp_path / "before")
    with deployment.running():
        said = deployment.run()
    updates, columns = load_gradients(tmp_path / "updates")
    assert len(updates) == 2 * rounds * clients
    assert len(set(columns["run"].tolist())) == 2
    assert set(columns["client"].tolist()) == {str(part) for part in range(clients)}
    # A restart draws new nodes; the clients stay themselves.
    assert len(first) == clients
    assert len(first | set(columns["node"].tolist())) == 2 * clients
    assert f"{2 * rounds * clients} updates of {clients} clients" in said
    for folder in ("before", "seepage-layers"):
        summary = json.loads((tmp_path / folder / "summary.json").read_text("utf-8"))
        revealing = {each["layer"]: each["tells"] for each in summary["layers"]}
        # Four clients are too few to say more.
        assert revealing["norm.buffers"] == (clients >= 8)
        assert (tmp_path / folder / "report.html").stat().st_size > 10_000


MASKED = """
import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import ServerApp

import seepage as sp


def network():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 2)


def as_list(net):
    return [value.numpy().astype(np.float64) for value in net.state_dict().values()]


class Client(NumPyClient):
    def __init__(self, part):
        self.part = part

    def fit(self, parameters, config):
        return [p + 0.1 * (self.part + 1) for p in parameters], 10, {}


recorder = sp.layers.UpdateRecorder(network(), "updates", resume=True)
client_app = ClientApp(
    client_fn=lambda context: Client(int(context.node_config["partition-id"])).to_client(),
    mods=[secaggplus_mod, sp.layers.recording_mod(recorder)],
)
server_app = ServerApp()


class Kept(FedAvg):
    def aggregate_fit(self, server_round, results, failures):
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        np.savez("mean.npz", *parameters_to_ndarrays(parameters))
        return parameters, metrics


@server_app.main()
def main(grid, context):
    strategy = Kept(
        fraction_evaluate=0.0,
        min_fit_clients=3,
        min_available_clients=3,
        initial_parameters=ndarrays_to_parameters(as_list(network())),
        fit_metrics_aggregation_fn=lambda told: {},
    )
    legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=1), strategy=strategy)
    DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(3, 2))(grid, legacy)
"""


def test_secure_aggregation_in_real_processes(tmp_path):
    deployment = Deployment(tmp_path, clients=3, app=MASKED)
    with deployment.running():
        deployment.run(lines=1)
    updates, columns = load_gradients(tmp_path / "updates")
    assert sorted(columns["client"].tolist()) == ["0", "1", "2"]
    assert columns["round"].tolist() == [1, 1, 1]
    moves = -0.1 * (columns["client"].astype(float) + 1)  # what is sent less what is returned
    np.testing.assert_allclose(updates["all layers"], np.tile(moves[:, None], 10), atol=1e-6)
    with np.load(tmp_path / "mean.npz") as mean:  # the server has the mean, and only the mean
        moved = np.concatenate([mean[name].ravel() for name in mean.files])
    start = np.concatenate([value.ravel() for value in started()])
    # SecAgg+ rounds what is weighted by 10 of 1,000 records to 2²² steps from −8 to 8.
    np.testing.assert_allclose(moved - start, 0.2, atol=100 * 16 / 2**22)


def started():
    import torch

    torch.manual_seed(0)
    return [value.numpy() for value in torch.nn.Linear(4, 2).state_dict().values()]

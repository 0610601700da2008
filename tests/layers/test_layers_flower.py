"""A Flower project's updates, recorded and audited: in one process, and over the loopback."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'seepage[flower]'")

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from seepage.errors import InputError
from seepage.layers import flower, v_information
from seepage.layers.flower import UpdateRecorder, recording_mod
from seepage.layers.recording_file import load_gradients

APP = Path(__file__).parent / "flower_app"
NODES = {11: 0, 2**63 + 5: 1}  # Flower's nodes have numbers of 64 bits without a sign


@pytest.fixture
def apps(monkeypatch):
    monkeypatch.syspath_prepend(str(APP))
    for name in ("run_id", "task_id", "node_id"):  # what a server's process is told by Flower
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    from loopback import apps

    return apps


class InProcess(Grid):
    """Carries messages to clients in this process."""

    def __init__(self, client):
        self.client = client

    def get_node_ids(self):
        return list(NODES)

    def send_and_receive(self, messages, *, timeout=None):
        return [self._answer(message) for message in messages]

    def _answer(self, message):
        node = message.metadata.dst_node_id
        context = Context(1, node, {"partition-id": NODES[node]}, RecordDict(), {})
        return self.client(message, context)

    def set_run(self, *args, **kwargs): ...
    @property
    def run(self): ...
    def create_message(self, *args, **kwargs): ...
    def push_messages(self, messages): ...
    def pull_messages(self, message_ids): ...


def start(apps, recorder, rounds=3, client=None):
    apps.strategy(recorder).start(
        grid=InProcess(client or apps.client),
        initial_arrays=ArrayRecord(apps.network().state_dict()),
        num_rounds=rounds,
    )


def expected_update(apps, part):
    net = apps.network()
    x, y = apps.data(part)
    loss = torch.nn.functional.cross_entropy(net(x), y)
    found = torch.autograd.grad(loss, list(net.parameters()))
    return apps.LR * torch.cat([g.flatten() for g in found]).numpy()


def test_updates_are_what_the_clients_moved_by(apps, tmp_path):
    recorder = UpdateRecorder(apps.network(), tmp_path / "updates.npz")
    start(apps, recorder)
    assert recorder.rounds == [1, 1, 2, 2, 3, 3]
    assert set(recorder.nodes) == set(NODES)
    seen = recorder.gradients()
    for row in (0, 1):
        np.testing.assert_allclose(
            seen["all layers"][row], expected_update(apps, NODES[recorder.nodes[row]]), atol=1e-7
        )
    found, columns = load_gradients(tmp_path / "updates.npz")
    np.testing.assert_array_equal(found["0"], seen["0"])
    assert columns["node"].tolist() == recorder.nodes
    assert stat.S_IMODE((tmp_path / "updates.npz").stat().st_mode) == 0o600


def test_a_recording_goes_on_where_it_stopped(apps, tmp_path):
    for _ in range(2):
        start(apps, UpdateRecorder(apps.network(), tmp_path / "updates.npz"), rounds=2)
    assert len(load_gradients(tmp_path / "updates.npz")[0]) == 8


def test_the_updates_give_the_client_away(apps):
    recorder = UpdateRecorder(apps.network())
    start(apps, recorder, rounds=10)
    part = [NODES[node] for node in recorder.nodes]
    found = v_information(recorder.gradients(), part, family="logistic", folds=2)
    assert found.layers == ("0", "2")
    assert found["0"] > 0.5
    assert found.columns["p_value"][0] < 0.05


def test_a_client_records_what_it_sends(apps, tmp_path):
    recorder = UpdateRecorder(apps.network(), tmp_path / "own.npz")
    client = ClientApp(mods=[recording_mod(recorder)])
    client.train()(apps.train)
    other = UpdateRecorder(apps.network())
    start(apps, other, client=client)
    np.testing.assert_allclose(recorder.gradients()["2"], other.gradients()["2"])
    assert (tmp_path / "own.npz").exists()


def test_what_cannot_be(apps, tmp_path):
    recorder = UpdateRecorder(apps.network())
    with pytest.raises(InputError, match="No update"):
        recorder.gradients()
    state = apps.network().state_dict()
    with pytest.raises(InputError, match="did not return"):
        recorder.add(state, {}, 1, 1)
    (tmp_path / "no.npz").write_bytes(b"nothing")
    with pytest.raises(InputError, match="does not hold recorded gradients"):
        UpdateRecorder(apps.network(), tmp_path / "no.npz")

    def twice(message, context):
        arrays = ArrayRecord(apps.network().state_dict())
        return Message(RecordDict({"a": arrays, "b": arrays}), reply_to=message)

    client = ClientApp(mods=[recording_mod(recorder)])
    client.train()(twice)
    with pytest.raises(InputError, match="2 sets of arrays"):
        start(apps, UpdateRecorder(apps.network()), client=client)


def test_without_flower_it_is_said_what_to_install(apps, monkeypatch):
    monkeypatch.setattr(flower, "Strategy", object)
    with pytest.raises(ImportError, match="seepage\\[flower\\]"):
        apps.strategy(UpdateRecorder(apps.network()))


def _port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.slow
def test_two_clients_over_the_loopback(apps, tmp_path):
    commands = Path(sys.executable).parent
    if not (commands / "flower-superlink").exists():
        pytest.skip("Flower's commands are not beside this Python")
    shutil.copytree(APP, tmp_path / "app")
    link, home = _port(), tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{link}"\n'
        "insecure = true\n"
    )
    surroundings = os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    log = (tmp_path / "log").open("wb")

    def launch(name, *arguments):
        return subprocess.Popen(  # noqa: S603
            [str(commands / name), *arguments], stdout=log, stderr=log, env=surroundings
        )

    address = f"127.0.0.1:{link}"
    plain = ["--insecure", "--disable-runtime-dependency-installation"]
    running = [launch("flower-superlink", *plain, "--host", "127.0.0.1", "--port", str(link))]
    try:
        _wait_for(link)
        for part in (0, 1):
            options = ["--port", str(_port()), "--node-config", f"partition-id={part}"]
            running.append(launch("flower-supernode", plain[0], "--superlink", address, *options))
        command = [str(commands / "flwr"), "run", str(tmp_path / "app"), "here", "--stream"]
        done = subprocess.run(  # noqa: S603
            [*command, "--run-config", f"folder='{tmp_path}'"],
            env=surroundings,
            capture_output=True,
            text=True,
            timeout=300,
        )
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(30)
        log.close()
    assert done.returncode == 0, done.stdout + done.stderr
    found, columns = load_gradients(tmp_path / "updates.npz")
    assert columns["round"].tolist() == [1, 1, 2, 2]
    first = found["all layers"][:2]
    wanted = np.stack([expected_update(apps, part) for part in (0, 1)])
    gaps = np.abs(first[:, None] - wanted[None]).max(axis=2)
    assert sorted(gaps.argmin(axis=1).tolist()) == [0, 1]
    assert gaps.min(axis=1).max() < 1e-6
    part = gaps.argmin(axis=1)[[0, 1]]
    same = columns["node"][2:] == columns["node"][:2]
    labels = np.concatenate([part, part if same.all() else part[::-1]])
    audited = v_information(found, labels, family="logistic", folds=2, resamples=50)
    assert audited.layers == ("0", "2")


def _wait_for(port):
    for _ in range(300):
        with socket.socket() as knock:
            if knock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    pytest.fail("Flower's SuperLink did not start")

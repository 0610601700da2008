"""A Flower project's updates, recorded and audited: in one process, and over the loopback."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'seepage[flower]'")

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client.mod.utils import make_ffn
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from grids import InProcess

from seepage.errors import InputError
from seepage.layers import FewGroupsWarning, LayerGradients, record_updates, v_information
from seepage.layers.federated import flower
from seepage.layers.federated.client_identity import same_client
from seepage.layers.federated.flower import RecordingStrategy, UpdateRecorder, recording_mod
from seepage.layers.federated.stored_recordings import load_gradients, save_gradients

APP = Path(__file__).parent / "flower_app"
NODES = {11: 0, 2**63 + 5: 1}  # Flower's nodes have numbers of 64 bits without a sign


@pytest.fixture
def apps(monkeypatch):
    monkeypatch.syspath_prepend(str(APP))
    for name in ("run_id", "task_id", "node_id"):  # what a server's process is told by Flower
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)
    from loopback import clients, server

    return SimpleNamespace(clients=clients, server=server)


def start(apps, recorder, rounds=3, client=None, nodes=NODES):
    apps.server.strategy(recorder).start(
        grid=InProcess(client or apps.clients.client, nodes),
        initial_arrays=ArrayRecord(apps.server.network().state_dict()),
        num_rounds=rounds,
    )


def without_nodes(gradients):
    """Return the arrays alone: which client sent them is what is asked here."""
    return {layer: gradients[layer] for layer in gradients}


def expected_update(apps, part):
    net = apps.server.network()
    x, y = map(torch.from_numpy, apps.clients.data(part))
    loss = torch.nn.functional.cross_entropy(net(x), y)
    found = torch.autograd.grad(loss, list(net.parameters()))
    return apps.clients.LR * torch.cat([g.flatten() for g in found]).numpy()


def test_updates_are_what_the_clients_moved_by(apps, tmp_path):
    recorder = UpdateRecorder(apps.server.network(), tmp_path / "updates")
    start(apps, recorder)
    assert recorder.rounds == [1, 1, 2, 2, 3, 3]
    assert set(recorder.nodes) == set(NODES)
    seen = recorder.gradients()
    for row in (0, 1):
        np.testing.assert_allclose(
            seen["all layers"][row], expected_update(apps, NODES[recorder.nodes[row]]), atol=1e-7
        )
    found, columns = load_gradients(tmp_path / "updates")
    np.testing.assert_array_equal(found["0"], seen["0"])
    assert columns["node"].tolist() == recorder.nodes
    files = sorted((tmp_path / "updates").iterdir())
    assert [file.name for file in files] == [
        *(f"model-of-round-00000{k}-run-1.safetensors" for k in (1, 2, 3)),
        *(f"round-00000{k}-part-00000{k}.npz" for k in (1, 2, 3)),
    ]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE((tmp_path / "updates").stat().st_mode) == 0o700


def test_metrics_that_clients_send_are_recorded(apps, tmp_path):
    on_server = UpdateRecorder(apps.server.network(), tmp_path / "updates.safetensors")
    own = UpdateRecorder(apps.server.network())
    client = ClientApp(mods=[recording_mod(own)])

    @client.train()
    def train(message, context):
        reply = apps.clients.train(message, context)
        reply.content["metrics"]["loss"] = [0.5, 0.25]
        return reply

    start(apps, on_server, client=client)
    for seen in (load_gradients(tmp_path / "updates.safetensors")[0], own.gradients()):
        assert {k: v.tolist() for k, v in seen.metrics.items()} == {
            "num-examples": [64.0] * 6,
            "loss[0]": [0.5] * 6,
            "loss[1]": [0.25] * 6,
        }


def test_a_second_run_does_not_go_into_the_file_of_the_first(apps, tmp_path, monkeypatch):
    path = tmp_path / "updates"
    start(apps, UpdateRecorder(apps.server.network(), path), rounds=2)
    with pytest.raises(InputError, match=r"updates exists already.*resume=True"):
        UpdateRecorder(apps.server.network(), path)
    # Flower's next simulation has other nodes, and counts its rounds from one again.
    anew = {node + 1: part for node, part in NODES.items()}
    for run in (1, 2):
        monkeypatch.setattr(TaskIdentity, "_run_id", run)
        recorder = UpdateRecorder(apps.server.network(), path, resume=True)
        with pytest.raises(InputError, match=r"Round 1 is in .*updates already"):
            start(apps, recorder, rounds=2, nodes=anew)
    assert set(load_gradients(path)[0].nodes.tolist()) == set(NODES)
    kept = UpdateRecorder(apps.server.network())
    start(apps, kept, rounds=1)
    with pytest.raises(InputError, match="Round 1 is in this recorder already"):
        start(apps, kept, rounds=1, nodes=anew)


def test_clients_that_start_anew_in_every_round_share_a_file(apps, tmp_path, monkeypatch):
    path = tmp_path / "own.npz"

    def late(message, context):
        # Flower's processes import their ClientApp for every message.
        recorder = UpdateRecorder(apps.server.network(), path, resume=True)
        own = ClientApp(mods=[recording_mod(recorder)])
        own.train()(apps.clients.train)
        return own(message, context)

    client = ClientApp()
    client.train()(late)
    start(apps, UpdateRecorder(apps.server.network()), client=client)
    seen, columns = load_gradients(path)
    assert seen.rounds.tolist() == [1, 1, 2, 2, 3, 3]
    assert set(seen.nodes.tolist()) == set(NODES)
    assert columns["run"].tolist() == [1] * 6
    monkeypatch.setattr(TaskIdentity, "_run_id", 2)
    anew = {node + 1: part for node, part in NODES.items()}
    start(apps, UpdateRecorder(apps.server.network()), client=client, nodes=anew)
    seen, columns = load_gradients(path)
    assert sorted(zip(columns["run"].tolist(), seen.rounds.tolist(), strict=True)) == [
        (run, number) for run in (1, 2) for number in (1, 1, 2, 2, 3, 3)
    ]
    # The client's partition is its key: two clients, although there were four nodes.
    assert len(set(seen.nodes.tolist())) == 4
    assert set(same_client(seen).tolist()) == {"0", "1"}


@pytest.mark.parametrize("called", ["partition-id", "ward"])
def test_a_second_run_of_clients_with_keys_goes_into_the_same_folder(
    apps, tmp_path, monkeypatch, called
):
    client, path = ClientApp(), tmp_path / "updates"

    @client.train()
    def train(message, context):
        reply = apps.clients.train(message, context)
        part = context.node_config["partition-id"]
        if called == "ward":
            reply.content["who"] = ConfigRecord({"ward": f"ward {part}"})
        else:
            reply.content["metrics"][called] = part
        return reply

    for run, nodes in ((1, NODES), (2, {node + 1: part for node, part in NODES.items()})):
        recorder = UpdateRecorder(apps.server.network(), path, resume=True)
        strategy = RecordingStrategy(
            apps.server.strategy(recorder).strategy, recorder, client=called
        )
        TaskIdentity._run_id = run
        strategy.start(
            grid=InProcess(client, nodes),
            initial_arrays=ArrayRecord(apps.server.network().state_dict()),
            num_rounds=2,
        )
    seen, _ = load_gradients(path)
    assert list(seen.metrics) == ["num-examples"]  # the key is no metric
    keys = ["ward 0", "ward 1"] if called == "ward" else ["0", "1"]
    assert sorted(set(same_client(seen).tolist())) == keys
    assert len(set(seen.nodes.tolist())) == 4
    assert np.unique(seen.runs).tolist() == [1, 2]


def test_the_updates_give_the_client_away(apps):
    recorder = UpdateRecorder(apps.server.network())
    start(apps, recorder, rounds=10)
    part = [NODES[node] for node in recorder.nodes]
    # Two nodes, and the question is which: they cannot be grouped by what is asked.
    with pytest.warns(FewGroupsWarning, match="comes from a single node"):
        found = v_information(recorder.gradients(), part, family="logistic", folds=2)
    assert found.layers == ("0", "2")
    assert found["0"] > 0.5
    assert found.columns["p_value"][0] < 0.05


def test_a_client_records_what_it_sends(apps, tmp_path):
    recorder = UpdateRecorder(apps.server.network(), tmp_path / "own.npz")
    client = ClientApp(mods=[recording_mod(recorder)])
    client.train()(apps.clients.train)
    other = UpdateRecorder(apps.server.network())
    start(apps, other, client=client)
    np.testing.assert_allclose(recorder.gradients()["2"], other.gradients()["2"])
    assert (tmp_path / "own.npz").exists()


def test_the_first_mod_sees_what_the_others_have_made_of_the_update(apps):
    sent = ArrayRecord(apps.server.network().state_dict())

    def unmoved(message, context, call_next):
        call_next(message, context)
        return Message(RecordDict({"arrays": sent}), reply_to=message)

    seen = []
    for place in (0, 1):
        recorder = UpdateRecorder(apps.server.network())
        mods = [unmoved]
        mods.insert(place, recording_mod(recorder))
        message = Message(RecordDict({"arrays": sent}), dst_node_id=11, message_type="train")
        context = Context(1, 11, {"partition-id": 0}, RecordDict(), {})
        make_ffn(apps.clients.train, mods)(message, context)
        seen.append(float(recorder.gradients().total_norms()[0]))
    assert seen[0] == 0.0
    assert seen[1] > 0.0
    assert "Put the mod first" in recording_mod.__doc__


@pytest.mark.parametrize("change", [{"seed": 1}, {"width": 9}, {"layers": ["0"]}])
def test_a_recording_goes_on_with_the_same_projection_only(apps, tmp_path, change):
    net, path = apps.server.network(), tmp_path / "updates"
    state = net.state_dict()
    moved = {name: value + 1 for name, value in state.items()}
    recorder = UpdateRecorder(net, path, width=8)
    recorder.add(state, moved, 1, 1)
    recorder.save()
    assert len(UpdateRecorder(net, path, width=8, resume=True)) == 1
    with pytest.raises(InputError, match=r"cannot be continued.*(projected|different layers)"):
        UpdateRecorder(net, path, **({"width": 8, "resume": True} | change))


def test_files_that_are_no_recording(apps, tmp_path):
    net = apps.server.network()
    np.save(tmp_path / "one.npy", np.ones(3))
    np.savez(tmp_path / "other.npz", layers=np.frombuffer(b"5", dtype=np.uint8))
    with pytest.raises(InputError, match=r"one\.npy is a single file.*name a folder"):
        UpdateRecorder(net, tmp_path / "one.npy", resume=True)
    with pytest.raises(InputError, match="contains files other than recorded rounds"):
        UpdateRecorder(net, tmp_path, resume=True)
    for name in ("one.npy", "other.npz"):
        with pytest.raises(InputError, match="does not contain recorded gradients"):
            load_gradients(tmp_path / name)
    with pytest.raises(InputError, match="is a folder without recorded rounds"):
        load_gradients(tmp_path)


def test_a_file_of_an_earlier_version_can_be_read(tmp_path):
    save_gradients(LayerGradients.of({"0": np.ones((2, 3))}), tmp_path / "new.npz")
    with np.load(tmp_path / "new.npz") as found:
        arrays = dict(found) | {"layers": np.frombuffer(b'[["0", 3]]', dtype=np.uint8)}
    np.savez(tmp_path / "old.npz", **arrays)
    assert load_gradients(tmp_path / "old.npz")[0].sizes == {"0": 3}


def normalised():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.ReLU(), torch.nn.Linear(5, 2)
    )


def test_running_statistics_give_away_what_noised_parameters_hide():
    net = normalised()
    recorder, sent = UpdateRecorder(net), net.state_dict()
    draw = torch.Generator().manual_seed(1)
    trait = np.arange(60) % 2
    for node, wears in enumerate(trait):
        # The parameters are all noise; the mean that BatchNorm keeps follows the records.
        returned = {k: v + torch.randn(v.shape, generator=draw) for k, v in sent.items()}
        returned["1.running_mean"] += 3 * wears
        returned["1.num_batches_tracked"] = sent["1.num_batches_tracked"] + 8
        recorder.add(sent, returned, 1, node)
    seen = recorder.gradients()
    found = v_information(seen, trait, family="logistic", unit="bits", resamples=50)
    assert max(found.values) > 0.8  # without the buffers: below 0.1
    assert found.layers == ("0", "1", "1.buffers", "3")
    assert found.values.argmax() == 2
    assert found.columns["p_value"][2] < 0.01
    assert seen.sizes["1.buffers"] == 11
    assert set(seen["1.buffers"][:, 10]) == {-8.0}


def test_whatever_is_sent_is_recorded():
    net = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Linear(1, 1))
    net[1].requires_grad_(False)
    net.register_buffer("mask", torch.tensor([True, False]))
    state = net.state_dict()
    returned = state | {
        "mask": torch.tensor([True, True]),
        "1.bias": state["1.bias"] - 2,
        "control": torch.tensor([3, 4]),
    }
    recorder = UpdateRecorder(net)
    recorder.add(state, returned, 1, 1)
    seen = recorder.gradients()
    assert seen.layers == ("mask", "0", "1.weight", "1.bias", "control")
    assert seen["mask"].tolist() == [[0.0, -1.0]]
    assert seen["1.bias"].item() == pytest.approx(2.0)
    assert seen["control"].tolist() == [[3.0, 4.0]]
    some = UpdateRecorder(normalised(), layers=["1"])
    some.add(normalised().state_dict(), normalised().state_dict(), 1, 1)
    assert some.gradients().layers == ("1", "1.buffers")


def test_updates_that_hold_different_things_are_not_mixed():
    net = normalised()
    state = net.state_dict()
    bare = {name: value for name, value in state.items() if "running" not in name}
    recorder = UpdateRecorder(net)
    recorder.add(state, bare, 1, 1)  # buffers that a client does not send are no part of its update
    assert recorder.gradients().sizes["1.buffers"] == 1
    with pytest.raises(InputError, match="Node 2 sent entries that differ"):
        recorder.add(state, state, 1, 2)
    with pytest.raises(InputError, match=r"'1\.running_mean', which the first update lacks"):
        record_updates(net, [bare, state])
    with pytest.raises(InputError, match=r"lacks the entry '1\.running_mean'"):
        record_updates(net, [state, bare])
    with pytest.raises(InputError, match=r"returned '0\.bias' with the shape \(1,\)"):
        recorder.add(state, bare | {"0.bias": torch.zeros(1)}, 1, 3)


def test_a_recording_with_buffers_goes_on(tmp_path):
    net, path = normalised(), tmp_path / "updates"
    for number in (1, 2):
        recorder = UpdateRecorder(net, path, resume=True)
        recorder.add(net.state_dict(), net.state_dict(), number, 7)
        recorder.save()
    assert load_gradients(path)[0].rounds.tolist() == [1, 2]
    assert load_gradients(path)[0].beside == ("1.buffers",)
    again = UpdateRecorder(net, path, resume=True)
    with pytest.raises(InputError, match=r"Round 2 is in .*updates already"):
        again.add(net.state_dict(), net.state_dict(), 2, 8)
    again.add(net.state_dict(), net.state_dict(), 3, 8)
    with pytest.raises(InputError, match="Node 8 already has an update for round 3"):
        again.add(net.state_dict(), net.state_dict(), 3, 8)
    with pytest.raises(InputError, match=r"cannot be continued.*different layers"):
        UpdateRecorder(net, path, layers=["0", "1"], resume=True)


def test_two_recorders_on_one_file_lose_nothing(tmp_path):
    net, path = normalised(), tmp_path / "updates"
    recorders = [UpdateRecorder(net, path) for _ in range(2)]
    state = net.state_dict()
    for server_round in (1, 2, 3):
        for node, recorder in enumerate(recorders):
            recorder.add(state, state, server_round, node)
            recorder.save()
    found, columns = load_gradients(path)
    assert len(found) == 6
    assert columns["round"].tolist() == [1, 1, 2, 2, 3, 3]
    assert found.nodes.tolist() == [0, 1] * 3
    assert found.rounds.tolist() == recorders[1].rounds == [1, 1, 2, 2, 3, 3]


def test_recorders_that_write_at_the_same_time_lose_nothing(tmp_path):
    net, path = normalised(), tmp_path / "updates"
    state = net.state_dict()

    def take_part(node):
        recorder = UpdateRecorder(net, path, resume=True)
        for server_round in (1, 2, 3):
            recorder.add(state, state, server_round, node, run=5)
            recorder.save()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(take_part, range(4)))
    found, columns = load_gradients(path)
    pairs = zip(columns["round"].tolist(), columns["node"].tolist(), strict=True)
    assert sorted(pairs) == [(r, node) for r in (1, 2, 3) for node in range(4)]
    assert len(found) == 12


def test_rounds_are_the_servers(apps):
    recorder = UpdateRecorder(apps.server.network())
    client = ClientApp(mods=[recording_mod(recorder)])
    client.train()(apps.clients.train)
    start(apps, UpdateRecorder(apps.server.network()), client=client)
    assert recorder.rounds == [1, 1, 2, 2, 3, 3]
    assert recorder.gradients().rounds.tolist() == recorder.rounds


def test_what_cannot_be(apps, tmp_path):
    recorder = UpdateRecorder(apps.server.network())
    with pytest.raises(InputError, match="No update"):
        recorder.gradients()
    state = apps.server.network().state_dict()
    with pytest.raises(InputError, match="did not return"):
        recorder.add(state, {}, 1, 1)
    (tmp_path / "no").mkdir()
    (tmp_path / "no" / "round-000001-part-000001.npz").write_bytes(b"nothing")
    with pytest.raises(InputError, match="does not contain recorded gradients"):
        UpdateRecorder(apps.server.network(), tmp_path / "no", resume=True)

    def twice(message, context):
        arrays = ArrayRecord(apps.server.network().state_dict())
        return Message(RecordDict({"a": arrays, "b": arrays}), reply_to=message)

    client = ClientApp(mods=[recording_mod(recorder)])
    client.train()(twice)
    with pytest.raises(InputError, match="2 sets of arrays"):
        start(apps, UpdateRecorder(apps.server.network()), client=client)


def test_without_flower_it_is_said_what_to_install(apps, monkeypatch):
    monkeypatch.setattr(flower, "Strategy", object)
    with pytest.raises(ImportError, match="seepage\\[flower\\]"):
        apps.server.strategy(UpdateRecorder(apps.server.network()))


def _port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.minutes
def test_two_clients_over_the_loopback(apps, tmp_path):
    done = run_over_the_loopback(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr + (tmp_path / "log").read_text()
    found, columns = load_gradients(tmp_path / "updates")
    assert columns["round"].tolist() == [1, 1, 2, 2]
    nodes, part = np.unique(columns["node"], return_inverse=True)
    assert len(nodes) == 2
    first = {int(p): row for p, row in zip(part[:2], found["all layers"][:2], strict=True)}
    wanted = np.stack([expected_update(apps, k) for k in (0, 1)])
    gaps = np.abs(np.stack([first[0], first[1]])[:, None] - wanted[None]).max(axis=2)
    # Which of the two nodes holds which part of the data is Flower's choice.
    assert min(np.trace(gaps), np.trace(gaps[::-1])) < 1e-6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # four updates are too few for the test
        bare = without_nodes(found)
        audited = v_information(bare, part, family="logistic", folds=2, resamples=50)
    assert audited.layers == ("0", "2")
    assert np.isfinite(audited.values).all()


def run_over_the_loopback(folder):
    """Run the project with Flower's own commands: a SuperLink, two SuperNodes, ``flwr run``."""
    commands = Path(sys.executable).parent
    if not (commands / "flower-superlink").exists():
        pytest.skip("Flower's commands are not beside this Python")
    shutil.copytree(APP, folder / "app")
    (folder / "home").mkdir()
    ports = free_ports(3)
    address = f"127.0.0.1:{ports[0]}"
    (folder / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
    )
    surroundings = os.environ | {
        "FLWR_HOME": str(folder / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    with (folder / "log").open("wb") as log, ExitStack() as running:

        def launch(name, *arguments):
            command = [str(commands / name), "--insecure", *arguments]
            process = subprocess.Popen(command, stdout=log, stderr=log, env=surroundings)  # noqa: S603
            running.callback(process.wait, 30)
            return process

        link = ["--host", "127.0.0.1", "--port", str(ports[0])]
        started = [launch("flower-superlink", "--disable-runtime-dependency-installation", *link)]
        for part in (0, 1):  # a SuperNode knocks until the SuperLink is there
            own = ["--port", str(ports[1 + part]), "--node-config", f"partition-id={part}"]
            started.append(launch("flower-supernode", "--superlink", address, *own))
        try:
            wait_for(ports[0])
            command = [str(commands / "flwr"), "run", str(folder / "app"), "here", "--stream"]
            return subprocess.run(  # noqa: S603
                [*command, "--run-config", f"folder='{folder}'"],
                env=surroundings,
                capture_output=True,
                text=True,
                timeout=300,
            )
        finally:
            for process in started:
                process.terminate()


def free_ports(count):
    with ExitStack() as held:  # all at once, or the same may come twice
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_for(port):
    for _ in range(600):
        with socket.socket() as knock:
            if knock.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail("Flower's SuperLink did not start")

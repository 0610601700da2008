"""Clients as people have them: lists of arrays, secure aggregation, Opacus, adapters."""

from __future__ import annotations

import copy
import logging
from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'seepage[flower]'")

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg as ListedFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity
from grids import InProcess
from torch import nn

from seepage.layers.federated.flower import RecordingStrategy, UpdateRecorder, recording_mod

NODES = {101: 0, 2**63 + 7: 1, 303: 2, 404: 3}
RECORDS = (30, 40, 50, 60)


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    for name in ("run_id", "task_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.GroupNorm(1, 3), nn.Tanh(), nn.Linear(3, 2))


def trained(net, part):
    """Return a network that has taken two steps on the records of a client."""
    draw = torch.Generator().manual_seed(part)
    x = torch.randn(RECORDS[part], 4, generator=draw) + part
    y = torch.randint(0, 2, (RECORDS[part],), generator=draw)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    return net


def as_list(net):
    return [value.numpy().astype(np.float64) for value in net.state_dict().values()]


class Listed(NumPyClient):
    """Sends a plain list of arrays, as most examples do."""

    def __init__(self, part):
        self.part = part

    def fit(self, parameters, config):
        net = network()
        state = dict(zip(net.state_dict(), map(torch.tensor, parameters), strict=True))
        net.load_state_dict(state)
        return as_list(trained(net, self.part)), RECORDS[self.part], {"loss": 0.5 + self.part}


def masked_run(mods, rounds=1):
    """Run SecAgg+ and return the parameters that the server had after every round."""
    kept = [as_list(network())]

    class Kept(ListedFedAvg):
        def aggregate_fit(self, server_round, results, failures):
            assert not failures
            parameters, metrics = super().aggregate_fit(server_round, results, failures)
            kept.append(parameters_to_ndarrays(parameters))
            return parameters, metrics

    strategy = Kept(
        fraction_evaluate=0.0,
        min_fit_clients=len(NODES),
        min_available_clients=len(NODES),
        initial_parameters=ndarrays_to_parameters(kept[0]),
        fit_metrics_aggregation_fn=lambda told: {"clients": len(told)},
    )
    client = ClientApp(
        client_fn=lambda context: Listed(int(context.node_config["partition-id"])).to_client(),
        mods=mods,
    )
    context = LegacyContext(
        context=Context(1, 0, {}, RecordDict(), {}),
        config=ServerConfig(num_rounds=rounds),
        strategy=strategy,
    )
    DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(3, 2))(InProcess(client, NODES), context)
    return kept


def test_secure_aggregation_hides_updates_and_the_mod_within_records_them():
    inner, outer = UpdateRecorder(network()), UpdateRecorder(network())
    kept = masked_run([recording_mod(outer), secaggplus_mod, recording_mod(inner)], rounds=2)
    assert len(outer) == 0  # as it leaves, there is no update to be seen
    assert sorted(inner.nodes) == sorted([*NODES] * 2)
    assert inner.rounds == [1] * 4 + [2] * 4
    seen = inner.gradients()
    assert seen.layers == ("0", "1", "3")
    # What the server learns is the mean of these, and nothing else.
    joined = [np.concatenate([a.ravel() for a in state]) for state in kept]
    moved = {r: before - after for r, (before, after) in enumerate(pairwise(joined), 1)}
    for number in (1, 2):
        rows = seen.rows(seen.rounds == number)
        weights = [RECORDS[NODES[int(node)]] for node in rows.nodes]
        mean = np.average(rows["all layers"], axis=0, weights=weights)
        # The same numbers in the order of the layers, up to SecAgg+'s rounding.
        np.testing.assert_allclose(np.sort(mean), np.sort(moved[number]), atol=1e-4)


def test_metrics_go_around_secure_aggregation():
    left = []

    def look(message, context, call_next):
        reply = call_next(message, context)
        numbers = {
            name: value
            for record in reply.content.metric_records.values()
            for name, value in record.items()
        }
        left.append((reply.content.array_records, numbers))
        return reply

    masked_run([look, secaggplus_mod])
    assert all(not arrays for records, _ in left for arrays in records.values())
    told = [value for _, numbers in left for value in numbers.values()]
    assert set(RECORDS) <= set(told)


def start(recorder, client, nodes=NODES, rounds=1, initial=None):
    plain = FedAvg(
        fraction_evaluate=0.0, min_available_nodes=len(nodes), min_train_nodes=len(nodes)
    )
    RecordingStrategy(plain, recorder).start(
        grid=InProcess(client, nodes),
        initial_arrays=ArrayRecord(initial or recorder.net.state_dict()),
        num_rounds=rounds,
    )


def reply_with(state, message, records=8):
    metrics = MetricRecord({"num-examples": records})
    return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)


@pytest.mark.parametrize("wrapped", [False, True])
def test_clients_of_opacus(wrapped):
    opacus = pytest.importorskip("opacus", reason="opacus is not installed")
    app = ClientApp()
    sent = {}

    @app.train()
    def train(message, context):
        part = int(context.node_config["partition-id"])
        net = network()
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        draw = torch.Generator().manual_seed(part)
        x, y = torch.randn(32, 4, generator=draw), torch.randint(0, 2, (32,), generator=draw)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16)
        private, optimiser, loader = opacus.PrivacyEngine().make_private(
            module=net,
            optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        for inputs, targets in loader:
            optimiser.zero_grad()
            nn.functional.cross_entropy(private(inputs), targets).backward()
            optimiser.step()
        sent[context.node_id] = copy.deepcopy(net.state_dict())
        # Whether a client takes the wrapper off before it sends is up to the client.
        return reply_with(private.state_dict() if wrapped else net.state_dict(), message)

    recorder = UpdateRecorder(network())
    if wrapped:  # the average comes back under the wrapper's names: one round is what there is
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FedAvg, "aggregate_train", lambda *_: (None, None))
            start(recorder, app)
    else:
        start(recorder, app, rounds=2)
    seen = recorder.gradients()
    assert seen.layers == ("0", "1", "3")
    before = network().state_dict()
    if wrapped:
        for row, node in zip(seen["3"], recorder.nodes, strict=True):
            after = sent[node]
            wanted = [(before[n] - after[n]).flatten() for n in ("3.weight", "3.bias")]
            np.testing.assert_allclose(row, torch.cat(wanted).numpy(), atol=1e-6)
    else:
        assert recorder.rounds == [1] * 4 + [2] * 4


class LowRank(nn.Module):
    """A frozen layer with a trained change of low rank beside it."""

    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, rank, bias=False)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.lora_B(self.lora_A(x))


@pytest.mark.parametrize("only_adapters", [True, False])
def test_adapters_are_entries_of_their_own(only_adapters):
    torch.manual_seed(0)
    net = nn.Sequential(LowRank(nn.Linear(4, 3)), nn.Tanh(), nn.Linear(3, 2).requires_grad_(False))
    state = net.state_dict()
    if only_adapters:
        state = {name: value for name, value in state.items() if "lora" in name}
    app = ClientApp()

    @app.train()
    def train(message, context):
        moved = message.content["arrays"].to_torch_state_dict()
        part = int(context.node_config["partition-id"])
        return reply_with({k: v - part * ("lora_A" in k) for k, v in moved.items()}, message)

    recorder = UpdateRecorder(net)
    start(recorder, app, initial=state)
    seen = recorder.gradients()
    frozen = ["0.base.weight", "0.base.bias"], ["2.weight", "2.bias"]
    adapters = ["0.lora_A", "0.lora_B"]
    assert list(seen.layers) == (adapters if only_adapters else frozen[0] + adapters + frozen[1])
    part = np.array([NODES[node] for node in recorder.nodes])
    np.testing.assert_allclose(seen["0.lora_A"], np.tile(part[:, None], 8), atol=1e-6)
    assert not seen["0.lora_B"].any()


@pytest.mark.slow
def test_adapters_of_peft():
    peft = pytest.importorskip("peft", reason="peft is not installed")
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    config = peft.LoraConfig(r=2, target_modules=["0"], modules_to_save=["2"])
    net = peft.get_peft_model(base, config)
    state = peft.get_peft_model_state_dict(net)
    assert not any(".default" in name for name in state)
    recorder = UpdateRecorder(net)
    recorder.add(state, {k: v - 1 for k, v in state.items()}, 1, 7)
    seen = recorder.gradients()
    assert [name.removeprefix("base_model.model.") for name in seen.layers] == [
        "0.lora_A.default",
        "0.lora_B.default",
        "2.modules_to_save.default",
    ]
    np.testing.assert_allclose(seen["all layers"], 1.0)

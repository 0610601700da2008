"""Numbers about federated learning that were wrong without a word, each against its known truth.

Every test goes through names that the package had before they were mended (commit ce562f2; the file
of Flower's recorder was ``seepage/layers/flower.py``), and fails there by its number:

====  ==================================================  ====================
item  what is asked                                       at ce562f2
====  ==================================================  ====================
1     P ≤ 0.05 on pure noise, 60 gradients of 500         12 %
2     P ≤ 0.05 of ten clients, a property that is noise   10 of 10
3     bits in BatchNorm's statistics, which were sent     0 (the truth: 1)
4     AUCs held by 95 % intervals, batches seen 6 times   39 of 80
5     updates of two recorders that one file keeps        3 of 6
5     the rounds of five clients in three rounds          1 to 15
6     BatchNorm's mean, clients in this and that order    2.50 and 2.16
7     perfect separation, 1 bit held by the interval      0 of 10
7     P of five clients, who can be labelled in ten ways  1, without a word
====  ==================================================  ====================
"""

from __future__ import annotations

import importlib
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression
from torch import nn

import seepage as sp

pytestmark = pytest.mark.filterwarnings("ignore")
QUICK = {"family": "logistic", "resamples": 50, "permutations": 199}


def flower():
    """Return the file of Flower's recorder, wherever it is."""
    pytest.importorskip("flwr", reason="flwr is not installed: pip install 'seepage[flower]'")
    try:
        return importlib.import_module("seepage.layers.federated.flower")
    except ModuleNotFoundError:
        return importlib.import_module("seepage.layers.flower")


def marked_clients(number, each, seed):
    """Return updates of clients with a mark of their own, the clients, and a random property."""
    draw = np.random.default_rng(seed)
    client = np.tile(np.arange(number), each)
    values = draw.standard_normal((number, 6))[client] + 0.3 * draw.standard_normal(
        (len(client), 6)
    )
    return torch.from_numpy(values).float(), client, draw.permutation(number)[client] % 2


@pytest.mark.minutes
def test_1_noise_is_not_found_more_often_than_the_level_says():
    found = []
    for seed in range(10):
        draw = np.random.default_rng(seed)
        p = draw.permutation(60) % 2
        noise = {f"{k}": draw.standard_normal((60, 500)) for k in range(25)}
        found += list(
            sp.layers.v_information(noise, p, folds=2, seed=seed, **QUICK).columns["p_value"]
        )
    assert np.mean(np.array(found) <= 0.05) <= 0.09  # 5 %, three standard errors of 250: 4.1 %


def test_2_a_property_that_means_nothing_is_not_found_in_a_recording_of_flower():
    net = nn.Linear(6, 1, bias=False)
    small = 0
    for seed in range(10):
        values, client, p = marked_clients(10, 8, seed)
        recorder = flower().UpdateRecorder(net)
        for k, node in enumerate(client):
            number = recorder.nodes.count(int(node))
            recorder.add({"weight": torch.zeros(1, 6)}, {"weight": values[k][None]}, number, node)
        found = sp.layers.v_information(recorder.gradients(), p, seed=seed, **QUICK)
        small += found.columns["p_value"][0] <= 0.05
    assert small <= 3


def test_3_statistics_that_are_sent_are_measured():
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    recorder, sent = flower().UpdateRecorder(net), net.state_dict()
    draw = torch.Generator().manual_seed(1)
    trait = np.arange(60) % 2
    for node, wears in enumerate(trait):
        returned = {
            k: v + torch.randn(v.shape, generator=draw).to(v.dtype) for k, v in sent.items()
        }
        returned["1.running_var"] += 3 * wears
        recorder.add(sent, returned, 1, node)
    found = sp.layers.v_information(recorder.gradients(), trait, unit="bits", **QUICK)
    assert max(found.values) > 0.8


@pytest.mark.slow
def test_4_repeats_do_not_narrow_the_interval_of_the_area():
    draw = np.random.default_rng(0)
    p = np.arange(2000) % 2
    adversary = sp.attacks.PropertyInference("0", LogisticRegression())
    adversary.fit({"0": draw.standard_normal((2000, 1)) + p[:, None]}, p)
    net, truth = nn.Sequential(nn.Linear(1, 1, bias=False)), norm.cdf(1 / np.sqrt(2 * 1.01))
    batch = np.repeat(np.arange(40), 6)
    covered = 0
    for _ in range(80):
        own = (draw.standard_normal(40) + np.arange(40) % 2)[batch]
        values = torch.from_numpy(own + 0.1 * draw.standard_normal(240)).float()
        updates = [
            sp.layers.Update(k, (int(b),), {"0.weight": values[k].reshape(1, 1)})
            for k, b in enumerate(batch)
        ]
        seen = sp.layers.record_updates(net, updates)
        low, high = adversary.attack(seen, batch % 2).interval
        covered += low < truth < high
    assert covered >= 70


def test_5_two_recorders_on_one_file_lose_nothing(tmp_path):
    net, path = nn.Linear(2, 1), tmp_path / "updates.npz"
    recorders = [flower().UpdateRecorder(net, path) for _ in range(2)]
    for server_round in (1, 2, 3):
        for node, recorder in enumerate(recorders):
            recorder.add(net.state_dict(), net.state_dict(), server_round, node)
            recorder.save()
    assert len(flower().UpdateRecorder(net, path, resume=True)) == 6


def test_5_rounds_are_the_servers(monkeypatch):
    net = nn.Linear(2, 1)
    recorder = flower().UpdateRecorder(net)
    mod = flower().recording_mod(recorder)
    from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("run_id", "task_id", "node_id"):  # what a process is told by Flower
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)

    def train(message, context):
        return Message(RecordDict({"arrays": ArrayRecord(net.state_dict())}), reply_to=message)

    for server_round in (1, 2, 3):
        for node in range(5):
            records = {
                "arrays": ArrayRecord(net.state_dict()),
                "config": ConfigRecord({"server-round": server_round}),
            }
            message = Message(RecordDict(records), dst_node_id=node, message_type="train")
            mod(message, SimpleNamespace(node_id=node), train)
    assert list(recorder.rounds) == [1] * 5 + [2] * 5 + [3] * 5


def test_6_the_order_of_clients_does_not_change_batch_norm():
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2)).double()
    clients = [
        (torch.randn(30, 3, dtype=torch.float64) + 5 * k, torch.arange(30) % 2) for k in range(3)
    ]
    # A step on all records of a client, so that nothing is drawn.
    options = {"rounds": 2, "method": "fedavg", "local_steps": 1, "batch_size": 30, "lr": 0.1}
    means = [
        sp.layers.simulate(net, "cross_entropy", order, **options).net[0].running_mean
        for order in (clients, clients[::-1])
    ]
    assert np.allclose(means[0], means[1])
    every = torch.cat([x for x, _ in clients]).mean(0)
    assert np.allclose(means[0], every * (1 - 0.9**2))


def test_7_perfect_separation_does_not_exclude_the_whole_bit():
    p = np.arange(80) % 2
    covered = 0
    for seed in range(10):
        g = np.random.default_rng(seed).standard_normal((80, 2)) + 20 * p[:, None]
        found = sp.layers.v_information(g, p, unit="bits", seed=seed, **QUICK)
        covered += found.low[0] <= 1 <= found.high[0] + 1e-9
    assert covered == 10


def test_7_five_clients_that_nothing_can_be_exchanged_among_are_said_to_be_so():
    values, client, p = marked_clients(5, 8, 0)
    seen = {"a": values.numpy() + 8 * p[:, None]}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = sp.layers.v_information(seen, p, groups=client, **QUICK)
    assert found.columns["p_value"][0] == pytest.approx(0.1, abs=0.05)  # 10 ways, drawn 199 times
    assert any("in only 10 ways" in str(warning.message) for warning in said)

"""Clients stay themselves over rounds and runs, and a recording grows by what is new.

At 8814631 a second run of the same twelve clients goes into the file of the first as twelve more:
then 19 of 20 labellings that mean nothing name a layer, and every round rewrites the whole file.
"""

from __future__ import annotations

import stat
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from seepage.attacks import attack_recording
from seepage.errors import InputError
from seepage.layers import LayerGradients, audit_recording, since_when, standing_out, v_information
from seepage.layers.federated.client_identity import anew_in_a_run, one_run, same_client
from seepage.layers.federated.client_means import ClientRounds
from seepage.layers.federated.flower import UpdateRecorder
from seepage.layers.federated.gradients import joined
from seepage.layers.federated.stored_recordings import load_gradients, save_gradients

CLIENTS, ROUNDS, LABELLINGS = 12, 4, 200
MARKS = np.random.default_rng(0).standard_normal((CLIENTS, 6))
NET = nn.Linear(6, 1, bias=False)


def run_once(recorder, seed, *, keys=False, run=0, first=1, rounds=ROUNDS):
    """Record a run in which every client has a mark of its own, under nodes drawn anew."""
    draw = np.random.default_rng(seed)
    nodes = draw.integers(1 << 40, 1 << 50, CLIENTS).tolist()
    for number in range(first, first + rounds):
        for client, node in enumerate(nodes):
            moved = torch.from_numpy(MARKS[client] + 0.3 * draw.standard_normal(6)).float()
            key = f"hospital {client}" if keys else ""
            state = {"weight": torch.zeros(1, 6)}
            recorder.add(state, {"weight": moved[None]}, number, node, run=run, client=key)
        recorder.save()
    return dict(zip(nodes, range(CLIENTS), strict=True))


def named_of(seen, client_of, labellings=LABELLINGS):
    """Return how many labellings of the clients that mean nothing name a layer at 5 %."""
    draw, named = np.random.default_rng(3), 0
    for _ in range(labellings):
        label = draw.permutation(CLIENTS) % 2
        values = [int(label[client_of[node]]) for node in seen.nodes.tolist()]
        named += since_when(seen, values, permutations=199).first() is not None
    return named


@pytest.fixture(scope="module")
def restarted(tmp_path_factory):
    """Return a folder with two runs of the same clients, and each node's client."""
    path = tmp_path_factory.mktemp("keyed") / "updates"
    client_of = run_once(UpdateRecorder(NET, path), 1, keys=True, run=7)
    client_of |= run_once(UpdateRecorder(NET, path, resume=True), 2, keys=True, run=8)
    return path, client_of


def test_a_restarted_run_names_a_layer_at_the_nominal_rate(restarted):
    path, client_of = restarted
    seen, columns = load_gradients(path)
    assert len(seen) == 2 * CLIENTS * ROUNDS
    assert len(set(seen.nodes.tolist())) == 2 * CLIENTS
    assert sorted(set(columns["run"].tolist())) == [7, 8]
    assert len(ClientRounds.of(seen).clients) == CLIENTS
    # 5 % of 200 is 10, with a standard deviation of 3.1; with 24 clients it is all of them.
    assert named_of(seen, client_of) <= 19
    doubled = replace(seen, clients=None, runs=np.ones(len(seen)))
    assert named_of(doubled, client_of, 20) >= 18


def test_a_client_of_two_runs_is_one_unit_in_every_measure(restarted):
    path, client_of = restarted
    seen, _ = load_gradients(path)
    label = np.array([client_of[node] % 2 for node in seen.nodes.tolist()])
    found = audit_recording(path, {f"hospital {k}": k % 2 for k in range(CLIENTS)})
    assert found.runs == 2
    assert found.set_aside == ""
    assert found.shares == {"0": 6, "1": 6}
    assert len(found.clients.clients) == CLIENTS
    assert found.clients.updates.tolist() == [2 * ROUNDS] * CLIENTS
    # By node, as people write it down on the day: the same.
    by_node = audit_recording(path, {node: k % 2 for node, k in client_of.items()})
    assert by_node.shares == found.shares
    note = v_information(seen, label, family="logistic", resamples=20).notes
    assert "The gradients were grouped by their 12 nodes." in note


def test_rounds_of_two_runs_are_centred_apart():
    draw = np.random.default_rng(5)
    values = draw.standard_normal((8, 3))
    values[4:] += 100  # the second run starts from another model
    seen = replace(
        LayerGradients.of({"fc": values}),
        clients=np.array(list("abcd") * 2),
        nodes=np.arange(8),
        rounds=np.ones(8, dtype=int),
        runs=np.repeat([1, 2], 4),
    )
    *_, (means, _) = ClientRounds.of(seen).means(seen["fc"])
    wanted = np.zeros((4, 3))
    for part in (values[:4], values[4:]):
        apart = part - part.mean(axis=0)
        wanted += apart / np.sqrt((apart**2).mean()) / 2
    np.testing.assert_allclose(means, wanted, atol=1e-4)  # kept as float32, beside 100


def test_runs_whose_clients_cannot_be_matched_are_not_pooled(tmp_path):
    paths = [tmp_path / "first", tmp_path / "second"]
    known = run_once(UpdateRecorder(NET, paths[0]), 1, rounds=ROUNDS + 1)
    known |= run_once(UpdateRecorder(NET, paths[1]), 2)
    both = joined([load_gradients(path)[0] for path in paths])
    assert len(np.unique(both.runs)) == 2  # every folder has drawn a number of its own
    for refused in (ClientRounds.of, standing_out, same_client):
        with pytest.raises(InputError, match=r"holds 2 runs whose clients cannot be matched.*key"):
            refused(both)
    with pytest.raises(InputError, match=r"one run: recording\.rows\(recording\.runs == …\)"):
        same_client(both)
    old = replace(both, runs=None)  # as recorded by earlier versions
    with pytest.raises(InputError, match=r"choose one run: recording\.rows\(slice\(60\)\)"):
        same_client(old)
    assert len(set(same_client(old.rows(slice(60))).tolist())) == CLIENTS
    kept, sentence = one_run(both)
    assert int(kept.sum()) == CLIENTS * (ROUNDS + 1)
    assert "only the longest run was used (60 of 108 updates)" in sentence
    assert named_of(both.rows(kept), known) <= 19
    values = {node: client % 2 for node, client in known.items()}
    for recording in (both, paths):
        found = audit_recording(recording, values, family="logistic", permutations=99)
        assert found.set_aside == sentence
        assert sentence in str(found)
        assert found.updates == 60
        assert len(found.clients.clients) == CLIENTS
    per_update = [values[node] for node in both.nodes.tolist()]
    assert audit_recording(both, per_update, family="logistic", permutations=99).shares == {
        "0": 6,
        "1": 6,
    }
    areas = attack_recording(both, values, classifier="logistic")
    assert areas.values.tolist() == (
        attack_recording(both.rows(kept), values, classifier="logistic").values.tolist()
    )


def test_a_file_of_an_earlier_version_with_two_runs_is_seen_for_what_it_is(tmp_path):
    client_of, parts = {}, []
    for seed in (1, 2):
        recorder = UpdateRecorder(NET)
        client_of |= run_once(recorder, seed)
        parts.append(replace(recorder.gradients(), runs=None, clients=None))
    save_gradients(joined(parts), tmp_path / "old.npz")
    found = audit_recording(
        tmp_path / "old.npz", {n: k % 2 for n, k in client_of.items()}, family="logistic"
    )
    assert "only the longest run was used (48 of 96 updates)" in found.set_aside
    # One run, listed client by client, stays one run.
    order = np.argsort(parts[0].nodes, kind="stable")
    assert one_run(parts[0].rows(order))[1] == ""


def test_nodes_that_stay_the_same_are_the_same_clients():
    first, second = UpdateRecorder(NET), UpdateRecorder(NET)
    for recorder in (first, second):
        run_once(recorder, 1)
    both = joined([first.gradients(), second.gradients()])
    assert len(ClientRounds.of(both).clients) == CLIENTS
    assert one_run(both)[1] == ""


def test_clients_that_register_anew_in_a_run_are_noted():
    recorder = UpdateRecorder(NET)
    known = run_once(recorder, 1, run=5)
    assert anew_in_a_run(recorder.gradients()) == ""
    known |= run_once(recorder, 2, run=5, first=ROUNDS + 1)
    note = anew_in_a_run(recorder.gradients())
    assert note.startswith("No node of the rounds before 5 takes part from round 5 on")
    found = audit_recording(recorder.gradients(), {n: k % 2 for n, k in known.items()})
    assert note in found.notes
    once = recorder.gradients().rows(np.arange(CLIENTS * 2 * ROUNDS) % (CLIENTS + 1) == 0)
    assert anew_in_a_run(once) == ""


def test_a_round_is_recorded_once(tmp_path):
    path = tmp_path / "updates"
    recorder = UpdateRecorder(NET, path)
    run_once(recorder, 1, keys=True, run=7)
    with pytest.raises(InputError, match=r"updates exists already.*resume=True"):
        UpdateRecorder(NET, path)
    state = {"weight": torch.zeros(1, 6)}
    again = UpdateRecorder(NET, path, resume=True)
    with pytest.raises(InputError, match="Client hospital 3 already has an update for round 2"):
        again.add(state, state, 2, 99, run=7, client="hospital 3")
    with pytest.raises(InputError, match=r"Round 2 is in .*updates already, from another run"):
        again.add(state, state, 2, 99, run=8)
    with pytest.raises(InputError, match=r"Round 2 is in .*updates already"):
        again.add(state, state, 2, 99)
    again.add(state, state, 2, 99, run=8, client="hospital 3")
    again.save()
    assert len(load_gradients(path)[0]) == CLIENTS * ROUNDS + 1
    assert UpdateRecorder(NET, path, resume=True).clients.count("hospital 3") == ROUNDS + 1


def test_every_round_adds_a_file_of_its_own_and_leaves_the_others(tmp_path):
    path = tmp_path / "there" / "updates"
    recorder = UpdateRecorder(NET, path)
    run_once(recorder, 1, rounds=1)
    (first,) = path.glob("round-*")
    before = first.stat()
    run_once(recorder, 1, first=2, rounds=39)
    files = sorted(path.iterdir())
    assert len(files) == 80  # the updates, and the model sent
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    sizes = {(file.suffix, file.stat().st_size) for file in files}
    assert len(sizes) == 2  # so the whole is linear in the rounds
    assert not recorder._new  # what is written is not kept in memory
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert load_gradients(path)[0].rounds.tolist() == np.repeat(np.arange(1, 41), 12).tolist()


def test_a_resumed_recorder_opens_one_file_and_those_of_its_round(tmp_path, monkeypatch):
    path = tmp_path / "updates"
    run_once(UpdateRecorder(NET, path), 1, rounds=30, run=7)
    opened, load = [], np.load

    def noted(file, **how):
        opened.append(file.name)
        return load(file, **how)

    monkeypatch.setattr(np, "load", noted)
    again = UpdateRecorder(NET, path, resume=True)
    state = {"weight": torch.zeros(1, 6)}
    again.add(state, state, 31, 5, run=7)
    again.save()
    assert len(set(opened)) == 1

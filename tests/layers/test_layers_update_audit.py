"""Recorded updates of clients who train as people do, audited without the clients' records."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from seepage.errors import InputError
from seepage.layers import LayerGradients, audit_updates, record_updates, v_information

CLIENTS, ROUNDS = 16, 3
TRAIT = np.arange(CLIENTS) % 2  # the property of every client, which shows in its inputs


def trained_locally(net, x, y):
    """Return what a client moves by in two epochs of Adam with weight decay, buffers included."""
    local = copy.deepcopy(net)
    optimiser = torch.optim.AdamW(local.parameters(), lr=0.01, weight_decay=0.1)
    for rows in torch.arange(len(y)).repeat(2).split(16):
        optimiser.zero_grad()
        nn.functional.cross_entropy(local(x[rows]), y[rows]).backward()
        optimiser.step()
    after = local.state_dict()
    return {name: value - after[name] for name, value in net.state_dict().items()}


@cache
def recording():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).train()
    seen = []
    for _ in range(ROUNDS):
        for client in range(CLIENTS):
            x, y = torch.randn(48, 6), torch.randint(0, 2, (48,))
            x[:, 0] += 2 * y
            x[:, 3:] += 2 * float(TRAIT[client])
            seen.append(trained_locally(net, x, y))
    return record_updates(net, seen, nodes=np.tile(np.arange(CLIENTS), ROUNDS))


@pytest.mark.slow
def test_the_layer_that_tells_is_named_without_the_records():
    found = audit_updates(
        recording(), np.tile(TRAIT, ROUNDS), family="logistic", folds=4, unit="bits"
    )
    assert found.v_information.layers == ("0", "1", "1.buffers", "3")
    assert "1.buffers" in found.protect
    assert found.v_information["1.buffers"] > 0.5
    assert found.sensitivity is None
    assert set(found.refused) == {"sensitivity", "Fisher information", "PLIS"}
    assert "Not measured: sensitivity, which is the derivative of one gradient" in str(found)
    assert found.table().column_names[:3] == ["layer", "size", "v_information"]
    assert found.mix == "recorded"
    names = [remedy.name for remedy in found.remedies]
    assert names[0] == "as it is"
    assert names[-1].endswith("noise 1 × that")
    # The property is in the buffers, which neither clipping nor noise reaches.
    assert found.remedies[-1].value == pytest.approx(found.remedies[0].value, abs=0.01)


@pytest.mark.slow
def test_a_property_that_means_nothing_is_not_found_in_the_clients():
    draw = np.random.default_rng(3)
    named = 0
    for _ in range(4):
        labels = np.tile(draw.permutation(TRAIT), ROUNDS)
        found = audit_updates(recording(), labels, family="logistic", folds=4)
        named += len(found.protect) > 0
    assert named <= 1


@pytest.mark.slow
def test_groups_may_be_left_out():
    bare = replace(recording(), nodes=None)
    labels = np.tile(TRAIT, ROUNDS)
    options = {"family": "logistic", "folds": 4}
    one = audit_updates(recording(), labels, groups=False, **options)
    other = audit_updates(bare, labels, **options)
    np.testing.assert_array_equal(one.v_information.values, other.v_information.values)


def test_updates_that_cannot_be_audited():
    with pytest.raises(InputError, match="updates must be a recording, not dict"):
        audit_updates({"0": np.ones((4, 2))}, [0, 1, 0, 1])
    with pytest.raises(InputError, match="noise must not be negative"):
        audit_updates(recording(), np.tile(TRAIT, ROUNDS), noise=-1)
    still = LayerGradients.of({"0": np.zeros((20, 3))})
    found = audit_updates(still, np.arange(20) % 2, family="logistic")
    assert [remedy.name for remedy in found.remedies] == ["as it is"]
    assert "the median norm for clipping is zero" in found.notes[0]


@pytest.mark.slow
def test_every_layer_tells_and_only_metrics_would_be_left():
    draw = np.random.default_rng(0)
    client = np.tile(np.arange(20), 3)
    told = {name: draw.standard_normal((60, 3)) + 9 * (client % 2)[:, None] for name in "ab"}
    seen = replace(
        LayerGradients.of(told), nodes=client, metrics={"loss": draw.standard_normal(60)}
    )
    found = audit_updates(seen, client % 2, family="logistic")
    assert set(found.protect) == {"a", "b"}
    names = [remedy.name for remedy in found.remedies]
    assert names[1:3] == ["without a", "without b"]
    assert not any("," in name for name in names[:3])
    assert any("no layer remains to be sent" in note for note in found.notes)
    alone = audit_updates(seen.only("a"), client % 2, family="logistic")
    assert any("only layer" in note for note in alone.notes)


@pytest.mark.slow
def test_metrics_that_tell_are_named_and_dropped():
    draw = np.random.default_rng(0)
    client = np.tile(np.arange(20), 3)
    seen = replace(
        LayerGradients.of({"a": draw.standard_normal((60, 3))}),
        nodes=client,
        metrics={"num-examples": 100.0 + 50 * (client % 2) + draw.integers(0, 9, 60)},
    )
    found = audit_updates(seen, client % 2, family="logistic", unit="bits")
    assert found.protect == ("client metrics",)
    left = {remedy.name: remedy.value for remedy in found.remedies}
    assert left["as it is"] > 0.8
    assert left["without client metrics"] < 0.2
    assert max(value for name, value in left.items() if "noise" in name) > 0.5  # it goes around


def test_remedies_are_judged_by_the_layer_that_reveals_most():
    """A logistic regression on 400 numbers finds less than on the two that reveal the property."""
    draw = np.random.default_rng(0)
    client = np.tile(np.arange(12), 4)
    own = draw.standard_normal((12, 400))[client] + 0.1 * draw.standard_normal((48, 400))
    buffers = draw.standard_normal((48, 2)) + 9 * (client % 2)[:, None]
    seen = replace(LayerGradients.of({"fc": own, "bn.buffers": buffers}), nodes=client)
    found = audit_updates(seen, client % 2, family="logistic", folds=4, unit="bits")
    told = found.v_information["bn.buffers"]
    whole = v_information(seen["all layers"], client % 2, groups=client, family="logistic", folds=4)
    assert whole.values[0] / np.log(2) < 0.5 < 0.9 < told
    as_it_is, without, *others = found.remedies
    assert (as_it_is.value, as_it_is.layer, as_it_is.auc) == (told, "bn.buffers", 1.0)
    assert (without.name, without.layer) == ("without bn.buffers", "all layers")
    assert without.value < 0.1
    assert without.auc < 0.8
    for remedy in others:  # neither clipping nor noise reaches the buffers
        assert (remedy.value, remedy.layer, remedy.auc) == (told, "bn.buffers", 1.0)
    # One test for the whole update and one for the layer.
    assert as_it_is.p_value == 2 * found.v_information.columns["p_value"][1]

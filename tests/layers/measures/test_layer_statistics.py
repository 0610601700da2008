"""P-values and intervals mean what they say: few simulated sets here, many in the benchmark."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks.intervals import area_under_curve
from seepage.errors import InputError
from seepage.layers import Update, record_updates, v_information

QUICK = {"family": "logistic", "resamples": 50, "permutations": 199}


def small_p_values(sets, layers, folds, level=0.05, **shape):
    """The share of P-values up to a level over layers of pure noise."""
    found = []
    for seed in range(sets):
        draw = np.random.default_rng(seed)
        p = draw.permutation(shape["count"]) % 2
        noise = {
            f"{k}": draw.standard_normal((shape["count"], shape["width"])) for k in range(layers)
        }
        found.append(v_information(noise, p, folds=folds, seed=seed, **QUICK).columns["p_value"])
    return float(np.mean(np.concatenate(found) <= level))


@pytest.mark.minutes
@pytest.mark.parametrize(("count", "width"), [(60, 500), (200, 50)])
def test_levels_are_kept_over_a_thousand_layers(count, width):
    for level in (0.01, 0.05, 0.10):
        rate = small_p_values(40, 25, 5, level, count=count, width=width)
        assert abs(rate - level) <= 3 * np.sqrt(level * (1 - level) / 1000)


def updates_of(clients, each, seed, property_shift=0.0, own=1.0, noise=0.3):
    """Updates of a network with one number, of clients with a mark of their own."""
    draw = np.random.default_rng(seed)
    client = np.tile(np.arange(clients), each)
    p = draw.permutation(clients)[client] % 2
    values = own * draw.standard_normal((clients, 6))[client]
    values = values + noise * draw.standard_normal(values.shape) + property_shift * p[:, None]
    rows = torch.from_numpy(values.astype(np.float32))
    return [Update(k, (int(c),), {"0.weight": rows[k][None]}) for k, c in enumerate(client)], p


NET = nn.Sequential(nn.Linear(6, 1, bias=False))


@pytest.mark.minutes
def test_updates_are_grouped_by_the_clients_they_came_from():
    # A property of ten clients that nothing tells: ungrouped, their marks give it away.
    small = 0
    for seed in range(10):
        updates, p = updates_of(10, 8, seed)
        found = v_information(record_updates(NET, updates), p, seed=seed, **QUICK)
        small += found.columns["p_value"][0] <= 0.05
    assert small <= 3
    assert "grouped by their 10 nodes" in " ".join(found.notes)


def test_a_recorder_of_flower_groups_by_its_nodes():
    from seepage.layers.federated.flower import UpdateRecorder

    updates, p = updates_of(10, 8, 0)
    recorder = UpdateRecorder(NET)
    for number, update in enumerate(updates):
        returned = {"0.weight": -update.values["0.weight"]}
        recorder.add({"0.weight": torch.zeros(1, 6)}, returned, number, 100 + update.clients[0])
    found = v_information(recorder.gradients(), p, **QUICK)
    same = v_information(record_updates(NET, updates), p, **QUICK)
    np.testing.assert_allclose(found.columns["p_value"], same.columns["p_value"])


def test_groups_may_be_refused_or_named():
    updates, p = updates_of(10, 8, 0)
    seen = record_updates(NET, updates)
    loose = v_information(seen, p, groups=False, **QUICK)
    assert loose.columns["p_value"][0] <= 0.05
    named = v_information(seen, p, groups=seen.nodes, **QUICK)
    own = v_information(seen, p, **QUICK)
    np.testing.assert_array_equal(named.values, own.values)


@pytest.mark.minutes
def test_ten_clients_that_know_their_property_are_found_out():
    hits = 0
    for seed in range(10):
        updates, p = updates_of(10, 8, seed, property_shift=1.5)
        found = v_information(record_updates(NET, updates), p, seed=seed, **QUICK)
        hits += found.columns["p_value"][0] <= 0.05
    assert hits >= 8


def test_five_clients_are_said_to_be_too_few():
    updates, p = updates_of(5, 8, 0, property_shift=8.0)
    seen = {"a": np.concatenate([update.values["0.weight"].numpy() for update in updates])}
    client = [update.clients[0] for update in updates]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = v_information(seen, p, groups=client, **QUICK)
    assert found.columns["p_value"][0] == pytest.approx(0.1, abs=0.05)
    assert found.columns["p_value"][0] >= 0.1
    assert any("in only 10 ways" in str(warning.message) for warning in said)
    assert "in only 10 ways" in " ".join(found.notes)


def test_a_class_of_one_node_is_not_grouped_and_said_so():
    updates, _ = updates_of(6, 10, 0)
    p = [update.clients[0] == 0 for update in updates]
    with pytest.warns(sp.layers.FewGroupsWarning, match="distinguished from the others"):
        found = v_information(record_updates(NET, updates), p, **QUICK)
    assert found.values[0] > 0.1


@pytest.mark.slow
def test_perfect_separation_does_not_exclude_the_whole_entropy():
    for seed in range(4):
        draw = np.random.default_rng(seed)
        p = np.arange(80) % 2
        g = draw.standard_normal((80, 2)) + 20 * p[:, None]
        found = v_information(g, p, unit="bits", seed=seed, **QUICK)
        assert found.high[0] == pytest.approx(1.0)
        assert 0.5 < found.low[0] < 0.95


@pytest.mark.slow
def test_where_nothing_is_found_something_may_have_been_missed():
    for seed in range(10):
        draw = np.random.default_rng(seed)
        g, p = draw.standard_normal((80, 2)), np.arange(80) % 2
        found = v_information(g, p, seed=seed, **QUICK)
        assert found.low[0] <= 0.01
        assert 0.01 < found.high[0] < 0.2


@pytest.mark.minutes
def test_groups_of_attacked_updates():
    draw = np.random.default_rng(0)
    p = np.arange(60) % 2
    seen = {"a": draw.standard_normal((60, 2)) + p[:, None]}
    plain, again = (
        sp.attacks.attack_layers(seen, p, seen, p, groups=groups) for groups in (None, False)
    )
    assert plain.low.tolist() == again.low.tolist()
    tripled = {"a": np.tile(seen["a"], (3, 1))}
    options = {"groups": np.tile(np.arange(60), 3), "classifier": "logistic"}
    thrice = sp.attacks.attack_layers(seen, p, tripled, np.tile(p, 3), **options)
    once = sp.attacks.attack_layers(seen, p, seen, p, **options | {"groups": np.arange(60)})
    # The classifier's float32 scores of a record and its copies differ in the last bit, which
    # breaks ties between their ranks.
    np.testing.assert_allclose(thrice.low, once.low, rtol=2e-6)
    np.testing.assert_allclose(thrice.high, once.high, rtol=2e-6)
    scores, groups = draw.standard_normal(60) + p, np.arange(60)
    np.testing.assert_allclose(
        area_under_curve(np.tile(scores, 3), np.tile(p, 3), groups=np.tile(groups, 3))[1],
        area_under_curve(scores, p, groups=groups)[1],
        rtol=1e-12,
    )
    mixed = sp.attacks.attack_layers(seen, p, seen, p, **options | {"groups": np.arange(60) // 6})
    assert np.all((mixed.low < mixed.values) & (mixed.values < mixed.high))
    with pytest.raises(InputError, match="60 updates, but groups has the shape"):
        sp.attacks.attack_layers(seen, p, seen, p, groups=[1])

"""Since when a property shows and who stands out, against brute force and by simulation."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from seepage.errors import InputError
from seepage.layers import LayerGradients, audit_recording, since_when, standing_out

CLIENTS, ROUNDS = 10, 3
CLIENT = np.tile(np.arange(CLIENTS), ROUNDS)
ROUND = np.repeat(np.arange(ROUNDS) + 1, CLIENTS)


def recorded(blocks, client=CLIENT, number=ROUND):
    return replace(LayerGradients.of(blocks), nodes=client, rounds=number)


def noise(seed, layers=3, width=6, alike=1.0):
    """Return updates without any property; those of a client resemble each other."""
    draw = np.random.default_rng(seed)
    return {
        f"fc{k}": draw.standard_normal((len(CLIENT), width))
        + alike * draw.standard_normal((CLIENTS, width))[CLIENT]
        for k in range(layers)
    }


def dense_statistics(blocks, labelled):
    """Return by layer, round and labelling the standardised error, each client left out in turn."""
    found = []
    for block in blocks.values():
        for last in range(1, ROUNDS + 1):
            own = np.zeros((CLIENTS, block.shape[1]))
            for r in range(1, last + 1):
                part = block[r == ROUND] - block[r == ROUND].mean(axis=0)
                own[CLIENT[r == ROUND]] += part / np.sqrt(np.mean(part**2)) / last
            rows = (own - own.mean(axis=0)) / own.std(axis=0)
            apart = cdist(rows, rows, "sqeuclidean")
            kernel = np.exp(-apart / np.median(apart[np.triu_indices(CLIENTS, 1)]))
            centre = np.eye(CLIENTS) - 1 / CLIENTS
            kernel = centre @ kernel @ centre
            ridge = np.trace(kernel) / CLIENTS
            errors = []
            for label in labelled:
                y = label - label.mean()
                total = 0.0
                for c in range(CLIENTS):
                    rest = [k for k in range(CLIENTS) if k != c]
                    within = kernel[np.ix_(rest, rest)] + ridge * np.eye(CLIENTS - 1)
                    total += (y[c] - kernel[c, rest] @ np.linalg.solve(within, y[rest])) ** 2
                errors.append(2 * total)  # both classes
            found.append((np.mean(errors) - errors) / np.std(errors))
    return np.array(found)


@pytest.mark.slow
def test_it_is_the_step_down_test_of_all_arrangements():
    blocks = noise(5, layers=2)
    blocks["fc1"] += 1.5 * (CLIENT % 2)[:, None]
    own = np.arange(CLIENTS) % 2
    others = [set(c) for c in combinations(range(CLIENTS), 5)]
    labelled = np.array([[float(k in chosen) for k in range(CLIENTS)] for chosen in others])
    place = int(np.flatnonzero((labelled == own).all(axis=1))[0])
    statistics = dense_statistics(blocks, labelled)
    left, wanted, least = list(range(len(statistics))), {}, 0.0
    while left:
        highest = max(left, key=lambda k: statistics[k, place])
        reached = statistics[left].max(axis=0) >= statistics[highest, place] - 1e-9
        least = wanted[highest] = max(least, float(reached.mean()))
        left.remove(highest)
    expected = np.array([wanted[k] for k in range(len(statistics))]).reshape(2, ROUNDS).T
    found = since_when(recorded(blocks), CLIENT % 2, permutations=4000)
    # Arrangements are drawn there, and all of them tried here.
    np.testing.assert_allclose(found.p_values, expected, atol=0.03)
    assert found.rounds == (1, 2, 3)
    assert found.clients == (10, 10, 10)


@pytest.mark.minutes
def test_where_there_is_nothing_anything_is_named_in_five_of_a_hundred():
    draw = np.random.default_rng(1)
    named = 0
    for seed in range(100):
        label = draw.permutation(np.arange(CLIENTS) % 2)[CLIENT]
        found = since_when(recorded(noise(seed)), label, permutations=199, seed=seed)
        named += found.first() is not None
    assert named <= 11  # of 100; more than 11 has a chance of 0.4 % at 5 %


def test_the_first_round_is_named():
    blocks = noise(2)
    blocks["fc1"] += 8 * ((CLIENT % 2) * (ROUND >= 2))[:, None]
    found = since_when(recorded(blocks), CLIENT % 2)
    assert found.first("fc1") == found.first() == 2
    assert found.first("fc0") is None
    assert found.table().num_rows == 9


def test_clients_who_come_later_are_counted_when_they_come():
    late = (CLIENT >= 8) & (ROUND < 3)
    blocks = {k: v[~late] for k, v in noise(2).items()}
    seen = recorded(blocks, CLIENT[~late], ROUND[~late])
    assert since_when(seen, CLIENT[~late] % 2, permutations=99).clients == (8, 8, 10)


def test_of_many_rounds_some_are_asked_about_the_last_among_them():
    number = np.repeat(np.arange(100), CLIENTS)
    client = np.tile(np.arange(CLIENTS), 100)
    seen = recorded({"fc": np.random.default_rng(0).standard_normal((1000, 2))}, client, number)
    rounds = since_when(seen, client % 2, permutations=19).rounds
    assert len(rounds) == 24
    assert rounds[0] == 0
    assert rounds[-1] == 99


def test_who_is_furthest_is_first_although_there_are_two_of_them():
    blocks = noise(0, layers=2, width=40)
    blocks["fc1"] += 12 * np.isin(CLIENT, [2, 7])[:, None] * np.sign(CLIENT - 4.5)[:, None]
    found = standing_out(recorded(blocks))
    assert {found.clients[k] for k in found.order()[:2]} == {2, 7}
    # One is always the furthest of ten, so that alone names nobody.
    assert sorted(found.p_value) == pytest.approx(np.arange(1, 11) / 10)
    assert found.named() == []
    assert found.layer[2] == found.layer[7] == "fc1"
    assert found.times[2] > 3
    assert found.table().column("client").to_pylist()[2] == "2"


def test_updates_that_are_all_the_same():
    seen = recorded({"fc": np.ones((len(CLIENT), 3))})
    assert (since_when(seen, CLIENT % 2, permutations=9).p_values == 1).all()
    assert standing_out(seen).named() == []


def test_what_cannot_be_asked():
    seen = recorded(noise(0))
    with pytest.raises(InputError, match="several values of the property"):
        since_when(seen, ROUND % 2)
    with pytest.raises(InputError, match="does not identify the client"):
        standing_out(replace(seen, nodes=None))
    with pytest.raises(InputError, match="All updates come from one client"):
        standing_out(replace(seen, nodes=np.zeros(len(CLIENT))))
    with pytest.raises(InputError, match="permutations must be"):
        since_when(seen, CLIENT % 2, permutations=0)


@pytest.mark.minutes
def test_a_property_by_client_by_update_and_in_order_is_the_same():
    blocks = noise(3)
    blocks["fc1"] += 8 * (CLIENT % 2)[:, None]
    seen = recorded(blocks)
    by_client = {str(k): k % 2 for k in range(CLIENTS)}
    by_update = {(k, r): k % 2 for k in range(CLIENTS) for r in (1, 2, 3)}
    answers = [
        audit_recording(seen, known, family="logistic", permutations=99)
        for known in (by_client, by_update, CLIENT % 2)
    ]
    for found in answers:
        assert found.telling() == ("fc1",)
        assert found.shares == {"0": 5, "1": 5}
        np.testing.assert_array_equal(found.over_rounds.p_values, answers[0].over_rounds.p_values)
    shown = (
        "The property is revealed by 'fc1' at the 5 % level in the test over rounds, first after "
    )
    assert f"{shown}round 1." in str(answers[0])
    assert "1 layer reveals the property>" in repr(answers[0])


@pytest.mark.minutes
def test_a_property_that_changes_within_clients_has_no_first_round():
    draw = np.random.default_rng(0)
    client, number = np.tile(np.arange(6), 10), np.repeat(np.arange(10), 6)
    label = draw.permuted(np.tile(np.arange(10) % 2, (6, 1)), axis=1).T.ravel()
    block = draw.standard_normal((60, 3)) + 5 * label[:, None]
    seen = recorded({"fc": block, "other": draw.standard_normal((60, 3))}, client, number)
    found = audit_recording(seen, label, family="logistic")
    assert found.over_rounds is None
    assert found.telling() == ("fc",)
    assert any("several values" in note for note in found.notes)


def test_properties_that_do_not_fit():
    seen = recorded(noise(0))
    with pytest.raises(InputError, match="not given for 9 of the 10 clients"):
        audit_recording(seen, {0: 1})
    with pytest.raises(InputError, match=r"not given for 29 of the 30 updates .client and round."):
        audit_recording(seen, {(0, 1): 1})
    with pytest.raises(InputError, match="has no rounds"):
        audit_recording(replace(seen, rounds=None), {(0, 1): 1})
    with pytest.raises(InputError, match="All clients have the same"):
        audit_recording(seen, dict.fromkeys(range(10), 1))
    with pytest.raises(InputError, match="has 10 values among 10 clients"):
        audit_recording(seen, {k: k for k in range(10)})


def test_a_round_of_a_single_update_says_nothing():
    blocks, extra = noise(4, layers=1), np.full((1, 6), 50.0)
    before = since_when(recorded(blocks), CLIENT % 2, permutations=99)
    seen = recorded(
        {"fc0": np.vstack([blocks["fc0"], extra])}, np.append(CLIENT, 3), np.append(ROUND, 9)
    )
    after = since_when(seen, np.append(CLIENT, 3) % 2, permutations=99)
    assert after.rounds == (1, 2, 3, 9)
    assert after.clients == (10, 10, 10, 10)
    np.testing.assert_array_equal(after.p_values[-1], after.p_values[-2])
    assert before.clients == (10, 10, 10)


def test_two_clients_in_the_first_round_tell_nothing_yet():
    late = (CLIENT >= 2) & (ROUND == 1)
    blocks = {k: v[~late] for k, v in noise(5, layers=1).items()}
    seen = recorded(blocks, CLIENT[~late], ROUND[~late])
    found = since_when(seen, CLIENT[~late] % 2, permutations=99)
    assert found.clients == (2, 10, 10)
    assert found.p_values[0] == pytest.approx([1.0])


@pytest.mark.minutes
def test_a_recording_without_rounds_has_no_first_one():
    seen = replace(recorded(noise(6)), rounds=None)
    found = audit_recording(seen, CLIENT % 2, family="logistic", permutations=19)
    assert found.over_rounds is None
    assert any("no rounds, so the first round" in note for note in found.notes)
    assert found.telling() == ()
    assert "No layer reveals the property at the 5 % level." in str(found)

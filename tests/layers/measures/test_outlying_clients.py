"""The test of outlying clients: its rank by a plain loop, its level on four kinds, and its power.

Clients train a logistic regression from three given models on records that stay the same. At
8814631, which takes distances to be log-normal, six like clients have someone named in 7 of 200
runs if they are iid, 13 of unequal sizes, 23 heavy-tailed, 15 label-skewed; the level allows 10.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

from seepage.errors import InputError
from seepage.layers import LayerGradients, audit_recording, standing_out
from seepage.layers.measures.standing_out import _rank

CLIENTS, SIMULATED, COLUMNS, RUNS = 6, 239, 5, 200
MODELS = np.random.default_rng(9).standard_normal((3, COLUMNS))
SIZES = {"unequal": (8, 8, 20, 20, 60, 60)}


def updates_of(kind, records, draw, shift=0.0):
    """Return one client's gradients at the three models, on records that stay the same."""
    share = draw.beta(0.5, 0.5) if kind == "label-skewed" else 0.5
    y = draw.random(records) < share
    x = draw.standard_t(2, (records, COLUMNS)) if kind == "heavy-tailed" else None
    x = draw.standard_normal((records, COLUMNS)) if x is None else x
    x = x + y[:, None] + shift
    return np.stack([x.T @ (expit(x @ model) - y) / records for model in MODELS])


def recording(kind, sizes, draw, shifts=None):
    """Return the updates of one client of each size, round by round."""
    shifts = np.zeros(len(sizes)) if shifts is None else shifts
    updates = np.stack(
        [updates_of(kind, n, draw, s) for n, s in zip(sizes, shifts, strict=True)], axis=1
    )
    seen = LayerGradients.of(
        {"fc": updates.reshape(-1, COLUMNS), "out": updates[..., 0].reshape(-1, 1)}
    )
    client, number = np.tile(np.arange(len(sizes)), 3), np.repeat([1, 2, 3], len(sizes))
    return replace(seen, nodes=client, rounds=number)


def outlying(kind, draw, shifts=None):
    """Return the outlying clients of a run, with simulated clients of their sizes."""
    sizes = SIZES.get(kind, (20,) * CLIENTS)
    of_size = {n: recording(kind, (n,) * SIMULATED, draw) for n in set(sizes)}
    reference = {client: of_size[n] for client, n in enumerate(sizes)}
    return standing_out(recording(kind, sizes, draw, shifts), reference=reference)


@pytest.mark.parametrize("kind", ["iid", "unequal", "heavy-tailed", "label-skewed"])
def test_of_any_like_clients_each_rank_belongs_to_exactly_one(kind):
    """So an ordinary client among 239 simulated ones has P = 1/240 with that probability."""
    count = 60
    seen = recording(kind, (20,) * count, np.random.default_rng(5))
    each = [
        _rank(seen.rows(seen.nodes == k), seen.rows(seen.nodes != k), str(k))[1]
        for k in range(count)
    ]
    np.testing.assert_allclose(np.sort(each), np.arange(1, count + 1) / count)


@pytest.mark.minutes
@pytest.mark.parametrize("kind", ["iid", "unequal", "heavy-tailed", "label-skewed"])
def test_ordinary_clients_are_named_no_more_often_than_the_level_says(kind):
    draw = np.random.default_rng(len(kind))
    named = sum(bool(outlying(kind, draw).named()) for _ in range(RUNS))
    assert named <= 19  # 5 % of 200 is 10, with a standard deviation of 3.1


@pytest.mark.slow
def test_a_client_with_other_records_is_named():
    draw = np.random.default_rng(1)
    shifts = 4.0 * (np.arange(CLIENTS) == 4)
    named = sum(4 in outlying("iid", draw, shifts).named() for _ in range(RUNS))
    assert named >= 110  # two in three; where records are heavy-tailed, hardly ever


def distances(means):
    """Return each client's score in one layer, by loops over clients and entries."""
    count, width = means.shape
    logs = []
    for c in range(count):
        squares = []
        for j in range(width):
            middle = np.median(means[:, j])
            others = [abs(means[k, j] - middle) for k in range(count) if k != c]
            squares.append((abs(means[c, j] - middle) / np.mean(others)) ** 2)
        logs.append(0.5 * np.log(np.mean(squares)))
    near = np.sort(logs)[: int(np.ceil(0.75 * count))]
    return (np.array(logs) - near.mean()) / near.std()


def test_the_rank_among_simulated_clients_is_that_of_a_plain_loop():
    draw = np.random.default_rng(2)
    seen = recording("iid", (20,) * CLIENTS, draw, 9.0 * (np.arange(CLIENTS) == 1))
    reference = recording("iid", (20,) * SIMULATED, draw)
    found = standing_out(seen, reference=reference)
    for client in range(CLIENTS):
        scores = np.full(SIMULATED + 1, -np.inf)
        for layer in ("fc", "out"):
            means = np.zeros((SIMULATED + 1, seen[layer].shape[1]))
            for number in (1, 2, 3):
                own = seen[layer][(seen.rounds == number) & (seen.nodes == client)]
                pool = np.vstack([reference[layer][reference.rounds == number], own]).astype(float)
                pool -= pool.mean(axis=0)
                means += pool / np.sqrt((pool**2).mean()) / 3
            scores = np.maximum(scores, distances(means))
        rank = int(np.sum(scores >= scores[-1]))
        assert found.p_value[client] == pytest.approx(min(1, CLIENTS * rank / (SIMULATED + 1)))
    assert found.reference == SIMULATED
    assert found.named() == [1]


def test_without_simulated_clients_nobody_is_named():
    draw = np.random.default_rng(0)
    for count in (6, 12, 40):
        seen = recording("heavy-tailed", (20,) * count, draw)
        found = standing_out(seen)
        assert found.p_value.min() == pytest.approx(1 / count)
        assert found.named() == []
        # The furthest client is the one shown furthest: nobody lies beyond it.
        assert found.sort().times[0] == found.times.max()
    known = {client: client % 2 for client in range(40)}
    words = str(audit_recording(seen, known, family="logistic", permutations=19))
    assert "1 of 40" in words
    assert "P = " not in words.split("Clients, the furthest")[1]


def test_a_reference_that_does_not_fit_is_refused():
    draw = np.random.default_rng(0)
    seen = recording("iid", (20,) * CLIENTS, draw)
    reference = recording("iid", (20,) * SIMULATED, draw)
    with pytest.raises(InputError, match="no reference for client 1"):
        standing_out(seen, reference={0: reference})
    with pytest.raises(InputError, match="one update of every simulated client for each update"):
        standing_out(seen, reference=reference.rows(reference.rounds < 3))
    with pytest.raises(InputError, match="only one of them contains 'out'"):
        standing_out(seen, reference=reference.without("out"))

"""What may be exchanged under the null hypothesis, and that ranks in turn are uniform."""

from __future__ import annotations

import numpy as np
import pytest

from seepage.layers.measures.independence_test import Exchange, in_turn


def test_what_may_be_exchanged():
    labels, fold = np.array([0, 0, 1, 1, 0, 1, 1, 0]), np.array([0, 0, 0, 0, 1, 1, 1, 1])
    assert Exchange.of(labels, fold, None).arrangements() == 6
    pairs = np.array([0, 0, 1, 1, 2, 2, 3, 3])  # the last two have both labels
    found = Exchange.of(labels, fold, pairs)
    assert not found.over_all()
    assert found.arrangements() == 4
    whole = Exchange.of(labels[pairs], fold, pairs)
    assert whole.over_all()
    assert whole.arrangements() == 6


@pytest.mark.slow
def test_ranks_in_turn_are_uniform_with_ties():
    # Scores of two values only, so that most arrangements tie.
    draw = np.random.default_rng(1)
    labels, fold = np.arange(24) % 2, np.arange(24) // 8
    exchange = Exchange.of(labels, fold, None)
    found = []
    for _ in range(600):
        said = [np.where(draw.random((8, 2)) < 0.5, 0.4, 0.6) for _ in range(2)]
        found.append(in_turn(exchange, exchange.drawn(59, draw), said, draw))
    for level in (0.05, 0.1, 0.5):
        assert np.mean(np.array(found) <= level) == pytest.approx(
            level, abs=3 * np.sqrt(level * (1 - level) / 600)
        )
    flat = [np.full((8, 2), 0.5)] * 2
    assert in_turn(exchange, exchange.drawn(59, draw), flat, draw) == 1.0


def test_a_fold_in_which_nothing_was_learnt_is_left_out():
    labels, fold = np.array([0, 1] * 6), np.repeat([0, 1, 2], 4)
    exchange = Exchange.of(labels, fold, None)
    drawn = exchange.drawn(19, np.random.default_rng(0))
    assert in_turn(exchange, drawn, [None, None], np.random.default_rng(0)) == 1.0
    sure = np.where(np.arange(2) == labels[8:, None], 0.9, 0.1)
    found = in_turn(exchange, drawn, [None, sure], np.random.default_rng(0))
    # No arrangement does better than the truth, and those that equal it tie.
    ties = int(np.sum(np.all(drawn[1] == labels[8:], axis=1)))
    rank = np.random.default_rng(0).random() * (ties + 1) / 20
    assert found == pytest.approx(max(rank, 1 / 20, 1 / 36))

"""The privacy loss of several releases against attackers who hold them all, integrated by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from seepage.errors import InputError
from seepage.risks.privacy_loss import PrivacyLoss

# Every release: a distance μ, the ε of figures beside it, and their δ.
HISTORIES = [
    [(1.0, 0.0, 0.0)],
    [(0.0, 0.45, 0.0)],
    [(0.5, 0.45, 0.0), (1.2, 0.45, 0.0)],
    [(0.3, 0.1, 0.01), (0.0, 0.4, 0.02), (2.0, 0.0, 0.0)],
    [(0.2, 0.45, 0.0)] * 3,
    [(0.0, 0.0, 0.3)],
    [(3.0, 2.0, 0.0), (0.0, 5.0, 0.0)],
    [(0.0, 0.0, 0.0)],
]


def answers(epsilon: float, delta: float) -> list[tuple[float, float]]:
    """Return the probabilities of randomised response in both worlds, which reveals all with δ."""
    q = 1 / (1 + math.exp(-epsilon))
    right, wrong = (1 - delta) * q, (1 - delta) * (1 - q)
    return [(delta, 0.0), (0.0, delta), (right, wrong), (wrong, right)]


def best(history: list[tuple[float, float, float]]) -> float:
    """Return how often a likelihood-ratio test on all that was released is right.

    One number per release is seen, N(0, 1) or N(μ, 1), and an answer; the numbers are one sum.
    """
    mu = math.sqrt(math.fsum(m**2 for m, _, _ in history))
    grid = np.linspace(-9, 9 + mu, 40_001)
    step = grid[1] - grid[0]
    absent, present = norm.pdf(grid), norm.pdf(grid - mu)
    right = 0.0
    for seen in itertools.product(*(answers(e, d) for _, e, d in history)):
        there, away = (math.prod(pair[k] for pair in seen) for k in (0, 1))
        right += float(np.sum(np.maximum(there * present, away * absent)) * step) / 2
    return right


@pytest.mark.parametrize("history", HISTORIES)
def test_who_holds_all_releases_succeeds_no_more_often_than_is_said(history):
    total = PrivacyLoss.of(1)
    for mu, epsilon, delta in history:
        total += PrivacyLoss.of(1, mu=mu, epsilon=epsilon, delta=delta)
    said, truth = float(total.membership()[0]), best(history)
    assert truth <= said + 1e-6
    if sum(e > 0 or d > 0 for _, e, d in history) <= 1:  # nothing is lost by adding up one ε
        assert said == pytest.approx(truth, abs=1e-4)


def test_half_a_release_more_is_never_free():
    once = PrivacyLoss.of(1, mu=0.8, epsilon=0.45)
    assert (once + once).membership() > once.membership() + 0.05


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_rows_of_a_person_count_together(rows):
    """Randomised response about every row: an attacker asks whether all or none were there."""
    epsilon, delta = 0.3, 0.01
    loss = PrivacyLoss.of(rows, eta=0.4, epsilon=epsilon, delta=delta)
    whole = loss.together(np.zeros(rows, dtype=int), 1)
    assert whole.eta[0] == pytest.approx(0.4 * math.sqrt(rows))
    truth = best([(0.0, epsilon, delta)] * rows)  # independent answers are the most that rows tell
    assert truth <= float(whole.membership()[0]) + 1e-9
    # By the chain of one row after another: δ + e^ε δ + e^{2ε} δ + …
    chain = sum(delta * math.exp(k * epsilon) for k in range(rows))
    assert chain <= whole.delta[0] + 1e-12
    assert whole.epsilon[0] == pytest.approx(rows * epsilon)


def test_how_far_a_release_moves_without_several_rows_is_in_no_sum():
    loss = PrivacyLoss.of(3, mu=[0.5, 0.5, 0.5])
    whole = loss.together(np.array([0, 0, 1]), 2)
    assert whole.mu.tolist() == [math.inf, 0.5]
    assert whole.membership().tolist() == [1.0, pytest.approx(norm.cdf(0.25))]
    # Two copies of a point that no line passes: without either the other keeps the fit nearly as
    # it is; without both it moves by more than twice as much.
    x = np.array([0.0, 1.0, 2.0, 3.0, 50.0, 50.0])
    y = np.array([0.0, 1.0, 2.0, 3.0, 0.0, 0.0])

    def slope(kept):
        return np.polyfit(x[kept], y[kept], 1)[0]

    everybody = slope(np.arange(6))
    one = abs(slope([0, 1, 2, 3, 4]) - everybody)
    both = abs(slope([0, 1, 2, 3]) - everybody)
    assert both > 2 * one


def test_what_nobody_knows_is_everything():
    unknown = PrivacyLoss.of(2, eta=[0.1, 0.2], mu=np.inf, epsilon=np.inf)
    assert (unknown + PrivacyLoss.of(2, epsilon=1.0)).membership().tolist() == [1.0, 1.0]
    whole = PrivacyLoss.of(2, epsilon=[np.inf, 0.1], delta=[0.1, 0.1])
    assert whole.together(np.zeros(2, dtype=int), 1).delta.tolist() == [1.0]
    assert PrivacyLoss.of(1, epsilon=np.inf).membership().tolist() == [1.0]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"eta": -1.0}, "eta must be at least 0"),
        ({"mu": [0.1, math.nan]}, "mu must be at least 0"),
        ({"epsilon": [1.0, 2.0, 3.0]}, r"one per row \(2 in all"),
        ({"epsilon": "much"}, "epsilon must be one number"),
        ({"mu": [0.1]}, "mu must be one number"),
        ({"delta": 1.5}, "delta must be a probability"),
    ],
)
def test_what_is_no_loss_is_refused(given, complaint):
    with pytest.raises(InputError, match=complaint):
        PrivacyLoss.of(2, **given)

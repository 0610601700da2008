"""Figures that are ε-private beside a noisy release: what they add at most."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from seepage.risks.guessing import (
    accuracy,
    accuracy_beside,
    distance,
    rate_beside,
    right_beside,
    true_positive_rate,
)


def by_enumeration(mu: float, prior: float, channel: np.ndarray) -> float:
    """Integrate the best decision over the noisy number and the outputs of a channel, (2, s)."""
    z = np.linspace(-12, mu + 12, 200_001)
    densities = prior * norm.pdf(z), (1 - prior) * norm.pdf(z - mu)
    right = np.zeros_like(z)
    for first, second in channel.T:
        right += np.maximum(densities[0] * first, densities[1] * second)
    return float(np.trapezoid(right, z))


@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("prior", [0.5, 0.8, 0.999])
@pytest.mark.parametrize("epsilon", [0.05, 0.45, 2.0])
def test_randomised_response_is_what_is_counted(mu, prior, epsilon):
    q = 1 / (1 + np.exp(-epsilon))
    channel = np.array([[q, 1 - q], [1 - q, q]])
    expected = by_enumeration(mu, prior, channel)
    assert accuracy_beside(mu, prior, epsilon) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("seed", range(20))
def test_no_other_private_figure_tells_more(seed):
    rng = np.random.default_rng(seed)
    epsilon, mu, prior = rng.uniform(0.05, 2), rng.uniform(0, 3), rng.uniform(0.05, 0.95)
    ratios = np.exp(rng.uniform(-epsilon, epsilon, 5))
    first = rng.dirichlet(np.ones(5))
    second = first * ratios
    short = 1 - second.sum()  # one more output makes the second candidate's sum one
    fill = abs(short) * np.exp(-epsilon)
    first, second = np.append(first, fill), np.append(second, max(short, 0.0) or fill)
    channel = np.stack([first / first.sum(), second / second.sum()])
    width = float(np.max(np.abs(np.log(channel[0] / channel[1]))))
    found = by_enumeration(mu, prior, channel)
    assert accuracy(mu, prior) - 1e-7 <= found <= accuracy_beside(mu, prior, width) + 1e-7


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.05, 0.45, 2.0])
def test_true_positives_are_those_of_the_best_test_on_both(mu, epsilon):
    q, rng = 1 / (1 + np.exp(-epsilon)), np.random.default_rng(0)
    draws = 2_000_000

    def scores(truth):
        named = np.where(rng.random(draws) < q, truth, 1 - truth)
        return mu * (rng.standard_normal(draws) + mu * truth) + epsilon * (2 * named - 1)

    threshold = np.quantile(scores(0), 0.99)
    measured = np.mean(scores(1) > threshold)
    alone = true_positive_rate(mu, 0.01)
    assert rate_beside(float(alone), 0.01, epsilon) == pytest.approx(measured, abs=0.004)
    assert rate_beside(1.0, 0.01, epsilon) == 1.0


@pytest.mark.parametrize("mu", [1e-3, 0.7, 5.0, 12.0])
@pytest.mark.parametrize("prior", [0.5, 0.9])
def test_the_distance_gives_the_accuracy_back(mu, prior):
    found = distance(accuracy(mu, prior), prior)
    assert accuracy(found, prior) == pytest.approx(accuracy(mu, prior), rel=1e-12)
    assert distance(1.0, prior) == np.inf


@pytest.mark.parametrize("seed", range(20))
def test_of_several_levels_the_odds_bound_holds(seed):
    rng = np.random.default_rng(seed)
    levels, outputs = rng.integers(3, 6), 6
    prior = rng.dirichlet(np.ones(levels))
    seen = rng.dirichlet(np.ones(4), levels)  # the release, as a channel of its own
    beside = rng.dirichlet(np.ones(outputs), levels)
    width = float(np.max(np.log(beside.max(axis=0) / beside.min(axis=0))))
    alone = (prior[:, None] * seen).max(axis=0).sum()
    both = (prior[:, None, None] * seen[:, :, None] * beside[:, None, :]).max(axis=0).sum()
    assert alone <= both <= right_beside(alone, prior.max(), int(levels), width) + 1e-12
    assert right_beside(alone, prior.max(), int(levels), 0.0) == alone

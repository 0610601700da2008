"""Two normal distributions at a distance, against numerical integration of Bayes' rule."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

import seepage as sp
from seepage.risks.guessing import accuracy, advantage, true_positive_rate


@pytest.mark.parametrize("mu", [0.01, 0.7, 2.43, 9.0])
@pytest.mark.parametrize("prior", [0.5, 0.1, 0.93])
def test_accuracy_is_the_integral_of_bayes_rule(mu: float, prior: float) -> None:
    def best(x: float) -> float:
        return max(prior * norm.pdf(x), (1 - prior) * norm.pdf(x - mu))

    crossing = mu / 2 + np.log(prior / (1 - prior)) / mu
    kinks = [x for x in (0.0, mu, crossing) if -12 < x < mu + 12]
    truth = quad(best, -12, mu + 12, points=kinks, limit=400, epsabs=1e-12)[0]
    assert accuracy(mu, prior) == pytest.approx(truth, abs=1e-9)


def test_corners_of_the_accuracy() -> None:
    assert accuracy(0.0, 0.3) == 0.7
    assert accuracy(np.inf, 0.3) == 1.0
    assert accuracy([0.0, 2.0], 1.0).tolist() == [1.0, 1.0]


def test_rates_trace_the_likelihood_ratio_test() -> None:
    mu, threshold = 1.3, 0.4
    fpr, tpr = norm.sf(threshold), norm.sf(threshold - mu)
    assert true_positive_rate(mu, fpr) == pytest.approx(tpr, rel=1e-12)
    assert true_positive_rate(np.inf, 0.001) == 1.0


def test_advantage_is_the_widest_gap_between_the_rates() -> None:
    mu = np.array([0.2, 1.7])
    alphas = norm.cdf(np.linspace(-8, 8, 20001))
    gaps = [np.max(true_positive_rate(m, alphas) - alphas) for m in mu]
    assert advantage(mu) == pytest.approx(gaps, abs=1e-6)


def test_probabilities_outside_the_unit_interval_are_refused() -> None:
    with pytest.raises(sp.InputError, match="prior must be a probability"):
        accuracy(1.0, 1.2)
    with pytest.raises(sp.InputError, match="false positive rate must be"):
        true_positive_rate(1.0, -0.1)

"""κ against numerical integration: of its own formula, and of whole subsampled mechanisms."""

import functools
import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import norm

from seepage.errors import InputError
from seepage.nn.sampling.amplification import (
    Amplification,
    FailureBudget,
    MixtureFactor,
    paper_epsilon,
    privacy_loss_quantile,
    theorem4_factor,
)

RATES = (1e-4, 0.004, 0.01, 0.3, 0.7, 0.95)
SHIFTS = (0.0, 0.1, 0.5, 1.0, 2.2, 5.0, 11.0)


def _kappa(q, mu):
    """The larger of E[w] and E[x² w], for all shifts up to μ, on a much finer grid."""
    x = np.linspace(-12, 12, 48_001)
    density = norm.pdf(x) * (x[1] - x[0])
    largest = 0.0
    for m in np.linspace(0, mu, 25):
        weights = density * expit(-math.log((1 - q) / q) - m * x + m * m / 2)
        largest = max(largest, weights.sum(), (x * x * weights).sum())
    return largest


@pytest.mark.parametrize("q", RATES)
@pytest.mark.parametrize("mu", SHIFTS)
def test_mixture_factor_is_its_formula_from_above(q, mu):
    found = float(MixtureFactor(q)(torch.tensor([mu]))[0])
    truth = _kappa(q, mu)
    assert truth * (1 - 1e-6) <= found <= truth * 1.03 + 1e-12


def test_mixture_factor_ends_at_the_rate_and_at_one():
    assert float(MixtureFactor(0.01)(torch.tensor([0.0]))[0]) == pytest.approx(0.01, rel=1e-9)
    assert float(MixtureFactor(0.01)(torch.tensor([1e9]))[0]) == 1.0
    assert MixtureFactor(1.0)(torch.tensor([0.0, 3.0, 99.0])).tolist() == [1.0, 1.0, 1.0]


@settings(deadline=None, max_examples=40)
@given(st.floats(1e-5, 1.0), st.lists(st.floats(0, 60), min_size=2, max_size=6))
def test_mixture_factor_never_decreases(q, shifts):
    factors = MixtureFactor(q)(torch.tensor(sorted(shifts)))
    assert (factors.diff() >= 0).all()
    assert (factors >= q * (1 - 1e-9)).all()
    assert (factors <= 1).all()


# A release in the plane: three records with these clipped gradients; the first one's moves with its
# two unknowns through J. The information about them is integrated over a fine grid.
GRADIENTS = np.array([[1.0, 0.3], [-0.7, 0.5], [0.2, -1.1]])
J = np.array([[0.9, -0.4], [0.3, 0.8]])


@functools.cache
def _information(batches, probabilities, s):
    """Return ∫ ∂p ∂pᵀ/p for the mixture over batches, per ‖J‖ (the noise has deviation s)."""
    reach = 3 * 1.5 + 7 * s
    axis = np.linspace(-reach, reach, 401)
    cell = (axis[1] - axis[0]) ** 2
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    density = np.zeros(len(points))
    slope = np.zeros((len(points), 2))
    for batch, weight in zip(batches, probabilities, strict=True):
        away = points - GRADIENTS[list(batch)].sum(0)
        p = weight * np.exp(-(away**2).sum(1) / (2 * s * s)) / (2 * np.pi * s * s)
        density += p
        if 0 in batch:
            slope += p[:, None] * (away @ J) / s**2
    kept = density > 1e-280
    return cell * (slope[kept].T / density[kept]) @ slope[kept]


def _poisson(q):
    every = tuple(b for k in range(4) for b in itertools.combinations(range(3), k))
    return every, tuple(q ** len(b) * (1 - q) ** (3 - len(b)) for b in every)


def _sets(size):
    every = tuple(itertools.combinations(range(3), size))
    return every, (1 / len(every),) * len(every)


@pytest.mark.slow
@pytest.mark.parametrize("s", [0.4, 1.0, 3.0])
@pytest.mark.parametrize(
    ("sampler", "draw", "q"),
    [
        ("poisson", _poisson(0.1), 0.1),
        ("poisson", _poisson(0.5), 0.5),
        ("fixed", _sets(1), 1 / 3),
        ("fixed", _sets(2), 2 / 3),
    ],
    ids=["poisson-0.1", "poisson-0.5", "one-of-three", "two-of-three"],
)
@pytest.mark.parametrize("method", ["mixture", "theorem4", "none"])
def test_a_subsampled_step_gives_no_more_than_the_bound(sampler, draw, q, s, method):
    lengths = np.linalg.norm(GRADIENTS, axis=1)
    amplification = Amplification(method, sampler, q, FailureBudget(1e-6, 1))
    kappa = float(amplification.factors(torch.tensor(lengths[:1]), s, float(lengths.max()), 1)[0])
    truth = _information(*draw, s)
    bound = kappa * q * J.T @ J / s**2
    assert np.linalg.eigvalsh(bound - truth)[0] > -1e-6 * np.linalg.norm(truth)
    # Not by being vacuous: the bound with κ = 1 is what no subsampling would give.
    assert kappa <= 1


def test_the_mixture_factor_is_attained():
    # One record alone, pushed across or along its gradient: the integral is the factor itself.
    q, s = 0.2, 1.0
    batches, weights = ((), (0,)), (1 - q, q)
    truth = np.linalg.inv(J).T @ _information(batches, weights, s) @ np.linalg.inv(J)
    kappa = float(MixtureFactor(q)(torch.tensor([np.linalg.norm(GRADIENTS[0]) / s]))[0])
    assert np.linalg.eigvalsh(truth)[-1] == pytest.approx(kappa * q / s**2, rel=0.02)


def test_theorem_4():
    assert theorem4_factor(0.01, 0.0) == pytest.approx(0.01)
    assert theorem4_factor(0.01, 800.0) == 1.0
    assert theorem4_factor(0.5, math.log(2)) == pytest.approx(0.5 / (0.5 + 0.25))


@pytest.mark.parametrize("shift", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-9])
def test_the_privacy_loss_exceeds_its_quantile_with_probability_delta(shift, delta):
    # Under N(shift, 1) the log-ratio to N(0, 1) is shift·x − shift²/2.
    epsilon = privacy_loss_quantile(shift, delta)
    assert norm.sf((epsilon + shift**2 / 2) / shift - shift) == pytest.approx(delta, rel=1e-6)


def test_the_papers_epsilon_fails_the_ratio_at_little_noise():
    # At σ = 0.2 the ratio of densities exceeds e^ε of algorithm 1 far more often than δ.
    shift, delta = 2 * 1.115 / 0.2, 1e-5
    epsilon = paper_epsilon(0.2, delta)
    assert norm.sf((epsilon - shift**2 / 2) / shift) > 1000 * delta
    assert privacy_loss_quantile(shift, delta) > epsilon


@pytest.mark.parametrize("steps", [None, 1, 7, 1000])
def test_the_failure_budget_is_not_overspent(steps):
    budget = FailureBudget(1e-3, steps)
    assert budget.spent(5000) <= 1e-3 * (1 + 1e-12)
    assert budget.spent(5000) > 0.9e-3


def test_theorem_4_falls_back_when_the_budget_is_spent():
    amplification = Amplification("theorem4", "poisson", 0.01, FailureBudget(1e-3, 2))
    lengths = torch.ones(3)
    assert (amplification.factors(lengths, 5.0, 1.0, 2) < 0.3).all()
    with pytest.warns(UserWarning, match=r"longer than declared \(steps=2\)"):
        assert (amplification.factors(lengths, 5.0, 1.0, 3) == 1).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it has been said
        assert (amplification.factors(lengths, 5.0, 1.0, 4) == 1).all()


@pytest.mark.parametrize("method", ["mixture", "theorem4"])
def test_other_batches_claim_nothing(method):
    amplification = Amplification(method, "other", 0.01, FailureBudget(1e-3, 2))
    assert (amplification.factors(torch.ones(3), 5.0, 1.0, 1) == 1).all()


@pytest.mark.parametrize("method", ["mixture", "theorem4"])
def test_sets_of_unclipped_gradients_claim_nothing(method):
    amplification = Amplification(method, "fixed", 0.01, FailureBudget(1e-3, 2))
    assert (amplification.factors(torch.ones(3), 5.0, math.inf, 1) == 1).all()


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.2, math.nan])
def test_impossible_rates_are_refused(rate):
    with pytest.raises(InputError, match="sampling rate"):
        MixtureFactor(rate)


def test_unknown_methods_and_impossible_budgets_are_refused():
    with pytest.raises(InputError, match="did you mean 'mixture'"):
        Amplification("mixtur", "poisson", 0.1, FailureBudget(0.1, 1))
    with pytest.raises(InputError, match="delta"):
        FailureBudget(0.0, 3)
    with pytest.raises(InputError, match="number of steps"):
        FailureBudget(0.1, 0)
    with pytest.raises(InputError, match="requires delta"):
        Amplification("theorem4", "poisson", 0.1, None)

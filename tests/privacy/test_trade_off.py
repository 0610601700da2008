"""Trade-off curves against exact arithmetic, linear programs and simulated likelihood ratios."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import norm

import seepage as sp
from seepage.privacy import DifferentialPrivacy, GaussianDP, SampledGaussianDP
from seepage.privacy.trade_off import GaussianTradeOff, PromisedTradeOff, TradeOff

BUDGETS = [
    (0.0, 0.0),
    (0.0, 0.3),
    (1e-9, 0.0),
    (0.3, 1e-3),
    (1.0, 0.0),
    (1.0, 0.6),
    (8.0, 1e-5),
    (40.0, 1e-12),
    (900.0, 1e-9),
]
RATES = [0.0, 1e-12, 1e-3, 0.01, 0.2, 0.5, 0.9, 1.0]
PRIORS = [1e-6, 0.01, 0.3, 0.5, 0.9]


def worst_pair(epsilon, delta):
    """The four outcomes of the worst mechanism, with and without the record, in 60 digits."""
    with mpmath.workdps(60):
        e, d = mpmath.mpf(epsilon), mpmath.mpf(delta)
        named = (1 - d) / (1 + mpmath.exp(-e))
        other = (1 - d) / (1 + mpmath.exp(e))
        return [d, named, other, mpmath.mpf(0)], [mpmath.mpf(0), other, named, d]


def corners(epsilon, delta):
    """True and false positives of every set of outcomes that a likelihood-ratio test may name."""
    P, Q = worst_pair(epsilon, delta)  # the ratio falls from left to right
    return [(mpmath.fsum(P[:k]), mpmath.fsum(Q[:k])) for k in range(5)]


def by_hand(points, rate):
    """Return the true positives at a rate, between the two corners around it."""
    with mpmath.workdps(60):
        rate = mpmath.mpf(rate)
        best = mpmath.mpf(0)
        for (t0, f0), (t1, f1) in itertools.combinations(points, 2):
            if f0 == f1 or not min(f0, f1) <= rate <= max(f0, f1):
                continue
            best = max(best, t0 + (t1 - t0) * (rate - f0) / (f1 - f0))
        return max([best, *(t for t, f in points if f <= rate)])


@pytest.mark.parametrize(("epsilon", "delta"), BUDGETS)
def test_a_budget_allows_what_its_worst_mechanism_does(epsilon, delta):
    curve, points = PromisedTradeOff(epsilon, delta), corners(epsilon, delta)
    for rate in RATES:
        truth = float(by_hand(points, rate))
        assert float(curve.tpr(rate)) == pytest.approx(truth, rel=1e-12, abs=1e-15)
    for prior in PRIORS:
        p = mpmath.mpf(prior)
        truth = float(max(p * t + (1 - p) * (1 - f) for t, f in points))
        assert curve.accuracy(prior) == pytest.approx(truth, rel=1e-13)
        # By the formula from δ(ε), which every curve has
        assert TradeOff.accuracy(curve, prior) == pytest.approx(truth, rel=1e-9)
    for other in (-50.0, -1.0, -0.1, 0.0, 0.2, 3.0, 30.0):
        weight = mpmath.exp(other)
        truth = float(max(t - weight * f for t, f in points))
        assert float(curve.excess(other)) == pytest.approx(truth, rel=1e-9, abs=1e-12)
    assert curve.advantage() == pytest.approx(2 * curve.accuracy() - 1, abs=1e-12)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.05), (2.0, 0.0), (1.0, 0.3)])
def test_simulated_likelihood_ratios_reach_the_limit_and_never_beat_it(epsilon, delta):
    rng, draws = np.random.default_rng(7), 200_000
    P, Q = (np.array(one, dtype=float) for one in worst_pair(epsilon, delta))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(P + Q > 0, np.log(P) - np.log(Q), -np.inf)
    inside, outside = rng.choice(4, draws, p=P), rng.choice(4, draws, p=Q)
    curve, tie = PromisedTradeOff(epsilon, delta), 0.01 * rng.standard_normal((2, draws))
    seen, unseen = np.clip(ratio[inside], -9, 9) + tie[0], np.clip(ratio[outside], -9, 9) + tie[1]
    for rate in (0.001, 0.01, 0.1, 0.5):
        threshold = np.quantile(unseen, 1 - rate)
        found, false = np.mean(seen > threshold), np.mean(unseen > threshold)
        most = float(curve.tpr(false))
        error = 4 * math.sqrt(0.25 / draws) * (1 + math.exp(epsilon) * math.sqrt(false))
        assert most - error <= found <= most + error
    right = (np.mean(ratio[inside] > 0) + np.mean(ratio[outside] <= 0)) / 2
    assert right == pytest.approx(curve.accuracy(), abs=4 * math.sqrt(0.25 / draws))


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 3.0])
def test_laplace_noise_stays_below_its_budget_and_touches_it(epsilon):
    """Another mechanism with the same ε, its best test worked out by hand."""
    curve = PromisedTradeOff(epsilon)
    cut = np.linspace(-3, 4, 71)  # sensitivity 1, scale 1/ε, record present at 1

    def beyond(x, centre):
        z = epsilon * (x - centre)
        return np.where(z > 0, np.exp(-np.abs(z)) / 2, 1 - np.exp(-np.abs(z)) / 2)

    found, false = beyond(cut, 1.0), beyond(cut, 0.0)
    assert np.all(found <= curve.tpr(false) + 1e-12)
    touched = cut >= 1.0
    assert found[touched] == pytest.approx(curve.tpr(false)[touched], rel=1e-9)


def most_apart(epsilon, delta, outcomes=6):
    """The largest P(S) − R(S) if P, Q and Q, R are (ε, δ)-close, by a linear program."""
    k, weight = outcomes, math.exp(epsilon)
    size = 7 * k
    gain = np.zeros(size)
    gain[: k // 2], gain[2 * k : 2 * k + k // 2] = -1, 1
    rows, limits = [], []
    for j, (one, other) in enumerate([(0, 1), (1, 0), (1, 2), (2, 1)]):
        for i in range(k):
            row = np.zeros(size)
            row[one * k + i], row[other * k + i], row[(3 + j) * k + i] = 1, -weight, -1
            rows.append(row)
            limits.append(0.0)
        row = np.zeros(size)
        row[(3 + j) * k : (4 + j) * k] = 1
        rows.append(row)
        limits.append(delta)
    sums = np.kron(np.eye(3, 7), np.ones(k))
    solved = linprog(gain, np.array(rows), limits, sums, np.ones(3), bounds=(0, 1))
    return -solved.fun


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.0, 0.2), (0.4, 1e-3), (1.0, 0.0), (2.0, 0.1), (1.0, 0.6), (3.0, 1e-5)]
)
def test_a_replacement_by_way_of_removal_is_exact(epsilon, delta):
    promise = DifferentialPrivacy(epsilon, delta, "add-or-remove")
    found = promise.total_variation()
    assert found == pytest.approx(most_apart(epsilon, delta), abs=1e-9)
    # The search that serves other curves finds the same
    assert TradeOff.replaced(promise.trade_off()) == pytest.approx(found, abs=1e-5)
    assert TradeOff.replaced(promise.trade_off()) >= found - 1e-12
    # (2ε, (1 + e^ε)δ) promises less
    twice = delta * (1 + math.exp(epsilon))
    if twice < 1:
        assert found <= DifferentialPrivacy(2 * epsilon, twice).total_variation() + 1e-12


@pytest.mark.parametrize("mu", [0.0, 1e-3, 0.7, 2.0, 6.0])
def test_gaussian_noise_in_every_form(mu):
    curve = GaussianTradeOff(mu)
    assert curve.replaced() == pytest.approx(2 * norm.cdf(mu) - 1, abs=1e-12)
    assert TradeOff.replaced(curve) == pytest.approx(curve.replaced(), abs=1e-6)
    for prior in (0.01, 0.5, 0.8):
        assert TradeOff.accuracy(curve, prior) == pytest.approx(curve.accuracy(prior), abs=1e-9)
    if mu:
        x = np.linspace(-12, 12 + mu, 400_001)
        for other in (-2.0, 0.0, 1.5):
            apart = np.maximum(norm.pdf(x - mu) - math.exp(other) * norm.pdf(x), 0)
            assert float(curve.excess(other)) == pytest.approx(np.trapezoid(apart, x), abs=1e-8)


def test_gaussian_noise_that_meets_a_budget_stays_below_it():
    for epsilon, delta in [(0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-5), (3.0, 0.2)]:
        noise = GaussianDP.meeting(epsilon, delta).trade_off()
        allowed = PromisedTradeOff(epsilon, delta)
        rates = np.geomspace(1e-9, 1.0, 200)
        assert np.all(noise.tpr(rates) <= allowed.tpr(rates) * (1 + 1e-9))
        assert noise.accuracy() <= allowed.accuracy()
        # and it touches the line of slope e^ε: it was calibrated exactly
        assert float(noise.excess(epsilon)) == pytest.approx(delta, rel=1e-6)


def test_a_run_of_one_step_without_sampling_is_gaussian_noise():
    run, noise = SampledGaussianDP(0.8).trade_off(), GaussianTradeOff(1 / 0.8)
    rates = np.array([0.001, 0.01, 0.3])
    assert run.tpr(rates) == pytest.approx(noise.tpr(rates), abs=2e-4)
    assert np.all(run.tpr(rates) >= noise.tpr(rates) - 1e-9)  # rounded towards more loss
    assert run.accuracy(0.2) == pytest.approx(noise.accuracy(0.2), abs=2e-4)
    assert SampledGaussianDP(0.8).total_variation() == pytest.approx(noise.replaced(), abs=5e-4)
    assert SampledGaussianDP(0.8).renyi() == pytest.approx((2 / 0.8) ** 2, rel=1e-6)
    assert SampledGaussianDP(0.8).words == (
        "1 Gaussian step, noise multiplier 0.8, sample rate 1 (add-or-remove)"
    )


@pytest.mark.slow
def test_a_run_is_below_its_own_budget_and_a_simulated_attack_reaches_it():
    """Three steps on batches of rate 0.3: the exact likelihood ratio, drawn 200,000 times."""
    rate, sigma, steps, draws = 0.3, 1.0, 3, 200_000
    run = SampledGaussianDP(sigma, rate, steps)
    curve, rng = run.trade_off(), np.random.default_rng(3)
    outside = rng.standard_normal((draws, steps))
    inside = rng.standard_normal((draws, steps)) + (rng.random((draws, steps)) < rate) / sigma

    def ratio(seen):
        return np.log1p(rate * np.expm1(seen / sigma - 1 / (2 * sigma**2))).sum(axis=1)

    right = (np.mean(ratio(inside) > 0) + np.mean(ratio(outside) <= 0)) / 2
    assert right == pytest.approx(curve.accuracy(), abs=0.005)
    budget = PromisedTradeOff(run.epsilon(1e-5), 1e-5)
    for wanted in (0.001, 0.01, 0.1):
        threshold = np.quantile(ratio(outside), 1 - wanted)
        found = np.mean(ratio(inside) > threshold)
        most = float(curve.tpr(wanted))
        assert found == pytest.approx(most, abs=4 * math.sqrt(most / draws) + 0.1 * wanted + 1e-3)
        assert most <= float(budget.tpr(wanted))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: SampledGaussianDP(0.0), "noise_multiplier must be above zero"),
        (lambda: SampledGaussianDP(1.0, 0.0), "sample_rate must be the probability"),
        (lambda: SampledGaussianDP(1.0, 64), "Divide the mean batch size"),
        (lambda: SampledGaussianDP(1.0, 0.1, 2.5), "steps must be at least 1"),
        (lambda: SampledGaussianDP(1.0, 0.1, 2, "swap"), "neighbours must be"),
        (lambda: SampledGaussianDP(1.0, 0.1, 2, group=0), "group must be at least 1"),
        (lambda: SampledGaussianDP(1.0).epsilon(0.0), "delta must lie between"),
        (lambda: DifferentialPrivacy(1.0, 1.0), "probability that the guarantee fails"),
        (lambda: DifferentialPrivacy(1.0, math.nan), "delta must be a finite number"),
        (lambda: PromisedTradeOff(1.0).tpr([0.1, 1.5]), "must be between 0 and 1"),
        (lambda: PromisedTradeOff(1.0).accuracy(0.0), "prior must be a probability"),
        (lambda: GaussianTradeOff(1.0).accuracy(1.0), "prior must be a probability"),
    ],
)
def test_what_is_refused(make, words):
    with pytest.raises(sp.InputError, match=words):
        make()

"""Lower bounds on ε from one run: the paper's formula in whole numbers, and how often it errs."""

from fractions import Fraction
from math import comb, exp, log

import numpy as np
import pytest

import seepage as sp
from seepage.attacks.canaries.one_run import chance_of_guesses
from seepage.privacy.gaussian_mechanism import gaussian_mu


def exact_chance(correct, guesses, canaries, odds, delta):
    """Return β + 2mδ·max_i (1/i) P[v > W ≥ v − i], in fractions, with e^ε = ``odds``."""
    luck = Fraction(odds, 1 + odds)
    mass = [comb(guesses, k) * luck**k * (1 - luck) ** (guesses - k) for k in range(guesses + 1)]
    tail = sum(mass[correct:], Fraction(0))
    within = [sum(mass[correct - i : correct], Fraction(0)) / i for i in range(1, correct + 1)]
    return min(
        Fraction(1), tail + 2 * canaries * Fraction(delta) * max(within, default=Fraction(0))
    )


CASES = [
    # right, guesses, abstentions, e^ε, δ
    (0, 0, 10, 1, "0"),
    (0, 1, 0, 3, "1/100"),
    (1, 1, 0, 1, "0"),
    (5, 5, 0, 1, "1/1000"),
    (7, 10, 90, 2, "1/100000"),
    (10, 10, 1000, 1000, "1/2"),
    (40, 50, 50, 5, "1/1000"),
    (50, 50, 0, 20, "1/1000000"),
    (3, 50, 5, 1, "1/10"),
    (95, 100, 400, 7, "1/100000"),
]


@pytest.mark.parametrize("case", CASES)
def test_the_chance_is_the_papers(case):
    correct, guesses, abstentions, odds, delta = case
    expected = exact_chance(correct, guesses, guesses + abstentions, odds, delta)
    got = chance_of_guesses(
        correct, guesses, abstentions=abstentions, epsilon=log(odds), delta=float(Fraction(delta))
    )
    assert got == pytest.approx(float(expected), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("case", CASES)
def test_the_bound_is_the_first_epsilon_not_refuted(case):
    correct, guesses, abstentions, _, delta = case
    bound = sp.attacks.epsilon_lower_bound(
        correct, guesses, abstentions=abstentions, delta=float(Fraction(delta))
    )

    def refuted(epsilon):
        odds = Fraction(exp(epsilon)).limit_denominator(10**6)
        return exact_chance(correct, guesses, guesses + abstentions, odds, delta) < Fraction(1, 20)

    assert not refuted(bound + 1e-4)
    if bound > 0:
        assert all(refuted(epsilon) for epsilon in np.linspace(0, bound - 1e-4, 5))


def exceeded(scores_of, epsilon, delta, runs, canaries, stated=None, guesses=None):
    """Return how often the bound of simulated runs is above ε."""
    right = []
    for seed in range(runs):
        coins = sp.attacks.Canaries(canaries, seed=seed, guesses=guesses)
        scores = scores_of(coins.included, np.random.default_rng(seed))
        right.append(coins.audit(scores, delta=delta if stated is None else stated))
    bounds = {audit.correct: audit.epsilon for audit in {a.correct: a for a in right}.values()}
    return np.mean([bounds[audit.correct] > epsilon for audit in right])


# A share of 0.05 in 400 runs lies below this with probability 99.9 %.
RUNS, MOST = 400, 0.0875


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
def test_randomised_response_is_exceeded_seldom(epsilon):
    def scores(included, rng):
        return included ^ (rng.random(len(included)) < 1 / (1 + exp(epsilon)))

    assert exceeded(scores, epsilon, 0.0, RUNS, 100) <= MOST


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
def test_gaussian_noise_is_exceeded_seldom(epsilon):
    mu = gaussian_mu(epsilon, 1e-3)

    def scores(included, rng):
        return mu * included + rng.normal(size=len(included))

    assert exceeded(scores, epsilon, 1e-3, RUNS, 200) <= MOST


def test_records_that_are_revealed_need_their_delta():
    """Each canary is revealed with probability δ, and otherwise told by a coin: ε = 0."""
    delta = 0.02

    def scores(included, rng):
        revealed = rng.random(len(included)) < delta
        return np.where(revealed, np.where(included, 2.0, -2.0), rng.uniform(-1, 1, len(included)))

    assert exceeded(scores, 0.0, delta, RUNS, 400, guesses=8) <= MOST
    # The same bound without δ errs nearly always.
    assert exceeded(scores, 0.0, delta, 100, 400, stated=0.0, guesses=8) > 0.5


def test_more_noise_than_promised_shows_less_and_less_noise_is_caught():
    def audit(mu):
        coins = sp.attacks.Canaries(1000, seed=3)
        scores = mu * coins.included + np.random.default_rng(4).normal(size=1000)
        return coins.audit(scores, delta=1e-5, promised=1.0)

    honest, half = audit(gaussian_mu(1.0, 1e-5)), audit(gaussian_mu(8.0, 1e-5))
    assert not honest.refuted
    assert honest.epsilon < 1.0 < half.epsilon
    assert half.refuted
    assert "the promised ε is refuted" in str(half)


def test_what_an_audit_says():
    audit = sp.attacks.CanaryAudit(
        correct=195, guesses=200, abstentions=800, delta=1e-5, promised=8.0, experiment="seeded"
    )
    assert str(audit) == (
        "promised: ε at most 8; a run with 1,000 canaries shows ε ≥ 2.9 "
        "(95 % confidence, δ = 1e-05); seeded"
    )
    assert "195 of 200 guesses correct" in repr(audit)
    assert audit.conditions[-1] == "seeded"
    assert audit.kind == "attack"


def test_coins_are_fair_fixed_by_a_seed_and_fresh_without():
    many = sp.attacks.Canaries(100_000, seed=5)
    assert abs(many.included.mean() - 0.5) < 0.01
    assert np.array_equal(many.included, sp.attacks.Canaries(100_000, seed=5).included)
    assert not np.array_equal(
        sp.attacks.Canaries(1000).included, sp.attacks.Canaries(1000).included
    )


def test_any_training_function_is_audited_with_its_records():
    seen = []

    def train(records):
        seen.extend(records)
        return set(records)

    audit = sp.attacks.audit_training(
        train, lambda model, k: k in model, range(100), records=[-1, -2], delta=0.0, seed=1
    )
    assert seen[:2] == [-1, -2]
    assert 20 < len(seen) < 80
    assert audit.correct == audit.guesses == 20
    assert (audit.canaries, audit.abstentions) == (100, 80)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: sp.attacks.epsilon_lower_bound(3, 2, delta=0.0), "correct=3 exceeds guesses=2"),
        (lambda: sp.attacks.epsilon_lower_bound(1, 2, delta=1.0), "below 1"),
        (lambda: sp.attacks.epsilon_lower_bound(-1, 2, delta=0.0), "correct must be"),
        (lambda: sp.attacks.epsilon_lower_bound(1, 2, delta=0.0, confidence=1.0), "confidence"),
        (lambda: sp.attacks.Canaries(5), "at least 10"),
        (lambda: sp.attacks.Canaries(20, guesses=21), "choose at most guesses="),
        (lambda: sp.attacks.Canaries(20).audit([1.0], delta=0.0), "one per canary"),
        (lambda: sp.attacks.Canaries(20).audit([np.nan] * 20, delta=0.0), "finite"),
        (lambda: sp.attacks.Canaries(20).chosen([1]), "20 canaries"),
    ],
)
def test_bad_input_gets_one_sentence(call, words):
    with pytest.raises(sp.InputError, match=words):
        call()

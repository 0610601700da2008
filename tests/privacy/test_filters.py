"""Filters: who is admitted, and attackers with likelihood ratios against what they promise."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ndtr, ndtri

import seepage as sp
from seepage.privacy import GaussianDP, PrivacyFilter, RenyiDP

BUDGET = GaussianDP(1.0, "add-or-remove")
RUNS = 50_000


def test_who_would_spend_too_much_stops_for_good():
    budget = PrivacyFilter(3, BUDGET)
    assert budget.admit([0.5, 1.0, 1.1]).tolist() == [True, True, False]
    assert budget.admit([0.6, 0.0, 0.0]).tolist() == [False, True, False]
    assert budget.admit([0.1, 1e-9, 0.1]).tolist() == [False, False, False]
    assert budget.active.tolist() == [False, False, False]
    assert budget.spent.tolist() == [0.5, 1.0, 0.0]
    assert budget.releases == 3


def test_only_the_rows_named_are_charged():
    budget = PrivacyFilter(4, RenyiDP({8: 2.0}, "add-or-remove"))
    assert budget.admit([1.5, 2.5], rows=[3, 1]).tolist() == [True, False]
    assert budget.spent.tolist() == [0.0, 0.0, 0.0, 1.5]
    assert budget.active.tolist() == [True, False, True, True]
    assert budget.cost([1.0, 2.0]).tolist() == [4.0, 16.0]


def test_sums_leave_out_who_has_stopped_and_say_if_they_were_seeded():
    budget = PrivacyFilter(3, BUDGET)
    table = np.array([[0.9, 0.0], [0.0, 0.1], [2.0, 0.0]])
    noise = sp.Gaussian(1.0)
    first, second = (budget.noisy_sum(table, noise, seed=k) for k in range(2))
    grid = 2.0**-12
    assert np.abs(first - [0.9, 0.1] - noise.draw(2, 0)).max() <= grid
    assert np.abs(second - [0.0, 0.1] - noise.draw(2, 1)).max() <= grid
    assert not budget.promise().guarantee
    assert "experiment" in budget.promise().assumptions[-1]
    fresh = PrivacyFilter(3, BUDGET)
    fresh.noisy_sum(table, noise)
    assert fresh.promise().guarantee
    assert len(fresh.promise().assumptions) == 3


def test_a_predictor_answers_with_the_records_whose_budget_lasts():
    """Votes of near records answer queries that depend on earlier answers; recomputed by hand."""
    X = np.random.default_rng(3).normal(size=(60, 2))
    sides = np.where(X[:, 0] > 0, 1.0, -1.0)
    budget, noise, query = PrivacyFilter(60, BUDGET), sp.Gaussian(2.0), np.zeros(2)
    spent, stopped = np.zeros(60), np.zeros(60, dtype=bool)
    for k in range(30):
        votes = sides * np.exp(-np.sum((X - query) ** 2, axis=1))
        answer = float(budget.noisy_sum(votes, noise, seed=k)[0])
        costs = (votes / 2.0) ** 2
        stopped |= spent + costs > 1.0
        spent += np.where(stopped, 0.0, costs)
        assert abs(answer - votes[~stopped].sum() - noise.draw(1, k)[0]) <= 2.0**-11
        query = np.tanh([answer, -answer])
    assert 0 < stopped.sum() < 60
    assert budget.active.tolist() == (~stopped).tolist()
    assert budget.spent == pytest.approx(spent)
    assert budget.spent.max() <= 1.0


def test_a_stream_of_releases_and_answers_ends_in_the_ledger_where_the_limit_is(tmp_path):
    """Gaussian μ adds up by squares; randomised response of ε by ε. Nothing refused is recorded."""
    people = {"name": ["Ada", "Ben", "Cy"], "age": [36, 45, 52]}
    most = float(ndtr(0.5 * 0.65))  # membership success at μ = 0.65
    releases = sp.LedgerFile(tmp_path / "releases.json")
    for _ in range(4):  # 0.3, 0.42, 0.52, 0.6
        releases.record(people, "monthly sums", mu=0.3, max_membership=most)
    with pytest.raises(sp.InputError, match="membership inference would be"):
        releases.record(people, "monthly sums", mu=0.3, max_membership=most)  # 0.67
    assert releases.spent(people).mu == pytest.approx([0.6] * 3)
    answers = sp.LedgerFile(tmp_path / "answers.json")
    for _ in range(2):
        answers.record(people, "answers", epsilon=0.25, max_membership=0.63)
    # e^0.75 / (1 + e^0.75) = 0.679
    with pytest.raises(sp.InputError, match="membership inference would be"):
        answers.record(people, "answers", epsilon=0.25, max_membership=0.63)
    assert answers.spent(people).epsilon == pytest.approx([0.5] * 3)


def test_what_is_printed_tells_nothing_about_who_stopped():
    one, other = PrivacyFilter(2, BUDGET), PrivacyFilter(2, BUDGET)
    one.admit([0.1, 0.1])
    other.admit([5.0, 5.0])
    assert str(one) == str(other)
    assert repr(one) == repr(other)


def adaptive_runs(inside, rng, cost_of, steps=12, limit=1.0):
    """Return the log-likelihood ratios of runs whose next step follows the earlier outputs.

    The step gets longer while the outputs look as if the record were there, as an attacker who
    chooses the questions would have it: this is where sums along a run are no promise.
    """
    told, mu = np.zeros(RUNS), math.sqrt(limit)
    budget = PrivacyFilter(RUNS, GaussianDP(mu, "add-or-remove"))  # each run has its one record
    for _ in range(steps):
        shift = np.where(told > 0, 0.7, 0.2) * mu
        admitted = budget.admit(cost_of(shift))
        contribution = np.where(admitted, shift, 0.0)
        output = inside * contribution + rng.normal(size=RUNS)
        told = told + contribution * output - contribution**2 / 2
    return told


def power(scores_in, scores_out, fpr):
    """Return the true positive rate at a false positive rate, and four standard errors."""
    threshold = np.quantile(scores_out, 1 - fpr)
    rate = float(np.mean(scores_in > threshold))
    slope = 4 * math.sqrt(fpr / RUNS) / fpr * rate
    return rate, slope + 4 * math.sqrt(rate * (1 - rate) / RUNS)


def test_no_attacker_beats_a_gaussian_filter_and_wrong_charges_are_caught():
    rates = (0.01, 0.1, 0.5)
    promised = [float(ndtr(ndtri(fpr) + 1.0)) for fpr in rates]

    def attack(cost_of):
        rng = np.random.default_rng(1)
        told = [adaptive_runs(inside, rng, cost_of) for inside in (True, False)]
        return [power(*told, fpr) for fpr in rates]

    right, wrong = attack(np.square), attack(lambda shift: np.square(shift) / 2)
    for most, (rate, doubt) in zip(promised, right, strict=True):
        assert 0.6 * most < rate <= most + doubt  # the attack is no straw man
    caught = [rate > most + doubt for most, (rate, doubt) in zip(promised, wrong, strict=True)]
    assert any(caught)


def sampled_runs(inside, rng, *, rate, shift, charged, limit, order, steps=700):
    """Return log-likelihood ratios of sampled Gaussian steps under a Rényi filter.

    ``charged`` says whether the cost is charged to everybody or (wrongly) to those drawn.
    """
    runs = 10_000
    divergence = math.log(
        sum(
            math.comb(order, k)
            * (1 - rate) ** (order - k)
            * rate**k
            * math.exp(k * (k - 1) * shift**2 / 2)
            for k in range(order + 1)
        )
    ) / (order - 1)
    budget = PrivacyFilter(runs, RenyiDP({order: limit}, "add-or-remove"))
    told = np.zeros(runs)
    for _ in range(steps):
        drawn = rng.random(runs) < rate
        if charged == "everybody":
            admitted = budget.admit(np.full(runs, divergence))
        else:
            rows = np.flatnonzero(drawn)
            budget.admit(np.full(len(rows), divergence), rows)
            admitted = budget.active
        output = inside * np.where(drawn & admitted, shift, 0.0) + rng.normal(size=runs)
        ratio = np.log1p(rate * np.expm1(shift * output - shift**2 / 2))
        # Who is active when only those drawn are charged is hidden; the attacker takes all steps.
        told += np.where(admitted, ratio, 0.0) if charged == "everybody" else ratio
        if charged == "everybody" and not budget.active.any():
            break
    return told


def test_the_sampled_cost_is_charged_to_everybody_or_the_promise_breaks():
    """P(S) ≤ e^ε Q(S) + δ on the attacker's best set, ε = 1 and δ = 0.01."""
    epsilon, delta, order = 1.0, 0.01, 8
    limit = epsilon - math.log1p(-1 / order) + math.log(delta * order) / (order - 1)
    how = {"rate": 0.1, "shift": 0.5, "limit": limit, "order": order}

    def excess(charged):
        rng = np.random.default_rng(2)
        inside, outside = (sampled_runs(k, rng, charged=charged, **how) for k in (True, False))
        cuts = np.quantile(np.concatenate([inside, outside]), np.linspace(0.01, 0.99, 99))
        return max(
            float(np.mean(inside > cut) - math.exp(epsilon) * np.mean(outside > cut))
            for cut in cuts
        )

    assert excess("everybody") <= delta + 4 * math.sqrt(2 * delta / 10_000)
    assert excess("those drawn") > 5 * delta


def hellinger(first, second, filtered, limit=2.0):
    """Return H² = ∫(√p − √q)² of two records' two releases.

    The first is z + N(0, 1). The second, of the record's distance to the first, takes place while
    z² + (z − o)² is within the budget, and is mere noise otherwise.
    """

    def share(o):
        steps = []
        for z in (first, second):
            goes_on = not filtered or z**2 + (z - o) ** 2 <= limit
            steps.append(z - o if goes_on else 0.0)
        apart = (o - first) ** 2 + (o - second) ** 2
        return math.exp(-apart / 4 - (steps[0] - steps[1]) ** 2 / 8) / math.sqrt(2 * math.pi)

    ends = [z + sign * math.sqrt(limit - z**2) for z in (first, second) for sign in (1, -1)]
    cuts = sorted([-12.0, *ends, 12.0])
    same = sum(
        quad(share, low, high, epsabs=1e-13, epsrel=1e-13, limit=200)[0]
        for low, high in pairwise(cuts)
    )
    return 2 * (1 - same)


def test_a_stop_that_depends_on_the_record_makes_fisher_information_infinite():
    """4H²/dz² tends to the Fisher information; under a filter it grows like 1/dz."""
    steps = (0.1, 0.01, 0.001)
    smooth = [4 * hellinger(0.5, 0.5 + dz, False) / dz**2 for dz in steps]
    stopped = [4 * hellinger(0.5, 0.5 + dz, True) / dz**2 for dz in steps]
    assert smooth[1:] == pytest.approx([2.0, 2.0], rel=1e-3)  # one for each release
    assert stopped == pytest.approx([6.64, 53.7, 524], rel=2e-3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: PrivacyFilter(3, 1.0), "must be GaussianDP"),
        (lambda: PrivacyFilter(3, GaussianDP(1.0)), "add-or-remove"),
        (lambda: PrivacyFilter(3, RenyiDP({2: 1, 3: 2}, "add-or-remove")), "one Rényi order"),
        (lambda: PrivacyFilter(0, BUDGET), "records must be"),
        (lambda: PrivacyFilter(3, BUDGET).admit([1.0]), "one cost per record"),
        (lambda: PrivacyFilter(3, BUDGET).admit([1.0, -1.0, 0.0]), "at least zero"),
        (lambda: PrivacyFilter(3, BUDGET).admit([1.0, math.nan, 0.0]), "at least zero"),
        (lambda: PrivacyFilter(3, BUDGET).admit([0.1, 0.1], [1, 1]), "occurs twice"),
        (lambda: PrivacyFilter(3, BUDGET).noisy_sum([1.0], sp.Gaussian(1.0)), "one row of finite"),
        (lambda: PrivacyFilter(1, BUDGET).noisy_sum([[1.0]], sp.Laplace(1.0)), "needs Gaussian"),
        (
            lambda: PrivacyFilter(1, BUDGET).noisy_sum([[1.0]], sp.Gaussian([1.0])),
            "single standard deviation",
        ),
    ],
)
def test_bad_input_gets_one_sentence(call, words):
    with pytest.raises(sp.InputError, match=words):
        call()

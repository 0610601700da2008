"""Promises of differential privacy: conversions, the Gaussian mechanism, sensitivity of fits."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

import seepage as sp
from seepage.privacy import (
    DifferentialPrivacy,
    GaussianDP,
    RenyiDP,
    SampledGaussianDP,
    analytic_gaussian_sigma,
    classic_gaussian_sigma,
    clip_rows,
    epsilon_printed_by_guo_2022,
    output_perturbation,
    output_sensitivity,
    renyi_of_event,
)
from seepage.privacy.gaussian_mechanism import gaussian_delta

EPSILONS = st.floats(1e-3, 20.0)


def density(x):
    """Return that of a standard normal variable: SciPy's takes fifty times as long."""
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


# The Gaussian mechanism --------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.5, 1.0, 8.0, 50.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1])
def test_the_analytic_sigma_is_dp_accountings(epsilon, delta):
    theirs = pytest.importorskip("dp_accounting.gaussian_mechanism", reason="dp-accounting < 0.6")
    want = theirs.get_sigma_gaussian(epsilon, delta)
    assert analytic_gaussian_sigma(epsilon, delta) == pytest.approx(want, rel=1e-9)
    assert analytic_gaussian_sigma(epsilon, delta, 3.0) == pytest.approx(3 * want, rel=1e-9)


@pytest.mark.parametrize(("epsilon", "mu"), [(0.0, 0.3), (1.0, 1.0), (3.0, 2.0)])
def test_delta_is_the_hockey_stick_divergence(epsilon, mu):
    excess = lambda x: max(density(x - mu) - math.exp(epsilon) * density(x), 0.0)  # noqa: E731
    turn = epsilon / mu + mu / 2
    numeric = quad(excess, turn, mu + 40, epsabs=1e-14)[0]
    assert gaussian_delta(epsilon, mu) == pytest.approx(numeric, rel=1e-8)


@given(st.floats(0.01, 0.99), st.floats(1e-12, 1e-2))
def test_the_classic_formula_asks_for_more_noise(epsilon, delta):
    classic = classic_gaussian_sigma(epsilon, delta)
    assert analytic_gaussian_sigma(epsilon, delta) <= classic
    assert gaussian_delta(epsilon, 1 / classic) <= delta


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((-1.0, 0.1), "epsilon"),
        ((1.0, 0.0), "delta"),
        ((1.0, 1.0), "delta"),
        ((1.0, 0.1, 0.0), "sensitivity"),
        ((math.nan, 0.1), "epsilon"),
    ],
)
def test_impossible_privacy_is_refused(arguments, words):
    with pytest.raises(sp.InputError, match=words):
        analytic_gaussian_sigma(*arguments)


def test_the_classic_formula_is_refused_where_it_does_not_hold():
    with pytest.raises(sp.InputError, match="analytic_gaussian_sigma"):
        classic_gaussian_sigma(1.0, 1e-5)


# Statements --------------------------------------------------------------------------------------


@given(EPSILONS)
def test_randomised_response_attains_what_pure_privacy_allows(epsilon):
    p = 1 / (1 + math.exp(-epsilon))
    P, Q = np.array([p, 1 - p]), np.array([1 - p, p])
    promise = DifferentialPrivacy(epsilon)
    assert math.expm1(promise.renyi()) == pytest.approx(np.sum(P**2 / Q) - 1, rel=1e-6)
    assert promise.total_variation() == pytest.approx(abs(P - Q).sum() / 2, rel=1e-12)
    assert promise.renyi() <= epsilon * (1 + 1e-12)  # as Guo et al. 2022 take it, observation 4


@given(EPSILONS, st.floats(0, 0.5))
def test_approximate_privacy_bounds_what_its_worst_mechanism_does(epsilon, delta):
    """With probability δ the record is given away; else randomised response."""
    p = (1 - delta) / (1 + math.exp(-epsilon))
    P, Q = np.array([delta, p, 1 - delta - p, 0.0]), np.array([0.0, 1 - delta - p, p, delta])
    promise = DifferentialPrivacy(epsilon, delta)
    assert promise.total_variation() == pytest.approx(abs(P - Q).sum() / 2, rel=1e-9)
    assert math.isinf(promise.renyi()) == (delta > 0)


@given(st.floats(1e-3, 5.0))
def test_gaussian_privacy_is_exact(mu):
    promise = GaussianDP(mu)
    assert promise.total_variation() == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-9)
    assert promise.delta(0.0) == pytest.approx(promise.total_variation(), rel=1e-9)
    chi = math.exp(promise.renyi()) - 1
    numeric = quad(lambda x: density(x - mu) ** 2 / density(x), mu - 12, 2 * mu + 12)[0] - 1
    assert chi == pytest.approx(numeric, rel=1e-6)


def test_a_gaussian_mechanism_is_recovered_from_its_epsilon_and_delta():
    promise = GaussianDP.meeting(2.0, 1e-6)
    assert promise.delta(2.0) == pytest.approx(1e-6, rel=1e-9)
    assert analytic_gaussian_sigma(2.0, 1e-6) == pytest.approx(1 / promise.mu, rel=1e-12)


@given(st.floats(0.05, 3.0), st.lists(st.floats(1.05, 60.0), min_size=1, max_size=5))
def test_renyi_orders_imply_each_other(mu, orders):
    """The Gaussian mechanism's curve is known, so what is made of a few orders can be judged."""
    promise = RenyiDP([(order, order * mu**2 / 2) for order in orders])
    truth = GaussianDP(mu).renyi()
    got = promise.renyi()
    if max(orders) < 2:
        assert math.isinf(got)
    else:
        assert truth * (1 - 1e-9) <= got
        assert got <= min(o for o in orders if o >= 2) * mu**2 / 2 * (1 + 1e-9)  # monotone in α


def test_one_order_on_either_side_is_better_than_one_above():
    assert RenyiDP({1.5: 0.3, 4: 1.1}).renyi() < RenyiDP({4: 1.1}).renyi() == 1.1
    assert RenyiDP({2: 0.7}).renyi() == 0.7
    assert math.isinf(RenyiDP({1.9: 0.7}).renyi())


@given(st.floats(0.0, 6.0))
def test_total_variation_from_renyi_holds_for_every_pair(epsilon):
    """The two-point distributions that attain the joint range of χ² and total variation."""
    bound = RenyiDP({2: epsilon}).total_variation()
    chi = math.expm1(epsilon)
    for t in np.linspace(0, 0.999, 60):
        least = 4 * t * t if t <= 0.5 else t / (1 - t)
        if least <= chi:
            assert t <= bound + 1e-9


@pytest.mark.parametrize("mu", [0.2, 1.0])
def test_replacing_is_removing_and_adding(mu):
    once, both = GaussianDP(mu, "add-or-remove"), GaussianDP(2 * mu)
    assert once.renyi() == both.renyi()
    assert once.total_variation() == both.total_variation()
    curve = {order: order * mu**2 / 2 for order in (2.5, 3, 4, 6)}
    assert RenyiDP(curve, "add-or-remove").renyi() == pytest.approx(both.renyi(), rel=1e-12)
    # For (ε, δ) it is a little less than (2ε, (1 + e^ε)δ): tests/privacy has the exact value.
    pure = DifferentialPrivacy(0.4, 1e-3, "add-or-remove")
    pair = DifferentialPrivacy(0.8, 1e-3 * (1 + math.exp(0.4)))
    assert 0.85 * pair.total_variation() < pure.total_variation() < pair.total_variation()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DifferentialPrivacy(-1), "epsilon"),
        (lambda: DifferentialPrivacy(1, 1.0), "delta"),
        (lambda: DifferentialPrivacy(1, neighbours="swap"), "neighbours"),
        (lambda: GaussianDP(math.inf), "mu"),
        (lambda: RenyiDP({}), "empty"),
        (lambda: RenyiDP({1.0: 0.1}), "above 1"),
        (lambda: RenyiDP({2.0: -0.1}), "negative"),
        (lambda: GaussianDP.meeting(1.0, 0.0), "delta"),
    ],
)
def test_impossible_statements_are_refused(make, words):
    with pytest.raises(sp.InputError, match=words):
        make()


# Events of dp_accounting -------------------------------------------------------------------------


def test_a_gaussian_event_is_the_gaussian_mechanism():
    event = dp_accounting.GaussianDpEvent(2.0)
    assert renyi_of_event(event, "replace").renyi() == pytest.approx(GaussianDP(0.5).renyi())
    assert renyi_of_event(event).renyi() == pytest.approx(GaussianDP(1.0).renyi())


def test_private_sgd_is_read_and_composition_weakens_it():
    step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
    few = renyi_of_event(dp_accounting.SelfComposedDpEvent(step, 100))
    many = renyi_of_event(dp_accounting.SelfComposedDpEvent(step, 1000))
    assert 0 < few.renyi() < many.renyi()
    assert many.renyi() == pytest.approx(10 * few.renyi(), rel=1e-9)
    assert "SelfComposedDpEvent" in many.assumptions[0]


def test_replacing_in_gaussian_steps_is_read_exactly_and_no_other_event_is():
    gaussian = dp_accounting.GaussianDpEvent(1.0)
    step = dp_accounting.PoissonSampledDpEvent(0.01, gaussian)
    run = dp_accounting.SelfComposedDpEvent(step, 1000)
    assert renyi_of_event(run).renyi() == pytest.approx(SampledGaussianDP(1.0, 0.01, 1000).renyi())
    assert renyi_of_event(run).neighbours == "replace"
    both = dp_accounting.ComposedDpEvent([run, gaussian])
    assert renyi_of_event(both).renyi() == pytest.approx(renyi_of_event(run).renyi() + 4.0)
    twice = dp_accounting.SelfComposedDpEvent(gaussian, 2)
    for other in (
        dp_accounting.PoissonSampledDpEvent(0.01, twice),
        dp_accounting.LaplaceDpEvent(3.0),
    ):
        found = renyi_of_event(dp_accounting.ComposedDpEvent([step, other]))
        assert found.neighbours == "add-or-remove"
        assert found.renyi() > 0


def test_what_cannot_be_accounted_for_is_refused():
    sampled = dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0))
    with pytest.raises(sp.InputError, match="does not support"):
        renyi_of_event(sampled, "replace")
    with pytest.raises(sp.InputError, match="not str"):
        renyi_of_event("gaussian")
    with pytest.raises(sp.InputError, match="provides no guarantee"):
        renyi_of_event(dp_accounting.NonPrivateDpEvent())
    with pytest.raises(sp.InputError, match="neighbours"):
        renyi_of_event(sampled, "some")


# Sensitivity of penalised fits -------------------------------------------------------------------


def _data(seed, n=25, d=3):
    rng = np.random.default_rng(seed)
    return rng, clip_rows(rng.standard_normal((n, d)) * 2, 1.0)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["LinearRegression", "LogisticRegression", "PoissonRegression"]),
    st.sampled_from([0.02, 0.3]),
    st.booleans(),
)
def test_no_replacement_moves_a_fit_further_than_its_sensitivity(seed, kind, l2, weighted):
    """The worst of many replacements on the edge of what is allowed, label included."""
    rng, X = _data(seed)
    labels = {
        "LinearRegression": rng.uniform(-2, 2, len(X)),
        "LogisticRegression": np.arange(len(X)) % 2,
        "PoissonRegression": rng.integers(0, 3, len(X)).astype(float),
    }[kind]
    weight = rng.uniform(0.5, 2, len(X)) if weighted else None
    model = getattr(sp.glm, kind)(l2=l2).fit(X, labels, sample_weight=weight)
    leak = sp.leakage(model, X, labels, noise=sp.Gaussian(1.0), sample_weight=weight)
    found = output_sensitivity(leak, row_norm=1.0, label_bound=2.0)
    assert found.guarantee
    refits = leak.refits()
    Z = rng.standard_normal((40, 3))
    Z /= np.linalg.norm(Z, axis=1, keepdims=True)
    ends = {
        "LinearRegression": (-2.0, 2.0),
        "LogisticRegression": (0, 1),
        "PoissonRegression": (0.0, 2.0),
    }[kind]
    y = rng.choice(ends, 40)
    moved = refits.parameters(int(rng.integers(len(X))), Z, y) - refits.theta
    assert np.linalg.norm(moved, axis=1).max() <= found.value


def test_softmax_moves_no_further_either():
    rng, X = _data(3)
    y = np.arange(len(X)) % 3
    model = sp.glm.SoftmaxRegression(l2=0.05).fit(X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(1.0))
    found = output_sensitivity(leak, row_norm=1.0)
    assert found.lipschitz == pytest.approx(math.sqrt(2))
    Z = clip_rows(rng.standard_normal((20, 3)) * 9, 1.0)
    labels = np.eye(3)[rng.integers(0, 3, 20)]
    refits = leak.refits()
    moved = refits.parameters(0, Z, labels) - refits.theta
    assert np.linalg.norm(moved.reshape(20, -1), axis=1).max() <= found.value


def _logistic(intercept=False, l2=0.1, noise=None):
    _, X = _data(0)
    y = (X[:, 0] > 0).astype(int)
    model = sp.glm.LogisticRegression(l2=l2, fit_intercept=intercept).fit(X, y)
    return sp.leakage(model, X, y, noise=noise or sp.Gaussian(0.5))


def test_output_perturbation_is_the_gaussian_mechanism():
    leak = _logistic()
    promise = output_perturbation(leak, row_norm=1.0)
    assert promise.mu == pytest.approx(2 / (25 * 0.1) / 0.5)
    assert promise.renyi() == pytest.approx(4 / (25 * 0.1 * 0.5) ** 2)
    assert promise.guarantee
    uneven = output_perturbation(_logistic(noise=sp.Gaussian([0.5, 1.0, 2.0])), row_norm=1.0)
    assert uneven.mu == promise.mu  # the least noisy direction decides
    full = output_perturbation(_logistic(noise=sp.Gaussian(np.diag([0.25, 4, 9.0]))), row_norm=1.0)
    assert full.mu == pytest.approx(promise.mu)
    laplace = output_perturbation(_logistic(noise=sp.Laplace(0.5)), row_norm=1.0)
    assert laplace.epsilon == pytest.approx(math.sqrt(3) * 2 / (25 * 0.1) / 0.5)


def test_bounds_read_off_the_data_are_marked():
    found = output_sensitivity(_logistic())
    assert not found.guarantee
    assert any("not a guarantee" in text for text in found.assumptions)


def test_the_formula_of_guo_et_al_has_its_own_name():
    assert epsilon_printed_by_guo_2022(12_665, 1e-2, 1e-2) == pytest.approx(1.58, abs=0.005)


def test_clipping_leaves_short_rows_alone():
    X = np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    clipped = clip_rows(X, 1.0)
    assert np.linalg.norm(clipped, axis=1).max() <= 1.0
    np.testing.assert_allclose(clipped[0], [0.6, 0.8])
    np.testing.assert_array_equal(clipped[1:], X[1:])


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: output_sensitivity(_logistic(intercept=True)), "intercept is not penalised"),
        (lambda: output_sensitivity(_logistic(), row_norm=0.1), "clip_rows"),
        (lambda: output_sensitivity(_logistic(), row_norm=-1), "row_norm"),
        (lambda: output_sensitivity(_logistic(), lipschitz=0), "lipschitz"),
        (lambda: output_sensitivity(sp.compose(_logistic(), _logistic(l2=0.2))), "single release"),
        (lambda: clip_rows(np.eye(2), 0.0), "norm"),
        (lambda: output_sensitivity(_gamma()), "No Lipschitz constant is known for the family"),
    ],
)
def test_what_has_no_sensitivity_is_refused(ask, words):
    with pytest.raises(sp.InputError, match=words):
        ask()


def test_labels_beyond_their_bound_and_strange_families_are_refused():
    _, X = _data(1)
    y = np.linspace(-3, 3, len(X))
    model = sp.glm.LinearRegression(l2=0.1).fit(X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(1.0))
    with pytest.raises(sp.InputError, match="label_bound"):
        output_sensitivity(leak, row_norm=1.0, label_bound=2.0)
    assert not output_sensitivity(leak, row_norm=1.0).guarantee
    free = sp.leakage(sp.glm.LinearRegression().fit(X, y), X, y, noise=sp.Gaussian(1.0))
    with pytest.raises(sp.InputError, match="Without a penalty"):
        output_sensitivity(free)
    assert output_sensitivity(leak, lipschitz=2.0).value == pytest.approx(4 / (25 * 0.1))


def test_the_corners_of_the_gaussian_mechanism():
    assert gaussian_delta(1.0, 0.0) == 0.0  # nothing moves
    assert gaussian_delta(1.0, 1e-9) == 0.0  # exp(−5·10¹⁷) is beyond float64
    assert 0.0 < gaussian_delta(1.0, 0.03) < 1e-200


def _gamma():
    _, X = _data(1)
    y = np.exp(X[:, 0])
    model = sp.glm.GeneralizedLinearRegression("gamma", l2=0.1).fit(X, y)
    return sp.leakage(model, X, y, noise=sp.Gaussian(1.0))

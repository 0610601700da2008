"""The rule that sets the weights: sums, limits and fixed points, for any leakage."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from seepage.glm.reweighting import ReweightRule

SIZES = st.integers(1, 12)
LIMITS = st.sampled_from(
    [(0.0, math.inf), (0.5, math.inf), (0.0, 1.5), (0.3, 3.0), (1.0, 2.0), (0.2, 1.0), (1.0, 1.0)]
)


def positive(size, low=1e-3, high=1e3):
    return arrays(float, size, elements=st.floats(low, high))


@st.composite
def situations(draw):
    """Draw a rule, factors that keep its sum and limits, and the leakage of every row."""
    n = draw(SIZES)
    unit = np.sort(draw(arrays(int, n, elements=st.integers(0, n - 1))))
    unit = np.unique(unit, return_inverse=True)[1].reshape(-1)
    units = int(unit.max()) + 1
    start = draw(arrays(float, n, elements=st.sampled_from([0.0, 0.5, 1.0, 7.0])))
    start[draw(st.integers(0, n - 1))] = 1.0
    low, high = draw(LIMITS)
    rule = ReweightRule(start, unit, draw(positive(units)), low, high)
    factors = rule.following(np.ones(units), draw(positive(n)))
    eta = draw(positive(n)) * draw(arrays(float, n, elements=st.sampled_from([0.0, 1.0])))
    return rule, factors, eta


@pytest.mark.slow
@given(situations())
def test_weights_keep_their_sum_and_their_limits(situation):
    rule, factors, eta = situation
    new = rule.following(factors, eta)
    assert np.sum(rule.weights(new)) == pytest.approx(np.sum(rule.start), rel=1e-9)
    assert np.all(new >= rule.low)
    assert np.all(new <= rule.high)


@pytest.mark.slow
@given(situations())
def test_units_inside_the_limits_follow_the_leakage(situation):
    rule, factors, eta = situation
    new, moving = rule.following(factors, eta), rule.leaking(eta)
    wanted = factors[moving] * rule.target[moving] / rule.means(eta)[moving]
    free = (new[moving] > rule.low) & (new[moving] < rule.high)
    if np.any(free):
        scale = (new[moving] / wanted)[free]
        assert np.ptp(scale) <= 1e-9 * scale[0]
        # Whoever is held at the lower limit would be below it, at the upper one above.
        assert np.all(scale[0] * wanted[new[moving] <= rule.low] <= rule.low * (1 + 1e-9))
        assert np.all(scale[0] * wanted[new[moving] >= rule.high] >= rule.high * (1 - 1e-9))


@pytest.mark.slow
@given(situations())
def test_units_that_leak_nothing_keep_their_factor(situation):
    rule, factors, eta = situation
    silent = ~rule.leaking(eta)
    np.testing.assert_array_equal(rule.following(factors, eta)[silent], factors[silent])


@pytest.mark.slow
@given(situations())
def test_leakage_as_wanted_is_a_fixed_point(situation):
    rule, factors, _ = situation
    eta = rule.target[rule.unit] * 0.3
    assert rule.change(factors, rule.following(factors, eta)) < 1e-9


def test_first_round_is_the_papers():
    rule = ReweightRule(np.ones(3), np.arange(3), np.ones(3))
    eta = np.array([1.0, 2.0, 4.0])
    np.testing.assert_allclose(
        rule.following(np.ones(3), eta), 3 * (1 / eta) / np.sum(1 / eta), rtol=1e-15
    )


def test_limits_share_out_what_is_left():
    rule = ReweightRule(np.ones(4), np.arange(4), np.ones(4), 0.5, 2.0)
    # Without limits: 0.04, 0.42, 0.42, 3.12 times one; the last is cut at 2, the first raised.
    new = rule.following(np.ones(4), np.array([80.0, 8.0, 8.0, 1.0]))
    np.testing.assert_allclose(new, [0.5, 0.75, 0.75, 2.0], rtol=1e-14)


def test_groups_count_their_mean_over_rows_that_take_part():
    rule = ReweightRule(np.array([1.0, 0.0, 1.0, 2.0]), np.array([0, 0, 1, 1]), np.ones(2))
    np.testing.assert_allclose(rule.means(np.array([3.0, 9.0, 1.0, 5.0])), [3.0, 3.0])
    np.testing.assert_allclose(rule.mass(), [1.0, 3.0])


def test_rounds_end_at_the_tolerance():
    rule = ReweightRule(np.ones(3), np.arange(3), np.ones(3))
    e = np.array([1.0, 3.0, 5.0])  # leakage proportional to the weight settles in one round
    steps = list(rule.run(lambda weights: weights * e, 10, 1e-12))
    assert len(steps) == 2
    assert np.ptp(steps[-1].eta) < 1e-15
    assert len(list(rule.run(lambda weights: np.sqrt(weights) * e, 4, 0.0))) == 5


def test_rounds_that_swing_to_and_fro_are_damped():
    rule = ReweightRule(np.ones(3), np.arange(3), np.ones(3))
    e = np.array([1.0, 3.0, 5.0])
    # η = ω³e: the plain rule would overshoot ever further, ω ← ω⁻² up to a factor.
    *_, last = rule.run(lambda weights: weights**3 * e, 60, 1e-12)
    assert last.change <= 1e-12
    np.testing.assert_allclose(last.weights, 3 * e ** (-1 / 3) / np.sum(e ** (-1 / 3)), rtol=1e-11)

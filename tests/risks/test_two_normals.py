"""Two normal distributions of unlike spread, against quadrature and simulated tests."""

import numpy as np
import pytest
from scipy import integrate, stats

import seepage as sp
from seepage.risks import guessing
from seepage.risks.two_normals import TwoNormals

ONE_DIMENSION = [(0.0, 3.0), (1.0, 0.0), (2.0, 3.0), (1.5, -0.6), (0.3, 40.0), (4.0, 1e-4)]


def densities(m, e):
    return stats.norm(0, 1), stats.norm(m, np.sqrt(1 + e))


@pytest.mark.parametrize(("m", "e"), ONE_DIMENSION)
@pytest.mark.parametrize("prior", [0.5, 0.2, 0.9])
def test_accuracy_is_the_integral_of_the_larger_density(m, e, prior):
    inside, outside = densities(m, e)

    def larger(x):
        return max(prior * inside.pdf(x), (1 - prior) * outside.pdf(x))

    far = 12 * np.sqrt(1 + max(e, 0.0))
    right, _ = integrate.quad(larger, -far, m + far, limit=400, points=[0.0, m])
    pairs = TwoNormals(np.array([[m]]), np.array([[e]]))
    assert pairs.accuracy(prior)[0] == pytest.approx(right, abs=1e-7)


@pytest.mark.parametrize(("m", "e"), ONE_DIMENSION)
@pytest.mark.parametrize("fpr", [0.1, 0.01, 0.001])
def test_rates_and_areas_are_those_of_a_sorted_grid(m, e, fpr):
    inside, outside = densities(m, e)
    far = 12 * np.sqrt(1 + max(e, 0.0))
    x = np.linspace(-far, m + far, 2_000_001)
    order = np.argsort(-(inside.logpdf(x) - outside.logpdf(x)), kind="stable")
    true, false = (np.cumsum(one.pdf(x)[order]) * (x[1] - x[0]) for one in (inside, outside))
    pairs = TwoNormals(np.array([[m]]), np.array([[e]]))
    expected = np.interp(fpr, false, true)
    assert pairs.true_positive_rate(fpr)[0] == pytest.approx(expected, rel=2e-3, abs=1e-5)
    assert pairs.area()[0] == pytest.approx(np.trapezoid(true, false), abs=2e-3)


def test_several_coordinates_against_simulated_tests():
    rng = np.random.default_rng(0)
    m, e = rng.normal(size=(5, 4)), np.expm1(rng.normal(size=(5, 4)))
    e[0], m[1], e[2, :3] = 0.0, 0.0, 0.0
    pairs, draws = TwoNormals(m, e), rng.standard_normal((400_000, 4))
    for k in range(5):

        def ratio(x, m=m[k], e=e[k]):
            return ((x - m) ** 2 / (1 + e) - x**2 + np.log1p(e)).sum(axis=1) / 2

        inside, outside = ratio(draws), ratio(m[k] + np.sqrt(1 + e[k]) * draws[::-1])
        right = (np.mean(inside > 0) + np.mean(outside < 0)) / 2
        assert pairs.accuracy()[k] == pytest.approx(right, abs=3e-3)
        found = np.mean(inside > np.quantile(outside, 0.95))
        assert pairs.true_positive_rate(0.05)[k] == pytest.approx(found, abs=0.01)


def test_equal_spreads_are_gaussian_differential_privacy():
    mu = np.array([0.0, 0.5, 3.0, np.inf])
    pairs = TwoNormals.apart(mu)
    np.testing.assert_allclose(pairs.accuracy(0.3), guessing.accuracy(mu, 0.3))
    np.testing.assert_allclose(
        pairs.true_positive_rate(0.01), guessing.true_positive_rate(mu, 0.01)
    )
    np.testing.assert_allclose(pairs.area(), stats.norm.cdf(mu / np.sqrt(2)))


def test_pairs_are_replaced_whatever_their_dimensions():
    pairs = TwoNormals.apart(np.array([1.0, 2.0]))
    both = pairs.put(np.array([1]), TwoNormals(np.array([[0.0, 0.0]]), np.array([[3.0, 0.0]])))
    assert both.accuracy()[0] == guessing.accuracy(1.0)
    assert both.accuracy()[1] == pytest.approx(0.6613, abs=1e-4)


def test_a_prior_is_a_probability():
    with pytest.raises(sp.InputError, match="between 0 and 1"):
        TwoNormals.apart(np.ones(1)).accuracy(1.5)

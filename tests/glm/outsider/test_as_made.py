"""Releases as they are made: rounded parameters, and predictions with noise or few digits."""

import runpy
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from scipy import stats

import seepage as sp
from seepage.errors import InputError

OUTSIDER = sp.Attacker(knows=0.0)
SLOPES = {
    "gaussian": lambda m, y: (m - y, np.ones_like(m)),
    "bernoulli": lambda m, y: (1 / (1 + np.exp(-m)) - y, 1 / (1 + np.exp(-m)) / (1 + np.exp(m))),
    "poisson": lambda m, y: (np.exp(m) - y, np.exp(m)),
}


def drawn(family, n=60, d=3, seed=2):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) * 0.7
    margins = X @ np.linspace(0.8, -0.6, d)
    y = {
        "gaussian": margins + rng.standard_normal(n),
        "bernoulli": (rng.random(n) < 1 / (1 + np.exp(-margins))).astype(float),
        "poisson": rng.poisson(np.exp(margins)).astype(float),
    }[family]
    return X, y


def refit(family, X, y, ridge, start=None):
    """Return the minimiser by Newton's method, in plain NumPy; no intercept."""
    theta = np.zeros(X.shape[1]) if start is None else start.copy()
    for _ in range(60):
        slope, curvature = SLOPES[family](X @ theta, y)
        H = (X.T * curvature) @ X + ridge * np.eye(X.shape[1])
        theta = theta - np.linalg.solve(H, X.T @ slope + ridge * theta)
    return theta


def model_of(family, X, y, l2=0.05):
    return sp.glm.GeneralizedLinearRegression(family=family, l2=l2).fit(X, y)


# Noise on predictions, to who knows the rest ----------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize("family", SLOPES)
def test_eta_of_noisy_predictions_by_finite_differences(family, count):
    X, y = drawn(family)
    ridge, queries = 0.05 * len(X), drawn(family, count, seed=9)[0]
    model = model_of(family, X, y)
    noise = sp.Gaussian(np.linspace(0.1, 0.3, count))
    leak = sp.leakage(model, X, y, noise=noise, release=sp.Predictions(queries))
    eta, cells = np.asarray(leak.records()), np.asarray(leak.cells())
    here = refit(family, X, y, ridge)
    for i in (0, 5):
        J = np.zeros((count, 4))
        for k in range(4):
            ends = []
            for h in (1e-5, -1e-5):
                Z, labels = X.copy(), y.copy()
                if k < 3:
                    Z[i, k] += h
                else:
                    labels[i] += h
                ends.append(queries @ refit(family, Z, labels, ridge, here))
            J[:, k] = (ends[0] - ends[1]) / 2e-5
        J /= np.asarray(noise.sigma)[:, None]
        # What no query sees counts faintly, so the number may be a little larger.
        assert eta[i] == pytest.approx(np.linalg.norm(J, 2), rel=1e-3)
        assert eta[i] > np.linalg.norm(J, 2) * (1 - 1e-6)
        np.testing.assert_allclose(cells[i], np.linalg.norm(J[:, :3], axis=0), rtol=2e-3)


@pytest.mark.parametrize("family", SLOPES)
def test_risks_of_noisy_predictions_by_refits(family):
    X, y = drawn(family)
    ridge, queries, sigma = 0.05 * len(X), drawn(family, 2, seed=9)[0], 0.02
    model = model_of(family, X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(sigma), release=sp.Predictions(queries))
    mu = np.asarray(leak.membership(exact=True))
    here = queries @ refit(family, X, y, ridge)
    for i in range(6):
        there = queries @ refit(family, np.delete(X, i, 0), np.delete(y, i), ridge)
        assert mu[i] == pytest.approx(np.linalg.norm(here - there) / sigma, rel=1e-3)
    if family == "bernoulli":
        flipped = y.copy()
        flipped[4] = 1 - flipped[4]
        there = queries @ refit(family, X, flipped, ridge)
        right = stats.norm.cdf(np.linalg.norm(here - there) / sigma / 2)
        found = np.asarray(leak.guess("label", prior="equal", exact=True).right)[4]
        assert found == pytest.approx(right, abs=2e-3)
    assert any("margins" in one for one in leak.notes)


def test_as_many_queries_as_parameters_are_the_parameters():
    X, y = drawn("bernoulli")
    model = sp.glm.LogisticRegression(l2=0.05, fit_intercept=True).fit(X, y)
    A = np.hstack([X[:9], np.ones((9, 1))])
    both = [
        sp.leakage(model, X, y, noise=sp.Gaussian(0.3), release=sp.Predictions(X[:9])),
        sp.leakage(model, X, y, noise=sp.Gaussian(0.09 * np.linalg.inv(A.T @ A))),
    ]
    np.testing.assert_allclose(*(np.asarray(one.records()) for one in both), rtol=1e-6)
    for bound in (
        lambda leak: float(sp.bounds.hammersley_chapman_robbins(leak, 0, "x1", domain=(-3, 3))),
        lambda leak: sp.bounds.van_trees_rows(leak, sp.bounds.GaussianPrior(std=1.0), rows=[0]),
    ):
        np.testing.assert_allclose(*(np.asarray(bound(one)) for one in both), rtol=1e-5)


def test_noisy_predictions_compose_with_other_releases():
    X, y = drawn("bernoulli")
    model = model_of("bernoulli", X, y)
    answers = sp.leakage(model, X, y, noise=sp.Gaussian(0.1), release=sp.Predictions(X[:2]))
    whole = sp.leakage(model, X, y, noise=sp.Gaussian(0.2))
    both = sp.compose(answers, whole)
    i = 3
    total = sum(np.asarray(one.information(i)) for one in (answers, whole))
    eta = np.sqrt(np.linalg.eigvalsh(total)[-1])
    assert np.asarray(both.records())[i] == pytest.approx(eta, rel=1e-8)
    assert both.membership().mu.shape == (len(X),)


def test_units_do_not_matter_to_noisy_predictions():
    X, y = drawn("gaussian")
    scales = np.array([1e4, 1.0, 1e-4])
    model = sp.glm.LinearRegression().fit(X, y)
    scaled = sp.glm.LinearRegression().fit(X * scales, y)
    once, again = (
        np.asarray(
            sp.leakage(m, Z, y, noise=sp.Gaussian(1.0), release=sp.Predictions(Z[:1])).labels()
        )
        for m, Z in ((model, X), (scaled, X * scales))
    )
    np.testing.assert_allclose(once, again, rtol=1e-4)


def test_noise_on_answers_is_read_as_it_was_given():
    X, y = drawn("bernoulli", n=100)
    model, release = model_of("bernoulli", X, y), sp.Predictions(X[:2])
    known = sp.leakage(model, X, y, noise=sp.Gaussian(0.1), release=release)
    outside = sp.leakage(model, X, y, noise=sp.Gaussian(0.1), release=release, attacker=OUTSIDER)
    views = (known.records(), known.membership().mu, outside.membership(exact=0).mu)
    noises = [*known.noise, *outside.noise, *(noise for view in views for noise in view.noise)]
    for noise in noises:
        assert isinstance(noise, sp.Gaussian)
        assert noise.sigma == 0.1
        assert repr(noise) == "Gaussian(0.1) on 2 margins"
        assert noise.draw(2, seed=0).shape == (2,)
    for leak in (known, outside):
        assert "predictions with Gaussian(0.1) on 2 margins" in repr(leak)


@pytest.mark.parametrize("attacker", [None, OUTSIDER])
@pytest.mark.parametrize("sigma", [0.1, [0.1, 0.2], [[0.02, 0.01], [0.01, 0.03]]])
def test_calibrated_noise_on_answers_meets_its_target(attacker, sigma):
    """What comes back goes in again, and hides as much as was asked for."""
    X, y = drawn("gaussian", n=100)
    model, release = model_of("gaussian", X, y), sp.Predictions(X[:2])

    def risk(noise):
        leak = sp.leakage(model, X, y, noise=noise, release=release, attacker=attacker)
        found = leak.membership() if attacker is None else leak.membership(exact=0)
        return leak, found

    leak, found = risk(sp.Gaussian(sigma))
    noise = sp.calibrate(leak, right=0.51, view=found.mu, grid=None)
    assert np.shape(noise.sigma) == np.shape(sigma)
    assert "on 2 margins" in repr(noise)
    _, again = risk(noise)
    _, by_hand = risk(sp.Gaussian(noise.sigma))
    assert np.max(np.asarray(again.accuracy())) == pytest.approx(0.51, abs=1e-6)
    np.testing.assert_array_equal(np.asarray(again), np.asarray(by_hand))
    coarse = sp.calibrate(leak, right=0.51, view=found.mu)
    assert np.max(np.asarray(risk(coarse)[1].accuracy())) <= 0.51 + 1e-9


def test_noise_on_answers_is_not_added_to_parameters():
    X, y = drawn("bernoulli", n=100)
    model, release = model_of("bernoulli", X, y), sp.Predictions(X[:2])
    noise = sp.calibrate(
        sp.leakage(model, X, y, noise=sp.Gaussian(0.1), release=release), right=0.51
    )
    for wrong in (
        lambda: sp.release(model, noise),
        lambda: sp.leakage(model, X, y, noise=noise),
        lambda: sp.leakage(model, X, y, noise=noise, attacker=OUTSIDER),
    ):
        with pytest.raises(InputError, match="on 2 margins, not on the parameters"):
            wrong()
    own = sp.leakage(
        model, X, y, noise=sp.Gaussian(0.1), release=sp.Predictions(), attacker=OUTSIDER
    )
    assert "each record's own prediction" in repr(own)
    assert sp.calibrate(own, right=0.55, view=own.membership(exact=0).mu).sigma > 0


# Rounding -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", SLOPES)
def test_rounded_parameters_to_who_knows_the_rest(family):
    X, y = drawn(family, n=200)
    ridge, model = 0.05 * len(X), model_of(family, X, y)
    here = refit(family, X, y, ridge)
    for digits in (1, 2, 3):
        leak = sp.leakage(
            model, X, y, attacker=OUTSIDER, release=sp.Parameters(digits=digits)
        ).membership(exact=0)
        for i in range(60):
            there = refit(family, np.delete(X, i, 0), np.delete(y, i), ridge, here)
            changed = np.any(np.round(there, digits) != np.round(here, digits))
            assert np.asarray(leak.informed)[i] == (np.inf if changed else 0.0)
    assert "changes a printed digit" in " ".join(leak.mu.assumptions)


def test_rounded_predictions_to_who_knows_the_rest():
    X, y = drawn("bernoulli", n=200)
    ridge, model = 0.05 * len(X), model_of("bernoulli", X, y)
    here = refit("bernoulli", X, y, ridge)
    for queries, digits in ((X[:2], 2), (None, 3)):
        leak = sp.leakage(
            model, X, y, attacker=OUTSIDER, release=sp.Predictions(queries, digits=digits)
        ).membership(exact=0)
        shown = 0
        for i in range(60):
            there = refit("bernoulli", np.delete(X, i, 0), np.delete(y, i), ridge, here)
            asked = X[i : i + 1] if queries is None else queries
            before, after = (
                np.round(1 / (1 + np.exp(-asked @ theta)), digits) for theta in (here, there)
            )
            shown += np.any(before != after)
            assert np.isinf(np.asarray(leak.informed)[i]) == np.any(before != after)
        assert shown > 0


def test_rounding_is_a_variance_while_the_others_vary_more():
    X, y = drawn("gaussian", n=200)
    near = X[:, :1] + 0.01 * np.random.default_rng(1).standard_normal((200, 1))
    X = np.hstack([X, near])  # two coefficients that vary far, and together
    model = model_of("gaussian", X, y, l2=1e-6)
    exact, fine, coarse = (
        np.asarray(sp.leakage(model, X, y, attacker=OUTSIDER, release=r).membership(exact=0))
        for r in (None, sp.Parameters(digits=9), sp.Parameters(digits=0))
    )
    np.testing.assert_allclose(fine, exact, rtol=1e-6)
    assert np.all(coarse <= exact * (1 + 1e-5))
    assert np.median(coarse / exact) < 0.99
    # The covariance of the coefficients by hand, with 1/12 where they vary by more than 1
    theta = refit("gaussian", X, y, 1e-6 * len(X))
    H = X.T @ X + 1e-6 * len(X) * np.eye(4)
    h = np.sum(X @ np.linalg.inv(H) * X, axis=1)
    g = X * ((X @ theta - y) / (1 - h))[:, None]
    c = (g - g.mean(axis=0)) @ np.linalg.inv(H)
    n = len(X)
    S = c.T @ c
    S = S + np.diag(np.where(np.diagonal(S) > 1, 1 / 12, 0.0))
    assert np.any(np.diagonal(S) > 1)
    assert np.any(np.diagonal(S) < 1)
    q = np.sum(c @ np.linalg.inv(S) * c, axis=1)
    mu = np.sqrt(q / (1 - n / (n - 1) * q))
    low = h < 0.0999
    np.testing.assert_allclose(coarse[low], mu[low], rtol=1e-5)


def test_digits_are_checked():
    X, y = drawn("bernoulli")
    for kind in (sp.Parameters, lambda digits: sp.Predictions(X, digits=digits)):
        with pytest.raises(InputError, match="digits must be"):
            kind(digits=-1)
    model = model_of("bernoulli", X, y)
    noisy = {"noise": sp.Gaussian(0.5), "attacker": OUTSIDER}
    with pytest.raises(InputError, match="every record has a different release"):
        _ = sp.leakage(model, X, y, release=sp.Predictions(), **noisy).informed
    given = sp.leakage(model, X, y, release=sp.Predictions(X[:2]), **noisy)
    known = sp.leakage(model, X, y, noise=sp.Gaussian(0.5), release=sp.Predictions(X[:2]))
    np.testing.assert_allclose(given.informed.records(), known.records())
    rounded = sp.leakage(model, X, y, attacker=OUTSIDER, release=sp.Parameters(digits=3))
    assert "to 3 decimals" in repr(rounded)
    with pytest.raises(InputError, match="rounded numbers"):
        rounded.records()


# Simulated attackers: the benchmark, small --------------------------------------------------------


@pytest.fixture(scope="module")
def benchmark():
    folder = Path(__file__).parents[3] / "benchmarks"
    with patch.object(sys, "path", [str(folder), *sys.path]):
        yield runpy.run_path(str(folder / "as_made.py"))


@pytest.mark.parametrize(
    ("attacks", "arguments"),
    [
        ("noisy_predictions", (2000,)),
        ("perturbed_objectives", (1000,)),
        pytest.param("outsiders", (500, 2), marks=pytest.mark.slow),
        pytest.param("two_specifications", (1000, 3), marks=pytest.mark.slow),
    ],
)
def test_simulated_attackers_are_not_right_more_often(benchmark, attacks, arguments):
    found = list(benchmark[attacks](*arguments))
    assert found
    for one in found:
        assert one.least(1 - 0.001 / len(found)) <= one.predicted, one.name
    # Nor does the prediction lie far above what an attacker can do.
    assert max(one.predicted - one.right / one.tried for one in found) < 0.08

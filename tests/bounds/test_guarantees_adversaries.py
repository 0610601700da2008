"""Laws between bounds and the adversaries they bind, over random small problems."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import seepage as sp
from seepage.attacks import LinearisedAdversary
from seepage.bounds import GaussianPrior, van_trees_rows

FAMILIES = {
    "LinearRegression": lambda rng, m: m + rng.standard_normal(len(m)),
    "LogisticRegression": lambda rng, m: (m + rng.logistic(size=len(m)) > 0).astype(int),
    "PoissonRegression": lambda rng, m: rng.poisson(np.exp(np.clip(m / 2, -2, 2))).astype(float),
}


def problem(seed: int, kind: str, intercept: bool):
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(12, 40)), int(rng.integers(1, 4))
    X = rng.standard_normal((n, d))
    y = FAMILIES[kind](rng, X @ rng.standard_normal(d))
    y[:2] = (0, 1)  # both classes are there
    model = getattr(sp.glm, kind)(l2=float(rng.choice([0.02, 0.2])), fit_intercept=intercept)
    return rng, X, y, model.fit(X, y)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(sorted(FAMILIES)),
    intercept=st.booleans(),
    sigma=st.sampled_from([1e-3, 0.02, 0.3]),
    spread=st.sampled_from([0.3, 1.0]),
)
# Steps from the fit to this count overflow, and only Newton's refits find it.
@example(seed=3392, kind="PoissonRegression", intercept=True, sigma=1e-3, spread=1.0)
def test_no_prior_helps_below_van_trees(seed, kind, intercept, sigma, spread):
    """The posterior mean's error, on average over the prior and the noise, is above the bound."""
    rng, X, y, model = problem(seed, kind, intercept)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(sigma))
    row = int(rng.integers(len(X)))
    prior = GaussianPrior(spread, mean=X.mean(axis=0))
    bound = van_trees_rows(leak, prior, [row], draws=200, seed=1)
    adversary = LinearisedAdversary(prior).fit(leak, row)
    records = prior.draw(600, X.shape[1], rng)
    fits = leak.refits().parameters(row, records).reshape(600, -1)
    guesses = adversary.reconstruct(fits + sigma * rng.standard_normal(fits.shape))
    errors = np.mean((guesses - records) ** 2, axis=1)
    # Four standard errors of the attack's average, and what 200 draws leave open of the bound.
    slack = 4 * errors.std() / np.sqrt(len(errors))
    assert errors.mean() + slack >= 0.85 * float(bound[0])


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6), intercept=st.booleans(), sigma=st.sampled_from([1e-3, 0.1, 10.0])
)
def test_the_efficient_adversary_attains_cramer_rao_where_the_release_is_linear(
    seed, intercept, sigma
):
    """A linear regression's release is linear in a label."""
    rng, X, y, model = problem(seed, "LinearRegression", intercept)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(sigma))
    row, trials = int(rng.integers(len(X))), 4000
    adversary = LinearisedAdversary().fit(leak, row, columns=[], label=True)
    theta = np.ravel(model.coef_)
    if intercept:
        theta = np.append(theta, model.intercept_)
    guesses = adversary.reconstruct(theta + sigma * rng.standard_normal((trials, len(theta))))
    bound = float(leak.labels().mse_bound()[row])
    off = guesses[:, 0] - y[row]
    assert abs(off.mean()) < 5 * np.sqrt(bound / trials)
    assert np.mean(off**2) == pytest.approx(bound, rel=5 * np.sqrt(2 / trials))


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), sigma=st.sampled_from([0.01, 0.3]))
def test_a_gaussian_prior_on_a_linear_release_attains_van_trees(seed, sigma):
    """The label of a linear regression once more: the bound is the posterior variance itself."""
    rng, X, y, model = problem(seed, "LinearRegression", False)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(sigma))
    row, trials = int(rng.integers(len(X))), 4000
    prior = GaussianPrior(0.8, mean=0.5)
    information = np.array([[float(leak.labels()[row]) ** 2]])
    bound = float(sp.bounds.van_trees(information, prior))
    labels = prior.draw(trials, 1, rng)
    adversary = LinearisedAdversary(prior).fit(leak, row, columns=[], label=True)
    same = np.repeat(X[row][None, :], trials, axis=0)
    fits = leak.refits().parameters(row, same, labels[:, 0])
    guesses = adversary.reconstruct(fits + sigma * rng.standard_normal(fits.shape))
    assert np.mean((guesses - labels) ** 2) == pytest.approx(bound, rel=5 * np.sqrt(2 / trials))

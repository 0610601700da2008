"""The adversary with a prior: its guesses against formulas written out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import seepage as sp
from cases import BY_NAME, audit, estimator
from oracle import jacobian_of, problem_of
from recipes import Case
from seepage.attacks import LinearisedAdversary, draw_releases
from seepage.bounds import BoundedPrior, EmpiricalPrior, GaussianPrior

CASES = ["linear-intercept", "logistic-everything", "covariance-poisson-weighted", "softmax-3-l2"]


def linearised(case: Case, row: int, centre: np.ndarray):
    """The release expected with the centre in the row's place, and its Jacobian, by the oracle."""
    X = case.X.copy()
    X[row] = centre
    other = Case(case.name, case.family, X, case.y, case.l2, case.intercept, case.sample_weight)
    dense = jacobian_of(problem_of(other), sp.Gaussian(1.0))  # not whitened
    return dense.theta, dense.block([row])


def covariance(case: Case, size: int) -> np.ndarray:
    sigma = np.asarray(case.noise.sigma)
    return sigma if sigma.ndim == 2 else np.diag(np.broadcast_to(sigma**2, size))


@pytest.mark.parametrize("name", CASES)
def test_the_posterior_mean_is_the_textbooks(name):
    case, rng, row = BY_NAME[name], np.random.default_rng(0), 7
    S = np.diag(rng.uniform(0.2, 1.0, case.d)) + 0.1
    centre = rng.standard_normal(case.d)
    w, J = linearised(case, row, centre)
    release = w + 0.1 * rng.standard_normal((4, w.size))
    noise = covariance(case, w.size)
    gain = S @ J.T @ np.linalg.inv(J @ S @ J.T + noise)  # Kalman's form of the same thing
    want = centre + (release - w) @ gain.T
    adversary = LinearisedAdversary(GaussianPrior(S, centre)).fit(audit(case), row)
    np.testing.assert_allclose(adversary.reconstruct(release), want, rtol=1e-6, atol=1e-8)
    same = LinearisedAdversary(GaussianPrior(S, centre), guess="map").fit(audit(case), row)
    np.testing.assert_allclose(same.reconstruct(release), want, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", CASES)
def test_records_are_weighed_by_their_likelihood(name):
    case, rng, row = BY_NAME[name], np.random.default_rng(1), 2
    records = rng.standard_normal((15, case.d))
    weights = rng.uniform(0, 1, 15)
    weights[4] = 0.0
    p = weights / weights.sum()
    centre = p @ records
    w, J = linearised(case, row, centre)
    noise = covariance(case, w.size)
    release = w + (records[[3, 8]] - centre) @ J.T + 0.05 * rng.standard_normal((2, w.size))
    off = release[:, None, :] - w - (records - centre) @ J.T
    distance = np.einsum("tkp,pq,tkq->tk", off, np.linalg.inv(noise), off)
    posterior = p * np.exp(-0.5 * (distance - distance.min(axis=1, keepdims=True)))
    posterior /= posterior.sum(axis=1, keepdims=True)
    prior = EmpiricalPrior(records, weights)
    mean = LinearisedAdversary(prior).fit(audit(case), row).reconstruct(release)
    np.testing.assert_allclose(mean, posterior @ records, rtol=1e-5, atol=1e-7)
    best = LinearisedAdversary(prior, guess="map").fit(audit(case), row).reconstruct(release)
    np.testing.assert_array_equal(best, records[np.argmax(posterior, axis=1)])


def test_with_little_noise_the_record_is_found_among_the_others():
    case = BY_NAME["linear-intercept"]
    noise = sp.Gaussian(1e-6)
    model = estimator(case).fit(case.X, case.y)
    leak = sp.leakage(model, case.X, case.y, noise=noise)
    # Records near the true one, within which the release is linear.
    near = case.X[5] + 1e-3 * np.random.default_rng(0).standard_normal((20, case.d))
    near[11] = case.X[5]
    adversary = LinearisedAdversary(EmpiricalPrior(near), guess="map").fit(leak, 5)
    guesses = adversary.reconstruct(draw_releases(model, noise, 50, seed=0))
    assert np.mean(np.all(guesses == case.X[5], axis=1)) > 0.95


def test_only_some_columns_may_be_unknown():
    case = BY_NAME["linear-intercept"]
    leak = audit(case)
    one = LinearisedAdversary(GaussianPrior(0.5)).fit(leak, 3, columns=["x2"])
    assert one.reconstruct(np.zeros((4, 6))).shape == (4, 1)
    both = LinearisedAdversary(GaussianPrior(0.5)).fit(leak, 3, columns=["x2"], label=True)
    assert both.reconstruct(np.zeros(6)).shape == (1, 2)


def test_a_wide_prior_is_no_prior():
    case = BY_NAME["linear-intercept"]
    leak = audit(case)
    centre = np.delete(case.X, 3, axis=0).mean(axis=0)
    release = np.random.default_rng(0).standard_normal((3, 6))
    free = LinearisedAdversary().fit(leak, 3).reconstruct(release)
    wide = LinearisedAdversary(GaussianPrior(1e7, centre)).fit(leak, 3).reconstruct(release)
    np.testing.assert_allclose(free, wide, rtol=1e-4)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: LinearisedAdversary(BoundedPrior(0, 1)), "prior must be"),
        (lambda: LinearisedAdversary(guess="best"), "guess must be"),
        (lambda: LinearisedAdversary().reconstruct(np.zeros(3)), "call fit"),
        (lambda: LinearisedAdversary().fit(audit(BY_NAME["laplace-linear"]), 0), "Gaussian"),
        (lambda: LinearisedAdversary().fit(audit(BY_NAME["softmax-3"]), 0, label=True), "softmax"),
        (lambda: LinearisedAdversary().fit(audit(BY_NAME["one-row-linear"]), 0), "single record"),
        (lambda: _fitted().reconstruct(np.zeros(3)), "the model has 6"),
        (lambda: LinearisedAdversary().fit(_client(), 0), "release of a fitted linear model"),
        (
            lambda: LinearisedAdversary(GaussianPrior(1.0, -3.0)).fit(_overlapping(), 4),
            "replaced by the prior mean, the model has no minimiser",
        ),
    ],
)
def test_what_cannot_be_guessed_is_refused(ask, words):
    with pytest.raises(sp.InputError, match=words):
        ask()


def _fitted():
    return LinearisedAdversary().fit(audit(BY_NAME["linear-intercept"]), 0)


def _client():
    """Return the leakage of a client's update, which no linear model stands behind."""
    net, x = torch.nn.Linear(3, 2), torch.ones(4, 3)
    training = sp.layers.LocalTraining(lr=0.1)
    labels = torch.tensor([0, 1, 0, 1])
    return sp.layers.update_leakage(
        net, "cross_entropy", x, labels, training=training, noise=sp.Gaussian(1.0)
    )


def _overlapping():
    """Return the leakage of classes that only the last record keeps from being separable."""
    X, y = np.array([[1.0], [2.0], [-1.0], [-1.5], [0.2]]), np.array([1, 1, 0, 0, 0])
    model = sp.glm.LogisticRegression(l2=0.0).fit(X, y)
    return sp.leakage(model, X, y, noise=sp.Gaussian(1.0))

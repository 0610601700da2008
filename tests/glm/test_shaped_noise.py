"""Noise shaped by public records: the stated covariance, and the target met about the private."""

import numpy as np
import pytest

import seepage as sp
from seepage.errors import InputError

RNG = np.random.default_rng(5)
X = RNG.normal(size=(150, 3)) * [1.0, 4.0, 0.5] + [0.0, 1.0, 0.0]
Y = (X[:, 0] + 0.2 * X[:, 1] + RNG.normal(size=150) > 0).astype(int)


def fit(rows):
    return sp.glm.LogisticRegression(l2=0.02, fit_intercept=True).fit(X[rows], Y[rows])


@pytest.mark.parametrize("plain", [0.0, 0.05, 1.0])
def test_the_shape_is_the_inverse_curvature_of_the_public_part(plain):
    public = np.arange(50)
    pilot = fit(public)
    rows = np.column_stack([X[public], np.ones(50)])
    p = 1 / (1 + np.exp(-(rows @ np.concatenate([pilot.coef_.ravel(), pilot.intercept_]))))
    H = (rows * (p * (1 - p))[:, None]).T @ rows + 50 * 0.02 * np.diag([1, 1, 1, 0])
    inverse = np.linalg.inv(H)
    wanted = (1 - plain) * inverse * 4 / np.trace(inverse) + plain * np.eye(4)
    shape = sp.glm.noise_shape(pilot, X[public], Y[public], plain=plain)
    np.testing.assert_allclose(shape.sigma, wanted, rtol=1e-6, atol=1e-12)


def test_every_private_record_meets_the_target():
    public, private = np.arange(50), np.arange(50, 150)
    shape = sp.glm.noise_shape(fit(public), X[public], Y[public])
    model = fit(private)
    noise = sp.calibrate(sp.leakage(model, X[private], Y[private], noise=shape), eta=0.5)
    after = np.asarray(sp.leakage(model, X[private], Y[private], noise=noise).records())
    assert 0.3 < after.max() <= 0.5
    factor = noise.sigma / shape.sigma
    assert np.ptp(factor) < 1e-9 * factor.max()


def test_an_odd_share_is_refused():
    with pytest.raises(InputError, match="between 0 and 1"):
        sp.glm.noise_shape(fit(np.arange(50)), X[:50], Y[:50], plain=2)

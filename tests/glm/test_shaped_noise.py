"""Noise shaped by public records: the stated covariance, and the target met about the private."""

import numpy as np
import pytest
from sklearn.svm import LinearSVC

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


def gaussian_information(release, values, step):
    """Return the information about some numbers from the score, by differences of the release.

    The Kullback–Leibler divergence between Gaussians a small step apart is half of it (no formula
    for the derivative of a covariance enters).
    """
    mean, covariance = release(values)

    def divergence(move):
        other, wide = release(values + step * move)
        shift, inverse = other - mean, np.linalg.inv(wide)
        ratio = inverse @ covariance
        return 0.5 * (
            np.trace(ratio) - len(mean) - np.linalg.slogdet(ratio)[1] + shift @ inverse @ shift
        )

    def even(move):  # the odd terms of the expansion cancel
        return (divergence(move) + divergence(-move)) / step**2

    unit = np.eye(len(values))
    found = np.diag([even(e) for e in unit])
    for a in range(len(values)):
        for b in range(a):
            both = even(unit[a] + unit[b])
            found[a, b] = found[b, a] = (both - found[a, a] - found[b, b]) / 2
    return found


@pytest.mark.parametrize("kind", ["linear", "logistic", "poisson"])
@pytest.mark.parametrize("plain", [0.0, 0.05])
def test_a_shape_from_the_records_is_counted_as_by_differences(kind, plain):
    n, table = 40, X[:40]
    make = {
        "linear": sp.glm.LinearRegression,
        "logistic": sp.glm.LogisticRegression,
        "poisson": sp.glm.PoissonRegression,
    }[kind]
    y = {"linear": X[:n, 0] + np.sin(np.arange(n)), "logistic": Y[:n], "poisson": Y[:n] * 2}[kind]
    model = make(l2=0.05, fit_intercept=True).fit(table, y)
    sigma, row = 0.4, 3
    slope, bend = {
        "linear": (lambda m, t: m - t, np.ones_like),
        "logistic": (
            lambda m, t: 1 / (1 + np.exp(-m)) - t,
            lambda m: np.exp(-m) / (1 + np.exp(-m)) ** 2,
        ),
        "poisson": (lambda m, t: np.exp(m) - t, np.exp),
    }[kind]

    def release(values):
        """Return the minimiser and the covariance with another record, by Newton's method."""
        rows = np.column_stack([table, np.ones(n)])
        rows[row, :3], labels = values[:3], np.array(y, dtype=float)
        labels[row] = values[3]
        theta, penalty = np.append(model.coef_.ravel(), model.intercept_), 0.05 * n
        ridge = penalty * np.diag([1.0, 1, 1, 0])
        for _ in range(8):
            m = rows @ theta
            H = (rows * bend(m)[:, None]).T @ rows + ridge
            theta = theta - np.linalg.solve(H, rows.T @ slope(m, labels) + ridge @ theta)
        H = (rows * bend(rows @ theta)[:, None]).T @ rows + ridge
        inverse = np.linalg.inv(H)
        shape = (1 - plain) * inverse * 4 / np.trace(inverse) + plain * np.eye(4)
        return theta, sigma**2 * shape

    values = np.append(table[row], float(y[row]))
    by_differences = np.linalg.eigvalsh(gaussian_information(release, values, 1e-3))[-1]
    told = sp.glm.private_shape_leakage(model, table, y, sigma=sigma, rows=[row], plain=plain)
    np.testing.assert_allclose(np.asarray(told)[0], np.sqrt(by_differences), rtol=1e-4)
    # The shape adds to what the numbers tell with noise of that shape, and endless noise hides only
    # the numbers.
    shape = sp.glm.noise_shape(model, table, y, plain=plain)
    numbers = sp.leakage(model, table, y, noise=sp.Gaussian(sigma**2 * shape.sigma)).records()
    assert np.asarray(told)[0] > np.asarray(numbers)[row]
    endless = sp.glm.private_shape_leakage(model, table, y, sigma=1e9, rows=[row], plain=plain)
    assert np.asarray(endless)[0] > 0.01


def test_what_a_shape_tells_is_counted_for_one_output_with_third_derivatives_only():
    many = sp.glm.SoftmaxRegression(l2=0.1).fit(X, np.arange(150) % 3)
    with pytest.raises(InputError, match="one output only"):
        sp.glm.private_shape_leakage(many, X, np.arange(150) % 3, sigma=1.0)
    two = np.arange(150) % 2
    kinked = LinearSVC(C=0.1, fit_intercept=False, dual=False).fit(X, two)
    with pytest.raises(InputError, match="family 'squared hinge' lacks third derivatives"):
        sp.glm.private_shape_leakage(kinked, X, two, sigma=1.0)

"""Objective perturbation: densities on a grid of parameters decide what it leaks."""

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import seepage as sp
from seepage.core.jacobian import simplex_basis
from seepage.errors import InputError

N, SIGMA, L2 = 8, 1.5, 0.3


def family_model(family):
    return sp.glm.GeneralizedLinearRegression(family=family, l2=L2)


LOSSES = {  # slope and curvature, written out again
    "gaussian": lambda m, y: (m - y, np.ones_like(m)),
    "bernoulli": lambda m, y: (
        1 / (1 + np.exp(-m)) - y,
        1 / (1 + np.exp(-m)) / (1 + np.exp(m)),
    ),
    "poisson": lambda m, y: (np.exp(m) - y, np.exp(m)),
    "gamma": lambda m, y: (1 - y * np.exp(-m), y * np.exp(-m)),
}


def drawn(family, d):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((N, d))
    X[0] = 2.0
    margins = X @ np.full(d, 0.4)
    y = {
        "gaussian": margins + rng.standard_normal(N),
        "bernoulli": (rng.random(N) < 0.5).astype(float),
        "poisson": rng.poisson(np.exp(margins)).astype(float),
        "gamma": rng.gamma(2.0, np.exp(margins) / 2),
    }[family]
    return X, y


class Grid:
    """The density of the release at all parameters of a grid."""

    def __init__(self, family, d, centre):
        points = 4001 if d == 1 else 401
        axis = np.linspace(-5.0, 5.0, points)
        self.cell = (axis[1] - axis[0]) ** d
        self.theta = np.stack(np.meshgrid(*[axis] * d), axis=-1).reshape(-1, d) + centre
        self.family = family

    def log_density(self, X, y, ridge=L2 * N):
        slope, curvature = LOSSES[self.family](self.theta @ X.T, y)
        gradient = slope @ X + ridge * self.theta
        H = np.einsum("tn,ni,nj->tij", curvature, X, X) + ridge * np.eye(X.shape[1])
        _, determinant = np.linalg.slogdet(H)
        constant = X.shape[1] * np.log(SIGMA * np.sqrt(2 * np.pi))
        return determinant - np.sum(gradient**2, axis=1) / (2 * SIGMA**2) - constant


@pytest.mark.parametrize("d", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", LOSSES)
def test_leakage_and_membership_by_quadrature(family, d):
    X, y = drawn(family, d)
    model = family_model(family).fit(X, y)
    grid = Grid(family, d, np.asarray(model.coef_).reshape(-1))
    p = np.exp(grid.log_density(X, y))
    assert p.sum() * grid.cell == pytest.approx(1.0, abs=2e-3)  # the determinant belongs to it
    released = sp.glm.ObjectivePerturbation(model, X, y, sp.Gaussian(SIGMA), draws=20_000)
    information, right = released.information(), np.asarray(released.membership())
    records, labels_only = np.asarray(released.records()), np.asarray(released.labels())
    for i in range(3):
        scores = []
        for k in range(d + 1):
            ends = []
            for h in (1e-4, -1e-4):
                changed, labels = X.copy(), y.copy()
                if k < d:
                    changed[i, k] += h
                else:
                    labels[i] += h
                ends.append(grid.log_density(changed, labels))
            scores.append((ends[0] - ends[1]) / 2e-4)
        scores = np.stack(scores)
        true = (scores * p) @ scores.T * grid.cell
        assert np.linalg.norm(information[i] - true) < 0.06 * np.linalg.norm(true)
        eta = np.sqrt(np.linalg.eigvalsh(true)[-1])
        assert records[i] == pytest.approx(eta, rel=0.03)
        assert labels_only[i] == pytest.approx(np.sqrt(true[d, d]), rel=0.04)
        without = np.exp(grid.log_density(np.delete(X, i, 0), np.delete(y, i)))
        accuracy = 0.5 + np.sum(np.abs(p - without)) * grid.cell / 4
        assert accuracy - 1e-3 <= right[i] <= accuracy + 0.02


def test_the_determinant_tells_by_itself():
    """With endless noise only the determinant is left, and it still leaks."""
    X, y = drawn("gaussian", 2)
    model = family_model("gaussian").fit(X, y)
    loud = sp.glm.ObjectivePerturbation(model, X, y, sp.Gaussian(1e4), draws=500)
    H = X.T @ X + L2 * N * np.eye(2)
    ends = np.linalg.norm(np.linalg.solve(H, X[0])) * 2
    assert np.asarray(loud.records())[0] > ends


@pytest.mark.parametrize("delta", [1e-2, 0.2])
def test_privacy_holds_on_the_grid(delta):
    X, y = drawn("bernoulli", 2)
    X /= np.linalg.norm(X, axis=1).max()
    model = family_model("bernoulli").fit(X, y)
    released = sp.glm.ObjectivePerturbation(model, X, y, sp.Gaussian(SIGMA), draws=100)
    epsilon = released.epsilon(delta, lipschitz=1.0, curvature=0.25)
    grid = Grid("bernoulli", 2, 0.0)
    p = np.exp(grid.log_density(X, y))
    for i in range(N):
        q = np.exp(grid.log_density(np.delete(X, i, 0), np.delete(y, i)))
        for one, other in ((p, q), (q, p)):
            above = np.sum(np.maximum(one - np.exp(epsilon) * other, 0)) * grid.cell
            assert above <= delta
    assert released.epsilon(0.1, 1.0, 0.25) < released.epsilon(0.01, 1.0, 0.25)


def test_privacy_is_not_stated_far_too_large_either():
    """One record that counts, d = 1: the true ε by quadrature, where δ is small."""
    sigma, ridge, delta = 0.3, 0.3, 1e-6
    X, y = np.array([[1.0], [0.0]]), np.array([1.0, 0.0])
    model = sp.glm.LogisticRegression(l2=ridge / 2).fit(X, y)
    released = sp.glm.ObjectivePerturbation(model, X, y, sp.Gaussian(sigma))
    epsilon = released.epsilon(delta, lipschitz=1.0, curvature=0.25)
    theta = np.linspace(-60.0, 60.0, 600_001)
    slope, curvature = LOSSES["bernoulli"](theta, 1.0)
    with_it = (ridge + curvature) * np.exp(-((ridge * theta + slope) ** 2) / (2 * sigma**2))
    without = ridge * np.exp(-((ridge * theta) ** 2) / (2 * sigma**2))
    scale = (theta[1] - theta[0]) / (sigma * np.sqrt(2 * np.pi))

    def above(bound):
        pairs = ((with_it, without), (without, with_it))
        return max(np.sum(np.maximum(a - np.exp(bound) * b, 0)) * scale for a, b in pairs)

    assert above(epsilon) <= delta
    assert above(0.88 * epsilon) > delta
    assert released.epsilon(delta, 1.0, 0.5) - epsilon == pytest.approx(np.log(0.8 / 0.55))


def test_draws_are_minimisers_with_a_linear_term():
    X, y = drawn("bernoulli", 2)
    model = sp.glm.LogisticRegression(l2=L2, fit_intercept=True).fit(X, y)
    released = sp.glm.ObjectivePerturbation(model, X, y, sp.Gaussian(0.2), draws=100)
    theta = released.draw(seed=5)
    b = sp.Gaussian(0.2).draw((1, 3), 5)[0]
    x = np.hstack([X, np.ones((N, 1))])
    slope, _ = LOSSES["bernoulli"](x @ theta, y)
    np.testing.assert_allclose(slope @ x + [L2 * N, L2 * N, 0] * theta + b, 0, atol=1e-8)
    assert released.records().kind == "estimate"
    assert "standard error" in " ".join(released.records().assumptions)


def test_what_has_no_such_number_is_refused():
    X, y = drawn("bernoulli", 2)
    model = family_model("bernoulli").fit(X, y)
    with pytest.raises(InputError, match="one standard deviation"):
        sp.glm.ObjectivePerturbation(model, X, y, sp.Gaussian([1.0, 2.0]))
    with pytest.raises(InputError, match="one standard deviation"):
        sp.glm.ObjectivePerturbation(model, X, y, sp.Laplace(1.0))
    bare = sp.glm.LinearRegression().fit(*drawn("gaussian", 2))
    with pytest.raises(InputError, match="L2 penalty"):
        sp.glm.ObjectivePerturbation(bare, *drawn("gaussian", 2), sp.Gaussian(1.0))
    scaled = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-10)).fit(X, y)
    with pytest.raises(InputError, match="does not support pipelines"):
        sp.glm.ObjectivePerturbation(scaled, X, y, sp.Gaussian(1.0))
    released = sp.glm.ObjectivePerturbation(model, X, y, sp.Gaussian(1.0))
    with pytest.raises(InputError, match=r"lipschitz=0\.1 is not a valid bound"):
        released.epsilon(1e-3, lipschitz=0.1, curvature=100.0)
    with pytest.raises(InputError, match=r"curvature=0\.01 is not a valid bound"):
        released.epsilon(1e-3, lipschitz=100.0, curvature=0.01)
    with pytest.raises(InputError, match="between 0 and 1"):
        released.epsilon(0.0, lipschitz=100.0, curvature=100.0)
    counts = drawn("poisson", 2)
    unbounded = family_model("poisson").fit(*counts)
    with pytest.raises(InputError, match="family with bounded derivatives"):
        sp.glm.ObjectivePerturbation(unbounded, *counts, sp.Gaussian(1.0)).epsilon(0.1, 1e6, 1e6)
    held = sp.glm.LogisticRegression(l2=L2, fit_intercept=True).fit(X, y)
    with pytest.raises(InputError, match="penalty on every parameter"):
        sp.glm.ObjectivePerturbation(held, X, y, sp.Gaussian(1.0)).epsilon(0.1, 100.0, 100.0)


# Three classes -----------------------------------------------------------------------------------

BASIS = np.array([[1, 1], [-1, 1], [0, -2]]) / np.sqrt(
    [2, 6]
)  # orthonormal, orthogonal to (1, 1, 1)


def three_classes():
    rng = np.random.default_rng(4)
    X = rng.standard_normal((N, 1))
    X[0] = 2.0
    return X, np.array([0, 1, 2, 0, 1, 2, 2, 0])


class ClassGrid:
    """The density of one column's coefficients of three classes, in the plane where they differ."""

    def __init__(self, sigma=SIGMA, half_width=4.0):
        axis = np.linspace(-half_width, half_width, 161)
        self.sigma, self.cell = sigma, (axis[1] - axis[0]) ** 2
        self.theta = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)

    def density(self, X, targets, ridge):
        """Return it for labels that are any three numbers."""
        gradient = ridge * self.theta
        H = np.tile(ridge * np.eye(2), (len(self.theta), 1, 1))
        for x, target in zip(X[:, 0], targets, strict=True):
            powers = np.exp(x * self.theta @ BASIS.T)
            powers /= powers.sum(axis=1, keepdims=True)
            gradient = gradient + x * (powers - target) @ BASIS
            bent = np.einsum("tk,ki,kj->tij", powers, BASIS, BASIS)
            mean = powers @ BASIS
            H += x**2 * (bent - mean[:, :, None] * mean[:, None, :])
        length = np.sum(gradient**2, axis=1)
        normal = np.exp(-length / (2 * self.sigma**2)) / (2 * np.pi * self.sigma**2)
        return (H[:, 0, 0] * H[:, 1, 1] - H[:, 0, 1] ** 2) * normal


def test_three_classes_by_quadrature():
    X, y = three_classes()
    model, ridge = sp.glm.SoftmaxRegression(l2=L2).fit(X, y), L2 * N
    grid, targets = ClassGrid(), np.eye(3)[y]
    p = grid.density(X, targets, ridge)
    assert p.sum() * grid.cell == pytest.approx(1.0, abs=2e-3)
    released = sp.glm.ObjectivePerturbation(model, X, y, sp.Gaussian(SIGMA), draws=6_000)
    information, right = released.information(), np.asarray(released.membership())
    records, labels = np.asarray(released.records()), np.asarray(released.labels())
    for i in range(3):
        scores = []
        for direction in ([1, 0, 0, 0], *np.hstack([np.zeros((2, 1)), BASIS.T])):
            ends = []
            for h in (1e-4, -1e-4):
                moved, wished = X.copy(), targets.copy()
                moved[i] += h * direction[0]
                wished[i] += h * np.asarray(direction[1:])
                ends.append(np.log(grid.density(moved, wished, ridge)))
            scores.append((ends[0] - ends[1]) / 2e-4)
        scores = np.stack(scores)
        true = (scores * p) @ scores.T * grid.cell
        eigenvalues = np.linalg.eigvalsh(information[i])
        np.testing.assert_allclose(eigenvalues, np.linalg.eigvalsh(true), rtol=0.12)
        assert records[i] == pytest.approx(np.sqrt(np.linalg.eigvalsh(true)[-1]), rel=0.05)
        of_label = np.sqrt(np.linalg.eigvalsh(true[1:, 1:])[-1])
        assert labels[i] == pytest.approx(of_label, rel=0.05)
        without = grid.density(np.delete(X, i, 0), np.delete(targets, i, 0), ridge)
        accuracy = 0.5 + np.sum(np.abs(p - without)) * grid.cell / 4
        assert accuracy - 1e-3 <= right[i] <= accuracy + 0.02


@pytest.mark.parametrize("delta", [1e-2, 0.2])
def test_privacy_of_three_classes_holds_on_the_grid(delta):
    X, y = three_classes()
    X /= np.abs(X).max()
    model, targets = sp.glm.SoftmaxRegression(l2=L2).fit(X, y), np.eye(3)[y]
    released = sp.glm.ObjectivePerturbation(model, X, y, sp.Gaussian(SIGMA), draws=100)
    epsilon = released.epsilon(delta, lipschitz=2**0.5, curvature=0.5)
    grid = ClassGrid()
    p = grid.density(X, targets, L2 * N)
    for i in range(N):
        q = grid.density(np.delete(X, i, 0), np.delete(targets, i, 0), L2 * N)
        for one, other in ((p, q), (q, p)):
            assert np.sum(np.maximum(one - np.exp(epsilon) * other, 0)) * grid.cell <= delta
    for name, bounds in {"lipschitz": (1.4, 0.5), "curvature": (1.5, 0.49)}.items():
        with pytest.raises(InputError, match=f"{name}=.* is not a valid bound"):
            released.epsilon(delta, *bounds)


def test_draws_of_three_classes_are_minimisers():
    X, y = three_classes()
    X = np.hstack([X, X**2])
    model = sp.glm.SoftmaxRegression(l2=L2, fit_intercept=True).fit(X, y)
    released = sp.glm.ObjectivePerturbation(model, X, y, sp.Gaussian(0.2), draws=100)
    theta = released.draw(seed=5)
    assert theta.shape == (3, 3)
    np.testing.assert_allclose(theta.sum(axis=0), 0, atol=1e-9)
    b = sp.Gaussian(0.2).draw((1, 3, 2), 5)[0]
    x, weights = np.hstack([X, np.ones((N, 1))]), np.array([L2 * N, L2 * N, 0.0])

    def objective(flat):
        inner = flat.reshape(3, 2)
        margins = x @ inner @ model_basis.T
        loss = np.sum(np.logaddexp.reduce(margins, axis=1) - margins[np.arange(N), y])
        return loss + np.sum(weights[:, None] * inner**2) / 2 + np.sum(b * inner)

    model_basis = simplex_basis(3)
    best = minimize(objective, np.zeros(6), method="BFGS", tol=1e-10).x.reshape(3, 2)
    np.testing.assert_allclose(model_basis @ best.T, theta, atol=1e-5)

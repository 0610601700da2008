"""Formulas of Hannun et al. 2021, Guo et al. 2022 and Mueller et al. 2022, written as printed.

Each is a loop over records, from the paper's own symbols, beside the call that computes it.
Algorithm 1 of Guo et al. is in ``tests/nn/accounting/test_algorithm1.py``.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.linalg import inv, norm
from scipy.optimize import minimize

import seepage as sp
from seepage.nn.sampling.amplification import paper_epsilon, theorem4_factor

N, D, L2, SIGMA = 24, 3, 0.05, 0.3


def s(a: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-a))


def table(kind: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(45)
    X = rng.standard_normal((N, D))
    margins = X @ np.array([1.0, -0.5, 0.3]) + 0.7 * rng.standard_normal(N)
    return X, margins if kind == "linear" else (margins > 0).astype(float)


KINDS = {"linear": sp.glm.LinearRegression, "logistic": sp.glm.LogisticRegression}
kinds = pytest.mark.parametrize("kind", KINDS)


def loss(kind: str, w: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Equations 20 and 23."""
    if kind == "linear":
        return (X @ w - y) ** 2 / 2
    return -y * np.log(s(X @ w)) - (1 - y) * np.log(1 - s(X @ w))


def minimiser(kind: str, X: np.ndarray, y: np.ndarray, omega: np.ndarray) -> np.ndarray:
    """Return equation 13, or line 4 of algorithm 1, for weights ω."""

    def objective(w: np.ndarray) -> float:
        return float(omega @ loss(kind, w, X, y) + N * L2 / 2 * w @ w)

    def slope(w: np.ndarray) -> np.ndarray:  # equations 21 and 24
        said = X @ w if kind == "linear" else s(X @ w)
        return X.T @ (omega * (said - y)) + N * L2 * w

    found = minimize(objective, np.zeros(D), jac=slope, method="BFGS", options={"gtol": 1e-12}).x
    for _ in range(3):  # Newton's steps, to the last digits
        found = found - inv(hessian(kind, found, X, omega)) @ slope(found)
    return found


def hessian(kind: str, w: np.ndarray, X: np.ndarray, omega: np.ndarray) -> np.ndarray:
    total = N * L2 * np.eye(D)
    for x, weight in zip(X, omega, strict=True):
        curvature = 1.0 if kind == "linear" else s(x @ w) * (1 - s(x @ w))  # equation 25
        total += weight * curvature * np.outer(x, x)
    return total


def jacobian(kind: str, w: np.ndarray, x: np.ndarray, y: float) -> np.ndarray:
    """Return ∇_{x,y} ∇_w ℓ, equations 19, 22, 26 and 27, (d, d + 1)."""
    if kind == "linear":
        by_x = np.outer(x, w) + (w @ x - y) * np.eye(D)
    else:
        by_x = s(w @ x) * (1 - s(w @ x)) * np.outer(x, w) + (s(w @ x) - y) * np.eye(D)
    return np.column_stack([by_x, -x])


def losses_of_information(
    kind: str, X: np.ndarray, y: np.ndarray, omega: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return w* and η of every record, equations 17, 18 and 29 (with the weighted Hessian)."""
    w = minimiser(kind, X, y, omega)
    H = hessian(kind, w, X, omega)
    each = [
        norm(-weight * inv(H) @ jacobian(kind, w, x, label), 2) / SIGMA
        for x, label, weight in zip(X, y, omega, strict=True)
    ]
    return w, np.array(each)


@kinds
def test_equations_17_to_27_are_the_leakage_of_records(kind: str) -> None:
    X, y = table(kind)
    w, eta = losses_of_information(kind, X, y, np.ones(N))
    model = KINDS[kind](l2=L2).fit(X, y)
    np.testing.assert_allclose(np.ravel(model.coef_), w, rtol=1e-8)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(SIGMA))
    np.testing.assert_allclose(np.asarray(leak.records(label=True)), eta, rtol=1e-7)


@kinds
def test_algorithm_1_of_hannun_et_al_is_reweight(kind: str) -> None:
    X, y = table(kind)
    omega = np.ones(N)
    for _ in range(5):
        _, eta = losses_of_information(kind, X, y, omega)
        omega = N * (omega / eta) / np.sum(omega / eta)  # line 7
    w, eta = losses_of_information(kind, X, y, omega)
    fair = sp.glm.reweight(KINDS[kind](l2=L2), X, y, rounds=5, tolerance=0.0)
    np.testing.assert_allclose(fair.weights, omega, rtol=1e-6)
    np.testing.assert_allclose(np.ravel(fair.model.coef_), w, rtol=1e-6)
    np.testing.assert_allclose(
        np.asarray(fair.leakage(sp.Gaussian(SIGMA)).records(label=True)), eta, rtol=1e-6
    )


@kinds
def test_composition_adds_the_information(kind: str) -> None:
    X, y = table(kind)
    _, eta = losses_of_information(kind, X, y, np.ones(N))
    leak = sp.leakage(KINDS[kind](l2=L2).fit(X, y), X, y, noise=sp.Gaussian(SIGMA))
    thrice = sp.compose(leak, leak, leak).records(label=True)
    np.testing.assert_allclose(np.asarray(thrice), (3 * eta**2) ** 0.5, rtol=1e-7)


def information() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(7)
    root = rng.standard_normal((D, D))
    return root @ root.T + np.eye(D), rng.standard_normal((D, D)), rng.standard_normal(D)


def test_equations_8_and_10_and_theorem_2_are_the_biased_bound_in_j_psi() -> None:
    I_h, J_psi, bias = information()
    error = 0.0
    for i in range(D):
        variance = J_psi[i] @ inv(I_h) @ J_psi[i]  # equation 8
        error += (variance + bias[i] ** 2) / D  # equation 9 of record z, summed over its elements
    trace = np.trace(J_psi @ inv(I_h) @ J_psi.T) / D + bias @ bias / D  # theorem 2, J_μ for J_ψ
    found = float(sp.bounds.biased(I_h, mean_jacobian=J_psi, bias=bias))
    assert found == pytest.approx(error, rel=1e-12)
    assert found == pytest.approx(trace, rel=1e-12)
    assert found == pytest.approx(float(sp.bounds.biased(I_h, J_psi - np.eye(D), bias)), rel=1e-9)
    slope, off = 0.4, 1.5
    alone = slope**2 / I_h[0, 0] + off**2  # equation 10: one unknown, its rest known
    one = sp.bounds.biased(I_h[:1, :1], mean_jacobian=[[slope]], bias=off)
    assert float(one) == pytest.approx(alone, rel=1e-12)


def test_one_jacobian_is_wanted() -> None:
    for given in ({}, {"bias_jacobian": np.eye(2), "mean_jacobian": np.eye(2)}):
        with pytest.raises(sp.InputError, match="exactly one of bias_jacobian and mean_jacobian"):
            sp.bounds.biased(np.eye(2), **given)
    with pytest.raises(sp.InputError, match="mean_jacobian must have the shape"):
        sp.bounds.biased(np.eye(3), mean_jacobian=np.eye(2))


def test_theorem_1_is_from_renyi() -> None:
    diameters, gamma, bias, epsilon = [1.0, 2.0, 5.0], [0.3, 1.0, 0.8], [0.1, 0.0, -2.0], 1.3
    variance = off = 0.0
    for i in range(3):
        variance += gamma[i] ** 2 * diameters[i] ** 2 / (4 * 3)
        off += bias[i] ** 2 / 3
    wanted = variance / (math.exp(epsilon) - 1) + off
    found = sp.bounds.from_renyi(epsilon, diameters, slope=gamma, bias=bias)
    assert float(found) == pytest.approx(wanted, rel=1e-12)


def test_line_4_of_algorithm_1_of_guo_et_al() -> None:
    sigma, delta, q = 1.5, 1e-6, 600 / 60_000
    epsilon = 1.115 * 2 * math.sqrt(2 * math.log(1.25 / delta)) / sigma
    assert paper_epsilon(sigma, delta) == epsilon
    assert theorem4_factor(q, epsilon) == q / (q + (1 - q) * math.exp(-epsilon))


def coded() -> tuple[np.ndarray, np.ndarray, sp.attacks.NominalAttribute]:
    X, y = table("linear")
    X[:, 0] = np.arange(N) % 2  # the attribute
    return X, y + X[:, 0], sp.attacks.NominalAttribute.from_table(X, [0], "allele")


def test_equation_30_is_the_white_box() -> None:
    X, y, attribute = coded()
    white = sp.attacks.WhiteBox(attribute, sp.glm.LinearRegression(l2=L2)).fit(X, y)
    releases = sp.attacks.draw_releases(white.model_, sp.Gaussian(0.02), 15, seed=0)
    guesses = white.predict(X, y, releases)
    for i in range(N):
        refits = []
        for level in (0.0, 1.0):
            changed = X.copy()
            changed[i, 0] = level
            refits.append(minimiser("linear", changed, y, np.ones(N)))
        for trial, released in enumerate(releases.parameters):
            assert guesses[trial, i] == np.argmin([norm(released - w) for w in refits])


def test_equation_31_is_the_black_box() -> None:
    X, y, attribute = coded()
    model = sp.glm.LinearRegression(l2=L2).fit(X, y)
    releases = sp.attacks.draw_releases(model, sp.Gaussian(0.1), 15, seed=0)
    guesses = sp.attacks.BlackBox(attribute).fit(X, y).predict(X, y, releases)
    p = [np.mean(X[:, 0] == level) for level in (0.0, 1.0)]
    for trial, released in enumerate(releases.parameters):
        squared = np.sum((X @ released - y) ** 2) / (N - D)  # s², the standard error's square
        for i in range(N):
            scores = []
            for level in (0.0, 1.0):
                x = X[i].copy()
                x[0] = level
                density = math.exp(-((released @ x - y[i]) ** 2) / (2 * squared))
                scores.append(p[int(level)] * density)
            assert guesses[trial, i] == np.argmax(scores)


def test_equations_6_to_8_of_mueller_et_al_are_plis_and_the_information_beside_it() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    net = net.double()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 2
    sigma = 1.7
    parameters = dict(net.named_parameters())

    def gradient(z: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        def of(p: dict) -> torch.Tensor:
            out = torch.func.functional_call(net, p, (z[None],))
            return torch.nn.functional.cross_entropy(out, label[None])

        return torch.cat([part.flatten() for part in torch.func.grad(of)(parameters).values()])

    found = sp.nn.plis(net, "cross_entropy", x, y, noise_multiplier=sigma, compare="exact")
    beside = found.compare()
    for i in range(len(x)):
        z = x[i].clone().requires_grad_()
        loss_of_privacy = gradient(z, y[i]).square().sum() / sigma**2  # equation 4
        (susceptibility,) = torch.autograd.grad(loss_of_privacy, z)  # equation 6
        torch.testing.assert_close(found.values[i], susceptibility, rtol=1e-9, atol=1e-12)
        J = torch.func.jacrev(gradient)(x[i], y[i])
        expanded = 2 / sigma**2 * gradient(x[i], y[i]) @ J  # equation 7
        torch.testing.assert_close(found.values[i], expanded, rtol=1e-9, atol=1e-12)
        eta = torch.linalg.matrix_norm(J.T @ J / sigma**2, 2).sqrt().detach()  # equation 8
        assert float(beside.fil[i]) == pytest.approx(float(eta), rel=1e-6)

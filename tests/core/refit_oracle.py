"""Refits the naive way: write the objective out, and take Newton's steps with full Hessians."""

from __future__ import annotations

import numpy as np


def _softmax(M: np.ndarray) -> np.ndarray:
    P = np.exp(M - M.max(axis=1, keepdims=True))
    return P / P.sum(axis=1, keepdims=True)


def _derivatives(family: str, M: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return slopes (n, K), curvatures (n, K, K) and the sum of losses for unit weights, (n,)."""
    if family == "categorical":
        P = _softmax(M)
        Y = np.eye(M.shape[1])[y.astype(int)]
        top = M.max(axis=1)
        loss = top + np.log(np.exp(M - top[:, None]).sum(axis=1)) - np.sum(M * Y, axis=1)
        return (
            P - Y,
            np.einsum("nk,kl->nkl", P, np.eye(M.shape[1])) - P[:, :, None] * P[:, None],
            loss,
        )
    m = M[:, 0]
    if family == "gaussian":
        r, a, loss = m - y, np.ones_like(m), (m - y) ** 2 / 2
    elif family == "bernoulli":
        s = 1 / (1 + np.exp(-m))
        r, a, loss = s - y, s * (1 - s), np.logaddexp(0, m) - y * m
    else:
        r, a, loss = np.exp(m) - y, np.exp(m), np.exp(m) - y * m
    return r[:, None], a[:, None, None], loss


def refit(
    family: str,
    X: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray,
    ridge: float,
    intercept: bool,
    classes: int = 1,
) -> np.ndarray:
    """Return the minimiser of ``Σ ω ℓ + (ridge/2)‖w‖²``, flat, the class as the fast index."""
    D = np.hstack([X, np.ones((len(X), 1))]) if intercept else X
    n, P = D.shape
    products = (D[:, :, None] * D[:, None]).reshape(n, -1)
    penalty = np.repeat(np.where(np.arange(P) < X.shape[1], ridge, 0.0), classes)
    theta = np.zeros(P * classes)
    # Softmax does not say what to add to all classes: nothing is, by a penalty on just that.
    gauge = np.kron(np.eye(P), np.ones((classes, classes)) / classes) if classes > 1 else 0.0
    for _ in range(200):
        r, a, loss = _derivatives(family, D @ theta.reshape(P, classes), y)
        gradient = (D.T @ (weight[:, None] * r)).reshape(-1) + penalty * theta
        H = products.T @ (weight[:, None] * a.reshape(n, -1))
        H = H.reshape(P, P, classes, classes).swapaxes(1, 2).reshape(P * classes, -1)
        step = np.linalg.solve(
            H + np.diag(penalty) + gauge, gradient + gauge @ theta if classes > 1 else gradient
        )
        value = weight @ loss + penalty @ theta**2 / 2
        length = 1.0
        while True:
            tried = theta - length * step
            now = weight @ _derivatives(family, D @ tried.reshape(P, classes), y)[2]
            if now + penalty @ tried**2 / 2 <= value + 1e-12 * abs(value) or length < 1e-8:
                break
            length /= 2
        theta = tried
        if np.linalg.norm(step) <= 1e-14 * (1 + np.linalg.norm(theta)):
            break
    return theta

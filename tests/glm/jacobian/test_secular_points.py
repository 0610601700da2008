"""Points that replace poles of the secular equation, against the poles and dense eigenvalues."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seepage.glm.jacobian import secular


def clusters(rng: np.random.Generator, sizes: tuple[int, ...]) -> np.ndarray:
    """Return poles as of numbers and of ever rarer categories: groups a factor of ten apart."""
    groups = [10.0**k * (1 + 0.1 * rng.random(size)) for k, size in enumerate(sizes)]
    return np.sort(np.concatenate(groups))


def problem(delta: np.ndarray, rng: np.random.Generator, rho: float) -> tuple[np.ndarray, ...]:
    m, k = 100, len(delta)
    return (
        rho * rng.gamma(2, 1, m),
        delta,
        rng.standard_normal((m, k)),
        rng.standard_normal(k),
        rng.gamma(1, 1, m),
        rng.standard_normal(m),
    )


def dense(rho, delta, p, q, c, s) -> np.ndarray:
    M = rho[:, None, None] * np.diag(delta) + c[:, None, None] * p[:, :, None] * p[:, None, :]
    M = M + s[:, None, None] * (p[:, :, None] * q + q[:, None] * p[:, None, :])
    return np.linalg.eigvalsh(M)


def check(*matrices: np.ndarray) -> None:
    found, values = secular.largest_eigenvalue(*matrices), dense(*matrices)
    # A dense eigenvalue is itself only accurate relative to the norm of its matrix.
    scale = np.abs(values).max(axis=1) + 1e-300
    np.testing.assert_allclose(found / scale, values[:, -1] / scale, rtol=0, atol=1e-12)


@pytest.mark.parametrize("above", [1.0, 1.001, 1.3, 20.0])
@pytest.mark.parametrize("sizes", [(30,), (30, 1), (20, 12, 3), (1, 40), (40, 1, 1, 1)])
def test_sums_over_points_are_those_over_poles(sizes: tuple[int, ...], above: float) -> None:
    rng = np.random.default_rng(0)
    delta = clusters(rng, sizes)
    least = above * delta[-2]
    rho, _, p, q, c, s = problem(delta, rng, 1.0)
    batch = secular._poles(delta, q, least).batch(p, rho, c, s)
    # As in the solver, τ is the distance from the largest pole; nearer to the second pole than
    # this, its own difference rounds.
    for tau in least - delta[-1] + delta[-2] * np.array([0.01, 1.0, 1e4]):
        poles = tau + (delta[-1] - delta[:-1])
        for mine, products in ((batch.p_p, p * p), (batch.p_q, p * q), (batch.q_q, q * q)):
            each = products[..., :-1] / poles
            size = np.sum(np.abs(each), axis=-1)
            off = np.abs(np.sum(mine / (tau + batch.beneath), axis=-1) - np.sum(each, axis=-1))
            assert np.all(off <= 1e-14 * size)


def test_only_poles_far_below_are_replaced() -> None:
    def count(delta: np.ndarray, least: float) -> int:
        return len(secular._poles(delta, delta, least).beneath)

    even, grouped = np.linspace(1, 2, 40), clusters(np.random.default_rng(0), (30, 1, 1))
    assert count(even, even[-2]) == 39  # next to the poles every one counts
    assert count(even, 1e4) < 6
    assert count(grouped, grouped[-2]) < 20
    assert count(np.ones(40), 1.0) == 1  # equal poles are one


@pytest.mark.parametrize("rho", [1e-4, 1e-2, 1.0, 100.0])
@pytest.mark.parametrize("sizes", [(30,), (30, 1), (20, 12, 3), (1, 40), (40, 1, 1, 1), (2, 1)])
def test_eigenvalues_near_and_far(sizes: tuple[int, ...], rho: float) -> None:
    rng = np.random.default_rng(1)
    check(*problem(clusters(rng, sizes), rng, rho))


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.integers(2, 60), st.floats(1e-9, 1e4), st.integers(1, 8))
def test_any_eigenvalues(seed: int, columns: int, rho: float, power: int) -> None:
    rng = np.random.default_rng(seed)
    delta = np.sort(rng.gamma(1, 1, columns) ** power)
    if seed % 3 == 0:
        delta[: columns // 2] = 0.0
    rho_, _, p, q, c, s = problem(delta, rng, rho)
    check(rho_, delta, p * 10.0 ** rng.integers(-6, 3, (len(p), 1)), q, c, s)


@pytest.mark.parametrize("empty", ["rho", "delta", "q", "s", "p", "c and s"])
def test_parts_that_vanish(empty: str) -> None:
    rng = np.random.default_rng(2)
    rho, delta, p, q, c, s = problem(clusters(rng, (20, 2)), rng, 1e-3)
    rho = 0 * rho if empty == "rho" else rho
    delta = 0 * delta if empty == "delta" else delta
    q = 0 * q if empty == "q" else q
    s = 0 * s if empty in ("s", "c and s") else s
    c = 0 * c if empty == "c and s" else c
    p = 0 * p if empty == "p" else p
    check(rho, delta, p, q, c, s)


def test_in_single_precision() -> None:
    rng = np.random.default_rng(3)
    matrices = [part.astype(np.float32) for part in problem(clusters(rng, (20, 5, 1)), rng, 1e-2)]
    found = secular.largest_eigenvalue(*matrices)
    values = dense(*(part.astype(float) for part in matrices))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, values[:, -1], rtol=2e-5, atol=2e-5 * np.abs(values).max())

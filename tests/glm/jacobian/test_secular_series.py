"""The power series far above the poles against dense eigenvalues."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seepage.glm.jacobian import secular


def solve_far_above(rho, delta, p, q, c, s):
    return secular.solve_far_above(
        rho, delta, secular.moments(secular.chebyshev(delta), p, q), c, s
    )


def dense(rho, delta, p, q, c, s):
    every = []
    for k in range(len(rho)):
        M = rho[k] * np.diag(delta) + c[k] * np.outer(p[k], p[k])
        M += s[k] * (np.outer(p[k], q) + np.outer(q, p[k]))
        every.append(np.linalg.eigvalsh(M)[-1])
    return np.array(every)


def problem(seed: int, columns: int, rho: float):
    rng = np.random.default_rng(seed)
    m = 200
    return (
        rho * rng.gamma(2, 1, m),
        np.sort(rng.gamma(1, 1, columns)),
        rng.standard_normal((m, columns)),
        rng.standard_normal(columns),
        rng.gamma(1, 1, m),
        rng.standard_normal(m),
    )


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 40), st.floats(1e-9, 1.0))
def test_what_is_called_exact_is(seed: int, columns: int, rho: float) -> None:
    given_matrices = problem(seed, columns, rho)
    found, exact = solve_far_above(*given_matrices)
    true = dense(*given_matrices)
    # An eigenvalue is known to the rounding of its matrix, whose negative part may be far larger.
    _, _, p, q, c, s = given_matrices
    size = c * (p * p).sum(1) + 2 * np.abs(s) * np.linalg.norm(p, axis=1) * np.linalg.norm(q)
    assert np.all(np.abs(found - true)[exact] <= 1e-13 * size[exact])


def test_most_records_of_standardised_columns_are_settled() -> None:
    _, exact = solve_far_above(*problem(0, 50, 1e-2))
    assert exact.mean() > 0.95


def test_near_the_poles_nothing_is_called_exact() -> None:
    rho, delta, p, q, c, s = problem(1, 10, 1e3)
    assert not solve_far_above(rho, delta, 1e-3 * p, q, c, 0 * s)[1].any()


@pytest.mark.parametrize("empty", ["rho", "delta", "q", "s", "p", "c and s"])
def test_parts_that_vanish(empty: str) -> None:
    rho, delta, p, q, c, s = problem(2, 6, 1e-3)
    rho = 0 * rho if empty == "rho" else rho
    delta = 0 * delta if empty == "delta" else delta
    q = 0 * q if empty == "q" else q
    s = 0 * s if empty in ("s", "c and s") else s
    c = 0 * c if empty == "c and s" else c
    p = 0 * p if empty == "p" else p
    found, exact = solve_far_above(rho, delta, p, q, c, s)
    true = dense(rho, delta, p, q, c, s)
    assert np.all(np.isfinite(found))
    assert np.all(np.abs(found - true)[exact] <= 1e-12 * true[exact] + 1e-300)
    if empty in ("p", "c and s"):  # no rank-two part: the answer is the pole itself
        assert not exact.any()
    else:
        assert exact.any()

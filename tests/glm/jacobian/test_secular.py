"""The secular equation against dense eigenvalues, over random and over nasty matrices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seepage.glm.jacobian import secular
from seepage.glm.jacobian.secular import largest_eigenvalue


def _dense(rho, delta, p, q, c, s):
    matrices = rho[:, None, None] * np.diag(delta)
    matrices = matrices + c[:, None, None] * p[:, :, None] * p[:, None, :]
    return matrices + s[:, None, None] * (p[:, :, None] * q + q[:, None] * p[:, None, :])


def _check(rho, delta, p, q, c, s):
    values = np.linalg.eigvalsh(_dense(rho, delta, p, q, c, s))
    got = largest_eigenvalue(rho, delta, p, q, c, s)
    # A dense eigenvalue is itself only accurate relative to the norm of its matrix.
    scale = np.abs(values).max(axis=1) + 1e-300
    np.testing.assert_allclose(got / scale, values[:, -1] / scale, rtol=0, atol=1e-12)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 14))
def test_any_diagonal_plus_rank_two(seed, k):
    rng = np.random.default_rng(seed)
    m = 8
    delta = np.sort(rng.exponential(size=k) ** rng.integers(1, 7))
    if seed % 3 == 0:
        delta[:] = delta[-1]  # all eigenvalues repeated
    if seed % 5 == 0:
        delta[: k // 2] = 0.0
    if seed % 7 == 0 and k > 1:
        delta[-2] = delta[-1] * (1 - 1e-14)  # two nearly equal poles
        delta.sort()
    p = rng.standard_normal((m, k)) * 10.0 ** rng.integers(-8, 4, size=(m, 1))
    q = rng.standard_normal(k) * 10.0 ** rng.integers(-5, 4)
    p[:, rng.random(k) < 0.3] = 0.0
    if seed % 4 == 0:
        q[-1] = 0.0
    if seed % 11 == 0:
        p[:2] = q  # p parallel to q
    r = rng.standard_normal(m) * 10.0 ** rng.integers(-6, 3, size=m)
    a = rng.random(m)
    r[0], a[1] = 0.0, 0.0
    _check(r * r, delta, p, q, a * a * rng.random() + rng.integers(2), a * r)


@pytest.mark.parametrize("shift", [-2.0, -0.5, 0.5])
def test_the_largest_root_may_lie_below_the_pole(shift):
    """A strongly negative direction at the pole pushes the largest eigenvalue under it."""
    delta = np.array([0.1, 0.5, 1.0])
    p = np.array([[1e-3, 1e-3, 1.0]])
    q = np.array([1e-3, 1e-3, shift])
    rho, c, s = np.array([1.0]), np.array([0.2]), np.array([0.6])
    truth = np.linalg.eigvalsh(_dense(rho, delta, p, q, c, s))[0, -1]
    assert (truth < 1.0) == (shift < 0)
    assert largest_eigenvalue(rho, delta, p, q, c, s)[0] == pytest.approx(truth, rel=1e-13)


def test_newton_takes_few_steps(monkeypatch):
    """The speed rests on this: about three evaluations for rows like those of a real table."""
    rng = np.random.default_rng(0)
    calls = []
    original = secular._look
    monkeypatch.setattr(secular, "_look", lambda b, t: calls.append(len(t)) or original(b, t))
    m, k = 500, 40
    delta = np.sort(rng.exponential(size=k) ** 4)
    p, q = rng.standard_normal((m, k)), rng.standard_normal(k)
    r, a = rng.standard_normal(m), rng.random(m)
    largest_eigenvalue(r * r, delta, p, q, a * a + 1, a * r)
    assert sum(calls) / m < 5

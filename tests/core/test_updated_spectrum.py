"""The largest eigenvalue after an update of low rank, against that of the matrix written out."""

import numpy as np
import pytest

from seepage.core.jacobian import (
    DENSE_LIMIT,
    largest_eigenvalues,
)

SIZE = DENSE_LIMIT + 12


def largest_after_update(delta, U, S):
    return largest_eigenvalues(lambda v: v * delta + v @ U @ S @ U.T, np.zeros((1, SIZE)))[0]


def _update(seed, rank, size=SIZE):
    rng = np.random.default_rng(seed)
    S = rng.standard_normal((rank, rank))
    return rng, rng.standard_normal((size, rank)), S + S.T


CASES = {
    "positive update": lambda rng, U, S: (rng.uniform(0, 1, SIZE), U, S @ S),
    "indefinite update": lambda rng, U, S: (rng.uniform(0, 1, SIZE), U, S),
    "negative update": lambda rng, U, S: (rng.uniform(0, 1, SIZE), U, -S @ S),
    "tiny update": lambda rng, U, S: (rng.uniform(0, 1, SIZE), 1e-9 * U, S @ S),
    "huge update": lambda rng, U, S: (rng.uniform(0, 1, SIZE), 1e9 * U, S @ S),
    "all poles equal": lambda rng, U, S: (np.full(SIZE, 0.3), U, S),
    "no diagonal": lambda rng, U, S: (np.zeros(SIZE), U, S @ S),
    "nothing at all": lambda rng, U, S: (np.zeros(SIZE), 0 * U, S),
    "dependent directions": lambda rng, U, S: (rng.uniform(0, 1, SIZE), U[:, [0] * len(S)], S @ S),
    "blind to the top pole": lambda rng, U, S: (
        np.linspace(0, 1, SIZE),
        U * (np.arange(SIZE) < SIZE - 1)[:, None],
        S @ S,
    ),
    "small numbers": lambda rng, U, S: (1e-14 * rng.uniform(0, 1, SIZE), 1e-7 * U, S),
    "singular update": lambda rng, U, S: (rng.uniform(0, 1, SIZE), U, np.diag([1.0] + [0.0] * 4)),
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("case", CASES)
def test_equals_the_matrix_written_out(case, seed):
    delta, U, S = CASES[case](*_update(seed, 5))
    whole = np.diag(delta) + U @ S @ U.T
    expected = max(np.linalg.eigvalsh(whole)[-1], 0.0)
    scale = max(expected, np.abs(whole).max())
    assert abs(largest_after_update(delta, U, S) - expected) <= 1e-12 * scale


def test_a_rank_that_is_not_low():
    rng, U, S = _update(0, 30)
    delta = rng.uniform(0, 1, SIZE)
    expected = np.linalg.eigvalsh(np.diag(delta) + U @ S @ U.T)[-1]
    assert largest_after_update(delta, U, S) == pytest.approx(expected, rel=1e-12)

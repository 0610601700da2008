"""Largest eigenvalues from products alone, dense and by Lanczos, against a full decomposition."""

import numpy as np
import pytest

from seepage.core.jacobian import (
    DENSE_LIMIT,
    dense_largest,
    inverse_gram_diagonal,
    largest_eigenvalues,
)


def _matrices(kind: str, size: int) -> np.ndarray:
    rng = np.random.default_rng(size)
    factors = rng.standard_normal((5, size, size)) / np.sqrt(size)
    matrices = factors @ factors.transpose(0, 2, 1)
    if kind == "rank one":
        matrices = factors[:, :, :1] @ factors[:, :, :1].transpose(0, 2, 1)
    elif kind == "zero":
        matrices = np.zeros_like(matrices)
    elif kind == "identity":
        matrices = np.broadcast_to(np.eye(size), matrices.shape).copy()
    elif kind == "nearly repeated":
        matrices = np.broadcast_to(np.eye(size), matrices.shape).copy()
        matrices[:, 0, 0] += 1e-7
    elif kind == "mixed":
        matrices[0] = 0.0
        matrices[1] = factors[1, :, :1] @ factors[1, :, :1].T
        matrices[2] *= 1e-12
    return matrices


@pytest.mark.parametrize("size", [1, 2, 7, DENSE_LIMIT, DENSE_LIMIT + 1, 120])
@pytest.mark.parametrize(
    "kind", ["full", "rank one", "zero", "identity", "nearly repeated", "mixed"]
)
def test_largest_eigenvalue_agrees_with_a_full_decomposition(kind, size):
    matrices = _matrices(kind, size)
    got = largest_eigenvalues(lambda v: (matrices @ v[:, :, None])[..., 0], matrices[:, 0, :])
    truth = np.linalg.eigvalsh(matrices)[:, -1]
    np.testing.assert_allclose(got, truth, rtol=1e-11, atol=1e-25)
    np.testing.assert_allclose(dense_largest(matrices), truth, rtol=1e-12, atol=1e-25)


def test_inverse_diagonal_and_infinity_where_there_is_no_inverse():
    factors = np.linalg.cholesky(_matrices("full", 4) + 0.1 * np.eye(4)).transpose(0, 2, 1)
    factors[2, 1:] = 0.0  # rank one
    got, errors = inverse_gram_diagonal(factors, np.full(len(factors), 1e-15))
    assert np.all(np.isinf(got[2]))
    for k in (0, 1, 3, 4):
        gram = factors[k].T @ factors[k]
        np.testing.assert_allclose(got[k], np.diag(np.linalg.inv(gram)), rtol=1e-10)
        assert np.all(errors[k] < 1e-10)

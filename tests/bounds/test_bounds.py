"""Other bounds than the per-row ones: blocks, unknown remainders, bias and prior knowledge."""

import numpy as np
import pytest

import seepage as sp
from seepage.bounds import BoundedPrior, GaussianPrior, biased, cramer_rao, van_trees

RNG = np.random.default_rng(4)
X = RNG.standard_normal((30, 4))
Y = (X[:, 0] + RNG.standard_normal(30) > 0).astype(int)
MODEL = sp.glm.LogisticRegression(l2=0.01, fit_intercept=True).fit(X, Y)
LEAK = sp.leakage(MODEL, X, Y, noise=sp.Gaussian(0.1))


def test_a_block_of_one_row_is_that_rows_bound():
    rows = sp.bounds.cramer_rao_rows(LEAK)
    assert float(cramer_rao(LEAK, 3)) == pytest.approx(float(rows[3]), rel=1e-9)


def test_a_block_of_one_cell_is_that_cells_bound():
    cells = LEAK.cells().mse_bound()
    assert float(cramer_rao(LEAK, 3, columns=[1])) == pytest.approx(cells[3, 1], rel=1e-10)


def test_information_is_what_the_views_measure():
    matrix = LEAK.information(5)
    assert matrix.shape == (5, 5)
    assert np.sqrt(np.linalg.eigvalsh(matrix)[-1]) == pytest.approx(LEAK.rows()[5], rel=1e-12)
    assert np.sqrt(matrix[2, 2]) == pytest.approx(LEAK.cells()[5, 2], rel=1e-12)
    assert np.sqrt(matrix[4, 4]) == pytest.approx(LEAK.labels()[5], rel=1e-12)


def test_an_unknown_remainder_never_helps():
    """Hannun et al. 2021, equation 12, and infinity where the rest explains everything."""
    assert np.isinf(float(cramer_rao(LEAK, 3, rest="unknown")))
    # One record, five released numbers: a cell is still identifiable with its row unknown.
    model = sp.glm.LinearRegression(l2=0.5, fit_intercept=True).fit(X[:1], [1.5])
    alone = sp.leakage(model, X[:1], [1.5], noise=sp.Gaussian(0.1))
    with_rest = float(cramer_rao(alone, 0, columns=[0], rest="known"))
    without = float(cramer_rao(alone, 0, columns=[0], rest="unknown"))
    assert without >= with_rest


def test_unknown_remainder_is_the_inverse_of_the_full_information():
    """Two rows of one column, five releases' worth of numbers: everything can be inverted."""
    table, y = np.array([[1.0], [2.0]]), np.array([0.3, 1.9])
    parts = [
        sp.leakage(
            sp.glm.LinearRegression(l2=l2, fit_intercept=True).fit(table, y),
            table,
            y,
            noise=sp.Gaussian(0.2),
        )
        for l2 in (0.1, 0.7, 2.0)
    ]
    leak = sp.compose(*parts)
    dense = np.concatenate([_dense_jacobian(part) for part in parts])
    full = np.linalg.inv(dense.T @ dense)
    got = float(cramer_rao(leak, 1, columns=[0], rest="unknown"))
    assert got == pytest.approx(full[2, 2], rel=1e-6)
    assert got >= float(cramer_rao(leak, 1, columns=[0]))


def _dense_jacobian(leak):
    """Columns: x of row 0, y of row 0, x of row 1, y of row 1."""
    jacobian = leak.jacobian
    unknowns, _ = leak.unknowns(None, True)
    rows = np.arange(2)
    return np.stack([jacobian.adjoint(e, unknowns, rows).ravel() for e in np.eye(jacobian.size)])


def test_a_bias_trades_variance_for_error():
    matrix = np.diag([4.0, 1.0])
    unbiased = float(biased(matrix, np.zeros((2, 2))))
    assert unbiased == pytest.approx((1 / 4 + 1) / 2)
    # Half-way shrinkage towards zero of the record (2, 0).
    shrunk = float(biased(matrix, -0.5 * np.eye(2), [-1.0, 0.0]))
    assert shrunk == pytest.approx((0.25 * 1.25 + 1.0) / 2)
    # Ignoring the release costs the bias alone, even where nothing is known.
    assert float(biased(np.zeros((2, 2)), -np.eye(2), [3.0, 0.0])) == pytest.approx(4.5)
    assert np.isinf(float(biased(np.diag([1.0, 0.0]), np.zeros((2, 2)))))


def test_van_trees_is_attained_where_everything_is_gaussian():
    """A Gaussian prior and a linear Gaussian release: the posterior mean attains the bound."""
    matrix, std = np.array([[3.0, 1.0], [1.0, 2.0]]), np.array([0.5, 2.0])
    bound = float(van_trees(matrix, GaussianPrior(std)))
    posterior = np.linalg.inv(matrix + np.diag(std**-2.0))
    assert bound == pytest.approx(np.trace(posterior) / 2, rel=1e-12)
    draws = np.stack([matrix * 0.5, matrix * 1.5])
    assert float(van_trees(draws, GaussianPrior(std))) == pytest.approx(bound, rel=1e-12)


def test_the_bounded_prior_has_the_information_of_the_cosine_squared():
    z = np.linspace(-1, 3, 400_001)
    density = 2 / 4 * np.cos(np.pi * (z - 1) / 4) ** 2
    slope = np.gradient(density, z)
    inside = density > 1e-12
    numeric = np.trapezoid(np.where(inside, slope**2 / np.where(inside, density, 1), 0), z)
    assert BoundedPrior(-1.0, 3.0).information(1)[0] == pytest.approx(numeric, rel=1e-4)
    # Without any release the bound is the inverse of that, below the prior's own variance.
    alone = float(van_trees(np.zeros((1, 1)), BoundedPrior(-1.0, 3.0)))
    assert alone < np.trapezoid(density * (z - 1) ** 2, z)


def test_every_bound_says_what_it_assumes():
    for bound in (
        sp.bounds.cramer_rao_rows(LEAK),
        sp.bounds.cramer_rao_cells(LEAK),
        cramer_rao(LEAK, 0),
        cramer_rao(LEAK, 0, rest="unknown"),
        biased(np.eye(2), np.zeros((2, 2))),
        van_trees(np.eye(2), GaussianPrior(1.0)),
        van_trees(np.eye(2), BoundedPrior(0.0, 1.0)),
    ):
        assert bound.kind == "bound"
        assert len(bound.assumptions) >= 3
        assert all(text.endswith(".") for text in bound.assumptions)

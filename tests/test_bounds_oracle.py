"""The exact Cramér–Rao bounds in closed form against dense inversion of the oracle's information.

The features of one row are unknown, its label is known: ``I = JᵀJ`` with ``J`` the row's block of
the dense Jacobian. The bounds are ``Tr(I⁻¹)/d`` for the row and ``(I⁻¹)_jj`` for its cells.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import seepage as sp
from cases import BY_NAME, SINGLE_OUTPUT, Case, audit
from oracle import Dense, dense, fil

RELATIVE = 1e-9
# J has few digits to spare where its columns are nearly dependent (a residual close to zero makes
# them so), and its inverse none; the tolerance grows from here on with the condition of J.
WELL_CONDITIONED = 1e5
SINGULAR = 1e12


def inverse_diagonal(full: Dense, i: int) -> tuple[np.ndarray, float]:
    """Return the diagonal of (JᵀJ)⁻¹ for the features of a row, and the condition number of J.

    ``J = QR`` spares squaring the condition; columns of length one spare the units of the data.
    """
    J = full.block([i])
    lengths = np.linalg.norm(J, axis=0)
    if np.any(lengths == 0):
        return np.full(full.d, np.inf), np.inf
    values = np.linalg.svd(J / lengths, compute_uv=False)
    condition = values[0] / values[-1] if values[-1] > 0 else np.inf
    if condition > SINGULAR:
        return np.full(full.d, np.inf), condition
    R = np.linalg.qr(J / lengths, mode="r")
    inverse = np.linalg.solve(R, np.eye(full.d))
    return (inverse**2).sum(axis=1) / lengths**2, condition


def by_name(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", SINGLE_OUTPUT, ids=by_name)
def test_exact_bounds_agree_with_dense_inversion(case: Case) -> None:
    leak, full = audit(case), dense(case)
    rows = np.asarray(sp.bounds.cramer_rao_rows(leak))
    cells = np.asarray(sp.bounds.cramer_rao_cells(leak))
    assert rows.shape == (case.n,)
    assert cells.shape == (case.n, case.d)
    for i in range(case.n):
        want, condition = inverse_diagonal(full, i)
        if condition > SINGULAR:
            # Met exactly but for rounding: the bound is out of all proportion, if not infinite.
            assert rows[i] == np.inf or rows[i] * fil(full.block([i])) ** 2 > 1e15
        else:
            close = RELATIVE * max(1.0, condition / WELL_CONDITIONED)
            np.testing.assert_allclose(cells[i], want, rtol=close, atol=0, err_msg=f"row {i}")
            np.testing.assert_allclose(rows[i], want.mean(), rtol=close, err_msg=f"row {i}")


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("some-residuals-zero", [0, 1]),
        ("all-labels-zero", range(24)),
        ("all-counts-one", range(24)),
        ("broad-zero-labels", range(32)),
        ("zero-weights-linear", range(1, 28, 4)),
        ("zero-weights-logistic", range(1, 28, 4)),
    ],
)
def test_no_bound_exists_where_the_residual_is_zero(name: str, rows: Sequence[int]) -> None:
    """A row met exactly, or without weight, can change in some way that leaves the model alone."""
    leak = audit(BY_NAME[name])
    assert np.all(np.asarray(sp.bounds.cramer_rao_rows(leak))[rows] == np.inf)


@pytest.mark.parametrize("case", SINGLE_OUTPUT, ids=by_name)
def test_exact_bounds_are_above_the_looser_ones(case: Case) -> None:
    leak = audit(case)
    exact = np.asarray(sp.bounds.cramer_rao_rows(leak))
    for measure in ("fil", "dfil"):
        looser = np.asarray(leak.rows(label=False, measure=measure).mse_bound())
        assert np.all(looser <= exact * (1 + RELATIVE))
    alone = np.asarray(leak.cells().mse_bound())
    assert np.all(alone <= np.asarray(sp.bounds.cramer_rao_cells(leak)) * (1 + RELATIVE))

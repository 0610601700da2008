"""The exact Cramér–Rao bounds in closed form against dense inversion of the oracle's information.

``I = JᵀJ`` with ``J`` the block of the dense Jacobian for the unknowns of one row: its features,
unless said otherwise. The bounds are ``Tr(I⁻¹)/d`` for the row and ``(I⁻¹)_jj`` for its cells.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import seepage as sp
from cases import BY_NAME, CASES, SINGLE_OUTPUT, Case, audit
from oracle import dense, fil
from sampled import sampled

RELATIVE = 1e-9
# J has few digits to spare where its columns are nearly dependent (a residual close to zero makes
# them so), and its inverse none; the tolerance grows from here on with the condition of J.
WELL_CONDITIONED = 1e5
SINGULAR = 1e12


def inverse_diagonal(J: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the diagonal of (JᵀJ)⁻¹, and the condition number of J.

    ``J = QR`` spares squaring the condition; columns of length one spare the units of the data.
    """
    size = J.shape[1]
    lengths = np.linalg.norm(J, axis=0)
    if np.any(lengths == 0) or size > len(J):
        return np.full(size, np.inf), np.inf
    values = np.linalg.svd(J / lengths, compute_uv=False)
    condition = values[0] / values[-1] if values[-1] > 0 else np.inf
    if condition > SINGULAR:
        return np.full(size, np.inf), condition
    R = np.linalg.qr(J / lengths, mode="r")
    inverse = np.linalg.solve(R, np.eye(size))
    return (inverse**2).sum(axis=1) / lengths**2, condition


def by_name(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", sampled(SINGLE_OUTPUT, 12, 50), ids=by_name)
def test_exact_bounds_agree_with_dense_inversion(case: Case) -> None:
    leak, full = audit(case), dense(case)
    rows = np.asarray(sp.bounds.cramer_rao_rows(leak))
    cells = np.asarray(sp.bounds.cramer_rao_cells(leak))
    assert rows.shape == (case.n,)
    assert cells.shape == (case.n, case.d)
    for i in range(case.n):
        want, condition = inverse_diagonal(full.block([i]))
        if condition > SINGULAR:
            # Met exactly but for rounding: the bound is out of all proportion, if not infinite.
            assert rows[i] == np.inf or rows[i] * fil(full.block([i])) ** 2 > 1e15
        else:
            close = RELATIVE * max(1.0, condition / WELL_CONDITIONED)
            np.testing.assert_allclose(cells[i], want, rtol=close, atol=0, err_msg=f"row {i}")
            np.testing.assert_allclose(rows[i], want.mean(), rtol=close, err_msg=f"row {i}")


@pytest.mark.parametrize("case", sampled(CASES, 20, 60), ids=by_name)
def test_bounds_on_columns_and_labels_agree_with_dense_inversion(case: Case) -> None:
    """Other unknowns, and other models, by way of each row's information matrix written out.

    Its condition is the square of J's, which costs as many digits.
    """
    leak, full = audit(case), dense(case)
    some = sorted({0, case.d - 1})
    for columns, label in ((some, False), (some, True), (None, True)):
        rows = np.asarray(sp.bounds.cramer_rao_rows(leak, columns=columns, label=label))
        for i in range(case.n):
            want, condition = inverse_diagonal(full.block([i], columns, label))
            if condition < 1e6:
                close = max(RELATIVE, 1e-14 * condition**2)
                np.testing.assert_allclose(
                    rows[i], want.mean(), rtol=close, err_msg=f"row {i}, {columns}, label {label}"
                )
            elif columns is None and case.d == len(full.theta):
                assert rows[i] == np.inf, f"row {i} has more unknowns than the release has numbers"


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

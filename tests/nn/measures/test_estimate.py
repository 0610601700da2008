"""Numbers with standard errors: intervals, order, tables, for rows and for cells."""

from dataclasses import replace

import numpy as np
import pytest

from seepage.errors import InputError
from seepage.nn.measures.estimate import Estimate

ROWS = Estimate(
    np.array([0.5, 2.0, 0.0]),
    "rows",
    "dfil",
    "estimate",
    about="the input",
    standard_errors=np.array([0.1, 0.2, 0.0]),
    conditions=("The moon is full.",),
)
CELLS = Estimate(
    np.array([[1.0, 3.0], [4.0, 0.5]]),
    "cells",
    "fil",
    "estimate",
    names=("a", "b"),
    standard_errors=np.array([[0.1, 0.3], [0.4, 0.05]]),
)


def test_intervals():
    low, high = ROWS.interval(0.6826894921370859)
    assert low == pytest.approx([0.4, 1.8, 0.0])
    assert high == pytest.approx([0.6, 2.2, 0.0])
    assert ROWS.interval(0.999999)[0].min() == 0.0  # a leakage is not negative
    with pytest.raises(InputError, match="level"):
        ROWS.interval(1.0)


def test_intervals_of_few_probes_are_wider():
    """Student's quantiles, from his table."""
    for degrees, reach in ((1, 12.706), (3, 3.182), (9, 2.262), (1e9, 1.960)):
        low, high = replace(ROWS, degrees=degrees).interval()
        assert (high - np.asarray(ROWS))[1] == pytest.approx(reach * 0.2, rel=1e-3)
        assert low[2] == high[2] == 0.0  # no error, no width
    assert ROWS.interval()[1][1] == pytest.approx(2.0 + 1.95996 * 0.2)


def test_the_worst_of_a_bound():
    """Of a bound on leakage it is the largest, of a bound on an error the smallest."""
    above = replace(CELLS, kind="bound")
    assert above.top(1).labels().tolist() == [1]
    assert "worst 4 at 1" in repr(above)
    assert "worst 0.0625 at 1" in repr(above.mse_bound())


def test_errors_follow_their_numbers():
    worst = ROWS.top(2)
    assert worst.labels().tolist() == [1, 0]
    assert worst.standard_errors.tolist() == [0.2, 0.1]
    assert CELLS.top(1).standard_errors.tolist() == [[0.4, 0.05]]
    assert CELLS.mse_bound().top(1).labels().tolist() == [1]


def test_bounds():
    bound = ROWS.mse_bound()
    assert bound.values.tolist() == pytest.approx([4.0, 0.25, np.inf])
    assert bound.standard_errors[:2] == pytest.approx([4.0 * 0.4, 0.25 * 0.2])
    assert np.isnan(bound.standard_errors[2])
    assert bound.assumptions[-1] == "The moon is full."
    std = bound.std_bound()
    assert std.values[:2] == pytest.approx([2.0, 0.5])
    assert std.standard_errors[:2] == pytest.approx([2.0 * 0.2, 0.5 * 0.1])
    with pytest.raises(InputError, match="already a bound"):
        bound.mse_bound()


def test_tables():
    rows = ROWS.table("pandas")
    assert rows.columns.tolist() == ["row", "dfil", "standard_error"]
    cells = CELLS.table("pandas")
    assert cells.columns.tolist() == ["row", "a", "b", "a (error)", "b (error)"]
    assert cells["b (error)"].tolist() == [0.3, 0.05]
    one = Estimate(np.asarray(3.0), "dataset", "fil", "estimate", standard_errors=np.asarray(0.1))
    assert one.table("pandas")["standard_error"].tolist() == [0.1]


def test_words():
    assert "dFIL η̄ (estimate) about the input" in repr(ROWS)

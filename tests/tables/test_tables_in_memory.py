"""Tables and vectors in memory are read as they are, in whatever form they come."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from seepage.tables.source import distinct, first_not_finite, read_table


def test_truth_values_among_numbers_are_numbers():
    frame = pd.DataFrame({"smoker": [True, False, True], "age": [31.5, 40.0, 52.0]})
    np.testing.assert_array_equal(read_table(frame).values, [[1, 31.5], [0, 40], [1, 52]])


def test_finite_numbers_whose_sum_overflows_are_finite():
    large = np.full((4, 2), 1e308)
    with np.errstate(over="ignore"):
        assert first_not_finite(large) is None
        large[2, 1] = np.nan
        assert first_not_finite(large) == 2


@pytest.mark.parametrize(
    "values",
    [[3, 1, 3, 2], ["b", "a", "b", "c"], [2.5, 0.5, 2.5, 1.0]],
    ids=["int", "str", "float"],
)
def test_objects_are_told_apart_as_numpy_does(values):
    known, places = distinct(np.asarray(values, dtype=object))
    truth, met = np.unique(values, return_inverse=True)
    assert known.tolist() == truth.tolist()
    assert places.tolist() == met.tolist()

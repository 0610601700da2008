"""Quantiles of numbers in chunks beside those of all numbers, whatever the numbers are."""

from functools import reduce
from operator import add

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra.numpy import arrays

import seepage.core.order_statistics as order_statistics
from seepage.core.order_statistics import bin_numbers, look_into, select

SHARES = (0, 0.1, 0.25, 0.5, 0.9, 0.99, 1)


def found(numbers, pieces):
    """Return the quantiles of every column, the number of passes and the most that one kept."""
    chunks = np.array_split(numbers, pieces)
    passes = []

    def look(intervals):
        columns = sorted({interval.column for interval in intervals})
        seen = reduce(add, (look_into(intervals, columns, c[:, columns]) for c in chunks))
        passes.append(sum(array.nbytes for array in seen.found))
        return seen

    bins = reduce(add, (bin_numbers(chunk) for chunk in chunks))
    ranks = [int(np.floor((len(numbers) - 1) * share)) for share in SHARES]
    wanted = [(column, rank) for column in range(numbers.shape[1]) for rank in ranks]
    values = np.reshape(select(bins, wanted, look), (numbers.shape[1], len(SHARES)))
    return values, len(passes), max(passes)


def same_as_sorted(numbers, pieces):
    values, passes, most = found(numbers, pieces)
    expected = np.quantile(numbers, SHARES, axis=0, method="lower").T
    np.testing.assert_array_equal(values, expected)
    return passes, most


def test_columns_of_every_kind():
    rng, n = np.random.default_rng(0), 100_000
    numbers = np.stack(
        [
            rng.lognormal(size=n),
            np.full(n, 0.3),
            np.concatenate(
                [np.zeros(n // 3), rng.random(n // 3), np.full(n - 2 * (n // 3), np.inf)]
            ),
            np.round(rng.random(n), 2),
            np.exp(rng.uniform(-700, 700, n)),
            1 + rng.integers(0, 1 << 20, n) * 2.0**-52,  # alike but for the last bits
            np.full(n, np.nan),
        ],
        axis=1,
    )
    passes, most = same_as_sorted(numbers, 17)
    assert passes <= 6
    assert most <= 8 * 512 * numbers.shape[1] * len(SHARES)
    assert same_as_sorted(numbers[:, :1], 5)[0] == 2
    assert same_as_sorted(numbers[:2000, :1], 5)[0] == 1


@given(
    numbers=arrays(
        np.float64,
        st.tuples(st.integers(1, 60), st.integers(1, 3)),
        elements=st.one_of(st.floats(min_value=0), st.sampled_from([0.0, 1.0, 5e-324, np.inf])),
    ),
    pieces=st.integers(1, 4),
    few=st.sampled_from([1, 3, 512]),
)
def test_any_numbers_in_any_pieces(numbers, pieces, few):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_statistics, "_FEW", few)
        same_as_sorted(numbers, min(pieces, len(numbers)))

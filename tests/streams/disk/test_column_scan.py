"""What a scan finds of a column does not depend on its pieces, and work keeps its order."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

from seepage.streams.disk.source import in_order
from seepage.tables.columns import MOST_LEVELS, ColumnSums, column_sums

numbers = st.one_of(
    st.none(),
    st.floats(-1e6, 1e6),
    st.sampled_from([0.0, -0.0, 1.0, 1e6 + 1e-3, float("nan")]),
)


def whole(column, cuts):
    """Return the sums of the pieces between the cuts, added up."""
    edges = sorted({0, len(column), *(c % (len(column) + 1) for c in cuts)})
    total = ColumnSums()
    for start, stop in pairwise(edges):
        total = total + column_sums(column.slice(start, stop - start))
    return total


@settings(deadline=None, max_examples=60)
@given(st.lists(numbers, min_size=1, max_size=60), st.lists(st.integers(0, 1000), max_size=5))
@example([0.0, -0.0], [])
@example([-0.0, 1.0, 0.0], [1, 2])
def test_numbers_in_any_pieces(values, cuts):
    found = whole(pa.array(values, pa.float64()), cuts)
    there = np.asarray([v for v in values if v is not None and v == v])
    assert (found.rows, found.missing) == (len(values), len(values) - len(there))
    if len(there) == 0:
        assert found.levels == {}
        return
    assert found.mean == pytest.approx(there.mean(), rel=1e-12, abs=1e-9)
    # Rounding of the values themselves is all that may show in their spread.
    assert found.spread == pytest.approx(there.std(), rel=1e-9, abs=1e-9)
    assert (found.least, found.most) == (there.min(), there.max())
    assert found.whole == bool(np.all(there == np.floor(there)))
    known, counts = np.unique(there, return_counts=True)
    assert found.levels == dict(zip(known.tolist(), counts.tolist(), strict=True))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(["a", "b", "ü", None]), min_size=1), st.lists(st.integers(0, 99)))
def test_text_in_any_pieces(values, cuts):
    for column in (
        pa.array(values, pa.string()),
        pa.array(values, pa.string()).dictionary_encode(),
    ):
        found = whole(column, cuts)
        texts = [v for v in values if v is not None]
        assert found.levels == {v: texts.count(v) for v in texts}
        assert found.missing == len(values) - len(texts)


def test_a_mean_far_from_zero_keeps_its_spread():
    values = 1e9 + np.random.default_rng(0).standard_normal(5000)
    found = whole(pa.array(values), range(0, 5000, 77))
    assert found.spread == pytest.approx(values.std(), rel=1e-9)


def test_levels_are_counted_up_to_a_limit():
    few = pa.array(np.arange(4 * MOST_LEVELS) % MOST_LEVELS)
    many = pa.array(np.arange(4 * MOST_LEVELS) % (MOST_LEVELS + 1))
    assert len(whole(few, [700, 1500]).levels) == MOST_LEVELS
    assert whole(many, [700, 1500]).levels is None


def test_answers_come_in_order_whoever_is_first():
    def work(k):
        time.sleep(0.02 if k % 3 == 0 else 0)
        return k

    assert list(in_order(iter(range(20)), work)) == list(range(20))


def test_few_pieces_are_held_at_a_time():
    held, most, lock = set(), [0], threading.Lock()

    def pieces():
        for k in range(50):
            with lock:
                held.add(k)
                most[0] = max(most[0], len(held))
            yield k

    for k in in_order(pieces(), lambda k: k):
        with lock:
            held.discard(k)
    assert most[0] <= 10


def test_an_error_ends_the_work_and_threads_are_given_back():
    before = [pool["num_threads"] for pool in threadpool_info()]

    def work(k):
        if k == 3:
            raise ValueError("three")
        return k

    with pytest.raises(ValueError, match="three"):
        list(in_order(iter(range(1000)), work))
    assert [pool["num_threads"] for pool in threadpool_info()] == before

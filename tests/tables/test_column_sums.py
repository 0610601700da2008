"""What a scan finds of a column does not depend on its pieces."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seepage.errors import InputError
from seepage.tables.columns import (
    MOST_LEVELS,
    ColumnEncoding,
    ColumnSums,
    Piece,
    column_sums,
    profile_column,
    scan,
)

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


def test_a_table_in_memory_is_one_piece():
    table = pa.chunked_array([["a", None], ["b", "a"]]), pa.chunked_array([[1.5, 2.0], [None, 4]])
    table = pa.table(list(table), names=["text", "number"])
    pieces = [Piece(batch, "", 0) for batch in table.to_batches()]
    assert len(pieces) == 2
    ours, theirs = scan([Piece(table, "", 0)]), scan(pieces)
    assert ours["text"] == theirs["text"]
    for name in ("mean", "spread", "rows", "missing", "levels", "least", "most", "whole"):
        assert getattr(ours["number"], name) == getattr(theirs["number"], name)


def test_beyond_the_limit_levels_are_counted_in_memory_only():
    column = pa.array([f"p{k}" for k in range(MOST_LEVELS + 5)])
    sums = column_sums(column)
    seen = profile_column(sums, column.type, column=column)
    assert (seen.distinct, seen.capped, seen.identifier) == (1005, False, "are all different")
    read = profile_column(sums, column.type)
    assert (read.distinct, read.capped, read.identifier) == (1001, True, "")


def test_values_whose_squares_overflow_are_refused_in_any_pieces():
    column = pa.array(1e300 * (np.arange(90) + 1.0))
    for cuts in ([], [7, 40]):
        with pytest.raises(ValueError, match=r"'huge' \(up to 9e\+301\) are too large"):
            ColumnEncoding.of_numbers("huge", whole(column, cuts))


def test_levels_of_decimals_and_dictionaries_are_found_again():
    decimals = pa.array([1, 2, 1], pa.decimal128(5, 2))
    texts = pa.array(["x", "y", "x"]).dictionary_encode()
    for column in (decimals, texts):
        coding = ColumnEncoding.of_category("c", column.type, column_sums(column))
        out = np.zeros((2, 3))
        batch = pa.RecordBatch.from_arrays([column], names=["c"])
        coding.write(Piece(batch, "", 0), out, scale=False, drop_first=False)
        assert out.tolist() == [[1, 0, 1], [0, 1, 0]]


def test_a_level_that_was_not_there_is_refused():
    seen = pa.array(["x", "y", "x"])
    coding = ColumnEncoding.of_category("c", seen.type, column_sums(seen))
    batch = pa.RecordBatch.from_arrays([pa.array(["x", "z"])], names=["c"])
    with pytest.raises(InputError, match=r"'c' of a\.parquet contains a value that did not occur"):
        coding.write(Piece(batch, "a.parquet", 0), np.zeros((2, 2)), scale=False, drop_first=False)

"""Columns of tables as they came, labels of every kind, and records put together anew."""

import datetime as dt

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from seepage.errors import InputError
from seepage.tables.frames import as_labels, columns_as_they_are, put_together

DAYS = [dt.date(1970, 1, 1), dt.date(1970, 1, 11), None]
COLUMNS = {
    "age": [41.5, None, 60.0],
    "town": ["north", None, "south"],
    "smoker": [True, False, True],
    "children": [1, None, 3],
    "seen": DAYS,
}
EXPECTED = {
    "age": [41.5, np.nan, 60.0],
    "town": ["north", None, "south"],
    "smoker": [1.0, 0.0, 1.0],
    "children": [1.0, np.nan, 3.0],
    "seen": [0.0, 10.0, np.nan],
}


def pandas():
    typed = {"children": pd.array([1, None, 3], dtype="Int64"), "seen": pd.to_datetime(DAYS)}
    return pd.DataFrame(COLUMNS | typed, index=[7, 7, 9])


KINDS = {
    "pandas": pandas,
    "polars": lambda: pl.DataFrame(COLUMNS),
    "arrow": lambda: pa.table(COLUMNS),
}


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_numbers_or_text(kind):
    found = columns_as_they_are(KINDS[kind]())
    assert [name for name, _ in found] == list(EXPECTED)
    for name, values in found:
        if name == "town":
            assert values.tolist() == EXPECTED[name]
        else:
            np.testing.assert_array_equal(values, EXPECTED[name])


def test_objects_of_several_kinds_and_categories():
    frame = pd.DataFrame(
        {
            "mixed": pd.Series([1, "b", None], dtype=object),
            "numbers": pd.Series([1, 2.5, pd.NA], dtype=object),
            "grade": pd.Categorical(["u", "v", None]),
            "code": pd.Categorical([3, 3, 5]),
        }
    )
    found = dict(columns_as_they_are(frame))
    assert found["mixed"].tolist() == ["1", "b", None]
    np.testing.assert_array_equal(found["numbers"], [1, 2.5, np.nan])
    assert found["grade"].tolist() == ["u", "v", None]
    assert found["code"].tolist() == [3.0, 3.0, 5.0]
    # Some rows of a column of text may all be numbers, and are text all the same
    some = columns_as_they_are(frame[["mixed"]].iloc[:1], [True])
    assert some[0][1].tolist() == ["1"]
    array = np.array([["a", None], [2, 3.5]], dtype=object)
    assert columns_as_they_are(array)[0][1].tolist() == ["a", "2"]


@pytest.mark.parametrize("kind", [*KINDS, "array"])
def test_records_are_put_together_from_others(kind):
    rows = np.array([2, 0, 0, 1])
    other = np.array([0, 0, 2, 2])
    if kind == "array":
        X = np.arange(12.0).reshape(3, 4)
        made = put_together(X, rows, [rows, other, rows, other])
        for i in range(4):
            assert made[i].tolist() == [
                X[rows[i], 0],
                X[other[i], 1],
                X[rows[i], 2],
                X[other[i], 3],
            ]
        assert X[0].tolist() == [0, 1, 2, 3]  # the table itself is left alone
        return
    frame = KINDS[kind]()
    made = put_together(frame, rows, [rows, other, rows, other, rows])
    assert type(made) is type(frame)
    for j, (name, values) in enumerate(columns_as_they_are(made)):
        expected = [EXPECTED[name][(other if j in (1, 3) else rows)[i]] for i in range(4)]
        assert str(values.tolist()) == str(expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (pd.Series([1, 0, 1], dtype=object), [1, 0, 1]),
        (pd.Series(["a", "b", "a"], dtype="category"), ["a", "b", "a"]),
        (pd.Series([True, False, True], dtype="boolean"), [True, False, True]),
        (pd.DataFrame({"y": [0.5, 1.5, 2.5]}), [0.5, 1.5, 2.5]),
        (pl.Series(["a", "b", "a"]), ["a", "b", "a"]),
        (pa.array([True, False, True]), [True, False, True]),
        (pa.chunked_array([["a"], ["b", "a"]]), ["a", "b", "a"]),
        (np.array([[1], [0], [1]]), [1, 0, 1]),
        (np.array([1, "b", "b"], dtype=object), ["1", "b", "b"]),
        ([1, 2, 2], [1, 2, 2]),
    ],
)
def test_labels_of_every_kind(given, expected):
    found = as_labels(given)
    assert found.tolist() == expected
    assert found.dtype.kind in "biufU"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (pd.Series(["a", None, "a"]), "no label in row 1 .1 missing"),
        (pd.Series([1.0, 2.0, np.nan]), "no label in row 2"),
        (pd.Series([1, pd.NA, 2], dtype="Int64"), "no label in row 1"),
        (pd.DataFrame({"a": [1, 2], "b": [3, 4]}), "a table with 2 columns"),
        (np.zeros((3, 2)), r"the shape \(3, 2\)"),
    ],
)
def test_labels_that_are_none_are_refused(given, words):
    with pytest.raises(InputError, match=words):
        as_labels(given)

"""The result object: arrays, tables of the caller's library, bounds, and how it shows itself."""

from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import seepage as sp
from seepage.core.result import Result

RNG = np.random.default_rng(3)
X = RNG.standard_normal((12, 3))
Y = X @ [1.0, -1.0, 0.0] + RNG.standard_normal(12)
NAMES = ["a", "b<script>", "c"]


def leak_of(table):
    y = torch.tensor(Y) if isinstance(table, torch.Tensor) else Y
    model = sp.glm.LinearRegression().fit(table, y)
    return sp.leakage(model, table, y, noise=sp.Gaussian(0.5))


@pytest.fixture(scope="module")
def leak():
    return leak_of(pd.DataFrame(X, columns=NAMES, index=[f"p{k}" for k in range(12)]))


@pytest.mark.parametrize(
    ("table", "frame"),
    [
        (X, pa.Table),
        (torch.tensor(X), pa.Table),
        (pd.DataFrame(X, columns=NAMES), pd.DataFrame),
        (pl.DataFrame(X, schema=NAMES), pl.DataFrame),
        (pa.table(dict(zip(NAMES, X.T, strict=True))), pa.Table),
    ],
    ids=["numpy", "torch", "pandas", "polars", "pyarrow"],
)
def test_every_view_turns_into_a_table_of_the_callers_library(table, frame):
    leak = leak_of(table)
    views = [leak.rows(), leak.cells(), leak.columns(), leak.groups(Y > 0), leak.dataset()]
    for result in views:
        assert isinstance(result.table(), frame)
        assert isinstance(result.table("polars"), pl.DataFrame)
        assert isinstance(result.mse_bound().table(), frame)
    assert isinstance(leak.rows().values, torch.Tensor) == isinstance(table, torch.Tensor)


def test_rows_keep_the_callers_index(leak):
    table = leak.rows().table()
    assert list(table["row"]) == [f"p{k}" for k in range(12)]
    worst = leak.rows().top(3)
    numbers = np.asarray(leak.rows())
    assert list(worst.labels()) == [f"p{k}" for k in np.argsort(-numbers)[:3]]
    assert np.asarray(worst)[0] == numbers.max()
    assert leak.rows().mse_bound().top(1).labels()[0] == worst.labels()[0]


def test_it_is_an_array(leak):
    rows = leak.rows()
    assert len(rows) == 12
    assert rows.shape == (12,)
    assert list(rows) == list(np.asarray(rows))
    assert rows[2] == np.asarray(rows)[2]
    assert isinstance(rows > 1, np.ndarray)
    np.testing.assert_array_equal(rows * 2, np.asarray(rows) * 2)
    assert np.max(rows) == np.asarray(rows).max()
    assert float(leak.dataset()) == pytest.approx(np.asarray(leak.dataset()))
    with pytest.raises(TypeError, match="single number"):
        len(leak.dataset())


def test_bounds_are_what_they_say(leak):
    rows = leak.rows(measure="dfil")
    bound = rows.mse_bound()
    np.testing.assert_allclose(np.asarray(bound), np.asarray(rows) ** -2.0)
    np.testing.assert_allclose(np.asarray(rows.std_bound()) ** 2, np.asarray(bound))
    np.testing.assert_allclose(np.asarray(bound.std_bound()) ** 2, np.asarray(bound))
    assert (rows.kind, bound.kind) == ("exact", "bound")
    assert any("unbiased" in text for text in bound.assumptions)


def test_no_leakage_is_an_infinite_bound():
    table = np.array([[1.0], [2.0], [3.0]])
    model = sp.glm.LinearRegression().fit(table, np.zeros(3))
    leak = sp.leakage(model, table, np.zeros(3), noise=sp.Gaussian(1.0))
    assert np.all(np.isinf(np.asarray(leak.cells().mse_bound())))


def test_a_notebook_shows_a_histogram_where_something_leaks(leak):
    shown = leak._repr_html_()
    assert "12 records of 3 columns" in shown
    assert shown.count("<svg") == 1
    assert Result(np.array([0.0, np.inf, np.nan]), "rows", "fil").histogram("nothing") == ""
    assert Result(np.array([0.5, 0.5]), "rows", "fil").histogram("one bar").count("<rect") == 1


def test_the_repr_says_how_accurate_numbers_are(leak):
    rough = replace(leak.rows(), accuracy=np.full(12, 0.02))
    assert ", to 0.02)" in repr(rough)
    assert ", to" not in repr(replace(rough, accuracy=np.full(12, 1e-9)))


def test_the_repr_is_one_line_and_the_html_is_escaped(leak):
    for result in (leak.rows(), leak.cells(), leak.columns(), leak.dataset(), leak.groups(Y > 9)):
        for shown in (result, result.mse_bound()):
            assert "\n" not in repr(shown)
            assert "<script>" not in shown._repr_html_()
    assert "sensitive" in leak.rows()._repr_html_()
    assert "b&lt;script&gt;" in leak.cells()._repr_html_()
    assert "unbiased" in leak.rows().mse_bound()._repr_html_()
    assert repr(leak.groups(np.zeros(12))).startswith("<1 group:")
    assert "12 records of 3 columns" in repr(leak)


def test_attributes_count_as_one():
    one_hot = np.eye(3)[RNG.integers(3, size=40)]
    table = np.column_stack([RNG.standard_normal(40), one_hot])
    y = table @ [1.0, 2.0, -1.0, 0.5] + 0.1 * RNG.standard_normal(40)
    model = sp.glm.LinearRegression().fit(table, y)
    groups = {"kind": ["x1", "x2", "x3"]}
    leak = sp.leakage(model, table, y, noise=sp.Gaussian(1.0), attributes=groups)
    assert list(leak.columns().labels()) == ["x0", "kind"]
    free, bound = (np.asarray(leak.rows("kind", simplex=which)) for which in (False, True))
    np.testing.assert_allclose(free, np.asarray(leak.rows(["x1", "x2", "x3"])))
    assert np.all(bound <= free * (1 + 1e-12))
    assert np.all(np.asarray(leak.rows(simplex=True)) <= np.asarray(leak.rows()) * (1 + 1e-12))


def test_leakage_beyond_the_tables_type_is_kept_in_a_wider_one():
    model = sp.glm.LinearRegression().fit(X, Y)
    loud, quiet = (
        sp.leakage(model, X, Y, noise=sp.Gaussian(sigma), dtype="float32").dataset()
        for sigma in (1e-42, 1.0)
    )
    assert quiet.values.dtype == np.float32
    assert loud.values.dtype == np.float64
    assert float(loud) == pytest.approx(1e42 * float(quiet), rel=1e-4)


def test_very_many_groups_have_the_same_numbers(leak, monkeypatch):
    before = leak.groups(np.arange(12) % 3)
    monkeypatch.setattr("seepage.core.questions._MANY_GROUPS", 2)
    after = leak.groups(np.arange(12) % 3)
    np.testing.assert_array_equal(np.asarray(after), np.asarray(before))
    assert after.accuracy is None

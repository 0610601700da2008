"""Fits of tables read in chunks start from an excerpt: few passes, and the same minimiser."""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seepage as sp
from sampled import sampled
from seepage.errors import InputError
from seepage.glm.fitting import excerpt, newton
from seepage.streams.disk import source
from seepage.streams.disk.files import ParquetFiles

ROWS, COLUMNS, GROUP, FILES = 30_000, 4, 250, 3
NAMES = [f"x{j}" for j in range(COLUMNS)]
MODELS = {
    "logistic": sp.glm.LogisticRegression,
    "softmax": sp.glm.SoftmaxRegression,
    "poisson": sp.glm.PoissonRegression,
}
ORDERS = ("as drawn", "by label", "by label in every row group", "by time")


@pytest.fixture(autouse=True)
def small_excerpts(monkeypatch):
    """Chunks, and excerpts of half of the rows, as for a table larger than memory."""
    monkeypatch.setattr(source, "_CHUNK", 4000 * COLUMNS)
    monkeypatch.setattr(source, "_WIDE", 250)
    monkeypatch.setattr(excerpt, "CHUNK", ROWS // 16 * COLUMNS)


@pytest.fixture
def readings(monkeypatch):
    """Count the cells read from the files, as shares of the table."""
    cells = []
    read_groups = ParquetFiles.read_groups

    def counted(self, k, columns, size):
        for piece in read_groups(self, k, columns, size):
            cells.append(piece.batch.num_rows * len(columns))
            yield piece

    monkeypatch.setattr(ParquetFiles, "read_groups", counted)
    return lambda source: sum(cells) / (len(source) * len(source.coding.columns))


def people(kind, seed=0):
    """Return features, labels and weights."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(ROWS, COLUMNS)) * [1.0, 1.0, 2.0, 0.5]
    X[:, 3] = rng.random(ROWS) < 0.1  # a rare level
    margins = X @ np.array([0.8, -0.5, 0.3, 0.7]) - 0.5
    if kind == "poisson":
        y = rng.poisson(np.exp(0.5 * margins))
    elif kind == "softmax":
        y = 3 + (margins + rng.logistic(size=ROWS) > 0) + (X[:, 1] + rng.logistic(size=ROWS) > 2)
    else:
        y = (margins + rng.logistic(size=ROWS) > 0).astype(int)
    return X, y, rng.choice([0.0, 0.5, 1.0, 3.0], ROWS)


def ordered(order, X, y, weight):
    places = np.arange(ROWS)
    if order == "by label":
        places = np.argsort(y, kind="stable")
    elif order == "by time":
        places = np.argsort(X[:, 0])
    elif order == "by label in every row group":
        places = np.lexsort((y, places // GROUP))
    return X[places], y[places], weight[places]


def stored(folder, X, y, weight, group=GROUP):
    columns = dict(zip(NAMES, X.T, strict=True))
    table = pa.table({**columns, "y": y, "weight": weight})
    each = len(X) // FILES
    for k in range(FILES):
        part = table.slice(k * each, each)
        pq.write_table(part, folder / f"{k}.parquet", row_group_size=group)
    return folder


def fitted(kind, source, *labels, l2=1e-3):
    model = MODELS[kind](l2=l2, fit_intercept=True).fit(source, *labels)
    return np.append(model.coef_, model.intercept_)


@pytest.mark.parametrize(
    ("kind", "order", "weighted"),
    sampled(list(itertools.product(MODELS, ORDERS, [False, True])), 8, 24),
)
def test_a_fit_reads_the_table_at_most_four_times(tmp_path, readings, kind, order, weighted):
    X, y, weight = ordered(order, *people(kind))
    used = "weight" if weighted else None
    data = sp.parquet(stored(tmp_path, X, y, weight), target="y", columns=NAMES, weight=used)
    streamed = fitted(kind, data)
    assert readings(data) <= 4
    whole = fitted(kind, X, y, weight if weighted else None)
    np.testing.assert_allclose(streamed, whole, rtol=1e-12, atol=1e-13)


def test_columns_far_from_zero_take_no_further_reading(tmp_path, readings):
    X, y, weight = people("logistic")
    X += np.array([1e6, 170.0, 0.0, 0.0])
    X[100, 1] = 0.0  # so the second column is near zero, which the excerpt may not show
    data = sp.parquet(stored(tmp_path, X, y, weight), target="y", columns=NAMES)
    streamed = fitted("logistic", data)
    assert readings(data) <= 4
    np.testing.assert_allclose(streamed, fitted("logistic", X, y), rtol=1e-9)


@pytest.mark.parametrize("folder", ["plain", "partitioned"])
def test_half_of_the_files_and_shifted_columns(tmp_path, readings, folder):
    """A held-out part, and rows that can be read only from the first on."""
    X, y, weight = people("logistic")
    stored(tmp_path, X, y, weight)
    if folder == "partitioned":
        (tmp_path / "part=1").mkdir()
        for k in range(FILES):
            (tmp_path / f"{k}.parquet").rename(tmp_path / "part=1" / f"{k}.parquet")
    data = sp.parquet(tmp_path, target="y", columns=NAMES)
    held_out = np.arange(0, ROWS, 3)
    rest, _, _ = data.parted(held_out)
    kept = np.delete(np.arange(ROWS), held_out)
    whole = fitted("logistic", X[kept], y[kept])
    np.testing.assert_allclose(fitted("logistic", rest), whole, rtol=1e-12)
    places = [chunk.start for chunk in data.excerpt(1000)]
    assert places == sorted(places)
    assert bool(places) == (folder == "plain")
    for chunk in data.excerpt(1000):
        rows = slice(chunk.start, chunk.start + len(chunk))
        np.testing.assert_array_equal(chunk.X, X[rows])
        np.testing.assert_array_equal(chunk.y, y[rows])


def test_an_excerpt_is_the_same_each_time_and_from_everywhere(tmp_path):
    X, y, weight = people("logistic")
    data = sp.parquet(stored(tmp_path, X, y, weight), target="y", columns=NAMES, weight="weight")
    first, again = data.excerpt(3200), data.excerpt(3200)
    for one, other in zip(first, again, strict=True):
        assert one.start == other.start
        np.testing.assert_array_equal(one.X, other.X)
    rows = np.concatenate([np.arange(c.start, c.start + len(c)) for c in first])
    assert len(rows) == len(np.unique(rows)) == 3200
    assert set(rows * 32 // ROWS) == set(range(32))
    assert set(rows % GROUP * 4 // GROUP) == set(range(4))
    # All rows, if so many are wanted, but for some at the end of the shares
    every = data.excerpt(10 * ROWS)
    assert sum(map(len, every)) > ROWS - 64


@pytest.mark.parametrize("case", ["a class is missing", "no counts", "separable", "an outlier"])
def test_an_excerpt_that_misleads_is_given_up(tmp_path, monkeypatch, readings, case):
    """Whatever the excerpt says, the minimiser is that of all records."""
    kind = "poisson" if case in ("no counts", "an outlier") else "logistic"
    X, y, weight = people(kind)
    used = np.zeros(ROWS, dtype=bool)
    data = sp.parquet(stored(tmp_path, X, y, weight), target="y", columns=NAMES)
    for chunk in data.excerpt(ROWS // 2):
        used[chunk.start : chunk.start + len(chunk)] = True
    l2 = 1e-3
    if case == "a class is missing":
        y[used] = 1
    elif case == "no counts":
        y[used] = 0
    elif case == "separable":
        y[used], l2 = X[used, 0] > 0, 0.0
    else:  # at the minimiser of the excerpt, its mean overflows or is enormous
        X[np.flatnonzero(~used)[0]], l2 = [100.0, -100.0, 0.0, 0.0], 1e-6
    data = sp.parquet(stored(tmp_path, X, y, weight), target="y", columns=NAMES)
    starts = []
    minimise = newton.minimise
    monkeypatch.setattr(newton, "minimise", lambda *a: starts.append(a) or minimise(*a))
    streamed = fitted(kind, data, l2=l2)
    assert (len(starts) > 1) == (case == "an outlier")  # the fit of the excerpt, and another
    np.testing.assert_allclose(streamed, fitted(kind, X, y, l2=l2), rtol=1e-9)


@pytest.mark.parametrize("l2", [0.0, 1e-3])
def test_errors_are_those_of_the_pass_over_all_records(tmp_path, l2):
    X, y, weight = people("logistic")
    X[20_000, 1] = X[100, 2] = np.nan
    data = sp.parquet(stored(tmp_path, X, y, weight), target="y", columns=NAMES)
    with pytest.raises(InputError, match=r"'x2' .*row 100[^0-9]"):
        fitted("logistic", data, l2=l2)


def test_one_chunk_and_wide_tables_have_no_excerpt(tmp_path, monkeypatch):
    X, y, weight = people("logistic")
    data = sp.parquet(stored(tmp_path, X, y, weight), target="y", columns=NAMES)
    model = sp.glm.LogisticRegression(l2=1e-3)
    monkeypatch.setattr(excerpt, "CHUNK", 7 * COLUMNS)
    model.fit(data)
    steps = model.n_iter_
    monkeypatch.setattr(source, "_CHUNK", ROWS * COLUMNS)
    assert data.excerpt(ROWS // 2) == []
    assert model.fit(data).n_iter_ == steps > 3


def test_files_with_other_row_groups_than_before_are_fitted_from_zero(tmp_path):
    X, y, weight = people("logistic")
    data = sp.parquet(stored(tmp_path, X, y, weight), target="y", columns=NAMES)
    first = fitted("logistic", data)
    stored(tmp_path, X, y, weight, group=3 * GROUP)
    with pytest.raises(InputError, match="not a complete Parquet file"):
        data.excerpt(ROWS // 2)
    np.testing.assert_allclose(fitted("logistic", data), first, rtol=1e-12)

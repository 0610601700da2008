"""Leakage of Parquet data, read in chunks, against the same table in memory."""

from __future__ import annotations

import itertools
import threading
import time

import fsspec
import numpy as np
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from parquet_cases import FEATURES, MODELS, ROWS, features, labels, people, write_folder
from sklearn.linear_model import LogisticRegression as SklearnLogistic
from sklearn.linear_model import PoissonRegressor, Ridge

import seepage as sp
import seepage.streams.disk.source as reading
from sampled import sampled
from seepage import parquet
from seepage.tables.columns import Piece

KINDS = {
    "linear": sp.glm.LinearRegression,
    "logistic": sp.glm.LogisticRegression,
    "poisson": sp.glm.PoissonRegression,
    "softmax": sp.glm.SoftmaxRegression,
}
CLOSE = 1e-9


@pytest.fixture(scope="module")
def table():
    return people()


@pytest.fixture(scope="module")
def folder(table, tmp_path_factory):
    return write_folder(table, tmp_path_factory.mktemp("people"))


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Chunks of a few dozen rows, which end neither with row groups nor with files."""
    monkeypatch.setattr(reading, "_CHUNK", 500)
    monkeypatch.setattr(reading, "_WIDE", 1)


def close(ours, theirs, tolerance=CLOSE):
    ours, theirs = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=0)


def both(table, folder, kind, *, weighted=False, intercept=True, scale=True, l2=1e-3):
    """Return the leakage of one model, streamed and in memory."""
    name = MODELS[kind]
    data = parquet(
        folder,
        target=name,
        columns=FEATURES,
        weight="weight" if weighted else None,
        scale=scale,
        drop_first=intercept,
    )
    X, y = features(table, scale, intercept), labels(table, name)
    weights = labels(table, "weight") if weighted else None
    ours = KINDS[kind](l2=l2, fit_intercept=intercept).fit(data)
    theirs = KINDS[kind](l2=l2, fit_intercept=intercept).fit(X, y, sample_weight=weights)
    close(ours.coef_, theirs.coef_)
    noise = sp.Gaussian(0.1)
    declared = {"city": list(range(5, X.shape[1]))}
    return (
        sp.leakage(ours, data, noise=noise),
        sp.leakage(theirs, X, y, noise=noise, sample_weight=weights, attributes=declared),
    )


@pytest.mark.parametrize(
    ("weighted", "intercept"),
    sampled(list(itertools.product([False, True], repeat=2)), 0, [(True, True)]),
)
@pytest.mark.parametrize("kind", list(MODELS))
def test_every_view_is_the_one_in_memory(table, folder, kind, intercept, weighted):
    ours, theirs = both(table, folder, kind, weighted=weighted, intercept=intercept)
    close(ours.rows(), theirs.rows())
    close(ours.rows(measure="dfil"), theirs.rows(measure="dfil"))
    close(ours.rows(columns=["age", "city"], label=True), theirs.rows([0, "city"], label=True))
    close(ours.labels(), theirs.labels())
    close(ours.cells("age"), theirs.cells(0))
    close(ours.columns(), theirs.columns())
    close(ours.columns(measure="dfil"), theirs.columns(measure="dfil"))
    close(ours.dataset(), theirs.dataset())
    close(ours.dataset("dfil"), theirs.dataset("dfil"))
    region = labels(table, "region")
    close(ours.groups("region"), theirs.groups(region))
    close(ours.groups("region", measure="dfil"), theirs.groups(region, measure="dfil"))
    close(ours.groups("region", columns="city"), theirs.groups(region, columns="city"))
    assert ours.groups("region").index.tolist() == theirs.groups(region).index.tolist()
    # The bound divides by squared residuals: rounding of a residual near zero shows twice.
    close(sp.bounds.cramer_rao_rows(ours), sp.bounds.cramer_rao_rows(theirs), 1e-7)


@pytest.mark.slow
def test_unscaled_and_on_the_simplex(table, folder):
    ours, theirs = both(table, folder, "logistic", intercept=False, scale=False)
    assert ours.attributes.declared["city"] == (5, 6, 7, 8)
    close(ours.rows("city", simplex=True), theirs.rows("city", simplex=True))
    close(ours.columns(simplex=True), theirs.columns(simplex=True))
    close(ours.columns(measure="dfil", simplex=True), theirs.columns(measure="dfil", simplex=True))


def test_a_dropped_level_is_no_simplex(table, folder):
    ours, _ = both(table, folder, "linear")
    with pytest.raises(sp.InputError, match="'city' do not have the same sum"):
        ours.rows("city", simplex=True)


@pytest.mark.slow
def test_many_unknowns_go_by_secular_equations(tmp_path):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((400, 30))
    y = (X[:, 0] + rng.logistic(size=400) > 0).astype(float)
    columns = {f"x{j}": X[:, j] for j in range(30)}
    pq.write_table(reading.pa.table({**columns, "y": y}), tmp_path / "a.parquet", row_group_size=50)
    model = sp.glm.LogisticRegression(l2=1e-2).fit(X, y)
    ours = sp.leakage(model, tmp_path / "a.parquet", "y", noise=sp.Laplace(0.3))
    theirs = sp.leakage(model, X, y, noise=sp.Laplace(0.3))
    close(ours.rows(), theirs.rows())
    close(ours.rows(columns=list(range(20))), theirs.rows(columns=list(range(20))))
    close(
        sp.bounds.cramer_rao_rows(ours, list(range(20))),
        sp.bounds.cramer_rao_rows(theirs, range(20)),
        1e-7,
    )
    close(ours.columns(), theirs.columns())
    close(ours.dataset(), theirs.dataset())


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
def test_models_of_scikit_learn(table, folder, weighted):
    weight = "weight" if weighted else None
    weights = labels(table, "weight") if weighted else None
    X = features(table, True, True)
    models = {
        "amount": Ridge(3.0),
        "bought": SklearnLogistic(C=0.3, tol=1e-10, max_iter=1000),
        "visits": PoissonRegressor(alpha=0.02, tol=1e-10, max_iter=1000),
        "plan": SklearnLogistic(C=0.1, tol=1e-10, max_iter=1000),
    }
    for target, model in models.items():
        data = parquet(
            folder, target=target, columns=FEATURES, weight=weight, scale=True, drop_first=True
        )
        y = labels(table, target)
        model.fit(X, y, sample_weight=weights)
        ours = sp.leakage(model, data, noise=sp.Gaussian(1.0))
        theirs = sp.leakage(model, X, y, noise=sp.Gaussian(1.0), sample_weight=weights)
        close(ours.rows(), theirs.rows())
        close(ours.dataset(), theirs.dataset())


def test_what_may_be_opened(table, folder, tmp_path):
    X, y = features(table)[:, :4], labels(table, "amount")
    columns = FEATURES[:4]
    whole = sp.glm.LinearRegression(l2=0.1).fit(X, y).coef_
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    with memory.open("/people/all.parquet", "wb") as file:
        pq.write_table(table, file, row_group_size=50)
    parts = pads.dataset(table.append_column("part", table.column("plan")))
    pads.write_dataset(
        parts,
        tmp_path / "parts",
        format="parquet",
        partitioning=["part"],
        partitioning_flavor="hive",
    )
    files = [str(folder / f"{k}.parquet") for k in range(4)]
    filtered = pads.dataset(table).filter(pads.field("age") > 40)
    for opened in (
        folder,
        str(folder),
        files,
        pads.dataset(folder),
        pads.dataset(table),
        "memory://people/all.parquet",
        "memory://people",
    ):
        data = parquet(opened, target="amount", columns=columns)
        assert len(data) == ROWS
        close(sp.glm.LinearRegression(l2=0.1).fit(data).coef_, whole)
    kept = X[:, 0] > 40
    some = sp.glm.LinearRegression(l2=0.1).fit(X[kept], y[kept]).coef_
    data = parquet(filtered, target="amount", columns=columns)
    close(sp.glm.LinearRegression(l2=0.1).fit(data).coef_, some)
    hive = parquet(tmp_path / "parts", target="amount", columns=["age", "part"])
    assert hive.names == ("age", "part")
    assert len(hive) == ROWS
    given = sp.glm.LinearRegression(l2=0.1).fit(folder, "amount", sample_weight="weight")
    assert given.weighted_
    memory.rm("/people", recursive=True)


@pytest.mark.slow
def test_results_can_be_read_written_and_sorted(table, folder, tmp_path):
    ours, theirs = both(table, folder, "logistic")
    path = ours.write_rows(tmp_path / "out" / "rows.parquet")
    assert path.stat().st_mode & 0o077 == 0
    written = pq.read_table(path)
    assert written.column_names == ["row", "fil", "dfil", "cramer_rao"]
    assert written.column("row").to_pylist() == list(range(ROWS))
    close(written.column("fil"), theirs.rows())
    close(written.column("dfil"), theirs.rows(measure="dfil"))
    close(written.column("cramer_rao"), sp.bounds.cramer_rao_rows(theirs), 1e-7)
    cells = pq.read_table(ours.cells(["age", "height"]).write(tmp_path / "cells.parquet"))
    assert cells.column_names == ["row", "age", "height"]
    close(cells.column("age"), theirs.cells(0)[:, 0])
    close(ours.rows().top(5), theirs.rows().top(5))
    assert ours.rows().top(5).labels().tolist() == theirs.rows().top(5).labels().tolist()
    bound = ours.rows(measure="dfil").std_bound()
    close(bound, theirs.rows(measure="dfil").std_bound())
    close(bound.top(3), theirs.rows(measure="dfil").std_bound().top(3))
    assert sum(len(part) for part in ours.rows().chunks()) == len(ours.rows()) == ROWS
    assert sp.calibrate(ours, eta=0.5, grid=None).sigma == pytest.approx(
        sp.calibrate(theirs, eta=0.5, grid=None).sigma
    )
    assert "not computed yet" in repr(ours.rows())


def test_the_model_must_be_the_minimiser(table, folder):
    data = parquet(folder, target="bought", columns=["age", "height"])
    model = sp.glm.LogisticRegression(l2=1e-3).fit(data)
    model.coef_ = 1.5 * model.coef_
    with pytest.raises(sp.NotTheMinimiserError, match="do not minimise"):
        sp.leakage(model, data, noise=sp.Gaussian(1.0))
    weighted = parquet(folder, target="bought", columns=["age", "height"], weight="weight")
    with pytest.raises(
        sp.InputError, match="without sample weights; open the data with the same weight="
    ):
        sp.leakage(model, weighted, noise=sp.Gaussian(1.0))


def test_however_many_cores_there_are_few_chunks_are_in_memory(folder, monkeypatch):
    monkeypatch.setattr(reading, "usable_cores", lambda: 64)
    data, threads = parquet(folder, target=MODELS["logistic"], columns=FEATURES), set()
    begun, eight = itertools.count(), threading.Barrier(8)

    def work(chunk):
        threads.add(threading.get_ident())
        if next(begun) < 8:  # each in a thread of its own, however busy the machine is
            eight.wait(timeout=60)
        time.sleep(0.01)
        return len(chunk.y)

    sizes = list(data.each(work, ""))
    assert sum(sizes) == ROWS
    assert len(sizes) > 8 == len(threads)


def test_groups_that_do_not_fit_into_memory_take_several_passes(folder, table, monkeypatch):
    data = parquet(folder, target="amount", columns=["age", "height"])
    leak = sp.leakage(sp.glm.LinearRegression().fit(data), data, noise=sp.Gaussian(1.0))
    late_first = 6 - np.arange(ROWS) // 100  # the groups that are held give way to later ones
    before = leak.groups("plan"), leak.groups(late_first)
    monkeypatch.setattr("seepage.core.questions._FEWEST", 2)
    monkeypatch.setattr("seepage.core.questions.SUMS_HELD", 1)
    after = leak.groups("plan"), leak.groups(late_first)
    for one, other in zip(before, after, strict=True):
        assert one.labels().tolist() == other.labels().tolist()
        np.testing.assert_allclose(np.asarray(other), np.asarray(one), rtol=CLOSE)


def test_the_worst_cells_are_those_of_the_worst_records(folder, table):
    data = parquet(folder, target="amount", columns=["age", "height"])
    leak = sp.leakage(sp.glm.LinearRegression().fit(data), data, noise=sp.Gaussian(1.0))
    every = np.asarray(leak.cells().result())
    found = leak.cells().top(3)
    worst = np.argsort(-every.max(axis=1))[:3]
    assert found.labels().tolist() == worst.tolist()
    np.testing.assert_allclose(np.asarray(found), every[worst], rtol=CLOSE)


@pytest.mark.parametrize("kind", ["pyarrow", "fsspec"])
def test_files_of_another_file_system(folder, tmp_path, kind):
    if kind == "pyarrow":
        system, name = pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem()), "1.parquet"
    else:
        system, name = fsspec.filesystem("memory"), "/people/1.parquet"
        system.pipe(name, (folder / "1.parquet").read_bytes())
    there = parquet(name, target="amount", columns=["age", "height"], filesystem=system)
    here = parquet(folder / "1.parquet", target="amount", columns=["age", "height"])
    ours, theirs = (sp.glm.LinearRegression().fit(data) for data in (here, there))
    np.testing.assert_array_equal(ours.coef_, theirs.coef_)
    # What is written to this disk never lies among files that are elsewhere.
    out = sp.leakage(theirs, there, noise=sp.Gaussian(1.0)).write_rows(tmp_path / "1.parquet")
    assert pq.read_table(out).num_rows == len(there)


def test_pieces_are_merged_and_empty_ones_left_out(table):
    def piece(start, count):
        return Piece(table.slice(start, count).combine_chunks().to_batches()[0], "a", start)

    empty = Piece(table.slice(0, 1).to_batches()[0].slice(1), "a", 0)
    merged = list(
        reading.gathered(iter([empty, piece(0, 4), empty, piece(4, 6), piece(10, 1)]), 20)
    )
    assert [[one.batch.num_rows for one in some] for some in merged] == [[4, 6], [1]]

"""The same table of views and oracle cases over every source, and over products alone.

A table in memory is a source with one chunk; here Parquet and Dask cut it into chunks of seven
records. The last door is a Jacobian that offers ``forward`` and ``adjoint`` and nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seepage as sp
import seepage.streams.disk.source as disk
from cases import BY_NAME, Case, audit, fit, trio
from oracle import dense, stack
from sampled import sampled
from seepage.core.jacobian import MeasuredRelease, ReleaseJacobian, Unknowns
from seepage.core.leakage import Leakage
from seepage.tables.source import Chunk
from views import VIEWS, check, sites

CHUNK = 7
CASES = [
    BY_NAME[name]
    for name in (
        "linear-everything",
        "logistic-intercept",
        "poisson-weighted",
        "one-feature-steep",
        "widest-poisson",
        "many-logistic-intercept-covariance",
        "one-row-poisson",
        "some-residuals-zero-intercept-l2",
        "zero-column-softmax",
        "zero-weights-linear",
        "hidden-root-parallel",
        "broad-saturated",
        "one-hot-logistic",
        "one-hot-broad-linear",
        "one-hot-softmax",
        "pseudo-huber",
        "labels-strings",
        "labels-strings-softmax",
        "softmax-3-weighted-intercept-l2",
        "laplace-vector-poisson",
    )
]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(disk, "chunk_rows", lambda width: CHUNK)
    with dask.config.set(scheduler="synchronous"):
        yield


def in_memory(case: Case, folder: Path) -> Any:
    return audit(case)


def in_parquet(case: Case, folder: Path) -> Any:
    columns = {f"x{j}": case.X[:, j] for j in range(case.d)} | {"y": case.y, "site": sites(case)}
    weight = None if case.sample_weight is None else "weight"
    if weight:
        columns[weight] = case.sample_weight
    path = folder / f"{case.name}.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=CHUNK)
    names = [f"x{j}" for j in range(case.d)]
    data = sp.parquet(path, target="y", columns=names, weight=weight)
    return measured(case, data)


def in_dask(case: Case, folder: Path) -> Any:
    weight = None
    if case.sample_weight is not None:
        weight = da.from_array(np.asarray(case.sample_weight, dtype=float), chunks=CHUNK)
    X, y = da.from_array(case.X, chunks=(CHUNK, case.d)), da.from_array(case.y, chunks=CHUNK)
    return measured(case, sp.dask_rows(X, y, weight=weight))


def measured(case: Case, data: Any) -> Any:
    attributes = {"trio": trio(case)} if case.d >= 4 else None
    return sp.leakage(fit(case), data, noise=case.noise, attributes=attributes)


class Products(ReleaseJacobian):
    """A Jacobian of which nothing but two products is known."""

    def __init__(self, whole: ReleaseJacobian) -> None:
        self.whole = whole
        self.X, self.target, self.size = whole.X, whole.target, whole.size
        self.rows, self.features, self.label_size = whole.rows, whole.features, whole.label_size

    def forward(self, z: Any, unknowns: Unknowns, rows: Any) -> Any:
        return self.whole.forward(z, unknowns, rows)

    def adjoint(self, v: Any, unknowns: Unknowns, rows: Any) -> Any:
        return self.whole.adjoint(v, unknowns, rows)


class ProductsOnly(MeasuredRelease):
    def __init__(self, release: MeasuredRelease) -> None:
        self.template = Products(release.template)
        self.release = release

    def jacobian(self, chunk: Chunk) -> ReleaseJacobian:
        return Products(self.release.jacobian(chunk))


def by_products(case: Case, folder: Path) -> Any:
    leak = audit(case)
    return Leakage(ProductsOnly(leak.release), leak.source, leak.noise, leak.attributes)


def by_products_in_chunks(case: Case, folder: Path) -> Any:
    leak = in_parquet(case, folder)
    return Leakage(ProductsOnly(leak.release), leak.source, leak.noise, leak.attributes)


DOORS = {
    "memory": in_memory,
    "parquet": in_parquet,
    "dask": in_dask,
    "products": by_products,
    "products-parquet": by_products_in_chunks,
}
KEPT: dict[tuple[str, str], Any] = {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    yield tmp_path_factory.mktemp("cases")
    KEPT.clear()


def through(door: str, case: Case, folder: Path) -> Any:
    """Return the leakage of a case through a door, opened once."""
    if (door, case.name) not in KEPT:
        KEPT[door, case.name] = DOORS[door](case, folder)
    return KEPT[door, case.name]


@pytest.mark.parametrize("case", sampled(CASES, 1, 4), ids=[case.name for case in CASES])
@pytest.mark.parametrize("door", list(DOORS))
def test_every_view_agrees_with_dense_truth(door: str, case: Case, folder: Path) -> None:
    leak = through(door, case, folder)
    for view in VIEWS:
        if view.applies_to(case):
            check(view, leak, dense(case), case)


@pytest.mark.parametrize("door", list(DOORS))
def test_information_about_one_record(door: str, folder: Path) -> None:
    case = BY_NAME["linear-everything"]
    leak, whole = through(door, case, folder), dense(case)
    for row in (0, CHUNK, case.n - 1, -1):
        J = whole.block([row % case.n], label=True)
        found = leak.information(row, label=True)
        np.testing.assert_allclose(found, J.T @ J, rtol=1e-9, atol=1e-9 * np.abs(J.T @ J).max())
    with pytest.raises(sp.InputError, match="There is no row 30"):
        leak.information(case.n)


@pytest.mark.parametrize("door", ["memory", "parquet"])
def test_rows_and_groups_are_named_alike(door: str, folder: Path) -> None:
    case = BY_NAME["linear-everything"]
    leak, labels = through(door, case, folder), sites(case)
    mask = labels == "north"
    chosen = np.flatnonzero(mask)
    assert float(leak.subset(mask)) == pytest.approx(float(leak.subset(chosen)), rel=1e-12)
    assert np.asarray(leak.columns(rows=mask)) == pytest.approx(
        np.asarray(leak.columns(rows=chosen)), rel=1e-12
    )
    alone = leak.groups(labels, only=["north"])
    assert float(alone[0]) == pytest.approx(float(leak.subset(mask)), rel=1e-9)
    column = "site" if door == "parquet" else "x0"
    values = labels if door == "parquet" else case.X[:, 0]
    named, given = leak.groups(column), leak.groups(values)
    assert np.asarray(named) == pytest.approx(np.asarray(given), rel=1e-9)
    assert named.labels().tolist() == given.labels().tolist()
    with pytest.raises(sp.InputError, match="There is no row 30"):
        leak.subset([case.n])
    with pytest.raises(sp.InputError, match="Row 3 has no group"):
        leak.groups([*labels[:3], None, *labels[4:]])


@pytest.mark.slow
def test_releases_about_one_source_compose(folder: Path) -> None:
    case = BY_NAME["linear-everything"]
    others = [replace(case, l2=0.5), replace(case, noise=sp.Gaussian(0.4))]
    first = through("parquet", case, folder)
    leaks = [first, *(measured(other, first.source) for other in others)]
    together = sp.compose(*leaks)
    assert len(together.release.parts) == 2  # two of them are one model, released twice
    truth = stack(*(dense(c) for c in (case, *others)))
    for view in VIEWS:
        if view.applies_to(case):
            check(view, together, truth, case)
    with pytest.raises(sp.InputError, match="open them once"):
        sp.compose(first, in_parquet(case, folder))


def test_what_needs_all_records_says_so(folder: Path) -> None:
    leak = through("parquet", BY_NAME["linear-everything"], folder)
    for ask in (lambda: leak.jacobian, lambda: leak.table):
        with pytest.raises(sp.InputError, match="the data are read in chunks"):
            ask()


@pytest.mark.parametrize("door", ["parquet", "dask"])
def test_exact_bounds_on_cells(door: str, folder: Path) -> None:
    case = BY_NAME["logistic-intercept"]
    stream = sp.bounds.cramer_rao_cells(through(door, case, folder))
    found = stream.to_dask().compute() if door == "dask" else np.asarray(stream)
    want = np.asarray(sp.bounds.cramer_rao_cells(audit(case)))
    np.testing.assert_allclose(found, want, rtol=1e-8)

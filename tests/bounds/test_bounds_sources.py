"""Bounds, guarantees and calibration ask the operator, wherever the records come from."""

from __future__ import annotations

from itertools import pairwise

import dask
import dask.array as da
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seepage as sp
from sampled import sampled
from seepage import privacy
from seepage.bounds import Domain, GaussianPrior

ROWS, NOISE = 203, sp.Gaussian(0.1)
NAMES = ("x0", "x1", "x2", "x3")
MODELS = {
    "linear": lambda: sp.glm.LinearRegression(l2=1e-2),
    "logistic": lambda: sp.glm.LogisticRegression(l2=1e-2),
    "with an intercept": lambda: sp.glm.LogisticRegression(l2=1e-2, fit_intercept=True),
    "poisson": lambda: sp.glm.PoissonRegression(l2=1e-2),
    "softmax": lambda: sp.glm.SoftmaxRegression(l2=1e-2),
}
REFITTED = ("van Trees", "Hammersley")


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def _data(family):
    rng = np.random.default_rng(3)
    X = rng.uniform(-1, 1, (ROWS, 4)) * [0.5, 0.4, 0.5, 0.3]
    margin = 4 * X @ [1.0, -0.4, 0.5, 0.0] + 0.7 * rng.standard_normal(ROWS)
    if family == "linear":
        return X, margin
    if family == "poisson":
        return X, rng.poisson(np.exp(0.3 * margin)).astype(float)
    return X, np.digitize(margin, [-0.5, 0.5]) if family == "softmax" else (margin > 0).astype(int)


def _in_memory(family):
    X, y = _data(family)
    return sp.leakage(MODELS[family]().fit(X, y), X, y, noise=NOISE)


@pytest.fixture(params=["parquet", "dask"])
def streamed(request, tmp_path):
    """Return what measures the same model on the same records, read in chunks."""

    def measure(family):
        X, y = _data(family)
        if request.param == "dask":
            given = (da.from_array(X, chunks=(70, 4)), da.from_array(y, chunks=70))
        else:
            columns = {name: X[:, j] for j, name in enumerate(NAMES)}
            table = pa.table(columns | {"y": y})
            for start, stop in pairwise((0, 1, 120, ROWS)):
                file = tmp_path / f"people-{start:03d}.parquet"
                pq.write_table(table.slice(start, stop - start), file, row_group_size=31)
            given = (sp.parquet(tmp_path, target="y"),)
        return sp.leakage(MODELS[family]().fit(*given), *given, noise=NOISE)

    return measure


@pytest.mark.parametrize("family", sampled(list(MODELS), 1, 4))
@pytest.mark.parametrize(
    "stated", [{}, {"domain": (-1, 1), "row": 17}, {"columns": [0, 2]}], ids=str
)
def test_the_table_of_guarantees_is_that_of_memory(streamed, family, stated):
    kept = sp.guarantees(_in_memory(family), draws=4, **stated)
    found = sp.guarantees(streamed(family), **stated)
    assert (found.row, found.label, found.records) == (kept.row, kept.label, kept.records)
    assert (found.about, found.numbers, found.chosen) == (kept.about, kept.numbers, kept.chosen)
    assert found.guessing == pytest.approx(kept.guessing, rel=1e-12)
    assert [line.name for line in found.rows] == [line.name for line in kept.rows]
    for line, same in zip(found.rows, kept.rows, strict=True):
        if line.name.startswith(REFITTED):
            assert not line.applies
            assert "in memory" in line.reason
            continue
        assert line.reason == same.reason
        assert line.assumptions == same.assumptions
        assert line.guarantee == same.guarantee
        # Membership and guesses are upper ends where there are no refits.
        if line.name.startswith(("advantage, this record", "advantage, label", "gain")):
            if not same.applies:
                continue
            assert line.value >= same.value * (1 - 1e-8)
        elif same.applies:
            assert line.value == pytest.approx(same.value, rel=1e-8)


@pytest.mark.parametrize("family", ["linear", "logistic", "poisson", "softmax"])
def test_the_sensitivity_is_that_of_memory(streamed, family):
    kept, found = _in_memory(family), streamed(family)
    for stated in ({}, {"row_norm": 2.0, "label_bound": 50.0}, {"lipschitz": 3.0}):
        same, here = (privacy.output_sensitivity(leak, **stated) for leak in (kept, found))
        assert here.value == pytest.approx(same.value, rel=1e-12)
        assert here.lipschitz == pytest.approx(same.lipschitz, rel=1e-12)
        assert (here.guarantee, here.assumptions) == (same.guarantee, same.assumptions)


@pytest.mark.parametrize("family", ["linear", "with an intercept", "softmax"])
def test_every_cramer_rao_bound_is_that_of_memory(streamed, family):
    kept, found = _in_memory(family), streamed(family)
    for bound in (sp.bounds.cramer_rao_rows, sp.bounds.cramer_rao_cells):
        streams = [np.asarray(chunk) for chunk in _numbers(bound(found))]
        assert np.concatenate(streams) == pytest.approx(np.asarray(bound(kept)), rel=1e-7)
    for rows in (5, [0, 119, 120, 202]):
        for asked in ({}, {"columns": [1], "label": True}, {"columns": "x3", "rest": "unknown"}):
            same, here = (sp.bounds.cramer_rao(leak, rows, **asked) for leak in (kept, found))
            assert float(here) == pytest.approx(float(same), rel=1e-7)
    information = found.information(150, label=False)
    assert np.asarray(information) == pytest.approx(kept.information(150, label=False), rel=1e-9)
    prior = GaussianPrior(std=1.0)
    assert float(sp.bounds.van_trees(information, prior)) == pytest.approx(
        float(sp.bounds.van_trees(kept.information(150, label=False), prior)), rel=1e-9
    )


@pytest.mark.parametrize("over", sampled(["max", "mean", 0.9, 0.5], ["max", "mean", 0.9]))
@pytest.mark.parametrize("target", sampled([{"eta": 0.01}, {"mse": 4.0}], 1), ids=str)
@pytest.mark.parametrize(
    "view",
    [None, lambda leak: leak.records(measure="dfil"), sp.bounds.cramer_rao_rows],
    ids=["fil", "dfil", "exact bound"],
)
def test_calibration_is_that_of_memory(streamed, over, target, view):
    kept, found = _in_memory("logistic"), streamed("logistic")
    noises = [
        sp.calibrate(
            leak, over=over, view=None if view is None else view(leak), **target, grid=None
        )
        for leak in (kept, found)
    ]
    assert noises[1].sigma == pytest.approx(noises[0].sigma, rel=1e-8)


def test_the_domain_is_read_in_one_pass(streamed):
    X, _ = _data("linear")
    span = Domain.of(None, streamed("linear").source)
    assert span.lower == pytest.approx(X.min(axis=0))
    assert span.upper == pytest.approx(X.max(axis=0))
    assert not span.stated
    with pytest.raises(sp.InputError, match="outside the stated domain"):
        Domain.of((-0.1, 0.1), streamed("linear").source)


def test_what_fits_the_model_again_says_that_it_needs_the_records_in_memory(streamed):
    leak = streamed("linear")
    for bound in (
        lambda: sp.bounds.hammersley_chapman_robbins(leak, 0, "x1"),
        lambda: sp.bounds.van_trees_rows(leak, GaussianPrior(std=1.0), [0]),
    ):
        with pytest.raises(sp.InputError, match="in memory"):
            bound()


def _numbers(found):
    """Return the numbers of a stream in pieces; Dask keeps those of all records on its workers."""
    try:
        return list(found.chunks())
    except sp.InputError:
        return [found.to_dask().compute()]

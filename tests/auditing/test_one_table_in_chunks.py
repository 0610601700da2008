"""A table in memory, as one chunk and as seven: every view and a whole audit say the same."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from people import TARGETS, people

import seepage as sp
import seepage.streams.disk.source as reading
from sampled import sampled
from seepage.auditing.command import Question, answer
from seepage.auditing.report import to_json

ROWS = 240


@pytest.fixture(params=[1, 7], ids=["one chunk", "seven chunks"])
def chunks(request, monkeypatch):
    """Have a table read in this many chunks."""
    monkeypatch.setattr(reading, "chunk_rows", lambda width: -(-ROWS // request.param))
    return request.param


def folder_of(table, tmp_path, chunks):
    folder = tmp_path / "people"
    folder.mkdir()
    pq.write_table(table, folder / "people.parquet", row_group_size=-(-ROWS // chunks))
    return folder


def same(ours, theirs, where="summary"):
    """Compare two JSON values; numbers to rounding, and exact errors of attacks to less."""
    assert type(ours) is type(theirs), where
    if isinstance(ours, dict):
        assert list(ours) == list(theirs), where
        for name in ours:
            same(ours[name], theirs[name], f"{where}.{name}")
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), where
        for k, pair in enumerate(zip(ours, theirs, strict=True)):
            same(*pair, f"{where}[{k}]")
    elif isinstance(ours, float):
        loose = 1e-5 if "exact_error" in where else 1e-6
        assert ours == pytest.approx(theirs, rel=loose, abs=1e-12), where
    else:
        assert ours == theirs, where


@pytest.mark.parametrize("model", sampled(list(TARGETS), ["logistic", "linear"]))
def test_a_whole_audit(model, chunks, tmp_path):
    target = TARGETS[model]
    options = {
        "target": target,
        "drop": tuple(t for t in TARGETS.values() if t != target),
        "sensitive": ("age", "town"),
        "group": ("town", "smoker"),
    }
    table = people(ROWS)
    file = tmp_path / "people.parquet"
    pq.write_table(table, file)
    kept, read = (
        json.loads(to_json(answer(Question(table=path, **options))))
        for path in (file, folder_of(table, tmp_path, chunks))
    )
    steps = [summary.pop("steps") for summary in (kept, read)]
    assert [step for step in steps[1] if "read in chunks" not in step] == steps[0]
    assert (kept.pop("source"), read.pop("source")) == ("people.parquet", "people")
    same(read, kept)


VIEWS = {
    "records": lambda leak: leak.records(),
    "dfil": lambda leak: leak.records(measure="dfil"),
    "labels": lambda leak: leak.labels(),
    "cells": lambda leak: leak.cells(),
    "columns": lambda leak: leak.columns(),
    "mean over columns": lambda leak: leak.columns(measure="dfil"),
    "columns of some": lambda leak: leak.columns(rows=np.arange(3, 150)),
    "groups": lambda leak: leak.groups(np.arange(ROWS) % 5),
    "mean over groups": lambda leak: leak.groups(np.arange(ROWS) % 5, measure="dfil"),
    "subset": lambda leak: leak.subset([1, 5, 100, 239], columns=["age"], label=True),
    "dataset": lambda leak: leak.dataset(),
    "mean over all": lambda leak: leak.dataset("dfil"),
    "bound": lambda leak: leak.records().std_bound(),
    "exact bound": lambda leak: sp.bounds.cramer_rao_rows(leak),
    "exact bounds on cells": lambda leak: sp.bounds.cramer_rao_cells(leak),
    "information": lambda leak: leak.information(77),
}
# Exact in closed form for least squares; of other models read in chunks without refits, intervals.
RISKS = {
    "membership": lambda leak: leak.membership(),
    "membership of some": lambda leak: leak.membership([0, 60, 239]).mu,
    "guess": lambda leak: leak.guess("smoker", "equal"),
}


@pytest.mark.parametrize("target", ["ill", "dose"])
def test_every_view(target, chunks, tmp_path):
    table = people(ROWS).select(["age", "weight", "smoker", target])
    data = sp.parquet(folder_of(table, tmp_path, chunks), target=target, scale=True)
    rows = data.taken(1e9)
    frame = pa.table({name: rows.X[:, j] for j, name in enumerate(data.names)})
    kind = sp.glm.LogisticRegression if target == "ill" else sp.glm.LinearRegression
    read, kept = (
        sp.leakage(kind(l2=1e-2, fit_intercept=True).fit(*given), *given, noise=sp.Gaussian(0.2))
        for given in ((data,), (frame, rows.y))
    )
    for name, view in (VIEWS | (RISKS if target == "dose" else {})).items():
        ours, theirs = (np.asarray(view(leak), dtype=float) for leak in (read, kept))
        loose = 1e-6 if "exact" in name else 1e-8
        np.testing.assert_allclose(ours, theirs, rtol=loose, err_msg=name)
    for name, view in RISKS.items():
        ours, theirs = (view(leak) for leak in (read, kept))
        if not hasattr(ours, "lower"):
            continue
        assert np.all(ours.lower <= np.asarray(theirs) * (1 + 1e-9)), name
        assert np.all(theirs.lower <= np.asarray(ours) * (1 + 1e-9)), name
    noises = [sp.calibrate(leak, eta=0.1, over=0.9, grid=None).sigma for leak in (read, kept)]
    assert noises[0] == pytest.approx(noises[1], rel=1e-9)

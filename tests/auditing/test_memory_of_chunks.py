"""The memory that an audit of data read in chunks takes: no more for more rows."""

import gc
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import seepage.auditing.audit as auditing
import seepage.auditing.findings as findings
import seepage.auditing.trained_model as trained_model
import seepage.streams.disk.source as reading
import seepage.support.room as room
from seepage.auditing.command import answer
from seepage.auditing.questions import Question
from seepage.auditing.report import to_json
from seepage.auditing.report.audit_report import record_table

FEATURES, CHUNK_ROWS = 4, 2_500


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(reading, "_CHUNK", FEATURES * CHUNK_ROWS)
    monkeypatch.setattr(reading, "_WIDE", 1)
    # The table is not taken into memory, and the numbers of every record lie on disk and are
    # written some at a time, as of large tables.
    monkeypatch.setattr(trained_model, "MOST_TAKEN", 0)
    monkeypatch.setattr(room, "IN_MEMORY", 0)
    monkeypatch.setattr(findings, "WRITTEN", CHUNK_ROWS)
    monkeypatch.setattr(auditing, "MOST_AT_ONCE", 0)
    # One chunk after the other: how many meet at their peaks, read or worked on, is chance.
    monkeypatch.setattr(reading, "spread", lambda function, pieces, workers: map(function, pieces))


def peak(tmp_path, rows):
    """Return the most memory that Python and NumPy held during an audit, in bytes."""
    rng = np.random.default_rng(0)
    folder = tmp_path / str(rows)
    folder.mkdir()
    X = rng.standard_normal((rows, FEATURES))
    columns = {f"x{j}": X[:, j] for j in range(FEATURES)}
    columns |= {
        "group": rng.choice(["a", "b"], rows),
        "id": rng.permutation(rows),
        "y": X.sum(axis=1) + rng.standard_normal(rows),
    }
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=CHUNK_ROWS)
    del X, columns
    gc.collect()
    tracemalloc.start()
    question = Question(
        table=folder, target="y", sensitive=("x0",), group=("group",), target_eta=0.1
    )
    found = answer(question)
    assert found.records.over(found.records.quantile("eta", 0.5)) == rows // 2
    assert f'"count": {rows}' in to_json(found)
    with (tmp_path / f"{rows}.parquet").open("wb") as file:
        found.records.writer(record_table)(file)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert pq.read_metadata(tmp_path / f"{rows}.parquet").num_rows == rows
    return most


@pytest.mark.slow
def test_four_times_the_rows_take_the_same_memory(tmp_path):
    peak(tmp_path, 1_000)  # what is imported on the way
    few, many = (peak(tmp_path, rows) for rows in (10_000, 40_000))
    # Not even half a number more for every record.
    assert many < few + 4 * 30_000

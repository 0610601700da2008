"""An audit by two worker processes: no row comes to the client, and the report is the same."""

import errno
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from seepage.cli import app
from seepage.streams.dask import spread_files
from seepage.streams.disk import files as parquet_files
from seepage.streams.disk.files import ParquetFiles, open_batches

ROWS, NUMBERS = 60_000, 4


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """One large file of many row groups, and a small one."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("data") / "people"
    folder.mkdir()
    X = rng.standard_normal((ROWS, NUMBERS))
    region = rng.choice(["north", "south", "west"], ROWS)
    ill = X @ np.arange(1, NUMBERS + 1) / 3 + (region == "west") + rng.logistic(size=ROWS) > 0
    columns = {f"x{j}": X[:, j] for j in range(NUMBERS)}
    columns |= {"region": region, "id": rng.permutation(ROWS) + 100, "ill": ill}
    table = pa.table(columns)
    pq.write_table(table.slice(0, 50_000), folder / "a.parquet", row_group_size=5_000)
    pq.write_table(table.slice(50_000), folder / "b.parquet", row_group_size=5_000)
    return folder


def told(folder, *options):
    options = ["--target", "ill", "--group", "region", "--sensitive", "x0", "--json", *options]
    result = CliRunner().invoke(app, ["audit", str(folder), *options])
    assert result.exit_code in (0, 1), result.output
    return result.exit_code, json.loads(result.stdout)


def numbers(told):
    """Return every number of a JSON report, in order."""
    if isinstance(told, dict):
        return [x for value in told.values() for x in numbers(value)]
    if isinstance(told, list):
        return [x for value in told for x in numbers(value)]
    return [told] if isinstance(told, int | float) else []


@pytest.mark.minutes
def test_no_row_comes_to_the_client_and_the_report_is_that_of_one_process(
    cluster, people, gathered, tmp_path, monkeypatch
):
    options = ["--sigma", "0.004", "--max-eta", "0.15"]
    alone = told(people, *options, "--out", str(tmp_path / "alone"))
    monkeypatch.setattr(parquet_files, "PART_ROWS", 10_000)

    def refuse(*arguments):
        raise AssertionError("rows were read by the client")

    monkeypatch.setattr(ParquetFiles, "read_groups", refuse)
    where = cluster.scheduler_info()["address"]
    spread = told(people, *options, "--out", str(tmp_path / "spread"), "--dask", where)

    assert spread[0] == alone[0] == 1
    assert alone[1]["records"]["over_limit"] > ROWS / 10
    assert spread[1]["steps"] == alone[1]["steps"]
    assert any("'id'" in step for step in alone[1]["steps"])
    assert spread[1]["gates"][0]["text"] == alone[1]["gates"][0]["text"]
    assert numbers(spread[1]) == pytest.approx(numbers(alone[1]), rel=1e-9)

    # Ten thousand records of a part have the numbers of the audit each, and their features stay.
    features = NUMBERS + 2
    assert max(gathered) < 8 * 10_000 * (5 + NUMBERS + 2) * 8 + 4_000 * features
    table = tmp_path / "spread" / "leakage.parquet"
    assert table.stat().st_mode & 0o777 == 0o600
    ours, theirs = pq.read_table(table), pq.read_table(tmp_path / "alone" / "leakage.parquet")
    assert ours.column_names == theirs.column_names
    assert ours["row"].to_pylist() == list(range(ROWS))
    for name in ours.column_names:
        assert ours[name].to_numpy() == pytest.approx(theirs[name].to_numpy(), rel=1e-9), name
    assert not [file for file in (tmp_path / "spread").iterdir() if file.name.startswith(".")]


@pytest.mark.slow
def test_a_new_table_takes_the_place_of_the_earlier_one(threads, people, tmp_path, monkeypatch):
    where, out, small = threads.scheduler_info()["address"], tmp_path / "report", tmp_path / "some"
    small.mkdir()
    pq.write_table(pq.read_table(people / "b.parquet").slice(0, 500), small / "a.parquet")
    table = out / "leakage.parquet"
    for options in (["--dask", where], [], ["--dask", where]):
        told(small, "--quick", "--drop", "id", "--out", str(out), *options)
        assert pq.read_table(table).num_rows == 500
    kept = table.read_bytes()
    # A disk that fills up after the workers are done.
    monkeypatch.setattr("seepage.auditing.report.rendering.write_text", full)
    words = ["audit", str(small), "--target", "ill", "--drop", "id", "--quick"]
    result = CliRunner().invoke(app, [*words, "--out", str(out), "--dask", where])
    assert result.exit_code == 2
    assert "No space left on device; no files were left behind" in result.stderr
    assert table.read_bytes() == kept
    assert not [file for file in out.iterdir() if file.name.startswith(".")]


def full(text, file):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_files_are_cut_between_row_groups(people, monkeypatch):
    monkeypatch.setattr(parquet_files, "PART_ROWS", 12_000)
    whole = open_batches(people)
    parts = whole.parts()
    assert [part.rows for part in parts] == [15_000, 15_000, 15_000, 5_000, 10_000]
    read = [piece for part in parts for piece in part.read(["x0"], 7_000)]
    assert [piece.first for piece in read if piece.first % 5_000 == 0][:3] == [0, 15_000, 30_000]
    ours = np.concatenate([np.asarray(piece.batch.column(0)) for piece in read])
    theirs = [np.asarray(piece.batch.column(0)) for piece in whole.read(["x0"], 7_000)]
    assert np.array_equal(ours, np.concatenate(theirs))


@pytest.mark.parametrize(
    ("workers", "cores", "threads"),
    [
        ({"tcp://a:1": 1, "tcp://a:2": 1}, 8, 4),
        ({"tcp://a:1": 2, "tcp://a:2": 2, "tcp://b:1": 1}, 8, 2),
        ({"tcp://a:1": 4}, 2, 1),
        ({}, 3, 3),
    ],
)
def test_tasks_share_the_cores_of_their_machine(workers, cores, threads, people, monkeypatch):
    class Workers:
        def nthreads(self):
            return workers

    monkeypatch.setattr(spread_files, "usable_cores", lambda: cores)
    files = spread_files.SpreadFiles(open_batches(people), Workers())
    assert spread_files._threads(files._sharing()) == threads

"""Two worker processes: the numbers of one machine, no row on the client, and a worker killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import dask.array as da
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import seepage as sp
from seepage.cli import app
from seepage.streams.dask.source import dask_rows
from seepage.streams.dask.tasks import FAN_IN

ROWS, COLUMNS, PARTS = 24_000, 5, FAN_IN + 4
BLOCK = ROWS // PARTS


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, COLUMNS))
    return X, X @ np.arange(1.0, COLUMNS + 1) / 3 + rng.standard_normal(ROWS) > 0


@pytest.fixture(scope="module")
def kept(table):
    model = sp.glm.LogisticRegression(l2=1e-3).fit(*table)
    return model, sp.leakage(model, *table, noise=sp.Gaussian(0.05))


def _block(seen, pause, block_info=None):
    """Make a block of the table on the worker; leave a mark each time one is made."""
    here = block_info[None]["chunk-location"][0]
    (Path(seen) / f"{here}-{time.monotonic_ns()}").touch()
    time.sleep(pause)
    X = np.random.default_rng(0).standard_normal((ROWS, COLUMNS))
    return X[here * BLOCK : (here + 1) * BLOCK]


def _data(table, folder, pause=0.0):
    """Return the table in a dozen blocks that are made again whenever they are used."""
    X = da.map_blocks(
        _block,
        str(folder),
        pause,
        chunks=((BLOCK,) * PARTS, (COLUMNS,)),
        dtype=float,
        meta=np.empty((0, COLUMNS)),
    )
    return dask_rows(X, da.from_array(table[1], chunks=BLOCK))


@pytest.mark.slow
def test_numbers_are_those_of_one_machine_and_no_rows_travel(
    cluster, table, kept, gathered, tmp_path
):
    data = _data(table, tmp_path)
    model = sp.glm.LogisticRegression(l2=1e-3).fit(data)
    assert model.coef_ == pytest.approx(kept[0].coef_, rel=1e-9)
    leak = sp.leakage(model, data, noise=sp.Gaussian(0.05))
    assert float(leak.dataset()) == pytest.approx(float(kept[1].dataset()), rel=1e-9)
    assert np.asarray(leak.columns()) == pytest.approx(np.asarray(kept[1].columns()), rel=1e-9)
    rows = leak.rows().to_dask().persist()  # on the workers
    worst = float(rows.max().compute())
    folder = leak.write_rows(tmp_path / "rows", measures=["fil", "dfil"])
    # One block of results alone has sixteen thousand bytes, a Hessian two hundred.
    assert gathered
    assert max(gathered) < 1500 + 8 * 3 * COLUMNS**2 < 8 * BLOCK

    # The numbers of single records come when they are asked for, and no record with them.
    gathered.clear()
    every = kept[1].rows()
    assert np.asarray(leak.rows()) == pytest.approx(np.asarray(every), rel=1e-9)
    assert leak.rows().top(5).labels().tolist() == every.top(5).labels().tolist()
    assert worst == pytest.approx(float(np.max(every)), rel=1e-9)
    assert max(gathered) < 8 * (2 * 8 * BLOCK + 200)

    assert folder.stat().st_mode & 0o777 == 0o700
    files = sorted(folder.iterdir())
    assert len(files) == PARTS
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    found = pq.read_table(folder)
    assert found["row"].to_numpy().tolist() == list(range(ROWS))
    for measure in ("fil", "dfil"):
        expected = np.asarray(kept[1].rows(measure=measure))
        assert found[measure].to_numpy() == pytest.approx(expected, rel=1e-9)
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def _kill_one(cluster, folder, after):
    """Kill a worker process, with no chance to tidy up, once some blocks have been made."""
    before = len(list(folder.iterdir()))
    pids = cluster.run(os.getpid)

    def wait():
        deadline = time.monotonic() + 60
        while len(list(folder.iterdir())) < before + after and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(next(iter(pids.values())), signal.SIGKILL)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, set(pids.values())


@pytest.mark.slow
def test_a_killed_worker_loses_nothing(cluster, table, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    data = _data(table, marks, pause=0.02)
    model = sp.glm.LogisticRegression(l2=1e-3).fit(data)
    leak = sp.leakage(model, data, noise=sp.Gaussian(0.05))
    undisturbed = pq.read_table(leak.write_rows(tmp_path / "undisturbed"))

    first, pids = _kill_one(cluster, marks, after=PARTS + PARTS // 2)  # in the second step
    again = sp.glm.LogisticRegression(l2=1e-3).fit(data)
    first.join()
    # Vectorised functions round by where an array lies in memory: the last digits are free.
    assert again.coef_ == pytest.approx(model.coef_, rel=1e-12)

    cluster.wait_for_workers(2)
    made = len(list(marks.iterdir()))
    second, more = _kill_one(cluster, marks, after=PARTS // 2)
    written = pq.read_table(leak.write_rows(tmp_path / "disturbed"))
    second.join()
    assert written["row"].equals(undisturbed["row"])
    for name in ("fil", "dfil", "cramer_rao"):
        assert written[name].to_numpy() == pytest.approx(undisturbed[name].to_numpy(), rel=1e-12)
    # What was lost was made again; a worker that dies between two blocks loses none.
    assert len(list(marks.iterdir())) >= made + PARTS
    assert len(list((tmp_path / "disturbed").iterdir())) == PARTS
    assert len(pids - more) == 1  # the first kill took a worker away, and another one came


@pytest.fixture
def people(tmp_path):
    """A folder of Parquet files of different lengths, one of them empty, with gaps."""
    rng = np.random.default_rng(2)
    folder = tmp_path / "people"
    folder.mkdir()
    for k, rows in enumerate((300, 1, 0, 250)):
        age = rng.normal(50, 12, rows)
        job = rng.choice(["baker", "judge", "nurse"], rows)
        left = 0.05 * (age - 50) + (job == "judge") + rng.logistic(size=rows) > 0
        columns = {
            "age": pa.array(age, pa.float64(), mask=rng.random(rows) < 0.05),
            "job": pa.array(job.tolist(), pa.string()),
            "region": pa.array(rng.choice(["north", "south"], rows).tolist(), pa.string()),
            "left": left,
        }
        pq.write_table(pa.table(columns), folder / f"{k}.parquet", row_group_size=100)
    return folder


def _numbers(told):
    """Return every number of a JSON report, in order."""
    if isinstance(told, dict):
        return [x for value in told.values() for x in _numbers(value)]
    if isinstance(told, list):
        return [x for value in told for x in _numbers(value)]
    return [told] if isinstance(told, int | float) else []


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["threads", "cluster"])
def test_an_audit_by_workers_tells_what_one_process_tells(workers, people, request):
    cluster = request.getfixturevalue(workers)
    options = ["--target", "left", "--group", "region", "--missing", "drop", "--json"]
    runner = CliRunner()
    alone = runner.invoke(app, ["audit", str(people), *options])
    where = cluster.scheduler_info()["address"]
    spread = runner.invoke(app, ["audit", str(people), *options, "--dask", where])
    assert alone.exit_code == spread.exit_code == 0, spread.output
    ours, theirs = json.loads(spread.stdout), json.loads(alone.stdout)
    assert ours["steps"] == theirs["steps"]
    assert ours["records"]["count"] == theirs["records"]["count"]
    assert _numbers(ours) == pytest.approx(_numbers(theirs), rel=1e-9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dask", "tcp://somewhere", "--workers", "2"], "not both"),
        (["--workers", "0"], "at least one"),
        (["--dask", "nonsense://here"], "no Dask scheduler at 'nonsense://here'"),
        (["--dask", "tcp://here"], "missing port number"),
        (["--dask", ""], "no Dask scheduler at ''"),
    ],
)
def test_bad_clusters_are_refused(options, words, people):
    told = CliRunner().invoke(app, ["audit", str(people), "--target", "left", *options])
    assert told.exit_code == 2
    assert words in told.stderr


@pytest.mark.slow
def test_a_malformed_address_is_refused_at_once(people):
    """In a process of its own: what Dask keeps open would delay its end and print a traceback."""
    command = [sys.executable, "-m", "seepage", "audit", str(people), "--target", "left"]
    done = subprocess.run(  # noqa: S603
        [*command, "--dask", "tcp://here"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("error: There is no Dask scheduler at 'tcp://here': ")


def test_a_cluster_audits_parquet_only(threads, tmp_path):
    table = tmp_path / "people.csv"
    table.write_text("x,y\n1,2\n")
    where = threads.scheduler_info()["address"]
    told = CliRunner().invoke(app, ["audit", str(table), "--target", "y", "--dask", where])
    assert told.exit_code == 2
    assert "write the table as Parquet first" in told.stderr


def test_membership_to_an_outsider_is_that_of_one_machine(threads):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((400, 3))
    y = X @ [1.0, -0.5, 0.2] + rng.standard_normal(400)
    model = sp.glm.LinearRegression(l2=0.01, fit_intercept=True).fit(X, y)
    data = dask_rows(da.from_array(X, chunks=(150, 3)), da.from_array(y, chunks=150))
    outsider = sp.Attacker(knows=0.0)
    here = sp.leakage(model, X, y, attacker=outsider).membership(exact=0)
    there = sp.leakage(model, data, attacker=outsider).membership()
    np.testing.assert_allclose(np.asarray(there), np.asarray(here), rtol=1e-9)

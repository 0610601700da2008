"""The processes of --workers take no stranger: who has no certificate of theirs is turned away."""

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client, Security

from seepage import parquet
from seepage.errors import InputError
from seepage.streams.dask import spread_files
from seepage.streams.dask.spread_files import on_cluster
from seepage.streams.disk.files import open_batches

STRANGER = """
import logging, os, socket, sys
logging.disable(logging.CRITICAL)
from distributed import Client, Security
kind, address = sys.argv[1], sys.argv[2]
if kind == "another user":
    os.setgid(65534)
    os.setuid(65534)
    assert os.getuid() == os.geteuid() == 65534
    kind = "own certificate"
# The port itself is open to everybody here: nobody is kept out by anything else than TLS.
host, port = address.removeprefix("tls://").rsplit(":", 1)
try:
    socket.create_connection((host, int(port)), timeout=3).close()
except OSError:
    sys.exit(8)
security = Security.temporary() if kind == "own certificate" else None
if kind == "plain":
    address = address.replace("tls://", "tcp://")
try:
    with Client(address, security=security, timeout=3) as client:
        client.run_on_scheduler(lambda: None)
        client.submit(open, "/etc/passwd").result(timeout=3)
except (OSError, RuntimeError, TypeError, ValueError) as refused:
    sys.exit(7)
"""


@pytest.fixture(scope="module")
def ours():
    with on_cluster(None, 1) as client:
        yield client


KINDS = ["plain", "no certificate", "own certificate"]
if hasattr(os, "geteuid") and os.geteuid() == 0:  # who else may not become another user
    KINDS.append("another user")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_process_without_the_certificate_cannot_talk_to_the_scheduler(ours, kind):
    known = ours.scheduler_info()
    workers = list(known["workers"])
    for address in (known["address"], *workers):
        assert address.startswith("tls://127.0.0.1:")
        command = [sys.executable, "-c", STRANGER, kind, address]
        done = subprocess.run(command, capture_output=True, timeout=60)  # noqa: S603
        assert done.returncode == 7, done.stderr.decode()
    assert ours.submit(sum, [1, 2]).result(timeout=30) == 3


def test_who_has_the_certificate_is_served(ours):
    with Client(ours.scheduler_info()["address"], security=ours.security) as again:
        assert again.submit(sum, [1, 2]).result(timeout=30) == 3
    assert isinstance(ours.security, Security)
    assert ours.security.require_encryption


@pytest.mark.parametrize(
    ("missing", "words"),
    [("distributed", "Clusters need Dask"), ("cryptography", "with the package cryptography")],
)
def test_a_package_that_is_missing_is_named(monkeypatch, missing, words):
    found = spread_files.find_spec
    monkeypatch.setattr(
        spread_files, "find_spec", lambda name: None if name == missing else found(name)
    )
    with pytest.raises(InputError, match=words), on_cluster(None, 1):
        pass


def test_folders_of_keys_are_not_spread(tmp_path):
    for key in (1, 2):
        (tmp_path / f"key={key}").mkdir()
        pq.write_table(pa.table({"x": [1.0, 2.0]}), tmp_path / f"key={key}" / "a.parquet")
    with pytest.raises(InputError, match=r"key=value\) cannot be spread over a cluster"):
        spread_files.SpreadFiles(open_batches(tmp_path), None)


def test_numbers_of_spread_files_come_in_the_order_of_the_rows(threads, tmp_path):
    for k in range(3):
        table = pa.table({"x": [3.0 * k, 3 * k + 1, 3 * k + 2], "y": [0.0, 1.0, 0.0]})
        pq.write_table(table, tmp_path / f"{k}.parquet")
    data = parquet(tmp_path, target="y")
    data.batches = spread_files.SpreadFiles(data.batches, threads)
    numbers = np.concatenate(list(data.each(first_column, "rows")))
    assert numbers.tolist() == list(range(9))


def first_column(chunk):
    return chunk.X[:, 0]


def test_spread_files_without_rows_give_no_sum(tmp_path):
    pq.write_table(pa.table({"x": pa.array([], pa.float64())}), tmp_path / "a.parquet")
    files = open_batches(tmp_path / "a.parquet")
    assert spread_files.SpreadFiles(files, None).sum_pieces(files, ["x"], len) is None

"""Killed anywhere, or on a full disk, a release is in its place and in the ledger, or neither."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import killed_release
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import seepage as sp
from seepage.auditing.release.ledger import ReleaseLedger, state_of
from seepage.auditing.report.audit_report import AuditReport
from seepage.cli import app
from seepage.support import files

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")


def kill(folder: Path, kind: str, kills: int) -> dict:
    """Return what was left by processes that were killed."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, killed_release.__file__, str(folder), kind, str(kills)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("release", 6),
        pytest.param("release", 120, marks=pytest.mark.minutes),
        pytest.param("ledger", 40, marks=pytest.mark.slow),
        pytest.param("training", 10, marks=pytest.mark.slow),
    ],
)
def test_nothing_leaves_unrecorded_and_nothing_is_recorded_that_did_not_leave(
    tmp_path, kind, kills
):
    told = kill(tmp_path, kind, kills)
    assert told["killed"] == kills
    assert told["broken"] == []
    if (kind, kills) == ("release", 120):
        # Kills came before the folder took its place, and after.
        assert min(told["states"]["voided"], told["states"]["committed"]) >= 3


@pytest.fixture
def release(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(AuditReport, "write", lambda report, out, keep=(): Path(out))
    rng = np.random.default_rng(0)
    x = rng.normal(size=60)
    pq.write_table(pa.table({"x": x, "y": x + rng.normal(size=60)}), "table.parquet")
    arguments = ["release", "table.parquet", "--target=y", "--sigma=1", "--max-membership=1"]
    return partial(CliRunner().invoke, app, arguments)


def states(path: Path) -> list[str]:
    return [state_of(entry) for entry in ReleaseLedger.read(path).entries]


def full_at(monkeypatch, name: str, call: int) -> None:
    """Let the disk be full when a file with this in its name is written for the n-th time."""
    write, calls = files.write_private, []

    def limited(path, fill):
        if name in str(path):
            calls.append(path)
            if len(calls) == call:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, fill)

    monkeypatch.setattr(files, "write_private", limited)
    monkeypatch.setattr("seepage.auditing.release.contents.write_private", limited)


@pytest.mark.parametrize(
    ("name", "call"),
    [("model.safetensors", 1), ("seepage-release", 4), ("seepage-ledger.json", 1)],
)
def test_a_full_disk_spends_nothing(release, monkeypatch, tmp_path, name, call):
    """The model, the manifest or the prepared entry cannot be written: three tries, no entry."""
    with monkeypatch.context() as full:
        full_at(full, name, call)
        failed = release()
    assert failed.exit_code == 2, failed.output
    said = [line for line in failed.stderr.splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    assert "No space left on device" in said[0]
    assert not Path("seepage-release").exists()
    assert states(Path("seepage-ledger.json")) == []
    assert not [p for p in tmp_path.iterdir() if "seepage-new" in p.name or "part" in p.name]
    assert release().exit_code == 0
    assert states(Path("seepage-ledger.json")) == ["committed"]


def test_a_disk_that_is_full_once_the_folder_is_there_loses_no_entry(release, monkeypatch):
    with monkeypatch.context() as full:
        full_at(full, "seepage-ledger.json", 2)
        assert release().exit_code == 0
    assert states(Path("seepage-ledger.json")) == ["prepared"]  # and it counts
    assert len(ReleaseLedger.read(Path("seepage-ledger.json")).releases) == 1
    sp.LedgerFile().spent({"x": [0.0], "y": [0.0]})
    assert states(Path("seepage-ledger.json")) == ["committed"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.EIO, "Input/output error")])
def test_what_cannot_take_its_place_is_voided(release, monkeypatch, error):
    take = files._take_place

    def broken(new, out):
        if out.name == "seepage-release":
            raise error
        take(new, out)

    with monkeypatch.context() as patch:
        patch.setattr(files, "_take_place", broken)
        failed = release()
    assert failed.exit_code == (130 if error is KeyboardInterrupt else 2)
    assert not Path("seepage-release").exists()
    (entry,) = ReleaseLedger.read(Path("seepage-ledger.json")).entries
    assert state_of(entry) == "voided"
    assert "could not be moved into place" in entry.about["reason"]
    assert ReleaseLedger.read(Path("seepage-ledger.json")).releases == ()


def test_a_folder_that_is_gone_may_be_with_somebody(release, monkeypatch):
    """A prepared entry whose folder is in neither place counts."""
    assert release().exit_code == 0
    path = Path("seepage-ledger.json")
    told = json.loads(path.read_text())
    told["releases"][0]["state"] = "prepared"
    path.write_text(json.dumps(told))
    Path("seepage-release").rename("sent-to-a-friend")
    sp.LedgerFile().spent({"x": [0.0], "y": [0.0]})
    (entry,) = ReleaseLedger.read(path).entries
    assert state_of(entry) == "committed"
    assert "may have been copied" in entry.about["reason"]


@pytest.mark.minutes
@pytest.mark.parametrize("locale", ["C", "tr_TR.ISO-8859-9"])
def test_other_locales_and_names_that_are_not_utf8(tmp_path, locale):
    """One sentence, and status 2, also where the terminal takes ASCII alone."""
    (tmp_path / "two.json").symlink_to("one.json")
    (tmp_path / "one.json").symlink_to("two.json")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "LC_ALL": locale,
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }
    script = "import sys, os; from seepage.cli import app; app()"

    def said(*arguments: str | bytes) -> str:
        command = [sys.executable, "-c", script, "ledger", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, cwd=tmp_path)  # noqa: S603
        assert done.returncode == 2, done.stderr
        assert done.stderr.count(b"\n") == 1
        return done.stderr.decode("ascii", "backslashreplace")

    assert "form a loop" in said("show", "--ledger", "one.json")
    assert "There is no ledger" in said("void", "1", "--reason", "\u2603", "--ledger", b"\xff")

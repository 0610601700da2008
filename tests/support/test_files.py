"""Files with per-record numbers: whole or absent, and for their owner only."""

import os
import stat
from types import SimpleNamespace

import pytest

from seepage.support import files
from seepage.support.files import hold, only_writer, write_private


def test_file_is_whole_and_for_its_owner_only(tmp_path):
    path = tmp_path / "deep" / "numbers.json"
    previous = os.umask(0)
    try:
        write_private(path, lambda file: file.write(b"{}"))
    finally:
        os.umask(previous)
    assert path.read_bytes() == b"{}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["numbers.json"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "numbers.json"
    path.write_text("old")

    def fail(file):
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_private(path, fail)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["numbers.json"]


def test_what_killed_writers_left_goes_and_what_others_write_stays(tmp_path):
    left, alive = (tmp_path / f".numbers.json.{8 * c}.seepage-part" for c in "ab")
    left.touch()
    alive.touch()
    lock = hold(alive)
    try:
        write_private(tmp_path / "numbers.json", lambda file: file.write(b"{}"))
    finally:
        os.close(lock)
    assert {p.name for p in tmp_path.iterdir()} == {"numbers.json", alive.name}


def test_without_locks_files_are_written_and_nothing_counts_as_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "fcntl", None)
    left = tmp_path / ".numbers.json.aaaaaaaa.seepage-part"
    left.touch()
    path = tmp_path / "numbers.json"
    with only_writer(path):
        write_private(path, lambda file: file.write(b"{}"))
    assert path.read_bytes() == b"{}"
    assert left.is_file()
    assert hold(path) is None


def test_a_file_removed_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    removed = []

    def lock(handle, how):
        if not removed:  # another process took the new file for one left behind
            removed.extend(tmp_path.glob(".numbers.json.*"))
            removed[0].unlink()

    monkeypatch.setattr(files, "fcntl", SimpleNamespace(flock=lock, LOCK_EX=2, LOCK_NB=4))
    write_private(tmp_path / "numbers.json", lambda file: file.write(b"{}"))
    assert len(removed) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["numbers.json"]
    assert (tmp_path / "numbers.json").read_bytes() == b"{}"

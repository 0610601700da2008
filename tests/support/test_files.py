"""Files with per-record numbers: whole or absent, and for their owner only."""

import os
import stat

import pytest

from seepage.support.files import write_private


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

"""Room for numbers of every record: in memory, or in a file that nobody else can open."""

import gc
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import seepage.support.room as room
from seepage.errors import InputError
from seepage.support.room import computed, copied, room_for, sorted_numbers

ROWS = 5000


@pytest.fixture
def on_disk(monkeypatch, tmp_path):
    """Have every number on disk, in a folder of its own."""
    monkeypatch.setattr(room, "IN_MEMORY", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def mapped(folder):
    """Return the lines on files of a folder that are mapped into this process."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if str(folder) in line]


def test_few_numbers_are_an_array_and_many_a_file_without_a_name(on_disk, monkeypatch):
    numbers = room_for(3, ROWS)
    numbers[...] = np.arange(3.0)[:, None]
    assert isinstance(numbers.base, np.memmap)
    assert list(on_disk.iterdir()) == []  # nobody else can open it, and nothing is left behind
    assert numbers.sum(axis=1).tolist() == [0.0, ROWS, 2.0 * ROWS]
    assert len(mapped(on_disk)) == 1
    del numbers
    gc.collect()
    assert mapped(on_disk) == []
    monkeypatch.setattr(room, "IN_MEMORY", 8 * ROWS)
    assert room_for(ROWS).base is None


def test_functions_of_numbers_are_those_of_arrays(on_disk, monkeypatch):
    values = np.random.default_rng(0).standard_normal(ROWS)
    monkeypatch.setattr(room, "_AT_ONCE", 300)
    np.testing.assert_array_equal(sorted_numbers(values), np.sort(values))
    np.testing.assert_array_equal(copied(values), values)
    np.testing.assert_array_equal(computed(np.hypot, values, values), np.hypot(values, values))


def test_a_process_that_is_killed_leaves_nothing(tmp_path):
    code = (
        "import os, seepage.support.room as room; room.IN_MEMORY = 0; "
        "numbers = room.room_for(100_000); numbers[:] = 1; os.kill(os.getpid(), 9)"
    )
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("reserved", [True, False])
def test_a_full_disk_is_told_in_a_sentence(on_disk, monkeypatch, reserved):
    if not reserved:  # as on systems that cannot reserve space
        monkeypatch.delattr(os, "posix_fallocate")
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, kept[1]))
    try:
        with pytest.raises(InputError, match=r"need 0\.08 GB of temporary .* \(File too large\)"):
            room_for(10_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(on_disk.iterdir()) == []

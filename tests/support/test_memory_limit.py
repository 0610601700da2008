"""Under a memory limit a command ends with a sentence and status 2, never a false verdict."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

resource = pytest.importorskip("resource")

HEAD = """
import ctypes, os, sys
from seepage import cli
from seepage.support import memory_limit
memory_limit.os.cpu_count = lambda: 1
cli.app = lambda: {what}
cli.main()
"""


def run(code, limit):
    return subprocess.run(  # noqa: S603
        [sys.executable, "-c", code],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("what", "status"),
    [
        ("sys.exit(1)", 1),  # a limit is exceeded
        ("sys.exit(0)", 0),
        ("None", 0),
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), 15)", 143),
        ("ctypes.CDLL(None).exit(1)", 2),  # as OpenBLAS does
        ("os._exit(255)", 2),
    ],
)
def test_only_a_status_that_seepage_chose_is_passed_on(what, status):
    """A library's own status 1 read as a limit that is exceeded."""
    said = run(HEAD.format(what=what), 4 * 10**9)
    assert said.returncode == status, said.stderr
    assert ("memory limit of this shell (4 GB) is too low" in said.stderr) == (status == 2)


@pytest.mark.parametrize("limit", [4 * 10**8, 10**9])
def test_a_limit_too_low_for_the_libraries_is_named(limit):
    """Commands hung, or failed with status 3 or 255."""
    said = run("from seepage import cli; cli.main()", limit)
    assert said.returncode == 2, said.stderr
    assert said.stderr.startswith("error: The memory limit of this shell (")
    assert said.stderr.count("\n") == 1

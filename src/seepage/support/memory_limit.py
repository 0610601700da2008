"""Runs the command in a child process if memory is limited (``ulimit -v``).

If OpenBLAS gets no memory for its buffers, it exits with status 1, the status that seepage uses
for an exceeded privacy limit. If it gets no memory for its threads, it may hang. Python cannot
prevent either. Under a memory limit, the command therefore runs in a child process that reports its
normal end. If there is no report, the parent process treats the run as failed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]


def memory_limit() -> int | None:
    """Return the limit on this process's address space in bytes, if there is one."""
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def least_memory() -> int:
    """Return the address space in bytes needed to load the libraries, with a margin.

    A trial without threads needed 0.6 GB; each thread needs an additional stack and buffers.
    """
    return 10**9 + (os.cpu_count() or 1) * 10**8


def run_in_child(run: Callable[[], object]) -> int | None:
    """Run a function in a child process, and return the exit status.

    The status is ``None`` if a library ended the process without an exception.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            run()
        except SystemExit:
            os.write(writing, b".")
            raise
        os.write(writing, b".")
        raise SystemExit(0)
    os.close(writing)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the child that is interrupted
    try:
        _, ended = os.waitpid(child, 0)
    finally:
        signal.signal(signal.SIGINT, before)
    planned = os.read(reading, 1) == b"."
    os.close(reading)
    status = os.waitstatus_to_exitcode(ended)
    if status < 0:  # by a signal, as shells state it
        return 128 - status
    return status if planned else None

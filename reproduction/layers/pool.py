"""Runs jobs in processes until all are done or the time is up, and keeps each result at once."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from seepage.errors import InputError

Found = dict[str, Any]

_refusal: str | None = None  # of a worker: why it could not be prepared


class NotPreparedError(InputError):
    """Workers lack what every job needs, so no job can run."""


def run_jobs(
    work: Callable[..., Found],
    jobs: Iterable[tuple[Any, ...]],
    *,
    keep: Callable[[Found], object],
    prepare: Callable[..., None],
    given: tuple[Any, ...],
    workers: int,
    stop: float,
) -> bool:
    """Run ``work(*job)`` for every job; return whether all ended before ``stop``.

    A job that fails is named and left out; if ``prepare`` fails, none can run, and its error is
    raised.

    Parameters
    ----------
    work, jobs
        The work, and its arguments.
    keep
        Called with each result, in this process.
    prepare, given
        Called once in every worker, and its arguments.
    workers
        Processes; 0 for most cores.
    stop
        A time of ``time.monotonic()``, after which unfinished jobs are abandoned.
    """
    pool = ProcessPoolExecutor(
        workers or max(1, (os.cpu_count() or 1) - 2),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_started,
        initargs=(prepare, given),
    )
    finished = False
    try:
        waiting: set[Future[Found]] = {pool.submit(_done, work, job) for job in jobs}
        while waiting:
            ready, waiting = wait(
                waiting, timeout=max(0.0, stop - time.monotonic()), return_when=FIRST_COMPLETED
            )
            if not ready:
                print(f"time is up: {len(waiting)} jobs are left out", flush=True)
                return False
            for future in ready:
                try:
                    found = future.result()
                except NotPreparedError:
                    raise
                except (InputError, RuntimeError) as error:  # a training that diverged, say
                    print(f"a job is left out: {error}", flush=True)
                else:
                    keep(found)
        finished = True
    finally:
        if not finished:
            for process in list((pool._processes or {}).values()):
                process.terminate()  # unfinished work is not waited for
        pool.shutdown(wait=finished, cancel_futures=True)
    return True


def _started(prepare: Callable[..., None], given: tuple[Any, ...]) -> None:
    """Prepare a worker; an error here would end it without a word."""
    global _refusal
    try:
        prepare(*given)
    except InputError as error:
        _refusal = str(error)


def _done(work: Callable[..., Found], job: tuple[Any, ...]) -> Found:
    if _refusal is not None:
        raise NotPreparedError(_refusal)
    return work(*job)


def write_runs(record: dict[str, Any], out: Path, names: Sequence[str]) -> None:
    """Write a file of runs whole or not at all, one run per line, in the order of some values."""
    runs = sorted(record["runs"], key=lambda run: [run[name] for name in names])
    head = json.dumps({k: v for k, v in record.items() if k != "runs"}, ensure_ascii=False)
    lines = ",\n".join(json.dumps(run, ensure_ascii=False) for run in runs)
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(out.name + ".part")
    part.write_text(f'{head[:-1]}, "runs": [\n{lines}\n]}}\n', encoding="utf-8")
    part.replace(out)

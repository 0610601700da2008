"""Parquet files spread over the workers of a Dask cluster, which read, encode and measure them.

Each worker processes some row groups of a file. Rows are in the order of the files, so the results
equal those of a single machine that reads all files. Only sums, a view's per-record numbers and,
for risks of people or groups, rows are sent to the client.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, reduce
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from operator import add
from typing import Any, TypeVar

from seepage.errors import InputError
from seepage.streams.dask.tasks import each_task, fetch_each, sum_over
from seepage.streams.disk.files import Batches, ParquetFiles
from seepage.streams.disk.source import ParquetRows, sum_pieces
from seepage.support.chunks import usable_cores
from seepage.tables.columns import Piece, TableEncoding
from seepage.tables.source import AnswerIfAny, Chunk

Answer = TypeVar("Answer")


class SpreadFiles(ParquetFiles):
    """Parquet files that the workers of a cluster read; every worker must be able to open them."""

    def __init__(self, files: Batches, client: Any) -> None:
        if not isinstance(files, ParquetFiles):
            raise InputError(
                "Partitioned folders (key=value) cannot be spread over a cluster; pass a plain "
                "folder of Parquet files."
            )
        self.__dict__.update(files.__dict__)
        self.client = client
        self._counted: list[tuple[Batches, list[tuple[Batches, int]]]] = []

    def spread(self) -> SpreadFiles:
        """Return this object, since its files are on the cluster."""
        return self

    def total(
        self,
        batches: Batches,
        coding: TableEncoding,
        function: Callable[[Chunk], Answer],
        what: str,
        extra: Sequence[str],
    ) -> Answer:
        """Return the sum of the results over all chunks, added in a tree."""
        asked = partial(
            _summed, coding=coding, function=function, extra=tuple(extra), sharing=self._sharing()
        )
        found: Answer = sum_over(asked, self._parts(batches), what, self.client)
        return found

    def sum_pieces(
        self, batches: Batches, columns: Sequence[str], function: Callable[[list[Piece]], Answer]
    ) -> Answer | None:
        """Return the sum of the results over pieces of raw columns, or ``None`` without rows."""
        parts = [(part, 0) for part in batches.parts()]
        if not parts:
            return None
        asked = partial(
            _pieces_summed, columns=tuple(columns), function=function, sharing=self._sharing()
        )
        given: tuple[Answer, ...] = sum_over(asked, parts, "scan", self.client).given
        return given[0] if given else None

    def each(
        self,
        batches: Batches,
        coding: TableEncoding,
        function: Callable[[Chunk], Answer],
        what: str,
        extra: Sequence[str],
    ) -> Iterator[Answer]:
        """Yield the results for all chunks in row order."""
        asked = partial(
            _listed, coding=coding, function=function, extra=tuple(extra), sharing=self._sharing()
        )
        for answers in fetch_each(each_task(asked, self._parts(batches), what), self.client):
            yield from answers

    def _parts(self, batches: Batches) -> list[tuple[Batches, int]]:
        """Return the parts that have rows, each with the position of its first row."""
        for known, counted in self._counted:
            if known is batches:
                return counted
        parts = batches.parts()
        lengths: list[int] = sum_over(_rows, [(part,) for part in parts], "rows", self.client)
        starts = list(accumulate(lengths, initial=0))
        counted = [(part, starts[k]) for k, part in enumerate(parts) if lengths[k]]
        self._counted.append((batches, counted))
        return counted

    def _sharing(self) -> int:
        """Return how many tasks may run on one machine at the same time."""
        tasks: Counter[str] = Counter()
        for address, threads in self.client.nthreads().items():
            tasks[address.rpartition(":")[0]] += threads
        return max(tasks.values(), default=1)


def _on_part(
    part: Batches,
    start: int,
    coding: TableEncoding,
    function: Callable[[Chunk], Answer],
    extra: tuple[str, ...],
    sharing: int,
) -> Iterator[Answer]:
    """Yield the results for a part's chunks, on the worker that reads the part."""

    def moved(chunk: Chunk) -> Answer:
        return function(replace(chunk, start=chunk.start + start))

    return ParquetRows(part, coding, _threads(sharing)).each(moved, "", extra)


def _summed(part: Batches, start: int, **asked: Any) -> Any:
    return reduce(add, _on_part(part, start, **asked))


def _listed(part: Batches, start: int, **asked: Any) -> list[Any]:
    return list(_on_part(part, start, **asked))


def _pieces_summed(
    part: Batches,
    start: int,
    columns: tuple[str, ...],
    function: Callable[[list[Piece]], Any],
    sharing: int,
) -> AnswerIfAny:
    found = sum_pieces(part, columns, function, _threads(sharing))
    return AnswerIfAny(()) if found is None else AnswerIfAny((found,))


def _rows(part: Batches) -> list[int]:
    return [part.rows]


def _threads(sharing: int) -> int:
    """Return the number of threads per task if ``sharing`` tasks share the cores."""
    return max(1, usable_cores() // sharing)


@contextmanager
def on_cluster(address: str | None, workers: int | None) -> Iterator[Any]:
    """Yield a client of the cluster on which a command runs.

    With ``address``, such as ``tcp://…``, the cluster is the scheduler at that address. With
    ``workers``, it is this number of single-threaded processes, which run until the work ends.
    """
    if address is not None and workers is not None:
        raise InputError("Give either --dask or --workers, not both.")
    if find_spec("distributed") is None:
        raise InputError(
            "Clusters need Dask, which is not installed; run: pip install 'seepage[dask]'"
        )
    distributed: Any = import_module("distributed")
    if workers is not None:
        if workers < 1:
            raise InputError(f"--workers must be at least one, not {workers}.")
        options = {
            "n_workers": workers,
            "threads_per_worker": 1,
            # Whoever may talk to a scheduler may run programs as the one who started it, and its
            # port is open to everyone on this machine: it accepts only holders of the certificate,
            # which is made for this cluster, kept in memory and given to the workers alone.
            "protocol": "tls",
            "security": _throw_away_certificates(distributed),
            # Its web pages would need no login, so there are none.
            "dashboard_address": None,
            "scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"},
        }
        no_pages: dict[str, Any] = {
            f"distributed.{who}.http.routes": [] for who in ("scheduler", "worker")
        }
        with (
            import_module("dask").config.set(no_pages),
            distributed.LocalCluster(**options) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield client
        return
    try:
        # A client that is given a malformed address never closes: it stays the one that all Dask of
        # this process waits for, and delays the process's end by 20 seconds.
        scheme, place = distributed.comm.parse_address(address)
        distributed.comm.registry.get_backend(scheme)
        distributed.comm.parse_host_port(place)
        client = distributed.Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise InputError(
            f"There is no Dask scheduler at {address!r}: {error}. Check the address."
        ) from error
    with client:
        yield client


def _throw_away_certificates(distributed: Any) -> Any:
    if find_spec("cryptography") is None:
        raise InputError(
            "--workers encrypts traffic between processes with the package cryptography, which is "
            "not installed; run: pip install 'seepage[dask]'"
        )
    return distributed.Security.temporary()

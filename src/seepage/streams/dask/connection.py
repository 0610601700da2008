"""The cluster that a command works on: one that runs already, or processes of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from seepage.errors import InputError


@contextmanager
def on_cluster(address: str | None, workers: int | None) -> Iterator[Any]:
    """Give a client of a cluster, or ``None`` where neither is asked for.

    It is that of a scheduler at an address, ``tcp://…``, or of so many processes that are started
    here, of one thread each, for the time of the work.
    """
    if address is None and workers is None:
        yield None
        return
    if address is not None and workers is not None:
        raise InputError("Give --dask or --workers, not both.")
    if find_spec("distributed") is None:
        raise InputError("Clusters need Dask, which is not installed: pip install 'seepage[dask]'")
    distributed: Any = import_module("distributed")
    if workers is not None:
        if workers < 1:
            raise InputError(f"--workers must be at least one, not {workers}.")
        # Its pages at a free port of this machine alone: the usual one may be taken.
        pages = "127.0.0.1:0"
        options = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": pages}
        with (
            distributed.LocalCluster(**options) as cluster,
            distributed.Client(cluster) as client,
        ):
            yield client
        return
    try:
        client = distributed.Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise InputError(f"There is no Dask scheduler at {address}: {error}.") from error
    with client:
        yield client

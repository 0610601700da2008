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
        options = {
            "n_workers": workers,
            "threads_per_worker": 1,
            # Whoever may talk to a scheduler may run programs as the one who started it, and its
            # port is open to everyone on this machine: so it takes only who has the certificate,
            # which is made for this cluster, kept in memory and handed to the workers alone.
            "protocol": "tls",
            "security": _throw_away_certificates(distributed),
            # Its pages would ask nobody who they are: there are none, at a free port.
            "dashboard_address": None,
            "scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"},
        }
        none = {f"distributed.{who}.http.routes": [] for who in ("scheduler", "worker")}
        with (
            import_module("dask").config.set(none),
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


def _throw_away_certificates(distributed: Any) -> Any:
    if find_spec("cryptography") is None:
        raise InputError(
            "--workers encrypts what its processes say to each other, which needs the package "
            "cryptography: pip install 'seepage[dask]'"
        )
    return distributed.Security.temporary()

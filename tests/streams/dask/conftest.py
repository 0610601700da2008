"""Two workers, in processes or in threads, and a watch on what comes back from them."""

import pickle
from contextlib import contextmanager

import pytest
from distributed import Client, LocalCluster


@contextmanager
def started(**how):
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            silence_logs=50,
            **how,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.fixture(autouse=True)
def rows_stay(monkeypatch):
    """Have one process, too, audit without taking the rows into memory."""
    monkeypatch.setattr("seepage.auditing.trained_model.MOST_TAKEN", 0)


@pytest.fixture(scope="module")
def cluster():
    with started() as client:
        yield client


@pytest.fixture
def threads():
    """Workers of this very process, which start at once."""
    with started(processes=False, protocol="tcp") as client:
        yield client


@pytest.fixture
def gathered(monkeypatch):
    """Watch every single thing that comes to the client: its size in bytes."""
    sizes = []
    plain = Client._gather_remote

    async def watched(self, *arguments, **options):
        response = await plain(self, *arguments, **options)
        sizes.extend(len(pickle.dumps(value)) for value in response.get("data", {}).values())
        return response

    monkeypatch.setattr(Client, "_gather_remote", watched)
    return sizes

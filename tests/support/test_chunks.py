"""Slices for the processor's cores."""

import threading

import numpy as np
import pytest

from seepage.support import chunks


@pytest.mark.parametrize("cores", [1, 2, 3, 16])
@pytest.mark.parametrize("rows", [0, 1, 7, 64, 1000, 1001])
def test_even_slices_share_the_rows_out(rows, cores, monkeypatch):
    monkeypatch.setattr(chunks, "usable_cores", lambda: cores)
    slices = chunks.even_slices(rows, 10, chunk=640)
    assert np.array_equal(
        np.arange(rows), np.concatenate([np.arange(rows)[s] for s in slices] or [[]])
    )
    sizes = [s.stop - s.start for s in slices]
    assert all(size <= 64 for size in sizes)
    if rows <= 64:
        assert len(slices) == min(rows, 1)
    else:
        assert max(sizes[:-1]) == min(sizes[:-1]) >= sizes[-1]
        assert sum(sizes) / cores > 0.8 * max(sizes) * -(-len(sizes) // cores)


def test_on_one_core_the_callers_thread_works(monkeypatch):
    monkeypatch.setattr(chunks, "usable_cores", lambda: 1)
    threads = chunks.spread(lambda piece: (piece, threading.get_ident()), range(3))
    assert list(threads) == [(piece, threading.get_ident()) for piece in range(3)]

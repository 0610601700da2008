"""Work on chunks keeps its order, holds few of them, and gives its threads back."""

from __future__ import annotations

import threading
import time

import pytest
from threadpoolctl import threadpool_info

from seepage.streams.disk.source import in_order


def test_answers_come_in_order_whoever_is_first():
    def work(k):
        time.sleep(0.02 if k % 3 == 0 else 0)
        return k

    assert list(in_order(iter(range(20)), work)) == list(range(20))


def test_few_pieces_are_held_at_a_time():
    held, most, lock = set(), [0], threading.Lock()

    def pieces():
        for k in range(50):
            with lock:
                held.add(k)
                most[0] = max(most[0], len(held))
            yield k

    for k in in_order(pieces(), lambda k: k):
        with lock:
            held.discard(k)
    assert most[0] <= 10


def test_an_error_ends_the_work_and_threads_are_given_back():
    before = [pool["num_threads"] for pool in threadpool_info()]

    def work(k):
        if k == 3:
            raise ValueError("three")
        return k

    with pytest.raises(ValueError, match="three"):
        list(in_order(iter(range(1000)), work))
    assert [pool["num_threads"] for pool in threadpool_info()] == before

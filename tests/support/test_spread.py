"""Work spread over threads keeps its order, holds few pieces, and gives its threads back."""

from __future__ import annotations

import threading
import time

import pytest
from threadpoolctl import threadpool_info

from seepage.support.chunks import spread, usable_cores

pytestmark = pytest.mark.parametrize("workers", [None, 1, 8])


def test_answers_come_in_order_whoever_is_first(workers):
    def work(k):
        time.sleep(0.02 if k % 3 == 0 else 0)
        return k

    assert list(spread(work, iter(range(20)), workers)) == list(range(20))


def test_few_pieces_are_held_at_a_time(workers):
    held, most, lock = set(), [0], threading.Lock()

    def pieces():
        for k in range(50):
            with lock:
                held.add(k)
                most[0] = max(most[0], len(held))
            yield k

    for k in spread(lambda k: k, pieces(), workers):
        with lock:
            held.discard(k)
    assert most[0] <= (workers or usable_cores()) + 2


def test_an_error_ends_the_work_and_threads_are_given_back(workers):
    before = [pool["num_threads"] for pool in threadpool_info()]

    def work(k):
        if k == 3:
            raise ValueError("three")
        return k

    with pytest.raises(ValueError, match="three"):
        list(spread(work, iter(range(1000)), workers))
    assert [pool["num_threads"] for pool in threadpool_info()] == before


def test_no_more_is_begun_once_the_caller_stops(workers):
    begun = []

    def work(k):
        begun.append(k)
        return k

    answers = spread(work, iter(range(1000)), workers)
    assert next(answers) == 0
    answers.close()
    assert len(begun) <= (workers or usable_cores()) + 1

"""Sum what the workers find in a tree, so that no machine ever holds more than a few parts."""

from __future__ import annotations

import re
import uuid
import warnings
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

FAN_IN = 8  # sums that are added up by one task


def named(what: str) -> str:
    """Return a fresh prefix for the keys of tasks, by which Dask's dashboard calls them."""
    return f"{re.sub(r'[^a-z0-9]+', '_', what.lower()).strip('_')}-{uuid.uuid4().hex}"


def tree_sum(parts: Sequence[Any], what: str) -> Any:
    """Return the delayed sum (by ``+``) of delayed parts, ``FAN_IN`` of them at a time.

    The order of the additions depends on the number of parts alone, and not on which worker is
    done first: the same parts give the same sum to the last digit.
    """
    from dask.delayed import delayed

    level, depth = list(parts), 0
    while len(level) > 1:
        prefix, depth = named(f"{what} sum {depth}"), depth + 1
        level = [
            delayed(_sum, pure=False)(level[k : k + FAN_IN], dask_key_name=f"{prefix}-{k}")
            for k in range(0, len(level), FAN_IN)
        ]
    return level[0]


def fetch(delayed: Any, client: Any = None) -> Any:
    """Compute a small result, on a client's cluster or by Dask's own choice, and bring it here."""
    with warnings.catch_warnings():
        # What all rows have in common (matrices of d × d numbers) travels in the graph on purpose:
        # data that are scattered instead would be lost with the worker that holds them.
        warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
        return delayed.compute() if client is None else client.compute(delayed).result()


def _sum(parts: list[Any]) -> Any:
    return reduce(add, parts)

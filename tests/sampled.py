"""Which cases of a long list `make test` runs; the others are left to `make test-slow`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest


def sampled(
    cases: Sequence[Any],
    sample: int | Collection[Any],
    slow: int | Collection[Any] | None = None,
    *,
    whole: bool = False,
) -> list[Any]:
    """Return the cases for ``parametrize``, with all but a sample marked as slow.

    ``sample`` names the cases that every run tries, or says how many: from the first to the last
    at even distances. Of the others, those in ``slow`` are slow, by default every third, and the
    rest is left to runs that may take minutes. Cases that are tuples have a value for every
    parameter, unless they are taken as a ``whole``, as by a fixture.
    """
    first = _places(cases, sample)
    second = set(range(0, len(cases), 3)) if slow is None else _places(cases, slow)
    return [
        pytest.param(
            *(case if isinstance(case, tuple) and not whole else (case,)),
            marks=[] if k in first else [pytest.mark.slow if k in second else pytest.mark.minutes],
        )
        for k, case in enumerate(cases)
    ]


def _places(cases: Sequence[Any], sample: int | Collection[Any]) -> set[int]:
    if isinstance(sample, int):
        steps = max(sample - 1, 1)
        return {k * (len(cases) - 1) // steps for k in range(sample)}
    places = {k for k, case in enumerate(cases) if case in sample}
    if len(places) != len(sample):
        raise ValueError(f"not every one of {sample} is among the cases")
    return places

"""Linear models drawn at random, every view and measure against 60 digits."""

from __future__ import annotations

import pytest
from checking import judge
from problems import KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_of_every_kind(kind: str) -> None:
    for seed in range(1000, 1004):
        verdict = judge(seed, kind)
        assert not verdict.broken, f"seed {seed}: {verdict.broken}"


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 300, 25))
def test_many_drawn_from_all_kinds(start: int) -> None:
    for seed in range(start, start + 25):
        verdict = judge(seed)
        assert not verdict.broken, f"seed {seed}: {verdict.broken}"

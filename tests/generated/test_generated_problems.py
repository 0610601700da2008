"""Linear models drawn at random, every view and measure against 60 digits."""

from __future__ import annotations

import pytest
from checking import judge
from problems import KINDS

from sampled import sampled


@pytest.mark.parametrize("kind", sampled(KINDS, ["everything"], 7))
def test_a_few_of_every_kind(kind: str) -> None:
    for seed in range(1000, 1004):
        verdict = judge(seed, kind)
        assert not verdict.broken, f"seed {seed}: {verdict.broken}"


@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        # Matrix noise on shifted columns: the terms of one record's intercept cancel 3,000-fold.
        (767884104, "offsets"),
        # A record of nothing but zeros, whose label shows nothing, beside one that holds the fit.
        (767884432, "more columns than records"),
        # Margins of softmax of 5e4, whose differences of 9 are what the curvature depends on.
        (706211480, "weak penalty"),
        # A coefficient that is next to nothing, and no better known than slopes are
        (801649013, "more columns than records"),
        # Separable but for two records that contradict each other, and a penalty that is nothing
        # beside the columns: refused by that name
        (599020331, "everything"),
        (730405649, "weak penalty"),
        # Coefficients of 6,000 that cancel in margins of 1: no gradient is small beside its slopes
        (951681076, "weak penalty"),
        # A record whose slope is 1e-167
        (30000777, "weak penalty"),
        # All counts alike, so that no column shows anything
        (30000282, "more columns than records"),
        # Separable, and no curvature left where the penalty alone holds a class
        (30000330, "everything"),
        (30000627, "everything"),
        # A record of zeros, whose one count is fitted to the last digit
        (40000711, "more columns than records"),
        # Curvatures of 1e-12: the Hessian was taken where margins still moved by 1e-13.
        (421317, "everything"),
    ],
)
def test_problems_that_once_broke_a_rule(seed: int, kind: str) -> None:
    verdict = judge(seed, kind)
    assert verdict.kind == kind
    assert not verdict.broken


@pytest.mark.minutes
@pytest.mark.parametrize("start", range(0, 300, 25))
def test_many_drawn_from_all_kinds(start: int) -> None:
    for seed in range(start, start + 25):
        verdict = judge(seed)
        assert not verdict.broken, f"seed {seed}: {verdict.broken}"

"""Comparisons of members with non-members, record by record, beside simulation."""

import numpy as np
import pytest

from seepage.attacks.halves import random_halves
from seepage.attacks.intervals import contrast


def test_every_record_is_compared_with_itself():
    inside = random_halves(40, 6, 0)
    assert np.all(inside.sum(axis=0) == 3)
    easy = np.linspace(0, 1, 40)  # what makes some records easier cancels
    found = contrast(easy + 0.25 * inside, inside)
    assert found.difference == pytest.approx(0.25)
    assert found.inside == pytest.approx(easy.mean() + 0.25)
    assert found.outside == pytest.approx(easy.mean())
    assert found.difference_error < found.inside_error


def test_without_any_spread_there_is_still_an_error():
    inside = random_halves(50, 4, 0)
    found = contrast(np.zeros((4, 50)), inside)
    assert found.difference == 0
    assert found.difference_error == pytest.approx(1 / 50)


@pytest.mark.parametrize("between", [0.0, 0.1])
def test_intervals_cover_a_true_difference(between):
    """At least 93 of 100 intervals cover it, with records of all kinds and models of two."""
    rng = np.random.default_rng(1)
    covered, runs, rise = 0, 400, 0.1
    for run in range(runs):
        inside = random_halves(60, 10, run)
        easy = rng.uniform(0.2, 0.6, 60)
        models = rng.normal(0, between, 10)[:, None]
        chance = np.clip(easy + models + rise * inside, 0, 1)
        ends = contrast((rng.random(chance.shape) < chance).astype(float), inside).interval(
            "difference"
        )
        covered += ends.low <= rise <= ends.high
    assert covered >= 0.93 * runs

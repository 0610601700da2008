"""Accuracies and their intervals: against scipy's, by simulation, and in the corners."""

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binomtest

import seepage as sp
from seepage.attacks import InversionResult
from seepage.attacks.intervals import (
    _GroupedScores,
    accuracy_interval,
    area_under_curve,
    stratified_difference,
    wilson,
)
from seepage.errors import InputError


@pytest.mark.parametrize(("right", "count"), [(0, 1), (1, 1), (0, 20), (7, 20), (20, 20), (3, 900)])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_wilson_is_that_of_scipy(right, count, level):
    theirs = binomtest(right, count).proportion_ci(level, method="wilson")
    ours = wilson(right / count, count, level)
    assert ours == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@pytest.mark.parametrize("right", [0, 1, 13, 30])
def test_one_release_has_the_interval_of_its_records(right):
    hits = (np.arange(30) < right)[None, :]
    assert accuracy_interval(hits) == pytest.approx(wilson(right / 30, 30))


def test_one_record_has_an_interval_over_the_releases():
    hits = (np.arange(40) < 10)[:, None]
    low, high = accuracy_interval(hits)
    expected = wilson(0.25, 39)  # the sample variance knows one degree of freedom less
    assert (low, high) == pytest.approx(expected)


def test_releases_that_agree_in_everything_count_once():
    one = (np.arange(50) % 3 == 0)[None, :]
    assert accuracy_interval(np.repeat(one, 80, axis=0)) == pytest.approx(accuracy_interval(one))


def test_where_all_guesses_are_right_the_interval_has_a_width():
    low, high = accuracy_interval(np.ones((100, 25), dtype=bool))
    assert (low, high) == pytest.approx(wilson(1.0, 25))
    assert low < 0.9


def _simulated(rng, mean, of_rows, of_trials, n, trials):
    """Right and wrong guesses whose odds depend on the record and on the release."""
    latent = mean + of_rows * rng.standard_normal(n) + of_trials * rng.standard_normal((trials, 1))
    return rng.random((trials, n)) < ndtr(latent)


@pytest.mark.parametrize(("of_rows", "of_trials"), [(0.0, 0.0), (1.0, 0.0), (0.0, 0.5), (1.0, 0.5)])
def test_intervals_hold_what_they_promise(of_rows, of_trials):
    rng = np.random.default_rng(0)
    mean, n, trials = 0.4, 80, 25
    truth = ndtr(mean / np.sqrt(1 + of_rows**2 + of_trials**2))
    inside = 0
    for _ in range(400):
        low, high = accuracy_interval(_simulated(rng, mean, of_rows, of_trials, n, trials))
        inside += low <= truth <= high
    # Never too narrow by more than chance (400 draws: ± 2 %) and few releases explain.
    assert inside / 400 >= 0.92


def test_intervals_of_differences_hold_what_they_promise():
    rng = np.random.default_rng(1)
    inside = 0
    truth = ndtr(0.7 / np.sqrt(2.25)) - ndtr(0.2 / np.sqrt(2.25))
    for _ in range(400):
        shared = 0.5 * rng.standard_normal((25, 1))
        sides = [
            rng.random((25, 80)) < ndtr(mean + rng.standard_normal(80) + shared)
            for mean in (0.7, 0.2)
        ]
        gap, (low, high) = stratified_difference([(1.0, *sides)])
        assert low <= gap <= high
        inside += low <= truth <= high
    assert inside / 400 >= 0.92


def test_differences_without_any_variance_still_have_a_width():
    right, wrong = np.ones((1, 10), dtype=bool), np.zeros((1, 10), dtype=bool)
    gap, (low, high) = stratified_difference([(1.0, right, wrong)])
    assert gap == 1
    assert high - low > 0.2


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0, -0.1])
def test_levels_out_of_range_are_refused(level):
    with pytest.raises(sp.InputError, match="between 0 and 1"):
        wilson(0.5, 10, level)


def _result():
    hits = np.array([[1, 1, 0, 0, 1], [1, 0, 0, 0, 1]], dtype=bool)
    return InversionResult("white-box", "gene", 3, hits)


def test_accuracies_by_record_release_and_group():
    result = _result()
    assert result.accuracy == 0.5
    assert result.row_accuracy.tolist() == [1, 0.5, 0, 0, 1]
    assert result.trial_accuracy.tolist() == [0.6, 0.4]
    assert result.kind == "attack"
    groups = result.by(["b", "b", "a", "a", "b"])
    assert [(g.group, g.rows, g.accuracy) for g in groups] == [("a", 2, 0.0), ("b", 3, 5 / 6)]
    assert groups[1].interval == accuracy_interval(result.hits[:, [0, 1, 4]])
    gap, (low, high) = result.difference(["b", "b", "a", "a", "b"], "b", "a")
    assert gap == pytest.approx(5 / 6)
    assert low < gap < high


def test_groups_of_any_kind_of_label():
    import pandas as pd

    labels = pd.Series(["b", "b", "a", "a", "b"], dtype="category")
    assert [g.group for g in _result().by(labels)] == ["a", "b"]
    assert [g.group for g in _result().by([1, 1, 0, 0, 1])] == [0, 1]


def test_a_result_says_what_it_is():
    low, high = _result().interval
    assert repr(_result()) == (
        f"<white-box on gene (3 levels): accuracy 0.5000, 95 % interval {low:.4f} to {high:.4f}, "
        "5 records in 2 releases>"
    )


def test_groups_must_fit_the_records():
    with pytest.raises(sp.InputError, match="5 records were attacked"):
        _result().by(["a", "b"])
    with pytest.raises(sp.InputError, match="No record belongs to the group 'c'"):
        _result().difference(["b", "b", "a", "a", "b"], "c", "a")


def test_like_is_compared_with_like():
    rng = np.random.default_rng(0)
    levels = np.concatenate([np.arange(400) % 4 == 0, np.arange(400) % 4 != 0]).astype(int)
    groups = np.repeat([0, 1], 400)
    # Only the level decides; the groups hold the levels in different shares.
    hits = rng.random((40, 800)) < np.where(levels == 1, 0.9, 0.4)
    result = InversionResult("", "", 2, hits)
    plain, (low, _) = result.difference(groups, 1, 0)
    assert plain == pytest.approx(0.25, abs=0.03)
    assert low > 0.15
    alike, (low, high) = result.difference(groups, 1, 0, strata=levels)
    assert low < 0 < high
    assert abs(alike) < 0.03


def test_a_level_that_one_group_lacks_is_named():
    result = InversionResult("", "", 2, np.ones((2, 4)))
    with pytest.raises(InputError, match="No record in the stratum 1 belongs to the group 0"):
        result.difference([0, 0, 1, 1], 1, 0, strata=[0, 0, 0, 1])


@pytest.mark.minutes
@pytest.mark.parametrize("area", [0.5, 0.8, 0.98])
@pytest.mark.parametrize(
    ("groups", "each", "alike"),
    [(18, 1, 0.0), (60, 1, 0.0), (6, 3, 0.4), (6, 3, 0.9), (20, 6, 0.9)],
)
def test_areas_are_covered_as_often_as_the_level_says(area, groups, each, alike):
    draw, covered = np.random.default_rng(groups), 0
    truth, group = np.repeat([0, 1], groups * each), np.repeat(np.arange(2 * groups), each)
    for _ in range(1000):
        own, noise = draw.standard_normal(2 * groups)[group], draw.standard_normal(len(group))
        scores = np.sqrt(2) * ndtri(area) * truth + alike**0.5 * own + (1 - alike) ** 0.5 * noise
        _, (low, high) = area_under_curve(scores, truth, groups=group)
        covered += low <= area <= high
    assert 0.93 <= covered / 1000 <= 0.988  # 93 to 98 %, and two standard errors


@pytest.mark.parametrize("each", [1, 3])
def test_a_perfect_and_a_nearly_perfect_order_have_like_intervals(each):
    truth, group = np.repeat([0, 1], 18), np.arange(36) // each
    perfect = np.arange(36.0)
    area, (low, high) = area_under_curve(perfect, truth, groups=group)
    assert (area, high) == (1.0, 1.0)
    nearly = perfect.copy()
    nearly[17], nearly[18] = 18, 17
    close, (below, above) = area_under_curve(nearly, truth, groups=group)
    assert close == pytest.approx(1 - 1 / 324)
    assert low - 0.02 < below < low  # at 8814631: from 0.61 to 0.93
    assert above > 0.999
    turned, ends = area_under_curve(-nearly, truth, groups=group)
    assert turned == pytest.approx(1 - close)
    assert ends == pytest.approx((1 - above, 1 - below), abs=1e-9)


def test_the_ends_are_those_at_which_a_test_just_rejects():
    draw = np.random.default_rng(3)
    z = 1.959963984540054
    truth = np.repeat([0, 1], [7, 11])
    _, (low, high) = area_under_curve(np.arange(18.0), truth)
    assert high == 1
    # V at the lower end, by simulation of what it is defined as: two beat the same third.
    shift = np.sqrt(2) * ndtri(low)
    one, two, third = draw.standard_normal((3, 400_000))
    normal = np.mean((one + shift > third) & (two + shift > third))
    rate = low / (1 - low)  # exponential scores, of which the ones last so much longer
    one, two, third = draw.exponential(size=(3, 400_000))
    longer = np.mean((rate * one > third) & (rate * two > third))
    shorter = np.mean((one < rate * third) & (two < rate * third))
    both = (normal + (longer + shorter) / 2) / 2
    variance = (low * (1 - low) + (7 + 11 - 2) * (both - low**2)) / 77
    assert (1 - low) ** 2 == pytest.approx(z**2 * variance, rel=0.02)


@pytest.mark.parametrize("alike", [0.4, 0.9])
@pytest.mark.parametrize("area", [0.5, 0.9, 0.98])
def test_groups_count_by_how_alike_their_shares_of_rightly_ordered_pairs_are(area, alike):
    """The share of others that a score beats is ``Φ(score)``; its correlation, by simulation."""
    draw = np.random.default_rng(4)
    both = draw.standard_normal(1_000_000)
    beaten = [
        ndtr(alike**0.5 * both + (1 - alike) ** 0.5 * own + np.sqrt(2) * ndtri(area))
        for own in draw.standard_normal((2, len(both)))
    ]
    expected = 60 / (1 + 5 * np.corrcoef(*beaten)[0, 1])
    assert _GroupedScores(60, 6.0, alike).effective_number(area) == pytest.approx(
        expected, rel=0.01
    )

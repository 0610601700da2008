"""Membership and guesses of linear models drawn at random, against refits in 60 digits."""

from __future__ import annotations

import numpy as np
import pytest
from frames import KINDS
from refit_truth import Refits
from risk_checking import judge
from truth import Digits60, NoMinimiserError, Objective, Truth

from sampled import sampled


@pytest.mark.parametrize("kind", sampled(KINDS, 4))
def test_a_few_of_every_kind(kind: str) -> None:
    for seed in range(3000, 3003):
        verdict = judge(seed, kind)
        assert not verdict.broken, f"seed {seed}: {verdict.broken}"


@pytest.mark.parametrize(
    ("seed", "kind"),
    [
        # Columns at 100,000: a refit that was near in the norm of the Hessian was off by 3e-8 in
        # that of the noise, which sees the intercept.
        (1031, "single precision"),
        # Separable without one record: the refit has a millionth of the table's curvature.
        (100066, "as for the views"),
        # Counts whose refit starts where exponentials overflow
        (101018, "as for the views"),
        # People with different numbers of rows whose refits end after different numbers of steps
        (113, "people"),
        # Separable without one record, with both classes left: a weak penalty holds the fit where
        # there is hardly any curvature.
        (2234, "as for the views"),
        # A class without records: the gradient died away before the intercept had diverged.
        (3846, "people"),
        # Columns near 100,000 and an intercept: the move of a replaced record is the small sum of
        # two long vectors, whose products are rounded.
        (2304, "single precision"),
        # A move of 6e-11: differences of slopes are no more exact than the slopes.
        (2718, "single precision"),
        # Without a person the curvature is gone: the last step was solved as exactly as the
        # table's own curvature asked for, and was 1/60 of what was left.
        (520, "as for the views"),
        # A move 53 orders of magnitude below the coefficients: the refits' own digits end there.
        (40075, "class weights"),
        # More columns than records and a weak penalty: the inverse had no Cholesky factor.
        (350337, "wide"),
        # What only this record carries is taken away: a small difference of products.
        (351687, "nearly interpolating"),
        # Separable without one record, and a start from which Newton's method does not arrive
        (361005, "class weights"),
        # A slope that dies away exponentially: Newton's method ended steps before the minimiser.
        (360972, "as for the views"),
        # Columns of 1e-3 and 1e8: the noise sees a coefficient that is a small difference.
        (370137, "as for the views"),
        # A column that one record carries, taken away: a share of 1 but for rounding
        (380582, "single precision"),
        # Counts without a minimiser, whose gradient dies away
        (381276, "as for the views"),
        # A record of hardly any curvature on a wide table: its direction is lost in rounding.
        (381976, "wide"),
        # Nearly everybody leaves a model without a certificate: the penalty holds the rest.
        (390403, "as for the views"),
        # Nearly equal columns and no penalty: rounding ends a refit, but there is a minimiser.
        (401041, "nearly equal columns"),
        (401425, "nearly equal columns"),
        (401552, "nearly equal columns"),
        # Columns at 1e5: the intercept that the noise sees is a sum that cancels.
        (401544, "wide"),
        # Separable without one record, which takes the curvature away that held rounding down
        (401908, "nearly equal columns"),
        # A residual a thousand times smaller than the others, which show their rounding in it
        (410964, "narrow"),
    ],
)
def test_problems_that_once_broke_a_rule(seed: int, kind: str) -> None:
    assert not judge(seed, kind).broken


@pytest.mark.minutes
@pytest.mark.parametrize("start", range(0, 300, 25))
def test_many_drawn_from_all_kinds(start: int) -> None:
    for seed in range(start, start + 25):
        verdict = judge(seed)
        assert not verdict.broken, f"seed {seed}: {verdict.broken}"


@pytest.mark.parametrize(
    ("family", "shape", "ridge"),
    [
        ("gaussian", (6, 9), 1e-8),
        ("gaussian", (12, 3), 0.0),
        ("bernoulli", (7, 11), 1e-6),
        ("poisson", (12, 3), 1e-3),
        ("categorical", (9, 3), 1e-2),
        ("pseudo-huber", (12, 3), 0.1),
    ],
)
def test_the_refits_are_those_of_the_slower_truth(
    family: str, shape: tuple[int, int], ridge: float
) -> None:
    """The two share the losses and nothing else: other coordinates, other steps."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal(shape)
    y = {
        "gaussian": X[:, 0] + rng.standard_normal(len(X)),
        "bernoulli": np.arange(len(X)) % 2.0,
        "poisson": rng.poisson(2.0, len(X)) + 0.0,
        "categorical": np.arange(len(X)) % 3,
        "pseudo-huber": X[:, 0] + rng.standard_normal(len(X)),
    }[family]
    classes = 3 if family == "categorical" else 1
    refits, every = Refits(family, X, y, ridge, True, classes), np.ones(len(X))
    left = every.copy()
    left[2] = 0.0
    here = refits.minimiser(every)
    there = [refits.minimiser(left, here)]
    if family == "gaussian":
        there.append(refits.least_squares(every, np.array([2]), left))
    slow = [
        Truth(Objective(family, X[w > 0], y[w > 0], ridge, True, None, classes), Digits60())
        for w in (every, left)
    ]
    move = slow[0].parameters - slow[1].parameters
    distance = Digits60.sqrt((move * move).sum())
    for one in there:
        assert abs(refits.distance(here, one, np.asarray(1.0)) / distance - 1) < 1e-38


def test_records_that_leave_no_unique_minimiser_are_seen() -> None:
    X, y = np.array([[0.0], [1.0], [1.0]]), np.array([0.0, 1.0, 2.0])
    refits, every = Refits("gaussian", X, y, 0.0, True), np.ones(3)
    with pytest.raises(NoMinimiserError):
        refits.least_squares(every, np.array([0]), np.array([0.0, 1.0, 1.0]))
    with pytest.raises(NoMinimiserError):
        Refits("bernoulli", X, y % 2, 0.1, True).minimiser(np.array([1.0, 0.0, 1.0]))

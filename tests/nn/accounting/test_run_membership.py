"""Trade-off curves of runs against numerical integration over what leaves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm
from small_run import N, small_accountant, small_problem

import seepage as sp
from sampled import sampled
from seepage.nn.privacy.run_membership import (
    RunMembership,
    ShiftGroup,
    own_membership,
    run_membership,
)
from seepage.nn.privacy.run_privacy import Entry, Ledger

RATES = np.array([0.0, 0.001, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0])


def poisson(steps: int, rate: float, sigma: float, clip: float = 1.0) -> Entry:
    return Entry(steps, "poisson", rate, sigma, clip, clip, 1000, declared=True)


def by_integration(shifts: list[float], rate: float) -> tuple[np.ndarray, float]:
    """Return the true positives at RATES and the advantage, by sorting cells of a grid of steps."""
    cells = np.linspace(-8, 8 + max(shifts), 1500)
    middle = (cells[1:] + cells[:-1]) / 2
    without = np.diff(norm.cdf(cells))
    Q, ratio = np.ones(1), np.zeros(1)
    for shift in shifts:
        Q = np.outer(Q, without).reshape(-1)
        step = np.log1p(rate * np.expm1(shift * middle - shift**2 / 2))
        ratio = np.add.outer(ratio, step).reshape(-1)
    P = Q * np.exp(ratio)
    order = np.argsort(-ratio)
    false, true = np.cumsum(Q[order]), np.cumsum(P[order])
    return np.interp(RATES, false, true), float(np.max(true - false))


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "sigma"), [(0.1, 0.8), (0.5, 2.0), (1.0, 1.5)])
def test_one_step_is_the_mixture_of_two_normals(rate: float, sigma: float) -> None:
    found = run_membership(Ledger((poisson(1, rate, sigma),)))
    truth = (1 - rate) * RATES + rate * norm.cdf(norm.ppf(RATES) + 1 / sigma)
    assert found.tpr(RATES) == pytest.approx(truth, abs=2e-4)
    assert np.all(found.tpr(RATES) >= truth - 1e-9)  # never below
    assert found.advantage() == pytest.approx(rate * (2 * norm.cdf(0.5 / sigma) - 1), abs=1e-4)
    assert found.kind == "guarantee"
    for prior in (0.0, 1.0, np.nan):
        with pytest.raises(sp.InputError, match="probability above 0 and below 1"):
            found.accuracy(prior)
    with pytest.raises(sp.InputError, match="false positive rate must be between 0 and 1"):
        found.tpr([0.1, 1.5])


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.2, 0.7])
def test_steps_of_different_noise_compose(rate: float) -> None:
    found = run_membership(Ledger((poisson(1, rate, 1.0), poisson(1, rate, 2.0))))
    truth, advantage = by_integration([1.0, 0.5], rate)
    assert found.tpr(RATES) == pytest.approx(truth, abs=2e-3)
    assert found.advantage() == pytest.approx(advantage, abs=1e-3)
    assert found.accuracy() == pytest.approx((1 + advantage) / 2, abs=1e-3)


@pytest.mark.slow
def test_without_sampling_it_is_gaussian_differential_privacy() -> None:
    ledger = Ledger((Entry(9, "other", 0.1, 3.0, 2.0, 2.0, 1000),))
    twice = run_membership(ledger)  # another record in its place: twice as far
    assert twice.tpr(RATES) == pytest.approx(norm.cdf(norm.ppf(RATES) + 2.0), abs=2e-4)
    found = run_membership(ledger, "zero-out")
    assert found.tpr(RATES) == pytest.approx(norm.cdf(norm.ppf(RATES) + 1.0), abs=2e-4)
    p = 0.2
    shift = np.log(p / (1 - p))
    right = p * norm.cdf(0.5 + shift) + (1 - p) * norm.cdf(0.5 - shift)
    assert found.accuracy(p) == pytest.approx(right, abs=2e-4)


@pytest.mark.parametrize(
    "entry", sampled([poisson(1, 0.5, 2.0), Entry(1, "other", 1, 0.7, 1, 1, 100)], 1)
)
def test_few_rates_are_told_as_among_many(entry: Entry) -> None:
    """Few rates are looked for by halving, many on all lines at once."""
    found = run_membership(Ledger((entry,)))
    rates = np.concatenate((np.geomspace(1e-12, 0.1, 12), np.linspace(0, 1, 11), [1 - 1e-12]))
    few = rates[::4]
    assert found.tpr(few) == pytest.approx(found.tpr(rates)[::4], rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("few", [True, False])
def test_hardly_any_noise_has_a_curve_too(few: bool) -> None:
    """Privacy losses far above what e^ε can hold, on a coarse grid."""
    from dp_accounting.pld import privacy_loss_distribution as losses

    pld = losses.from_gaussian_mechanism(1 / 40, value_discretization_interval=0.05)
    found = RunMembership(pld._pmf_remove, pld._pmf_add, "guarantee", ())
    assert pld.get_epsilon_for_delta(1e-12) > 1000
    rates = np.array([0.0, 1e-300, 1e-280, 0.01, 1.0])
    truth = norm.cdf(norm.ppf(rates) + 40)
    told = found.tpr(rates) if few else found.tpr(np.tile(rates, 5))[:5]
    assert np.all(told >= truth - 1e-9)
    assert told[1:] == pytest.approx(truth[1:], abs=0.02)


@pytest.mark.slow
def test_a_record_of_shorter_gradients_is_told_less() -> None:
    ledger = Ledger((poisson(200, 0.05, 1.0),))
    whole = run_membership(ledger)
    for length in (0.3, 0.7):
        own = own_membership(ledger, [ShiftGroup(7, length**2, 0.0)])
        same = run_membership(Ledger((poisson(200, 0.05, 1.0 / length),)))
        assert own.tpr(RATES) == pytest.approx(same.tpr(RATES), abs=1e-4)  # on a coarser grid
        assert np.all(own.tpr(RATES) <= whole.tpr(RATES) + 1e-9)
        assert own.kind == "estimate"


@pytest.mark.slow
def test_lengths_are_composed_each_with_its_own_steps() -> None:
    """Gradients of lengths 0.4 and 0.9, drawn in turn."""
    ledger = Ledger((poisson(100, 0.05, 1.0),))
    own = own_membership(ledger, [ShiftGroup(3, 0.4**2, 0.0), ShiftGroup(3, 0.9**2, 0.0)])
    turns = run_membership(Ledger((poisson(50, 0.05, 1 / 0.4), poisson(50, 0.05, 1 / 0.9))))
    assert own.tpr(RATES) == pytest.approx(turns.tpr(RATES), abs=1e-4)  # on a coarser grid
    assert own.advantage() == pytest.approx(turns.advantage(), abs=1e-4)
    assert own.doubt == 0


@pytest.mark.slow
def test_an_accountant_tells_curves() -> None:
    net, x, y = small_problem()
    accountant = small_accountant(net)
    for step in range(4):
        index = torch.nonzero(torch.arange(N) % 3 == step % 3).flatten()[:-1]
        accountant.observe(index, x[index], y[index])
    whole = accountant.membership()
    own = accountant.individual_privacy()
    assert whole.kind == "guarantee"
    first = own.membership(0)
    assert first.kind == "estimate"
    assert first.advantage() <= whole.advantage() + 1e-9
    never = own.membership(N - 1)
    assert never.kind == "guarantee"
    assert "no batch" in never.conditions[-1]
    assert never.advantage() == pytest.approx(accountant.membership("zero-out").advantage())
    assert never.advantage() < whole.advantage()  # which is about another in its place
    assert "guarantee, to replace one record: success rate" in repr(whole)
    with pytest.raises(sp.InputError, match="There is no record 99"):
        own.membership(99)


def test_what_no_clip_bounds_is_refused() -> None:
    with pytest.raises(sp.InputError, match="Unclipped gradients can have any norm"):
        run_membership(Ledger((Entry(1, "poisson", 0.1, 1.0, 1.0, float("inf"), 10),)))
    with pytest.raises(sp.InputError, match="No step has been taken yet"):
        run_membership(Ledger())

"""Differential privacy of a run and of single records, against dp-accounting and closed forms."""

import logging
import math
from unittest import TestCase

import dp_accounting as dp
import numpy as np
import pytest
import torch
from dp_accounting.rdp import RdpAccountant

from sampled import sampled
from seepage.errors import InputError
from seepage.nn.accounting.accountant import FisherAccountant
from seepage.nn.privacy.individual_loss import IndividualLoss
from seepage.nn.privacy.individual_privacy import (
    ORDERS,
    IndividualCosts,
    IndividualPrivacy,
    sampled_gaussian_renyi,
)
from seepage.nn.privacy.run_privacy import (
    RELATIONS,
    REPLACE,
    Entry,
    Ledger,
    guarantee,
    renyi,
)


def _ledger(steps=100, sampler="poisson", rate=0.01, sigma=1.0, threshold=1.0, longest=1.0):
    entry = Entry(steps, sampler, rate, sigma, threshold, longest, 60_000, declared=True)
    return Ledger((entry,))


def test_order_two_of_poisson_batches_has_a_closed_form():
    q, sigma = 0.01, 0.8
    want = 100 * math.log1p(q**2 * math.expm1(1 / sigma**2))
    assert renyi(_ledger(sigma=sigma), [2])[0] == pytest.approx(want, rel=1e-9)


def test_only_the_ratio_of_noise_and_longest_gradient_counts():
    smooth = _ledger(sigma=1.0, threshold=4.0, longest=1.1152 * 4.0)
    assert renyi(smooth, [2, 8]) == pytest.approx(renyi(_ledger(sigma=1 / 1.1152), [2, 8]))


def test_batches_of_fixed_size_replace_one_record():
    ledger = _ledger(sampler="fixed", sigma=3.0)
    event = dp.SelfComposedDpEvent(
        dp.SampledWithoutReplacementDpEvent(60_000, 600, dp.GaussianDpEvent(1.5)), 100
    )
    accountant = RdpAccountant([2.0, 16.0], dp.NeighboringRelation.REPLACE_ONE).compose(event)
    assert renyi(ledger, [2.0, 16.0]) == pytest.approx(accountant.rdp)
    assert guarantee(ledger, 1e-5).relation == REPLACE


@pytest.mark.parametrize(("neighbours", "apart"), [("replace", 2), ("zero-out", 1)])
def test_other_batches_count_every_step_in_full(neighbours, apart):
    ledger, orders = _ledger(sampler="other", sigma=30.0), [2, 4, 8, 16, 32]
    found = guarantee(ledger, 1e-5, orders=orders, neighbours=neighbours)
    costs = [a * 100 * apart**2 / (2 * 30.0**2) for a in orders]
    want = min(
        c + math.log1p(-1 / a) - math.log(1e-5 * a) / (a - 1)
        for a, c in zip((2, 4, 8, 16, 32), costs, strict=True)
    )
    assert found.epsilon == pytest.approx(want)
    assert found.relation == RELATIONS[neighbours]
    assert guarantee(ledger, 1e-5).relation == REPLACE


def test_a_guarantee_says_what_it_is_about():
    found = guarantee(_ledger(), 1e-5)
    assert str(found) == f"(ε = {found.epsilon:.4g}, δ = 1e-05), to add or remove one record"
    assert float(found) == found.epsilon
    assert found.order is not None


@pytest.mark.slow
def test_loss_distributions_are_tighter():
    rdp = guarantee(_ledger(), 1e-5)
    pld = guarantee(_ledger(), 1e-5, method="pld")
    assert 0.5 * rdp.epsilon < pld.epsilon < rdp.epsilon


def test_entries_with_different_noise_compose():
    both = Ledger((*_ledger(10, sigma=1.0), *_ledger(20, sigma=2.0)))
    parts = renyi(_ledger(10, sigma=1.0), [2]) + renyi(_ledger(20, sigma=2.0), [2])
    assert renyi(both, [2]) == pytest.approx(parts)


def test_unclipped_gradients_have_no_guarantee():
    assert guarantee(_ledger(longest=math.inf), 1e-5).epsilon == math.inf


def test_dp_accountings_complaints_stay_silent():
    with TestCase().assertNoLogs(level=logging.WARNING):
        guarantee(_ledger(rate=0.5, sigma=2.0), 1e-5)  # low orders do not converge here


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: guarantee(_ledger(), 0.0), "delta"),
        (lambda: guarantee(_ledger(), 1e-5, method="gdp"), "method"),
        (lambda: guarantee(_ledger(sampler="fixed"), 1e-5, neighbours="zero-out"), "fixed size"),
    ],
)
def test_what_cannot_be_answered_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_a_ledger_groups_steps_and_survives_storage():
    ledger = Ledger()
    for sigma in (1.0, 1.0, 2.0, 1.0):
        ledger.add(*_ledger(1, sigma=sigma))
    assert [entry.steps for entry in ledger] == [2, 1, 1]
    assert ledger.steps == 4
    assert Ledger.from_json(ledger.to_json()) == ledger
    assert Ledger.from_json(_ledger(longest=math.inf).to_json()) == _ledger(longest=math.inf)


@pytest.mark.parametrize("q", [1e-4, 0.01, 0.3, 1.0])
@pytest.mark.parametrize("shift", [1e-3, 0.1, 1.0, 4.0, 30.0])
def test_single_steps_agree_with_dp_accounting(q, shift):
    event = dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(1 / shift))
    want = RdpAccountant(list(ORDERS)).compose(event).rdp
    found = sampled_gaussian_renyi(q, torch.tensor([shift], dtype=torch.float64))[0].numpy()
    order = np.asarray(ORDERS)
    exact = (order <= 256) | (order * (order - 1) * shift**2 / 2 <= 30)
    # dp-accounting subtracts numbers near one: tiny costs have its absolute error.
    assert found[exact] == pytest.approx(want[exact], rel=1e-9, abs=1e-15)
    assert np.all(found >= want * (1 - 1e-9) - 1e-15)
    assert found[~exact] == pytest.approx(order[~exact] * shift**2 / 2)  # as without sampling


def test_a_record_of_full_length_costs_what_the_run_costs():
    tally = IndividualCosts(2)
    for _ in range(7):
        tally.add(torch.tensor([0]), 0.02, torch.tensor([0.5]))
    worst = torch.as_tensor(renyi(_ledger(400, rate=0.02, sigma=2.0), ORDERS))
    total, error = tally.totals(400, torch.tensor([7, 0]), worst)
    exact = ORDERS.index(256) + 1
    assert total[0, :exact].tolist() == pytest.approx(worst[:exact].tolist(), rel=1e-9)
    assert (total[0] >= worst * (1 - 1e-9)).all()
    assert total[1].tolist() == worst.tolist()  # never seen: the worst case
    assert (error[0] < 1e-6 * total[0]).all()
    assert error[1].isnan().all()


def test_the_cost_between_uses_is_estimated_without_bias():
    # The norm changes over the run; it is seen in a tenth of the steps.
    steps, q, runs = 400, 0.1, 400
    shifts = torch.linspace(0.2, 1.5, steps, dtype=torch.float64)
    truth = float(sampled_gaussian_renyi(q, shifts, (2,)).sum())
    source = torch.Generator().manual_seed(0)
    tally = IndividualCosts(runs, (2,))
    uses = torch.zeros(runs, dtype=torch.int64)
    for step in range(steps):
        index = torch.nonzero(torch.rand(runs, generator=source) < q).flatten()
        tally.add(index, q, shifts[step].expand(len(index)))
        uses[index] += 1
    total, error = (t[:, 0] for t in tally.totals(steps, uses, torch.tensor([math.nan])))
    assert float(total.mean()) == pytest.approx(truth, rel=0.02)
    covered = ((total - truth).abs() < 1.96 * error).double().mean()
    assert 0.91 < float(covered) < 0.98


@pytest.mark.parametrize("q", [1.0, 0.3, 0.01])
@pytest.mark.parametrize("sigma", sampled([0.7, 5.0, 100.0], [5.0]))
def test_no_record_has_less_privacy_than_the_run(q, sigma):
    torch.manual_seed(0)
    net, x, y = torch.nn.Linear(3, 2), torch.randn(8, 3), torch.randint(2, (8,))
    accountant = FisherAccountant(
        net, "cross_entropy", n=8, sample_rate=q, noise_multiplier=sigma, max_grad_norm=1e-3
    )  # every gradient is as long as the threshold
    accountant.check.trust()  # these batches are no Poisson sample
    for _ in range(3):
        accountant.observe([0, 1, 2], x[:3], y[:3])
    own, run = accountant.individual_privacy(), accountant.privacy(1e-5)
    assert np.all(own.epsilon(1e-5) <= run.epsilon)
    assert np.all(own.costs <= renyi(accountant.ledger, ORDERS) * (1 + 1e-12))
    if q == 1.0:  # the orders suffice: a record of full length has the run's own ε, or near it
        alone = IndividualPrivacy(own.orders, own.costs, own.errors).epsilon(1e-5)
        assert alone[0] == pytest.approx(run.epsilon, rel=0.1)
    accountant.observe(range(8), x, y)
    assert own.run_epsilon(1e-5) == run.epsilon  # as it was when it was asked for


def test_individual_epsilons_are_those_of_the_conversion():
    costs = np.outer([1.0, 3.0], np.asarray(ORDERS) / 8.0)
    found = IndividualPrivacy(ORDERS, costs, np.zeros_like(costs))
    accountant = RdpAccountant(list(ORDERS)).compose(dp.GaussianDpEvent(2.0))
    assert found.epsilon(1e-5)[0] == pytest.approx(accountant.get_epsilon(1e-5))
    assert found.rdp(2).tolist() == [0.25, 0.75]
    assert "largest 0.75" in repr(found)
    with pytest.raises(InputError, match="order must be one of"):
        found.rdp(7)
    with pytest.raises(InputError, match="delta"):
        found.epsilon(1.5)


def test_a_gradient_without_a_limit_has_no_privacy():
    endless = _ledger(threshold=math.inf, longest=math.inf)
    assert np.all(np.isinf(renyi(endless, [2, 8])))


def test_costs_alone_draw_no_curve():
    alone = IndividualPrivacy(ORDERS, np.zeros((2, len(ORDERS))), np.zeros((2, len(ORDERS))))
    with pytest.raises(InputError, match="require the steps of the run"):
        alone.membership(0)


def test_the_loss_of_nobody_is_said_in_words():
    assert repr(IndividualLoss(np.empty(0))) == "<individual privacy loss of no records>"
    assert "of 2 records: μ median 1.25, largest 2>" in repr(IndividualLoss(np.array([0.25, 4.0])))


@pytest.mark.parametrize("name", IndividualCosts.kept)
def test_sums_include_every_step_when_they_are_read_or_replaced(name: str):
    tally = IndividualCosts(3)
    tally.add(torch.tensor([1]), 0.5, torch.tensor([0.7]))
    read = getattr(tally, name)
    assert read[1].abs().sum() > 0
    assert read[[0, 2]].abs().sum() == 0
    tally.add(torch.tensor([2]), 0.5, torch.tensor([0.7]))
    setattr(tally, name, torch.zeros_like(read))  # as a loaded state does
    assert getattr(tally, name).abs().sum() == 0


def test_steps_added_together_cost_the_same():
    one_by_one, together = IndividualCosts(30), IndividualCosts(30)
    drawn = torch.Generator().manual_seed(0)
    for _ in range(5):
        index = torch.randperm(30, generator=drawn)[:9]
        shifts = torch.rand(9, generator=drawn)
        one_by_one.add(index, 0.3, shifts)
        one_by_one.settle()
        together.add(index, 0.3, shifts)
    for name in IndividualCosts.kept:
        torch.testing.assert_close(getattr(together, name), getattr(one_by_one, name))

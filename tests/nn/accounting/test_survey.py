"""What one run can know: records never drawn, and the mean over redrawn batches."""

import copy
import math

import numpy as np
import pytest
import torch
from gradient_oracle import dense
from redrawn_runs import coverage
from small_run import D, N, small_accountant, small_problem
from torch import nn

import seepage as sp
from sampled import sampled
from seepage.errors import InputError
from seepage.nn.accounting.joining import join_shares, merge_runs
from seepage.nn.accounting.survey import Survey
from seepage.nn.problem.clipping import HardClip
from seepage.nn.problem.views import Input


def _everyone(x, y, parts=1):
    return [(rows, x[rows], y[rows]) for rows in torch.arange(len(y)).tensor_split(parts)]


@pytest.mark.parametrize("probes", sampled([1, 2], [2]))
def test_passes_at_every_step_give_the_exact_mean(probes):
    # Of a single unknown a probe knows the trace exactly, and every step is looked at.
    mask = torch.zeros(D, dtype=torch.bool)
    mask[2] = True
    net, x, y = small_problem()
    accountant = small_accountant(
        net, view=Input(mask), survey_every=1, amplification="none", probes=probes
    )
    total = torch.zeros(N, dtype=torch.float64)
    for t in range(5):
        assert accountant.survey(_everyone(x, y, 1 + t))
        assert not accountant.survey(_everyone(x, y))  # once is enough
        accountant.observe([t], x[[t]], y[[t]])
        J = dense(net, "cross_entropy", Input(mask), x, y).clipped(HardClip(0.5))[1]
        total += 4 / N * J.square().sum((1, 2)) / 0.35**2
        with torch.no_grad():
            net[0].weight.mul_(1.3)
    rows = accountant.records("dfil")
    assert np.asarray(rows) == pytest.approx(total.sqrt().numpy(), rel=1e-9)
    if probes > 1:  # one probe alone does not know that it is exact
        assert np.all(rows.standard_errors < 1e-6)
    said = " ".join(rows.conditions)
    assert "5 passes over all 12 records" in said
    assert "60 measurements" in said
    assert any("redrawn at the iterates of this run" in t for t in rows.conditions)


@pytest.mark.slow
def test_the_expectation_over_the_choice_of_steps_is_the_mean():
    values = torch.rand(7, 4, generator=torch.Generator().manual_seed(0)).double() + 0.5
    none = torch.zeros(4).double()
    for steps in (None, 7):
        totals, variances = [], []
        for seed in range(800):
            survey = Survey(4, 2, 2, seed, steps)
            for step in range(7):  # ends within a block of four, or with one of three
                if survey.due(step):
                    survey.add(step, (values[step], none), (values[step], none))
            total, variance = survey.moments(7, amplified=True)
            totals.append(total)
            variances.append(variance)
        found = torch.stack(totals)
        assert found.mean(0) == pytest.approx(values.sum(0).numpy(), rel=0.03)
        assert torch.stack(variances).mean(0) == pytest.approx(found.var(0).numpy(), rel=0.2)


def test_a_survey_that_is_left_out_or_incomplete_is_refused():
    net, x, y = small_problem()
    accountant = small_accountant(net, survey_every=1)
    with pytest.raises(InputError, match="all records must be measured before step 0"):
        accountant.observe([1], x[[1]], y[[1]])
    with pytest.raises(InputError, match="record 11 occurs 0 times"):
        accountant.survey([(range(11), x[:11], y[:11])])
    with pytest.raises(InputError, match=r"call survey\(\[\(index, x, y\)\]\)"):
        accountant.survey((range(12), x, y))
    accountant.survey(_everyone(x, y))
    accountant.observe([1], x[[1]], y[[1]])
    with pytest.raises(InputError, match="create it with survey_every"):
        small_accountant(net).survey(_everyone(x, y))
    with pytest.raises(InputError, match="set sampler to 'poisson' or 'fixed'"):
        small_accountant(net, sampler="other", survey_every=3)
    with pytest.raises(InputError, match="survey_every must be at least 1 and a whole number"):
        small_accountant(net, survey_every=0)


def _surveyed(net, x, y, steps, accountant=None, seed=0):
    accountant = accountant or small_accountant(net, survey_every=2, seed=seed)
    for t in range(accountant.steps, steps):
        accountant.survey(_everyone(x, y))
        accountant.observe([t % N], x[[t % N]], y[[t % N]])
    return accountant


def test_every_process_keeps_the_passes_of_its_own_records():
    both = Survey(4, 2, 2, 0, 4)
    first, second = (step for step in range(4) if both.due(step))
    value, none = torch.arange(4.0).double(), torch.zeros(4).double()
    both.add(first, (value, none), (value, none))
    halves = [copy.deepcopy(both) for _ in range(2)]
    for rank, half in enumerate(halves):  # as when a checkpoint of the whole is gone on from
        own = torch.arange(rank, 4, 2)
        half.keep(own)
        seen = torch.zeros(4).double().index_copy_(0, own, 2 * value[own])
        half.add(second, (seen, none), (seen, none))
    both.add(second, (2 * value, none), (2 * value, none))
    for kind in ("amplified", "plain"):
        for name, tensor in vars(getattr(both, kind)).items():
            parts = [getattr(getattr(half, kind), name) for half in halves]
            assert sum(parts).tolist() == tensor.tolist()


@pytest.mark.slow
def test_a_surveyed_run_is_stored_joined_and_averaged():
    net, x, y = small_problem()
    whole = _surveyed(net, x, y, 9)
    first = _surveyed(net, x, y, 5)
    again = small_accountant(net, survey_every=2, seed=7)  # the state has the choice of steps
    again.load_state_dict(first.state_dict())
    again.engine.seed = 0
    _surveyed(net, x, y, 9, again)
    assert np.asarray(again.records("dfil")).tolist() == np.asarray(whole.records("dfil")).tolist()
    joined = join_shares([whole])
    np.testing.assert_array_equal(joined.records("dfil"), whole.records("dfil"))
    merged = merge_runs([whole, _surveyed(net, x, y, 9, seed=3)]).records("dfil")
    assert merged.degrees == 1
    with pytest.raises(InputError, match="survey_every = 2"):
        small_accountant(net).load_state_dict(first.state_dict())


def test_the_trainer_surveys_by_itself():
    torch.manual_seed(0)
    X, y = torch.randn(50, 4), torch.randint(2, (50,))
    net = nn.Linear(4, 2)
    trainer = sp.nn.PrivateSGD(
        net, "cross_entropy", steps=7, batch_size=3, seed=1, survey_every=2
    ).fit(X, y)
    rows = trainer.accountant_.records("dfil")
    assert np.isfinite(np.asarray(rows)).all()  # batches alone would have missed most
    assert int((trainer.accountant_.run.sums.uses == 0).sum()) > 5
    top = rows.top(3)
    assert len(top.interval()[0]) == 3
    assert math.isfinite(float(top.interval()[1][0]))


@pytest.mark.minutes
def test_intervals_of_surveys_cover_the_mean_over_redrawn_batches():
    share, ratio = coverage(runs=2, seeds=8, steps=40, every=4)
    assert ratio == pytest.approx(1.0, abs=0.1)
    assert share > 0.85  # 128 intervals, of which those of one run hang together


@pytest.mark.minutes
def test_intervals_of_surveys_are_calibrated():
    for every in (5, 10):
        share, ratio = coverage(runs=10, seeds=10, steps=60, every=every)
        print(f"one step in {every} surveyed: {share:.1%} of 800 intervals have the truth")
        assert ratio == pytest.approx(1.0, abs=0.05)
        assert 0.92 <= share <= 0.98


def test_a_last_block_of_one_step_and_steps_beyond_the_announced_ones_are_counted():
    values = torch.rand(5, 4, generator=torch.Generator().manual_seed(0)).double()
    noise = torch.full((4,), 0.5).double()
    survey = Survey(4, 1, 2, 0, 3)  # blocks of two steps: 0 and 1, 2 alone, then 3 and 4
    for step in range(5):
        assert survey.due(step)
        survey.add(step, (values[step], noise), (values[step], noise))
    assert survey.passes(5) == [2, 1, 2]
    torch.testing.assert_close(survey.amplified.total, values.sum(0))
    torch.testing.assert_close(survey.plain.variance, 5 * noise)  # every step was looked at

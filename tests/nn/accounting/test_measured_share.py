"""Measuring a share of each record's steps: unbiased totals, and intervals that cover them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from scipy.stats import t as student
from torch import nn

import seepage as sp
from seepage.nn.accounting.measured_run import InformationSums

torch.set_num_threads(1)
N, WIDTH = 40, 5


def data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(N, WIDTH), torch.randint(3, (N,))


def accountant(every: int, **options: object) -> sp.nn.FisherAccountant:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 3))
    how = {"n": N, "batch_size": 20, "noise_multiplier": 2.0, "measure_every": every} | options
    return sp.nn.FisherAccountant(net, "cross_entropy", **how)


def observe(accountant: sp.nn.FisherAccountant, steps: range) -> list[torch.Tensor]:
    x, y = data()
    drawn = []
    for k in steps:
        index = torch.nonzero(torch.rand(N, generator=torch.Generator().manual_seed(k)) < 0.5)
        accountant.observe(index.flatten(), x[index.flatten()], y[index.flatten()])
        drawn.append(index.flatten())
    return drawn


@pytest.mark.parametrize("method", ["derivative", "parameters"])
def test_every_record_is_measured_at_every_kth_of_its_steps(method: str) -> None:
    how = {"method": method, "clip_derivative": "conservative"}
    whole, share = accountant(1, **how), accountant(4, **how)
    drawn = observe(whole, range(24))
    observe(share, range(24))
    uses = torch.bincount(torch.cat(drawn), minlength=N)
    assert torch.equal(share.sums.uses, uses)
    low, high = uses // 4, -(-uses // 4)
    assert bool(((share.sums.counted >= low) & (share.sums.counted <= high)).all())
    # The network does not change here, and the same probes are drawn: only steps are left out.
    seen, wanted = (run.records("dfil") for run in (share, whole))
    assert abs(float(np.mean(seen.values / wanted.values)) - 1) < 0.05
    assert bool((seen.standard_errors > wanted.standard_errors).mean() > 0.9)
    assert any("one in 4 of the steps" in condition for condition in seen.conditions)
    torch.testing.assert_close(share.sums.privacy_loss, whole.sums.privacy_loss)
    ours, theirs = (run.tensors()["individual.norms"] for run in (share, whole))
    assert float(theirs.sum()) > 0
    torch.testing.assert_close(ours, theirs)


def test_a_resumed_share_is_the_same() -> None:
    whole, first, second = accountant(3), accountant(3), accountant(3)
    observe(whole, range(10))
    observe(first, range(5))
    second.load_state_dict(first.state_dict())
    observe(second, range(5, 10))
    np.testing.assert_array_equal(second.records("dfil").values, whole.records("dfil").values)
    with pytest.raises(sp.InputError, match="measure_every"):
        accountant(2).load_state_dict(first.state_dict())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a graphics card")
def test_on_a_card_the_same_uses_are_measured() -> None:
    """The copy of the uses in the host's memory follows steps, loading and merging."""
    x, y = data()
    here, there = accountant(3), accountant(3)
    there.engine.net.cuda()
    for part in (range(6), range(6, 13)):
        for k in part:
            index = torch.nonzero(torch.rand(N, generator=torch.Generator().manual_seed(k)) < 0.5)
            index = index.flatten()
            here.observe(index, x[index], y[index])
            there.observe(index, x[index].cuda(), y[index].cuda())
        assert torch.equal(there.sums.uses.cpu(), here.sums.uses)
        assert torch.equal(there.sums.counted.cpu(), here.sums.counted)
        for run in (here, there):
            run.load_state_dict(run.state_dict())
            run.absorb(accountant(3))
            run.tensors()["information.uses"].add_(1)  # as another process's share would


def test_unsuitable_settings_are_refused() -> None:
    with pytest.raises(sp.InputError, match="measure_every must be at least 1 and a whole number"):
        accountant(0)
    with pytest.raises(sp.InputError, match="leave out measure_every"):
        accountant(2, sketch=2)


@pytest.mark.parametrize("probes", [1, 2])
@pytest.mark.parametrize(("rate", "steps"), [(0.01, 1000), (0.1, 300)])
def test_intervals_cover_the_sum_over_all_steps(probes: int, rate: float, steps: int) -> None:
    n, every = 2000, 4
    rng = np.random.default_rng(1)
    sums = InformationSums(n, every)
    true = np.zeros(n)
    own = np.exp(rng.normal(0, 0.5, n))
    for k in range(steps):
        index = np.flatnonzero(rng.random(n) < rate)
        values = own[index] * np.exp(rng.normal(0, 0.3, len(index)) - k / steps)
        true[index] += values
        traces = values[:, None] * (1 + 0.3 * rng.standard_normal((len(index), probes)))
        chosen, ones = torch.tensor(index), torch.ones(len(index), dtype=torch.float64)
        due = sums.due(chosen, seed=3)
        sums.add(chosen, torch.tensor(traces), ones, ones, 1.0, due)
    total, variance = (np.asarray(t) for t in sums.moments(probes, amplified=True))
    degrees = np.asarray(sums.degrees(probes, amplified=True))
    counted = np.asarray(sums.counted)
    took_part = np.asarray(sums.uses) > 0
    assert np.mean(counted[took_part] == 0) < 0.01
    known = counted > 1
    assert abs(np.mean(total[counted > 0] / true[counted > 0]) - 1) < 0.02
    value, error = np.sqrt(total[known]), np.sqrt(variance[known]) / (2 * np.sqrt(total[known]))
    apart = np.abs(value - np.sqrt(true[known])) / error
    covered = np.mean(apart < student.ppf(0.975, degrees[known]))
    assert covered >= 0.93


def share_of(
    traces: np.ndarray,
    lengths: np.ndarray,
    seed: int,
    every: int,
    factors: np.ndarray | None = None,
) -> InformationSums:
    """Return the sums of a run whose records all take part in every step.

    ``traces`` has the shape ``(steps, records, probes)``, ``lengths`` and κ ``(steps, records)``.
    """
    steps, n, _ = traces.shape
    sums, everyone = InformationSums(n, every), torch.arange(n)
    kappa = np.ones((steps, n)) if factors is None else factors
    for step in range(steps):
        due = sums.due(everyone, seed)
        parts = (torch.tensor(part[step]) for part in (traces, kappa, lengths))
        sums.add(everyone, *parts, 2.0, due)
    return sums


def test_a_trace_proportional_to_the_norm_is_known_exactly() -> None:
    rng = np.random.default_rng(0)
    lengths, factors = np.exp(rng.normal(0, 1, (2, 10, 30)))
    traces = np.repeat(3.7 * lengths[:, :, None], 2, 2)
    sums = share_of(traces, lengths, 1, 4, factors)
    for amplified, wanted in ((True, factors * 3.7 * lengths / 4), (False, 3.7 * lengths / 4)):
        total, variance = sums.moments(2, amplified)
        np.testing.assert_allclose(total, wanted.sum(0), rtol=1e-12)
        assert float((variance.sqrt() / total).max()) < 1e-6


def test_one_measured_use_has_an_interval_and_a_trace_of_zero_is_not_shown_as_zero() -> None:
    traces = np.random.default_rng(1).gamma(1.0, 1.0, (6, 400, 1))
    traces[:, 0] = 0.0
    sums = share_of(traces, np.ones((6, 400)), 1, 4)
    assert set(sums.counted.tolist()) == {1, 2}
    total, variance = sums.moments(1, amplified=False)
    degrees = sums.degrees(1, amplified=False)
    assert bool((total > 0).all())
    # c² = 1: the total of one measured use, 6a, has the standard deviation 6 (whatever a is).
    once = (sums.counted == 1) & (torch.arange(400) > 0)
    relative = variance[once] / total[once] ** 2
    assert float(relative.std()) < 1e-9
    assert float(relative.mean()) == pytest.approx(1, rel=0.3)
    torch.testing.assert_close(degrees[once], 0.7 * torch.sqrt(2 / relative))
    # Record 0 counts as the average record, with an error of that size.
    assert float(total[0]) == pytest.approx(6 / 4, rel=0.15)
    assert float(variance[0]) == pytest.approx(float(total[0]) ** 2)


def test_the_interval_of_a_lone_record_measured_once_is_unknown() -> None:
    total, variance = share_of(np.ones((3, 1, 1)), np.ones((3, 1)), 0, 3).moments(1, False)
    assert float(total) == pytest.approx(3 / 4)
    assert bool(torch.isnan(variance))


@pytest.mark.parametrize(("spread", "largest"), [(0.0, 0.52), (0.5, 0.65)])
def test_the_pooled_variance_of_quotients_is_not_too_small(spread: float, largest: float) -> None:
    # Gamma quotients with c² = 0.5, of which two or three of each record are measured
    rng = np.random.default_rng(2)
    lengths = np.exp(rng.normal(0, spread, (10, 4000)))
    quotients = rng.gamma(2.0, 0.5, (10, 4000))
    sums = share_of((lengths * quotients)[:, :, None], lengths, 3, 4)
    ratios = sums.share.plain
    h = (ratios.squares / ratios.sizes**2).numpy()
    r = (ratios.sizes * ratios.quotients / sums.plain.total**2 - 1).numpy()
    assert 0.48 < r.sum() / (1 - h - h * r).sum() < largest
    total, variance = (part.numpy() for part in sums.moments(1, amplified=False))
    wanted = lengths.sum(0) / 4  # the mean quotient is 1
    actual = np.mean((total / wanted - 1) ** 2)
    assert np.mean(variance / wanted**2) > 0.95 * actual


def test_degrees_reach_the_upper_end_of_the_chi_squared_interval() -> None:
    nu = np.geomspace(3, 1e5, 60)
    for level in (0.95, 0.99):
        upper = np.sqrt(nu / chi2.ppf((1 - level) / 2, nu))
        reach = student.ppf((1 + level) / 2, 0.7 * np.sqrt(nu)) / np.sqrt(2 * nu)
        assert np.all(1 + reach >= upper)


@pytest.mark.parametrize("probes", [1, 2])
def test_intervals_cover_skewed_sums_of_records_that_take_part_ten_times(probes: int) -> None:
    # Traces and norms fall as a record is learned; a probe sees one or two directions of it.
    n, every, rate, steps = 3000, 4, 0.01, 1000
    rng = np.random.default_rng(5)
    sums, true = InformationSums(n, every), np.zeros(n)
    scale, speed = np.exp(rng.normal(0, 1, n)), rng.uniform(0, 4, n)
    for k in range(steps):
        index = np.flatnonzero(rng.random(n) < rate)
        lengths = np.exp(-speed[index] * k / steps / 2)
        values = scale[index] * lengths**2 * np.exp(rng.normal(0, 0.4, len(index)))
        true[index] += values
        traces = values[:, None] * rng.chisquare(2, (len(index), probes)) / 2
        chosen, ones = torch.tensor(index), torch.ones(len(index), dtype=torch.float64)
        due = sums.due(chosen, seed=3)
        sums.add(chosen, torch.tensor(traces), ones, torch.tensor(lengths), 1.0, due)
    total, variance = (np.asarray(t) for t in sums.moments(probes, amplified=True))
    degrees = np.asarray(sums.degrees(probes, amplified=True))
    took_part, measured = np.asarray(sums.uses) > 0, np.asarray(sums.counted) > 0
    value = np.sqrt(total)
    reach = student.ppf(0.975, degrees) * np.sqrt(variance) / (2 * value)
    covered = measured & (np.abs(value - np.sqrt(true)) <= reach)
    assert covered[took_part].mean() >= 0.93  # a record that was not measured counts as missed
    assert np.all(value[took_part] > 0)
    assert total[measured].sum() == pytest.approx(true[measured].sum(), rel=0.05)

"""Measuring a share of each record's steps: unbiased totals, and intervals that cover them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
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
    torch.testing.assert_close(share.individual.norms, whole.individual.norms)


def test_a_resumed_share_is_the_same() -> None:
    whole, first, second = accountant(3), accountant(3), accountant(3)
    observe(whole, range(10))
    observe(first, range(5))
    second.load_state_dict(first.state_dict())
    observe(second, range(5, 10))
    np.testing.assert_array_equal(second.records("dfil").values, whole.records("dfil").values)
    with pytest.raises(sp.InputError, match="measure_every"):
        accountant(2).load_state_dict(first.state_dict())


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
    counted = np.asarray(sums.counted)
    took_part = np.asarray(sums.uses) > 0
    assert np.mean(counted[took_part] == 0) < 0.01
    known = counted > 1
    assert abs(np.mean(total[counted > 0] / true[counted > 0]) - 1) < 0.02
    value, error = np.sqrt(total[known]), np.sqrt(variance[known]) / (2 * np.sqrt(total[known]))
    apart = np.abs(value - np.sqrt(true[known])) / error
    covered = np.mean(apart < student.ppf(0.975, counted[known] - 1))
    assert covered >= 0.93

"""What one run says about a record that was in none of its batches."""

import numpy as np
import pytest
import torch
from torch import nn

import seepage as sp


@pytest.mark.slow
def test_a_record_that_was_never_drawn_is_not_measured():
    n, steps = 60, 20
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    x, y = torch.randn(n, 4), torch.randint(2, (n,))
    accountant = sp.nn.FisherAccountant(
        net, "cross_entropy", n=n, sample_rate=0.05, noise_multiplier=1.0, max_grad_norm=1.0
    )
    drawn = torch.zeros(n, dtype=torch.bool)
    for _ in range(steps):
        index = torch.nonzero(torch.rand(n) < 0.05).flatten()
        drawn[index] = True
        accountant.observe(index, x[index], y[index])
    never = ~drawn.numpy()
    assert 10 < never.sum() < 40
    rows = accountant.rows("dfil")
    assert np.isnan(np.asarray(rows)[never]).all()
    assert np.isnan(rows.standard_errors[never]).all()
    assert np.isnan(np.asarray(rows.mse_bound())[never]).all()
    assert np.isnan(np.asarray(rows.std_bound())[never]).all()
    assert np.isfinite(np.asarray(rows.mse_bound())[~never]).all()
    assert any(f"Records in no batch ({never.sum()} of 60)" in text for text in rows.conditions)
    assert any("this run drew" in text for text in rows.mse_bound().assumptions)
    assert repr(rows).endswith(f"; {never.sum()} not measured>")
    assert not never[rows.top(1).labels()[0]]
    assert accountant.worst() == pytest.approx(np.nanmax(np.asarray(rows)))

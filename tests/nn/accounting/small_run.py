"""A small network, its records, and an accountant for them, which several tests of runs share."""

import torch
from torch import nn

from seepage.nn.accounting.accountant import FisherAccountant

N, D = 12, 5


def small_problem(seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    return net, torch.randn(N, D, dtype=torch.float64), torch.randint(3, (N,))


def small_accountant(net, **options):
    given = {"n": N, "batch_size": 4, "noise_multiplier": 0.7, "max_grad_norm": 0.5}
    return FisherAccountant(net, "cross_entropy", **given | options)

"""A data-parallel run of two processes, which test_sharing.py starts."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from seepage.errors import InputError
from seepage.nn.accounting.accountant import FisherAccountant
from seepage.nn.accounting.joining import gather_shares
from seepage.nn.sampling.samplers import PoissonSampler

N, STEPS = 24, 6


def problem():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return net, torch.randn(N, 4, dtype=torch.float64), torch.randint(3, (N,))


def accountant(net):
    return FisherAccountant(
        net,
        "cross_entropy",
        n=N,
        batch_size=8,
        noise_multiplier=1.0,
        sketch=8,
        sketch_records=[0, 1, 5],
    )


def train(net, account, x, y, mine, steps=STEPS):
    """Observe this process's part of every batch; update as the sum over processes says."""
    sampler = PoissonSampler(N, 8, seed=4)
    for t in range(steps):
        index = sampler.batch(t)
        part = index[mine(index)]
        step = account.observe(part, x[part], y[part], update=True)
        for name, parameter in net.named_parameters():
            total = step.gradient[name].clone()
            if dist.is_initialized():
                dist.all_reduce(total)
            with torch.no_grad():
                parameter -= 0.05 * total


def main(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    net, x, y = problem()
    account = accountant(net)
    train(net, account, x, y, lambda index: index % 2 == rank)
    whole = gather_shares(account)
    bracket = whole.fil()
    found = {
        "rows": np.asarray(whole.records("dfil")).tolist(),
        "errors": np.asarray(whole.records("dfil").standard_errors).tolist(),
        "epsilon": whole.privacy().epsilon,
        "costs": whole.individual_privacy().costs.tolist(),
        "upper": bracket.upper.tolist(),
        "lower": bracket.lower.tolist(),
        "own uses": int(account.run.sums.uses.sum()),
        "steps": whole.steps,
    }
    if rank == 0:
        account.observe([], x[:0], y[:0])  # one step more than the other process
    try:
        gather_shares(account)
    except InputError as error:
        found["refusal"] = str(error)
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
    # A thread of gloo that lets go of a tensor while the interpreter shuts down aborts the process
    # (pytorch/pytorch#179291), so the interpreter does not shut down.
    os._exit(0)

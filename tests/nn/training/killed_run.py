"""A small run of private SGD that kills itself, for test_private_sgd.py: PATH [STEP]."""

import os
import signal
import sys

import torch
from torch import nn

from seepage.nn.training.private_sgd import PrivateSGD

STEPS = 60


def data():
    source = torch.Generator().manual_seed(0)
    X = torch.randn(300, 8, generator=source)
    return X, (X[:, :3].sum(1) > 0).long()


def trainer(checkpoint, **options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))
    given = {
        "steps": STEPS,
        "batch_size": 30,
        "lr": 0.5,
        "clip": "smooth",
        "momentum": 0.5,
        "weight_decay": 1e-3,
        "seed": 7,
        "checkpoint_every": 3,
        "evaluate_every": 10,
        "sketch": 2,
        "sketch_records": [0, 5],
    }
    return PrivateSGD(net, "cross_entropy", checkpoint=checkpoint, **given | options)


def killing(run, step):
    """Let a run end itself, without a chance to tidy up, when it is about to take a step."""
    take = run._take_step

    def lethal(*arguments):
        if run._step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        take(*arguments)

    run._take_step = lethal
    return run


if __name__ == "__main__":
    X, y = data()
    run = trainer(sys.argv[1])
    if len(sys.argv) > 2:
        run = killing(run, int(sys.argv[2]))
    run.fit(X, y, X, y)

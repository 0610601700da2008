"""Small runs whose mean over redrawn batches is known by brute force, and surveys of them.

Along the iterates of a run, a record is in each batch with probability q, so that over batches
drawn anew the mean of what it gives away is ``q Σ_t ‖J̃_t‖_F²/s²``. Nothing of the package takes
part in that: gradients of single records by torch, clipped by hand, their change by finite
differences in float64.
"""

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import seepage as sp

RECORDS, COLUMNS, RATE, SIGMA, CLIP = 8, 3, 0.2, 2.0, 0.5
STEP = 1e-5


def network():
    return nn.Sequential(nn.Linear(COLUMNS, 3), nn.Tanh(), nn.Linear(3, 2)).double()


def clipped(net, x, y):
    """Return the clipped gradient of every record, ``(n, parameters)``."""

    def loss(parameters, record, target):
        output = functional_call(net, parameters, (record[None],))
        return nn.functional.cross_entropy(output, target[None])

    parameters = {name: p.detach() for name, p in net.named_parameters()}
    parts = vmap(grad(loss), (None, 0, 0))(parameters, x, y)
    flat = torch.cat([part.flatten(1) for part in parts.values()], 1)
    return flat * (CLIP / flat.norm(dim=1, keepdim=True)).clamp(max=1.0)


def traces(net, x, y):
    """Return ``‖J̃‖_F²`` of every record, by central differences."""
    total = torch.zeros(len(x), dtype=torch.float64)
    for column in range(COLUMNS):
        ends = []
        for sign in (1, -1):
            moved = x.clone()
            moved[:, column] += sign * STEP
            ends.append(clipped(net, moved, y))
        total += ((ends[0] - ends[1]) / (2 * STEP)).square().sum(1)
    return total


class KnownRun:
    """A run of private SGD: its iterates, and the mean over redrawn batches along them."""

    def __init__(self, seed, steps):
        torch.manual_seed(seed)
        self.x, self.y = torch.randn(RECORDS, COLUMNS).double(), torch.arange(RECORDS) % 2
        self.net, self.iterates, self.mean = network(), [], torch.zeros(RECORDS).double()
        for _ in range(steps):
            self.iterates.append({n: p.clone() for n, p in self.net.state_dict().items()})
            self.mean += RATE * traces(self.net, self.x, self.y) / (SIGMA * CLIP) ** 2
            drawn = torch.rand(RECORDS) < RATE
            gradient = clipped(self.net, self.x, self.y)[drawn].sum(0)
            gradient += SIGMA * CLIP * torch.randn_like(gradient)
            flat = nn.utils.parameters_to_vector(self.net.parameters()).detach()
            nn.utils.vector_to_parameters(
                flat - 0.1 * gradient / (RATE * RECORDS), self.net.parameters()
            )

    def dfil(self):
        return np.sqrt(self.mean.numpy() / COLUMNS)

    def survey(self, every, seed, **options):
        """Return the leakage that a survey of these iterates tells."""
        accountant = sp.nn.FisherAccountant(
            self.net,
            "cross_entropy",
            n=RECORDS,
            sample_rate=RATE,
            noise_multiplier=SIGMA,
            max_grad_norm=CLIP,
            amplification="none",
            survey_every=every,
            individual=False,
            seed=seed,
            **options,
        )
        accountant.check.trust()  # empty batches stand for whichever were drawn
        for parameters in self.iterates:
            self.net.load_state_dict(parameters)
            accountant.survey([(range(RECORDS), self.x, self.y)])
            accountant.observe([], self.x[:0], self.y[:0])
        return accountant.records("dfil")


def coverage(runs, seeds, steps, every, level=0.95, **options):
    """Return the share of intervals that have the truth in them, and the mean of value/truth."""
    hits, ratios = [], []
    for run in range(runs):
        known = KnownRun(run, steps)
        truth = known.dfil()
        for seed in range(seeds):
            found = known.survey(every, 1000 * run + seed, **options)
            low, high = found.interval(level)
            hits.append((low <= truth) & (truth <= high))
            ratios.append(np.asarray(found) / truth)
    return float(np.mean(hits)), float(np.mean(ratios))

"""One private run in a loop written by hand, which every library's loop is compared with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import seepage as sp
from seepage.nn.training.secure_noise import secure_noise
from seepage.support.keyed_stream import KeyedStream

N, INPUTS, CLASSES = 60, 6, 3
SEED, LR, STEPS = 11, 0.5, 10
SIGMA, C, RATE, DIVISOR = 0.8, 0.7, 0.25, 16
HOW = {"sample_rate": RATE, "noise_multiplier": SIGMA, "seed": SEED}
DECLARED = {**HOW, "expected_batch": DIVISOR, "max_grad_norm": C}


class Classifier(nn.Module):
    """A small network that computes its own loss if it is given labels, as Hugging Face's do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        layers = (nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, CLASSES))
        self.layers = nn.Sequential(*layers).double()

    def forward(self, x: Tensor, labels: Tensor | None = None) -> object:
        logits = self.layers(x)
        if labels is None:
            return logits
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    X = torch.randn(N, INPUTS, generator=generator, dtype=torch.float64)
    return X, torch.randint(CLASSES, (N,), generator=generator)


def items() -> list[dict[str, Tensor]]:
    """The records as a data set of Hugging Face has them."""
    return [{"x": x, "labels": y} for x, y in zip(*data(), strict=True)]


def by_hand(named: str = "") -> tuple[Classifier, sp.nn.FisherAccountant]:
    """Clip the gradients of records one by one, add the noise of the seed, and step.

    ``named`` is what a library writes before the names of the parameters: a parameter's noise
    depends on its name.
    """
    net, (X, y), stream = Classifier(), data(), KeyedStream.of_seed(SEED)
    sampler = sp.nn.PoissonSampler(N, sample_rate=RATE, seed=SEED)
    accountant = sp.nn.FisherAccountant(
        net,
        "cross_entropy",
        n=N,
        sample_rate=RATE,
        noise_multiplier=SIGMA,
        max_grad_norm=C,
        seed=stream.child("probes").number(),
    )
    parameters = dict(net.named_parameters())
    for step in range(STEPS):
        index = sampler.batch(step)
        accountant.observe(index, X[index], y[index])
        total = {name: torch.zeros_like(p) for name, p in parameters.items()}
        for i in index:
            loss = nn.functional.cross_entropy(net(X[i : i + 1]), y[i : i + 1])
            gradient = torch.autograd.grad(loss, list(parameters.values()))
            norm = torch.sqrt(sum(g.square().sum() for g in gradient))
            for name, part in zip(parameters, gradient, strict=True):
                total[name] += part * min(1.0, C / float(norm))
        add_noise = secure_noise(stream, step)
        with torch.no_grad():
            for name, p in parameters.items():
                p -= LR * add_noise(named + name, total[name], SIGMA * C) / DIVISOR
    return net, accountant

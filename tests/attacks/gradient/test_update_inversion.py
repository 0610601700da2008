"""Inversion of FedAvg's updates: simulated local steps against torch's own, and what is found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks.gradient.simulation import SimulatedUpdates
from seepage.errors import InputError
from torch_clients import sent


def images(count, side=12):
    """Sums of a few broad bumps, between 0 and 1."""
    draw = torch.Generator().manual_seed(0)
    grid = torch.stack(torch.meshgrid(*[torch.linspace(0, 1, side)] * 2, indexing="ij"))
    centres = torch.rand(count, 3, 2, 1, 1, generator=draw)
    bumps = torch.exp(-((grid - centres) ** 2).sum(2) / 0.05).sum(1, keepdim=True)
    return bumps / bumps.amax((1, 2, 3), keepdim=True)


def network(classes=3):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(8 * 36, classes),
    )


OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, eps=0.01),
}
TRAININGS = {
    "sgd": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "adam": {"lr": 0.1, "optimizer": "adam", "eps": 0.01},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMISERS)
def test_simulated_updates_are_those_of_torchs_optimisers_and_so_are_their_slopes(name):
    net, x, y = network().double(), images(6).double(), torch.tensor([0, 1, 2, 1, 0, 2])
    training = sp.layers.LocalTraining(**TRAININGS[name], epochs=2, batch_size=2, seed=1)
    simulated = SimulatedUpdates(net, "cross_entropy", training, 3)
    simulated.prepare(x, y)
    steps = training.rows_of_steps(3)
    assert len(steps) == 4

    def truth(x):
        clients = (slice(0, 3), slice(3, 6))
        return torch.stack([sent(net, OPTIMISERS[name], x[k], y[k], steps) for k in clients])

    assert torch.allclose(simulated.flat(x, y), truth(x), rtol=1e-9, atol=1e-12)
    z = simulated.variable(x, y)
    ((_, values),) = simulated.pieces(z, y)
    weights = torch.randn(values.shape, generator=torch.Generator().manual_seed(4)).double()
    (slopes,) = torch.autograd.grad((weights * values).sum(), z)
    v = torch.randn(x.shape, generator=torch.Generator().manual_seed(5)).double()
    h = 1e-5
    change = (weights * (truth(x + h * v) - truth(x - h * v))).sum() / (2 * h)
    assert np.isclose(float((slopes * v).sum()), float(change), rtol=1e-5)


@pytest.mark.minutes
def test_local_steps_that_are_modelled_give_images_where_a_division_gives_none():
    net, x, y = network(), images(3), torch.tensor([0, 2, 1])
    training = sp.layers.LocalTraining(lr=0.3, epochs=5)
    seen = sp.attacks.release_updates(net, "cross_entropy", x, y, training=training)
    assert repr(seen) == "<3 released updates, after 5 local steps>"
    adversary = sp.attacks.GradientInversion(
        net, shape=(1, 12, 12), cost="euclidean", optimizer="lbfgs", total_variation=0, steps=200
    )
    found = adversary.reconstruct(seen)
    assert found.labels.flatten().tolist() == [0, 2, 1]
    assert found.quality(x).ssim.min() > 0.98
    reach = training.reach(1)
    assert np.isclose(reach, 5 * 0.3)
    naive = sp.attacks.GradientReleases({k: v / reach for k, v in seen.gradients.items()})
    assert adversary.reconstruct(naive).quality(x).ssim.max() < 0.9


@pytest.mark.slow
def test_a_clients_records_come_back_from_its_batches():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 4))
    x = torch.rand(4, 6, generator=torch.Generator().manual_seed(2))
    y = torch.tensor([0, 3, 1, 2])
    training = sp.layers.LocalTraining(lr=0.2, epochs=3, batch_size=1, momentum=0.5)
    seen = sp.attacks.release_updates(net, "cross_entropy", x, y, training=training, batch_size=2)
    adversary = sp.attacks.GradientInversion(
        net, shape=(6,), cost="euclidean", optimizer="lbfgs", total_variation=0, steps=400
    )
    found = adversary.reconstruct(seen, labels=y.reshape(2, 2))
    assert np.abs(found.matched(x) - x.numpy()).max() < 0.02
    guessed = adversary.reconstruct(seen).labels
    assert guessed.tolist() == [[0, 3], [1, 2]]


def test_noise_is_repeatable_and_on_every_entry():
    net, x, y = network(), images(2), torch.tensor([0, 1])
    options = {"training": sp.layers.LocalTraining(lr=0.1, epochs=2)}
    plain, noisy, again = (
        sp.attacks.release_updates(net, "cross_entropy", x, y, **options, noise=noise, seed=7)
        for noise in (0.0, 0.1, 0.1)
    )
    apart = torch.cat(
        [(noisy.gradients[k] - plain.gradients[k]).flatten() for k in plain.gradients]
    )
    assert abs(float(apart.std()) / 0.1 - 1) < 0.1
    assert all(torch.equal(noisy.gradients[k], again.gradients[k]) for k in noisy.gradients)
    assert "noise 0.1" in repr(noisy)


def test_what_cannot_be_is_refused_with_the_reason():
    net, x, y = network(), images(4), torch.tensor([0, 1, 2, 0])
    adam = sp.layers.LocalTraining(lr=0.1, epochs=2, optimizer="adam")
    with pytest.raises(InputError, match=r"must describe the client.s training"):
        sp.attacks.release_updates(net, "cross_entropy", x, y, training="sgd")
    with pytest.raises(InputError, match="noise must not be negative"):
        sp.attacks.release_updates(net, "cross_entropy", x, y, training=adam, noise=-1.0)
    with pytest.raises(InputError, match="divided into batches"):
        sp.attacks.release_updates(net, "cross_entropy", x, y, training=adam, batch_size=3)
    seen = sp.attacks.release_updates(net, "cross_entropy", x, y, training=adam, batch_size=2)
    with pytest.raises(InputError, match="give the labels instead"):
        sp.attacks.GradientInversion(net, shape=(1, 12, 12)).reconstruct(seen)
    with pytest.raises(InputError, match="leave out clip or training"):
        sp.attacks.GradientReleases(
            seen.gradients, batch_size=2, clip=sp.nn.HardClip(1.0), training=adam
        )
    with pytest.raises(InputError, match="does not grow with the gradient"):
        adam.reach(2)

"""Gradient inversion reports what it returns, and says clearly what it cannot take."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import seepage as sp
from seepage.attacks.gradient.simulation import GradientCost, SimulatedGradients


def network(classes=2):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(96, classes)
    )


def far_images(count=3):
    return 2 * torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(1))


def table_network(classes=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, classes))


X, Y = torch.rand(4, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1, 0])
TABLE = {"shape": (6,), "total_variation": 0}
IMAGES = {"shape": (1, 8, 8), "total_variation": 0, "cost": "euclidean", "optimizer": "lbfgs"}


@pytest.mark.minutes
@pytest.mark.parametrize("restarts", [1, 3])
def test_the_mismatch_is_that_of_the_record_which_is_returned(restarts):
    net, x, y = network(), far_images(), torch.tensor([0, 1, 1])
    seen = sp.attacks.release_gradients(net, "cross_entropy", x, y)
    adversary = sp.attacks.GradientInversion(net, **IMAGES, steps=150, restarts=restarts)
    found = adversary.reconstruct(seen)
    assert found.records.min() >= 0
    assert found.records.max() <= 1
    simulated = SimulatedGradients(net, "cross_entropy", sp.nn.NoClip(), 1)
    simulated.prepare(x, y)
    targets = seen.flat(simulated.parameters())
    cost = GradientCost(simulated, targets, found.labels, (1, 8, 8), "euclidean", 0.0)
    own = cost.evaluate(found.records.reshape(3, 1, -1)).match[:, 0]
    torch.testing.assert_close(found.mismatch, own, rtol=1e-3, atol=1e-9)
    assert not found.solved.any()  # the records lie outside the bounds


@pytest.mark.slow
def test_with_bounds_that_hold_the_records_are_found():
    net, x, y = network(), far_images(), torch.tensor([0, 1, 1])
    seen = sp.attacks.release_gradients(net, "cross_entropy", x, y)
    adversary = sp.attacks.GradientInversion(
        net, **IMAGES, steps=500, bounds=(-9.0, 9.0), tolerance=1e-6
    )
    assert adversary.reconstruct(seen).solved.all()


@pytest.mark.parametrize(
    "options",
    [
        {"weight": torch.tensor([1.0, 5.0, 0.1])},
        {"label_smoothing": 0.2},
        {"ignore_index": 0},
        {"reduction": "sum"},
    ],
    ids=str,
)
def test_labels_are_read_off_plain_cross_entropy_only(options):
    net, loss = table_network(), nn.CrossEntropyLoss(**options)
    seen = sp.attacks.release_gradients(net, "cross_entropy", X, Y)
    adversary = sp.attacks.GradientInversion(net, loss, **TABLE, steps=2)
    with pytest.raises(sp.InputError, match=r"only for plain cross-entropy.*give the labels"):
        adversary.reconstruct(seen)
    if "ignore_index" not in options:
        assert adversary.reconstruct(seen, labels=Y).labels_known
    plain = sp.attacks.GradientInversion(net, nn.CrossEntropyLoss(), **TABLE, steps=2)
    assert plain.reconstruct(seen).labels.flatten().tolist() == Y.tolist()


def test_a_network_of_one_layer_has_a_last_layer():
    torch.manual_seed(0)
    net = nn.Linear(6, 3)
    seen = sp.attacks.release_gradients(net, "cross_entropy", X, Y)
    found = sp.attacks.GradientInversion(net, **TABLE, steps=2).reconstruct(seen)
    assert found.labels.flatten().tolist() == Y.tolist()


@pytest.mark.parametrize("shape", [16, None, (1.5,), "16", (0, 3)])
def test_what_is_no_shape(shape):
    with pytest.raises(sp.InputError, match="shape must be the shape of one record"):
        sp.attacks.GradientInversion(table_network(), shape=shape, total_variation=0)


@pytest.mark.parametrize("labels", [None, torch.tensor([0, 1, 1])])
def test_records_that_the_network_does_not_take(labels):
    net = network()
    seen = sp.attacks.release_gradients(net, "cross_entropy", far_images(), torch.tensor([0, 1, 1]))
    adversary = sp.attacks.GradientInversion(net, shape=(3, 8, 8), steps=2)
    with pytest.raises(sp.InputError, match=r"does not accept records of shape \(3, 8, 8\)"):
        adversary.reconstruct(seen, labels=labels)
    fitting = sp.attacks.GradientInversion(net, shape=np.array([1, 8, 8]).tolist(), steps=2)
    assert fitting.reconstruct(seen, labels=labels).records.shape == (3, 1, 1, 8, 8)


def test_a_network_that_mixes_records_is_not_even_looked_at():
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3))
    seen = sp.attacks.release_gradients(net.eval(), "cross_entropy", X, Y)
    adversary = sp.attacks.GradientInversion(net.train(), **TABLE)
    with pytest.raises(sp.InputError, match="mixes the records"):
        adversary.reconstruct(seen)
    assert not net[1].running_mean.any()


@pytest.mark.parametrize("clip", [1.0, "hard", True, sp.nn.HardClip])
def test_a_clip_has_a_threshold(clip):
    good = sp.attacks.release_gradients(table_network(), "cross_entropy", X, Y)
    with pytest.raises(sp.InputError, match=r"such as sp.nn.HardClip\(1.0\)"):
        sp.attacks.release_gradients(table_network(), "cross_entropy", X, Y, clip=clip)
    with pytest.raises(sp.InputError, match=r"such as sp.nn.HardClip\(1.0\)"):
        sp.attacks.GradientReleases(good.gradients, clip=clip)


def test_records_and_labels_of_any_library():
    net = table_network(2)
    wanted = sp.attacks.release_gradients(net, "cross_entropy", X, Y)
    frame = pd.DataFrame(X.numpy(), columns=list("abcdef"))
    for x, y in (
        (X.numpy(), Y.numpy()),
        (X.double().numpy()[::-1][::-1], Y.tolist()),
        (frame, pd.Series(Y.numpy())),
        (X, Y.bool()),
        (X.numpy(), Y.bool().numpy()),
    ):
        found = sp.attacks.release_gradients(net, "cross_entropy", x, y)
        for name, values in wanted.gradients.items():
            torch.testing.assert_close(found.gradients[name], values)
    with pytest.raises(sp.InputError, match="x must be one tensor"):
        sp.attacks.release_gradients(net, "cross_entropy", X.tolist(), Y)


def test_gradients_recorded_elsewhere_as_arrays():
    net = table_network()
    seen = sp.attacks.release_gradients(net, "cross_entropy", X, Y)
    arrays = {name: values.numpy() for name, values in seen.gradients.items()}
    given = sp.attacks.GradientReleases(arrays)
    assert len(given) == 4
    adversary = sp.attacks.GradientInversion(net, **TABLE, steps=5)
    one, other = adversary.reconstruct(seen), adversary.reconstruct(given)
    torch.testing.assert_close(other.records, one.records)
    assert other.labels.flatten().tolist() == Y.tolist()
    for bad, words in (
        ({"0.bias": "text"}, "must be an array of numbers, not str"),
        ({"0.bias": None}, "must be an array of numbers, not NoneType"),
        ([np.zeros((4, 3))], "by parameter name"),
    ):
        with pytest.raises(sp.InputError, match=words):
            sp.attacks.GradientReleases(bad)


def test_labels_of_any_library():
    net = table_network(2)
    seen = sp.attacks.release_gradients(net, "cross_entropy", X, Y)
    adversary = sp.attacks.GradientInversion(net, **TABLE, steps=5)
    wanted = adversary.reconstruct(seen, labels=Y).records
    for labels in (Y.numpy(), Y.tolist(), Y.bool(), Y.bool().numpy(), pd.Series(Y.numpy())):
        torch.testing.assert_close(adversary.reconstruct(seen, labels=labels).records, wanted)
    with pytest.raises(sp.InputError, match=r"labels must have the shape \(4, 1\)"):
        adversary.reconstruct(seen, labels=1)


def test_records_that_are_no_pictures_are_not_compared_as_such():
    net = table_network(2)
    seen = sp.attacks.release_gradients(net, "cross_entropy", X, Y)
    found = sp.attacks.GradientInversion(net, **TABLE, steps=2).reconstruct(seen)
    with pytest.raises(sp.InputError, match=r"not records of shape \(6,\); use reconstruction"):
        found.quality(X)

"""Labels from the last layer's gradient, and what gradient inversion refuses."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import seepage as sp


def network(classes, bias=True, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, classes, bias=bias))


@pytest.mark.slow
@given(st.integers(0, 1000), st.integers(2, 7))
@settings(max_examples=20, deadline=None)
def test_the_label_of_one_record_is_always_found(seed, classes):
    net = network(classes, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(5, 6, generator=draw)
    y = torch.randint(0, classes, (5,), generator=draw)
    seen = sp.attacks.release_gradients(net, "cross_entropy", x, y, clip=sp.nn.HardClip(1e-2))
    assert sp.attacks.recover_labels(net, seen, net(x)).flatten().tolist() == y.tolist()


@pytest.mark.parametrize("classes", [3, 5])
def test_without_a_bias_the_row_that_stands_against_the_others(classes):
    net = network(classes, bias=False)
    x, y = torch.randn(classes, 6), torch.arange(classes)
    seen = sp.attacks.release_gradients(net, "cross_entropy", x, y)
    assert sp.attacks.recover_labels(net, seen, net(x)).flatten().tolist() == y.tolist()


def test_the_labels_of_a_batch_with_their_numbers():
    net = network(6)
    y = torch.tensor([[4, 4, 4, 0], [1, 2, 3, 5], [2, 2, 2, 2], [0, 0, 5, 5]])
    x = torch.rand(16, 6)
    seen = sp.attacks.release_gradients(net, "cross_entropy", x, y.flatten(), batch_size=4)
    found = sp.attacks.recover_labels(net, seen, net(torch.rand(50, 6)))
    assert found.tolist() == y.sort(1).values.tolist()


def test_pure_noise_still_gives_as_many_labels_as_there_are_records():
    net = network(6)
    seen = sp.attacks.release_gradients(
        net,
        "cross_entropy",
        torch.rand(6, 6),
        torch.zeros(6).long(),
        batch_size=3,
        clip=sp.nn.HardClip(1.0),
        noise_multiplier=100.0,
    )
    assert sp.attacks.recover_labels(net, seen, net(torch.rand(5, 6))).shape == (2, 3)


X, Y = torch.rand(4, 6), torch.tensor([0, 1, 1, 0])
TABLE = {"shape": (6,), "total_variation": 0}


def released(net, **options):
    return sp.attacks.release_gradients(net, "cross_entropy", X, Y, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cost": "angle"}, "cost must be"),
        ({"optimizer": "sgd"}, "optimizer must be"),
        ({"shape": ()}, "shape must be"),
        ({"total_variation": 0.1}, "no neighbouring pixels"),
        ({"total_variation": -1.0}, "must not be negative"),
        ({"steps": 0}, "at least 1"),
        ({"restarts": 0}, "at least 1"),
        ({"bounds": (1.0, 0.0)}, "bounds must be"),
    ],
)
def test_options_that_make_no_sense(options, words):
    with pytest.raises(sp.InputError, match=words):
        sp.attacks.GradientInversion(network(2), **{**TABLE, **options})


def test_labels_that_cannot_be_read_off():
    net = network(2, bias=False)
    adversary = sp.attacks.GradientInversion(net, **TABLE, steps=5)
    with pytest.raises(sp.InputError, match="at least three classes; give the labels"):
        adversary.reconstruct(released(net))
    assert adversary.reconstruct(released(net), labels=Y).labels_known
    with pytest.raises(sp.InputError, match="labels must have the shape"):
        adversary.reconstruct(released(net), labels=Y[:3])
    regression = nn.Sequential(nn.Linear(6, 1))
    seen = sp.attacks.release_gradients(regression, "mse", X, Y)
    with pytest.raises(sp.InputError, match="only for plain cross-entropy"):
        sp.attacks.GradientInversion(regression, "mse", **TABLE).reconstruct(seen)
    bare = nn.Conv1d(1, 2, 6)
    with pytest.raises(sp.InputError, match="no linear layer"):
        sp.attacks.recover_labels(bare, released(net), torch.zeros(1, 2))
    with pytest.raises(sp.InputError, match="has 2 outputs, but the network's output"):
        sp.attacks.recover_labels(net, released(net), torch.zeros(1, 5))


def test_releases_that_do_not_fit():
    net = network(2)
    adversary = sp.attacks.GradientInversion(net, **TABLE, steps=5)
    good = released(net)
    missing = {k: v for k, v in good.gradients.items() if k != "0.bias"}
    wrong = {**good.gradients, "0.bias": torch.zeros(4, 3)}
    zero = {k: torch.zeros_like(v) for k, v in good.gradients.items()}
    for gradients, words in (
        (missing, "lacks the gradient of '0.bias'"),
        (wrong, r"must have the shape \(releases, 16\)"),
        (zero, "release 0 is zero in every entry"),
    ):
        with pytest.raises(sp.InputError, match=words):
            adversary.reconstruct(sp.attacks.GradientReleases(gradients))
    broken = {**good.gradients, "0.bias": torch.full((4, 16), torch.nan)}
    uneven = {**good.gradients, "0.bias": torch.zeros(3, 16)}
    for gradients, options, words in (
        (broken, {}, "contain NaN"),
        (uneven, {}, "different numbers of gradients"),
        ({}, {}, "no gradients"),
        (good.gradients, {"batch_size": 0}, "batch_size must be"),
        (good.gradients, {"noise": -1.0}, "noise must not be negative"),
    ):
        with pytest.raises(sp.InputError, match=words):
            sp.attacks.GradientReleases(gradients, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 3}, "records, 4, cannot be divided into batches of 3"),
        ({"batch_size": 0}, "cannot be divided"),
        ({"noise_multiplier": -1.0}, "must not be negative"),
    ],
)
def test_what_cannot_be_released(options, words):
    with pytest.raises(sp.InputError, match=words):
        released(network(2), **options)
    with pytest.raises(sp.InputError, match="4 records, but y has 3"):
        sp.attacks.release_gradients(network(2), "cross_entropy", X, Y[:3])
    with pytest.raises(sp.InputError, match="x contains no records"):
        sp.attacks.release_gradients(network(2), "cross_entropy", X[:0], Y[:0])

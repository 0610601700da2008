"""What clients may do about some layers: what leaves then, and how the network is trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import seepage as sp
from seepage.errors import InputError
from seepage.layers import UpdateRemedy
from seepage.layers.federated.remedies import LowRankChange


def network():
    torch.manual_seed(0)
    net = nn.Sequential()
    net.add_module("conv", nn.Conv2d(1, 3, 3, stride=2, padding=1))
    net.add_module("bend", nn.Tanh())
    net.add_module("flat", nn.Flatten())
    net.add_module("full", nn.Linear(27, 2))
    return net


def rounds(remedy, **options):
    draw = torch.Generator().manual_seed(1)
    clients = [(torch.randn(20, 1, 6, 6, generator=draw), torch.arange(20) % 2) for _ in range(2)]
    seen = []
    run = sp.layers.simulate(
        network(),
        "cross_entropy",
        clients,
        rounds=4,
        lr=0.1,
        remedy=remedy,
        observe=seen.append,
        **options,
    )
    return run, seen


def test_noise_is_put_on_the_named_layer_alone_and_reaches_the_server():
    plain, without = rounds(None)
    noisy, seen = rounds(UpdateRemedy.noise("full", 0.5))
    first = {k: seen[0].values[k] - without[0].values[k] for k in seen[0].values}
    assert not first["conv.weight"].any()
    assert abs(float(first["full.weight"].std()) / 0.5 - 1) < 0.3
    moved = (noisy.net.full.weight - plain.net.full.weight).detach()
    assert float(moved.norm()) > 0.1
    again, _ = rounds(UpdateRemedy.noise("full", 0.5))
    assert torch.equal(again.net.full.weight, noisy.net.full.weight)


def test_frozen_layers_are_neither_trained_nor_sent():
    run, seen = rounds(UpdateRemedy.freeze("conv"))
    assert torch.equal(run.net.conv.weight, network().conv.weight)
    assert set(seen[0].values) == {"full.weight", "full.bias"}
    assert not torch.equal(run.net.full.weight, network().full.weight)


def test_layers_that_are_sent_rarely_stand_still_in_between():
    run, seen = rounds(UpdateRemedy.rarely("full", 3), snapshots=range(5))
    sent = [bool(update.values["full.weight"].any()) for update in seen]
    assert sent == [True, True, False, False, False, False, True, True]
    assert all(update.values["conv.weight"].any() for update in seen)
    at = [run.snapshots[k]["full.weight"] for k in range(5)]
    assert not torch.equal(at[0], at[1])
    assert torch.equal(at[1], at[2])
    assert torch.equal(at[2], at[3])


def test_statistics_of_batch_norm_stay_with_the_layer_they_belong_to():
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    clients = [(torch.randn(20, 3), torch.arange(20) % 2)]
    for remedy, sent in (
        (None, [True, True]),
        (UpdateRemedy.freeze("1"), [False, False]),
        (UpdateRemedy.rarely("1", 2), [True, False]),
        (UpdateRemedy.noise("1", 0.1), [True, True]),
    ):
        seen = []
        sp.layers.simulate(
            net, "cross_entropy", clients, rounds=2, remedy=remedy, observe=seen.append
        )
        assert [bool(update.values["1.running_mean"].any()) for update in seen] == sent
    assert float(seen[0].values["1.num_batches_tracked"]) == -1  # noise is on parameters alone


def test_low_rank_changes_start_at_nothing_and_are_all_that_is_sent():
    remedy = UpdateRemedy.low_rank(("conv", "full"), 2)
    x = torch.randn(5, 1, 6, 6)
    assert torch.allclose(remedy.network(network())(x), network()(x))
    run, seen = rounds(remedy)
    assert set(seen[0].values) == {
        *("conv.down.weight", "conv.up.weight"),
        *("full.down.weight", "full.up.weight"),
    }
    assert torch.equal(run.net.full.base.weight, network().full.weight)
    change = run.net.full.up.weight @ run.net.full.down.weight
    expected = (network().full.weight + change) @ run.net[:3](x).T
    assert torch.allclose(run.net(x), expected.T + network().full.bias, atol=1e-5)
    assert bool(change.any())


def test_what_cannot_be_is_refused():
    for make, words in (
        (lambda: UpdateRemedy.noise("full", 0.0), "deviation must be"),
        (lambda: UpdateRemedy.rarely("full", 1), "every must be"),
        (lambda: UpdateRemedy.low_rank("full", 0), "rank must be"),
        (lambda: UpdateRemedy.freeze(()), "at least one layer"),
        (lambda: UpdateRemedy.freeze("ful").network(network()), "did you mean 'full'"),
        (lambda: UpdateRemedy.freeze(("conv", "full")).network(network()), "no parameters"),
        (lambda: LowRankChange(nn.LayerNorm(3), 1), "LayerNorm"),
    ):
        with pytest.raises(InputError, match=words):
            make()

"""Fisher information of what a client sends after its local steps, against torch's own optimisers.

The oracle trains copies of the network with ``torch.optim`` in float64 and takes central
differences of what they send, one unknown at a time; of one step of linear regression the Jacobian
is written out by hand.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import seepage as sp
from seepage.errors import InputError
from torch_clients import sent

CASES = {
    "one step": ({"lr": 0.3}, lambda p: torch.optim.SGD(p, lr=0.3)),
    "two steps": ({"lr": 0.3, "epochs": 2}, lambda p: torch.optim.SGD(p, lr=0.3)),
    "batches, momentum and weight decay": (
        {"lr": 0.2, "epochs": 3, "batch_size": 2, "momentum": 0.9, "weight_decay": 0.05},
        lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9, weight_decay=0.05),
    ),
    "Adam with weight decay": (
        {"lr": 0.1, "epochs": 2, "batch_size": 3, "optimizer": "adam", "weight_decay": 0.1}
        | {"eps": 0.1},
        lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.1, eps=0.1),
    ),
    "AdamW": (
        {"lr": 0.1, "epochs": 4, "optimizer": "adamw", "weight_decay": 0.3, "eps": 0.1},
        lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.3, eps=0.1),
    ),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def records(n=5):
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(n, 3, generator=draw, dtype=torch.float64)
    return x, torch.arange(n) % 2


def differences(net, optimiser, x, y, steps, h=1e-5):
    """Return ``∂sent/∂x``, (P, n, d), by central differences."""
    columns = []
    for i, j in np.ndindex(*x.shape):
        v = torch.zeros_like(x)
        v[i, j] = h
        ends = [sent(net, optimiser, x + sign * v, y, steps) for sign in (1, -1)]
        columns.append((ends[0] - ends[1]) / (2 * h))
    return torch.stack(columns, 1).reshape(-1, *x.shape)


@pytest.mark.parametrize("case", CASES)
def test_every_measure_equals_differences_of_torchs_own_training(case):
    options, optimiser = CASES[case]
    training = sp.layers.LocalTraining(**options, seed=3)
    net, (x, y) = network(), records()
    sigma, share = 0.02, 0.4
    leak = sp.layers.update_leakage(
        net, "cross_entropy", x, y, training=training, noise=sp.Gaussian(sigma), share=share
    )
    J = share / sigma * differences(net, optimiser, x, y, training.rows_of_steps(5))
    each = J.permute(1, 0, 2).numpy()
    largest = np.linalg.norm(each, ord=2, axis=(1, 2))
    average = np.sqrt((each**2).sum((1, 2)) / 3)
    assert np.allclose(leak.records(), largest, rtol=1e-6)
    assert np.allclose(leak.records(measure="dfil"), average, rtol=1e-6)
    assert np.allclose(leak.cells(), np.sqrt((each**2).sum(1)), rtol=1e-6, atol=1e-9)
    whole = each.transpose(1, 0, 2).reshape(len(J), -1)
    assert np.isclose(float(leak.dataset()), np.linalg.norm(whole, ord=2), rtol=1e-6)
    layers = leak.layers()
    parts = J.numpy()[:16], J.numpy()[16:]
    by_layer = [np.sqrt((part**2).sum() / x.numel()) for part in parts]
    assert np.allclose(layers.values, by_layer, rtol=1e-6)
    assert np.allclose((layers.by_record**2).sum(1), average**2, rtol=1e-6)
    assert leak.records().kind == layers.kind == "exact"


def test_one_step_of_linear_regression_is_the_formula():
    draw = torch.Generator().manual_seed(2)
    x, y = (torch.randn(n, d, generator=draw, dtype=torch.float64) for n, d in ((6, 3), (6, 1)))
    net = nn.Linear(3, 1, bias=False).double()
    w = net.weight.detach()[0]
    lr, sigma = 0.1, 0.5
    leak = sp.layers.update_leakage(
        net, "mse", x, y, training=sp.layers.LocalTraining(lr=lr), noise=sp.Gaussian(sigma)
    )
    # The update is lr/n Σ (wᵀx_i − y_i) x_i, of which record i moves its own term.
    for i in range(6):
        J = lr / 6 * (torch.outer(x[i], w) + (w @ x[i] - y[i]) * torch.eye(3)) / sigma
        information = leak.information(i)
        assert torch.allclose(information, J.T @ J, rtol=1e-10)
    bound = sp.bounds.cramer_rao_rows(leak).values[5]
    assert torch.allclose(bound, torch.trace(torch.linalg.inv(J.T @ J)) / 3, rtol=1e-8)


@pytest.mark.slow
def test_a_record_that_is_replaced_is_trained_on_again():
    options, optimiser = CASES["batches, momentum and weight decay"]
    training = sp.layers.LocalTraining(**options, seed=3)
    net, (x, y) = network(), records()
    leak = sp.layers.update_leakage(
        net, "cross_entropy", x, y, training=training, noise=sp.Gaussian(0.02)
    )
    steps = training.rows_of_steps(5)
    features = np.array([[0.5, -1.0, 2.0], [0.0, 0.0, 0.0]])
    moves = leak.refits().moves(2, features)
    for found, one in zip(moves, features, strict=True):
        other = x.clone()
        other[2] = torch.from_numpy(one)
        ends = [sent(net, optimiser, given, y, steps) for given in (other, x)]
        assert np.allclose(found, ends[0] - ends[1], atol=1e-12)
    there = leak.refits().jacobian(2, features[0], None, None, sp.Gaussian(0.02))
    other = x.clone()
    other[2] = torch.from_numpy(features[0])
    J = differences(net, optimiser, other, y, steps)[:, 2].numpy() / 0.02
    assert np.allclose(there.row_traces(leak.unknowns(None)[0]), [(J**2).sum()], rtol=1e-6)
    bound = sp.bounds.hammersley_chapman_robbins(leak, 2, 0)
    assert float(bound.bound) >= bound.cramer_rao * (1 - 1e-6)


@pytest.mark.minutes
def test_finite_steps_estimate_the_same_and_say_their_scale():
    training = sp.layers.LocalTraining(lr=0.2, epochs=3, batch_size=2, momentum=0.5)
    net, (x, y) = network(), records()
    leak = sp.layers.update_leakage(
        net, "cross_entropy", x, y, training=training, noise=sp.Gaussian(0.1)
    )
    truth = np.asarray(leak.records(measure="dfil"))
    found = leak.records(measure="dfil", method="finite", rows=[1, 4], probes=64, scale=1e-4)
    assert found.kind == "estimate"
    assert found.labels().tolist() == [1, 4]
    low, high = found.interval(0.999)
    assert ((low < truth[[1, 4]]) & (truth[[1, 4]] < high)).all()
    assert "over steps of 0.0001" in repr(found)
    assert any("0.0001" in words for words in found.conditions)
    whole = leak.dataset("dfil", method="finite", probes=64, scale=1e-4)
    low, high = whole.interval(0.999)
    assert low < float(leak.dataset("dfil")) < high
    by_layer = leak.layers(method="finite", probes=64, scale=1e-4)
    assert by_layer.kind == "estimate"
    exact = leak.layers()
    assert (np.abs(by_layer.values / exact.values - 1) < 0.2).all()
    assert ((by_layer.low < by_layer.values) & (by_layer.values < by_layer.high)).all()


def test_finite_steps_see_what_derivatives_do_not():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(3, 2).double()

        def forward(self, x):
            return self.last(x.detach() ** 2)

    x, y = records()
    torch.manual_seed(0)
    leak = sp.layers.update_leakage(
        Hidden(),
        "cross_entropy",
        x,
        y,
        training=sp.layers.LocalTraining(lr=0.1, epochs=2),
        noise=sp.Gaussian(0.1),
    )
    with pytest.raises(InputError, match="hides the records from differentiation"):
        leak.records()
    assert float(leak.dataset("dfil", method="finite")) > 0.01


def test_an_update_that_is_scaled_down_moves_no_further_than_its_norm():
    net, (x, y) = network(), records()
    training = sp.layers.LocalTraining(lr=0.5, epochs=3)
    options = {"training": training, "noise": sp.Gaussian(0.1)}
    free, short = (
        sp.layers.update_leakage(net, "cross_entropy", x, y, **options, max_norm=norm)
        for norm in (None, 0.01)
    )
    assert free.release.sensitivity is None
    assert short.release.sensitivity == 0.02
    u = sent(net, lambda p: torch.optim.SGD(p, lr=0.5), x, y, training.rows_of_steps(5))
    J = differences(net, lambda p: torch.optim.SGD(p, lr=0.5), x, y, training.rows_of_steps(5))
    unit = u / u.norm()
    flat = 0.01 / u.norm() * (J - torch.einsum("p,q,qnd->pnd", unit, unit, J)) / 0.1
    assert np.allclose(
        short.records(measure="dfil"), (flat**2).sum((0, 2)).div(3).sqrt(), rtol=1e-5
    )


def test_convolutions_labels_and_batch_statistics_that_stay_with_the_client():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2, track_running_stats=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(8, 2),
    )
    x, y = torch.randn(4, 1, 4, 4), torch.tensor([0, 1, 1, 0])
    options = {
        "training": sp.layers.LocalTraining(lr=0.1, epochs=2),
        "noise": sp.Gaussian(0.1),
    }
    leak = sp.layers.update_leakage(net, "cross_entropy", x, y, **options)
    v = torch.zeros_like(x).double()
    v[1, 0, 2, 2] = 1.0
    change = leak.jacobian.run.change(v, 1e-6)
    assert np.isclose(np.asarray(leak.cells())[1, 10], float(change.norm()) / 0.1, rtol=1e-5)
    assert "interact in the network's BatchNorm" in leak.conditions[-1]
    about = sp.layers.update_leakage(
        net, "cross_entropy", x, y, **options, view=sp.nn.Label()
    ).records()
    assert about.about == "the label"
    assert about.shape == (4,)


def test_what_has_no_answer_is_refused_with_the_reason():
    net, (x, y) = network(), records()
    training = sp.layers.LocalTraining(lr=0.1)

    def ask(net=net, **options):
        given = {"training": training, "noise": sp.Gaussian(0.1)} | options
        return sp.layers.update_leakage(net, "cross_entropy", x, y, **given)

    with pytest.raises(InputError, match="sent without noise is infinite"):
        ask(noise=None)
    with pytest.raises(InputError, match="sigma"):
        ask(noise=sp.Gaussian(0.0))
    kept = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    with pytest.raises(InputError, match=r"'1.running_mean' changes with the records"):
        ask(kept)
    assert ask(kept.eval()).records().shape == (5,)
    with pytest.raises(InputError, match="drops values at random"):
        ask(nn.Sequential(nn.Linear(3, 2), nn.Dropout()).double())
    with pytest.raises(InputError, match="must describe the client's training"):
        ask(training=torch.optim.SGD)
    with pytest.raises(InputError, match="use method='exact'"):
        ask().records(method="finite")
    with pytest.raises(InputError, match="method must be 'exact' or 'finite', not 'fast'"):
        ask().layers(method="fast")
    with pytest.raises(InputError, match=r"label, use view=sp.nn.Label"):
        ask().labels()
    with pytest.raises(InputError, match="diverges"):
        ask(training=sp.layers.LocalTraining(lr=1e200, epochs=9, weight_decay=1e9)).records()
    with pytest.raises(InputError, match="correlated between layers"):
        ask(noise=sp.Gaussian(np.eye(26))).layers()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": 0.0}, "lr must be"),
        ({"lr": 1.0, "optimizer": "lion"}, "optimizer must be"),
        ({"lr": 1.0, "epochs": 0}, "epochs must be"),
        ({"lr": 1.0, "batch_size": 0}, "batch_size must be"),
        ({"lr": 1.0, "momentum": -1.0}, "must not be negative"),
        ({"lr": 1.0, "momentum": 0.9, "optimizer": "adam"}, "only for 'sgd'"),
        ({"lr": 1.0, "betas": (0.9, 1.0)}, "betas must be at least 0"),
        ({"lr": 1.0, "batches": [[0]], "epochs": 2}, "not both"),
        ({"lr": 1.0, "batches": []}, "at least one step"),
    ],
)
def test_local_training_that_cannot_be_is_refused(options, words):
    with pytest.raises(InputError, match=words):
        sp.layers.LocalTraining(**options)


def test_local_steps_are_told_by_their_records():
    assert [rows.tolist() for rows in sp.layers.LocalTraining(lr=1.0).rows_of_steps(3)] == [
        [0, 1, 2]
    ]
    shuffled = sp.layers.LocalTraining(lr=1.0, epochs=2, batch_size=4, seed=5).rows_of_steps(6)
    assert sorted(torch.cat(shuffled[:2]).tolist()) == list(range(6))
    assert shuffled[0].tolist() != shuffled[2].tolist()
    again = sp.layers.LocalTraining(lr=1.0, epochs=2, batch_size=4, seed=5).rows_of_steps(6)
    assert all(torch.equal(a, b) for a, b in zip(shuffled, again, strict=True))
    with pytest.raises(InputError, match="a record that does not exist"):
        sp.layers.LocalTraining(lr=1.0, batches=[[0, 3]]).rows_of_steps(3)


def small(noise=None, net=None, x=None):
    training = sp.layers.LocalTraining(lr=0.3)
    own, y = records()
    return sp.layers.update_leakage(
        net or network(),
        "cross_entropy",
        own if x is None else x,
        y,
        training=training,
        noise=noise or sp.Gaussian(0.5),
    )


def test_what_an_update_cannot_tell_is_refused():
    with pytest.raises(InputError, match="contains NaN or infinity; drop"):
        small(x=records()[0] * np.nan)
    with pytest.raises(InputError, match="so nothing is sent; unfreeze some parameters"):
        small(net=network().requires_grad_(False))
    leak = small()
    with pytest.raises(InputError, match="rows is supported only with method='finite'"):
        leak.records(rows=[0])
    for part in ({"label": True}, {"columns": [0]}, {"simplex": True}):
        with pytest.raises(InputError, match="Finite steps change whole records"):
            leak.records(method="finite", measure="dfil", **part)
    assert leak.release.template.with_label_step(1.0) is leak.release.template
    with pytest.raises(InputError, match=r"cannot be measured in steps of 0\.5"):
        leak.release.template.with_label_step(0.5)
    with pytest.raises(InputError, match="pass the label as features"):
        leak.refits().parameters(0, records()[0][:1], [1])


def test_a_covariance_of_equal_variances_is_their_standard_deviation():
    size = sum(p.numel() for p in network().parameters())
    whole = small(sp.Gaussian(0.25 * np.eye(size))).records()
    np.testing.assert_allclose(np.asarray(whole), np.asarray(small().records()), rtol=1e-10)


def test_a_jacobian_that_would_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr("seepage.layers.measures.update_jacobian.LARGEST", 100)
    with pytest.raises(InputError, match="5 records of 3 unknowns is too large for memory"):
        small().records()


class Detached(nn.Module):
    """Hides from torch a part of how its output depends on the record."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x) * x.detach().sum(1, keepdim=True)


def test_a_network_that_hides_its_records_is_refused_by_exact_derivatives():
    torch.manual_seed(0)
    leak = small(net=Detached().double())
    with pytest.raises(InputError, match="derivative of the update disagrees with its change"):
        leak.records()

"""Sensitivity agrees with Jacobians written out in float64, and its estimates with their errors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from dense_sensitivity import dense_sensitivity
from torch import nn

from reproduction.layers.networks import alexnet, fcnet, vgg11net
from sampled import sampled
from seepage.errors import InputError
from seepage.layers import sensitivity
from seepage.layers.layer_parameters import layer_parameters
from seepage.nn.gradients.network_checks import KinkWarning


class Tied(nn.Module):
    """One weight used twice, a weight of the network itself, and a layer without a bias."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.out = nn.Linear(4, 3, bias=False)
        self.scale = nn.Parameter(torch.tensor([1.5, -0.5, 2.0, 1.0]))

    def forward(self, x):
        return self.out(torch.tanh(self.inner(torch.tanh(self.inner(x)))) * self.scale)


class Sequence(nn.Module):
    """Positions within an example: the gradient of the first layer is a sum over them."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(3, 5)
        self.norm = nn.LayerNorm(5)
        self.out = nn.Linear(5, 2)

    def forward(self, x):
        return self.out(self.norm(torch.tanh(self.embed(x))).mean(1))


def mlp():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def convolutions():
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(3, 4, 2, stride=2),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


CASES = {
    "mlp": (mlp, (4,), 3, "cross_entropy"),
    "squares": (mlp, (4,), None, "mse"),
    "smoothed": (mlp, (4,), 3, nn.CrossEntropyLoss(label_smoothing=0.2)),
    "convolutions": (convolutions, (2, 4, 4), 3, "cross_entropy"),
    "tied": (Tied, (4,), 3, "cross_entropy"),
    "sequence": (Sequence, (7, 3), 2, "cross_entropy"),
}


def case(name, samples=5):
    make, shape, classes, loss = CASES[name]
    torch.manual_seed(3)
    net = make().double()
    x = torch.randn(samples, *shape, dtype=torch.float64)
    if classes is None:
        return net, x, torch.randn(samples, 3, dtype=torch.float64), loss
    return net, x, torch.arange(samples) % classes, loss


@pytest.mark.parametrize("norm", sampled(["fro", 1, "inf"], ["fro"]))
@pytest.mark.parametrize("wrt", ["target", "input"])
@pytest.mark.parametrize("name", CASES)
def test_whole_jacobians(name, wrt, norm):
    net, x, y, loss = case(name)
    found = sensitivity(net, loss, x, y, wrt=wrt, norm=norm)
    layout = layer_parameters(net)
    truth = dense_sensitivity(net, loss, x, y, wrt, norm, layout)
    assert found.kind == "exact"
    assert found.layers == tuple(layout)
    np.testing.assert_allclose(found.by_record, truth, rtol=1e-9)
    np.testing.assert_allclose(found.values, truth.mean(0), rtol=1e-9)


@pytest.mark.slow
def test_the_papers_networks():
    torch.manual_seed(0)
    x = torch.randn(3, 3, 16, 12, dtype=torch.float64)
    y = torch.tensor([0, 1, 1])
    for make in (alexnet, vgg11net, fcnet):
        net = make(size=(16, 12)).double()
        with warnings.catch_warnings():
            warnings.simplefilter("error", KinkWarning)  # nothing is differentiated twice
            found = sensitivity(net, "cross_entropy", x, y, chunk_size=2)
        truth = dense_sensitivity(
            net, "cross_entropy", x, y, "target", "fro", layer_parameters(net)
        )
        np.testing.assert_allclose(found.by_record, truth, rtol=1e-8)
    assert found.layers == tuple(f"fc{k}" for k in range(1, 10))


@pytest.mark.parametrize("norm", ["fro", 1])
@pytest.mark.parametrize("name", ["mlp", "convolutions"])
def test_rows_of_small_layers_are_exact_beside_estimates(name, norm):
    net, x, y, loss = case(name)
    layout = layer_parameters(net)
    smallest = min(sum(dict(net.named_parameters())[n].numel() for n in v) for v in layout.values())
    wide = torch.cat([x] * 1)
    found = sensitivity(net, loss, wide, y, wrt="input", norm=norm, exact=3, directions=4)
    assert found.kind == "estimate"
    assert np.all(found.errors > 0)
    if x[0].numel() > smallest:
        found = sensitivity(net, loss, x, y, wrt="input", norm=norm, exact=smallest, directions=4)
        place = int(np.argmin(found.sizes))
        truth = dense_sensitivity(net, loss, x, y, "input", norm, layout)
        np.testing.assert_allclose(found.by_record[:, place], truth[:, place], rtol=1e-9)
        assert np.all(found.errors[:, place] == 0)


@pytest.mark.parametrize("norm", ["fro", 1])
@pytest.mark.parametrize("wrt", sampled(["target", "input"], ["target"]))
def test_estimates_lie_within_their_errors(wrt, norm):
    net, x, y, loss = case("convolutions", samples=20)
    truth = dense_sensitivity(net, loss, x, y, wrt, norm, layer_parameters(net)).numpy()
    found = sensitivity(net, loss, x, y, wrt=wrt, norm=norm, exact=1, directions=64)
    away = np.abs(found.by_record - truth) / found.errors
    assert np.mean(away < 2) > 0.85
    np.testing.assert_allclose(found.values, truth.mean(0), rtol=0.1)


def test_estimates_do_not_depend_on_the_chunks():
    net, x, y, loss = case("mlp")
    options = {"wrt": "input", "exact": 1, "directions": 3}
    whole = sensitivity(net, loss, x, y, chunk_size=5, **options)
    cut = sensitivity(net, loss, x, y, chunk_size=2, **options)
    np.testing.assert_allclose(whole.by_record, cut.by_record, rtol=1e-12)
    other = sensitivity(net, loss, x, y, seed=1, **options)
    assert not np.allclose(whole.by_record, other.by_record)


def test_layers_may_be_named():
    net = nn.Sequential(mlp(), nn.Tanh(), nn.Linear(3, 2)).double()
    x, y = torch.randn(4, 4, dtype=torch.float64), torch.tensor([0, 1, 0, 1])
    found = sensitivity(net, "cross_entropy", x, y, layers=["0", "2"])
    layout = {
        "0": ("0.0.weight", "0.0.bias", "0.2.weight", "0.2.bias"),
        "2": ("2.weight", "2.bias"),
    }
    truth = dense_sensitivity(net, "cross_entropy", x, y, "target", "fro", layout)
    np.testing.assert_allclose(found.by_record, truth, rtol=1e-9)


def test_a_layer_that_is_not_used_gives_nothing_away():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x):
            return self.used(x)

    found = sensitivity(Idle(), "cross_entropy", torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
    assert found["idle"] == 0
    assert found["used"] > 0


def test_a_gradient_of_one_number_has_no_range():
    net = nn.Sequential(nn.Linear(3, 1, bias=False), nn.Linear(1, 1, bias=False))
    found = sensitivity(net, "mse", torch.randn(4, 3), torch.randn(4, 1))
    assert np.isnan(found["1"])
    assert found.ranking() == ["0", "1"]
    assert any("no range" in note for note in found.notes)


def test_frozen_parameters_are_not_sent():
    net = mlp()
    net[0].requires_grad_(False)
    found = sensitivity(net, "cross_entropy", torch.randn(4, 4), torch.tensor([0, 1, 2, 0]))
    assert found.layers == ("2",)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"wrt": "label"}, "wrt must be"),
        ({"norm": 2}, "norm must be"),
        ({"directions": 1}, "directions must be at least 2"),
        ({"layers": ["3"]}, "There is no layer '3'"),
        ({"layers": []}, "layers is empty"),
        ({"layers": ["0", "0.weight"]}, "two of the named layers"),
        ({"wrt": "input", "norm": "inf", "exact": 2}, "cannot be estimated"),
    ],
)
def test_what_cannot_be(options, complaint):
    with pytest.raises(InputError, match=complaint):
        sensitivity(
            mlp(), "cross_entropy", torch.randn(4, 4), torch.tensor([0, 1, 2, 0]), **options
        )


@pytest.mark.parametrize("wrt", ["target", "input"])
def test_what_is_not_finite_is_refused_wherever_it_stands(wrt):
    x, y = torch.randn(9, 4), torch.arange(9)
    x[8, 1] = torch.nan
    with pytest.raises(InputError, match="Record 8 of this batch has a number in x"):
        sensitivity(mlp(), "cross_entropy", x, y % 3, wrt=wrt)
    x[8] = 3e38  # the network makes infinity of that
    two = nn.Sequential(nn.Linear(4, 2))
    with torch.no_grad():
        two[0].weight.copy_(torch.tensor([[9.0], [-9.0]]).expand(2, 4))
    with pytest.raises(InputError, match="gradient of layer '0' is not finite"):
        sensitivity(two, "cross_entropy", x, y % 2, wrt=wrt)


def test_one_layer_may_be_named_without_a_list():
    net, x, y, loss = case("mlp")
    assert sensitivity(net, loss, x, y, layers="2").layers == ("2",)


def test_classes_beyond_the_outputs():
    with pytest.raises(InputError, match="from 0 to 2, but y contains numbers from 0 to 3"):
        sensitivity(mlp(), "cross_entropy", torch.randn(4, 4), torch.arange(4))


def test_targets_must_match():
    with pytest.raises(InputError, match="records is 4, but y has 3 labels"):
        sensitivity(mlp(), "cross_entropy", torch.randn(4, 4), torch.tensor([0, 1, 2]))


def test_batch_statistics_are_refused():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with pytest.raises(InputError, match="BatchNorm1d"):
        sensitivity(net, "cross_entropy", torch.randn(4, 4), torch.tensor([0, 1, 1, 0]))


def test_samples_that_the_network_is_sure_of_keep_their_digits():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    with torch.no_grad():
        net[2].weight *= 120
    x = torch.randn(20, 3)
    outputs = net(x)
    sure = (outputs[:, 0] - outputs[:, 1]).abs()
    assert sure.max() > 20  # 1 − p is less than a float's last digit there
    single = sensitivity(net, "cross_entropy", x, outputs.argmax(1))
    double = sensitivity(net.double(), "cross_entropy", x.double(), outputs.argmax(1))
    np.testing.assert_allclose(single.by_record, double.by_record, rtol=1e-3)


def test_one_target_per_sample_needs_no_axis_of_its_own():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x, y = torch.randn(5, 3), torch.randn(5)
    flat = sensitivity(net, "mse", x, y)
    np.testing.assert_allclose(flat.values, sensitivity(net, "mse", x, y[:, None]).values)


@pytest.mark.parametrize("wrt", ["target", "input"])
def test_some_layers_only_and_many_classes(wrt):
    net, x, y, loss = case("mlp")
    layout = {"2": layer_parameters(net)["2"]}
    found = sensitivity(net, loss, x, y, wrt=wrt, layers=["2"])
    truth = dense_sensitivity(net, loss, x, y, wrt, "fro", layout)
    np.testing.assert_allclose(found.by_record, truth, rtol=1e-9)
    wide = nn.Linear(4, 9).double()
    found = sensitivity(wide, loss, x, y, wrt=wrt)
    truth = dense_sensitivity(wide, loss, x, y, wrt, "fro", layer_parameters(wide))
    np.testing.assert_allclose(found.by_record, truth, rtol=1e-9)


@pytest.mark.parametrize("norm", ["fro", 1, "inf"])
def test_embeddings_of_tokens(norm):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2)).double()
    x = torch.tensor([[0, 1], [2, 2], [4, 0]])
    y = torch.softmax(torch.randn(3, 2, dtype=torch.float64), dim=1)
    found = sensitivity(net, "cross_entropy", x, y, norm=norm)
    truth = dense_sensitivity(net, "cross_entropy", x, y, "target", norm, layer_parameters(net))
    np.testing.assert_allclose(found.by_record, truth, rtol=1e-9)


def test_where_all_layers_are_small_nothing_is_estimated():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = net.double()
    x, y = torch.randn(3, 1, 6, 6, dtype=torch.float64), torch.tensor([0, 1, 1])
    found = sensitivity(net, "cross_entropy", x, y, wrt="input", exact=12, directions=2)
    truth = dense_sensitivity(net, "cross_entropy", x, y, "input", "fro", layer_parameters(net))
    np.testing.assert_allclose(found.by_record, truth, rtol=1e-9)
    assert np.all(found.errors == 0)


def test_a_gradient_that_does_not_depend_on_the_target_has_no_sensitivity_to_it():
    net, x, _, _ = case("mlp")
    y = torch.randn(5, 3, dtype=torch.float64)
    found = sensitivity(net, lambda out, t: out.square().sum(1) + t.sum(1), x, y)
    assert np.all(found.by_record == 0)


def test_a_bias_whose_gradient_is_constant_has_no_sensitivity_to_the_input():
    net = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(50, 1)).double()
    x, y = torch.randn(3, 1, 6, 6, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64)
    loss = _first_output
    found = sensitivity(net, loss, x, y, wrt="input", exact=12, directions=2)
    truth = dense_sensitivity(net, loss, x, y, "input", "fro", layer_parameters(net))
    np.testing.assert_allclose(found.by_record[:, 0], truth[:, 0], rtol=1e-9)


def _first_output(output, target):
    return output[:, 0]

"""Gradients of convolutions, one group per example, are those of the examples one by one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from seepage.layers import sensitivity
from seepage.layers.measures.jacobian_columns import OutputKeeper, TargetColumns, quick_geometry
from seepage.nn.gradients.network_checks import Validator
from seepage.nn.gradients.per_record_gradients import GradientTerm
from seepage.nn.problem.problem import NetworkProblem, per_record
from seepage.nn.problem.views import Label

CASES = {
    "same": (nn.Conv2d(2, 3, 3, padding=1), (2, 5, 6)),
    "strided": (nn.Conv2d(2, 4, (3, 2), stride=(2, 3), padding=(2, 1)), (2, 7, 8)),
    "dilated, rows left over": (nn.Conv2d(1, 2, 2, stride=2, dilation=2), (1, 8, 6)),
    "grouped": (nn.Conv2d(4, 6, 3, padding=1, groups=2), (4, 5, 5)),
    "each channel apart": (nn.Conv2d(3, 6, 2, groups=3), (3, 4, 4)),
    "padded more behind": (nn.Conv2d(2, 3, (2, 4), padding="same"), (2, 4, 5)),
    "sequence": (nn.Conv1d(3, 4, 3, padding=1), (3, 9)),
    "volume": (nn.Conv3d(1, 2, 2, stride=2), (1, 4, 4, 4)),
    "no bias, one pixel": (nn.Conv2d(5, 2, 1, bias=False), (5, 1, 1)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("last", [False, True])
def test_they_are_the_examples_own(name, last):
    torch.manual_seed(1)
    layer, shape = CASES[name]
    x = torch.randn(4, *shape, dtype=torch.float64)
    if last and len(shape) == 3:
        x = x.contiguous(memory_format=torch.channels_last)
    layer = layer.double()
    width = layer(x[:1]).numel()
    net = nn.Sequential(layer, nn.Flatten(), nn.Linear(width, 3, dtype=torch.float64))
    y = torch.tensor([0, 2, 1, 1])
    problem = NetworkProblem(net, OutputKeeper(per_record("cross_entropy")), Label())
    plan = Validator(problem).watched(x, y)
    found = dict(TargetColumns(plan, problem.batch(x, y)).gradients())["0.weight", 0]
    assert found.plain is not None
    assert not found.outers
    for k in range(4):
        loss = nn.functional.cross_entropy(net(x[k : k + 1]), y[k : k + 1])
        (wanted,) = torch.autograd.grad(loss, [layer.weight])
        torch.testing.assert_close(found.plain[k], wanted.flatten(), rtol=1e-10, atol=1e-12)


def test_what_is_no_convolution_is_left_alone():
    assert quick_geometry([GradientTerm(("weight", 0), (torch.ones(2, 3),))]) is None


def test_several_images_to_an_example():
    class Frames(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.out = nn.Conv2d(1, 2, 3), nn.Linear(8, 2)

        def forward(self, x):
            seen = torch.tanh(self.conv(x.flatten(0, 1))).flatten(1)
            return self.out(seen.unflatten(0, x.shape[:2]).mean(1))

    torch.manual_seed(0)
    net = Frames().double()
    x, y = torch.randn(3, 5, 1, 4, 4, dtype=torch.float64), torch.tensor([0, 1, 1])
    found = sensitivity(net, "cross_entropy", x, y)
    for k in range(3):
        loss = nn.functional.cross_entropy(net(x[k : k + 1]), y[k : k + 1])
        parts = torch.autograd.grad(loss, list(net.conv.parameters()))
        flat = torch.cat([part.flatten() for part in parts])
        p = net(x[k : k + 1]).detach().softmax(1)[0]
        # Two classes: the Jacobian is a multiple of the gradient (see the how-to on layers).
        ratio = p.norm() / (1 - p[y[k]]) * flat.norm() / (flat.max() - flat.min()) / 20**0.5
        assert found.by_record[k, 0] == pytest.approx(float(ratio), rel=1e-8)

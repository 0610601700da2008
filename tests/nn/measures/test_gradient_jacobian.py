"""The gradient of a network answers what the core asks of a release, as a dense Jacobian would."""

from itertools import product

import numpy as np
import pytest
import torch
from gradient_oracle import dense
from torch import nn

import seepage.nn as snn
from cases import CASES, trio
from oracle import Dense
from seepage.core.unknowns import Unknowns
from seepage.nn.measures.gradient_jacobian import _InputAndLabel
from seepage.nn.measures.gradient_leakage import GradientLeakage
from views import VIEWS

NAMED = {case.name: case for case in CASES}
NOISE = 0.7

LOSSES = {
    "gaussian": "mse",
    "bernoulli": lambda out, y: nn.functional.softplus(out[:, 0]) - y * out[:, 0],
    "poisson": lambda out, y: torch.exp(out[:, 0]) - y * out[:, 0],
    "categorical": "cross_entropy",
}
CLIPS = {"none": snn.NoClip(), "hard": snn.HardClip(0.8), "smooth": snn.SmoothClip(0.8)}


def network(case):
    """Return a generalized linear model as a network of one layer, its loss and its batch."""
    torch.manual_seed(0)
    y = np.asarray(case.y)
    if case.family == "categorical":
        classes, y = np.unique(y, return_inverse=True)
        target = torch.tensor(y)
    elif case.family == "bernoulli":
        classes, y = np.unique(y, return_inverse=True)
        target = torch.tensor(y, dtype=torch.float64)
    else:
        target = torch.tensor(y, dtype=torch.float64)
    outputs = len(classes) if case.family == "categorical" else 1
    net = nn.Linear(case.d, outputs, bias=case.intercept).double()
    return net, LOSSES[case.family], torch.tensor(case.X), target


def full(net, loss, x, y, clip):
    label = snn.Label().variable(net, x[:1], y[:1])
    truth = dense(net, loss, _InputAndLabel(tuple(label.shape[1:])), x, y)
    J = truth.clipped(clip)[1] / NOISE
    theta = truth.clipped(clip)[0].sum(0)
    return Dense(J.permute(1, 0, 2).numpy(), x.shape[1], theta.numpy())


MODELS = ["linear", "linear-intercept", "logistic-intercept", "poisson", "softmax-3"]


@pytest.fixture(
    scope="module", params=[(m, c) for m in MODELS for c in CLIPS], ids=lambda p: "-".join(p)
)
def released(request):
    case, clip = NAMED[request.param[0]], CLIPS[request.param[1]]
    net, loss, x, y = network(case)
    engine = snn.Engine(net, loss, clip=clip)
    declared = {"trio": trio(case)} if case.d >= 4 else None
    return case, GradientLeakage(engine, x, y, NOISE, declared), full(net, loss, x, y, clip)


def ask(leak, view, case, measure):
    """Ask as of a table, where the label counts unless columns are named."""
    arguments = view.arguments(case)
    if view.method == "cells":
        return np.asarray(leak.cells(method="exact"))
    if view.method in ("rows", "groups", "subset"):
        arguments.setdefault("label", arguments.get("columns") is None)
    return np.asarray(getattr(leak, view.method)(**arguments, measure=measure))


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_the_views_of_a_table(released, view):
    """Columns, groups, blocks, labels: the table of views that a model's release answers."""
    case, leak, truth = released
    if not view.applies_to(case) or view.name == "cells-some":  # which names no columns here
        pytest.skip("no such columns")
    scales = view.scales(truth, case)
    for measure in view.measures:
        got = ask(leak, view, case, measure).reshape(-1)
        # What a hard clip holds back wholly is left with the rounding of a difference.
        allowed = 1e-9 * view.truth(truth, case, measure) + 1e-6 * scales.max()
        assert np.all(np.abs(got - view.truth(truth, case, measure)) <= allowed), measure


def test_products(released):
    _, leak, truth = released
    jacobian, unknowns = leak.jacobian, Unknowns(None, True)
    rows = torch.tensor([4, 0, 2])
    block = torch.tensor(truth.block(rows.tolist(), label=True))
    z = torch.randn(3, block.shape[1] // 3, dtype=torch.float64)
    close(jacobian.forward(z, unknowns, rows), block @ z.flatten())
    v = torch.randn(jacobian.size, dtype=torch.float64)
    close(jacobian.adjoint(v, unknowns, rows), (block.T @ v).reshape(3, -1))
    matrices = jacobian.row_information(unknowns)(slice(1, 3))
    for k, row in enumerate((1, 2)):
        J = torch.tensor(truth.block([row], label=True))
        close(matrices[k], J.T @ J)
        close(leak.information(row, label=True), J.T @ J)


def close(found, wanted):
    scale = float(wanted.abs().max()) + 1e-300
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-9 * scale)

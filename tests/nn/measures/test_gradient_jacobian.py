"""The gradient of a network answers what the core asks of a release, as a dense Jacobian would."""

import numpy as np
import pytest
import torch
from gradient_oracle import dense
from torch import nn

import seepage as sp
import seepage.nn as snn
from cases import CASES, trio
from oracle import Dense
from sampled import sampled
from seepage.core.jacobian import Unknowns
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
    """Return a generalised linear model as a network of one layer, its loss and its batch."""
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


PAIRS = [
    ("linear", "none"),
    ("linear-intercept", "hard"),
    ("logistic-intercept", "smooth"),
    ("poisson", "hard"),
    ("softmax-3", "none"),
    ("softmax-3", "smooth"),
]


@pytest.fixture(scope="module", params=sampled(PAIRS, [PAIRS[-1]], 3, whole=True), ids="-".join)
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
        return np.asarray(leak.cells(method="exact", **arguments))
    if view.method in ("rows", "groups", "subset"):
        arguments.setdefault("label", arguments.get("columns") is None)
    return np.asarray(getattr(leak, view.method)(**arguments, measure=measure))


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_the_views_of_a_table(released, view):
    """Columns, groups, blocks, labels: the table of views that a model's release answers."""
    case, leak, truth = released
    if not view.applies_to(case):
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


def test_bounds_are_those_of_the_dense_jacobian():
    case = NAMED["softmax-3"]
    net, loss, x, y = network(case)
    leak = GradientLeakage(snn.Engine(net, loss, clip=CLIPS["smooth"]), x, y, NOISE)
    truth = full(net, loss, x, y, CLIPS["smooth"])
    matrices = [truth.block([i]).T @ truth.block([i]) for i in range(case.n)]
    inverses = np.stack([np.diag(np.linalg.inv(one)) for one in matrices])
    np.testing.assert_allclose(sp.bounds.cramer_rao_rows(leak), inverses.mean(1), rtol=1e-6)
    np.testing.assert_allclose(sp.bounds.cramer_rao_cells(leak), inverses, rtol=1e-6)
    found = float(sp.bounds.cramer_rao(leak, [3], columns=[0, 2]))
    block = matrices[3][np.ix_([0, 2], [0, 2])]
    assert found == pytest.approx(np.trace(np.linalg.inv(block)) / 2, rel=1e-8)
    halved = sp.bounds.biased_leakage(leak.records("fil", label=False), slope=0.5)
    np.testing.assert_allclose(halved, [0.25 / np.linalg.eigvalsh(one)[-1] for one in matrices])
    prior = sp.bounds.GaussianPrior(std=1.0)
    given = float(sp.bounds.van_trees(leak.information(3), prior))
    assert given == pytest.approx(np.trace(np.linalg.inv(matrices[3] + np.eye(case.d))) / case.d)


def test_noise_is_calibrated():
    net, loss, x, y = network(NAMED["linear-intercept"])
    options = {"max_grad_norm": 0.5, "clip": "smooth"}
    leak = snn.leakage(net, loss, x, y, noise_multiplier=1.0, **options)
    for measure in ("fil", "dfil"):
        view = leak.records(measure, columns=[0, 1])
        noise = sp.calibrate(leak, eta=0.2, view=view, grid=None)
        again = snn.leakage(net, loss, x, y, noise_multiplier=noise.sigma / 0.5, **options)
        assert np.max(again.records(measure, columns=[0, 1])) == pytest.approx(0.2)
    noise = sp.calibrate(leak, eta=0.2, grid=None)
    again = snn.leakage(net, loss, x, y, noise_multiplier=noise.sigma / 0.5, **options)
    assert np.max(again.records("fil")) == pytest.approx(0.2)


@pytest.mark.slow
def test_a_record_may_change_by_a_finite_amount():
    """van Trees and Hammersley–Chapman–Robbins ask how far the gradient moves, with no refit."""
    net, loss, x, y = network(NAMED["logistic-intercept"])
    engine = snn.Engine(net, loss, clip=CLIPS["smooth"])
    leak = GradientLeakage(engine, x, y, NOISE)
    moves = leak.refits()
    other = np.linspace(-1, 1, x.shape[1])
    changed = x.clone()
    changed[2] = torch.tensor(other)
    before, after = (
        torch.cat([g.flatten() for g in engine.clipped_gradient(data, y).gradient.values()])
        for data in (x, changed)
    )
    np.testing.assert_allclose(moves.moves(2, other[None, :])[0], after - before, atol=1e-12)
    at = moves.jacobian(2, other, y[2], after, sp.Gaussian(NOISE))
    fresh = GradientLeakage(engine, changed, y, NOISE)
    close(at.row_information(Unknowns(None, False))(slice(0, 1))[0], fresh.information(2))
    bound = sp.bounds.hammersley_chapman_robbins(leak, 2, 1, domain=(-5, 5))
    assert (
        float(bound)
        >= bound.cramer_rao
        == pytest.approx(float(leak.cells(columns=[1])[2, 0]) ** -2)
    )
    prior = sp.bounds.GaussianPrior(std=1.0)
    averaged = float(sp.bounds.van_trees_rows(leak, prior, [2], draws=16)[0])
    draws = prior.draw(16, x.shape[1], np.random.default_rng(0))
    matrices = []
    for drawn in draws:
        changed[2] = torch.tensor(drawn)
        matrices.append(np.asarray(GradientLeakage(engine, changed, y, NOISE).information(2)))
    wanted = np.trace(np.linalg.inv(np.mean(matrices, 0) + np.eye(x.shape[1]))) / x.shape[1]
    assert averaged == pytest.approx(wanted)


@pytest.mark.slow
def test_every_guarantee_in_one_table():
    net, loss, x, y = network(NAMED["logistic-intercept"])
    leak = snn.leakage(net, loss, x, y, noise_multiplier=1.0, max_grad_norm=1.0, clip="smooth")
    table = sp.guarantees(leak, domain=(-4, 4), draws=8)
    told = {row.name for row in table.rows if row.value is not None}
    assert {"FIL, 1/η²", "dFIL, 1/η̄²", "van Trees, within the domain"} <= told


def test_what_cannot_be_asked_is_said():
    net, loss, x, y = network(NAMED["linear"])
    leak = snn.leakage(net, loss, x, y[:, None], noise_multiplier=1.0, view=snn.Label())
    with pytest.raises(sp.InputError, match="the label alone"):
        leak.records("fil", label=True)
    with pytest.raises(sp.InputError, match="are exact"):
        leak.records("dfil", "hutch++", columns=[0])
    with pytest.raises(sp.InputError, match="pass the label as features"):
        leak.refits().moves(2, y[:1, None], labels=y[:1])


def test_a_label_s_finite_change_moves_the_gradient_as_autograd_says():
    net, loss, x, y = network(NAMED["linear"])
    leak = snn.leakage(net, loss, x, y[:, None], noise_multiplier=1.0, view=snn.Label())

    def gradient(target):
        value = (net(x[2:3]) - target).square().sum() / 2
        parts = torch.autograd.grad(value, list(net.parameters()))
        return torch.cat([part.flatten() for part in parts]).numpy()

    found = leak.refits().moves(2, np.array([[0.7], [-3.0]]))
    own = gradient(float(y[2]))
    np.testing.assert_allclose(found, [gradient(0.7) - own, gradient(-3.0) - own], atol=1e-12)

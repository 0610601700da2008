"""Canaries in private SGD: the attacker's scores by hand, and runs that break their promise."""

import numpy as np
import pytest
import torch
from torch import func, nn
from torch.utils.data import DataLoader, TensorDataset

import seepage as sp
from seepage.attacks.canaries import private_training
from seepage.nn.training import private_gradients, private_sgd

pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:Optimal order is the"),
]
D = 40


def data(n=60, seed=0):
    torch.manual_seed(seed)
    return torch.randn(n, D), torch.randint(2, (n,))


def trainer(**options):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, 2))
    how = {
        "steps": 4,
        "sample_rate": 0.6,
        "expected_batch": 40,
        "noise_multiplier": 2.0,
        "lr": 0.5,
    }
    return sp.nn.PrivateSGD(net, "cross_entropy", **how | options)


def noiseless(run, step):
    return lambda name, total, deviation: total


def test_scores_are_the_best_linear_predictor(monkeypatch):
    """Dense algebra over the same steps, with gradients from torch.func and none of ours."""
    X, y = data()
    made = torch.sign(torch.randn(20, D)), torch.randint(2, (20,))
    steps, tried = [], []
    take = private_sgd.PrivateUpdate.take

    def logged(self, gradient):
        steps.append(({n: p.detach().clone() for n, p in self.released.items()}, dict(gradient)))
        take(self, gradient)

    audit_of = sp.attacks.Canaries.audit
    monkeypatch.setattr(private_sgd.PrivateUpdate, "take", logged)
    monkeypatch.setattr(
        sp.attacks.Canaries,
        "audit",
        lambda self, scores, **how: (tried.append(scores), audit_of(self, scores, **how))[1],
    )
    one = trainer()
    sp.attacks.audit_private_sgd(one, X, y, canaries=made, delta=1e-5, seed=0)
    rate = one.accountant_.sample_rate

    def loss(parameters, x, target):
        output = func.functional_call(one.net, parameters, (x[None],))
        return nn.functional.cross_entropy(output, target[None])

    def clipped(parameters, x, target):
        each = func.vmap(func.grad(loss), (None, 0, 0))(parameters, x, target)
        rows = torch.cat([part.flatten(1) for part in each.values()], 1).double()
        return rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)

    expected = np.zeros(20)
    for parameters, noisy in steps:
        G, others = clipped(parameters, *made).numpy(), clipped(parameters, X, y).numpy()
        seen = 40 * torch.cat([part.flatten() for part in noisy.values()]).double().numpy()
        p = rate / 2
        covariance = p * (1 - p) * G.T @ G + 4.0 * np.eye(G.shape[1])
        rest = seen - rate * others.sum(0) - p * G.sum(0)
        expected += p * (1 - p) * G @ np.linalg.solve(covariance, rest)
    assert len(steps) == 4
    assert np.allclose(tried[0], expected, rtol=1e-3, atol=1e-5)


def test_a_run_without_its_noise_is_caught(monkeypatch):
    X, y = data(30)
    how = {
        "steps": 4,
        "sample_rate": 0.8,
        "expected_batch": 65,
        "noise_multiplier": 20.0,
        "seed": 7,
    }
    honest = sp.attacks.audit_private_sgd(
        trainer(**how), X, y, canaries=100, guesses=40, delta=1e-5, seed=2
    )
    assert not honest.refuted
    assert honest.promised < 0.6
    monkeypatch.setattr(private_gradients, "secure_noise", noiseless)
    broken = sp.attacks.audit_private_sgd(
        trainer(**how), X, y, canaries=100, guesses=40, delta=1e-5, seed=2
    )
    assert broken.promised == honest.promised
    assert broken.refuted
    assert broken.epsilon > honest.epsilon


def test_a_seeded_run_is_called_an_experiment():
    X, y = data()
    audit = sp.attacks.audit_private_sgd(trainer(seed=3), X, y, canaries=10, delta=1e-5)
    assert "noise from a seed" in str(audit)
    assert any("noise from a seed" in condition for condition in audit.conditions)


def test_a_budget_is_the_promise_of_a_filtered_run():
    X, y = data()
    budget = sp.privacy.DifferentialPrivacy(0.5, 1e-5, "add-or-remove")
    run = trainer(budget=budget)
    audit = sp.attacks.audit_private_sgd(run, X, y, canaries=20, delta=1e-5)
    assert audit.promised == pytest.approx(0.5)
    assert run.accountant_.privacy(1e-5).epsilon > 0.5


def test_the_trainer_keeps_its_own_optimiser():
    X, y = data()
    own = trainer()
    sp.attacks.audit_private_sgd(own, X, y, canaries=10, delta=1e-5)
    assert own.optimizer is None


def opacus_run(X, y, follow, *, told=None):
    opacus = pytest.importorskip("opacus")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(D, 8), nn.Tanh(), nn.Linear(8, 2))
    loader = DataLoader(TensorDataset(X, y), batch_size=150)
    engine, loss = opacus.PrivacyEngine(), nn.CrossEntropyLoss()
    net, optimizer, loader = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.5),
        data_loader=loader,
        noise_multiplier=20.0,
        max_grad_norm=1.0,
    )
    if told is not None:
        optimizer.noise_multiplier = told
    follow(optimizer, net, loader)
    for _ in range(3):
        for x, target in loader:
            optimizer.zero_grad()
            loss(net(x), target).backward()
            optimizer.step()
    return float(engine.get_epsilon(1e-5)) if told is None else 0.5


@pytest.mark.minutes
def test_a_loop_of_opacus():
    X, y = data(200)
    how = {"canaries": 100, "guesses": 50, "delta": 1e-5, "seed": 2}
    honest = sp.attacks.audit_opacus(opacus_run, "cross_entropy", X, y, **how)
    assert 0 < honest.promised < 0.5
    assert not honest.refuted


def test_a_loop_of_opacus_without_its_noise_is_caught():
    """One half is promised, for noise that the optimiser does not add."""
    X, y = data(200)
    how = {"canaries": 100, "guesses": 50, "delta": 1e-5, "seed": 2}

    def broken(X, y, follow):
        return opacus_run(X, y, follow, told=1e-3)

    audit = sp.attacks.audit_opacus(broken, "cross_entropy", X, y, **how)
    assert audit.refuted


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda X, y: (trainer(sample_rate=None, expected_batch=None, batch_size=40), X, y),
            "fixed batch_size does not provide",
        ),
        (lambda X, y: (trainer(checkpoint="x.safetensors"), X, y), "leave out the checkpoint"),
        (lambda X, y: (trainer(), X.long(), y), "pass your own"),
        (lambda X, y: (trainer(), X, y.float()), "pass your own"),
    ],
)
def test_refusals(call, words):
    with pytest.raises(sp.InputError, match=words):
        sp.attacks.audit_private_sgd(*call(*data()), canaries=10, delta=1e-5)


def test_opacus_refusals():
    X, y = data()
    with pytest.raises(sp.InputError, match="call follow"):
        sp.attacks.audit_opacus(lambda *_: None, "cross_entropy", X, y, canaries=10, delta=1e-5)
    with pytest.raises(sp.InputError, match="make_private"):
        sp.attacks.audit_opacus(
            lambda X, y, follow: follow(None, None, None),
            "cross_entropy",
            X,
            y,
            canaries=10,
            delta=1e-5,
        )
    with pytest.raises(sp.InputError, match="the shape of a record's input"):
        private_training.audit_private_sgd(trainer(), X, y, canaries=(X[:, :3], y), delta=1e-5)

"""Private SGD with budgets: charges by hand from logged iterates, and what is refused."""

import math

import numpy as np
import pytest
import torch
from torch import func, nn

import seepage as sp
from seepage.nn.training import private_gradients, private_sgd
from seepage.privacy import DifferentialPrivacy, GaussianDP, RenyiDP

N, D, SIGMA, C = 40, 5, 1.5, 0.8
GAUSSIAN = GaussianDP(1.1, "add-or-remove")
PROMISE = DifferentialPrivacy(3.0, 1e-2, "add-or-remove")


def data():
    torch.manual_seed(0)
    X = torch.randn(N, D) * torch.linspace(0.05, 2, N)[:, None]
    return X, (X[:, 0] > 0).long()


def trainer(budget, **options):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, 2))
    how = {"steps": 12, "noise_multiplier": SIGMA, "max_grad_norm": C, "seed": 5}
    if "batch_size" not in options:
        rate = options.setdefault("sample_rate", 0.5)
        options.setdefault("expected_batch", 40 * rate)
    return sp.nn.PrivateSGD(net, "cross_entropy", budget=budget, **how | options)


def clipped(net, parameters, X, y):
    """Return the clipped gradients of all records, from torch.func alone."""

    def loss(values, x, target):
        output = func.functional_call(net, values, (x[None],))
        return nn.functional.cross_entropy(output, target[None])

    each = func.vmap(func.grad(loss), (None, 0, 0))(parameters, X, y)
    rows = torch.cat([part.flatten(1) for part in each.values()], 1).double()
    return rows / (rows.norm(dim=1, keepdim=True) / C).clamp(min=1.0)


def sampled_divergence(rate, shift, order):
    """Return the Rényi divergence of a sampled Gaussian by quadrature, not by its series."""
    x = np.linspace(-15, 40, 8_001)
    log_base = -(x**2) / 2 - math.log(2 * math.pi) / 2
    ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + shift * x - shift**2 / 2)
    value = np.log(np.trapezoid(np.exp(log_base + order * ratio), x))
    return value / (order - 1)


def logged(run, monkeypatch):
    """Fit, and return the iterates, the noisy sums' means and the records drawn at every step."""
    X, y = data()
    steps = []
    take = private_sgd.PrivateUpdate.take

    def note(self, gradient):
        values = {n: p.detach().clone() for n, p in self.released.items()}
        flat = torch.cat([part.flatten() for part in gradient.values()]).double()
        steps.append((values, flat, run._sampler.batch(len(steps))))
        take(self, gradient)

    monkeypatch.setattr(private_sgd.PrivateUpdate, "take", note)
    monkeypatch.setattr(
        private_gradients, "secure_noise", lambda *_: lambda name, total, deviation: total
    )
    run.fit(X, y)
    return steps


@pytest.mark.parametrize(
    ("budget", "rate", "sigma"),
    [(GAUSSIAN, 0.5, SIGMA), (GAUSSIAN, 1.0, 2.5), (PROMISE, 0.5, SIGMA), (PROMISE, 1.0, 2.5)],
    ids=["drawn", "all", "sampled", "promise to all"],
)
def test_charges_and_sums_are_those_of_the_logged_iterates(budget, rate, sigma, monkeypatch):
    X, y = data()
    run = trainer(budget, sample_rate=rate, expected_batch=7.0, noise_multiplier=sigma)
    steps = logged(run, monkeypatch)
    kept = run.budgets_.filter
    spent, active = np.zeros(N), np.ones(N, dtype=bool)
    for values, released, drawn in steps:
        gradients = clipped(run.net, values, X, y)
        shifts = gradients.norm(dim=1).numpy() / (sigma * C)
        charged = np.ones(N, dtype=bool)
        if kept.order is None:
            cost = shifts**2
            charged = np.isin(np.arange(N), drawn.numpy())
        else:
            cost = np.array([sampled_divergence(rate, s, kept.order) for s in shifts])
        goes_on = spent + cost <= kept.limit
        spent += np.where(active & charged & goes_on, cost, 0.0)
        active &= goes_on | ~charged
        who = drawn[torch.from_numpy(active[drawn.numpy()])]
        # The divisor is the declared one, whoever takes part.
        assert torch.allclose(released, gradients[who].sum(0) / 7, atol=1e-6)
    assert 0 < active.sum() < N  # some stop and some do not
    assert np.array_equal(kept.active, active)
    assert np.allclose(kept.spent, spent, rtol=1e-4)
    assert kept.spent.max() <= kept.limit
    assert kept.releases == 12


def test_a_promise_becomes_the_budget_that_implies_it():
    whole, sampled = trainer(PROMISE, sample_rate=1.0), trainer(PROMISE)
    for run in (whole, sampled):
        run.fit(*data())
    gaussian = whole.budgets_.filter.budget
    assert gaussian.mu == pytest.approx(GaussianDP.meeting(3.0, 1e-2, "add-or-remove").mu)
    order, limit = sampled.budgets_.filter.order, sampled.budgets_.filter.limit
    back = limit + math.log1p(-1 / order) - math.log(1e-2 * order) / (order - 1)
    assert back == pytest.approx(3.0)
    assert sampled.promise().epsilon == 3.0
    assert [run.budgets_.epsilon(1e-2) for run in (whole, sampled)] == pytest.approx([3.0, 3.0])


def test_a_budget_that_nobody_exceeds_changes_nothing():
    free = trainer(None).fit(*data())
    held = trainer(GaussianDP(100.0, "add-or-remove")).fit(*data())
    for a, b in zip(free.net.parameters(), held.net.parameters(), strict=True):
        assert torch.equal(a, b)
    assert held.budgets_.filter.active.all()
    assert free.budgets_ is None


@pytest.mark.parametrize("budget", [GAUSSIAN, PROMISE])
def test_a_stopped_run_resumes_with_its_budgets(budget, tmp_path):
    X, y = data()
    whole = trainer(budget, evaluate_every=5).fit(X, y)
    file = tmp_path / "run.safetensors"
    how = {"checkpoint": file, "checkpoint_every": 5, "evaluate_every": 5}
    trainer(budget, steps=5, **how).fit(X, y)
    assert file.stat().st_mode & 0o077 == 0  # who has stopped is for its owner alone
    resumed = trainer(budget, **how).fit(X, y)
    assert np.array_equal(resumed.budgets_.filter.spent, whole.budgets_.filter.spent)
    assert np.array_equal(resumed.budgets_.filter.active, whole.budgets_.filter.active)
    assert resumed.budgets_.filter.releases == 12
    for a, b in zip(whole.net.parameters(), resumed.net.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(sp.InputError, match="budget"):
        trainer(GaussianDP(5.0, "add-or-remove"), **how).fit(X, y)


def test_the_promise_says_its_conditions_and_marks_an_experiment():
    real = trainer(GAUSSIAN, seed=None).fit(*data()).promise()
    assert real.guarantee
    assert any("earlier releases" in said for said in real.assumptions)
    seeded = trainer(GAUSSIAN).promise()
    assert not seeded.guarantee
    assert any("from a seed" in said for said in seeded.assumptions)


def test_leakage_is_refused_where_records_stop():
    run = trainer(GAUSSIAN, sketch=2).fit(*data())
    accountant = run.accountant_
    for asked in (lambda: accountant.records("dfil"), accountant.fil):
        with pytest.raises(sp.InputError, match="Fisher information about the record is infinite"):
            asked()
    with pytest.raises(sp.InputError, match=r"filter\.spent"):
        accountant.individual_privacy()
    assert math.isnan(run.history_[-1].worst_dfil)
    assert "until its budget is spent" in str(accountant.ledger)
    # The same holds for a stored account of the run.
    other = trainer(None).fit(*data()).accountant_
    other.ledger = type(other.ledger).from_json(accountant.ledger.to_json())
    with pytest.raises(sp.InputError, match="Fisher information about the record is infinite"):
        other.records("dfil")
    with pytest.raises(sp.InputError, match="only to runs with budget="):
        trainer(None).promise()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budget": 8.0}, "adding or removing a record"),
        ({"budget": GaussianDP(1.0)}, "adding or removing a record"),
        ({"budget": DifferentialPrivacy(1.0, 0.0, "add-or-remove")}, "δ above 0"),
        ({"budget": RenyiDP({2.5: 1.0}, "add-or-remove")}, "one order"),
        ({"budget": RenyiDP({2: 1.0, 3: 2.0}, "add-or-remove")}, "one order"),
        ({"budget": GAUSSIAN, "batch_size": 20}, "Declare sample_rate"),
        ({"budget": GAUSSIAN, "clip": "none"}, "needs clipped gradients"),
        ({"budget": DifferentialPrivacy(1e-4, 1e-9, "add-or-remove")}, "too small"),
    ],
)
def test_refusals(options, words):
    with pytest.raises(sp.InputError, match=words):
        trainer(**options).fit(*data())

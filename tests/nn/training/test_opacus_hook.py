"""The accountant beside Opacus: its hook, its clipping modes, its ε, and what is refused."""

import numpy as np
import pytest
import torch
from gradient_oracle import dense
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import seepage as sp
from sampled import sampled
from seepage.errors import InputError
from seepage.nn.gradients.network_checks import unwrapped
from seepage.nn.problem.clipping import HardClip
from seepage.nn.problem.views import Input, plain_run
from seepage.nn.sampling.batch_check import SamplerWarning

opacus = pytest.importorskip("opacus")
pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),
]

N, D = 60, 5


def _problem(seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(D, 6), nn.Tanh(), nn.Linear(6, 3))
    X, y = torch.randn(N, D), torch.randint(3, (N,))
    return net, X, y


def _private(mode="hooks", accountant="rdp", **options):
    net, X, y = _problem()
    loader = DataLoader(TensorDataset(torch.arange(N), X, y), batch_size=12)
    engine = opacus.PrivacyEngine(accountant=accountant)
    torch.manual_seed(1)
    given = {
        "module": net,
        "optimizer": torch.optim.SGD(net.parameters(), lr=0.3, momentum=0.9),
        "data_loader": loader,
        "noise_multiplier": 1.3,
        "max_grad_norm": 0.4,
        "noise_generator": torch.Generator().manual_seed(2),
        "grad_sample_mode": mode,
        "criterion": nn.CrossEntropyLoss(),
    }
    module, optimizer, *criterion, loader = engine.make_private(**given | options)
    return engine, module, optimizer, (criterion or [nn.CrossEntropyLoss()])[0], loader


def _train(module, optimizer, criterion, loader, accountant=None, epochs=2, each=None):
    torch.manual_seed(3)
    for _ in range(epochs):
        for index, x, y in loader:
            if accountant is not None:
                accountant.observe(index, x, y)
            optimizer.zero_grad()
            criterion(module(x), y).backward()
            optimizer.step()
            if each is not None:
                each()


def test_a_batch_without_positions_is_answered_by_the_loader_that_has_them():
    _, module, optimizer, _, loader = _private("hooks", "rdp")
    accountant = sp.nn.attach(optimizer, module, nn.CrossEntropyLoss(), loader)
    _, x, y = next(iter(loader))
    with pytest.raises(InputError, match=r"TensorDataset\(torch\.arange\(n\), X, y\)"):
        accountant.observe(x, y)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rdp", "prv"])
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_epsilon_is_that_of_opacus(mode, method):
    engine, module, optimizer, criterion, loader = _private(mode, method)
    accountant = sp.nn.attach(optimizer, module, nn.CrossEntropyLoss(), loader)
    _train(module, optimizer, criterion, loader, accountant)
    assert engine.accountant.history == [(1.3, 0.2, 10)]  # Opacus's own hook ran too
    found = accountant.privacy(1e-3, neighbours="zero-out")
    assert found.epsilon == pytest.approx(engine.get_epsilon(1e-3), rel=1e-12)
    assert found.method == f"opacus {method}"
    # Its rate and divisor follow from the number of records, so that is all it promises.
    promised = accountant.privacy(1e-3)
    assert promised.relation == "replace one record"
    assert promised.epsilon > found.epsilon
    with pytest.raises(InputError, match="no guarantee for adding or removing a record"):
        accountant.privacy(1e-3, neighbours="add-or-remove")
    assert accountant.steps == 10
    drawn = accountant.measured().numpy()
    assert np.all(np.asarray(accountant.records("dfil"))[drawn] >= 0)
    assert np.isnan(np.asarray(accountant.records("dfil"))[~drawn]).all()
    assert accountant.worst() > 0


def test_the_criterion_of_ghost_clipping_is_unwrapped():
    losses = []
    for wrapped in (False, True):
        _, module, optimizer, criterion, loader = _private("ghost")
        given = criterion if wrapped else nn.CrossEntropyLoss()
        accountant = sp.nn.attach(optimizer, module, given, loader)
        _train(module, optimizer, criterion, loader, accountant, epochs=1)
        losses.append(np.asarray(accountant.records("dfil")))
    assert losses[1] == pytest.approx(losses[0], nan_ok=True)


def test_settings_that_the_optimiser_has_are_not_overruled():
    _, module, optimizer, _, loader = _private()
    sp.nn.attach(
        optimizer, module, "cross_entropy", loader, noise_multiplier=1.3, max_grad_norm=0.4
    ).detach()
    with pytest.raises(InputError, match=r"has noise_multiplier = 1\.3, not 2\.0"):
        sp.nn.attach(optimizer, module, "cross_entropy", loader, noise_multiplier=2.0)
    with pytest.raises(InputError, match=r"has max_grad_norm = 0\.4, not 1\.0"):
        sp.nn.attach(optimizer, module, "cross_entropy", loader, max_grad_norm=1.0)


@pytest.mark.parametrize("method", sampled(["rdp", "prv"], ["rdp"]))
def test_no_record_has_less_privacy_than_opacus_tells(method):
    engine, module, optimizer, criterion, loader = _private(accountant=method)
    accountant = sp.nn.attach(optimizer, module, "cross_entropy", loader)
    _train(module, optimizer, criterion, loader, accountant, epochs=1)
    own = accountant.individual_privacy().epsilon(1e-3)
    assert np.all(own <= engine.get_epsilon(1e-3) * (1 + 1e-12))


def test_a_state_is_gone_on_from_after_the_threshold_has_changed():
    _, module, optimizer, criterion, loader = _private()
    accountant = sp.nn.attach(optimizer, module, "cross_entropy", loader)
    _train(module, optimizer, criterion, loader, accountant, epochs=1)
    accountant.detach()
    optimizer.max_grad_norm = 0.2
    again = sp.nn.attach(optimizer, module, "cross_entropy", loader)
    again.load_state_dict(accountant.state_dict())
    _train(module, optimizer, criterion, loader, again, epochs=1)
    assert [entry.max_grad_norm for entry in again.ledger] == [0.4, 0.2]


@pytest.mark.slow
def test_dp_accounting_comes_near_to_opacus():
    engine, module, optimizer, criterion, loader = _private()
    accountant = sp.nn.attach(optimizer, module, "cross_entropy", loader)
    assert accountant.privacy(1e-3).epsilon == 0.0
    _train(module, optimizer, criterion, loader, accountant)
    rdp, pld = (
        accountant.privacy(1e-3, method=method, neighbours="zero-out").epsilon
        for method in ("rdp", "pld")
    )
    assert rdp == pytest.approx(engine.get_epsilon(1e-3), rel=1e-3)
    assert pld < rdp


@pytest.mark.parametrize("mode", sampled(["hooks", "ghost"], ["ghost"]))
def test_watching_changes_nothing(mode):
    trained = []
    for watched in (False, True):
        _, module, optimizer, criterion, loader = _private(mode)
        accountant = None
        if watched:
            accountant = sp.nn.attach(optimizer, module, "cross_entropy", loader)
        _train(module, optimizer, criterion, loader, accountant)
        trained.append([p.detach().clone() for p in unwrapped(module).parameters()])
    for plain, seen in zip(*trained, strict=True):
        assert torch.equal(plain, seen)


def test_the_leakage_is_that_of_the_network_under_training():
    net, X, y = _problem()
    _, module, optimizer, _, loader = _private()
    mask = torch.tensor([False, True, False, False, False])
    accountant = sp.nn.attach(
        optimizer, module, "cross_entropy", loader, view=Input(mask), amplification="none"
    )
    with torch.no_grad():
        for p in module.parameters():  # the accountant reads the parameters as they are now
            p.mul_(1.5)
        for p in net.parameters():
            p.mul_(1.5)
    accountant.observe([4, 9], X[[4, 9]], y[[4, 9]])
    accountant.close_step()
    found = dense(net.double(), "cross_entropy", Input(mask), X[[4, 9]].double(), y[[4, 9]])
    truth = found.clipped(HardClip(0.4))[1].square().sum((1, 2)).sqrt() / (1.3 * 0.4)
    assert np.asarray(accountant.records("dfil"))[[4, 9]] == pytest.approx(truth.numpy(), rel=1e-4)


def test_a_schedule_of_noise_and_clipping_is_followed():
    _, module, optimizer, criterion, loader = _private()
    accountant = sp.nn.attach(optimizer, module, "cross_entropy", loader)

    def each():
        optimizer.noise_multiplier *= 1.5
        optimizer.max_grad_norm *= 0.5

    _train(module, optimizer, criterion, loader, accountant, epochs=1, each=each)
    noises = [entry.noise_multiplier for entry in accountant.ledger]
    assert noises == pytest.approx([1.3 * 1.5**k for k in range(5)])
    thresholds = [entry.max_grad_norm for entry in accountant.ledger]
    assert thresholds == pytest.approx([0.4 * 0.5**k for k in range(5)])


@pytest.mark.slow
def test_a_batch_in_several_parts_is_one_step():
    from opacus.utils.batch_memory_manager import BatchMemoryManager

    engine, module, optimizer, criterion, loader = _private()
    accountant = sp.nn.attach(optimizer, module, "cross_entropy", loader)
    with BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=5, optimizer=optimizer
    ) as parts:
        _train(module, optimizer, criterion, parts, accountant, epochs=1)
    assert accountant.steps == 5 == sum(steps for _, _, steps in engine.accountant.history)
    assert int(accountant.run.sums.uses.max()) > 0


@pytest.mark.slow
def test_attaching_to_the_engine():
    engine, module, optimizer, criterion, loader = _private()
    accountant = sp.nn.attach(
        engine, module, "cross_entropy", loader, noise_multiplier=1.3, max_grad_norm=0.4
    )
    _train(module, optimizer, criterion, loader, accountant)
    found = accountant.privacy(1e-3, neighbours="zero-out")
    assert found.epsilon == pytest.approx(engine.get_epsilon(1e-3), rel=1e-12)
    optimizer.noise_multiplier = 1.4
    with pytest.raises(InputError, match="the optimiser"):
        _train(module, optimizer, criterion, loader, accountant)


def test_steps_that_nobody_observed_are_told():
    _, module, optimizer, criterion, loader = _private()
    accountant = sp.nn.attach(optimizer, module, "cross_entropy", loader)
    _train(module, optimizer, criterion, loader, epochs=1)
    with pytest.raises(InputError, match=r"5 steps were taken without observe\(\)"):
        accountant.records("dfil")


def test_detaching_leaves_the_optimiser_as_it_was():
    _, module, optimizer, criterion, loader = _private()
    before = optimizer.step_hook
    accountant = sp.nn.attach(optimizer, module, "cross_entropy", loader)
    assert optimizer.step_hook is not before
    accountant.detach()
    assert optimizer.step_hook is before
    _train(module, optimizer, criterion, loader, epochs=1)
    assert accountant.steps == 0


@pytest.mark.slow
def test_loaders_without_poisson_batches_claim_nothing():
    engine, module, optimizer, criterion, loader = _private(poisson_sampling=False)
    with pytest.warns(SamplerWarning, match="does not draw Poisson batches"):
        accountant = sp.nn.attach(optimizer, module, "cross_entropy", loader)
    _train(module, optimizer, criterion, loader, accountant)
    rows = np.asarray(accountant.records("dfil"))
    assert rows.tolist() == np.asarray(accountant.records("dfil", amplified=False)).tolist()
    assert accountant.privacy(1e-3).epsilon > engine.get_epsilon(1e-3)


def test_other_clips_and_other_objects_are_refused():
    net, _, _ = _problem()
    _, module, optimizer, _, loader = _private(clipping="per_layer", max_grad_norm=[0.4] * 4)
    with pytest.raises(InputError, match="DPPerLayerOptimizer"):
        sp.nn.attach(optimizer, module, "cross_entropy", loader)
    with pytest.raises(InputError, match="of type SGD"):
        sp.nn.attach(torch.optim.SGD(net.parameters()), net, "cross_entropy", loader)
    with pytest.raises(InputError, match="does not store the noise multiplier"):
        sp.nn.attach(opacus.PrivacyEngine(), net, "cross_entropy", loader)


def test_a_plain_run_is_without_the_hooks_of_opacus_and_with_those_of_the_user():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.same = self.layer
            self.register_buffer("scale", torch.ones(1))

        def forward(self, x):
            return self.same(self.layer(x)) * self.scale

    net = Twice()
    net.layer.register_forward_hook(lambda *_: None)
    wrapped = opacus.GradSampleModule(net, strict=False)
    assert unwrapped(wrapped) is net
    assert unwrapped(net) is net
    before = list(net.layer._forward_hooks), list(net.layer._backward_hooks)
    x = torch.randn(2, 3)
    with plain_run(net):
        assert len(net.layer._forward_hooks) == 1  # the user's own stays
        assert not net.layer._backward_hooks
        plain = net(x)
    assert (list(net.layer._forward_hooks), list(net.layer._backward_hooks)) == before
    assert len(before[0]) == 2
    assert torch.equal(plain, net(x))

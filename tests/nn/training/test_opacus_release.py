"""The leakage beside Opacus is of what Opacus releases: its clip, its noise, its reduction."""

import contextlib
import copy
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from finite_release import squared_changes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import seepage as sp
from seepage.errors import InputError
from seepage.nn.training.opacus import BatchMeanLoss, SumCheck

opacus = pytest.importorskip("opacus")
pytestmark = [
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning"),
]

N, D, COLUMN, SIGMA = 40, 4, 1, 1.5


class Run:
    """A run with Opacus, watched, and what finite differences say it has given away."""

    def __init__(self, mode="hooks", clip=1.0, criterion=None, loss=None, net=None, **options):
        torch.manual_seed(0)
        self.net = net or nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, 2))
        self.plain = copy.deepcopy(self.net)  # without Opacus's hooks
        self.X, self.y = torch.randn(N, D), (torch.arange(N) % 10 == 0).long()
        self.criterion = criterion or nn.CrossEntropyLoss()
        given = {"noise_multiplier": SIGMA, "max_grad_norm": clip, "grad_sample_mode": mode}
        made = opacus.PrivacyEngine().make_private(
            module=self.net,
            optimizer=torch.optim.SGD(self.net.parameters(), lr=0.05),
            data_loader=DataLoader(TensorDataset(torch.arange(N), self.X, self.y), batch_size=N),
            criterion=self.criterion,
            noise_generator=torch.Generator().manual_seed(2),
            **given | options,
        )
        self.module, self.optimizer, *trained, self.loader = made
        self.trained = trained[0] if trained else self.criterion
        mask = torch.zeros(D, dtype=torch.bool)
        mask[COLUMN] = True  # of one unknown, probes are exact
        self.accountant = sp.nn.attach(
            self.optimizer,
            self.module,
            self.criterion if loss is None else loss,
            self.loader,
            view=sp.nn.Input(mask),
            amplification="none",
        )
        self.truth = torch.zeros(N, dtype=torch.float64)

    def step(self, threshold, deviation, scale=lambda y: 1.0, parts=None):
        """Take a step with all records; their loss is ``scale`` of the batch times their own."""
        for k, part in enumerate(torch.arange(N).tensor_split(parts or 1)):
            x, y = self.X[part], self.y[part]
            factor = scale(y)

            def alone(output, target, factor=factor):
                return factor * self._entries(output, target).sum()

            with torch.no_grad():
                for mine, trained in zip(
                    self.plain.parameters(), self.net.parameters(), strict=True
                ):
                    mine.copy_(trained)
            found = squared_changes(self.plain, alone, x, y, threshold, COLUMN)
            self.truth[part] += found / deviation**2
            self.accountant.observe(part, x, y)
            self.optimizer.zero_grad()
            self.trained(self.module(x), y).backward()
            self.optimizer.signal_skip_step(k < (parts or 1) - 1)
            self.optimizer.step()

    def _entries(self, output, target):
        weight = getattr(self.criterion, "weight", None)
        ignored = getattr(self.criterion, "ignore_index", -100)
        return nn.functional.cross_entropy(
            output,
            target,
            reduction="none",
            weight=None if weight is None else weight.double(),
            ignore_index=ignored,
        )

    def agrees(self):
        assert np.asarray(self.accountant.rows("dfil")) == pytest.approx(
            self.truth.sqrt().numpy(), rel=1e-3, abs=1e-6
        )


@pytest.mark.parametrize("clips", [(1.0, 10.0), (0.05, 5.0), (2.0, 0.1)])
def test_the_leakage_follows_a_schedule_of_the_clip(clips):
    run = Run(clip=clips[0])
    for threshold in clips:
        run.optimizer.max_grad_norm = threshold
        run.step(threshold, SIGMA * threshold)
    run.agrees()


@pytest.mark.parametrize("clips", [(0.1, 1.0), (1.0, 0.1)])
def test_in_ghost_mode_the_module_clips_and_the_optimiser_sets_the_noise(clips):
    with told() as warned:
        run = Run(mode="ghost", clip=clips[0])
        run.step(clips[0], SIGMA * clips[0])
        run.optimizer.max_grad_norm = clips[1]
        run.step(clips[0], SIGMA * clips[1])
        run.agrees()
        run.module.max_grad_norm = clips[1]
        run.step(clips[1], SIGMA * clips[1])
    run.agrees()
    assert warned().count("clips at") == 1


@pytest.mark.parametrize("parts", [1, 3])
def test_class_weights_count_as_opacus_has_them(parts):
    weights = torch.tensor([0.1, 0.9])

    def scale(y):
        return len(y) / float(weights[y].sum())

    with told() as warned:
        run = Run(clip=100.0, criterion=nn.CrossEntropyLoss(weight=weights))
        for _ in range(2):
            run.step(100.0, SIGMA * 100, scale, parts)
    run.agrees()
    assert scale(run.y) > 5  # nowhere near one
    assert "reduction='none'" in warned()


def test_ignored_targets_count_as_opacus_has_them():
    with told() as warned:
        run = Run(clip=100.0, criterion=nn.CrossEntropyLoss(ignore_index=0))
        run.step(100.0, SIGMA * 100, lambda y: len(y) / float((y != 0).sum()))
    run.agrees()
    assert run.truth[0] > 0
    assert run.truth[1] == 0
    assert "reduction='none'" in warned()


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_another_loss_than_the_trained_one_is_refused(mode, parts):
    def twice(output, target):
        return 2 * nn.functional.cross_entropy(output, target, reduction="none")

    run = Run(mode=mode, clip=100.0, loss=twice)
    with pytest.raises(InputError, match=r"is 0\.5 times the accountant's.*the criterion"):
        run.step(100.0, SIGMA * 100, parts=parts)


def test_another_batch_than_the_trained_one_is_refused():
    run = Run()
    run.accountant.observe(torch.arange(10), run.X[:10], run.y[:10])
    run.trained(run.module(run.X[10:30]), run.y[10:30]).backward()
    with pytest.raises(InputError, match=r"largest in '\d\.\w+'\. Call observe"):
        run.optimizer.step()


def test_weights_that_attach_was_not_told_of_are_refused():
    run = Run(criterion=nn.CrossEntropyLoss(torch.tensor([0.1, 0.9])), loss="cross_entropy")
    with pytest.raises(InputError, match="does not release what the accountant"):
        run.step(1.0, SIGMA)


@pytest.mark.slow
def test_sums_are_compared_again_when_settings_change_and_now_and_then():
    run = Run()
    compared = []
    check = run.accountant._sums
    check.compare, really = (
        lambda sums: (compared.append(run.accountant.steps), really(sums)),
        check.compare,
    )
    for t in range(66):
        if t == 10:
            run.optimizer.noise_multiplier = 2.0
        run.accountant.observe(torch.arange(N), run.X, run.y)
        run.optimizer.zero_grad()
        run.trained(run.module(run.X), run.y).backward()
        run.optimizer.step()
    assert compared == [0, 1, 10, 64]


@pytest.mark.parametrize("name", ["noise_multiplier", "max_grad_norm"])
def test_settings_that_change_after_the_batch_was_observed_are_refused(name):
    run = Run()
    run.accountant.observe(torch.arange(N), run.X, run.y)
    run.trained(run.module(run.X), run.y).backward()
    setattr(run.optimizer, name, 0.3)
    with pytest.raises(InputError, match="changed within a step"):
        run.optimizer.step()


def test_parameters_of_which_only_one_side_knows_are_refused():
    run = Run()
    with pytest.raises(InputError, match="also trains parameters outside this network"):
        sp.nn.attach(run.optimizer, run.net[2], "cross_entropy", run.loader)
    run.accountant.observe(torch.arange(N), run.X, run.y)
    check = run.accountant._sums
    with pytest.raises(InputError, match=r"'0\.bias' is counted as released"):
        check.compare({"0.weight": torch.zeros(5, D)} | dict.fromkeys(["0.bias"]))


def test_labels_that_weigh_on_the_whole_batch_are_not_asked_about():
    weighted = nn.CrossEntropyLoss(torch.tensor([0.1, 0.9]))
    run = Run()
    with pytest.raises(InputError, match="A label then affects the gradients of all other records"):
        sp.nn.attach(run.optimizer, run.module, weighted, run.loader, view=sp.nn.Label())


def test_a_reduction_per_record_is_what_the_warning_recommends():
    weights = torch.tensor([0.1, 0.9])
    with told() as warned:
        run = Run(clip=100.0, criterion=nn.CrossEntropyLoss(weights, reduction="none"))
        run.trained = lambda output, target: run.criterion(output, target).mean()
        run.step(100.0, SIGMA * 100)
    run.agrees()
    assert "reduction='none'" not in warned()


def test_noise_that_can_be_guessed_is_told():
    with told() as warned:
        run = Run()
    assert "Opacus is not in secure mode" in warned()
    run.optimizer.secure_mode = True
    with told() as warned:
        sp.nn.attach(run.optimizer, run.module, run.criterion, run.loader)
    assert not warned()


def test_an_engine_whose_optimiser_clips_elsewhere_is_told_to_be_followed_there():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, 2))
    engine = opacus.PrivacyEngine()
    X, y = torch.randn(N, D), torch.arange(N) % 2
    module, optimizer, loader = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(torch.arange(N), X, y), batch_size=N),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    named = {"noise_multiplier": 1.0, "max_grad_norm": 1.0}
    accountant = sp.nn.attach(engine, module, "cross_entropy", loader, **named)
    accountant.observe(torch.arange(N), X, y)
    accountant.detach()
    accountant = sp.nn.attach(engine, module, "cross_entropy", loader, **named)
    optimizer.max_grad_norm = 5.0
    with pytest.raises(InputError, match=r"clips at 5, .* the optimiser"):
        accountant.observe(torch.arange(N), X, y)
    with pytest.raises(InputError, match="No optimiser was found for this PrivacyEngine"):
        sp.nn.attach(opacus.PrivacyEngine(), module, "cross_entropy", loader, **named)


@contextlib.contextmanager
def told():
    """Collect warnings, so that numbers are compared before words are."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield lambda: " ".join(str(w.message) for w in caught)


@pytest.mark.filterwarnings("ignore:The loss is a weighted mean over the batch")
def test_a_weighted_mean_over_the_batch_cannot_be_surveyed():
    run = Run(criterion=nn.CrossEntropyLoss(torch.tensor([0.1, 0.9])))
    with pytest.raises(InputError, match=r"weighted mean over the batch, .* a survey cannot"):
        run.accountant._mean_over_batches(run.X, run.y, torch.arange(N))


def test_a_survey_of_a_run_in_which_all_take_part_finds_its_leakage():
    run = Run()
    watched = run.accountant
    watched.detach()
    options = {"view": watched.engine.view, "amplification": "none", "survey_every": 1}
    run.accountant = sp.nn.attach(run.optimizer, run.module, run.criterion, run.loader, **options)
    assert run.accountant.survey([(range(N), run.X, run.y)])
    run.step(1.0, SIGMA)
    run.agrees()


def test_without_a_hook_of_opacus_the_own_accountants_answer():
    run = Run()
    bare = run.optimizer
    run.accountant.detach()
    bare.attach_step_hook(None)
    accountant = sp.nn.attach(bare, run.module, run.criterion, run.loader)
    accountant.observe(torch.arange(N), run.X, run.y)
    bare.zero_grad()
    run.trained(run.module(run.X), run.y).backward()
    bare.step()
    assert accountant.steps == 1
    # One step in which everyone takes part is the Gaussian mechanism: at order α, α/(2σ²).
    found = accountant.individual_privacy()
    assert np.asarray(found.epsilon(1e-5)).max() <= accountant.privacy(1e-5).epsilon * (1 + 1e-9)
    assert accountant.privacy(1e-5).method == "rdp"


def test_a_sum_that_was_divided_in_place_is_not_compared():
    run = Run()
    run.accountant.observe(torch.arange(N), run.X, run.y)
    run.optimizer.zero_grad()
    run.trained(run.module(run.X), run.y).backward()
    compared = []
    run.accountant._sums.compare = compared.append
    before = run.optimizer.scale_grad

    def in_place():
        before()
        for parameter in run.optimizer.params:
            parameter.summed_grad = parameter.grad

    run.optimizer.scale_grad = in_place
    run.optimizer.step()
    assert compared == []
    assert run.accountant.steps == 1


def test_probabilities_have_the_plain_mean():
    torch.manual_seed(0)
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.1, 0.9, 2.0]))
    mean = BatchMeanLoss(loss)
    for shape in ((6, 3), (6, 3, 4)):
        output, target = torch.randn(shape), torch.rand(shape).softmax(1)
        assert not mean.take(target)
        # Opacus multiplies the mean by the number of records.
        wanted = 6 * loss(output, target)
        assert float(mean(output, target).sum()) == pytest.approx(float(wanted), rel=1e-5)


@pytest.mark.parametrize(("kind", "close"), [(torch.float32, False), (torch.float16, True)])
def test_sums_in_half_precision_are_compared_more_loosely(kind, close):
    net = nn.Linear(1, 1).to(kind)
    check, ours = SumCheck(), {"weight": torch.ones(1, 1, dtype=kind)}
    check.begin(0, None)
    norms = torch.ones(1, dtype=kind)
    check.add(SimpleNamespace(gradient=ours, norms=norms), sp.nn.HardClip(1.0))
    theirs = {"weight": torch.full_like(net.weight, 1.02)}
    refused = pytest.raises(InputError, match="does not release what the accountant")
    with contextlib.nullcontext() if close else refused:
        check.compare(theirs)

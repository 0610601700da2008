"""Scores beside the errors of gradient inversion: both against independent computations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import nn
from torch.func import functional_call, grad, jacrev

import seepage as sp


def small_problem(records=10, inputs=4):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x = torch.rand(records, inputs, dtype=torch.float64)
    return net, x, torch.arange(records) % 3


def gradient_of(net, record, label):
    """Return one record's gradient as a vector, by plain autograd."""
    parameters = dict(net.named_parameters())

    def loss(values):
        output = functional_call(net, values, record[None])
        return nn.functional.cross_entropy(output, label[None])

    return torch.cat([part.flatten() for part in grad(loss)(parameters).values()])


def study_of(net, x, y, **options):
    attack = sp.attacks.GradientInversion(net, shape=x.shape[1:], total_variation=0, steps=60)
    return sp.attacks.reconstruction_study(net, "cross_entropy", x, y, attack=attack, **options)


def test_scores_are_those_of_dense_jacobians():
    net, x, y = small_problem()
    found = study_of(net, x, y).scores
    for k, (record, label) in enumerate(zip(x, y, strict=True)):
        jacobian = jacrev(lambda z, label=label: gradient_of(net, z, label))(record).detach()
        own = gradient_of(net, record, label).detach()
        singular = torch.linalg.svdvals(jacobian)
        expected = {
            "plis": 2 * (jacobian.T @ own).norm(),
            "fil": singular[0],
            "dfil": (singular.square().sum() / x.shape[1]).sqrt(),
            "gradient_norm": own.norm(),
            "loss": nn.functional.cross_entropy(net(record[None]), label[None]).detach(),
        }
        for name, value in expected.items():
            # Lanczos' method stops at a relative change of 1e-7.
            assert found[name][k] == pytest.approx(value.item(), rel=1e-5), name


def test_errors_and_baseline_are_mean_squares():
    net, x, y = small_problem()
    study = study_of(net, x, y)
    truth, guesses = x.numpy(), study.reconstruction.records[:, 0].numpy()
    for k in range(len(truth)):
        others = np.delete(truth, k, axis=0).mean(axis=0)
        assert study.errors[k] == pytest.approx(np.mean((guesses[k] - truth[k]) ** 2))
        assert study.baseline[k] == pytest.approx(np.mean((others - truth[k]) ** 2))


def test_correlations_are_spearmans_with_errors_or_other_numbers():
    net, x, y = small_problem(16)
    mine = np.random.default_rng(0).normal(size=16)
    study = study_of(net, x, y, scores={"mine": mine})
    for name, found in study.correlations().items():
        assert found.value == pytest.approx(spearmanr(study.scores[name], study.errors).statistic)
        assert found.interval.low <= found.value <= found.interval.high
    assert study.correlations(mine)["mine"].value == pytest.approx(1)
    assert study.correlations(-study.scores["loss"])["loss"].value == pytest.approx(-1)
    frame = study.table("pyarrow")
    assert frame["measure"].to_pylist() == [*study.scores]
    assert frame["value"].to_pylist()[-1] == pytest.approx(study.correlations()["mine"].value)
    assert "16 records attacked" in repr(study)


def test_without_an_attack_images_are_attacked_with_their_total_variation(monkeypatch):
    given = {}

    def note(self, seen, labels=None):
        given.update(vars(self))
        raise RuntimeError("far enough")

    monkeypatch.setattr(sp.attacks.GradientInversion, "reconstruct", note)
    for shape, weight in (((4,), 0.0), ((1, 2, 2), 1e-4)):
        net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        x = 3 * torch.rand(5, *shape) - 1
        with pytest.raises(RuntimeError, match="far enough"):
            sp.attacks.reconstruction_study(net, "cross_entropy", x, torch.arange(5) % 2)
        assert given["total_variation"] == weight
        assert given["bounds"] == (float(x.min()), float(x.max()))


def test_what_cannot_be_studied_is_refused():
    net, x, y = small_problem()
    with pytest.raises(sp.InputError, match="at least 4 records, but got 3"):
        study_of(net, x[:3], y[:3])
    for wrong in (np.zeros(9), np.full(10, np.nan)):
        with pytest.raises(sp.InputError, match=r"scores\['mine'\] must contain 10 finite numbers"):
            study_of(net, x, y, scores={"mine": wrong})


@pytest.mark.parametrize("steps", [7, 250])
def test_the_curve_is_the_lowest_cost_so_far(steps):
    net, x, y = small_problem(3)
    seen = sp.attacks.release_gradients(net, "cross_entropy", x, y)
    attack = sp.attacks.GradientInversion(net, shape=(4,), total_variation=0, steps=steps)
    found = attack.reconstruct(seen, labels=y)
    curve = found.curve.numpy()
    assert curve.shape == (3, 100)
    assert np.all(np.diff(curve, axis=1) <= 0)
    assert np.all(curve[:, 0] > curve[:, -1])
    # Without total variation the cost is the mismatch.
    np.testing.assert_allclose(curve[:, -1], found.mismatch)


def test_the_curve_of_a_solved_release_ends_with_its_cost():
    net, x, y = small_problem(3)
    seen = sp.attacks.release_gradients(net, "cross_entropy", x, y)
    options = {"cost": "euclidean", "optimizer": "lbfgs", "total_variation": 0, "steps": 20_000}
    found = sp.attacks.GradientInversion(net, shape=(4,), **options).reconstruct(seen, labels=y)
    assert found.solved.all()
    assert int(found.steps.max()) < 20_000 // 100  # solved before the first point of the curve
    curve = found.curve.numpy()
    assert np.all(curve == curve[:, :1])
    assert curve.max() <= 1e-10

"""Gradient inversion: simulated gradients against autograd, and what the attack finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import seepage as sp
from sampled import sampled
from seepage.attacks.gradient.minimisers import Descent, QuasiNewton
from seepage.attacks.gradient.simulation import GradientCost, SimulatedGradients, roughness
from seepage.nn.problem.problem import cross_entropy


def small_cnn(classes=2, bias=True):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(6, 8, 3, padding=1, groups=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(8 * 36, classes, bias=bias),
    )


def smooth_images(count, side=12, seed=0):
    """Sums of a few broad bumps, between 0 and 1."""
    draw = torch.Generator().manual_seed(seed)
    grid = torch.stack(torch.meshgrid(*[torch.linspace(0, 1, side)] * 2, indexing="ij"))
    centres = torch.rand(count, 3, 2, 1, 1, generator=draw)
    bumps = torch.exp(-((grid - centres) ** 2).sum(2) / 0.05).sum(1, keepdim=True)
    return bumps / bumps.amax((1, 2, 3), keepdim=True)


def normed(width):
    return nn.Sequential(
        nn.Conv2d(1, width, 3), nn.GroupNorm(2, width), nn.SiLU(), nn.Flatten(), nn.Linear(400, 3)
    )


NETWORKS = {
    "cnn": lambda: small_cnn(3),
    "mlp": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(144, 7), nn.GELU(), nn.Linear(7, 3, bias=False)
    ),
    "group norm": lambda: normed(4),
    "layer norm": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.Flatten(), nn.LayerNorm(100), nn.Tanh(), nn.Linear(100, 3)
    ),
}
CLIPS = [sp.nn.NoClip(), sp.nn.HardClip(0.3), sp.nn.SmoothClip(0.3)]


def dense_release(net, x, y, clip, b):
    """One record at a time, by plain autograd; differentiable."""
    rows = []
    parameters = [p for p in net.parameters() if p.requires_grad]
    for i in range(len(x)):
        loss = cross_entropy(net(x[i : i + 1]), y[i : i + 1]).sum()
        parts = torch.autograd.grad(loss, parameters, create_graph=True)
        g = torch.cat([part.flatten() for part in parts])
        rows.append(g * clip.factor(g.norm()))
    return torch.stack(rows).unflatten(0, (-1, b)).mean(1)


@pytest.mark.parametrize("b", [1, 2])
@pytest.mark.parametrize("clip", sampled(CLIPS, 1), ids=repr)
@pytest.mark.parametrize("name", NETWORKS)
def test_simulated_gradients_are_those_of_autograd(name, clip, b):
    torch.manual_seed(1)
    net = NETWORKS[name]().double()
    net[0].requires_grad_(name != "mlp")
    x, y = smooth_images(4).double(), torch.tensor([0, 1, 2, 1])
    want = dense_release(net, x, y, clip, b)
    seen = sp.attacks.release_gradients(net, "cross_entropy", x, y, batch_size=b, clip=clip)
    like = {n: p for n, p in net.named_parameters() if p.requires_grad}
    torch.testing.assert_close(seen.flat(like), want.detach(), rtol=1e-9, atol=1e-12)

    simulated = SimulatedGradients(net, "cross_entropy", clip, b)
    simulated.prepare(x, y)
    draw = torch.Generator().manual_seed(2)
    targets = torch.randn(len(want), simulated.size, generator=draw, dtype=x.dtype)
    candidates = torch.rand(len(want), 3, b * 144, generator=draw, dtype=x.dtype)
    for kind in ("cosine", "euclidean"):
        cost = GradientCost(
            simulated, targets, y.reshape(-1, b), (1, 12, 12), kind, total_variation=0.3
        )
        found = cost.evaluate(candidates)
        for g in range(len(want)):
            for r in range(3):
                z = candidates[g, r].reshape(b, 1, 12, 12).requires_grad_()
                own = dense_release(net, z, y.reshape(-1, b)[g], clip, b)[0]
                if kind == "cosine":
                    match = 1 - torch.cosine_similarity(own, targets[g], dim=0)
                else:
                    match = (own - targets[g]).square().sum() / targets[g].square().sum()
                total = match + 0.3 * roughness(z).mean()
                (slope,) = torch.autograd.grad(total, z)
                assert float(found.match[g, r]) == pytest.approx(float(match.detach()), rel=1e-8)
                assert float(found.total[g, r]) == pytest.approx(float(total.detach()), rel=1e-8)
                torch.testing.assert_close(
                    found.slopes[g, r], slope.flatten(), rtol=1e-6, atol=1e-10
                )


@pytest.mark.parametrize(
    "options",
    sampled(
        [
            {"cost": "euclidean", "optimizer": "lbfgs", "total_variation": 0, "steps": 200},
            {"cost": "cosine", "optimizer": "lbfgs", "total_variation": 0, "steps": 200},
            {"steps": 200},
            {"cost": "euclidean", "optimizer": "adam", "total_variation": 0, "steps": 200},
        ],
        0,
        2,
    ),
    ids=["L2 by L-BFGS", "cosine by L-BFGS", "Geiping", "L2 by Adam"],
)
def test_undefended_images_are_found_with_their_labels(options):
    net, x, y = small_cnn(), smooth_images(5), torch.tensor([0, 1, 1, 0, 1])
    seen = sp.attacks.release_gradients(net, "cross_entropy", x, y)
    found = sp.attacks.GradientInversion(net, shape=(1, 12, 12), **options).reconstruct(seen)
    assert not found.labels_known
    assert found.labels[:, 0].tolist() == y.tolist()
    assert found.kind == "attack"
    assert np.min(sp.attacks.ssim(found.matched(x)[:, 0], x[:, 0].numpy())) > 0.95


@pytest.mark.minutes
def test_clipping_does_not_help_and_noise_does():
    net, x, y = small_cnn(), smooth_images(4), torch.tensor([0, 1, 1, 0])
    clip = sp.nn.HardClip(0.1)
    adversary = sp.attacks.GradientInversion(
        net, shape=(1, 12, 12), optimizer="lbfgs", total_variation=0, steps=100
    )
    similar = []
    for noise in (0.0, sp.privacy.analytic_gaussian_sigma(1.0, 1e-5)):
        seen = sp.attacks.release_gradients(
            net, "cross_entropy", x, y, clip=clip, noise_multiplier=noise
        )
        assert seen.noise == pytest.approx(0.1 * noise)
        found = adversary.reconstruct(seen, labels=y)
        similar.append(sp.attacks.ssim(found.matched(x)[:, 0], x[:, 0].numpy()))
    assert similar[0].min() > 0.95
    assert similar[1].max() < 0.2


@pytest.mark.minutes
def test_chest_x_rays_come_back_unless_noise_is_added():
    try:
        train = sp.data.load_pneumoniamnist(download=False).train
    except sp.InputError as error:
        pytest.skip(f"the data set is not at hand: {error}")
    x = torch.tensor(train.pixels[:4]).float()[:, None] / 255
    y = torch.tensor(train.labels[:4])
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 12, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.Conv2d(12, 24, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(1176, 2),
    )
    adversary = sp.attacks.GradientInversion(
        net, shape=(1, 28, 28), cost="euclidean", optimizer="lbfgs", total_variation=0, steps=100
    )
    plain = sp.attacks.release_gradients(net, "cross_entropy", x, y)
    assert adversary.reconstruct(plain).quality(x).ssim.min() > 0.95
    noise = sp.privacy.analytic_gaussian_sigma(1.0, 1e-5)
    private = sp.attacks.release_gradients(
        net, "cross_entropy", x, y, clip=sp.nn.HardClip(1.0), noise_multiplier=noise
    )
    assert adversary.reconstruct(private, labels=y).quality(x).ssim.max() < 0.2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a graphics card")
def test_it_runs_on_a_graphics_card():
    net, x, y = small_cnn().cuda(), smooth_images(4).cuda(), torch.tensor([0, 1, 1, 0]).cuda()
    for b, options in ((1, {"steps": 300}), (2, {"optimizer": "lbfgs", "steps": 50})):
        seen = sp.attacks.release_gradients(net, "cross_entropy", x, y, batch_size=b)
        adversary = sp.attacks.GradientInversion(net, shape=(1, 12, 12), **options)
        found = adversary.reconstruct(seen)
        assert found.records.shape == (4 // b, b, 1, 12, 12)
        if b == 1:
            images = found.matched(x.cpu())[:, 0]
            assert np.min(sp.attacks.ssim(images, x[:, 0].cpu().numpy())) > 0.9


def test_a_batch_is_found_in_whatever_order():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.Tanh(), nn.Linear(64, 4)).double()
    x, y = smooth_images(4).double(), torch.tensor([3, 1, 2, 0])
    seen = sp.attacks.release_gradients(net, "cross_entropy", x, y, batch_size=2)
    adversary = sp.attacks.GradientInversion(
        net,
        shape=(1, 12, 12),
        cost="euclidean",
        optimizer="lbfgs",
        total_variation=0,
        steps=600,
        tolerance=1e-12,
        restarts=2,
    )
    found = adversary.reconstruct(seen)
    assert found.labels.tolist() == [[1, 3], [0, 2]]
    assert found.records.shape == (2, 2, 1, 12, 12)
    np.testing.assert_allclose(found.matched(x), x.numpy(), atol=0.02)


def test_matching_undoes_any_order():
    truth = smooth_images(6).numpy()
    order = [2, 0, 1]
    shuffled = truth.reshape(2, 3, 1, 12, 12)[:, order] + 0.01
    found = sp.attacks.GradientReconstruction(
        torch.tensor(shuffled),
        torch.zeros(2, 3),
        torch.zeros(2),
        torch.ones(2),
        torch.ones(2, dtype=torch.bool),
        True,
    )
    np.testing.assert_allclose(found.matched(truth), truth + 0.01)
    with pytest.raises(sp.InputError, match="originals must have the shape"):
        found.matched(truth[:5])


@pytest.mark.minutes
def test_the_same_seed_gives_the_same_images_in_any_company():
    net, x, y = small_cnn(), smooth_images(3), torch.tensor([0, 1, 1])
    seen = sp.attacks.release_gradients(net, "cross_entropy", x, y)
    options = {"shape": (1, 12, 12), "optimizer": "lbfgs", "steps": 30, "restarts": 2}
    adversary = sp.attacks.GradientInversion(net, **options)
    together = adversary.reconstruct(seen).records
    torch.testing.assert_close(adversary.reconstruct(seen).records, together, rtol=0, atol=0)
    alone = adversary.reconstruct(seen.rows(slice(0, 1))).records
    torch.testing.assert_close(alone[0], together[0], rtol=1e-2, atol=1e-3)
    other = sp.attacks.GradientInversion(net, **options, seed=1).reconstruct(seen).records
    assert not torch.equal(other, together)


@pytest.mark.slow
def test_chunks_change_nothing(monkeypatch):
    net, x, y = small_cnn().double(), smooth_images(4).double(), torch.tensor([0, 1, 1, 0])

    def attacked():
        seen = sp.attacks.release_gradients(
            net, "cross_entropy", x, y, clip=sp.nn.SmoothClip(1.0), noise_multiplier=0.1
        )
        options = {"shape": (1, 12, 12), "optimizer": "lbfgs", "steps": 15}
        return seen, sp.attacks.GradientInversion(net, **options).reconstruct(seen, labels=y)

    whole = attacked()
    monkeypatch.setattr("seepage.attacks.gradient.releases.ACCELERATOR_CHUNK", 1)
    monkeypatch.setattr("seepage.attacks.gradient.inversion.ACCELERATOR_CHUNK", 1)
    pieces = attacked()
    for name, values in whole[0].gradients.items():
        torch.testing.assert_close(pieces[0].gradients[name], values)
    torch.testing.assert_close(pieces[1].records, whole[1].records, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(pieces[1].mismatch, whole[1].mismatch, rtol=1e-5, atol=1e-9)


@pytest.mark.slow
def test_restarts_never_do_worse():
    net, x, y = small_cnn(), smooth_images(4), torch.tensor([0, 1, 1, 0])
    seen = sp.attacks.release_gradients(net, "cross_entropy", x, y)
    options = {"shape": (1, 12, 12), "total_variation": 0, "steps": 20}
    one, three = (
        sp.attacks.GradientInversion(net, **options, restarts=r).reconstruct(seen) for r in (1, 3)
    )
    assert (three.mismatch <= one.mismatch * (1 + 1e-4)).all()


@pytest.mark.slow
def test_it_stops_when_all_are_solved():
    net, x, y = small_cnn(), smooth_images(3), torch.tensor([0, 1, 1])
    seen = sp.attacks.release_gradients(net, "cross_entropy", x, y)
    found = sp.attacks.GradientInversion(
        net, shape=(1, 12, 12), optimizer="lbfgs", total_variation=0, steps=5000, tolerance=1e-6
    ).reconstruct(seen)
    assert found.solved.all()
    assert found.steps.max() < 500
    assert "3 matched to the tolerance" in repr(found)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_minimisers_find_the_minima_of_many_quadratics(dtype):
    draw = torch.Generator().manual_seed(0)
    wanted = torch.rand(5, 2, 6, generator=draw, dtype=dtype)
    steep = 10 ** (3 * torch.rand(5, 2, 6, generator=draw, dtype=dtype))
    start = torch.full_like(wanted, 0.5)
    for search, steps, near in (
        (QuasiNewton(start), 120, 1e-3),
        (Descent(start, 0.1, 800, (0.0, 1.0), signed=True), 800, 2e-3),
        (Descent(start, 0.1, 800, (0.0, 1.0), signed=False), 800, 2e-3),
    ):
        left = wanted
        for step in range(steps):
            off = search.point - left
            scale = steep[: len(left)]
            search.tell((scale * off**2).sum(2), 2 * scale * off)
            if step == 20:  # the last release is taken out
                keep = torch.arange(len(left)) < 4
                search.keep(keep)
                left = left[keep]
        torch.testing.assert_close(search.point, left, rtol=0, atol=near)


@pytest.mark.slow
def test_quasi_newton_is_stuck_where_nothing_is_lower():
    search = QuasiNewton(torch.zeros(1, 1, 2))
    for _ in range(100):
        search.tell(torch.ones(1, 1), torch.ones(1, 1, 2))  # a slope that promises in vain
    assert bool(search.stuck.all())

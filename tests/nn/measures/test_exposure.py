"""Exposure without reference models, against dense linear algebra record by record."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import rankdata
from torch import nn

import seepage as sp

N = 30


class Small(nn.Module):
    """Linear layers around a normalisation and a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 5, bias=False)
        self.normal, self.last = nn.LayerNorm(5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(x))
        return self.last(torch.tanh(self.normal(self.second(hidden))) + hidden)


@pytest.fixture(scope="module")
def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor, np.ndarray]:
    torch.manual_seed(0)
    x, y = torch.randn(N, 4), torch.randint(0, 3, (N,))
    members = np.arange(N) % 3 > 0
    return Small(), x, y, members


def gradients(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, np.ndarray]:
    """Return every record's gradient by plain backward passes, in float64."""
    rows: dict[str, list[np.ndarray]] = {}
    for k in range(len(x)):
        net.zero_grad()
        nn.functional.cross_entropy(net(x[k : k + 1]), y[k : k + 1]).backward()
        for name, p in net.named_parameters():
            rows.setdefault(name, []).append(p.grad.double().numpy().ravel().copy())
    return {name: np.array(parts) for name, parts in rows.items()}


def dense_leverage(g: np.ndarray, members: np.ndarray, damping: float) -> np.ndarray:
    """Leave every record out by hand; the damping is that of all members."""
    centred = g[members] - g[members].mean(0)
    weight = damping * np.trace(centred.T @ centred) / g.shape[1]
    out = []
    for i in range(len(g)):
        others = members & (np.arange(len(g)) != i)
        mean = g[others].mean(0)
        scatter = (g[others] - mean).T @ (g[others] - mean) + weight * np.eye(g.shape[1])
        out.append((g[i] - mean) @ np.linalg.solve(scatter, g[i] - mean))
    return np.array(out)


@pytest.mark.parametrize("damping", [1e-3, 0.1])
def test_every_score_is_that_of_dense_algebra(problem: tuple, damping: float) -> None:
    net, x, y, members = problem
    found = sp.nn.exposure_scores(net, x, y, members=members, damping=damping)
    parts = gradients(net, x, y)
    whole = np.concatenate(list(parts.values()), axis=1)
    last = np.concatenate([parts["last.weight"], parts["last.bias"]], axis=1)
    logits = net(x).detach().double().numpy()
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert found.loss[0] == pytest.approx(-np.log(p[np.arange(N), y]), rel=1e-5)
    assert found.gradient_norm[0] == pytest.approx(np.linalg.norm(whole, axis=1), rel=1e-4)
    wanted = dense_leverage(last, members, damping)
    assert found.last_layer_leverage[0] == pytest.approx(wanted, rel=1e-3)
    wanted = dense_leverage(whole, members, damping)
    assert found.sketched_leverage[0] == pytest.approx(wanted, rel=1e-3)
    assert found.kind == "estimate"


def test_the_own_shift_is_that_of_a_dense_hessian(problem: tuple) -> None:
    net, x, y, members = problem
    found = sp.nn.exposure_scores(net, x, y, members=members, damping=1e-2)
    seen = []
    hook = net.last.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    logits = net(x).detach().double().numpy()
    hook.remove()
    phi = np.hstack([seen[0].detach().double().numpy(), np.ones((N, 1))])
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    terms = [
        np.kron(np.diag(p[i]) - np.outer(p[i], p[i]), np.outer(phi[i], phi[i])) for i in range(N)
    ]
    total = sum(terms[i] for i in range(N) if members[i])
    total = total + 1e-2 * np.trace(total) / len(total) * np.eye(len(total))
    wanted = []
    for i in range(N):
        hessian = total - members[i] * terms[i]
        slope = np.kron(p[i] - np.eye(3)[y[i]], phi[i])  # of the loss by the last layer
        step = np.linalg.solve(hessian, slope)  # how far leaving the record out moves it

        def odds(z: np.ndarray, own: int) -> float:
            return float(z[own] - np.log(np.exp(np.delete(z, own)).sum()))

        size = 1e-5
        moved = logits[i] + size * step.reshape(3, -1) @ phi[i]
        own = int(y[i])
        wanted.append((odds(logits[i], own) - odds(moved, own)) / size)
    assert found.own_shift[0] == pytest.approx(wanted, rel=1e-3)


def test_a_sketch_keeps_inner_products_on_average(problem: tuple) -> None:
    net, x, y, _ = problem
    exact = sp.nn.exposure_scores(net, x, y, damping=10.0).sketched_leverage[0]
    many = [
        sp.nn.exposure_scores(net, x, y, damping=10.0, sketch=24, seed=seed).sketched_leverage[0]
        for seed in range(6)
    ]
    assert np.corrcoef(np.mean(many, axis=0), exact)[0, 1] > 0.9


def test_the_mean_rank_over_models_is_taken(problem: tuple) -> None:
    _, x, y, _ = problem
    torch.manual_seed(4)
    nets = [Small() for _ in range(3)]
    found = sp.nn.exposure_scores(nets, x, y)
    alone = [sp.nn.exposure_scores(net, x, y).loss[0] for net in nets]
    wanted = np.mean([(rankdata(v) - 0.5) / N for v in alone], axis=0)
    assert found.ranks("loss") == pytest.approx(wanted)
    assert found.exposed(1, "loss") == [int(np.argmax(wanted))]
    assert list(found.table("pandas").columns)[:2] == ["row", "loss"]
    assert "3 models" in repr(found)


def test_images_with_batch_normalisation_and_other_losses_are_scored() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 1)
    )
    x, y = torch.randn(20, 1, 6, 6), torch.randn(20, 1)
    found = sp.nn.exposure_scores(net, x, y, loss="mse")
    assert found.own_shift is None
    assert net.training
    wanted = (net.eval()(x) - y).square().sum(1).detach().numpy() / 2
    assert found.loss[0] == pytest.approx(wanted, rel=1e-4)
    with pytest.raises(sp.InputError, match="own_shift is not available"):
        found.ranks("own_shift")


def test_a_language_model_is_scored_by_its_own_loss() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    torch.manual_seed(0)
    net = transformers.GPT2LMHeadModel(config)
    ids = torch.randint(0, 20, (12, 6))
    found = sp.nn.exposure_scores(net, {"input_ids": ids, "labels": ids}, sketch=64)
    assert (found.last_layer_leverage > 0).all()
    net.eval()
    for k in range(3):
        net.zero_grad()
        loss = net(input_ids=ids[k : k + 1], labels=ids[k : k + 1]).loss
        loss.backward()
        norm = np.sqrt(sum(float(p.grad.double().square().sum()) for p in net.parameters()))
        assert found.loss[0, k] == pytest.approx(loss.item(), rel=1e-4)
        assert found.gradient_norm[0, k] == pytest.approx(norm, rel=1e-3)


def test_odd_questions_are_refused(problem: tuple) -> None:
    net, x, y, _ = problem
    with pytest.raises(sp.InputError, match="no layer 'none'"):
        sp.nn.exposure_scores(net, x, y, last="none")
    with pytest.raises(sp.InputError, match="at least three members"):
        sp.nn.exposure_scores(net, x, y, members=np.arange(N) < 1)
    with pytest.raises(sp.InputError, match="y is missing; give labels"):
        sp.nn.exposure_scores(net, x)
    with pytest.raises(sp.InputError, match="No model was given"):
        sp.nn.exposure_scores([], x, y)

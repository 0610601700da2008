"""What people do with PLIS: parts of records, tables, linear models, bad input, the clips."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression, Ridge
from torch import nn

import seepage as sp
from seepage.nn.privacy.individual_loss import gaussian_epsilon
from seepage.nn.susceptibility.attribution import Attribution
from seepage.privacy.gaussian_mechanism import gaussian_delta, gaussian_mu

torch.set_num_threads(1)


@pytest.fixture
def problem() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    return net, torch.randn(12, 4, dtype=torch.float64), torch.randint(0, 3, (12,))


@pytest.fixture
def images() -> Attribution:
    torch.manual_seed(1)
    return Attribution(torch.randn(5, 2, 7, 6, dtype=torch.float64))


def private(problem: tuple, **options: object) -> sp.nn.Susceptibility:
    net, x, y = problem
    given = {"noise_multiplier": 2.0, "max_grad_norm": 1.0, "clip": "smooth"} | options
    return sp.nn.plis(net, "cross_entropy", x, y, **given)


def test_a_small_change_of_the_record_changes_its_privacy_loss_by_plis(problem: tuple) -> None:
    net, x, y = problem
    found = private(problem)
    v = torch.randn_like(x)
    ahead, behind = (private((net, x + step * v, y)).privacy_loss for step in (1e-5, -1e-5))
    slope = (ahead - behind) / 2e-5
    torch.testing.assert_close((found.values * v).sum(1), slope, rtol=1e-6, atol=1e-9)


def test_privacy_loss_depends_on_the_noise_as_one_over_its_square(problem: tuple) -> None:
    net, x, y = problem
    louder = sp.nn.plis(
        net, "cross_entropy", x, y, noise_multiplier=6.0, max_grad_norm=1.0, clip="smooth"
    )
    torch.testing.assert_close(louder.values * 9, private(problem).values)
    torch.testing.assert_close(louder.privacy_loss * 9, private(problem).privacy_loss)
    unclipped = sp.nn.plis(net, "cross_entropy", x, y, noise_multiplier=0.5)
    torch.testing.assert_close(unclipped.values / 4, unclipped.signal().values)


def test_far_beyond_the_threshold_nothing_but_the_formula_is_left() -> None:
    for dtype in (torch.float32, torch.float64):
        m = torch.tensor([0.0, 1.0, 4.0, 6.0, 8.0], dtype=dtype)
        found = sp.nn.SmoothClip(0.5).radial(0.5 * (m + 1))
        wide = [
            (0.5 * math.erfc(v / 2**0.5) - v * (v + 1) * math.exp(-v * v / 2) / math.tau**0.5)
            / (v * (1 - 0.5 * math.erfc(v / 2**0.5)) + 1)
            for v in m.tolist()
        ]
        wanted = torch.tensor(wide, dtype=dtype)
        torch.testing.assert_close(
            found, wanted, rtol=2e-4 if dtype == torch.float32 else 1e-10, atol=0.0
        )


def test_norms_of_parts(images: Attribution) -> None:
    values = images.values
    mask = torch.zeros(7, 6, dtype=torch.bool)
    mask[2:4, 1] = True
    found = images.attributes({"mask": mask, "corner": (slice(None), slice(0, 2), slice(3, 6))})
    np.testing.assert_allclose(found.values[:, 0], values[:, :, 2:4, 1].flatten(1).norm(dim=1))
    np.testing.assert_allclose(found.values[:, 1], values[:, :, :2, 3:].flatten(1).norm(dim=1))
    assert found.table().column_names == ["row", "mask", "corner"]
    patches = images.patches(4)
    assert patches.shape == (5, 2, 2)
    torch.testing.assert_close(patches[:, 1, 1], values[:, :, 4:, 4:].flatten(1).norm(dim=1))
    labels = np.arange(42).reshape(7, 6) // 20
    segments = images.superpixels(labels)
    part = values.permute(0, 2, 3, 1)[:, labels == 1].flatten(1).norm(dim=1)
    torch.testing.assert_close(segments.values[:, 1], part)
    assert segments.names == ("0", "1", "2")


def test_superpixels_of_each_record(images: Attribution) -> None:
    labels = np.zeros((5, 7, 6), dtype=int)
    labels[0, :3] = 7
    found = np.asarray(images.superpixels(labels))
    assert np.isnan(found[1:, 1]).all()
    np.testing.assert_allclose(found[0, 1], images.values[0, :, :3].norm())
    np.testing.assert_allclose(found[1, 0], images.values[1].norm())


@given(size=st.integers(1, 9), seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_parts_that_make_up_a_record_have_its_norm(size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    found = Attribution(torch.randn(3, 1, 6, 8, generator=generator, dtype=torch.float64))
    whole = found.records().values
    torch.testing.assert_close(found.patches(size).flatten(1).norm(dim=1), whole)
    labels = torch.randint(0, size, (6, 8), generator=generator)
    torch.testing.assert_close(found.superpixels(labels).values.norm(dim=1), whole)


def test_tables_of_torch_and_of_frames(problem: tuple) -> None:
    net, x, y = problem
    frame = pd.DataFrame(x.numpy(), columns=["age", "height", "a", "b"], index=range(100, 112))
    found = sp.nn.plis(
        net,
        "cross_entropy",
        frame,
        y.numpy(),
        noise_multiplier=2.0,
        max_grad_norm=1.0,
        clip="smooth",
    )
    torch.testing.assert_close(found.values, private(problem).values)
    parts = found.attributes({"body": ["age", "height"], "first": "a", "last": -1})
    np.testing.assert_allclose(parts.values[:, 0], found.values[:, :2].norm(dim=1))
    np.testing.assert_allclose(parts.values[:, 2], found.values[:, 3].abs())
    each = found.attributes().table()
    assert isinstance(each, pd.DataFrame)
    assert list(each.columns) == ["row", "age", "height", "a", "b"]
    assert list(found.table()["row"]) == list(range(100, 112))
    with pytest.raises(sp.InputError, match="no column 'hight'"):
        found.attributes({"body": "hight"})
    with pytest.raises(sp.InputError, match="no column 4"):
        found.attributes({"body": [4]})


def _table() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 3))
    return X, X @ [1.0, -2.0, 0.5] + 0.3 * rng.standard_normal(60)


@pytest.mark.parametrize(
    "model",
    [
        sp.glm.LinearRegression(l2=1e-2, fit_intercept=True),
        Ridge(alpha=0.5),
        sp.glm.LogisticRegression(l2=1e-2),
        LogisticRegression(),
        sp.glm.PoissonRegression(l2=1e-2),
    ],
)
def test_linear_models_by_their_formula(model: object) -> None:
    """g = r(x, 1), so PL = r²(‖x‖² + 1)/s² and PLIS = (2/s²)(a r (‖x‖² + 1) w + r² x)."""
    X, y = _table()
    name = type(model).__name__
    if "Logistic" in name:
        y = np.where(y > 0, "yes", "no")
    elif "Poisson" in name:
        y = np.round(np.exp(y / 3))
    model.fit(X, y)
    s = 1.7
    found = sp.nn.plis(model, None, X, y, noise_multiplier=s)
    w = np.ravel(model.coef_)
    intercept = getattr(model, "fit_intercept", False)
    m = X @ w + (float(np.ravel(model.intercept_)[0]) if intercept else 0.0)
    target = np.where(y == "yes", 1.0, 0.0) if "Logistic" in name else y
    mean = 1 / (1 + np.exp(-m)) if "Logistic" in name else np.exp(m) if "Poisson" in name else m
    a = mean * (1 - mean) if "Logistic" in name else mean if "Poisson" in name else np.ones(60)
    r, length = mean - target, (X**2).sum(1) + bool(intercept)
    np.testing.assert_allclose(found.privacy_loss, r**2 * length / s**2, rtol=1e-9)
    wanted = 2 / s**2 * ((a * r * length)[:, None] * w + (r**2)[:, None] * X)
    np.testing.assert_allclose(found.values, wanted, rtol=1e-8, atol=1e-10)


def test_softmax_regression_as_its_network() -> None:
    X, score = _table()
    y = np.digitize(score, [-1, 1])
    model = sp.glm.SoftmaxRegression(l2=1e-2).fit(X, y)
    net = nn.Linear(3, 3, bias=False).double()
    net.weight.data = torch.tensor(np.asarray(model.coef_))
    wanted = sp.nn.plis(net, "cross_entropy", torch.tensor(X), torch.tensor(y), noise_multiplier=1)
    found = sp.nn.plis(model, None, X, y, noise_multiplier=1)
    torch.testing.assert_close(found.values, wanted.values)


def test_the_views_come_along(problem: tuple) -> None:
    whole = private(problem).values
    mask = torch.tensor([True, False, True, False])
    part = private(problem, view=sp.nn.Input(mask)).values
    torch.testing.assert_close(part, whole * mask)
    assert private(problem, view=sp.nn.Label()).values.shape == (12, 3)


@pytest.mark.slow
def test_estimates_beside_are_within_their_errors(problem: tuple) -> None:
    exact = private(problem, compare="exact").compare()
    rough = private(problem, compare="estimate", probes=400).compare()
    off = np.asarray(rough.jacsens_frobenius) - np.asarray(exact.jacsens_frobenius)
    assert np.all(np.abs(off) < 5 * np.asarray(rough.jacsens_frobenius.standard_errors))
    assert rough.jacsens_frobenius.kind == "estimate"
    assert np.any(off)
    np.testing.assert_allclose(rough.fil.values, exact.fil.values, rtol=1e-6)


def test_ranks_side_by_side(problem: tuple) -> None:
    found = private(problem, compare="auto")
    ranks = found.compare().spearman()
    assert ranks["plis, jacsens"] == ranks["plis, fil"]  # one is the other times the noise
    assert all(-1 <= value <= 1 for value in ranks.values())
    columns = found.table().column_names
    assert {"privacy_loss", "plis", "jacsens", "jacsens_frobenius", "fil"} <= set(columns)
    bare = sp.nn.plis(problem[0], "cross_entropy", *problem[1:], compare="auto")
    assert bare.compare().fil is None
    assert "plis, fil" not in bare.compare().spearman()
    assert "fil" not in bare.table().column_names


def test_bad_input_is_refused(problem: tuple) -> None:
    net, x, y = problem
    bad = [
        ({"max_grad_norm": 1.0}, "Clipping without noise is not private"),
        ({"noise_multiplier": 0.0, "max_grad_norm": 1.0}, "above zero"),
        ({"noise_multiplier": 1.0, "max_grad_norm": 1.0, "clip": "soft"}, "clip must be"),
        ({"noise_multiplier": 1.0, "compare": "all"}, "compare must be"),
    ]
    for options, message in bad:
        with pytest.raises(sp.InputError, match=message):
            sp.nn.plis(net, "cross_entropy", x, y, **options)
    with pytest.raises(sp.InputError, match="records is 12, but y has 3 labels"):
        sp.nn.plis(net, "cross_entropy", x, y[:3])
    with pytest.raises(sp.InputError, match="no records"):
        sp.nn.plis(net, "cross_entropy", x[:0], y[:0])
    with pytest.raises(sp.InputError, match="requires a loss"):
        sp.nn.plis(net, None, x, y)
    with pytest.raises(sp.InputError, match="has its own loss"):
        sp.nn.plis(Ridge(), "mse", x.numpy(), y.numpy())
    weighted = LogisticRegression(class_weight="balanced").fit(x, y > 0)
    with pytest.raises(sp.InputError, match="weights"):
        sp.nn.plis(weighted, None, x.numpy(), (y > 0).numpy())
    found = private(problem)
    with pytest.raises(sp.InputError, match="not computed"):
        found.compare()
    with pytest.raises(sp.InputError, match="infinite"):
        found.signal().individual()
    with pytest.raises(sp.InputError, match="implies no bound on an adversary"):
        found.records().mse_bound()
    with pytest.raises(sp.InputError, match="not images"):
        found.patches(2)
    with pytest.raises(sp.InputError, match="mask of 'a'"):
        found.attributes({"a": np.ones(5, dtype=bool)})
    with pytest.raises(sp.InputError, match="slices 2 axes"):
        found.attributes({"a": (slice(0, 1), slice(0, 1))})


@given(mu=st.floats(1e-3, 30), delta=st.floats(1e-12, 0.5))
@settings(max_examples=60, deadline=None)
def test_epsilon_is_that_of_the_gaussian_mechanism(mu: float, delta: float) -> None:
    found = float(gaussian_epsilon(np.array([mu]), delta)[0])
    if found == 0:
        assert gaussian_delta(0.0, mu) <= delta * (1 + 1e-9)
    else:
        assert gaussian_delta(found, mu) == pytest.approx(delta, rel=1e-6)
        assert gaussian_mu(found, delta) == pytest.approx(mu, rel=1e-6)


def test_individual_losses(problem: tuple) -> None:
    found = private(problem)
    loss = found.individual()
    clipped = sp.nn.SmoothClip(1.0)
    lengths = found.norms / clipped.phi(found.norms)
    np.testing.assert_allclose(loss.mu(), lengths / 2.0)
    np.testing.assert_allclose(loss.rdp(3), 1.5 * np.asarray(found.privacy_loss))
    assert loss.table().column_names == ["row", "privacy_loss", "mu", "rdp_2", "epsilon"]
    assert "adding or removing" in loss.conditions[0]
    with pytest.raises(sp.InputError, match="order"):
        loss.rdp(0.5)
    with pytest.raises(sp.InputError, match="delta"):
        loss.epsilon(0.0)

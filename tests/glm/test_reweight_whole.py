"""The leakage of the whole procedure against finite differences of the whole procedure."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import seepage as sp
from sampled import sampled
from seepage.glm import (
    GeneralizedLinearRegression,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
    losses,
    reweight,
    reweighting,
)
from seepage.glm.losses import bernoulli

N, D = 22, 3
STEP = 1e-4


def root(m, y):
    return (1 + (m - y) ** 2) ** 0.5


# A loss whose third derivatives by the label do not vanish.
PSEUDO_HUBER = sp.glm.Family(
    "pseudo-huber",
    loss=lambda m, y: root(m, y) - 1,
    slope=lambda m, y: (m - y) / root(m, y),
    curvature=lambda m, y: root(m, y) ** -3,
    label_slope=lambda m, y: -(root(m, y) ** -3),
    mean=lambda m: m,
    curvature_slope=lambda m, y: -3 * (m - y) * root(m, y) ** -5,
    curvature_label_slope=lambda m, y: 3 * (m - y) * root(m, y) ** -5,
    label_curvature=lambda m, y: -3 * (m - y) * root(m, y) ** -5,
)


def data(seed=1):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((N, D))
    X[:, 1] += 0.5 * X[:, 0]
    return X, X @ rng.standard_normal(D) + rng.standard_normal(N)


X, Y = data()
GROUPS = np.arange(N) % 3
SOFT_LABELS = 1 / (1 + np.exp(-Y))

MODELS = {
    "linear": (LinearRegression(l2=1e-2), Y),
    "linear without penalty, with intercept": (LinearRegression(fit_intercept=True), Y),
    "logistic": (GeneralizedLinearRegression(bernoulli, l2=1e-2), SOFT_LABELS),
    "logistic with intercept": (
        GeneralizedLinearRegression(bernoulli, l2=1e-2, fit_intercept=True),
        SOFT_LABELS,
    ),
    "poisson": (PoissonRegression(l2=1e-1, fit_intercept=True), np.floor(np.exp(Y / 2)) + 0.5),
    "pseudo-huber": (GeneralizedLinearRegression(PSEUDO_HUBER, l2=1e-2), Y),
}
OPTIONS = {
    "records": {},
    "one column": {"columns": [1]},
    "two columns": {"columns": [2, 0]},
    "columns and label": {"columns": [1], "label": True},
    "label": {"columns": [], "label": True},
    "groups": {"by": GROUPS},
    "limits": {"clamp": (0.6, 1.25)},
    "ratios": {"target": 1 + np.arange(N) / N},
    "group ratios": {"by": GROUPS, "target": {0: 1.0, 1: 2.0, 2: 0.7}},
    "groups with first weights": {"by": GROUPS, "sample_weight": 0.5 * (np.arange(N) % 5)},
    "group limits": {"by": GROUPS, "clamp": (0.9, 3.0)},
}


def settled(model, features, y, options):
    """Run the whole algorithm until nothing moves any more; its score is of no interest."""
    return reweight(
        model, features, y, rounds=1000, tolerance=1e-11, scoring=lambda *data: 0.0, **options
    )


def parameters(model):
    flat = np.ravel(model.coef_)
    return np.append(flat, np.ravel(model.intercept_)) if model.fit_intercept else flat


def differences(model, y, row, options):
    """Return dθ/dz of a row by central differences of the whole algorithm."""
    columns = options.get("columns", range(D))
    moves = [(j, None) for j in columns]
    if options.get("label", "columns" not in options):
        moves.append((None, row))
    derivatives = []
    for column, label in moves:
        ends = []
        for sign in (1, -1):
            features, labels = X.copy(), y.astype(float).copy()
            if column is not None:
                features[row, column] += sign * STEP
            if label is not None:
                labels[label] += sign * STEP
            ends.append(parameters(settled(model, features, labels, options).model))
        derivatives.append((ends[0] - ends[1]) / (2 * STEP))
    return np.stack(derivatives, axis=1)


CASES = [("linear", asked) for asked in OPTIONS]
CASES += [("logistic", asked) for asked in ("records", "one column", "groups", "limits", "label")]


@pytest.mark.parametrize(("name", "asked"), sampled(CASES, [("logistic", "label")], 8))
def test_agrees_with_finite_differences(name, asked):
    fair, found = check(name, OPTIONS[asked], row=11)
    if (name, asked) == ("linear", "label"):
        # ‖H⁻¹x‖ depends on no label, and so neither do the weights.
        assert found == pytest.approx(fair.eta[11], rel=1e-12)
    else:
        assert abs(found / fair.eta[11] - 1) > 1e-3


@pytest.mark.parametrize("asked", sampled(["columns and label", "groups"], 0, ["groups"]))
@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("linear", "logistic")])
def test_other_models_agree_too(name, asked):
    check(name, OPTIONS[asked], row=7)


def check(name, options, row):
    model, y = MODELS[name]
    fair = settled(model, X, y, options)
    assert fair.trajectory[-1].change <= 1e-11
    found = float(fair.whole_procedure([row])[0])
    assert found == pytest.approx(np.linalg.norm(differences(model, y, row, options), 2), rel=1e-6)
    return fair, found


def test_limits_bind_some_and_not_all():
    for asked in ("limits", "group limits"):
        fair = settled(MODELS["linear"][0], X, Y, OPTIONS[asked])
        low, high = OPTIONS[asked]["clamp"]
        held = (fair.weights <= low) | (fair.weights >= high)
        assert 0 < np.sum(held) < N


@pytest.mark.parametrize(
    "sigma",
    [
        pytest.param(np.array([1.0, 0.3, 2.0]), marks=pytest.mark.minutes),
        pytest.param(np.diag([1.0, 2.0, 3.0]) + 0.2, marks=pytest.mark.slow),
    ],
)
def test_noise_of_any_shape_drives_the_weights_and_whitens_the_release(sigma):
    noise = sp.Gaussian(sigma)
    options = {"noise": noise}
    fair = settled(LinearRegression(l2=1e-2), X, Y, options)
    J = differences(LinearRegression(l2=1e-2), Y, 4, options)
    information = noise.information(D)
    whole = J.T @ (np.diag(information) if information.ndim == 1 else information) @ J
    assert float(fair.whole_procedure([4])[0]) == pytest.approx(
        np.sqrt(np.linalg.eigvalsh(whole)[-1]), rel=1e-6
    )
    other = fair.whole_procedure([4], noise=sp.Laplace(0.5))
    assert float(other[0]) == pytest.approx(2 * np.linalg.norm(J, 2), rel=1e-6)


@pytest.mark.parametrize("options", [{"by": np.zeros(N)}, {"clamp": (1.0, 1.0)}], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_weights_that_cannot_move_leave_the_usual_leakage(name, options):
    model, y = MODELS[name]
    fair = reweight(model, X, y, **options)
    np.testing.assert_allclose(fair.whole_procedure(), fair.leakage().rows(), rtol=1e-9)


@pytest.mark.minutes
def test_simplex():
    one_hot = np.eye(3)[np.arange(N) % 3]
    table = np.hstack([X, one_hot])
    shape = {"columns": "level", "attributes": {"level": [3, 4, 5]}, "simplex": True}
    fair = settled(LinearRegression(l2=1e-2), table, Y, shape)
    switch = np.zeros(6)
    switch[3:5] = [1.0, -1.0]
    other = np.array([0, 0, 0, 1.0, 1.0, -2.0]) / np.sqrt(6)
    J = []
    for direction in (switch / np.sqrt(2), other):
        ends = []
        for sign in (1, -1):
            moved = table.copy()
            moved[6] += sign * STEP * direction
            # Off the table's own simplex sum nothing changes: the directions keep it.
            ends.append(settled(LinearRegression(l2=1e-2), moved, Y, shape).model.coef_)
        J.append((ends[0] - ends[1]) / (2 * STEP))
    assert float(fair.whole_procedure([6])[0]) == pytest.approx(np.linalg.norm(J, 2), rel=1e-6)


def test_a_row_of_weight_zero_moves_nothing():
    start = np.where(np.arange(N) == 5, 0.0, 1.0)
    fair = reweight(LinearRegression(l2=1e-2), X, Y, rounds=100, sample_weight=start)
    whole = np.asarray(fair.whole_procedure())
    assert whole[5] == 0.0
    assert np.all(np.delete(whole, 5) > 0)


@pytest.mark.slow
def test_the_result_is_about_the_rows_asked_for():
    fair = reweight(LogisticRegression(), X, Y > 0, rounds=100)
    whole, some = fair.whole_procedure(), fair.whole_procedure(np.arange(N) > 17)
    assert some.labels().tolist() == [18, 19, 20, 21]
    np.testing.assert_allclose(some, np.asarray(whole)[18:], rtol=1e-12)
    turned = fair.whole_procedure([19, -4, 3])
    assert turned.labels().tolist() == [19, 18, 3]
    np.testing.assert_allclose(turned, np.asarray(whole)[[19, 18, 3]], rtol=1e-12)
    assert (whole.view, whole.measure, whole.kind) == ("rows", "fil", "exact")
    assert "through the weights too" in whole.about
    # Chunks of the table do not change it, nor does where it lives.
    on_torch = reweight(LogisticRegression(), torch.tensor(X), torch.tensor(Y > 0), rounds=100)
    tensor = on_torch.whole_procedure().values
    assert torch.is_tensor(tensor)
    np.testing.assert_allclose(tensor.numpy(), whole, rtol=1e-8)


def test_chunks_add_up(monkeypatch):
    fair = reweight(LogisticRegression(), X, Y > 0, rounds=100, by=GROUPS)
    at_once = np.asarray(fair.whole_procedure())
    slices = reweighting.row_slices
    monkeypatch.setattr(
        reweighting, "row_slices", lambda rows, width, what: slices(rows, 1, chunk=5)
    )
    np.testing.assert_allclose(fair.whole_procedure(), at_once, rtol=1e-12)


def test_weights_that_have_not_settled_are_refused():
    fair = reweight(LinearRegression(l2=1e-2), X, Y, rounds=2)
    with pytest.raises(sp.InputError, match=r"not converged .* more rounds"):
        fair.whole_procedure()


def test_softmax_is_refused():
    fair = reweight(SoftmaxRegression(), X, GROUPS, rounds=100)
    with pytest.raises(sp.InputError, match="one output only"):
        fair.whole_procedure()


def test_a_family_without_third_derivatives_is_refused():
    family = replace(PSEUDO_HUBER, label_curvature=None)
    fair = reweight(GeneralizedLinearRegression(family, l2=1e-2), X, Y, rounds=200)
    with pytest.raises(sp.InputError, match="'pseudo-huber' lacks label_curvature"):
        fair.whole_procedure()


def test_too_many_parameters_are_refused():
    wide = np.random.default_rng(0).standard_normal((40, 160))
    fair = reweight(
        LinearRegression(l2=1.0), wide, wide[:, 0], rounds=200, by="class", clamp=(1, 1)
    )
    with pytest.raises(sp.InputError, match="too many for 160 parameters"):
        fair.whole_procedure()


def test_a_row_that_leaks_nothing_is_refused():
    Z, y = np.vstack([X, np.zeros(D)]), np.append(Y, 0.0)
    fair = reweight(LinearRegression(l2=1e-2), Z, y, rounds=200)
    with pytest.raises(sp.InputError, match="Row 22 leaks nothing"):
        fair.whole_procedure()


def test_a_tie_of_two_directions_is_refused():
    # Two columns alike that the labels do not depend on: whichever of them is moved, the release
    # moves as much, and no direction leads.
    one = np.array([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    two = np.array([1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0])
    three = np.array([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, -1.0])
    table = np.stack([one, two, three], axis=1)
    y = 2.0 * three
    fair = reweight(LinearRegression(l2=1e-2), table, y, columns=[0, 1])
    with pytest.raises(sp.InputError, match="leaks equally in two directions"):
        fair.whole_procedure()


@pytest.mark.parametrize("name", ["curvature_slope", "curvature_label_slope", "label_curvature"])
@pytest.mark.parametrize("family", [bernoulli, PSEUDO_HUBER], ids=lambda family: family.name)
def test_third_derivatives_are_checked_on_registration(family, name):
    losses.check_derivatives(family)
    right = getattr(family, name)
    wrong = replace(family, **{name: lambda m, y: right(m, y) + 1e-4})
    with pytest.raises(sp.InputError, match=rf"^{name} of family .*difference 0.0001\)"):
        losses.check_derivatives(wrong)
    losses.check_derivatives(replace(family, **{name: None}))


@pytest.mark.minutes
def test_on_warfarin_doses():
    try:
        sp.data.locate("iwpc", download=False)
    except sp.InputError as error:
        pytest.skip(f"the data set is not at hand: {error}")
    from reproduction.fil.whole_procedure import reproduce

    outcome = reproduce(quick=True)
    found = {
        quantity.name.removeprefix("IWPC: "): quantity.measured for quantity in outcome.quantities
    }
    assert found["mean η, weights as constants"] == pytest.approx(1.625e-3, rel=1e-3)
    # By central differences of the whole algorithm on the record that leaks most: 6.03244e-3.
    assert found["largest η of the whole procedure"] == pytest.approx(6.03244e-3, rel=1e-4)
    assert found["largest η of the whole procedure"] < found["largest η without reweighting"]

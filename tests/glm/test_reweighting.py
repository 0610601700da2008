"""Reweighting: the paper's algorithm against a naive one, its options, and what it refuses."""

import numpy as np
import pandas as pd
import pytest
import torch

import seepage as sp
from seepage.glm import LinearRegression, LogisticRegression, SoftmaxRegression, reweight


def table(n=60, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    X[:, 1] += 0.5 * X[:, 0]
    return X, X @ rng.standard_normal(d) + rng.standard_normal(n)


X, Y = table()
CLASSES = np.where(Y > 0.3, "high", "low")
GROUPS = np.array(["a", "b", "c"])[np.arange(60) % 3]


def naive(rounds, l2=1e-2, columns=None):
    """Run algorithm 1 on linear regression with every J written out."""
    n, d = X.shape
    weights = np.ones(n)
    for t in range(rounds + 1):
        H = X.T @ (weights[:, None] * X) + n * l2 * np.eye(d)
        w = np.linalg.solve(H, X.T @ (weights * Y))
        eta = np.empty(n)
        for i, (x, y) in enumerate(zip(X, Y, strict=True)):
            G = np.outer(x, w) + (x @ w - y) * np.eye(d)
            G = np.column_stack([G, -x]) if columns is None else G[:, columns]
            eta[i] = np.linalg.svd(weights[i] * np.linalg.solve(H, G), compute_uv=False)[0]
        if t < rounds:
            weights = weights / eta
            weights *= n / weights.sum()
    return w, weights, eta


@pytest.mark.parametrize("columns", [None, [2], [0, 3]], ids=str)
@pytest.mark.parametrize("rounds", [0, 1, 7])
def test_agrees_with_the_naive_algorithm(rounds, columns):
    w, weights, eta = naive(rounds, columns=columns)
    fair = reweight(LinearRegression(l2=1e-2), X, Y, rounds=rounds, tolerance=0.0, columns=columns)
    np.testing.assert_allclose(fair.weights, weights, rtol=1e-9)
    np.testing.assert_allclose(fair.model.coef_, w, rtol=1e-9)
    np.testing.assert_allclose(fair.eta, eta, rtol=1e-9)


MODELS = {
    "linear": (LinearRegression(l2=1e-3, fit_intercept=True), Y),
    "logistic": (LogisticRegression(l2=1e-2), CLASSES),
    "logistic, intercept": (LogisticRegression(l2=1e-2, fit_intercept=True), CLASSES),
    "poisson": (sp.glm.PoissonRegression(l2=1e-2), np.floor(np.exp(Y / 3))),
    "softmax": (SoftmaxRegression(l2=1e-2, fit_intercept=True), GROUPS),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_every_record_comes_to_leak_the_same(name):
    model, y = MODELS[name]
    fair = reweight(model, X, y, rounds=200)
    first, last = fair.trajectory[0], fair.trajectory[-1]
    assert first.spread > 0.1 * first.mean
    assert last.spread < 1e-6 * last.mean
    assert last.change <= 1e-6 < fair.trajectory[-2].change
    assert np.sum(fair.weights) == pytest.approx(60)
    # What is reported is what the usual leakage says of the model that is returned.
    again = fair.leakage().rows()
    np.testing.assert_allclose(fair.eta, again, rtol=1e-9)
    np.testing.assert_allclose(fair.leakage(sp.Gaussian(0.1)).rows(), 10 * fair.eta, rtol=1e-9)
    assert not hasattr(model, "coef_")


def test_trajectory_begins_with_the_unweighted_fit():
    fair = reweight(LinearRegression(l2=1e-2), X, Y, rounds=3)
    eta = np.asarray(
        sp.leakage(LinearRegression(l2=1e-2).fit(X, Y), X, Y, noise=sp.Gaussian(1.0)).rows()
    )
    first = fair.trajectory[0]
    assert first[:4] == pytest.approx((0, eta.mean(), eta.std(), eta.max()))
    assert [stage.round for stage in fair.trajectory] == [0, 1, 2, 3]
    last = fair.trajectory[-1]
    assert last[:4] == pytest.approx((3, fair.eta.mean(), fair.eta.std(), fair.eta.max()))
    assert last.score == pytest.approx(fair.model.score(X, Y))


def test_score_on_test_data_and_by_another_rule():
    X_test, y_test = table(seed=3)
    fair = reweight(LinearRegression(), X, Y, rounds=1, X_test=X_test, y_test=y_test)
    assert fair.trajectory[-1].score == pytest.approx(fair.model.score(X_test, y_test))
    signs = reweight(
        LinearRegression(),
        X,
        Y,
        rounds=1,
        scoring=lambda model, *data: np.mean((model.predict(data[0]) > 0) == (data[1] > 0)),
    )
    assert signs.trajectory[-1].score == np.mean((signs.model.predict(X) > 0) == (Y > 0))


def test_newton_starts_where_the_last_round_ended():
    steps = []

    def count(model, *data):
        steps.append(model.n_iter_)
        return 0.0

    fair = reweight(LogisticRegression(l2=1e-2), X, CLASSES, rounds=30, scoring=count)
    cold = LogisticRegression(l2=1e-2).fit(X, CLASSES, sample_weight=fair.weights)
    assert steps[0] >= 5
    assert max(steps[2:]) <= 3
    assert steps[-1] == 1
    np.testing.assert_allclose(fair.model.coef_, cold.coef_, rtol=1e-10)
    # A later fit of the returned model is an ordinary one.
    assert fair.model.fit(X, CLASSES).n_iter_ == steps[0]


def test_wanted_ratios_are_met():
    wanted = np.where(np.arange(60) < 10, 0.5, 1.0)
    fair = reweight(LinearRegression(l2=1e-2), X, Y, rounds=200, target=wanted)
    np.testing.assert_allclose(fair.eta / wanted, fair.eta[-1], rtol=1e-4)


@pytest.mark.parametrize("by", ["class", GROUPS, pd.Series(GROUPS)], ids=["class", "array", "pd"])
def test_groups_come_to_leak_the_same_on_average(by):
    fair = reweight(LogisticRegression(l2=1e-2), X, CLASSES, rounds=100, by=by)
    labels = CLASSES if isinstance(by, str) else GROUPS
    assert list(fair.groups) == sorted(set(labels))
    for label, mean in fair.groups.items():
        assert len(set(fair.weights[labels == label])) == 1
        assert mean == pytest.approx(fair.eta[labels == label].mean())
        assert mean == pytest.approx(next(iter(fair.groups.values())), rel=1e-5)
    assert fair.trajectory[-1].spread > 0.1 * fair.trajectory[-1].mean


def test_groups_in_wanted_ratios():
    wanted = {"a": 1.0, "b": 2.0, "c": 1.0}
    fair = reweight(LinearRegression(), X, Y, rounds=100, by=GROUPS, target=wanted)
    assert fair.groups["b"] / fair.groups["a"] == pytest.approx(2.0, rel=1e-5)
    assert fair.groups["c"] / fair.groups["a"] == pytest.approx(1.0, rel=1e-5)


def test_limits_hold_and_the_others_are_still_equal():
    fair = reweight(LinearRegression(l2=1e-2), X, Y, rounds=300, clamp=(0.6, 1.4))
    low, high = fair.weights <= 0.6, fair.weights >= 1.4
    free = ~low & ~high
    assert low.any()
    assert high.any()
    assert free.any()
    assert np.sum(fair.weights) == pytest.approx(60)
    level = fair.eta[free][0]
    np.testing.assert_allclose(fair.eta[free], level, rtol=1e-4)
    assert np.all(fair.eta[low] >= level * (1 - 1e-4))
    assert np.all(fair.eta[high] <= level * (1 + 1e-4))


def test_no_room_within_the_limits_is_no_reweighting():
    fair = reweight(LinearRegression(l2=1e-2), X, Y, clamp=(1.0, 1.0))
    assert len(fair.trajectory) == 1
    np.testing.assert_array_equal(fair.weights, 1.0)


def test_a_row_that_leaks_nothing_keeps_its_weight():
    Z = np.vstack([X, np.zeros(4)])
    y = np.append(Y, 0.0)  # a row of zeros, fitted exactly: no change of it moves the parameters
    fair = reweight(LinearRegression(l2=1e-2), Z, y, rounds=200)
    assert fair.eta[-1] == 0.0
    assert fair.weights[-1] == 1.0
    np.testing.assert_allclose(fair.eta[:-1], fair.eta[0], rtol=1e-4)


def test_rows_of_weight_zero_stay_out():
    start = np.where(np.arange(60) < 50, 2.0, 0.0)
    fair = reweight(LinearRegression(l2=1e-2), X, Y, rounds=200, sample_weight=start)
    # The penalty is nλ with n the number of rows, those of weight zero included.
    alone = reweight(
        LinearRegression(l2=1.2e-2), X[:50], Y[:50], rounds=200, sample_weight=start[:50]
    )
    np.testing.assert_allclose(fair.weights[:50], alone.weights, rtol=1e-4)
    np.testing.assert_array_equal(fair.weights[50:], 0.0)
    assert np.sum(fair.weights) == pytest.approx(100)
    assert fair.trajectory[-1].mean == pytest.approx(fair.eta[:50].mean())


@pytest.mark.slow
def test_first_weights_are_forgotten_by_rows_and_kept_within_groups():
    start = 1.0 + np.arange(60) % 2
    model = LinearRegression(l2=1e-2)
    fair = reweight(model, X, Y, rounds=300, tolerance=1e-10, sample_weight=start)
    even = reweight(model, X, Y, rounds=300, tolerance=1e-10, sample_weight=np.full(60, 1.5))
    np.testing.assert_allclose(fair.weights, even.weights, rtol=1e-7)
    grouped = reweight(model, X, Y, rounds=300, sample_weight=start, by=GROUPS)
    ratio = grouped.weights / start
    assert all(np.ptp(ratio[g == GROUPS]) < 1e-12 for g in "abc")


def test_only_the_shape_of_the_noise_matters():
    model = LinearRegression(l2=1e-2)
    one = reweight(model, X, Y, rounds=5)
    loud = reweight(model, X, Y, rounds=5, noise=sp.Gaussian(7.0))
    uneven = reweight(model, X, Y, rounds=5, noise=sp.Gaussian([1.0, 2.0, 3.0, 4.0]))
    np.testing.assert_allclose(loud.weights, one.weights, rtol=1e-10)
    np.testing.assert_allclose(loud.eta, one.eta / 7, rtol=1e-10)
    assert np.max(np.abs(uneven.weights / one.weights - 1)) > 0.01


def test_attributes_and_frames_by_name():
    frame = pd.DataFrame(X, columns=list("pqrs"), index=[f"person {i}" for i in range(60)])
    fair = reweight(
        LinearRegression(), frame, Y, rounds=100, columns="pair", attributes={"pair": ["q", "s"]}
    )
    np.testing.assert_allclose(fair.leakage().rows(columns="pair"), fair.eta, rtol=1e-9)
    assert list(fair.model.feature_names_in_) == list("pqrs")
    assert "about pair" in repr(fair)
    assert fair.table()["spread"].tolist() == [stage.spread for stage in fair.trajectory]
    assert fair.whole_procedure([1]).labels().tolist() == ["person 1"]


def test_tensors():
    on_torch = reweight(LogisticRegression(), torch.tensor(X), torch.tensor(Y > 0), rounds=4)
    on_numpy = reweight(LogisticRegression(), X, Y > 0, rounds=4)
    np.testing.assert_allclose(on_torch.weights, on_numpy.weights, rtol=1e-9)
    assert torch.is_tensor(on_torch.model.coef_)


def test_the_result_says_what_its_numbers_leave_out():
    fair = reweight(LinearRegression(), X, Y, rounds=1)
    assert "whole_procedure()" in fair.notice
    assert "in 1 round" in repr(fair)


REFUSED = {
    "rounds must be at least 0 and a whole number, not 1.5": {"rounds": 1.5},
    "rounds must be at least 0 and a whole number, not -1": {"rounds": -1},
    "tolerance must lie between": {"tolerance": -1.0},
    "X_test and y_test must be passed": {"X_test": X},
    "target must contain one number per row": {"target": 2.0},
    "X has 60 rows but target has 3": {"target": [1, 2, 3]},
    "its entry 4 is 0": {"target": np.where(np.arange(60) == 4, 0.0, 1.0)},
    "With by=, target must be a mapping": {"target": np.ones(60), "by": GROUPS},
    "No record is in the group 'd'": {"target": {"d": 1.0}, "by": GROUPS},
    "no entry for the group 'b'": {"target": {"a": 1.0}, "by": GROUPS},
    'by must be "class", or contain': {"by": "a column"},
    "X has 60 rows but by has 2": {"by": ["a", "b"]},
    "Row 1 has no group": {"by": np.where(np.arange(60) == 1, None, "a")},
    "labels of mixed types": {"by": np.array([1, "a"] * 30, dtype=object)},
    "clamp must be a pair of numbers": {"clamp": 3},
    "0 ≤ low ≤ 1 ≤ high": {"clamp": (2.0, 3.0)},
    "noise must be sp.Gaussian": {"noise": 1.0},
    "sample_weight must not be negative": {"sample_weight": -np.ones(60)},
    "There is no column 'z'": {"columns": "z"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_input_is_named(message):
    with pytest.raises(sp.InputError, match=message.replace("(", r"\(")):
        reweight(LinearRegression(), X, Y, **REFUSED[message])


def test_other_libraries_models_are_refused():
    from sklearn.linear_model import Ridge

    with pytest.raises(sp.InputError, match="not a Ridge"):
        reweight(Ridge(), X, Y)


@pytest.fixture(scope="module")
def mnist():
    try:
        return sp.data.two_class_pca(sp.data.load_mnist(download=False))
    except sp.InputError as error:
        pytest.skip(f"the data set is not at hand: {error}")


def _accuracy(model, features, labels):
    return 100 * np.mean((features @ np.ravel(model.coef_) > 0) == (labels > 0))


@pytest.mark.minutes
@pytest.mark.parametrize(
    ("model", "signed", "mean", "accuracy"),
    [
        (LinearRegression(), True, 0.0470, 99.76),
        (LogisticRegression(l2=8e-4), False, 0.0238, 99.67),
    ],
    ids=["linear", "logistic"],
)
def test_table_1_of_the_paper(mnist, model, signed, mean, accuracy):
    y, y_test = (2 * v - 1 if signed else v for v in (mnist.y, mnist.y_test))
    fair = reweight(model, mnist.X, y, X_test=mnist.X_test, y_test=y_test, scoring=_accuracy)
    last = fair.trajectory[-1]
    assert (round(last.mean, 4), round(last.spread, 4)) == (mean, 0.0)
    assert round(last.score, 2) == accuracy

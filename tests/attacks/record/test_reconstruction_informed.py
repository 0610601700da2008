"""The informed adversary: exact without noise, efficient with little, and its algebra."""

from __future__ import annotations

from copy import copy

import numpy as np
import pytest

import seepage as sp
from cases import BY_NAME, CASES, audit, estimator
from recipes import Case
from seepage.attacks import InformedAdversary, draw_releases, reconstruction_errors
from seepage.attacks.record.informed_margin import covariance_times

# Rows whose own loss leaves no trace cannot be read off anything.
TRACE = 1e-4
WITH_INTERCEPT = [case for case in CASES if case.intercept and case.n > 2]
WITHOUT = [case for case in CASES if not case.intercept and case.n > 2 and case.d <= 12]


def adversary(case: Case, **options) -> InformedAdversary:
    return InformedAdversary(estimator(case), **options).fit(
        case.X, case.y, sample_weight=case.sample_weight
    )


def traces(case: Case) -> np.ndarray:
    """How large each row's own gradient factor is beside what it is read off."""
    jacobian = audit(case).jacobian
    r = np.asarray(jacobian.terms.derivatives(slice(0, case.n))[0])
    return np.linalg.norm(r.reshape(case.n, -1), axis=1)


def numbers(case: Case) -> np.ndarray:
    target = audit(case).jacobian.target
    return np.argmax(target, axis=1) if case.family == "categorical" else np.asarray(target)


@pytest.mark.parametrize("label", ["known", "unknown"])
@pytest.mark.parametrize("case", WITH_INTERCEPT, ids=lambda case: case.name)
def test_an_exact_release_gives_every_record_away(case, label):
    attack = adversary(case, label=label)
    found = attack.reconstruct(attack.model_)
    clear = traces(case) > TRACE
    scale = np.abs(case.X).max()
    np.testing.assert_allclose(found.features[0, clear], case.X[clear], atol=1e-5 * scale)
    if case.family in ("bernoulli", "gaussian", "poisson", "exponential", "categorical"):
        np.testing.assert_allclose(found.labels[0, clear], numbers(case)[clear], atol=1e-4)


@pytest.mark.parametrize("case", WITHOUT, ids=lambda case: case.name)
def test_without_an_intercept_what_is_found_explains_the_release(case):
    """There may be several records with the same gradient: the one found is among them."""
    attack = adversary(case, label="known")
    found = attack.reconstruct(attack.model_)
    clear = (traces(case) > TRACE) & (np.abs(case.X).max(axis=1) > 0)
    off = np.abs(found.features[0] - case.X).max(axis=1)
    right = off < 1e-5 * (1 + np.abs(case.X).max())
    for row in np.flatnonzero(clear & ~right):
        direction = found.features[0, row] / np.linalg.norm(found.features[0, row])
        own = case.X[row] / np.linalg.norm(case.X[row])
        assert abs(direction @ own) == pytest.approx(1.0, abs=1e-5)
    if clear.sum() > 5 and case.d >= 3:  # where lengths hardly vary
        assert np.mean(right[clear]) > 0.4


def test_a_constant_column_is_as_good_as_an_intercept():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.standard_normal((40, 3)), np.full(40, 2.0)])
    y = (X[:, 0] + rng.standard_normal(40) > 0).astype(int)
    for label in ("known", "unknown"):
        attack = InformedAdversary(sp.glm.LogisticRegression(l2=0.1), label=label).fit(X, y)
        np.testing.assert_allclose(attack.reconstruct(attack.model_).features[0], X, atol=1e-7)
        errors = attack.errors(sp.Gaussian(1e-4), 50, rows=[3], seed=0)
        theta = np.ravel(attack.model_.coef_) + sp.Gaussian(1e-4).draw((50, 4), 0)
        guesses = attack.reconstruct(theta, [3]).features
        np.testing.assert_allclose(guesses[..., 3], 2.0, rtol=1e-12)
        want = reconstruction_errors(guesses[..., :3], X[[3], :3])
        np.testing.assert_allclose(errors.mse, want.mse, rtol=1e-9)  # of the unknown columns


@pytest.mark.parametrize("label", ["known", "unknown"])
@pytest.mark.parametrize(
    "name",
    [
        "linear-everything",
        "logistic-intercept",
        "poisson-everything",
        "linear-l2",
        "logistic-l2",
        "softmax-3-weighted-intercept-l2",
        "softmax-4-l2",
        "pseudo-huber",
        "laplace-linear",
        "covariance-linear-intercept",
    ],
)
def test_errors_are_those_of_the_reconstructions_they_never_write_out(name, label):
    case = BY_NAME[name]
    try:
        attack = adversary(case, label=label, noise=case.noise)
    except sp.InputError:
        assert label == "unknown"
        assert not case.intercept
        return
    noise = case.noise.scaled(1e-3)
    rows = np.array([5, 2, 9])
    got = attack.errors(noise, 60, rows=rows, seed=4)
    base = np.concatenate(
        [np.atleast_2d(attack.model_.coef_).T]
        + ([np.reshape(attack.model_.intercept_, (1, -1))] if case.intercept else [])
    ).reshape(-1)
    releases = base + noise.draw((60, base.size), 4)
    want = reconstruction_errors(attack.reconstruct(releases, rows).features, case.X[rows], rows)
    for field in ("mse", "standard_error", "bias_squared", "variance"):
        np.testing.assert_allclose(
            getattr(got, field),
            getattr(want, field),
            rtol=1e-6,
            atol=1e-9 * want.mse.max(),
            err_msg=field,
        )
    np.testing.assert_allclose(got.median_error, want.median_error, rtol=1e-5)
    assert got.rows.tolist() == [5, 2, 9]
    assert (got.trials, got.kind) == (60, "attack")


@pytest.mark.parametrize(
    "name",
    ["linear-intercept", "logistic-everything", "poisson-intercept", "vector-noise-intercept"],
)
def test_with_the_label_the_bound_is_attained_as_the_noise_vanishes(name):
    """Mean squared errors over the exact Cramér–Rao bound, on average over the records."""
    case = BY_NAME[name]
    noise = case.noise.scaled(1e-5)
    attack = adversary(case, label="known", noise=noise)
    leak = sp.leakage(attack.model_, case.X, case.y, noise=noise, sample_weight=case.sample_weight)
    exact = np.asarray(sp.bounds.cramer_rao_rows(leak))
    got = attack.errors(noise, 3000, seed=0)
    usable = exact < 1e-4  # beyond, the release is not linear within the noise
    assert usable.sum() > 5
    ratio = got.mse[usable] / exact[usable]
    assert np.all(ratio > 1 - 5 * got.standard_error[usable] / got.mse[usable])
    assert np.median(ratio) == pytest.approx(1.0, abs=0.05)
    np.testing.assert_allclose(attack.slopes(noise, 2000, seed=1)[usable], 1.0, atol=0.25)


def test_the_label_makes_it_sharper():
    case = BY_NAME["logistic-intercept"]
    noise = sp.Gaussian(1e-3)
    with_label = adversary(case, label="known", noise=noise).errors(noise, 300, seed=0)
    without = adversary(case, label="unknown").errors(noise, 300, seed=0)
    assert np.mean(with_label.median_error < without.median_error) > 0.8


@pytest.mark.parametrize("sigma", [1e-4, 0.05])
def test_slopes_are_derivatives_of_the_mean_reconstruction(sigma):
    """By finite differences of the whole attack, with the same noise."""
    case = BY_NAME["logistic-everything"]
    noise, row, trials = sp.Gaussian(sigma), 4, 4000
    attack = adversary(case, label="known", noise=noise)
    got = attack.slopes(noise, trials, rows=[row], seed=0)[0]
    means = []
    for j in range(case.d):
        ends = []
        for h in (1e-3, -1e-3):
            X = case.X.copy()
            X[row, j] += h
            other = InformedAdversary(estimator(case), noise=noise)
            other.fit(X, case.y, sample_weight=case.sample_weight)
            inner = other._attack
            # Weights that the adversary sets by the other records do not change with this one.
            for name in ("centre", "spread", "drawn", "precision", "gain"):
                setattr(inner, name, getattr(attack._attack, name))
            theta = inner.theta + noise.draw((trials, inner.theta.size), 0)
            ends.append(other.reconstruct(theta, [row]).features[:, 0, j].mean())
        means.append((ends[0] - ends[1]) / 2e-3)
    assert got == pytest.approx(np.mean(means), abs=0.1)


def test_releases_come_in_every_form():
    case = BY_NAME["linear-intercept"]
    attack = adversary(case)
    theta = np.append(attack.model_.coef_, attack.model_.intercept_)
    one = attack.reconstruct(theta, rows=[1]).features
    np.testing.assert_array_equal(attack.reconstruct(attack.model_, [1]).features, one)
    np.testing.assert_array_equal(attack.reconstruct(theta[None, :], [1]).features, one)
    many = draw_releases(attack.model_, sp.Gaussian(0.1), 3, seed=0)
    assert attack.reconstruct(many).features.shape == (3, 30, 5)
    released = sp.release(attack.model_, sp.Gaussian(0.1))
    assert attack.reconstruct(released, -1).rows.tolist() == [29]
    mask = np.zeros(30, dtype=bool)
    mask[[2, 7]] = True
    assert attack.reconstruct(theta, mask).rows.tolist() == [2, 7]
    order = np.arange(30)[::-1]  # all rows, but not in order
    np.testing.assert_allclose(
        attack.reconstruct(theta, order).features[0], attack.reconstruct(theta).features[0, ::-1]
    )


def test_models_from_elsewhere_are_attacked_too():
    from sklearn.linear_model import Ridge

    X = np.random.default_rng(0).standard_normal((30, 3))
    y = X @ [1.0, 2.0, 3.0] + np.random.default_rng(1).standard_normal(30)
    attack = InformedAdversary(Ridge(alpha=1.0, tol=1e-12), label="unknown").fit(X, y)
    np.testing.assert_allclose(attack.reconstruct(attack.model_).features[0], X, atol=1e-7)


def test_tables_with_row_labels_are_told_by_them():
    pandas = pytest.importorskip("pandas")
    case = BY_NAME["linear-intercept"]
    frame = pandas.DataFrame(case.X, index=[f"p{i}" for i in range(case.n)])
    attack = InformedAdversary(estimator(case)).fit(frame, case.y)
    errors = attack.errors(sp.Gaussian(1e-3), 5, rows=[4], seed=0)
    assert errors.rows.tolist() == ["p4"]
    assert errors.table("pandas")["row"].tolist() == ["p4"]
    assert "p4" in repr(errors)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda a: InformedAdversary(a.model_, label="maybe"), "label must be"),
        (lambda a: InformedAdversary(a.model_).reconstruct(a.model_), "call fit"),
        (lambda a: a.reconstruct(np.zeros(3)), "the model has 6"),
        (lambda a: a.reconstruct(a.model_, rows=[99]), "no row 99"),
        (lambda a: a.reconstruct(a.model_, rows=[0.5]), "whole numbers"),
        (lambda a: a.errors(sp.Gaussian(1.0), 0), "trials must be at least 1"),
        (lambda a: a.slopes(sp.Laplace(1.0)), "Gaussian noise"),
    ],
)
def test_what_cannot_be_attacked_is_refused(ask, words):
    with pytest.raises(sp.InputError, match=words):
        ask(adversary(BY_NAME["linear-intercept"]))


def test_a_direction_is_all_that_is_left_without_label_and_intercept():
    with pytest.raises(sp.InputError, match="direction but not its length"):
        adversary(BY_NAME["linear"], label="unknown")
    with pytest.raises(sp.InputError, match="two classes"):
        adversary(BY_NAME["softmax-2"], label="unknown")
    case = BY_NAME["softmax-3-l2"]  # with three classes the sign tells the label
    attack = adversary(case, label="unknown")
    found = attack.reconstruct(attack.model_)
    np.testing.assert_array_equal(found.labels[0], case.y)
    rng = np.random.default_rng(0)
    X = rng.uniform(1, 2, (60, 3))  # records all on one side: the sign of a direction is known
    y = (X[:, 0] + rng.standard_normal(60) > 1.5).astype(int)
    attack = InformedAdversary(sp.glm.LogisticRegression(l2=0.1), label="unknown").fit(X, y)
    assert np.mean(attack.reconstruct(attack.model_).labels[0] == y) > 0.9


def test_the_covariance_of_laplace_noise_is_twice_its_squared_scale():
    vectors = np.random.default_rng(0).standard_normal((3, 2))
    np.testing.assert_allclose(covariance_times(sp.Laplace(2.0), vectors), 8 * vectors)
    scales = np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(
        covariance_times(sp.Laplace(scales), vectors), np.diag(2 * scales**2) @ vectors
    )


def test_what_is_no_release_is_refused():
    with pytest.raises(sp.InputError, match="This str is not a release of a linear model"):
        adversary(BY_NAME["linear-intercept"]).reconstruct("parameters")


def test_a_model_that_stopped_early_is_fitted_anew():
    case = BY_NAME["logistic-everything"]
    whole = adversary(case).model_
    early = copy(whole)
    early.coef_ = whole.coef_ + 1e-3
    found = InformedAdversary(early).fit(case.X, case.y, sample_weight=case.sample_weight)
    np.testing.assert_allclose(found.model_.coef_, whole.coef_, rtol=1e-6)
    kept = InformedAdversary(whole).fit(case.X, case.y, sample_weight=case.sample_weight)
    assert kept.model_ is whole


@pytest.mark.parametrize("intercept", [True, False])
def test_weighted_classes_are_read_off_an_exact_release(intercept):
    rng = np.random.default_rng(0)
    X, y, weight = rng.standard_normal((40, 3)), rng.integers(0, 3, 40), rng.uniform(0.5, 2, 40)
    model = sp.glm.SoftmaxRegression(fit_intercept=intercept, l2=0.1)
    attack = InformedAdversary(model).fit(X, y, sample_weight=weight)
    found = attack.reconstruct(attack.model_).features[0]
    if intercept:
        np.testing.assert_allclose(found, X, atol=1e-9)
    else:  # of the lengths that solve the equation the wrong one may be taken, for a few
        assert np.median(np.abs(found - X)) < 1e-9


def test_the_only_record_is_read_off_without_an_intercept():
    X, y = np.array([[0.5, -1.0, 2.0]]), np.array([1.5])
    attack = InformedAdversary(sp.glm.LinearRegression(l2=0.1)).fit(X, y)
    np.testing.assert_allclose(attack.reconstruct(attack.model_).features[0], X, rtol=1e-9)

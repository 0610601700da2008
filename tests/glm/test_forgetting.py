"""Forgetting: certificates against refits by hand, μ of two models against simulated recipients."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import trapezoid
from scipy.optimize import minimize
from scipy.special import expit, logsumexp
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression, Ridge

import seepage as sp
from seepage.errors import InputError
from seepage.glm.dense_objective import DenseObjective
from seepage.glm.leakage import leakage

RNG = np.random.default_rng(0)
N = 80
X = RNG.standard_normal((N, 3))
FAR = np.where(np.arange(N)[:, None] == 4, 20.0, X)  # one record of great leverage
MEAN = X @ [1.0, -0.5, 0.2]
LABELS = {
    "LinearRegression": MEAN + RNG.standard_normal(N),
    "LogisticRegression": (MEAN + RNG.logistic(size=N) > 0).astype(int),
    "PoissonRegression": RNG.poisson(np.exp(MEAN / 2)).astype(float),
    "SoftmaxRegression": np.argmax(RNG.gumbel(size=(N, 3)) + np.outer(MEAN, [1, 0, -1]), axis=1),
}


def loss(kind, margins, y):
    """Return the total loss by its formula."""
    if kind == "LinearRegression":
        return np.sum((margins[:, 0] - y) ** 2) / 2
    if kind == "LogisticRegression":
        return np.sum(np.logaddexp(0, margins[:, 0]) - y * margins[:, 0])
    if kind == "PoissonRegression":
        return np.sum(np.exp(margins[:, 0]) - y * margins[:, 0])
    return np.sum(logsumexp(margins, axis=1) - margins[np.arange(len(y)), y.astype(int)])


def mean(kind, margins):
    if kind == "LogisticRegression":
        return expit(margins)
    if kind == "SoftmaxRegression":
        return np.exp(margins - logsumexp(margins, axis=1, keepdims=True))
    return np.exp(margins) if kind == "PoissonRegression" else margins


def refit_by_hand(kind, table, y, ridge, intercept):
    """Return the minimiser, coefficients and intercept in one row a class, by another program."""
    full = np.hstack([table, np.ones((len(y), 1))]) if intercept else table
    outputs = 3 if kind == "SoftmaxRegression" else 1
    wanted = np.eye(3)[y.astype(int)] if outputs == 3 else y[:, None]
    penalty = np.where(np.arange(full.shape[1]) < table.shape[1], ridge, 0.0)

    def both(flat):
        theta = flat.reshape(outputs, -1)
        margins = full @ theta.T
        slope = (mean(kind, margins) - wanted).T @ full + penalty * theta
        return loss(kind, margins, y) + np.sum(penalty * theta**2) / 2, slope.ravel()

    start = np.zeros(outputs * full.shape[1])
    found = minimize(both, start, jac=True, method="BFGS", options={"gtol": 1e-9, "maxiter": 5000})
    theta = found.x.reshape(outputs, -1)
    if outputs == 3:
        theta = theta - theta.mean(axis=0)
    assert np.abs(both(theta.ravel())[1]).max() < 1e-5
    return theta


def parameters(model, intercept):
    coef = np.atleast_2d(model.coef_)
    if not intercept:
        return coef
    return np.column_stack([coef, np.ravel(model.intercept_)])


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("l2", [1e-3, 0.1])
@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("rows", [[0], [4], list(range(0, 30))], ids=["one", "far", "thirty"])
def test_the_refit_lies_within_the_certificate(kind, l2, intercept, rows):
    table = X if kind == "PoissonRegression" else FAR  # a count of exp(20) is none
    y = LABELS[kind]
    model = getattr(sp.glm, kind)(l2=l2, fit_intercept=intercept).fit(table, y)
    forgotten = sp.forget(model, table, y, rows)
    rest = np.delete(np.arange(N), rows)
    exact = refit_by_hand(kind, table[rest], y[rest], l2 * len(rest), intercept)
    np.testing.assert_allclose(parameters(forgotten.model, intercept), exact, atol=2e-6)
    away = np.linalg.norm(parameters(forgotten.step, intercept) - exact)
    assert away <= forgotten.distance + 1e-5
    moved = np.linalg.norm(parameters(model, intercept) - exact)
    assert moved <= forgotten.moved + 1e-5
    assert forgotten.moved == pytest.approx(moved, rel=1e-3, abs=1e-5)
    if rows == [0]:
        assert forgotten.distance < 0.2 * forgotten.moved + 1e-9
    assert forgotten.removed == len(rows)


@pytest.mark.parametrize("shift", [0.05, 0.5, 3.0])
def test_the_certificate_is_attained(shift):
    """Counts with one parameter: curvatures fall exactly as fast as the certificate assumes.

    A certificate that left the logarithm out, as if curvatures stayed, would be below the truth.
    """
    y = np.array([1.0, 0.0, 3.0, 2.0])
    model = sp.glm.PoissonRegression(l2=0.0).fit(np.ones((4, 1)), y)
    fit = leakage(model, np.ones((4, 1)), y, noise=sp.Gaussian(1.0)).release.model
    objective = DenseObjective(fit, np.ones((4, 1)))
    at = np.log(y.mean()) + shift
    assert objective.distance(np.array([[at]])) == pytest.approx(shift, rel=1e-9)


def test_without_a_certificate_the_distance_is_infinite():
    y = (X[:, 0] > 0).astype(int)  # separable, hardly penalised
    model = sp.glm.LogisticRegression(l2=1e-4, fit_intercept=True).fit(X, y)
    close = np.argsort(np.abs(X[:, 0]))[:20]
    forgotten = sp.forget(model, X, y, close)
    away = np.linalg.norm(parameters(forgotten.step, True) - parameters(forgotten.model, True))
    assert forgotten.distance >= away
    assert forgotten.distance == math.inf


@pytest.mark.parametrize("stepped", [False, True])
def test_recipients_of_both_models_do_no_better_than_mu(stepped):
    """Worlds with and without the records, 40,000 pairs each, by likelihood ratios."""
    y, rows = LABELS["LogisticRegression"], [1, 2, 3, 4, 5]
    model = sp.glm.LogisticRegression(l2=0.01).fit(X, y)
    forgotten = sp.forget(model, X, y, rows)
    sigma = np.linalg.norm(model.coef_ - forgotten.model.coef_), forgotten.distance / 0.7
    mu = forgotten.pair(*map(sp.Gaussian, sigma), stepped=stepped)
    never = np.concatenate([forgotten.model.coef_[0], forgotten.model.coef_[0]])
    new = forgotten.step if stepped else forgotten.model
    once = np.concatenate([model.coef_[0], new.coef_[0]])
    noise = np.repeat(sigma, 3)
    draw = np.random.default_rng(1).standard_normal((2, 40_000, 6)) * noise
    apart = (once - never) / noise**2
    ratio = [
        (place + z - (once + never) / 2) @ apart
        for place, z in zip((never, once), draw, strict=True)
    ]
    right = (np.mean(ratio[0] < 0) + np.mean(ratio[1] > 0)) / 2
    margin = 4 * math.sqrt(0.25 / 80_000)
    assert right <= norm.cdf(mu / 2) + margin
    # With the refit the new model adds nothing, so the limit is attained.
    if not stepped:
        assert right >= norm.cdf(mu / 2) - margin
        assert mu == pytest.approx(1, rel=1e-6)
    else:
        assert mu == pytest.approx(math.hypot(1, 0.7), rel=1e-6)
        assert right > norm.cdf(0.5) + margin  # the trace of one step is seen


def test_what_left_without_noise_cannot_be_forgotten():
    y = LABELS["LinearRegression"]
    model = sp.glm.LinearRegression(l2=0.1).fit(X, y)
    forgotten = sp.forget(model, X, y, 3)
    assert forgotten.pair(None, sp.Gaussian(10.0)) == math.inf
    assert forgotten.pair(sp.Gaussian(1.0), None, stepped=True) == math.inf  # rounding is a trace
    assert forgotten.pair(sp.Gaussian(1.0), None) == pytest.approx(forgotten.moved)
    two = np.diag([4.0, 1.0, 9.0])
    assert forgotten.pair(sp.Gaussian(two), None) == pytest.approx(forgotten.moved)
    assert forgotten.pair(sp.Gaussian([2.0, 1.0, 3.0]), None) == pytest.approx(forgotten.moved)
    with pytest.raises(InputError, match=r"sp\.Gaussian"):
        forgotten.pair(sp.Laplace(1.0), None)


def test_models_of_others_frames_and_weights():
    y = LABELS["LogisticRegression"]
    weight = np.linspace(0.5, 2, N)
    frame = pd.DataFrame(X, columns=["a", "b", "c"], index=np.arange(N)[::-1])
    model = LogisticRegression(C=0.7, tol=1e-10, max_iter=1000).fit(frame, y, sample_weight=weight)
    forgotten = sp.forget(model, frame, y, [2, 5], sample_weight=weight)
    rest = np.delete(np.arange(N), [2, 5])
    again = LogisticRegression(C=0.7, tol=1e-10, max_iter=1000)
    again.fit(frame.iloc[rest], y[rest], sample_weight=weight[rest])
    np.testing.assert_allclose(forgotten.model.coef_, again.coef_)
    away = np.linalg.norm(parameters(forgotten.step, True) - parameters(again, True))
    assert 0 < away <= forgotten.distance + 1e-7
    ridge = Ridge(alpha=2.0).fit(X, LABELS["LinearRegression"])
    assert sp.forget(ridge, X, LABELS["LinearRegression"], [0]).distance < 1e-10


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([], "rows must be the positions"),
        (["a"], "rows must be the positions"),
        ([0.5], "rows must be the positions"),
        ([True], "rows must be the positions"),
        ([N], "from 0 to 79, because the table has 80 records"),
        ([-1], "from 0 to 79, because the table has 80 records"),
        (range(N), "Removing all records"),
    ],
)
def test_rows_that_are_none_are_refused(rows, complaint):
    y = LABELS["LinearRegression"]
    model = sp.glm.LinearRegression(l2=0.1).fit(X, y)
    with pytest.raises(InputError, match=complaint):
        sp.forget(model, X, y, rows)


def test_a_class_that_is_gone_and_a_model_of_other_data_are_refused():
    y = LABELS["SoftmaxRegression"]
    model = sp.glm.SoftmaxRegression(l2=0.1).fit(X, y)
    with pytest.raises(InputError):
        sp.forget(model, X, y, np.flatnonzero(y == 2))
    with pytest.raises(InputError):
        sp.forget(model, X + 1.0, y, [0])


def test_certified_removal_against_densities():
    """One parameter: the laws of the new model and of one trained without the record, exactly.

    Both are the same function of the linear term that the model is a minimiser with, so the laws
    of that term are compared: a normal one, and its image under training and removal.
    """
    x, y = np.random.default_rng(2).standard_normal((60, 1)), np.arange(60) % 2
    x[7] = 6.0
    model = sp.glm.LogisticRegression(l2=0.05).fit(x, y)
    sigma, delta = 0.5, 1e-3
    trained = sp.glm.ObjectivePerturbation(model, x, y, sp.Gaussian(sigma), draws=100)
    theta = np.linspace(-2.5, 2.5, 1001)

    def slope(at, rows):
        margins = x[rows] @ at[None]
        return np.sum(x[rows] * (expit(margins) - y[rows, None]), axis=0) + 0.05 * 60 * at

    everybody, rest = np.arange(60), np.delete(np.arange(60), 7)
    term = -slope(theta, everybody)  # with which the first training gives each theta
    removals = [trained.forget(np.array([t]), [7]) for t in theta]
    after = np.array([found.parameters[0] for found in removals])
    image = -slope(after, rest)  # with which training without the record gives the new one
    residual = np.array([found.residual for found in removals])
    np.testing.assert_allclose(residual, np.abs(term - image), atol=1e-9)
    assert np.all(np.diff(term) < 0)
    assert np.all(np.diff(image) < 0)
    density = norm.pdf(term, scale=sigma) * np.abs(np.gradient(term, image))
    plain = norm.pdf(image, scale=sigma)
    assert trapezoid(density, -image) == pytest.approx(1, abs=1e-3)
    likely = np.abs(term) < 4.5 * sigma  # beyond, one draw in 100,000
    worst = max(found.epsilon(delta) for found, kept in zip(removals, likely, strict=True) if kept)
    for one, other in ((density, plain), (plain, density)):
        beyond = trapezoid(np.maximum(one - math.exp(worst) * other, 0), -image)
        assert beyond <= delta
    # And it is worth something: without the step the record is still in the model.
    left = np.abs(slope(theta, everybody) - slope(theta, rest))[likely].min()
    assert residual[likely].max() < left


def test_residuals_of_several_removals_are_those_of_all():
    y = LABELS["LogisticRegression"]
    model = sp.glm.LogisticRegression(l2=0.1).fit(X, y)
    trained = sp.glm.ObjectivePerturbation(model, X, y, sp.Gaussian(1.0), draws=100)
    first = trained.draw(seed=3)
    one = trained.forget(first, [0])
    two = trained.forget(first, [0, 1], one.parameters)
    at = [X.T @ (expit(X @ t) - y) + 0.1 * N * t for t in (first, two.parameters)]
    gone = X[:2].T @ (expit(X[:2] @ two.parameters) - y[:2])
    assert two.residual == pytest.approx(np.linalg.norm(at[1] - gone - at[0]), abs=1e-9)
    assert two.epsilon(1e-5) == pytest.approx(two.residual * math.sqrt(2 * math.log(1.5e5)))
    with pytest.raises(InputError, match="shape"):
        trained.forget(first[:2], [0])
    with pytest.raises(InputError, match="delta"):
        two.epsilon(0.0)


def noisy_pairs(model, forgotten, sigma, taken_part, rng, count):
    """Return old and new models as recipients have them, if the record took part or never did."""
    never = np.ravel(forgotten.model.coef_)
    old = np.ravel(model.coef_) if taken_part else never
    new = np.ravel(forgotten.step.coef_) if taken_part else never
    noise = rng.standard_normal((2, count, len(never)))
    return np.hstack([old + sigma[0] * noise[0], new + sigma[1] * noise[1]])


def test_the_ledger_composes_the_pair_as_recipients_of_both_models_see_it(tmp_path):
    """The old release and one step, each with noise: the likelihood ratio of both is as stated."""
    y = LABELS["LogisticRegression"]
    model = sp.glm.LogisticRegression(l2=0.05).fit(FAR, y)
    forgotten = sp.forget(model, FAR, y, [4])
    old, new = sp.Gaussian(forgotten.moved / 1.1), sp.Gaussian(max(forgotten.distance, 1e-6) / 0.7)
    people = {f"x{j}": FAR[:, j] for j in range(3)}
    ledger = sp.LedgerFile(tmp_path / "ledger.json")
    listed = np.full(N, 0.2)
    listed[4] = 1.09  # a little less than the pair has it
    assert ledger.record(people, "release", mu=listed) == 1
    assert forgotten.record(ledger, people, old, new, stepped=True, entry=1) == 2
    total = ledger.spent(people)
    pair = forgotten.pair(old, new, stepped=True)
    assert pair == pytest.approx(math.hypot(1.1, 0.7), rel=1e-6)
    assert total.mu[4] == pytest.approx(pair)
    assert np.all(total.mu[np.arange(N) != 4] == 0.2)
    # Recipients of both, who know everybody else, by the likelihood ratio of 20,000 pairs each.
    sigma, rng, right = (float(old.sigma), float(new.sigma)), np.random.default_rng(1), 0
    worlds = [
        np.hstack([np.ravel(m.coef_) for m in both])
        for both in ((forgotten.model, forgotten.model), (model, forgotten.step))
    ]
    scale = np.repeat(sigma, 3)
    for taken_part in (False, True):
        seen = noisy_pairs(model, forgotten, sigma, taken_part, rng, 20_000)
        near = [np.sum(((seen - world) / scale) ** 2, axis=1) for world in worlds]
        right += np.sum((near[1] < near[0]) == taken_part)
    assert right / 40_000 <= total.membership()[4] + 4 * math.sqrt(0.25 / 40_000)
    assert right / 40_000 > 0.65


def test_an_old_release_that_no_entry_lists_counts_whole(tmp_path):
    y = LABELS["LogisticRegression"]
    model = sp.glm.LogisticRegression(l2=0.05).fit(X, y)
    people = pd.DataFrame({"who": np.repeat(np.arange(N // 2), 2), "x": X[:, 0]})
    noise = sp.Gaussian(0.3)
    ledger = sp.LedgerFile(tmp_path / "ledger.json")
    both = sp.forget(model, X, y, [6, 7])
    both.record(ledger, people, noise, noise, person="who")
    assert ledger.spent(people, "who").mu[6:9] == pytest.approx([both.pair(noise, noise)] * 2 + [0])
    both.record(ledger, people, None, noise, person="who")  # what left without noise
    assert np.isinf(ledger.spent(people, "who").mu[7])
    one = sp.forget(model, X, y, [6])
    for given, more, words in (
        (people[:9], {}, "The table has 9 rows, but the model was fitted on 80"),
        (people, {"person": "name"}, "There is no column 'name'"),
        (people, {"person": "who"}, "not exactly the records of one person"),
        (people, {"entry": 7}, "has no entry 7"),
        (3, {}, "table must be a data frame"),
    ):
        with pytest.raises(InputError, match=words):
            one.record(ledger, given, noise, noise, **more)
    with pytest.raises(InputError, match="covers 2 records together"):
        both.record(ledger, people, noise, noise)

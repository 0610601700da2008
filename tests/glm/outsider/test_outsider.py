"""The outsider's numbers against dense formulas, record by record, and against simulated tables."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import seepage as sp
from seepage.glm.outsider import membership as views
from seepage.glm.outsider.others import OtherPeople
from seepage.glm.outsider.resampled import ResampledFits
from seepage.glm.outsider.worlds import Worlds

OUTSIDER = sp.Attacker(knows=0.0)


def drawn(family, n=160, seed=0, offset=0.0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3)) * [1.0, 2.0, 0.5]
    X[:2] = [[4.0, 8.0, 2.0], [5.0, 10.0, -3.0]]  # records of leverage
    margin = X @ [0.8, -0.3, 0.5]
    X = X + offset
    if family == "gaussian":
        return X, margin + rng.standard_normal(n)
    if family == "bernoulli":
        return X, (margin + rng.logistic(size=n) > 0).astype(int)
    if family == "poisson":
        return X, rng.poisson(np.exp(0.3 * margin)).astype(float)
    return X, np.argmax(margin[:, None] * [1.0, 0.0, -1.0] + rng.gumbel(size=(n, 3)), axis=1)


MODELS = {
    "gaussian": sp.glm.LinearRegression,
    "bernoulli": sp.glm.LogisticRegression,
    "poisson": sp.glm.PoissonRegression,
    "softmax": sp.glm.SoftmaxRegression,
}


class Dense:
    """The worlds of every person from whole matrices, in the coefficients themselves.

    Softmax without its gauge: the last class's parameters are differences from none, and the
    release is the K − 1 differences of the others.
    """

    def __init__(self, family, model, X, y, ridge, weight, people, noise):
        n, d = X.shape
        intercept = bool(model.fit_intercept)
        x = np.hstack([X, np.ones((n, 1))]) if intercept else X
        K = 3 if family == "softmax" else 1
        theta = np.asarray(model.coef_, float).reshape(K, d).T
        if intercept:
            theta = np.vstack([theta, np.asarray(model.intercept_, float).reshape(1, K)])
        M = x @ theta
        if family == "gaussian":
            r, a = M - y[:, None], np.ones((n, 1, 1))
        elif family == "bernoulli":
            p = 1 / (1 + np.exp(-M))
            r, a = p - y[:, None], (p * (1 - p))[:, :, None]
        elif family == "poisson":
            r, a = np.exp(M) - y[:, None], np.exp(M)[:, :, None]
        else:
            p = np.exp(M - M.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            r = p - np.eye(3)[y]
            a = p[:, :, None] * np.eye(3) - p[:, :, None] * p[:, None, :]
        size = x.shape[1] * K
        lift = np.einsum("np,kl->nkpl", x, np.eye(K)).reshape(n, K, size)
        penalty = np.diag(np.repeat(np.r_[np.full(d, ridge), [0.0] * intercept], K))
        parts = weight[:, None, None] * np.einsum("nkp,nkl,nlq->npq", lift, a, lift)
        gradients = weight[:, None] * np.einsum("nkp,nk->np", lift, r)
        self.basis = np.eye(size)
        if K > 1:  # nothing moves along what all classes have in common
            part = np.linalg.qr(np.column_stack([np.ones(K), np.eye(K)[:, :-1]]))[0][:, 1:]
            self.basis = np.kron(np.eye(x.shape[1]), part)
        B = self.basis
        self.lift = lift @ B
        self.H = B.T @ (parts.sum(axis=0) + penalty) @ B
        self.A = [B.T @ parts[rows].sum(axis=0) @ B for rows in people]
        self.g = []
        for A, rows in zip(self.A, people, strict=True):  # at the minimiser without them
            g = B.T @ gradients[rows].sum(axis=0)
            self.g.append(self.H @ np.linalg.solve(self.H - A, g))
        self.g, self.people = np.array(self.g), people
        self.noise = (noise or 0.0) ** 2 * np.eye(len(self.H))

    def worlds(self, i, u):
        """Return the move and both covariances of a person's worlds."""
        rest = np.delete(self.g, i, axis=0)
        rest = rest - rest.mean(axis=0)
        G = u * rest.T @ rest
        inside = np.linalg.inv(self.H)
        outside = np.linalg.inv(self.H - self.A[i])
        move = inside @ (self.g[i] - self.g.mean(axis=0))
        return move, inside @ G @ inside + self.noise, outside @ G @ outside + self.noise


def simulated(move, inside, outside, draws=200_000):
    """Return how often a likelihood ratio test tells two normal distributions apart."""
    rng = np.random.default_rng(0)
    own, other = (stats.multivariate_normal(m, C) for m, C in ((move, inside), (0 * move, outside)))
    x, z = own.rvs(draws, random_state=rng), other.rvs(draws, random_state=rng)
    return (np.mean(own.logpdf(x) > other.logpdf(x)) + np.mean(own.logpdf(z) < other.logpdf(z))) / 2


CASES = [
    (family, intercept, weighted, persons, noise, offset)
    for family in MODELS
    for intercept, weighted, persons, noise, offset in [
        (False, False, False, None, 0.0),
        (True, False, False, None, 0.0),
        (True, True, False, 0.05, 0.0),
        (True, True, True, None, 0.0),
    ]
] + [("bernoulli", True, False, True, 0.1, 50.0), ("gaussian", True, True, False, None, 1e4)]


@pytest.mark.parametrize(("family", "intercept", "weighted", "persons", "noise", "offset"), CASES)
def test_every_record_against_dense_matrices(family, intercept, weighted, persons, noise, offset):
    X, y = drawn(family, offset=offset)
    n = len(X)
    rng = np.random.default_rng(1)
    weight = rng.uniform(0.5, 2.0, n) if weighted else None
    labels = np.concatenate([np.arange(120), rng.integers(0, 120, n - 120)]) if persons else None
    model = MODELS[family](l2=0.02, fit_intercept=intercept).fit(X, y, sample_weight=weight)
    given = None if noise is None else sp.Gaussian(noise)
    attacker = sp.Attacker(knows=0.3)
    leak = sp.leakage(model, X, y, sample_weight=weight, noise=given, attacker=attacker)
    measured = leak.membership(groups=labels, exact=0)
    people = list(np.arange(n)[:, None])
    if persons:
        people = [np.flatnonzero(labels == name) for name in np.unique(labels)]
    whole = np.ones(n) if weight is None else weight
    if offset and noise is None:  # to an attacker without noise the columns' origin is nothing
        model.intercept_ = model.intercept_ + offset * np.sum(model.coef_)
        X = X - offset
    dense = Dense(family, model, X, y, 0.02 * n, whole, people, noise)
    uneven = 0
    for i in range(len(people)):
        move, inside, outside = dense.worlds(i, 0.7)
        deviations = np.sqrt(np.diag(inside))
        share = np.linalg.eigvals(np.linalg.solve(dense.H, dense.A[i])).real.max()
        if share < 0.0999:
            unit = move / deviations
            correlations = inside / np.outer(deviations, deviations)
            mu = np.sqrt(unit @ np.linalg.solve(correlations, unit))
            assert np.asarray(measured)[i] == pytest.approx(mu, rel=1e-5)
        elif share > 0.1001 and uneven < 3:
            right = simulated(move, inside, outside)
            assert np.asarray(measured.accuracy())[i] == pytest.approx(right, abs=5e-3)
            uneven += 1
    assert uneven


@pytest.mark.parametrize("noise", [None, 0.1])
def test_predictions_against_dense_matrices(noise):
    X, y = drawn("bernoulli", offset=3.0)
    model = sp.glm.LogisticRegression(l2=0.02, fit_intercept=True).fit(X, y)
    given = None if noise is None else sp.Gaussian(noise)
    people = list(np.arange(len(X))[:, None])
    dense = Dense("bernoulli", model, X, y, 0.02 * len(X), np.ones(len(X)), people, None)
    queries = np.vstack([X[5:7] + 1.0, X[5:6] + 1.0])  # one of them twice
    for asked in (queries, None):
        leak = sp.leakage(
            model, X, y, noise=given, attacker=OUTSIDER, release=sp.Predictions(asked)
        )
        measured = leak.membership(exact=0)
        for i in range(len(X)):
            x = X[i : i + 1] if asked is None else queries[: 2 if noise is None else 3]
            A = np.hstack([x, np.ones((len(x), 1))])
            move, inside, outside = dense.worlds(i, 1.0)
            blur = (noise or 0.0) ** 2 * np.eye(len(A))  # on every answer
            move, inside, outside = A @ move, A @ inside @ A.T + blur, A @ outside @ A.T + blur
            share = np.linalg.eigvals(np.linalg.solve(dense.H, dense.A[i])).real.max()
            if share < 0.0999:
                mu = np.sqrt(move @ np.linalg.solve(inside, move))
                assert np.asarray(measured)[i] == pytest.approx(mu, rel=1e-6)
            elif len(A) == 1:
                expected = abs(move[0]) / np.sqrt(inside[0, 0])
                assert measured.worlds.distance[i] == pytest.approx(expected, rel=1e-6)
                spread = outside[0, 0] / inside[0, 0] - 1
                assert measured.worlds.spread[i].max() == pytest.approx(spread, rel=1e-6)


def test_the_closed_form_of_the_distance():
    """μ² = (h/u)/(1 − nh/(n − 1)), with h the leverage of the gradient."""
    X, y = drawn("gaussian")
    X = X[2:]  # without the records of leverage
    y = y[2:]
    n = len(X)
    model = sp.glm.LinearRegression(l2=0.01).fit(X, y)
    H = X.T @ X + 0.01 * n * np.eye(3)
    leverage = np.einsum("ij,jk,ik->i", X, np.linalg.inv(H), X)
    g = X * ((X @ model.coef_.reshape(-1) - y) / (1 - leverage))[:, None]
    c = g - g.mean(axis=0)
    h = np.einsum("ij,jk,ik->i", c, np.linalg.inv(c.T @ c), c)
    mu = np.asarray(sp.leakage(model, X, y, attacker=sp.Attacker(knows=0.75)).membership(exact=0))
    expected = np.sqrt(h / 0.25 / (1 - n * h / (n - 1)))
    low = leverage < 0.1
    np.testing.assert_allclose(mu[low], expected[low], rtol=1e-8)


def test_a_record_without_residual_is_told_by_the_spread_it_narrows():
    """Of three records that carry a level one has no residual: one covariance sees nothing."""
    n = 400
    rng = np.random.default_rng(0)
    X = np.zeros((n, 2))
    X[:, 0] = rng.standard_normal(n)
    X[:3, 1] = 1.0
    y = X[:, 0] + rng.standard_normal(n)
    y[:3] = [0.0, 2.0, -2.0] + X[:3, 0]
    model = sp.glm.LinearRegression().fit(X, y)
    measured = sp.leakage(model, X, y, attacker=OUTSIDER).membership(exact=0)
    people = list(np.arange(n)[:, None])
    dense = Dense("gaussian", model, X, y, 0.0, np.ones(n), people, None)
    right = simulated(*dense.worlds(0, 1.0))
    one = stats.norm.cdf(measured.worlds.distance[0] / 2)
    assert np.asarray(measured.accuracy())[0] == pytest.approx(right, abs=4e-3)
    assert one < 0.52
    assert right > 0.58


@pytest.mark.parametrize("l2", [0.0, 0.01])
def test_a_column_that_one_record_carries_gives_it_away(l2):
    X, y = drawn("gaussian")
    X = np.hstack([X, np.zeros((len(X), 1))])
    X[7, 3] = 1.0
    model = sp.glm.LinearRegression(l2=l2, fit_intercept=True).fit(X, y)
    mu = np.asarray(sp.leakage(model, X, y, attacker=OUTSIDER).membership(exact=0))
    assert np.isinf(mu[7])
    assert np.isfinite(np.delete(mu, 7)).all()
    # All others are hidden as they would be without it.
    kept = np.arange(len(X)) != 7
    fewer = sp.glm.LinearRegression(l2=l2 * len(X) / (len(X) - 1), fit_intercept=True)
    if l2 == 0:
        fewer.fit(X[kept, :3], y[kept])
        alone = sp.leakage(fewer, X[kept, :3], y[kept], attacker=OUTSIDER).membership(exact=0)
        np.testing.assert_allclose(np.delete(mu, 7), np.asarray(alone), rtol=0.05)


def test_people_with_one_record_each_are_records():
    X, y = drawn("softmax")
    model = sp.glm.SoftmaxRegression(l2=0.02, fit_intercept=True).fit(X, y)
    plain = sp.leakage(model, X, y, attacker=OUTSIDER).membership(exact=0)
    people = sp.leakage(model, X, y, attacker=OUTSIDER, person=np.arange(len(X)))
    np.testing.assert_allclose(np.asarray(people.membership(exact=0)), np.asarray(plain), rtol=1e-9)
    assert people.membership(exact=0).mu.view == "people"
    some = people.membership(rows=[3, 5], exact=0)
    np.testing.assert_allclose(np.asarray(some), np.asarray(plain)[[3, 5]], rtol=1e-9)


def test_twice_the_records_of_everybody_hide_nobody_better():
    """With all records doubled and people named, the numbers stay; as rows they would not."""
    X, y = drawn("bernoulli")
    model = sp.glm.LogisticRegression(l2=0.02).fit(X, y)
    once = np.asarray(sp.leakage(model, X, y, attacker=OUTSIDER).membership(exact=0))
    twice, labels = np.vstack([X, X]), np.concatenate([y, y])
    again = sp.glm.LogisticRegression(l2=0.02).fit(twice, labels)
    people = np.tile(np.arange(len(X)), 2)
    leak = sp.leakage(again, twice, labels, attacker=OUTSIDER, person=people)
    np.testing.assert_allclose(np.asarray(leak.membership(exact=0)), once, rtol=1e-6)
    rows = sp.leakage(again, twice, labels, attacker=OUTSIDER).membership(exact=0)
    assert np.median(np.asarray(rows)) < 0.8 * np.median(once)


def test_what_she_knows_scales_the_distance():
    X, y = drawn("poisson")
    model = sp.glm.PoissonRegression(l2=0.05).fit(X, y)

    def mu(**known):
        leak = sp.leakage(model, X, y, attacker=sp.Attacker(**known))
        return leak.membership(exact=0).worlds.distance

    none = mu(knows=0.0)
    np.testing.assert_allclose(mu(knows=0.75), 2 * none, rtol=1e-9)
    np.testing.assert_allclose(mu(knows=0.0, fraction=0.75), 2 * none, rtol=1e-9)
    np.testing.assert_allclose(mu(knows=0.0, reference=len(X)), none / np.sqrt(2), rtol=1e-9)
    assert sp.Attacker(knows=0.5, reference=50, fraction=0.1).unknown(100) == pytest.approx(0.9)


def test_how_many_others_she_must_know():
    X, y = drawn("gaussian", n=500)
    y[5] += 9.0
    model = sp.glm.LinearRegression(l2=0.01).fit(X, y)
    risk = sp.leakage(model, X, y, attacker=OUTSIDER).membership(exact=0)
    needed = risk.must_know(0.75)
    assert needed.max() == 499
    k = int(np.argmin(np.where(needed > 0, needed, 500)))
    assert 0 < needed[k] < 499
    if risk.worlds.spread[k].any():
        pytest.skip("the record has leverage")
    informed = sp.leakage(model, X, y, attacker=sp.Attacker(knows=needed[k] / 499))
    assert np.asarray(informed.membership(exact=0).accuracy())[k] == pytest.approx(0.75, abs=5e-3)


def test_noise_alone_is_left_to_who_knows_nearly_everybody():
    X, y = drawn("bernoulli")
    X, y = X[2:], y[2:]
    model = sp.glm.LogisticRegression(l2=0.05).fit(X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(0.2))
    others = OtherPeople(leak.release.finite_changes().model, None, noisy=True)
    mu = Worlds(others, 1e-9).told_apart()[1].distance
    informed = np.asarray(leak.membership())
    # The moves are centred for one and not for the other: the penalty's pull on everybody.
    g = np.linalg.norm(mu - informed) / np.linalg.norm(informed)
    assert g < 0.1


def test_records_take_the_others_as_noise():
    X, y = drawn("bernoulli")
    model = sp.glm.LogisticRegression(l2=0.02, fit_intercept=True).fit(X, y)
    leak = sp.leakage(model, X, y, attacker=OUTSIDER)
    people = list(np.arange(len(X))[:, None])
    dense = Dense("bernoulli", model, X, y, 0.02 * len(X), np.ones(len(X)), people, None)
    x = np.hstack([X, np.ones((len(X), 1))])
    w = np.asarray(model.coef_).reshape(-1)
    p = 1 / (1 + np.exp(-X @ w - float(np.asarray(model.intercept_).reshape(()))))
    eta = np.asarray(leak.records())
    for i in range(2, 40):
        _, inside, _ = dense.worlds(i, 1.0)
        a, r = p[i] * (1 - p[i]), p[i] - y[i]
        about = a * np.outer(x[i], w) + r * np.eye(4)[:, :3]
        J = -np.linalg.solve(dense.H, np.column_stack([about, -x[i]]))
        true = np.sqrt(np.linalg.eigvalsh(J.T @ np.linalg.solve(inside, J))[-1])
        assert true * (1 - 1e-6) <= eta[i] <= 1.1 * true
    assert leak.records().kind == "estimate"
    assert leak.cells().shape == (len(X), 3)
    assert leak.labels().shape == (len(X),)


def test_records_of_softmax_have_no_gauge():
    X, y = drawn("softmax")
    model = sp.glm.SoftmaxRegression(l2=0.02, fit_intercept=True).fit(X, y)
    assert np.isfinite(np.asarray(sp.leakage(model, X, y, attacker=OUTSIDER).records())).all()


def test_a_pipeline_is_its_last_step_on_what_comes_before():
    X, y = drawn("gaussian")
    pipeline = make_pipeline(StandardScaler(), Ridge(2.0)).fit(X, y)
    inner = StandardScaler().fit_transform(X)
    for asked in (None, X[:2]):
        release = None if asked is None else sp.Predictions(asked)
        whole = sp.leakage(pipeline, X, y, attacker=OUTSIDER, release=release)
        release = None if asked is None else sp.Predictions(inner[:2])
        last = sp.leakage(pipeline[-1], inner, y, attacker=OUTSIDER, release=release)
        np.testing.assert_allclose(
            np.asarray(whole.membership(exact=0)), np.asarray(last.membership(exact=0)), rtol=1e-6
        )


def test_tables_drawn_from_a_population():
    """One person is in the table or somebody else instead; all others are drawn anew each time."""
    n, tables = 300, 6000
    rng = np.random.default_rng(5)
    person, label = np.array([1.5, -1.0, 1.0]), 4.5

    def drawn_tables(count):
        X = rng.standard_normal((count, n, 3))
        X[:, :, 2] = 1.0
        return X, X @ [1.0, -0.5, 0.2] + rng.standard_normal((count, n))

    X, y = drawn_tables(2 * tables)
    X[:tables, 0], y[:tables, 0] = person, label
    H = np.swapaxes(X, 1, 2) @ X
    theta = np.linalg.solve(H, np.swapaxes(X, 1, 2) @ y[:, :, None])[:, :, 0]
    for own in (False, True):
        seen = (theta @ person)[:, None] if own else theta
        parts = seen[:tables], seen[tables:]
        taught = [
            stats.multivariate_normal(part[::2].mean(axis=0), np.cov(part[::2].T)) for part in parts
        ]
        found = taught[0].logpdf(parts[0][1::2]) > taught[1].logpdf(parts[0][1::2])
        spared = taught[0].logpdf(parts[1][1::2]) < taught[1].logpdf(parts[1][1::2])
        measured = (np.mean(found) + np.mean(spared)) / 2
        predicted = []
        for table in range(20):  # each of the tables with the person in it predicts the same
            model = sp.glm.LinearRegression().fit(X[table], y[table])
            release = sp.Predictions() if own else None
            leak = sp.leakage(model, X[table], y[table], attacker=OUTSIDER, release=release)
            risk = leak.membership(rows=[0], exact=0)
            predicted.append(float(np.asarray(risk.accuracy())[0]))
        assert measured > 0.55
        assert np.mean(predicted) == pytest.approx(measured, abs=0.02)


def test_class_weights_are_held_and_said_to_be():
    X, y = drawn("bernoulli")
    balanced = LogisticRegression(C=0.5, class_weight="balanced", tol=1e-10).fit(X, y)
    weight = len(y) / (2 * np.bincount(y)[y])
    plain = LogisticRegression(C=0.5, tol=1e-10).fit(X, y, sample_weight=weight)
    held = sp.leakage(balanced, X, y, attacker=OUTSIDER).membership(exact=0)
    given = sp.leakage(plain, X, y, sample_weight=weight, attacker=OUTSIDER)
    np.testing.assert_allclose(
        np.asarray(held), np.asarray(given.membership(exact=0)), rtol=1e-4, atol=1e-6
    )
    assert held.mu.held == ("class weights",)
    assert "class weights" in " ".join(held.mu.assumptions)


# Refits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["gaussian", "bernoulli", "softmax"])
def test_refits_agree_where_the_approximation_is_good(family):
    X, y = drawn(family, n=400)
    y[5] = 1 - y[5] if family == "bernoulli" else y[5]
    model = MODELS[family](l2=0.02, fit_intercept=True).fit(X, y)
    risk = sp.leakage(model, X, y, attacker=OUTSIDER).membership(exact=4)
    assert len(risk.checked.people) == 4
    off = np.abs(risk.checked.right - risk.checked.predicted)
    assert (off < 0.04 + 3 * risk.checked.error).all()
    assert "Refits on other people checked 4" in " ".join(risk.mu.assumptions)


def test_resampled_fits_are_weighted_fits():
    """A fit with a person and random others is scikit-learn's with these weights."""
    X, y = drawn("bernoulli")
    n = len(X)
    model = sp.glm.LogisticRegression(l2=0.02, fit_intercept=True).fit(X, y)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(1.0))
    others = OtherPeople(leak.release.finite_changes().model, None, False)
    fits = ResampledFits(Worlds(others, 0.5), 0)
    here = np.append(np.asarray(model.coef_), np.asarray(model.intercept_))
    for inside in (True, False):
        moves = fits.moves(0, inside)
        for draw in range(3):
            weight = fits.weights[draw].copy()
            weight[0] = 0.0
            weight *= (n - inside) / weight.sum()
            weight[0] = float(inside)
            oracle = LogisticRegression(C=1 / (0.02 * n), tol=1e-12, max_iter=10_000)
            oracle.fit(X, y, sample_weight=weight)
            there = np.append(oracle.coef_, oracle.intercept_)
            np.testing.assert_allclose(here + moves[draw], there, atol=2e-3)
    assert fits.weights.var() == pytest.approx(0.5, rel=0.05)


def test_refits_decide_where_a_record_is_most_of_what_varies():
    X, y = drawn("gaussian")
    y[0] += 60.0
    model = sp.glm.LinearRegression(l2=0.02).fit(X, y)
    risk = sp.leakage(model, X, y, attacker=OUTSIDER).membership()
    k = int(np.flatnonzero(risk.checked.people == 0)[0])
    assert float(np.asarray(risk.accuracy())[0]) == pytest.approx(risk.checked.right[k])


def test_large_tables_are_refitted_on_request_only(monkeypatch):
    X, y = drawn("gaussian")
    model = sp.glm.LinearRegression(l2=0.02).fit(X, y)
    leak = sp.leakage(model, X, y, attacker=OUTSIDER)
    monkeypatch.setattr(views, "DRAWS", 10**9)
    risk = leak.membership()
    assert not len(risk.checked.people)
    assert "not checked by refits" in " ".join(risk.mu.assumptions)


# Words ----------------------------------------------------------------------------------------


def test_who_knows_the_rest_stands_beside_it():
    X, y = drawn("gaussian")
    model = sp.glm.LinearRegression(l2=0.02).fit(X, y)
    leak = sp.leakage(model, X, y, attacker=OUTSIDER)
    risk = leak.membership(exact=0)
    assert risk.mu.kind == "estimate"
    assert np.isinf(np.asarray(risk.informed)).all()
    assert "attacker who knows all other records: 100.0" in repr(risk)
    assert "practically everybody else" in repr(risk)
    top = risk.top(3)
    assert isinstance(top.table("pandas"), pd.DataFrame)
    assert top.mu.labels()[0] == np.argmax(np.asarray(risk))
    np.testing.assert_allclose(np.asarray(top), np.sort(np.asarray(risk))[::-1][:3])
    np.testing.assert_allclose(np.asarray(risk.advantage()), 2 * np.asarray(risk.accuracy()) - 1)
    assert np.all(np.asarray(risk.tpr(0.01)) >= 0.01)
    assert np.all(np.asarray(risk.auc()) >= 0.4999)
    noisy = sp.leakage(model, X, y, noise=sp.Gaussian(0.1), attacker=OUTSIDER)
    informed = sp.leakage(model, X, y, noise=sp.Gaussian(0.1)).membership()
    np.testing.assert_allclose(np.asarray(noisy.membership(exact=0).informed), np.asarray(informed))
    assert "an outsider" in repr(leak)
    assert "not a guarantee" in " ".join(risk.mu.assumptions)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"knows": 1.2}, "knows must be a share"),
        ({"knows": "all"}, "finite number"),
        ({"knows": True}, "knows must be a share"),
        ({"reference": 0}, "reference must be at least 1"),
        ({"fraction": 1.0}, "whole population"),
        ({"fraction": -0.1}, "fraction must be a share"),
    ],
)
def test_an_attacker_is_described_with_care(told, sentence):
    with pytest.raises(sp.InputError, match=sentence):
        sp.Attacker(**told)


def test_what_cannot_be_answered_is_refused():
    X, y = drawn("gaussian")
    model = sp.glm.LinearRegression(l2=0.02).fit(X, y)
    with pytest.raises(sp.InputError, match="with certainty"):
        sp.leakage(model, X, y)
    with pytest.raises(sp.InputError, match="with certainty"):
        sp.leakage(model, X, y, attacker=sp.Attacker())
    with pytest.raises(sp.InputError, match="attacker must be"):
        sp.leakage(model, X, y, attacker=0.5)
    with pytest.raises(sp.InputError, match="release must be"):
        sp.leakage(model, X, y, attacker=OUTSIDER, release=X)
    with pytest.raises(sp.InputError, match="does not know all other records"):
        sp.leakage(model, X, y, noise=sp.Gaussian(1.0), release=sp.Predictions())
    with pytest.raises(sp.InputError, match="Gaussian"):
        sp.leakage(model, X, y, noise=sp.Laplace(1.0), release=sp.Predictions(X))
    with pytest.raises(sp.InputError, match="Gaussian"):
        sp.leakage(model, X, y, noise=sp.Laplace(1.0), attacker=OUTSIDER)
    leak = sp.leakage(model, X, y, attacker=OUTSIDER)
    for view in ("columns", "subset", "dataset", "jacobian"):
        with pytest.raises(sp.InputError, match=r"leak\.informed has"):
            getattr(leak, view)
    with pytest.raises(sp.InputError, match="detects with certainty"):
        _ = leak.informed
    assert not hasattr(leak, "nonsense")
    assert not hasattr(leak, "_repr_html_")
    with pytest.raises(sp.InputError, match="rows= and groups= cannot be combined"):
        leak.membership(rows=[0], groups=np.zeros(len(X)))
    with pytest.raises(sp.InputError, match="a probability between"):
        leak.membership(exact=0).must_know(0.4)
    with pytest.raises(sp.InputError, match="columns"):
        sp.leakage(model, X, y, attacker=OUTSIDER, release=sp.Predictions(X[:3, :2])).membership()
    same = sp.leakage(model, X, y, noise=sp.Gaussian(1.0), attacker=sp.Attacker())
    assert isinstance(same, sp.Leakage)


def test_who_knows_all_but_a_few_knows_practically_everybody():
    X, y = drawn("gaussian")
    model = sp.glm.LinearRegression(l2=0.02).fit(X, y)
    leak = sp.leakage(model, X, y, attacker=sp.Attacker(knows=0.9))
    with pytest.raises(sp.InputError, match="all but 15 of 159 other people"):
        leak.membership()


def test_too_few_people_get_predictions_only():
    X, y = drawn("gaussian", n=39)
    X = np.hstack([X, X**2])
    model = sp.glm.LinearRegression(l2=0.02).fit(X, y)
    leak = sp.leakage(model, X, y, attacker=OUTSIDER)
    with pytest.raises(sp.InputError, match=r"release=sp\.Predictions\(\)"):
        leak.membership()
    with pytest.raises(sp.InputError, match="too few"):
        leak.records()
    own = sp.leakage(model, X, y, attacker=OUTSIDER, release=sp.Predictions())
    assert np.isfinite(np.asarray(own.membership(exact=0))).all()
    with pytest.raises(sp.InputError, match="too few"):
        sp.leakage(model, X, y, attacker=OUTSIDER, release=sp.Predictions(X)).membership()


def test_few_others_hide_nobody_in_a_way_that_can_be_estimated():
    X, y = drawn("gaussian", n=29)
    model = sp.glm.LinearRegression(l2=0.02).fit(X, y)
    own = sp.leakage(model, X, y, attacker=OUTSIDER, release=sp.Predictions())
    with pytest.raises(sp.InputError, match="other people is only 28"):
        own.membership(exact=0)


def test_who_is_recognised_by_an_outsider_need_not_be_known_more_of():
    X, y = drawn("gaussian", n=40)
    y = y.copy()
    y[7] += 200.0  # nobody is like them
    model = sp.glm.LinearRegression(l2=0.02).fit(X[:, :1], y)
    release = sp.Predictions()
    risk = sp.leakage(model, X[:, :1], y, attacker=OUTSIDER, release=release).membership(exact=0)
    right = np.asarray(risk.accuracy())
    needed = risk.must_know(0.55)
    assert right[7] > 0.55
    assert needed[7] == 0
    assert np.all(needed[right < 0.54] > 0)


def test_counts_of_refits_are_checked():
    X, y = drawn("gaussian", n=80)
    leak = sp.leakage(sp.glm.LinearRegression(l2=0.02).fit(X, y), X, y, attacker=OUTSIDER)
    for exact in (-1, 2.5, "all"):
        with pytest.raises(sp.InputError, match="exact must be"):
            leak.membership(exact=exact)


def test_a_column_that_one_record_carries_is_named_where_eta_has_no_noise():
    X, y = drawn("gaussian", n=120)
    X[:, 0] = np.arange(len(X)) == 5
    model = sp.glm.LinearRegression(l2=0.0, fit_intercept=True).fit(X, y)
    with pytest.raises(sp.InputError, match="Only one record has nonzero values"):
        sp.leakage(model, X, y, attacker=OUTSIDER).records()

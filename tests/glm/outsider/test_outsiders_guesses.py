"""What an outsider guesses of a record: refits by hand on others, drawn anew or as they are."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import seepage as sp
from seepage.errors import InputError
from seepage.risks.guessing import windows
from seepage.risks.several_normals import best_among
from seepage.risks.two_normals import TwoNormals

OUTSIDER = sp.Attacker(knows=0.0)
L2 = 0.01


def drawn(n=140, seed=0):
    """A number, a flag, and a flag that few records have; one of leverage, one far off."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.standard_normal(n), rng.random(n) < 0.4, np.arange(n) < 4])
    X[6, 0] = 6.0  # a record of leverage
    y = X @ [1.0, 1.5, -2.0] + rng.standard_normal(n)
    y[20] += 8.0
    return X.astype(float), y


def least_squares(X, y, ridge, weight=None):
    """Return the fits with an intercept for each of many weights, (draws, d + 1)."""
    x = np.hstack([X, np.ones((len(X), 1))])
    weight = np.ones((1, len(X))) if weight is None else weight
    H = np.einsum("bn,np,nq->bpq", weight, x, x, optimize=True)
    H = H + ridge * np.diag([*np.ones(X.shape[1]), 0.0])
    return np.linalg.solve(H, ((weight * y) @ x)[:, :, None])[:, :, 0]


def logistic(X, y, ridge, weight):
    """Return the same of logistic regression, by Newton's method."""
    x = np.hstack([X, np.ones((len(X), 1))])
    penalty = ridge * np.array([*np.ones(X.shape[1]), 0.0])
    theta = np.zeros((len(weight), x.shape[1]))
    for _ in range(8):
        p = 1 / (1 + np.exp(-theta @ x.T))
        gradient = (weight * (p - y)) @ x + penalty * theta
        H = np.einsum("bn,np,nq->bpq", weight * p * (1 - p), x, x, optimize=True)
        theta = theta - np.linalg.solve(H + np.diag(penalty), gradient[:, :, None])[:, :, 0]
    return theta


def simulated(fit, X, y, row, candidates, draws=6000, unknown=1.0, noise=0.0, seed=1):
    """Return how often a test learnt on refits with other people is right, at even odds.

    The others are weighted anew (gamma weights of variance ``unknown``) for every draw, half of the
    draws teach two normal distributions, the others judge.
    """
    rng = np.random.default_rng(seed)
    n = len(X)
    hits = []
    normals = []
    for table, labels in candidates:
        weight = rng.gamma(1 / unknown, unknown, size=(draws, n))
        weight[:, row] = 0.0
        weight *= (n - 1) / weight.sum(axis=1, keepdims=True)
        weight[:, row] = 1.0
        seen = fit(table, labels, n * L2, weight)
        seen = seen + noise * rng.standard_normal(seen.shape)
        normals.append((seen[1::2], seen[::2].mean(axis=0), np.cov(seen[::2].T)))
    for own, (seen, _, _) in enumerate(normals):
        likely = [stats.multivariate_normal(m, S).logpdf(seen) for _, m, S in normals]
        hits.append(np.mean(np.argmax(likely, axis=0) == own))
    return np.mean(hits)


def with_value(X, y, row, column, value):
    other = X.copy()
    other[row, column] = value
    return other, y


CASES = {
    # Whose values are guessed, of which column, what is unknown to her, the noise, and how far the
    # normal law may be off: of a flag that four others have, a refit is not that of many
    "an ordinary record": (50, 1, 1.0, 0.0, 0.025),
    "half of the others known": (50, 1, 0.5, 0.0, 0.025),
    "with noise": (50, 1, 1.0, 0.2, 0.025),
    "a rare flag": (3, 2, 1.0, 0.0, 0.05),
    "a rare flag that the record has not": (60, 2, 1.0, 0.0, 0.05),
    "a record far off": (20, 1, 1.0, 0.0, 0.025),
    "a record of leverage": (6, 1, 1.0, 0.0, 0.025),
}


@pytest.mark.parametrize("case", CASES, ids=list(CASES))
def test_a_category_is_guessed_as_often_as_by_refits_on_other_people(case):
    row, column, unknown, noise, off = CASES[case]
    X, y = drawn()
    model = sp.glm.LinearRegression(l2=L2, fit_intercept=True).fit(X, y)
    leak = sp.leakage(
        model,
        X,
        y,
        noise=sp.Gaussian(noise) if noise else None,
        attacker=sp.Attacker(knows=1 - unknown),
    )
    found = leak.guess(column, "equal", rows=[row])
    candidates = [with_value(X, y, row, column, v) for v in (0.0, 1.0)]
    truth = simulated(least_squares, X, y, row, candidates, unknown=unknown, noise=noise)
    assert float(found.right[0]) == pytest.approx(truth, abs=off)
    assert found.right.kind == "estimate"
    assert found.baseline[0] == 0.5
    if noise:
        assert 0.5 < float(found.informed.right[0]) < 1
        assert float(found.right[0]) < float(found.informed.right[0]) + 0.01
    else:
        assert float(found.informed.right[0]) == 1.0


@pytest.mark.parametrize("row", [0, 6, 40])
def test_a_class_is_guessed_as_often_as_by_refits_on_other_people(row):
    X, signal = drawn(160)
    y = (signal > 0.5).astype(int)
    model = sp.glm.LogisticRegression(l2=L2, fit_intercept=True).fit(X, y)
    found = sp.leakage(model, X, y, attacker=OUTSIDER).guess(prior="equal", rows=[row])
    candidates = [(X, np.where(np.arange(160) == row, v, y)) for v in (0, 1)]
    truth = simulated(logistic, X, y, row, candidates, draws=4000)
    assert float(found.right[0]) == pytest.approx(truth, abs=0.03)


def dense(X, y, row, tables, unknown=1.0, noise=0.0):
    """Return where each table puts the release, and its covariance, from whole matrices."""
    n, d = X.shape
    x = np.hstack([X, np.ones((n, 1))])
    ridge = n * L2 * np.diag([*np.ones(d), 0.0])
    H = x.T @ x + ridge
    theta = np.linalg.solve(H, x.T @ y)
    lever = np.einsum("np,pq,nq->n", x, np.linalg.inv(H), x)
    g = x * ((x @ theta - y) / (1 - lever))[:, None]
    c = g - g.mean(axis=0)
    G = unknown * (c.T @ c - n / (n - 1) * np.outer(c[row], c[row]))
    means, spreads = [], []
    for table, labels in tables:
        z = np.hstack([table, np.ones((n, 1))])
        inverse = np.linalg.inv(z.T @ z + ridge)
        means.append(inverse @ z.T @ labels)
        spreads.append(inverse @ G @ inverse + noise**2 * np.eye(d + 1))
    return np.array(means), np.array(spreads)


def bayes(means, spreads, prior, covered, draws=60_000):
    """Return how often the best guess is right, by draws from all candidates."""
    rng, right = np.random.default_rng(5), 0.0
    for v, p in enumerate(prior):
        seen = rng.multivariate_normal(means[v], spreads[v], size=max(int(draws * p), 200))
        laws = [stats.multivariate_normal(m, S) for m, S in zip(means, spreads, strict=True)]
        odds = np.array([law.logpdf(seen) + np.log(q) for law, q in zip(laws, prior, strict=True)])
        odds = np.exp(odds - odds.max(axis=0))
        best = np.argmax(covered.astype(float) @ odds, axis=0)
        right += p * np.mean(covered[best, v])
    return right


@pytest.mark.parametrize("row", [2, 6, 20, 50])
@pytest.mark.parametrize(("unknown", "noise"), [(1.0, 0.0), (0.3, 0.1)])
def test_guesses_and_numbers_are_those_of_dense_matrices(row, unknown, noise):
    X, y = drawn()
    model = sp.glm.LinearRegression(l2=L2, fit_intercept=True).fit(X, y)
    attacker = sp.Attacker(knows=1 - unknown)
    leak = sp.leakage(model, X, y, attacker=attacker, noise=sp.Gaussian(noise) if noise else None)
    for column, prior in ((1, [0.5, 0.5]), (2, [0.9, 0.1])):
        found = leak.guess(column, prior, rows=[row])
        tables = [with_value(X, y, row, column, v) for v in (0.0, 1.0)]
        truth = bayes(*dense(X, y, row, tables, unknown, noise), prior, np.eye(2))
        assert float(found.right[0]) == pytest.approx(truth, abs=0.012)
    values = np.linspace(y.min(), y.max(), 9)
    prior = np.full(9, 1 / 9)
    found = leak.within(None, 1.0, prior, values=values, rows=[row])
    tables = [(X, np.where(np.arange(len(y)) == row, v, y)) for v in values]
    normals = dense(X, y, row, tables, unknown, noise)
    truth = bayes(*normals, prior, windows(values, 1.0))
    assert found.lower[0] - 0.015 <= truth <= float(found.right[0]) + 0.015
    assert float(found.right[0]) - found.lower[0] < 0.06


def test_more_classes_and_a_raw_column_are_guessed():
    rng = np.random.default_rng(3)
    X = rng.standard_normal((240, 2))
    y = np.argmax(X @ [[1.0, 0.0, -1.0], [0.0, 1.0, 0.0]] + rng.gumbel(size=(240, 3)), axis=1)
    model = sp.glm.SoftmaxRegression(l2=0.05, fit_intercept=True).fit(X, y)
    found = sp.leakage(model, X, y, attacker=OUTSIDER).guess()
    assert np.all(np.asarray(found) >= found.baseline)
    assert np.asarray(found.gain()).max() < 0.3
    assert np.all(np.asarray(found.informed) == 1)
    assert len(found.top(3)) == 3
    assert np.array_equal(found.top(3).informed.right.labels(), found.top(3).right.labels())
    assert "attacker who knows all other records: 100.0" in repr(found.top(3))
    # A flag before and after a scaler is the same flag.
    X, y = drawn()
    raw = pd.DataFrame(X, columns=["age", "smokes", "rare"])
    piped = make_pipeline(StandardScaler(), Ridge(1.4)).fit(raw, y)
    near = (X - X.mean(axis=0)) / X.std(axis=0)
    plain = Ridge(1.4).fit(near, y)
    one = sp.leakage(piped, raw, y, attacker=OUTSIDER).guess("smokes", "equal")
    other = sp.leakage(plain, near, y, attacker=OUTSIDER).guess(1, "equal")
    np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=1e-6)


def test_what_only_one_record_has_is_certain():
    X, y = drawn()
    X[:, 2] = np.arange(len(X)) == 9
    model = sp.glm.LinearRegression(l2=0.0, fit_intercept=True).fit(X, y)
    found = sp.leakage(model, X, y, attacker=OUTSIDER).guess(1, "equal")
    assert float(found.right[9]) == 1.0
    assert found.mu[9] == np.inf


def test_groups_are_those_of_dense_matrices():
    X, y = drawn(120)
    model = sp.glm.LinearRegression(l2=L2, fit_intercept=True).fit(X, y)
    of = np.where(np.isin(np.arange(120), [5, 30, 31, 77]), "few", "many")
    of[80:] = "third"
    found = sp.leakage(model, X, y, attacker=OUTSIDER).groups(of)
    n, d = X.shape
    x = np.hstack([X, np.ones((n, 1))])
    ridge = n * L2 * np.diag([*np.ones(d), 0.0])
    H = x.T @ x + ridge
    inverse = np.linalg.inv(H)
    theta = inverse @ x.T @ y
    lever = np.einsum("np,pq,nq->n", x, inverse, x)
    g = x * ((x @ theta - y) / (1 - lever))[:, None]
    for name, eta in zip(found.labels(), np.asarray(found), strict=True):
        if name == "many":  # nobody outside has the flag that some of them have
            assert eta == np.inf
            continue
        rows = np.flatnonzero(of == name)
        out = g[of != name] - g[of != name].mean(axis=0)
        S = inverse @ (out.T @ out) @ inverse
        J = []
        for row in rows:  # central differences of the fit by every number of the group
            for column in range(d + 1):
                ends = []
                for step in (1e-5, -1e-5):
                    table, labels = X.copy(), y.copy()
                    target = table if column < d else labels
                    target[(row, column) if column < d else row] += step
                    ends.append(least_squares(table, labels, n * L2)[0])
                J.append((ends[0] - ends[1]) / 2e-5)
        J = np.linalg.solve(np.linalg.cholesky(S), np.array(J).T)
        assert eta == pytest.approx(np.linalg.norm(J, 2), rel=1e-5)
    assert found.kind == "estimate"


def test_people_are_at_least_those_of_dense_matrices():
    X, y = drawn(160)
    person = np.arange(160) // 2
    model = sp.glm.LinearRegression(l2=L2, fit_intercept=True).fit(X, y)
    leak = sp.leakage(model, X, y, attacker=OUTSIDER, person=person)
    found = leak.people()
    n, d = X.shape
    x = np.hstack([X, np.ones((n, 1))])
    H = x.T @ x + n * L2 * np.diag([*np.ones(d), 0.0])
    inverse = np.linalg.inv(H)
    theta = inverse @ x.T @ y
    g = np.zeros((80, d + 1))
    for k in range(80):
        rows = x[person == k]
        pull = rows.T @ (rows @ theta - y[person == k])
        g[k] = H @ np.linalg.solve(H - rows.T @ rows, pull)
    c = g - g.mean(axis=0)
    for k in (0, 3, 40):
        S = inverse @ (c.T @ c - 80 / 79 * np.outer(c[k], c[k])) @ inverse
        J = []
        for row in np.flatnonzero(person == k):
            r = x[row] @ theta - y[row]
            J += list(-(np.outer(theta[:d], x[row]) + r * np.eye(d, d + 1)) @ inverse)
            J.append(inverse @ x[row])
        eta = np.linalg.norm(np.linalg.solve(np.linalg.cholesky(S), np.array(J).T), 2)
        assert eta <= float(found[k]) * (1 + 1e-9)
        assert float(found[k]) < 1.5 * eta
    for ask in (leak.records, lambda: leak.guess(1), lambda: leak.groups(person % 3)):
        with pytest.raises(InputError, match="Omit person="):
            ask()


def several(n=150, seed=8):
    """Return a table of people with one to three records, who share a flag and a class."""
    rng = np.random.default_rng(seed)
    person = np.repeat(np.arange(n), rng.integers(1, 4, n))
    order = rng.permutation(len(person))
    person = person[order]
    X = rng.standard_normal((len(person), 2))
    X[:, 1] = rng.integers(0, 2, n)[person]
    X[person == 5] *= [3.0, 1.0]  # somebody of leverage
    signal = X @ [1.0, -0.7] + rng.standard_normal(n)[person] + rng.standard_normal(len(X))
    return X, signal, person


def dense_people(X, y, person, who, tables, unknown, noise):
    """Return where each table puts the release, and its covariance, from whole matrices."""
    n, d = X.shape
    ridge, people = n * L2 * np.eye(d), np.unique(person)
    H = X.T @ X + ridge
    theta = np.linalg.solve(H, X.T @ y)
    g = []
    for one in people:
        x = X[person == one]
        g.append(H @ np.linalg.solve(H - x.T @ x, x.T @ (x @ theta - y[person == one])))
    c = np.array(g) - np.mean(g, axis=0)
    own, m = c[people == who][0], len(people)
    G = unknown * (c.T @ c - m / (m - 1) * np.outer(own, own))
    means, spreads = [], []
    for table, labels in tables:
        inverse = np.linalg.inv(table.T @ table + ridge)
        means.append(inverse @ table.T @ labels)
        spreads.append(inverse @ G @ inverse + noise**2 * np.eye(d))
    return np.array(means), np.array(spreads)


@pytest.mark.parametrize(("unknown", "noise"), [(1.0, 0.0), (0.3, 0.05)])
def test_all_records_of_a_person_change_together(unknown, noise):
    X, y, person = several()
    model = sp.glm.LinearRegression(l2=L2).fit(X, y)
    leak = sp.leakage(
        model,
        X,
        y,
        attacker=sp.Attacker(knows=1 - unknown),
        noise=sp.Gaussian(noise) if noise else None,
        person=person,
    )
    found = leak.guess(1, [0.4, 0.6])
    assert found.right.view == "people"
    np.testing.assert_array_equal(found.right.labels(), np.unique(person))
    np.testing.assert_array_equal(found.right.labels(), found.informed.right.labels())
    sizes = np.bincount(person)
    exposed = [np.where(sizes == size, np.asarray(found.gain()), -1) for size in (1, 2, 3)]
    asked = [5, *(int(np.argmax(gain)) for gain in exposed)]
    assert float(found.right[asked[-1]]) > 0.64
    for who in asked:
        tables = []
        for value in (0.0, 1.0):
            other = X.copy()
            other[person == who, 1] = value
            tables.append((other, y))
        normals = dense_people(X, y, person, who, tables, unknown, noise)
        truth = bayes(*normals, [0.4, 0.6], np.eye(2))
        assert float(found.right[who]) == pytest.approx(truth, abs=0.012)
        one = leak.guess(1, [0.4, 0.6], rows=np.flatnonzero(person == who)[:1])
        assert one.right.labels().tolist() == [who]
        assert float(one.right[0]) == pytest.approx(float(found.right[who]), abs=1e-9)
    assert "person's records" in " ".join(found.right.assumptions)


@pytest.mark.parametrize("who", [5, 40])
def test_a_class_of_a_person_is_guessed_as_often_as_by_refits_on_other_people(who):
    X, _, person = several()
    flag = np.array([X[person == k, 1][0] for k in range(person.max() + 1)])
    chances = np.random.default_rng(4).random(len(flag))
    y = (chances < 1 / (1 + np.exp(0.6 - 1.2 * flag)))[person].astype(int)
    model = sp.glm.LogisticRegression(l2=L2, fit_intercept=True).fit(X, y)
    leak = sp.leakage(model, X, y, attacker=OUTSIDER, person=person)
    found = leak.guess(prior="equal", rows=np.flatnonzero(person == who))
    normals, rng, n = [], np.random.default_rng(2), person.max() + 1
    for label in (0, 1):
        weight = rng.gamma(1.0, 1.0, size=(3000, n))
        weight[:, who] = 0.0
        weight *= (n - 1) / weight.sum(axis=1, keepdims=True)
        weight[:, who] = 1.0
        labels = np.where(person == who, label, y)
        seen = logistic(X, labels, len(X) * L2, weight[:, person])
        normals.append((seen[1::2], seen[::2].mean(axis=0), np.cov(seen[::2].T)))
    hits = []
    for own, (seen, _, _) in enumerate(normals):
        likely = [stats.multivariate_normal(m, S).logpdf(seen) for _, m, S in normals]
        hits.append(np.mean(np.argmax(likely, axis=0) == own))
    assert float(found.right[0]) == pytest.approx(np.mean(hits), abs=0.03)


def test_a_person_of_several_outputs_moves_the_model_as_refits_do():
    """Beside so much noise that the others hide nothing: by refits with every class."""
    X, _, person = several()
    shift = np.random.default_rng(1).gumbel(size=(person.max() + 1, 3))[person]
    flag = X[:, 1:]
    y = np.argmax(flag * [1.0, 0.0, -1.0] + shift, axis=1)
    C = 1 / (0.05 * len(X))
    refit = LogisticRegression(C=C, fit_intercept=False, tol=1e-10, max_iter=1000)
    model = sp.glm.SoftmaxRegression(l2=0.05).fit(X, y)
    leak = sp.leakage(model, X, y, attacker=OUTSIDER, noise=sp.Gaussian(100.0), person=person)
    found = leak.guess(prior="equal")
    for who in (5, 40, 41, 42):
        moved = []
        for label in range(3):
            moved.append(refit.fit(X, np.where(person == who, label, y)).coef_.reshape(-1))
        apart = max(np.linalg.norm(a - b) for a in moved for b in moved)
        assert found.mu[who] == pytest.approx(apart / 100, rel=0.06)


def test_people_of_one_record_are_the_records():
    X, y = drawn()
    model = sp.glm.LinearRegression(l2=L2, fit_intercept=True).fit(X, y)
    names = np.random.default_rng(0).permutation(len(X))
    stated = {"attacker": OUTSIDER, "noise": sp.Gaussian(0.1)}
    people = sp.leakage(model, X, y, person=names, **stated).guess(1, "equal")
    records = sp.leakage(model, X, y, **stated).guess(1, "equal")
    order = np.argsort(names)
    for one, other in ((people, records), (people.informed, records.informed)):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other)[order], atol=0.02)


def test_what_cannot_be_said_is_refused():
    X, y = drawn(80)
    model = sp.glm.LinearRegression(l2=L2, fit_intercept=True).fit(X, y)
    leak = sp.leakage(model, X, y, attacker=OUTSIDER)
    with pytest.raises(InputError, match="groups leaves too few other people"):
        leak.groups(np.arange(80) < 60)
    with pytest.raises(InputError, match="use membership"):
        leak.dataset()
    predictions = sp.leakage(model, X, y, attacker=OUTSIDER, release=sp.Predictions(X[:2]))
    for ask in (predictions.guess, lambda: predictions.groups(np.arange(80) < 6)):
        with pytest.raises(InputError):
            ask()
    with pytest.raises(InputError, match="within"):
        leak.guess(0)


@pytest.mark.parametrize("spread", [1.0, 4.0])
def test_two_normals_among_several(spread):
    means, spreads = np.array([[0.0, 0.0], [1.0, 0.5]]), np.array([np.eye(2), spread * np.eye(2)])
    found = best_among(
        means, spreads, np.full(2, 0.5), np.eye(2), draws=40_000, rng=np.random.default_rng(0)
    )
    pair = TwoNormals(means[1:], np.full((1, 2), spread - 1))
    assert found.right == pytest.approx(float(pair.accuracy()[0]), abs=2 * found.error)
    assert found.told_apart == pytest.approx(found.right, abs=0.01)


def test_guesses_and_groups_are_refused_for_named_records():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 2))
    y = X[:, 0] + rng.standard_normal(80)
    model = sp.glm.LinearRegression(l2=0.02).fit(X, y)
    leak = sp.leakage(model, X, y, attacker=sp.Attacker(knows=np.arange(20)))
    for ask in (lambda: leak.within(0, 1.0), lambda: leak.groups(np.arange(80) % 2)):
        with pytest.raises(sp.InputError, match="a share of the other records"):
            ask()

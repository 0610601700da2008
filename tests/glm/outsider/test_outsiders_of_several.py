"""Several releases about one table to an outsider: stacked matrices, and refits by hand."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import seepage as sp

OUTSIDER = sp.Attacker(knows=0.0)
L2 = 0.02


def drawn(n=260):
    rng = np.random.default_rng(6)
    X = rng.uniform(-1, 1, size=(n, 3))
    y = X @ [1.0, -1.0, 0.5] + 0.5 * rng.standard_normal(n)
    z = X @ [0.0, 1.0, 1.0] + 0.5 * (y - X @ [1.0, -1.0, 0.5]) + 0.5 * rng.standard_normal(n)
    return X, y, z


def fitted(X, y):
    return sp.glm.LinearRegression(l2=L2, fit_intercept=True).fit(X, y)


def design(X):
    n, d = X.shape
    x = np.hstack([X, np.ones((n, 1))])
    return x, np.diag([*np.full(d, n * L2), 0.0])


def influences(X, y):
    """Return how far each record moves a fit on the others, as a jackknife would, (n, d + 1)."""
    x, penalty = design(X)
    inverse = np.linalg.inv(x.T @ x + penalty)
    r = x @ inverse @ x.T @ y - y
    lever = np.einsum("np,pq,nq->n", x, inverse, x)
    return (x * (r / (1 - lever))[:, None]) @ inverse


def distances(tables, unknown=1.0, noise=()):
    """Return μ of every record from all releases, from whole matrices."""
    c = np.hstack([influences(X, y) for X, y in tables])
    c = c - c.mean(axis=0)
    n, size = c.shape
    sizes = [X.shape[1] + 1 for X, _ in tables]
    D = np.diag(np.repeat([s**2 for s in (noise or [0.0] * len(tables))], sizes))
    found = []
    for own in c:
        S = unknown * (c.T @ c - n / (n - 1) * np.outer(own, own)) + D
        found.append(np.sqrt(own @ np.linalg.solve(S, own)))
    assert size == sum(sizes)
    return np.array(found)


@pytest.mark.parametrize(
    ("unknown", "noise"), [(1.0, ()), (0.5, ()), (1.0, (0.05, 0.02)), (1.0, (0.05, 0.0))]
)
def test_unlike_releases_are_stacked(unknown, noise):
    X, y, z = drawn()
    tables = [(X, y), (X[:, :2], z)]
    attacker = sp.Attacker(knows=1 - unknown)
    leaks = [
        sp.leakage(
            fitted(*table),
            *table,
            attacker=attacker,
            noise=sp.Gaussian(noise[k]) if noise and noise[k] else None,
        )
        for k, table in enumerate(tables)
    ]
    found = sp.compose(*leaks).membership()
    np.testing.assert_allclose(np.asarray(found), distances(tables, unknown, noise), rtol=1e-6)
    # They vary together: knowing both tells more than each, and not as much as if they did not.
    alone = [np.asarray(leak.membership(exact=0)) for leak in leaks]
    assert np.all(np.asarray(found) >= np.max(alone, axis=0) * (1 - 1e-9))
    rest = np.asarray(found.informed)
    if noise and all(noise):
        each = [np.asarray(leak.informed.membership()) for leak in leaks]
        np.testing.assert_allclose(rest, np.hypot(*each), rtol=1e-6)
    else:
        assert np.all(np.isinf(rest))
    assert found.mu.kind == "estimate"
    assert len(found.mu.noise) == sum(one > 0 for one in noise)


def test_a_release_made_twice_tells_no_more_unless_its_noise_is_new():
    X, y, _ = drawn()
    bare = sp.leakage(fitted(X, y), X, y, attacker=OUTSIDER)
    np.testing.assert_allclose(
        np.asarray(sp.compose(bare, bare).membership()),
        np.asarray(bare.membership(exact=0)),
        rtol=1e-6,
    )
    noisy = [
        sp.leakage(fitted(X, y), X, y, attacker=OUTSIDER, noise=sp.Gaussian(sigma))
        for sigma in (0.1, 0.1 / np.sqrt(2))
    ]
    np.testing.assert_allclose(
        np.asarray(sp.compose(noisy[0], noisy[0]).membership()),
        np.asarray(noisy[1].membership(exact=0)),
        rtol=1e-6,
    )


def test_answers_to_queries_beside_parameters():
    X, y, z = drawn()
    queries = np.random.default_rng(1).uniform(-1, 1, size=(2, 3))
    answers = sp.leakage(fitted(X, z), X, z, attacker=OUTSIDER, release=sp.Predictions(queries))
    whole = sp.leakage(fitted(X, z), X, z, attacker=OUTSIDER)
    first = sp.leakage(fitted(X, y), X, y, attacker=OUTSIDER)
    some, both = (np.asarray(sp.compose(first, one).membership()) for one in (answers, whole))
    assert np.all(some <= both * (1 + 1e-9))
    c = np.hstack([influences(X, y), influences(X, z) @ design(queries)[0].T])
    c = c - c.mean(axis=0)
    n = len(c)
    own = c[3]
    S = c.T @ c - n / (n - 1) * np.outer(own, own)
    assert some[3] == pytest.approx(np.sqrt(own @ np.linalg.solve(S, own)), rel=1e-6)


def test_both_fits_on_other_people_are_told_apart_as_often():
    X, y, z = drawn()
    leaks = [sp.leakage(fitted(X, labels), X, labels, attacker=OUTSIDER) for labels in (y, z)]
    found = sp.compose(*leaks).membership()
    row = int(np.argmax(np.asarray(found)))
    rng, n = np.random.default_rng(0), len(X)
    x, penalty = design(X)
    seen = []
    for inside in (1.0, 0.0):
        weight = rng.exponential(size=(6000, n))
        weight[:, row] = 0.0
        weight *= (n - inside) / weight.sum(axis=1, keepdims=True)
        weight[:, row] = inside
        H = np.einsum("bn,np,nq->bpq", weight, x, x, optimize=True) + penalty
        fits = [np.linalg.solve(H, ((weight * t) @ x)[:, :, None])[:, :, 0] for t in (y, z)]
        seen.append(np.hstack(fits))
    laws = [stats.multivariate_normal(s[::2].mean(axis=0), np.cov(s[::2].T)) for s in seen]
    right = [
        np.mean(laws[own].logpdf(seen[own][1::2]) > laws[1 - own].logpdf(seen[own][1::2]))
        for own in (0, 1)
    ]
    assert float(found.accuracy()[row]) == pytest.approx(np.mean(right), abs=0.03)


def test_releases_that_do_not_go_together_are_refused():
    X, y, z = drawn()
    one = sp.leakage(fitted(X, y), X, y, attacker=OUTSIDER)
    wrong = [
        sp.leakage(fitted(X, z), X, z, attacker=sp.Attacker(knows=0.5)),
        sp.leakage(fitted(X[:200], z[:200]), X[:200], z[:200], attacker=OUTSIDER),
        sp.leakage(fitted(X, z), X, z, attacker=OUTSIDER, person=np.arange(len(X)) // 2),
        sp.leakage(fitted(X, z), X, z, attacker=OUTSIDER, release=sp.Predictions()),
        sp.leakage(fitted(X, z), X, z, noise=sp.Gaussian(1.0)),
    ]
    for other in wrong:
        for pair in ((one, other), (other, one)):
            with pytest.raises(sp.InputError):
                sp.compose(*pair)
    both = sp.compose(one, one)
    assert "2 releases" in repr(both)
    for ask in (both.records, both.guess, lambda: both.membership(exact=2), lambda: both.informed):
        with pytest.raises(sp.InputError):
            ask()
    assert len(sp.compose(both, one).noise) == 0
    assert "3 releases" in repr(sp.compose(both, one))


@pytest.mark.parametrize("names", [None, "p"])
def test_rows_in_another_order_are_refused(names):
    X, y, _ = drawn()
    index = None if names is None else [f"{names}{i}" for i in range(len(X))]
    table, labels = pd.DataFrame(X, index=index), pd.Series(y, index=index)
    mixed = table.sample(frac=1, random_state=3)
    first = sp.leakage(fitted(table, labels), table, labels, attacker=OUTSIDER)
    other = fitted(mixed[[0]], labels[mixed.index])
    second = sp.leakage(other, mixed[[0]], labels[mixed.index], attacker=OUTSIDER)
    with pytest.raises(sp.InputError, match="in a different order"):
        sp.compose(first, second)

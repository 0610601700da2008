"""Answers of softmax models: noise on their margins, probabilities to printed digits.

The oracles refit by hand, in NumPy or with scikit-learn, and look at all K margins: other
coordinates than those of the package.
"""

import numpy as np
import pytest
from scipy import stats
from sklearn.linear_model import LogisticRegression

import seepage as sp

OUTSIDER = sp.Attacker(knows=0.0)
CLASSES = 3


def drawn(n=60, d=2, seed=0, classes=CLASSES):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    margins = X @ np.linspace(-0.9, 1.1, d * classes).reshape(d, classes)
    y = np.argmax(margins + rng.gumbel(size=margins.shape), axis=1)
    y[:classes] = np.arange(min(n, classes))
    return X, y


def design(X, intercept):
    return np.column_stack([X, np.ones(len(X))]) if intercept else X


def powers(margins):
    raised = np.exp(margins - margins.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)


def refit(X, Y, ridge, intercept, start=None):
    """Return the minimiser, (D, K), by Newton's method with a pseudo-inverse; Y may be soft."""
    Z, K = design(X, intercept), Y.shape[1]
    theta = np.zeros((Z.shape[1], K)) if start is None else start.copy()
    penalty = np.full((Z.shape[1], 1), ridge)
    if intercept:
        penalty[-1] = 0.0
    for _ in range(40):
        P = powers(Z @ theta)
        slope = Z.T @ (P - Y) + penalty * theta
        bent = np.einsum("ni,nk,nj,kl->ikjl", Z, P, Z, np.eye(K))
        bent -= np.einsum("ni,nk,nj,nl->ikjl", Z, P, Z, P)
        H = bent.reshape(theta.size, -1) + np.diag(np.repeat(penalty, K))
        step = np.linalg.lstsq(H, slope.reshape(-1), rcond=1e-12)[0]
        theta = theta - step.reshape(theta.shape)
        if np.abs(step).max() < 1e-13:
            break
    return theta


def covariances(count):
    """Return noise of each shape on ``count`` margins, with its covariance."""
    rng = np.random.default_rng(5)
    root = rng.standard_normal((count, count)) + 2 * np.eye(count)
    each = np.linspace(0.1, 0.4, count)
    whole = 0.01 * root @ root.T
    return {
        "one": (sp.Gaussian(0.2), 0.04 * np.eye(count)),
        "each": (sp.Gaussian(each), np.diag(each**2)),
        "whole": (sp.Gaussian(whole), whole),
    }


# Noise on margins, to who knows the rest --------------------------------------------------------


@pytest.mark.parametrize("shape", ["one", "each", "whole"])
@pytest.mark.parametrize("intercept", [False, True])
def test_noise_on_margins_by_refits(shape, intercept):
    X, y = drawn()
    queries, ridge = drawn(2, seed=9)[0], 0.05 * len(X)
    noise, covariance = covariances(2 * CLASSES)[shape]
    model = sp.glm.SoftmaxRegression(l2=0.05, fit_intercept=intercept).fit(X, y)
    leak = sp.leakage(model, X, y, noise=noise, release=sp.Predictions(queries))
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))
    Y, asked = np.eye(CLASSES)[y], design(queries, intercept)

    def margins(X, Y):
        return (asked @ refit(X, Y, ridge, intercept)).reshape(-1)

    here, cells = margins(X, Y), np.asarray(leak.cells())
    mu = np.asarray(leak.membership(exact=True))
    for i in (0, 5, 17):
        J = np.zeros((len(here), 2))
        for k in range(2):
            near, h = [X.copy(), X.copy()], 1e-5
            near[0][i, k] += h
            near[1][i, k] -= h
            J[:, k] = (margins(near[0], Y) - margins(near[1], Y)) / (2 * h)
        np.testing.assert_allclose(cells[i], np.linalg.norm(whiten @ J, axis=0), rtol=2e-3)
        assert np.all(cells[i] > np.linalg.norm(whiten @ J, axis=0) * (1 - 1e-6))
        there = margins(np.delete(X, i, 0), np.delete(Y, i, 0))
        assert mu[i] == pytest.approx(np.linalg.norm(whiten @ (here - there)), rel=2e-3)


def test_only_differences_of_margins_matter():
    """Noise that all margins of an answer have in common hides nothing."""
    X, y = drawn()
    model = sp.glm.SoftmaxRegression(l2=0.05).fit(X, y)
    common = np.kron(np.eye(2), np.ones((CLASSES, CLASSES)))
    plain, more = (
        sp.leakage(model, X, y, noise=sp.Gaussian(S), release=sp.Predictions(X[:2]))
        for S in (0.04 * np.eye(2 * CLASSES), 0.04 * np.eye(2 * CLASSES) + 5 * common)
    )
    np.testing.assert_allclose(np.asarray(plain.records()), np.asarray(more.records()), rtol=1e-3)


# Printed probabilities --------------------------------------------------------------------------


@pytest.mark.parametrize(("queries", "digits"), [(2, 2), (2, 3), (None, 2), (1, 1)])
@pytest.mark.parametrize("intercept", [False, True])
def test_printed_probabilities_to_who_knows_the_rest(queries, digits, intercept):
    X, y = drawn(200)
    ridge = 0.05 * len(X)
    model = sp.glm.SoftmaxRegression(l2=0.05, fit_intercept=intercept).fit(X, y)
    asked = None if queries is None else drawn(queries, seed=9)[0]
    risk = sp.leakage(
        model, X, y, attacker=OUTSIDER, release=sp.Predictions(asked, digits=digits)
    ).membership(exact=0)
    other = LogisticRegression(C=1 / ridge, fit_intercept=intercept, tol=1e-10, max_iter=1000)
    shown, of_all = [], other.fit(X, y).predict_proba(X if asked is None else asked)
    for i in range(40):
        at, before = (X[i : i + 1], of_all[i : i + 1]) if asked is None else (asked, of_all)
        other.fit(np.delete(X, i, 0), np.delete(y, i))
        after = other.predict_proba(at)
        shown.append(np.any(np.round(before, digits) != np.round(after, digits)))
        edge = np.abs((np.stack([before, after]) * 10**digits) % 1 - 0.5).min()
        if edge > 1e-4:  # else scikit-learn is not precise enough to tell
            assert np.isinf(np.asarray(risk.informed)[i]) == shown[-1]
    assert digits == 1 or any(shown)
    assert digits == 3 or not all(shown)


def by_hand(X, y, ridge, queries, digits=None, sigma=None):
    """Return μ to an outsider, whose leverage is low, and which steps count.

    In all K · d parameters; the covariance is that of the K printed probabilities or noisy margins,
    inverted by a pseudo-inverse.
    """
    K = y.max() + 1
    Y = np.eye(K)[y]
    theta = refit(X, Y, ridge, False)
    P, n = powers(X @ theta), len(X)
    bent = np.einsum("ni,nk,nj,kl->ikjl", X, P, X, np.eye(K))
    bent -= np.einsum("ni,nk,nj,nl->ikjl", X, P, X, P)
    H = bent.reshape(theta.size, -1) + ridge * np.eye(theta.size)
    g = np.zeros((n, theta.size))
    leverage = np.zeros(n)
    for i in range(n):
        curved = np.diag(P[i]) - np.outer(P[i], P[i])
        own = np.kron(np.outer(X[i], X[i]), curved)
        rest = np.linalg.inv(H - own)
        leverage[i] = np.linalg.eigvals(np.linalg.solve(H, own)).real.max()
        g[i] = H @ rest @ np.kron(X[i], P[i] - Y[i])
    moves = (g - g.mean(axis=0)) @ np.linalg.inv(H)
    S, mu, steps = moves.T @ moves, np.zeros(n), []
    for i in range(n):
        A = np.kron(X[i : i + 1] if queries is None else queries, np.eye(K))
        margins = (A @ theta.reshape(-1)).reshape(-1, K)
        D = np.zeros((len(A), len(A)))
        if sigma is not None:
            D = D + sigma**2 * np.eye(len(A))
        spread = A @ S @ A.T + D
        if digits is not None:
            jacobian = np.zeros((len(A), len(A)))
            for m, p in enumerate(powers(margins)):
                here = slice(m * K, (m + 1) * K)
                jacobian[here, here] = np.diag(p) - np.outer(p, p)
            A, spread = jacobian @ A, jacobian @ spread @ jacobian.T
            fine = np.diagonal(spread) > 10.0 ** (-2 * digits)
            steps.extend(fine)
            spread = spread + np.diag(np.where(fine, 10.0 ** (-2 * digits) / 12, 0.0))
        inverse = np.linalg.pinv(spread, rcond=1e-10, hermitian=True)
        own = A @ moves[i]
        q = own @ inverse @ own
        mu[i] = np.sqrt(q / (1 - n / (n - 1) * q))
    return mu, leverage < 0.0999, steps


@pytest.mark.parametrize("count", [1, 2, None])
@pytest.mark.parametrize(
    ("digits", "sigma"), [(1, None), (2, None), (None, 0.1), (2, 0.1), (None, 3.0)]
)
@pytest.mark.parametrize("classes", [2, 3])
def test_an_outsider_by_hand(count, digits, sigma, classes):
    X, y = drawn(150, classes=classes)
    queries = None if count is None else drawn(count, seed=9)[0]
    model = sp.glm.SoftmaxRegression(l2=0.02).fit(X, y)
    noise = None if sigma is None else sp.Gaussian(sigma)
    release = sp.Predictions(queries, digits=digits)
    leak = sp.leakage(model, X, y, attacker=OUTSIDER, release=release, noise=noise)
    mu, low, steps = by_hand(X, y, 0.02 * len(X), queries, digits, sigma)
    found = np.asarray(leak.membership(exact=0))
    assert low.sum() > 100
    np.testing.assert_allclose(found[low], mu[low], rtol=1e-4)
    if digits is not None:  # steps that are too coarse count as none
        assert np.mean(steps) > 0.5 if digits == 2 else not all(steps)


def test_probabilities_near_one_are_seen():
    """A flat mean is no reason to leave a margin out: coarse steps count as none."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((80, 2))
    y = np.argmax(30 * X @ rng.standard_normal((2, CLASSES)) + rng.gumbel(size=(80, 3)), axis=1)
    model = sp.glm.SoftmaxRegression(l2=1e-4).fit(X, y)
    queries = 40 * X[:1]
    plain, printed = (
        np.asarray(
            sp.leakage(
                model, X, y, attacker=OUTSIDER, release=sp.Predictions(queries, digits=digits)
            ).membership(exact=0)
        )
        for digits in (None, 2)
    )
    np.testing.assert_allclose(printed, plain, rtol=1e-3)


@pytest.mark.minutes
@pytest.mark.parametrize(("digits", "sigma"), [(2, None), (None, 0.15)])
def test_a_simulated_outsider_is_not_right_more_often(digits, sigma):
    """A test that has learnt both worlds from refits on other people, judged on further ones."""
    X, y = drawn(120)
    X[7], y[7] = [2.2, 1.4], 0  # somebody exposed
    ridge, queries = 0.02 * len(X), X[7:8]
    rng, Y = np.random.default_rng(1), np.eye(CLASSES)[y]
    model = sp.glm.SoftmaxRegression(l2=0.02).fit(X, y)
    noise = None if sigma is None else sp.Gaussian(sigma)
    release = sp.Predictions(queries, digits=digits)
    leak = sp.leakage(model, X, y, attacker=OUTSIDER, release=release, noise=noise)
    predicted = float(np.asarray(leak.membership(rows=[7], exact=0).accuracy())[0])
    start = refit(X, Y, ridge, False)
    seen = {True: [], False: []}
    pool = np.delete(np.arange(len(X)), 7)
    for _ in range(1200):
        others = rng.choice(pool, len(X) - 1)
        for inside in seen:
            rows = np.append(others, 7 if inside else rng.choice(pool))
            margins = queries @ refit(X[rows], Y[rows], ridge, False, start)
            if sigma is not None:
                margins = margins + sigma * rng.standard_normal(margins.shape)
            p = powers(margins)[0]
            p = p if digits is None else np.round(p, digits)
            seen[inside].append(np.log(p[:-1] / p[-1]) if digits is None else p[:-1])
    draws = {inside: np.array(values) for inside, values in seen.items()}
    half = 600
    learnt = {
        inside: stats.multivariate_normal(one[:half].mean(axis=0), np.cov(one[:half].T))
        for inside, one in draws.items()
    }
    right = sum(
        int(np.sum(learnt[inside].pdf(one[half:]) > learnt[not inside].pdf(one[half:])))
        for inside, one in draws.items()
    )
    least = stats.beta.ppf(0.001, right, 2 * half - right + 1)
    assert least <= predicted
    assert predicted - right / (2 * half) < 0.06


@pytest.mark.parametrize("classes", [2, 3])
def test_own_predictions_with_noise_to_who_knows_the_rest(classes):
    """To second order: the move of a record's own margins, by refits without it."""
    X, y = drawn(150, classes=classes)
    ridge, Y = 0.02 * len(X), np.eye(classes)[y]
    model = sp.glm.SoftmaxRegression(l2=0.02).fit(X, y)
    release, noise = sp.Predictions(), sp.Gaussian(0.1)
    leak = sp.leakage(model, X, y, attacker=OUTSIDER, release=release, noise=noise)
    found = np.asarray(leak.membership(exact=0).informed)
    here = refit(X, Y, ridge, False)
    for i in range(0, 150, 10):
        there = refit(np.delete(X, i, 0), np.delete(Y, i, 0), ridge, False, here)
        assert found[i] == pytest.approx(np.linalg.norm(X[i] @ (here - there)) / 0.1, rel=0.05)

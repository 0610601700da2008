"""How much noise hides everybody from an attacker who does not know all others."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import seepage as sp

OUTSIDER = sp.Attacker(knows=0.0)
L2 = 0.05


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(2)
    X = rng.uniform(-1, 1, size=(300, 3))  # nobody of leverage: one covariance
    return X, X @ [1.0, -1.0, 0.5] + 0.5 * rng.standard_normal(300)


@pytest.fixture(scope="module")
def model(table):
    return sp.glm.LinearRegression(l2=L2, fit_intercept=True).fit(*table)


def distances(X, y, sigma, unknown=1.0):
    """Return μ of every record, from whole matrices."""
    n, d = X.shape
    x = np.hstack([X, np.ones((n, 1))])
    H = x.T @ x + n * L2 * np.diag([*np.ones(d), 0.0])
    inverse = np.linalg.inv(H)
    theta = inverse @ x.T @ y
    lever = np.einsum("np,pq,nq->n", x, inverse, x)
    c = x * ((x @ theta - y) / (1 - lever))[:, None]
    c = c - c.mean(axis=0)
    found = []
    for own in c:
        G = unknown * (c.T @ c - n / (n - 1) * np.outer(own, own))
        S = inverse @ G @ inverse + sigma**2 * np.eye(d + 1)
        move = inverse @ own
        found.append(np.sqrt(move @ np.linalg.solve(S, move)))
    return np.array(found)


@pytest.mark.parametrize(("over", "right"), [("max", 0.55), (0.9, 0.52)])
@pytest.mark.parametrize("unknown", [1.0, 0.3])
def test_the_noise_is_that_of_whole_matrices(table, model, over, right, unknown):
    attacker = sp.Attacker(knows=1 - unknown)
    leak = sp.leakage(model, *table, attacker=attacker, noise=sp.Gaussian(0.5))
    share = 1.0 if over == "max" else over

    def excess(logarithm):
        mu = distances(*table, np.exp(logarithm), unknown)
        return float(np.quantile(norm.cdf(mu / 2), share)) - right

    truth = np.exp(brentq(excess, -12, 3))
    found = sp.calibrate(leak, right=right, over=over, grid=None, view=leak.membership(exact=0).mu)
    assert found.sigma == pytest.approx(truth, rel=1e-3)
    # Less than who knows all the others needs
    informed = sp.leakage(model, *table, noise=sp.Gaussian(0.5))
    assert found.sigma < sp.calibrate(informed, right=right, over=over, grid=None).sigma
    coarse = sp.calibrate(leak, right=right, over=over, view=leak.membership(exact=0).mu)
    assert found.sigma <= coarse.sigma <= 1.7 * found.sigma


def test_who_knows_all_the_others_needs_noise_in_proportion(table, model):
    leak = sp.leakage(model, *table, noise=sp.Gaussian(0.01))
    found = sp.calibrate(leak, right=0.6, grid=None)
    again = sp.leakage(model, *table, noise=found).membership()
    assert float(np.max(np.asarray(again.accuracy()))) == pytest.approx(0.6, abs=1e-6)


def test_each_record_alone_in_a_query_takes_noise_too(table, model):
    leak = sp.leakage(
        model, *table, attacker=OUTSIDER, noise=sp.Gaussian(0.1), release=sp.Predictions()
    )
    found = leak.membership(exact=0)
    noise = sp.calibrate(leak, right=0.55, grid=None, view=found.mu)
    again = sp.leakage(model, *table, attacker=OUTSIDER, noise=noise, release=sp.Predictions())
    reached = again.membership(exact=0)
    assert float(np.max(np.asarray(reached.accuracy()))) == pytest.approx(0.55, abs=1e-6)
    assert found.informed.mu.rescaled is None  # which is in proportion to 1/σ


def test_leakage_and_groups_meet_their_target(table, model):
    leak = sp.leakage(model, *table, attacker=OUTSIDER, noise=sp.Gaussian(0.1))
    groups = np.arange(300) % 4
    views = ("records", ()), ("labels", ()), ("groups", (groups,))
    for name, arguments in views:
        view = getattr(leak, name)(*arguments)
        eta = 0.6 * float(np.max(view))
        noise = sp.calibrate(leak, eta=eta, view=view, grid=None)
        again = sp.leakage(model, *table, attacker=OUTSIDER, noise=noise)
        reached = getattr(again, name)(*arguments)
        assert float(np.max(reached)) == pytest.approx(eta, rel=1e-6)


def test_a_table_in_chunks_takes_the_same_noise(table, model, tmp_path):
    X, y = table
    (tmp_path / "t").mkdir()
    columns = {name: X[:, k] for k, name in enumerate("abc")} | {"y": y}
    for k, part in enumerate((slice(0, 90), slice(90, 300))):
        piece = pa.table({name: values[part] for name, values in columns.items()})
        pq.write_table(piece, tmp_path / "t" / f"{k}.parquet")
    chunks = sp.parquet(tmp_path / "t", target="y")
    how = {"attacker": OUTSIDER, "noise": sp.Gaussian(0.1)}
    here, there = sp.leakage(model, X, y, **how), sp.leakage(model, chunks, **how)
    one = sp.calibrate(here, right=0.55, grid=None, view=here.membership(exact=0).mu)
    two = sp.calibrate(there, right=0.55, grid=None)
    assert two.sigma == pytest.approx(one.sigma, rel=1e-6)


def test_what_no_noise_meets_and_what_needs_none_is_said(table, model):
    leak = sp.leakage(model, *table, attacker=OUTSIDER, noise=sp.Gaussian(0.1))
    with pytest.raises(sp.InputError, match="met without noise"):
        sp.calibrate(leak, right=0.99)
    for wrong in ({"right": 0.5}, {"right": 1.0}, {}, {"right": 0.6, "eta": 1.0}):
        with pytest.raises(sp.InputError):
            sp.calibrate(leak, **wrong)
    with pytest.raises(sp.InputError, match="no noise to scale"):
        sp.calibrate(sp.leakage(model, *table, attacker=OUTSIDER), right=0.6)
    X, y = table[0].copy(), table[1]
    X[:, 2] = np.arange(300) == 5
    alone = sp.glm.LinearRegression(l2=0.0, fit_intercept=True).fit(X, y)
    for attacker in (OUTSIDER, None):
        leak = sp.leakage(alone, X, y, attacker=attacker, noise=sp.Gaussian(0.1))
        with pytest.raises(sp.InputError, match=r"No (amount of )?noise"):
            sp.calibrate(leak, right=0.6)

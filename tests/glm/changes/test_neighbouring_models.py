"""Models of neighbouring tables against fits from scratch, and bounds on leakage against the truth.

The largest leakage in a neighbouring table is computed for some of its records only. A bound on the
others decides which, so the bound is compared with every record's leakage in the new model.
"""

import numpy as np
import pytest

from seepage.core.jacobian import Unknowns
from seepage.core.noise import Gaussian
from seepage.core.questions import members
from seepage.glm import (
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
)
from seepage.glm.changes.neighbouring_models import NeighbouringModels
from seepage.glm.jacobian.operator import PlainJacobians
from seepage.glm.leakage import describe_on
from seepage.tables.source import MemorySource, read_table

FAMILIES = {
    "linear": LinearRegression,
    "logistic": LogisticRegression,
    "poisson": PoissonRegression,
    "softmax": SoftmaxRegression,
}
ROWS, L2 = 90, 0.01


def table(family, seed=0):
    """Return features and labels with a few outlying records."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((ROWS, 4))
    X[:3] *= 3.0
    margin = X @ [0.8, -0.5, 0.3, 0.0]
    if family == "linear":
        y = margin + rng.standard_normal(ROWS)
    elif family == "logistic":
        y = (rng.random(ROWS) < 1 / (1 + np.exp(-margin))).astype(int)
    elif family == "poisson":
        y = rng.poisson(np.exp(np.clip(margin, -3, 2))).astype(float)
    else:
        y = np.argmax(np.outer(margin, [1.0, 0.0, -1.0]) + rng.gumbel(size=(ROWS, 3)), axis=1)
    return X, y


def fitted(family, X, y):
    """Return the description of a fit from scratch, and its Jacobians."""
    model = FAMILIES[family](l2=L2, fit_intercept=True).fit(X, y)
    fit, _ = describe_on(model, MemorySource(read_table(X), y, None))
    return fit, PlainJacobians(fit, X, Gaussian(1.0))


def leakage(about, unknowns, step, owner):
    """Return the η of every record, or owner, from the entries of its Jacobian."""
    J = np.asarray(about(slice(None)).with_label_step(step).row_jacobians(unknowns, slice(None)))
    if owner is None:
        return np.linalg.norm(J, 2, axis=(1, 2))
    return np.array([np.linalg.norm(np.hstack(J[rows]), 2) for rows in members(owner).values()])


def other_tables(X, y, holders, rng):
    """Yield changes as rows and their new features and labels (``None`` if they are left out)."""
    for rows in holders:
        yield rows, None, None
        features = X[rows].copy()
        features[:, 0] = rng.choice([-3.0, 3.0])
        yield rows, features, y[rows]
        features = X[rows].copy()
        features[:, 1] += 0.1
        yield rows, features, np.full(len(rows), rng.choice(y))


@pytest.mark.parametrize("several", [False, True], ids=["records", "people"])
@pytest.mark.parametrize("basis", [False, True], ids=["own units", "units"])
@pytest.mark.parametrize("family", FAMILIES)
def test_models_and_bounds_hold_in_every_neighbouring_table(family, basis, several):
    rng = np.random.default_rng(1)
    X, y = table(family)
    owner = np.arange(ROWS) // 3 if several else None
    units = np.diag([2.0, 0.5, 1.0, 3.0])[:, :3] if basis else None
    unknowns, step = Unknowns(None, True, units), 1.7
    fit, about = fitted(family, X, y)
    eta = leakage(about, unknowns, step, owner)
    models = NeighbouringModels(fit, X, unknowns, step, eta, owner)
    assert models.usable
    holders = [np.arange(ROWS)[:, None][k] for k in (0, 1, 40)]
    if several:
        holders = [np.flatnonzero(owner == k) for k in (0, 5)]
    cases = list(other_tables(X, y, holders, rng))
    changes, fits = [], []
    for rows, features, labels in cases:
        if features is None:
            X2, y2 = np.delete(X, rows, axis=0), np.delete(y, rows)
            target = None
        else:
            X2, y2 = X.copy(), y.copy()
            X2[rows], y2[rows] = features, labels
        there = fitted(family, X2, y2)
        target = None if features is None else there[0].target[rows]
        changes.append(models.change(rows, features, target))
        fits.append(there)
    moves = models.moves(changes)
    for (rows, features, _), change, move, (other, there) in zip(
        cases, changes, moves, fits, strict=True
    ):
        exact = np.ravel(other.parameters - fit.parameters)
        np.testing.assert_allclose(move, exact, atol=1e-8 * np.linalg.norm(exact))
        gone = features is None
        own = np.delete(owner, rows) if several and gone else owner
        truth = leakage(there, unknowns, 2 * step, own)
        who = rows if owner is None else np.unique(owner[rows])
        kept = np.delete(np.arange(len(eta)), who)
        stayed = truth if gone else np.delete(truth, who)
        ratio = np.linalg.norm(there.whitener.matrix @ np.linalg.inv(about.whitener.matrix), 2)
        # The bound of every record that stays, with a label in units twice as large
        bound = 2 * ratio * models._bounds(move)[kept]
        assert np.all(stayed <= bound * (1 + 1e-9))
        allowed = rng.uniform(0.5, 2.0, len(truth))
        largest = models.largest(change, move, 2 * step, allowed)
        np.testing.assert_allclose(largest, np.max(truth / allowed), rtol=1e-7)


@pytest.mark.parametrize("family", FAMILIES)
def test_bounds_are_close_enough_to_leave_most_records_out(family, monkeypatch):
    X, y = table(family)
    unknowns = Unknowns(None, True)
    fit, about = fitted(family, X, y)
    models = NeighbouringModels(fit, X, unknowns, 1.0, leakage(about, unknowns, 1.0, None))
    change = models.change(np.array([40]))
    asked = []
    bounded = PlainJacobians.largest_ratio
    monkeypatch.setattr(
        PlainJacobians,
        "largest_ratio",
        lambda self, u, step, allowed, bounds, blocks: (
            asked.append(np.sum(bounds >= models._eta.max())),
            bounded(self, u, step, allowed, bounds, blocks),
        )[1],
    )
    models.largest(change, models.moves([change])[0], 1.0, np.ones(ROWS - 1))
    assert 1 <= asked[0] <= ROWS / 4


def test_models_without_a_penalty_or_far_from_zero_are_left_to_fits_from_scratch():
    X, y = table("logistic")
    unknowns, eta = Unknowns(None, True), np.ones(ROWS)
    source = MemorySource(read_table(X), y, None)
    free, _ = describe_on(LogisticRegression(l2=0.0, fit_intercept=True).fit(X, y), source)
    assert not NeighbouringModels(free, X, unknowns, 1.0, eta).usable
    far = X + np.array([1e3, 0.0, 0.0, 0.0])
    fit, _ = fitted("logistic", far, y)
    assert not NeighbouringModels(fit, far, unknowns, 1.0, eta).usable

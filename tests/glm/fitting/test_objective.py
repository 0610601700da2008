"""An objective over any source: sums over a table and its chunks against sums record by record."""

from dataclasses import fields, replace

import numpy as np
import pytest

from seepage.glm.fitting.objective import Objective, PenalisedLoss, Sums
from seepage.glm.losses import Categorical, bernoulli, gaussian, poisson
from seepage.support.chunks import by_rows
from seepage.tables.source import Chunk, MemorySource, Table

EVERYTHING = ("hessian", "value", "scales", "gain", "squares", "extent")
ROWS, COLUMNS, RIDGE = 53, 3, 0.7
LOSSES = {  # the loss and its first two derivatives by the margins, of one record
    "gaussian": lambda m, y: ((m - y) ** 2 / 2, m - y, np.ones((1, 1))),
    "bernoulli": lambda m, y: (
        np.log1p(np.exp(m)) - y * m,
        1 / (1 + np.exp(-m)) - y,
        np.reshape(1 / (2 + 2 * np.cosh(m)), (1, 1)),
    ),
    "poisson": lambda m, y: (np.exp(m) - y * m, np.exp(m) - y, np.reshape(np.exp(m), (1, 1))),
    "categorical": lambda m, y: (
        np.log(np.exp(m).sum()) - y @ m,
        np.exp(m) / np.exp(m).sum() - y,
        np.diag(p := np.exp(m) / np.exp(m).sum()) - np.outer(p, p),
    ),
}


class Pieces(MemorySource):
    """A table that comes in pieces of some rows, one of them empty."""

    step = 7

    def each(self, function, what, extra=()):
        starts = range(0, len(self), self.step)
        for rows in [slice(3, 3), *(slice(k, k + self.step) for k in starts)]:
            weight = None if self.sample_weight is None else self.sample_weight[rows]
            yield function(Chunk(self.table.values[rows], self.y[rows], weight, rows.start))


def labelled(family):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(ROWS, COLUMNS)) * [1.0, 0.1, 3.0]
    kinds = rng.integers(0, 3 if family.name == "categorical" else 2, ROWS)
    labels = {"gaussian": rng.normal(size=ROWS), "poisson": rng.poisson(2.0, ROWS)}
    return X, labels.get(family.name, kinds)


def over_records(family, X, y, weight, theta, intercept):
    """Return the sums of an objective without a penalty, one record after another."""
    K = theta.shape[1] if theta.ndim == 2 else 1
    W = theta.reshape(-1, K)
    total = dict.fromkeys(("value", "gradient_scale", "label_scale", "squares", "counted"), 0.0)
    total |= {"largest_norm": 0.0, "gradient": np.zeros_like(W), "hessian": 0.0}
    for x, label, w in zip(X, y, weight, strict=True):
        x = np.append(x, 1.0) if intercept else x
        m = W.T @ x
        value, r, a = LOSSES[family.name](m if K > 1 else m[0], label)
        r, size = np.atleast_1d(r), np.linalg.norm(x)
        total["counted"] += w > 0
        total["value"] += w * value
        total["gradient"] += w * np.outer(x, r)
        total["hessian"] = total["hessian"] + w * np.kron(np.outer(x, x), a)
        total["gradient_scale"] += w * np.abs(r).sum() * size
        total["label_scale"] += w * np.abs(label).sum() * size
        total["largest_norm"] = max(total["largest_norm"], size)
        total["squares"] += (w * size) ** 2 * np.sum(r**2 + (1e-4 * label) ** 2)
    total["gradient"] = total["gradient"].reshape(theta.shape)
    return total


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("where", ["table", "chunks", "single"])
@pytest.mark.parametrize(
    "family", [gaussian, bernoulli, poisson, Categorical(3)], ids=lambda f: f.name
)
def test_every_sum_is_that_of_the_records(family, where, intercept, weighted):
    X, labels = labelled(family)
    classes = np.unique(labels) if family.name in ("bernoulli", "categorical") else None
    target = np.eye(3)[labels] if family.name == "categorical" else labels.astype(float)
    weight = np.random.default_rng(1).uniform(0.2, 2.0, ROWS) if weighted else np.ones(ROWS)
    weight[::9] = 0.0 if weighted else 1.0
    given = weight if weighted else None
    if where == "chunks":
        loss = PenalisedLoss(family, classes, RIDGE, intercept, COLUMNS)
        objective = Objective.over(Pieces(Table(X, (), None, "numpy"), labels, given), loss)
    else:
        X = X.astype(np.float32) if where == "single" else X
        objective = Objective(X, family, target, given, RIDGE, intercept)
    theta = np.random.default_rng(2).normal(size=objective.shape) / 4
    truth = over_records(family, X.astype(float), target, weight, theta, intercept)
    w = np.array(theta)
    if intercept:
        w[-1] = 0.0
    truth["value"] += RIDGE / 2 * np.sum(w**2)
    truth["gradient"] += RIDGE * w
    truth["gradient_scale"] += RIDGE * np.linalg.norm(w)
    truth["hessian"] = truth["hessian"] + RIDGE * np.diag((w != 0).reshape(-1).astype(float))
    asked = EVERYTHING if where != "chunks" else EVERYTHING[:-1]  # no extent of an empty piece
    sums = objective.at(theta, asked)
    for name, value in truth.items():
        np.testing.assert_allclose(getattr(sums, name), value, rtol=1e-12, atol=1e-12, err_msg=name)
    if "extent" in asked and intercept:
        np.testing.assert_array_equal(sums.extent.least, X.min(axis=0))
        np.testing.assert_array_equal(sums.extent.most, X.max(axis=0))


def test_units_and_a_linear_term_are_those_of_the_callers_columns():
    X, y = labelled(poisson)
    units, tilt = np.array([2.0, 0.5, 8.0]), np.array([0.3, -0.2, 0.1])
    plain = Objective(X, poisson, y.astype(float), None, RIDGE, True, tilt=tilt)
    scaled = replace(plain, X=X / units, units=units)
    theta = np.array([0.1, -0.3, 0.2, 0.4])
    factors = np.append(units, 1.0)
    here, there = plain.at(theta), scaled.at(theta * factors)
    np.testing.assert_allclose(there.value, here.value, rtol=1e-13)
    np.testing.assert_allclose(there.gradient * factors, here.gradient, rtol=1e-12)
    np.testing.assert_allclose(there.hessian * np.outer(factors, factors), here.hessian, rtol=1e-12)


@pytest.mark.parametrize("asked", [(), ("value",), ("hessian",), ("scales",), ("squares", "gain")])
def test_a_pass_computes_what_is_asked_and_nothing_else(asked):
    """A loss that is not asked for is not computed, nor are curvatures."""
    X, y = labelled(bernoulli)
    called = []

    def watched(name):
        return lambda m, y: called.append(name) or getattr(bernoulli, name)(m, y)

    names = ("loss", "slope", "curvature")
    family = replace(bernoulli, **{name: watched(name) for name in names})
    objective = Objective(X, family, y.astype(float), None, 0.0, True)
    sums = objective.at(np.full(COLUMNS + 1, 0.1), asked)
    costs = {"value": "loss", "hessian": "curvature"}
    assert set(called) == {"slope", *(costs[a] for a in asked if a in costs)}
    none = Sums(sums.theta, ROWS, sums.gradient)
    filled = {"value": "value", "hessian": "hessian", "squares": "squares", "gain": "least_gain"}
    kept = {"theta", "counted", "gradient", *(filled[a] for a in asked if a in filled)}
    if "scales" in asked:
        kept |= {"gradient_scale", "label_scale", "largest_norm"}
    for field in fields(Sums):
        if field.name not in kept:
            assert getattr(sums, field.name) == getattr(none, field.name), field.name


def test_an_answer_about_no_rows_has_no_rows():
    table = np.ones((0, 4))
    assert by_rows(lambda rows: table[rows], 0, 4).shape == (0, 4)
    assert by_rows(lambda rows: table[rows], 0, 4, threads=True).shape == (0, 4)

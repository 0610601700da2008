"""How exact answers are said to be: one bound for all of a view is never below any of theirs."""

from __future__ import annotations

import numpy as np
import pytest

import seepage as sp
from seepage.core.unknowns import Unknowns
from seepage.glm.jacobian.accuracy import block_error, error_terms, row_errors

MODELS = {
    "linear": sp.glm.LinearRegression,
    "logistic": sp.glm.LogisticRegression,
    "poisson": sp.glm.PoissonRegression,
    "softmax": sp.glm.SoftmaxRegression,
}
UNKNOWNS = [Unknowns(None, True), Unknowns(None, False), Unknowns((1,), False)]


def leakage(family: str, spread: float, seed: int) -> sp.Leakage:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((60, 4)) * spread ** np.arange(4)
    margin = X[:, 0] + rng.standard_normal(60)
    y = {
        "linear": margin,
        "logistic": margin > 0,
        "poisson": rng.poisson(np.exp(margin / 3)),
        "softmax": np.digitize(margin, [-0.5, 0.5]),
    }[family]
    model = MODELS[family](l2=1e-2, fit_intercept=seed % 2 == 0).fit(X, y)
    return sp.leakage(model, X, y, noise=sp.Gaussian(0.1))


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("spread", [1.0, 3.0])
@pytest.mark.parametrize("unknowns", UNKNOWNS)
def test_one_bound_for_all_rows_and_blocks(family: str, spread: float, unknowns: Unknowns) -> None:
    for seed in range(4):
        jacobian = leakage(family, spread, seed).jacobian
        squared = jacobian.row_norms(unknowns)
        stated = row_errors(jacobian, squared, unknowns)
        assert jacobian._at_most(squared, unknowns, 1) >= 0.999 * np.max(stated)
        rows = np.arange(0, 60, 7)
        norm = jacobian.block_norm(unknowns, rows)
        terms = np.sum(error_terms(jacobian, unknowns)[rows], axis=0)
        stated = block_error(jacobian, norm, terms, from_entries=True)
        assert jacobian._at_most(np.array([norm]), unknowns, len(rows)) >= 0.999 * stated


def test_an_ordinary_problem_states_one_number() -> None:
    leak = leakage("logistic", 1.0, 0)
    stated = leak.records().accuracy
    assert np.ndim(stated) == 0
    assert 0 < stated < 1e-8
    assert leak.records().top(3).accuracy == stated


def test_a_hard_problem_states_one_for_each_record() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3))
    X[:, 2] = X[:, 1] + 1e-7 * X[:, 2]
    y = X[:, 0] + rng.standard_normal(40)
    model = sp.glm.LinearRegression().fit(X, y)
    found = sp.leakage(model, X, y, noise=sp.Gaussian(0.1)).records([1])
    assert np.max(found.accuracy) < 1e-6

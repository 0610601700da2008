"""How exact answers are said to be: one bound for all of a view is never below any of theirs."""

from __future__ import annotations

import numpy as np
import pytest

import seepage as sp
from seepage.core.jacobian import Unknowns, block_norms

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
def test_a_cheap_bound_on_all_rows_is_not_below_a_close_one(family, spread, unknowns) -> None:
    for seed in range(4):
        accuracy = leakage(family, spread, seed).jacobian.accuracy
        cheap, *close = accuracy._bounds(unknowns)
        assert bool(close) == (accuracy.paired is None and family != "linear")
        for sizes in close:
            for bound, size in zip(cheap, sizes, strict=True):
                assert np.all(bound >= 0.999 * size)


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("unknowns", UNKNOWNS)
def test_a_block_of_one_record_is_as_exact_as_the_record(family, unknowns) -> None:
    for seed in range(4):
        jacobian = leakage(family, 3.0, seed).jacobian
        one = np.array([7])
        (squared,) = block_norms(jacobian, unknowns, [one])
        stated = jacobian.accuracy.block(squared, unknowns, one)
        of_rows = jacobian.accuracy.rows(jacobian.row_norms(unknowns), unknowns)
        assert stated <= np.max(of_rows) + 1e-15


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


def test_releases_that_cannot_become_one_are_counted_apart() -> None:
    """η² adds over releases, whether or not they become one."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3))
    y = X @ [1.0, -2.0, 0.5] + rng.standard_normal(40)
    steep = np.column_stack([X[:, :2], X[:, 1] + 1e-3 * X[:, 2]])  # its curvature has few digits

    def leak(table: np.ndarray, intercept: bool, sigma: float) -> sp.Leakage:
        model = sp.glm.LinearRegression(l2=1e-9, fit_intercept=intercept).fit(table, y)
        return sp.leakage(model, table, y, noise=sp.Gaussian(sigma))

    for first, other in (
        (leak(X, True, 1.0), leak(X, False, 1.0)),
        (leak(steep, False, 1.0), leak(steep, False, 2.0)),
    ):
        both = sp.compose(first, other)
        assert first.release.merged(other.release) is None
        apart = np.asarray(first.cells()) ** 2 + np.asarray(other.cells()) ** 2
        np.testing.assert_allclose(np.asarray(both.cells()) ** 2, apart, rtol=1e-9)


def test_an_intercept_far_from_zero_takes_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they run out, the last is as good as any: rounding is all that is left."""
    rng = np.random.default_rng(0)
    X, y = rng.normal([1e6, 0, 0], size=(40, 3)), np.arange(40) % 4
    model = sp.glm.PoissonRegression(l2=0.1, fit_intercept=True).fit(X, y)
    known = np.asarray(sp.leakage(model, X, y, noise=sp.Gaussian(1.0)).cells())
    monkeypatch.setattr("seepage.glm.jacobian.optimum._MOST_STEPS", 1)
    found = np.asarray(sp.leakage(model, X, y, noise=sp.Gaussian(1.0)).cells())
    np.testing.assert_allclose(found, known, rtol=1e-9)


def test_a_label_in_steps_of_one_is_as_it_is() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 3)), np.arange(40) % 3
    model = sp.glm.SoftmaxRegression(l2=0.1).fit(X, y)
    jacobian = sp.leakage(model, X, y, noise=sp.Gaussian(1.0)).release.template
    label = Unknowns((), True)
    assert jacobian.with_label_step(1.0) is jacobian
    plain = np.asarray(jacobian.row_traces(label))
    np.testing.assert_allclose(jacobian.with_label_step(2.0).row_traces(label), 4 * plain)

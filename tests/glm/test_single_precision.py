"""Single precision beside double: columns far from zero are shifted before they are rounded."""

import numpy as np
import pytest

import seepage as sp

FAMILIES = {
    "gaussian": sp.glm.LinearRegression,
    "bernoulli": sp.glm.LogisticRegression,
    "categorical": sp.glm.SoftmaxRegression,
}
VIEWS = ("records", "cells", "columns", "labels", "dataset", "membership")


def problem(family, offset):
    rng = np.random.default_rng(1)
    Z = rng.standard_normal((200, 5))
    signal = Z @ np.linspace(1, -1, 5) + rng.logistic(size=200)
    labels = {
        "gaussian": signal,
        "bernoulli": (signal > 0).astype(float),
        "categorical": np.digitize(signal, [-1.0, 1.0]),
    }
    return Z + offset, labels[family]


def answer(leak, view):
    """Return the numbers of a view and their stated errors."""
    found = getattr(leak, view)()
    result = found.mu if view == "membership" else found
    numbers = np.asarray(found, dtype=float)
    return numbers, np.broadcast_to(np.asarray(result.accuracy, dtype=float), numbers.shape)


def check_views(narrow, wide, off=10.0):
    for view in VIEWS:
        (single, stated), (double, more) = answer(narrow, view), answer(wide, view)
        error = np.abs(single - double) / np.where(double > 0, double, 1.0)
        assert np.all(error <= off * (stated + more)), view


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e5])
@pytest.mark.parametrize("family", FAMILIES)
def test_offsets_cost_no_more_than_is_stated(family, offset, intercept):
    X, y = problem(family, offset)
    model = FAMILIES[family](l2=1e-2, fit_intercept=intercept).fit(X, y)
    wide = sp.leakage(model, X, y, noise=sp.Gaussian(0.1))
    narrow = sp.leakage(model, X, y, noise=sp.Gaussian(0.1), dtype="float32")
    assert narrow.cells().values.dtype == np.float32
    check_views(narrow, wide)


def test_cells_far_from_zero_are_as_precise_as_near_it():
    """Rounded first, cells of columns N(1000, 1) were off by 3 %, of N(100000, 1) by 300 %."""
    for offset in (1e3, 1e5):
        X, y = problem("gaussian", offset)
        model = FAMILIES["gaussian"](l2=1e-2, fit_intercept=True).fit(X, y)
        wide, narrow = (
            sp.leakage(model, X, y, noise=sp.Gaussian(0.1), dtype=dtype)
            for dtype in (None, "float32")
        )
        np.testing.assert_allclose(np.asarray(narrow.cells()), np.asarray(wide.cells()), rtol=1e-6)
        np.testing.assert_allclose(
            np.asarray(narrow.membership()), np.asarray(wide.membership()), rtol=1e-12
        )


def test_risks_and_bounds_are_about_the_numbers_that_were_given():
    """Levels such as 0.1 have no single-precision twin: each record still has one of them."""
    X, y = problem("bernoulli", 1e3)
    X[:, 0] = np.where(X[:, 0] > 1e3, 1e3 + 0.1, 1e3 + 0.7)
    model = FAMILIES["bernoulli"](l2=1e-2, fit_intercept=True).fit(X, y)
    wide, narrow = (
        sp.leakage(model, X, y, noise=sp.Gaussian(0.1), dtype=dtype) for dtype in (None, "float32")
    )
    np.testing.assert_allclose(np.asarray(narrow.guess(0)), np.asarray(wide.guess(0)), rtol=1e-12)
    single, double = (
        float(sp.bounds.hammersley_chapman_robbins(leak, 3, 1)) for leak in (narrow, wide)
    )
    assert single == pytest.approx(double, rel=1e-5)
    together = sp.compose(narrow, narrow).records()
    assert together.values.dtype == np.float32
    np.testing.assert_allclose(
        np.asarray(together), np.sqrt(2) * np.asarray(wide.records()), rtol=1e-4
    )


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e5])
def test_single_numbers_that_arrive_are_the_data(offset):
    X, y = problem("bernoulli", offset)
    X = X.astype(np.float32)
    model = FAMILIES["bernoulli"](l2=1e-2, fit_intercept=True).fit(X.astype(float), y)
    wide = sp.leakage(model, X.astype(float), y, noise=sp.Gaussian(0.1))
    narrow = sp.leakage(model, X, y, noise=sp.Gaussian(0.1), dtype="float32")
    assert narrow.table.values is X  # nothing is copied
    check_views(narrow, wide)

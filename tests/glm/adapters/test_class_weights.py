"""Weights that a model computes from the labels: balanced anew in risks, held by derivatives."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import (
    LogisticRegression,
    LogisticRegressionCV,
    RidgeClassifier,
    RidgeClassifierCV,
)
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

import seepage as sp

N = 60
_RNG = np.random.default_rng(0)
X = _RNG.standard_normal((N, 3))
Y = (X[:, 0] + _RNG.logistic(size=N) > 1.8).astype(int)
TABLE = np.column_stack([X[:, :2], X[:, 2] > 0])  # the last column can be guessed
THREE = np.digitize(X[:, 0] + _RNG.logistic(size=N), [-1.5, 1.5])
TIGHT = {"tol": 1e-12, "max_iter": 10_000}


def told(sentences):
    """Return how many of some sentences say that balanced weights are held fixed."""
    return sum("class_weight='balanced'" in s and "held fixed" in s for s in sentences)


def logistic(class_weight="balanced", **more):
    return LogisticRegression(class_weight=class_weight, solver="newton-cholesky", **TIGHT, **more)


def ridge(class_weight="balanced"):
    return RidgeClassifier(class_weight=class_weight)


def svc(class_weight="balanced"):
    return LinearSVC(class_weight=class_weight, C=0.01, fit_intercept=False, **TIGHT)


MODELS = {
    "LogisticRegression": logistic,
    "LogisticRegressionCV": lambda w: LogisticRegressionCV(
        Cs=2, cv=3, class_weight=w, l1_ratios=(0.0,), solver="newton-cholesky", **TIGHT
    ),
    "RidgeClassifier": ridge,
    "RidgeClassifierCV": lambda w: RidgeClassifierCV(class_weight=w),
    "LinearSVC": svc,
    "pipeline": lambda w: make_pipeline(StandardScaler(), logistic(w)),
    "search": lambda w: GridSearchCV(logistic(w), {"C": [0.1, 1.0]}, cv=2),
    "search of a pipeline": lambda w: GridSearchCV(
        make_pipeline(StandardScaler(), logistic(w)), {"logisticregression__C": [1.0]}, cv=2
    ),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", MODELS)
def test_balanced_class_weights_are_listed(name):
    for class_weight, noted in (("balanced", True), ({0: 1.0, 1: 3.0}, False), (None, False)):
        model = MODELS[name](class_weight).fit(TABLE, Y)
        leak = sp.leakage(model, TABLE, Y, noise=sp.Gaussian(1.0), on_mismatch="warn")
        assert ("class weights" in leak.held) == noted
        assert ("class weights" in leak.records().held) == noted
        assert told(leak.records().assumptions) == noted
        # Features do not move the weights.
        assert "class weights" not in leak.cells().held


def derivatives(leak):
    """Return what is measured by derivatives, about labels too."""
    records = leak.records()
    return {
        "records": records,
        "bound": records.mse_bound(),
        "deviation": records.std_bound(),
        "top": records.top(3),
        "biased": sp.bounds.biased_leakage(records, slope=0.5),
        "dfil": leak.records(measure="dfil"),
        "labels": leak.labels(),
        "groups": leak.groups(Y),
        "dataset": leak.dataset(),
        "subset": leak.subset([1, 2]),
        "composed": sp.compose(leak, leak).records(),
        "membership": leak.membership(refit="model").mu,
        "membership of groups": leak.membership(groups=np.arange(N) // 6, refit="model").mu,
        "advantage": leak.membership(refit="model").advantage(),
        "guess of the label": leak.guess(refit="model").right,
    }


def others(leak):
    """Return what class weights do not touch, or what balances them anew."""
    return {
        "cells": leak.cells(),
        "columns": leak.columns(),
        "membership": leak.membership().mu,
        "membership of groups": leak.membership(groups=np.arange(N) // 6).mu,
        "composed": sp.compose(leak, leak).membership().mu,
        "guess of the label": leak.guess().right,
        "guess": leak.guess(2).right,
        "gain": leak.guess(2).gain(),
        "within": leak.within(0, 0.5, rows=[1, 2]).right,
        "Cramér–Rao": sp.bounds.cramer_rao_rows(leak),
        "Cramér–Rao of a block": sp.bounds.cramer_rao(leak, [1, 2]),
        "Hammersley": sp.bounds.hammersley_chapman_robbins(leak, 0, 0).bound,
    }


def test_every_result_lists_what_it_holds():
    fixed, balanced = (
        sp.leakage(logistic(w).fit(TABLE, Y), TABLE, Y, noise=sp.Gaussian(1.0))
        for w in ({0: 1.0, 1: 3.0}, "balanced")
    )
    for name, one in derivatives(balanced).items():
        assert (one.held, told(one.assumptions)) == (("class weights",), 1), name
    free = {**others(balanced), **others(fixed), **derivatives(fixed)}
    for name, one in free.items():
        assert (one.held, told(one.assumptions)) == ((), 0), name
    table = sp.guarantees(balanced, domain=(-4, 4), draws=8)
    assert sum(told(line.assumptions) for line in table.rows) == 0  # about features alone
    assert "held fixed" in balanced.records()._repr_html_()


# By refits with scikit-learn ------------------------------------------------------------------


def parameters(model):
    coef = np.atleast_2d(model.coef_)
    free = [np.atleast_1d(model.intercept_)] if model.fit_intercept else []
    return np.vstack([coef.T, *free]).ravel()


def moved(make, y, kept, weight=None):
    """Return how far a model fitted on some records is from the one on all of them."""
    every = np.arange(N)
    here, there = (
        parameters(
            make().fit(X[rows], y[rows], sample_weight=None if weight is None else weight[rows])
        )
        for rows in (every, kept)
    )
    return np.linalg.norm(there - here) if here.shape == there.shape else np.inf


CASES = {
    "two classes": (logistic, Y, None),
    "three classes": (lambda: logistic(C=0.3), THREE, None),
    "no intercept": (lambda: logistic(fit_intercept=False), Y, None),
    "two weights": (logistic, Y, np.where(np.arange(N) % 3, 1.0, 2.5)),
    "a weight for each": (logistic, Y, np.linspace(0.5, 2.0, N)),
    "least squares": (ridge, Y, None),
    "squared hinge": (svc, Y, None),
    "a class of one": (logistic, (np.arange(N) == 7).astype(int), None),
    "a class of one of three": (lambda: logistic(C=0.3), np.where(np.arange(N) == 7, 2, Y), None),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", CASES)
def test_membership_balances_the_classes_anew(name):
    """As ``clone(model).fit`` does on the records that stay, with the same C or α."""
    make, y, weight = CASES[name]
    model = make().fit(X, y, sample_weight=weight)
    leak = sp.leakage(model, X, y, noise=sp.Gaussian(0.5), sample_weight=weight)
    rows = np.array([0, 4, 7, 15, 33, 59])
    found, sure = leak.membership(rows), leak.membership(rows, exact=0)
    every = np.arange(N)
    truth = []
    for row in rows:
        kept = np.delete(every, row)
        lonely = len(np.unique(y[kept])) < len(np.unique(y))
        truth.append(np.inf if lonely else moved(make, y, kept, weight) / 0.5)
    assert (found.mu.held, found.mu.kind) == ((), "exact")
    tight = 1e-4 if name == "squared hinge" else 1e-6  # liblinear's own tolerance
    assert np.asarray(found) == pytest.approx(np.array(truth), rel=tight)
    assert np.all(sure.lower <= np.array(truth) * (1 + tight))
    assert np.all(np.asarray(sure) >= np.array(truth) * (1 - tight))


def test_rebalanced_a_record_shows_three_times_as_well():
    leak = sp.leakage(logistic().fit(X, Y), X, Y, noise=sp.Gaussian(1.0))
    held, anew = leak.membership([4], refit="model"), leak.membership([4])
    assert float(held.mu[0]) == pytest.approx(0.00547, rel=1e-3)
    assert float(anew.mu[0]) == pytest.approx(0.01678, rel=1e-3)
    assert told(held.mu.assumptions) == 1
    assert told(anew.mu.assumptions) == 0


@pytest.mark.parametrize("y", [Y, THREE], ids=["two classes", "three classes"])
def test_groups_leave_with_weights_of_their_own(y):
    groups = np.arange(N) // 7
    model = logistic(C=0.3).fit(X, y)
    found = sp.leakage(model, X, y, noise=sp.Gaussian(0.5)).membership(groups=groups)
    truth = [moved(lambda: logistic(C=0.3), y, np.flatnonzero(groups != g)) for g in range(9)]
    assert np.asarray(found) == pytest.approx(np.array(truth) / 0.5, rel=1e-6)


@pytest.mark.parametrize("y", [Y, THREE], ids=["two classes", "three classes"])
def test_a_guessed_label_counts_in_its_new_class(y):
    rows = np.array([0, 4, 15, 33])
    model = logistic(C=0.3).fit(X, y)
    found = sp.leakage(model, X, y, noise=sp.Gaussian(0.5)).guess(rows=rows, prior="equal")
    apart = []
    for row in rows:
        fits = []
        for label in np.unique(y):
            other = y.copy()
            other[row] = label
            fits.append(parameters(logistic(C=0.3).fit(X, other)))
        apart.append(max(np.linalg.norm(a - b) for a in fits for b in fits) / 0.5)
    assert found.mu == pytest.approx(np.array(apart), rel=1e-6)
    assert found.right.held == ()


def test_the_prior_of_the_model_is_that_of_a_balanced_refit():
    leak = sp.leakage(logistic().fit(X, Y), X, Y, noise=sp.Gaussian(0.5))
    found = leak.guess(prior="model", rows=[4, 15])
    for k, row in enumerate((4, 15)):
        kept = np.delete(np.arange(N), row)
        odds = logistic().fit(X[kept], Y[kept]).predict_proba(X[row : row + 1])[0]
        assert found.baseline[k] == pytest.approx(odds.max(), rel=1e-6)


def test_balanced_weights_have_no_sensitivity():
    """One record changes the weights of all others, which no Lipschitz constant bounds."""
    free = {"fit_intercept": False}
    balanced = sp.leakage(logistic(**free).fit(X, Y), X, Y, noise=sp.Gaussian(1.0))
    with pytest.raises(sp.InputError, match=r"as class_weight=\{class: weight\}"):
        sp.privacy.output_perturbation(balanced)
    fixed = sp.leakage(logistic({0: 1.0, 1: 3.0}, **free).fit(X, Y), X, Y, noise=sp.Gaussian(1.0))
    assert sp.privacy.output_perturbation(fixed).mu > 0


def test_the_audit_of_a_balanced_model_balances_anew():
    frame = pd.DataFrame(X, columns=["age", "bmi", "dose"])
    found = sp.audit(logistic().fit(frame, Y), frame, Y, noise=1.0)
    every = np.arange(N)
    truth = [moved(logistic, Y, np.delete(every, row)) for row in every]
    assert found.risks.mu == pytest.approx(max(truth), rel=1e-6)
    assert (found.held, found.risks.held) == (("class weights",), ())
    assert told(found.risks.assumptions) == 0
    assert told(found.steps) == 1
    held = sp.audit(logistic().fit(frame, Y), frame, Y, noise=1.0, refit="model")
    assert held.risks.held == ("class weights",)
    assert told(held.risks.assumptions) == 1

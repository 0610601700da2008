"""Weights that a model computed from the labels are held fixed, and every result says so."""

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
TIGHT = {"tol": 1e-12, "max_iter": 10_000}


def told(sentences):
    """Return how many of some sentences say that balanced weights are held fixed."""
    return sum("class_weight='balanced'" in s and "held fixed" in s for s in sentences)


def logistic(class_weight="balanced", **more):
    return LogisticRegression(class_weight=class_weight, solver="newton-cholesky", **TIGHT, **more)


MODELS = {
    "LogisticRegression": logistic,
    "LogisticRegressionCV": lambda w: LogisticRegressionCV(
        Cs=2, cv=3, class_weight=w, l1_ratios=(0.0,), solver="newton-cholesky", **TIGHT
    ),
    "RidgeClassifier": lambda w: RidgeClassifier(class_weight=w),
    "RidgeClassifierCV": lambda w: RidgeClassifierCV(class_weight=w),
    "LinearSVC": lambda w: LinearSVC(class_weight=w, C=0.01, fit_intercept=False, **TIGHT),
    "pipeline": lambda w: make_pipeline(StandardScaler(), logistic(w)),
    "search": lambda w: GridSearchCV(logistic(w), {"C": [0.1, 1.0]}, cv=2),
    "search of a pipeline": lambda w: GridSearchCV(
        make_pipeline(StandardScaler(), logistic(w)), {"logisticregression__C": [1.0]}, cv=2
    ),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", MODELS)
def test_balanced_class_weights_are_noted(name):
    for class_weight, noted in (("balanced", True), ({0: 1.0, 1: 3.0}, False), (None, False)):
        model = MODELS[name](class_weight).fit(TABLE, Y)
        leak = sp.leakage(model, TABLE, Y, noise=sp.Gaussian(1.0), on_mismatch="warn")
        assert told(leak.notes) == noted
        assert told(leak.records().assumptions) == noted


def every_result(leak):
    """Return the assumptions of all that a leakage can be asked for, by name."""
    records = leak.records()
    table = sp.guarantees(leak, domain=(-4, 4), draws=8)
    found = {
        "records": records,
        "bound": records.mse_bound(),
        "deviation": records.std_bound(),
        "top": records.top(3),
        "biased": sp.bounds.biased_leakage(records, slope=0.5),
        "dfil": leak.records(measure="dfil"),
        "cells": leak.cells(),
        "labels": leak.labels(),
        "columns": leak.columns(),
        "groups": leak.groups(Y),
        "dataset": leak.dataset(),
        "subset": leak.subset([1, 2]),
        "membership": leak.membership().mu,
        "membership of groups": leak.membership(groups=np.arange(N) // 6).mu,
        "advantage": leak.membership().advantage(),
        "guess of the label": leak.guess().right,
        "guess": leak.guess(2).right,
        "gain": leak.guess(2).gain(),
        "within": leak.within(0, 0.5, rows=[1, 2]).right,
        "Cramér–Rao": sp.bounds.cramer_rao_rows(leak),
        "Cramér–Rao of a block": sp.bounds.cramer_rao(leak, [1, 2]),
        "Hammersley": sp.bounds.hammersley_chapman_robbins(leak, 0, 0).bound,
        "composed": sp.compose(leak, leak).records(),
    }
    lines = {f"guarantee {line.name}": line for line in table.rows if line.applies}
    assert len(lines) >= 4
    return {name: one.assumptions for name, one in {**found, **lines}.items()}


def test_every_result_says_that_balanced_weights_are_held_fixed():
    fixed, balanced = (
        sp.leakage(logistic(w).fit(TABLE, Y), TABLE, Y, noise=sp.Gaussian(1.0))
        for w in ({0: 1.0, 1: 3.0}, "balanced")
    )
    assert [k for k, assumed in every_result(balanced).items() if told(assumed) != 1] == []
    assert [k for k, assumed in every_result(fixed).items() if told(assumed)] == []
    html = balanced.records()._repr_html_()
    assert "held fixed while a record changes" in html


def test_rebalanced_a_record_shows_three_times_as_well():
    """The number that the note is about: μ of a refit that balances the classes anew."""
    model = logistic().fit(X, Y)
    leak = sp.leakage(model, X, Y, noise=sp.Gaussian(1.0))

    def parameters(rows):
        fitted = logistic().fit(X[rows], Y[rows])
        return np.append(fitted.coef_.ravel(), fitted.intercept_)

    held = leak.membership([4])
    anew = leak.membership([4], refit=parameters)
    assert float(held.mu[0]) == pytest.approx(0.00547, rel=1e-3)
    assert float(anew.mu[0]) == pytest.approx(0.01678, rel=1e-3)
    assert told(held.mu.assumptions) == 1
    assert told(anew.mu.assumptions) == 0


def test_balanced_weights_have_no_sensitivity():
    """One record changes the weights of all others, which no Lipschitz constant bounds."""
    free = {"fit_intercept": False}
    balanced = sp.leakage(logistic(**free).fit(X, Y), X, Y, noise=sp.Gaussian(1.0))
    with pytest.raises(sp.InputError, match=r"as class_weight=\{class: weight\}"):
        sp.privacy.output_perturbation(balanced)
    fixed = sp.leakage(logistic({0: 1.0, 1: 3.0}, **free).fit(X, Y), X, Y, noise=sp.Gaussian(1.0))
    assert sp.privacy.output_perturbation(fixed).mu > 0


def test_the_audit_of_a_balanced_model_says_so():
    frame = pd.DataFrame(X, columns=["age", "bmi", "dose"])
    found = sp.audit(logistic().fit(frame, Y), frame, Y)
    assert told(found.risks.assumptions) == 1
    assert told(found.steps) == 1

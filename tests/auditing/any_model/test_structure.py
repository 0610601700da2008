"""Structural checks of many models, beside counts by hand from what scikit-learn keeps."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import BayesianRidge, LinearRegression, LogisticRegression, RidgeCV
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from seepage.auditing.any_model.parts import leaves_of, numbers_learnt, parts_of
from seepage.auditing.any_model.settings_risk import rules_met
from seepage.auditing.any_model.structure import examine
from seepage.auditing.findings import StructuralRisk

RNG = np.random.default_rng(0)
N = 150
X = np.round(RNG.standard_normal((N, 3)), 1)
THREE = RNG.integers(0, 3, N)
TWO = THREE > 0
NUMBER = X @ [1.0, -1.0, 0.5] + RNG.standard_normal(N)


def risk(model: Any, name: str, y: np.ndarray) -> StructuralRisk:
    return next(one for one in examine(model, X, y).risks if one.name == name)


def tree_numbers(tree: Any, shares: int) -> int:
    """Count splits and leaves in the arrays that scikit-learn keeps."""
    leaves = int(np.sum(tree.children_left == -1))
    return 2 * (tree.node_count - leaves) + shares * leaves


def histogram_numbers(model: Any) -> int:
    nodes = [tree.nodes for trees in model._predictors for tree in trees]
    leaves = [int(one["is_leaf"].sum()) for one in nodes]
    return sum(2 * (len(one) - k) + k for one, k in zip(nodes, leaves, strict=True))


TREE = DecisionTreeClassifier(random_state=0)
COUNTED = {
    "tree": (TREE, THREE, lambda m: tree_numbers(m.tree_, 2)),
    "tree of numbers": (
        DecisionTreeRegressor(max_depth=4, random_state=0),
        NUMBER,
        lambda m: tree_numbers(m.tree_, 1),
    ),
    "forest": (
        RandomForestClassifier(7, random_state=0),
        THREE,
        lambda m: sum(tree_numbers(t.tree_, 2) for t in m.estimators_),
    ),
    "extra trees": (
        ExtraTreesRegressor(4, random_state=0),
        NUMBER,
        lambda m: sum(tree_numbers(t.tree_, 1) for t in m.estimators_),
    ),
    "boosting": (
        GradientBoostingClassifier(n_estimators=3, random_state=0),
        THREE,
        lambda m: sum(tree_numbers(t.tree_, 1) for t in m.estimators_.ravel()),
    ),
    "histogram": (
        HistGradientBoostingClassifier(max_iter=6, min_samples_leaf=4),
        THREE,
        histogram_numbers,
    ),
    "histogram of numbers": (
        HistGradientBoostingRegressor(max_iter=6, min_samples_leaf=4),
        NUMBER,
        histogram_numbers,
    ),
    "histogram of counts": (
        HistGradientBoostingRegressor(loss="poisson", max_iter=6, min_samples_leaf=4),
        np.round(np.exp(NUMBER / 2)),
        histogram_numbers,
    ),
    "ada": (
        AdaBoostClassifier(n_estimators=4, random_state=0),
        THREE,
        lambda m: sum(tree_numbers(t.tree_, 2) for t in m.estimators_),
    ),
    "bagging of some columns": (
        BaggingClassifier(TREE, 3, max_features=2, random_state=0),
        THREE,
        # A leaf that no record of the whole table falls in would count here and not in ours
        lambda m: sum(tree_numbers(t.tree_, 2) for t in m.estimators_),
    ),
    "vote": (
        VotingClassifier([("a", TREE), ("b", LogisticRegression())], voting="soft"),
        THREE,
        lambda m: tree_numbers(m.estimators_[0].tree_, 2) + 3 * 3 + 3,
    ),
    "stack": (
        StackingClassifier([("a", TREE), ("b", GaussianNB())], cv=2),
        TWO,
        lambda m: tree_numbers(m.estimators_[0].tree_, 1) + 2 * 3 + 2 * 3 + (2 + 1),
    ),
    "calibration": (
        CalibratedClassifierCV(TREE, cv=2),
        TWO,
        lambda m: sum(tree_numbers(c.estimator.tree_, 1) for c in m.calibrated_classifiers_),
    ),
    "search": (
        GridSearchCV(TREE, {"max_depth": [2, 3]}, cv=2),
        THREE,
        lambda m: tree_numbers(m.best_estimator_.tree_, 2),
    ),
    "pipeline": (
        make_pipeline(StandardScaler(), TREE),
        THREE,
        lambda m: tree_numbers(m[-1].tree_, 2),
    ),
    "linear": (LinearRegression(), NUMBER, lambda m: 3 + 1),
    "logistic of three": (LogisticRegression(), THREE, lambda m: 3 * 3 + 3),
    "transformed": (TransformedTargetRegressor(LinearRegression()), NUMBER, lambda m: 3 + 1),
    "network": (
        MLPRegressor(hidden_layer_sizes=5, max_iter=3, random_state=0),
        NUMBER,
        lambda m: 3 * 5 + 5 + 5 + 1,
    ),
    "support vectors": (SVC(), TWO, lambda m: len(m.support_) + 1),
    "support vectors of numbers": (SVR(), NUMBER, lambda m: len(m.support_) + 1),
    "kernel": (KernelRidge(), NUMBER, lambda m: N),
    "process": (GaussianProcessRegressor(), NUMBER, lambda m: N),
    "process of classes": (GaussianProcessClassifier(), TWO, lambda m: N),
    "neighbours": (KNeighborsClassifier(), THREE, lambda m: 3 * N + N),
}


@pytest.mark.parametrize("name", COUNTED)
def test_degrees_of_freedom_count_what_was_learnt(name: str) -> None:
    estimator, y, by_hand = COUNTED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few steps do not converge
        model = estimator.fit(X, y)
    found = risk(model, "degrees of freedom", y)
    assert found.parameters == by_hand(model)
    assert found.value == N - by_hand(model)
    assert found.found == (N - by_hand(model) < 10)


def test_what_is_not_known_is_said() -> None:
    class Own:
        """Has no part that anybody knows."""

        def predict(self, X: Any) -> np.ndarray:
            return np.zeros(len(X))

    found = risk(Own(), "degrees of freedom", NUMBER)
    assert (found.found, found.value) == (None, None)
    assert found.reason == "The number of parameters that Own has learnt is unknown."
    assert numbers_learnt(Own(), X) is None


def test_a_chosen_penalty_is_not_the_only_parameter() -> None:
    for model in (RidgeCV(), BayesianRidge()):
        assert numbers_learnt(model.fit(X, NUMBER), X) == X.shape[1] + 1


@pytest.mark.parametrize("loss", ["squared_error", "poisson", None])
def test_leaves_of_histograms_are_those_that_it_keeps(loss: str | None) -> None:
    if loss is None:
        model: Any = HistGradientBoostingClassifier(max_iter=8, min_samples_leaf=3).fit(X, THREE)
    else:
        model = HistGradientBoostingRegressor(loss=loss, max_iter=8, min_samples_leaf=3)
        model.fit(X, np.round(np.exp(NUMBER / 2)))
    leaves = leaves_of(model, X)
    trees = [tree.nodes for trees in model._predictors for tree in trees]
    assert leaves is not None
    assert leaves.shape[1] >= len(trees)
    kept = sorted(sorted(one["count"][one["is_leaf"] == 1].tolist()) for one in trees)
    seen = sorted(sorted(Counter(column.tolist()).values()) for column in leaves.T)
    assert seen == kept


def test_cells_of_a_tree_are_its_leaves() -> None:
    tree = DecisionTreeClassifier(max_depth=4, random_state=0).fit(X, THREE)
    leaf = tree.apply(X)
    same = np.array([np.sum(leaf == own) for own in leaf])
    fewest = np.array(
        [min(c for c in Counter(THREE[leaf == own].tolist()).values()) for own in leaf]
    )
    found = examine(tree, X, THREE)
    by_name = {one.name: one for one in found.risks}
    np.testing.assert_array_equal(found.records["same_answer"], same)
    np.testing.assert_array_equal(found.records["smallest_leaf"], same)
    np.testing.assert_array_equal(found.records["small_group"], fewest < 10)
    assert by_name["answers shared by few"].value == same.min()
    assert by_name["answers shared by few"].records == np.sum(same < 10)
    assert by_name["small groups"].value == fewest.min()
    chances = tree.predict_proba(X)
    ruled = np.any(chances == 0, axis=1)
    np.testing.assert_array_equal(found.records["class_ruled_out"], ruled)
    assert by_name["classes ruled out"].records == ruled.sum()
    own = chances[np.arange(N), THREE] == 1
    np.testing.assert_array_equal(found.records["class_stated"], own)
    assert np.all(ruled[own])  # what is certain rules the other classes out


def test_cells_of_other_models_are_their_answers() -> None:
    near = KNeighborsClassifier(4).fit(X, TWO)
    said = [tuple(row) for row in near.predict_proba(X).round(6)]
    counts = Counter(said)
    found = examine(near, X, TWO)
    np.testing.assert_array_equal(found.records["same_answer"], [counts[row] for row in said])
    classes = Counter(zip(said, TWO.tolist(), strict=True))
    fewest = [min(classes[row, c] for c in (False, True) if classes[row, c]) for row in said]
    np.testing.assert_array_equal(found.records["small_group"], np.array(fewest) < 10)


def test_kept_records_are_named() -> None:
    machine = SVC().fit(X, TWO)
    kept = examine(machine, X, TWO).records["kept_in_model"]
    np.testing.assert_array_equal(np.flatnonzero(kept), np.sort(machine.support_))
    every = examine(KNeighborsClassifier().fit(X, TWO), X, TWO).records["kept_in_model"]
    assert every.all()
    assert not examine(TREE.fit(X, TWO), X, TWO).records["kept_in_model"].any()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a length at its bound
        process = GaussianProcessRegressor().fit(X, NUMBER)
    assert risk(process, "records inside the model", NUMBER).records == N


def test_a_forest_is_looked_at_tree_by_tree() -> None:
    forest = RandomForestClassifier(5, min_samples_leaf=6, random_state=0).fit(X, TWO)
    smallest = np.full(N, N)
    for tree in forest.estimators_:
        leaf = tree.apply(X)
        smallest = np.minimum(smallest, [np.sum(leaf == own) for own in leaf])
    found = examine(forest, X, TWO)
    np.testing.assert_array_equal(found.records["smallest_leaf"], smallest)
    assert len(list(parts_of(forest, X))) == 1


SETTINGS = [
    (DecisionTreeClassifier(), 1),
    (DecisionTreeClassifier(max_depth=7), 1),
    (DecisionTreeClassifier(max_depth=3), 0),
    (DecisionTreeClassifier(max_depth=7, max_features=2), 0),
    (DecisionTreeClassifier(min_samples_split=16), 1),
    (DecisionTreeClassifier(min_samples_leaf=8), 1),
    (DecisionTreeClassifier(min_samples_leaf=8, max_features="sqrt"), 0),
    (DecisionTreeClassifier(min_samples_leaf=16), 0),
    (DecisionTreeClassifier(min_samples_leaf=0.2), 0),  # 30 of 150 records
    (DecisionTreeClassifier(splitter="random", min_samples_split=20), 1),
    (DecisionTreeClassifier(splitter="random", min_samples_split=20, max_features=2), 0),
    (RandomForestClassifier(), 1),
    (RandomForestClassifier(35), 0),
    (RandomForestClassifier(20, bootstrap=False), 1),
    (RandomForestClassifier(20, bootstrap=False, min_samples_leaf=16), 0),
    (RandomForestClassifier(max_depth=3), 0),
    (RandomForestClassifier(max_features=None), 1),
    (RandomForestClassifier(max_features=None, min_samples_split=16), 0),
    (RandomForestClassifier(min_samples_leaf=50), 1),  # a rule that asks for no leaf
    (LogisticRegression(), None),
    (ExtraTreesRegressor(), None),
]


@pytest.mark.parametrize(("model", "met"), SETTINGS)
def test_rules_of_settings_have_their_edges(model: Any, met: int | None) -> None:
    found = rules_met(model, N)
    assert (found if met is None else (found and 1) or 0) == met

"""The models inside fitted pipelines, searches, voting ensembles and calibrated classifiers.

Structural checks examine each of these models on its own inputs, and count its parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np

from seepage.support.library_classes import SEARCHES, own_name


class Part(NamedTuple):
    """A model or step inside an estimator, with its inputs (``None`` if they were not computed)."""

    model: Any
    X: Any


def parts_of(model: Any, X: Any) -> Iterator[Part]:
    """Yield the models inside a fitted estimator, and the steps before them.

    A forest counts as one part, and so does a boosting model that reports each record's leaf.
    """
    kind = own_name(model, "sklearn")
    if kind == "Pipeline":
        for _, step in model.steps[:-1]:
            yield Part(step, None)
        yield from parts_of(model[-1], model[:-1].transform(X) if len(model.steps) > 1 else X)
    elif kind in SEARCHES:
        yield from parts_of(model.best_estimator_, X)
    elif kind in ("RFE", "RFECV"):
        yield from parts_of(model.estimator_, model.transform(X))
    elif hasattr(model, "apply") or getattr(model, "support_vectors_", None) is not None:
        yield Part(model, X)
    elif (inner := _inner(model)) is not None:
        yield from parts_of(inner, X)
    elif hasattr(model, "calibrated_classifiers_"):
        for one in model.calibrated_classifiers_:
            yield from parts_of(one.estimator, X)
    elif (members := getattr(model, "estimators_", None)) is not None:
        chosen = getattr(model, "estimators_features_", None)
        for k, one in enumerate(np.ravel(np.array(members, dtype=object))):
            yield from parts_of(one, X if chosen is None else np.asarray(X)[:, chosen[k]])
        if hasattr(model, "final_estimator_"):
            yield from parts_of(model.final_estimator_, model.transform(X))
    else:
        yield Part(model, X)


def _inner(model: Any) -> Any:
    """Return the single model that an estimator fits, or ``None`` if it fits several.

    Estimators that fit several models may use the same attribute for the template of these models.
    """
    if hasattr(model, "estimators_"):
        return None
    for name in ("estimator_", "regressor_", "base_estimator_"):
        inner = getattr(model, name, None)
        if hasattr(inner, "predict") and hasattr(inner, "fit"):
            return inner
    return None


def leaves_of(model: Any, X: Any) -> np.ndarray | None:
    """Return the leaf of every record in every tree, (n, trees); ``None`` if none is reported."""
    if hasattr(model, "apply"):
        found = np.asarray(model.apply(X))
        return found.reshape(len(found), -1)
    if own_name(model, "lightgbm") is not None and hasattr(model, "booster_"):
        found = np.asarray(model.predict(X, pred_leaf=True))
        return found.reshape(len(found), -1)
    return _staged_leaves(model, X)


def _staged_leaves(model: Any, X: Any) -> np.ndarray | None:
    """Return the leaves of scikit-learn's histogram boosting.

    Histogram boosting does not report a record's leaf, only the prediction after every tree. In a
    copy of the model, every leaf of a tree adds a different number to the sum, so that the sums
    identify the leaves.
    """
    kind = own_name(model, "sklearn")
    if kind not in ("HistGradientBoostingClassifier", "HistGradientBoostingRegressor"):
        return None
    step = 1e-5  # sums of many leaves stay where an exponential is finite
    marked = deepcopy(model)
    for tree in (tree for trees in marked._predictors for tree in trees):
        tree.nodes["value"] = step * np.arange(len(tree.nodes))
    if kind.endswith("Classifier"):
        stages = marked.staged_decision_function(X)
    else:
        stages = marked.staged_predict(X)
    sums = [np.asarray(stage).reshape(len(X), -1) for stage in stages]
    if kind.endswith("Regressor") and model.loss in ("poisson", "gamma"):
        sums = [np.log(total) for total in sums]
    leaves = []
    for before, after in zip([np.zeros_like(sums[0]), *sums], sums, strict=False):
        # The first sum also holds a number that is the same for all records
        added = after - before - (after - before).min(axis=0)
        leaves.append(np.round(added / step).astype(int))
    return np.hstack(leaves)


def numbers_learnt(model: Any, X: Any, leaves: np.ndarray | None = None) -> int | None:
    """Return the number of parameters that a model has learnt; ``None`` if unknown.

    A tree with L leaves has L − 1 splits, each with two parameters (a column and a threshold), and
    one parameter per leaf. A leaf with the shares of K classes has K − 1 parameters. For nearest
    neighbours, all values of the stored records count; for kernel models, only the coefficients.
    """
    leaves = leaves_of(model, X) if leaves is None else leaves
    if leaves is not None:
        boosted = "learning_rate" in model.get_params()
        shares = 1 if boosted else max(1, len(getattr(model, "classes_", ())) - 1)
        sizes = [len(np.unique(tree)) for tree in leaves.T]
        return sum(2 * (size - 1) + shares * size for size in sizes)
    for names in (
        ("coefs_", "intercepts_"),  # networks
        ("dual_coef_", "intercept_"),  # support vectors and kernels
        ("_fit_X", "_y"),  # neighbours
        ("coef_", "intercept_"),  # first, because RidgeCV calls its penalty alpha_
        ("alpha_",),  # Gaussian processes
        ("pi_",),
        ("theta_", "var_", "class_log_prior_"),  # naive Bayes
        ("feature_log_prob_", "class_log_prior_"),
        ("means_", "scalings_", "rotations_"),  # discriminants
    ):
        if getattr(model, names[0], None) is not None:
            values = [getattr(model, name, None) for name in names]
            return sum(_size(value) for value in values if value is not None)
    return None


def _size(value: Any) -> int:
    if isinstance(value, list | tuple):
        return sum(np.size(one) for one in value)
    return int(value.nnz) if hasattr(value, "nnz") else int(np.size(value))


def records_kept(model: Any) -> np.ndarray | int | None:
    """Return the positions of records that a model stores verbatim, or their number, if any."""
    support = getattr(model, "support_", None)
    if support is not None and getattr(model, "support_vectors_", None) is not None:
        return np.asarray(support)
    for name in ("_fit_X", "X_train_", "X_fit_"):
        if getattr(model, name, None) is not None:
            return int(np.shape(getattr(model, name))[0])
    return None

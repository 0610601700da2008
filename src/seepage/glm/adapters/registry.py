"""The registry of supported models, which maps a fitted model to the objective it minimises.

:func:`unwrap` extracts the model from searches, pipelines and formulas, and removes columns that a
penalty dropped. It returns a model that :func:`describe` can read, the steps from the caller's
table to the model's table, and notes on what an audit excludes. Readers for :mod:`seepage.glm`
models are in this module; readers for each other library are in a separate module.

The page ``docs/how-to/models.md`` lists every kind and is generated from this registry.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from seepage.core.result import CLASS_WEIGHTS, COLUMNS, SETTINGS
from seepage.errors import InputError
from seepage.glm.adapters import other_libraries, refused, scikit_learn, statsmodels_results
from seepage.glm.adapters.kinds import PAGE, ModelKind, RefusedKind, balances, reader, refusal
from seepage.glm.estimators import GLMClassifier, GLMRegressor, LinearModel
from seepage.glm.fitting.objective import FittedGLM
from seepage.glm.inputs import check_column_count, read_penalty
from seepage.glm.losses import Categorical, Family
from seepage.glm.preprocessing.chain import Chain
from seepage.glm.preprocessing.formula import FormulaStep
from seepage.glm.preprocessing.steps import FeatureStep, KeptColumns
from seepage.support.library_classes import (
    is_pipeline,
    is_search,
    library_class,
    library_of,
)
from seepage.tables.source import Table, as_numpy

# The models of seepage.glm ----------------------------------------------------------------------


def _family(model: GLMClassifier | GLMRegressor) -> Family | Categorical:
    if isinstance(model, GLMClassifier):
        return model._family_of(len(model.classes_))
    return model._family()


def _penalty(model: LinearModel, rows: int, weight: float) -> float:
    whole = getattr(model, "whole_ridge_", None)  # nλ, where a file states that instead of λ
    return read_penalty(model.l2, rows) if whole is None else float(whole)


@dataclass(frozen=True, eq=False)
class GivenModel:
    """A description of another library's model, with the attributes needed for prediction."""

    fit: FittedGLM
    classes_: np.ndarray | None = None

    @property
    def coef_(self) -> np.ndarray:
        """The coefficients, of shape (d,) or (K, d)."""
        return as_numpy(self.fit.coef).T

    @property
    def intercept_(self) -> np.ndarray:
        """The intercepts, or zero for a model without intercepts."""
        free = self.fit.intercept
        return np.zeros(np.shape(self.fit.coef)[1:]) if free is None else as_numpy(free)


def _given(model: GivenModel, table: Table, y: Any, sample_weight: Any) -> FittedGLM:
    check_column_count(int(model.fit.coef.shape[0]), table)
    return model.fit


_OBJECTIVE = "Σ ω ℓ + (nλ/2)‖w‖²"
_ours = reader(_family, _penalty)
# Our classes derived from the first two are recognised by them.
_OURS = (
    ModelKind("seepage", "GLMClassifier", _ours, _OBJECTIVE, penalty=_penalty),
    ModelKind("seepage", "GLMRegressor", _ours, _OBJECTIVE, penalty=_penalty),
    ModelKind("seepage", "GivenModel", _given, _OBJECTIVE),
)

# All of them -------------------------------------------------------------------------------------

KINDS: tuple[ModelKind | RefusedKind, ...] = (
    *_OURS,
    *scikit_learn.KINDS,
    *statsmodels_results.KINDS,
    *other_libraries.KINDS,
    *refused.KINDS,
)
_BY_NAME = {(kind.library, kind.name): kind for kind in KINDS}
_LIBRARIES = {kind.library for kind in KINDS}
SUPPORTED = (
    "seepage.glm's LinearRegression, LogisticRegression, PoissonRegression, SoftmaxRegression and "
    "GeneralizedLinearRegression, the linear models of scikit-learn, statsmodels, glum and skglm "
    f"listed in {PAGE}, and pipelines and searches of these"
)


def kind_of(model: Any) -> ModelKind:
    """Return the kind of a fitted model; raise an error with the reason if it is not supported.

    A model is recognised by the library and the name of its class, so a user's own class is not
    mistaken for a library class of the same name. A subclass of a known class is read like the
    known class, unless it overrides a method that fits or predicts.
    """
    if library_of(type(model)) == "statsmodels":
        model = getattr(model, "model", model)
    found = library_class(model, _LIBRARIES)
    kind = None
    if found is not None:
        # Ours are recognised by their bases too; a class that another library derives from one of
        # its own minimises something else.
        bases = found.cls.__mro__ if found.library == "seepage" else (found.cls,)
        names = ((found.library, name) for name in (*(cls.__name__ for cls in bases), "*"))
        kind = next((_BY_NAME[name] for name in names if name in _BY_NAME), None)
    if isinstance(kind, RefusedKind):
        raise kind.error()
    cls = type(model)
    if found is None or kind is None:
        raise InputError(
            f"{cls.__name__} of {cls.__module__.partition('.')[0]} is not supported, because "
            f"seepage does not know its objective. Supported models are {SUPPORTED}. "
            f"{_instead(model)}"
        )
    if found.overrides is not None:
        raise refusal(
            f"{found.other_than(model)}, so seepage does not know its objective and predictions.",
            f"Fit {found.called} instead, or audit the model by attack with sp.audit(model, X, y).",
        )
    return kind


def kind_inside(model: Any) -> ModelKind:
    """Return the kind of a model, or of the final model in a search or pipeline."""
    while is_search(model) or is_pipeline(model):
        model = best_of(model) if is_search(model) else model[-1]
    return kind_of(model)


def _instead(model: Any) -> str:
    if hasattr(model, "best_estimator_"):
        return "Pass the best model of this search, best_estimator_."
    return "Audit other models by attack with sp.audit(model, X, y)."


def describe(model: Any, table: Table, y: Any, sample_weight: Any = None) -> FittedGLM:
    """Return the family, parameters, penalty, weights and labels of a fitted model.

    The table, weights and labels must be those of the fit. Labels are in the caller's form; classes
    may be strings. An error is raised if the model is not in the registry, not fitted, or fitted on
    different columns, or if its objective is not a GLM objective on this table.
    """
    if getattr(model, "release_", None) is not None:
        raise InputError(
            "This model is a noisy release, so its coefficients are not a minimiser; pass the "
            "original model."
        )
    if is_pipeline(model) or is_search(model):
        raise InputError(
            f"A {type(model).__name__} also leaks through its transformers. Pass the whole "
            "pipeline to sp.leakage or sp.audit, or pass its final estimator and the transformed "
            "table (pipeline[-1] and pipeline[:-1].transform(X))."
        )
    # No reader looks at the values, and coefficients, labels and weights must not be rounded to the
    # single precision of a table: a stand-in has its shape, library and device, but is float64.
    xp = array_namespace(table.values)
    zero = xp.zeros((1, 1), dtype=xp.float64, device=device(table.values))
    double = replace(table, values=xp.broadcast_to(zero, table.values.shape))
    return kind_of(model).read(model, double, y, sample_weight)


# Searches, pipelines, formulas --------------------------------------------------------------------


@dataclass(frozen=True)
class Unwrapped:
    """A model that :func:`describe` can read, the steps before it, and notes on its audit."""

    model: Any
    steps: tuple[FeatureStep, ...] = ()
    notes: tuple[str, ...] = ()
    # What was learnt from the data beside the steps, in the words of ``Result.held``
    held: tuple[str, ...] = ()


def unwrap(model: Any, X: Any) -> Unwrapped:
    """Unwrap a model fitted on the table ``X``."""
    if is_search(model):
        inner = unwrap(best_of(model), X)
        return replace(inner, held=(SETTINGS, *inner.held))
    if is_pipeline(model):
        before = Chain.of_pipeline(model[:-1], X)
        inner = unwrap(model[-1], before.transform(X) if before.steps else X)
        return replace(inner, steps=(*before.steps, *inner.steps))
    kind = kind_of(model)
    notes, held = (kind.note,) if kind.note else (), kind.chooses
    if balances(model):
        held = (*held, CLASS_WEIGHTS)
    if takes_frame(model, X):
        return Unwrapped(model, (FormulaStep.of(model),), notes, held)
    coef = as_numpy(getattr(model, "coef_", np.ones(1)))
    several = coef.ndim == 2 and len(coef) > 1  # outputs, which its reader refuses
    if kind.selects and not several and _has_signs(model):
        held = (COLUMNS, *held)
        if np.any(coef == 0):
            return Unwrapped(*_kept(model, coef.reshape(-1)), notes, held)
    return Unwrapped(model, (), notes, held)


def best_of(search: Any) -> Any:
    """Return the best model of a search, which was fitted on all records."""
    if not hasattr(search, "best_estimator_"):
        raise InputError(
            f"This {type(search).__name__} has no refitted best model; fit it with refit=True."
        )
    return search.best_estimator_


def _has_signs(model: Any) -> bool:
    """Return whether the model has an L1 penalty, which is optional for some kinds."""
    ratio = getattr(model, "l1_ratio_", getattr(model, "l1_ratio", 1.0))
    return bool(np.any(np.asarray(ratio if ratio is not None else 0.0, dtype=float) > 0))


def _kept(model: Any, coef: np.ndarray) -> tuple[Any, tuple[FeatureStep, ...]]:
    """Return the model with its nonzero coefficients, and the step that selects their columns."""
    columns = np.flatnonzero(coef)
    if not len(columns):
        raise refusal(
            "The penalty dropped every column, so the model is constant and has no coefficients "
            "to release.",
            "Fit with a smaller penalty.",
        )
    smaller = copy(model)
    smaller.coef_ = as_numpy(model.coef_)[..., columns]
    smaller.n_features_in_ = len(columns)
    smaller.__dict__.pop("feature_names_in_", None)
    return smaller, (KeptColumns(columns),)


def takes_frame(results: Any, X: Any) -> bool:
    """Return whether a table is the data frame of a formula rather than its design matrix."""
    model: Any = getattr(results, "model", None)
    if library_of(type(results)) != "statsmodels":
        return False
    if getattr(model, "formula", None) is None or not hasattr(X, "columns"):
        return False
    design = [str(name) for name in model.data.xnames]
    without = [n for k, n in enumerate(design) if k != model.data.const_idx]
    return [str(c) for c in X.columns] not in (design, without)

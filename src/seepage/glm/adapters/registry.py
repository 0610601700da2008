"""The registry of supported models, which maps a fitted model to the objective it minimises.

:func:`unwrap` extracts the model from searches, pipelines and formulas, and removes columns that a
penalty dropped. It returns a model that :func:`describe` can read, the steps from the caller's
table to the model's table, and notes on what an audit excludes. Readers for :mod:`seepage.glm`
models are in this module; readers for each other library are in a separate module.

The page ``docs/how-to/models.md`` lists every kind and is generated from this registry.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from seepage.core.result import CLASS_WEIGHTS, COLUMNS, SETTINGS
from seepage.errors import InputError
from seepage.glm.fitting.balance import ClassBalance
from seepage.glm.fitting.objective import FittedGLM, read_penalty
from seepage.glm.losses import (
    Categorical,
    Family,
    class_positions,
    class_targets,
    read_response,
    read_weights,
)
from seepage.glm.preprocessing.chain import Chain
from seepage.glm.preprocessing.formula import FormulaStep
from seepage.glm.preprocessing.steps import FeatureStep, KeptColumns
from seepage.glm.refusals import (
    PAGE,
    refusal,
    refuse_setting,
)
from seepage.support.library_classes import (
    SEARCHES,
    WRAPPERS,
    checked_name,
    is_pipeline,
    is_search,
    library_class,
    library_of,
    own_name,
)
from seepage.tables.names import counted
from seepage.tables.source import (
    Array,
    Table,
    as_numpy,
    check_length,
    column_names,
    place_like,
)

Read = Callable[[Any, Table, Any, Any], FittedGLM]
Penalty = Callable[[Any, int, float], float]


@dataclass(frozen=True)
class ModelKind:
    """A supported class of models, with its reader and its entry in the documentation."""

    library: str  # the package that defines the class
    name: str  # of the class; for statsmodels, of the model behind the results
    read: Read  # from the fitted model, a table, labels and weights to the description
    objective: str  # what it minimises, for the page
    note: str = ""  # one sentence on what its audit leaves out
    # What it chooses by looking at the data, in the words of ``Result.held``
    chooses: tuple[str, ...] = ()
    # Whether an L1 penalty drops columns, so that the audit is of the columns it keeps
    selects: bool = False
    # ``nλ`` from the number of records and the total weight, where it depends on these
    penalty: Penalty | None = None


@dataclass(frozen=True)
class RefusedKind:
    """A class of models without an exact audit, with the reason and the alternative."""

    library: str
    name: str  # ``*`` for all of a library
    why: str
    instead: str

    def error(self) -> InputError:
        """Return the error, which names the page of supported models."""
        return refusal(self.why, self.instead)


KINDS: list[ModelKind | RefusedKind] = []
_BY_NAME: dict[tuple[str, str], ModelKind | RefusedKind] = {}


def register(*kinds: ModelKind | RefusedKind) -> None:
    """Add kinds of models; :mod:`seepage.glm.adapters` adds those of all libraries."""
    KINDS.extend(kinds)
    _BY_NAME.update({(kind.library, kind.name): kind for kind in kinds})


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
    found = library_class(model, {library for library, _ in _BY_NAME})
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
    if checked_name(model, "sklearn", WRAPPERS) is not None:
        raise InputError(
            f"A {type(model).__name__} cannot be read here, because it contains more than one "
            "model or step. Pass it to sp.leakage or sp.audit, or pass its final model and that "
            "model's table (for a pipeline, pipeline[-1] and pipeline[:-1].transform(X))."
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
    wrapper = checked_name(model, "sklearn", WRAPPERS)
    if wrapper is not None:
        check_columns(model, X)
    if wrapper in SEARCHES:
        inner = unwrap(best_of(model), X)
        return replace(inner, held=(SETTINGS, *inner.held))
    if wrapper is not None:
        before = Chain.of_pipeline(model[:-1], X)
        inner = unwrap(model[-1], before.transform(X) if before.steps else X)
        return replace(inner, steps=(*before.steps, *inner.steps))
    kind = kind_of(model)
    notes, held = (kind.note,) if kind.note else (), kind.chooses
    if getattr(model, "class_weight", None) == "balanced":
        held = (*held, CLASS_WEIGHTS)
    if kind.library == "statsmodels" and takes_frame(model, X):
        return Unwrapped(model, (FormulaStep.of(model),), notes, held)
    coef = as_numpy(getattr(model, "coef_", np.ones(1)))
    several = coef.ndim == 2 and len(coef) > 1  # outputs, which its reader refuses
    if kind.selects and not several and _has_signs(model):
        held = (COLUMNS, *held)
        if np.any(coef == 0):
            check_columns(model, X)
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


# From a fitted model to its objective -------------------------------------------------------------


def reader(
    family_of: Family | Callable[[Any], Family | Categorical | type[Categorical]],
    penalty: Penalty,
    *,
    ratio_of: Callable[[Any], float] | None = None,
    check: Callable[[Any], None] | None = None,
    label_unit: float | None = None,
) -> Read:
    """Return a reader for models that minimise ``Σ ω ℓ + p (ρ‖w‖₁ + (1 − ρ)/2 ‖w‖²)``.

    Parameters
    ----------
    family_of
        The loss, or a function that returns the loss. If the function returns the type
        :class:`Categorical`, the loss is for as many classes as the model has.
    penalty
        A function that returns p from the model, the number of records and the total weight ``Σ
        ω``.
    ratio_of
        A function that returns ρ. Columns with a zero coefficient are dropped first: see
        :class:`~seepage.glm.preprocessing.steps.KeptColumns`.
    check
        A function that raises an error for settings that change the objective.
    label_unit
        The difference between the codes of the two classes, for example 2 for −1 and 1.
    """

    def read(model: Any, table: Table, y: Any, sample_weight: Any) -> FittedGLM:
        if getattr(model, "weighted_", False) and sample_weight is None:  # known of our own models
            raise InputError(
                f"This {type(model).__name__} was fitted with sample weights; pass the same "
                "weights as sample_weight=."
            )
        check_fitted_columns(model, table)
        if check is not None:
            check(model)
        named = family_of if isinstance(family_of, Family) else family_of(model)
        family = Categorical(len(model.classes_)) if isinstance(named, type) else named
        weights, balance = read_weights(sample_weight, table), None
        if hasattr(model, "classes_"):
            classes = as_numpy(model.classes_)
            if len(classes) != 2 and not isinstance(family, Categorical):
                raise refuse_setting(
                    model,
                    f"{len(classes)} classes",
                    "it fits a separate model for each class",
                    "Fit LogisticRegression, which fits one model for all classes.",
                )
            labels = as_numpy(y)
            if labels.ndim == 2 and labels.shape[1] == 1:
                labels = labels[:, 0]
            check_length(labels, table, "y")
            positions = class_positions(labels, classes)
            if getattr(model, "class_weight", None) == "balanced":
                balance = _balance(positions, weights, len(classes))
                weights = place_like(balance.weights(balance.sizes), table.values)
            elif getattr(model, "class_weight", None) is not None:
                weights = _with_class_weights(model, positions, weights, table)
            codes = class_targets(positions, family)
            codes = codes if label_unit is None else label_unit * (codes - 0.5)
            target = place_like(codes, table.values)
        else:
            target = read_response(y, table)
            family.check_labels(target)  # type: ignore[union-attr]
        every = None if weights is None else array_namespace(table.values).sum(weights)
        total = penalty(model, len(table), float(len(table) if every is None else every))
        ratio = 0.0 if ratio_of is None else ratio_of(model)
        coef = kept_coefficients(model) if total * ratio > 0 else model.coef_
        return FittedGLM.on(
            table,
            family,
            target,
            weights,
            coef=coef,
            intercept=model.intercept_ if model.fit_intercept else None,
            ridge=total * (1 - ratio),
            tilt=total * ratio * np.sign(coef) if total * ratio > 0 else None,
            label_unit=None if label_unit is None else np.full(len(table), label_unit),
            balance=balance,
        )

    return read


def one_output(model: Any) -> np.ndarray:
    """Return the coefficients of a single-output model, of shape (d,) or (1, d)."""
    coef = as_numpy(model.coef_)
    if coef.ndim == 2 and coef.shape[0] > 1:
        raise refuse_setting(
            model,
            f"{coef.shape[0]} outputs",
            "it consists of several models",
            "Fit one model per output, and compose the releases with sp.compose.",
        )
    return coef


def kept_coefficients(model: Any) -> np.ndarray:
    """Return the coefficients, (d,), or raise an error if any is zero."""
    coef = one_output(model)
    if np.any(coef == 0):
        raise refuse_setting(
            model,
            "columns that its L1 penalty dropped",
            "it has no derivative with respect to these columns",
            "Pass a model fitted only on the columns that the penalty kept; sp.leakage and "
            "sp.audit do this automatically.",
        )
    return np.asarray(coef.reshape(-1), dtype=float)


def _balance(positions: np.ndarray, weights: Array | None, count: int) -> ClassBalance:
    """Return scikit-learn's balanced class weights."""
    from sklearn.utils.class_weight import compute_class_weight

    own = np.ones(len(positions)) if weights is None else as_numpy(weights).astype(float)
    # Since 1.7 the sample weights are counted; follow the version that fitted the model.
    by_weight = "sample_weight" in inspect.signature(compute_class_weight).parameters
    return ClassBalance(positions, own, own if by_weight else np.ones(len(own)), count)


def _with_class_weights(
    model: Any, positions: np.ndarray, weights: Array | None, table: Table
) -> Array:
    """Return the sample weights multiplied by the weight of each record's class."""
    from sklearn.utils.class_weight import compute_class_weight

    classes = as_numpy(model.classes_)
    of_class = compute_class_weight(model.class_weight, classes=classes, y=classes[positions])
    per_row = place_like(of_class[positions], table.values)
    return per_row if weights is None else per_row * weights


def check_fitted_columns(model: Any, table: Table) -> None:
    """Raise an error unless the model is fitted, and the table has the fitted columns."""
    if not hasattr(model, "coef_"):
        raise InputError(f"This {type(model).__name__} is not fitted yet; call fit first.")
    size = int(model.coef_.shape[-1])
    if size != table.values.shape[1]:
        raise InputError(_other_count("X", table.values.shape[1], size))
    names = getattr(model, "feature_names_in_", None)
    if names is None or table.library in ("numpy", "torch"):
        return
    for position, (fitted, given) in enumerate(zip(names, table.names, strict=True)):
        if str(fitted) != given:
            raise InputError(_other_name("X", position, given, str(fitted)))


def check_columns(model: Any, X: Any, what: str = "X", known: Sequence[Any] | None = None) -> None:
    """Raise an error unless a data frame has the columns a model was fitted on, in the same order.

    ``known`` contains the fitted columns if the model does not store them. The last columns may be
    missing if a ``ColumnTransformer`` drops them.
    """
    inside = getattr(model, "best_estimator_", model) if is_search(model) else model
    fitted, given = getattr(inside, "feature_names_in_", known), column_names(X)
    size = getattr(inside, "n_features_in_", None) if is_pipeline(inside) else None
    if fitted is not None and given is not None:
        size = len(fitted)
    if size is None:
        return
    used, shape = _used(inside, size), np.shape(X)
    if len(shape) == 2 and not max(used, default=-1) < shape[1] <= size:
        raise InputError(_other_count(what, shape[1], size))
    if fitted is None or given is None:
        return
    for position in used:
        if str(given[position]) != str(fitted[position]):
            names = str(given[position]), str(fitted[position])
            raise InputError(_other_name(what, position, *names))


def _used(model: Any, size: int) -> Sequence[int]:
    """Return the positions of the columns that a pipeline's first step uses."""
    step = model
    while own_name(step, "sklearn", ("Pipeline",)) is not None:
        step = step.steps[0][1]
    if own_name(step, "sklearn", ("ColumnTransformer",)) is None:
        return range(size)
    dropped = [n for n, t, _ in step.transformers_ if isinstance(t, str) and t == "drop"]
    indices = step._transformer_to_input_indices.items()
    return sorted({int(j) for name, where in indices if name not in dropped for j in where})


def check_column_count(fitted: int, table: Table) -> None:
    """Raise an error unless the table has the number of columns that the model was fitted on."""
    if fitted != table.values.shape[1]:
        raise InputError(_other_count("X", table.values.shape[1], fitted))


def _other_name(what: str, position: int, given: str, fitted: str) -> str:
    return (
        f"Column {position} of {what} is {given!r}, but it was {fitted!r} when the model was "
        "fitted; pass the columns in their original order."
    )


def _other_count(what: str, given: int, fitted: int) -> str:
    if what == "X":
        return (
            f"X has {counted(given, 'column')}, but the model was fitted on {fitted}; pass the "
            "table it was fitted on."
        )
    return (
        f"The queries have {counted(given, 'column')}, but the model has {fitted}; pass the "
        "columns the model was fitted on."
    )


# The models of seepage.glm ----------------------------------------------------------------------


def _penalty(model: Any, rows: int, weight: float) -> float:
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
_ours = reader(attrgetter("_loss"), _penalty)
# Our classes derived from the first two are recognised by them.
register(
    ModelKind("seepage", "GLMClassifier", _ours, _OBJECTIVE, penalty=_penalty),
    ModelKind("seepage", "GLMRegressor", _ours, _OBJECTIVE, penalty=_penalty),
    ModelKind("seepage", "GivenModel", _given, _OBJECTIVE),
)

"""How the linear models of scikit-learn are read; their penalties are mapped exactly."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from seepage.errors import InputError
from seepage.glm.adapters.kinds import TUNED, ModelKind, Read, refuse_setting
from seepage.glm.fitting.objective import FittedGLM
from seepage.glm.inputs import (
    check_fitted_columns,
    read_known_classes,
    read_response,
    read_weights,
)
from seepage.glm.losses import (
    Categorical,
    Family,
    bernoulli,
    class_targets,
    gamma,
    gaussian,
    poisson,
    squared_hinge,
    tweedie,
)
from seepage.tables.source import Array, Table, as_numpy, place_like

# Regressions --------------------------------------------------------------------------------------


def _least_squares(model: Any, table: Table, y: Any, sample_weight: Any) -> FittedGLM:
    """``LinearRegression``, ``Ridge`` and ``RidgeCV``: ``Σ ω (wᵀx − y)² + α‖w‖²``."""
    check_fitted_columns(model, table)
    weights = read_weights(sample_weight, table)
    ridge, target = _alpha(model), read_response(y, table)
    return FittedGLM.on(
        table,
        gaussian,
        target,
        weights,
        coef=model.coef_,
        intercept=_intercept(model),
        ridge=ridge,
    )


def _alpha(model: Any) -> float:
    """Return α, or 0 where there is none; refuse several outputs and constraints."""
    if model.coef_.ndim == 2 and model.coef_.shape[0] > 1:
        raise _several_outputs(model, f"{model.coef_.shape[0]} outputs")
    if getattr(model, "positive", False):
        raise _positive(model)
    given = getattr(model, "alpha_", getattr(model, "alpha", 0.0))
    return float(np.ravel(given)[0])  # one output has one value


def _several_outputs(model: Any, what: str) -> InputError:
    return refuse_setting(
        model,
        what,
        "it is several models in one",
        "Fit one model for each output, and compose the releases with sp.compose.",
    )


def _positive(model: Any) -> InputError:
    return refuse_setting(
        model,
        "positive=True",
        "its coefficients are constrained, so they need not minimise the loss",
        "Fit with positive=False.",
    )


def _intercept(model: Any) -> Any:
    return model.intercept_ if model.fit_intercept else None


def mean_loss(family_of: Callable[[Any], Family]) -> Read:
    """Return the reader of a model that minimises ``Σ ω ℓ / Σ ω + (α/2)‖w‖²``."""

    def read(model: Any, table: Table, y: Any, sample_weight: Any) -> FittedGLM:
        check_fitted_columns(model, table)
        family, weights = family_of(model), read_weights(sample_weight, table)
        return FittedGLM.on(
            table,
            family,
            read_response(y, table),
            weights,
            coef=model.coef_,
            intercept=_intercept(model),
            ridge=float(model.alpha) * total_weight(table, weights),
        )

    return read


def total_weight(table: Table, weights: Array | None) -> float:
    """Return ``Σ ω``."""
    if weights is None:
        return float(len(table))
    return float(array_namespace(table.values).sum(weights))


def _tweedie_of(model: Any) -> Family:
    power = float(model.power)
    log = model.link == "log" or (model.link == "auto" and power > 0)
    if power == 0 and not log:
        return gaussian
    if not (1 <= power <= 2 and log):
        raise refuse_setting(
            model,
            f"power={power:g} and the {'logarithmic' if log else 'identity'} link",
            "its loss is not convex in the coefficients",
            "Take a power from 1 to 2 with the logarithmic link, or 0 with the identity.",
        )
    return tweedie(power)


def selected(family: Family, alpha_of: Callable[[Any], tuple[float, float]]) -> Read:
    """Return the reader of ``Σ ω ℓ / Σ ω + α (ρ‖w‖₁ + (1 − ρ)/2 ‖w‖²)`` on the kept columns.

    ``alpha_of`` gives α and ρ. Columns with a coefficient of zero have been dropped before:
    see :class:`~seepage.glm.preprocessing.steps.KeptColumns`.
    """

    def read(model: Any, table: Table, y: Any, sample_weight: Any) -> FittedGLM:
        if getattr(model, "positive", False):
            raise _positive(model)
        check_fitted_columns(model, table)
        coef = kept_coefficients(model)
        weights = read_weights(sample_weight, table)
        if family is bernoulli:
            positions = read_known_classes(y, as_numpy(model.classes_), table)
            target = place_like(class_targets(positions, family), table.values)
        else:
            target = read_response(y, table)
        alpha, ratio = alpha_of(model)
        total = alpha * total_weight(table, weights)
        return FittedGLM.on(
            table,
            family,
            target,
            weights,
            coef=coef,
            intercept=_intercept(model),
            ridge=total * (1 - ratio),
            tilt=total * ratio * np.sign(coef) if ratio > 0 else None,
        )

    return read


def kept_coefficients(model: Any) -> np.ndarray:
    """Return the coefficients, none of which may be zero, (d,)."""
    coef = as_numpy(model.coef_)
    if coef.ndim == 2 and coef.shape[0] > 1:
        raise _several_outputs(model, f"{coef.shape[0]} outputs")
    if np.any(coef == 0):
        raise refuse_setting(
            model,
            "columns that its L1 penalty dropped",
            "it has no derivative along them",
            "Pass a model of the columns it kept; sp.leakage and sp.audit do so by themselves.",
        )
    return np.asarray(coef.reshape(-1), dtype=float)


def _lasso_alpha(model: Any) -> tuple[float, float]:
    """Return α and ρ of ``Lasso`` and ``ElasticNet``, as they were given or chosen."""
    ratio = getattr(model, "l1_ratio_", getattr(model, "l1_ratio", 1.0))
    return float(getattr(model, "alpha_", getattr(model, "alpha", 1.0))), float(ratio)


def _sgd_regressor(model: Any, table: Table, y: Any, sample_weight: Any) -> FittedGLM:
    check_fitted_columns(model, table)
    return FittedGLM.on(
        table,
        _sgd_family(model, {"squared_error": gaussian}),
        read_response(y, table),
        read_weights(sample_weight, table),
        coef=model.coef_,
        intercept=_intercept(model),
        ridge=_sgd_ridge(model, len(table)),
    )


def _sgd_family(model: Any, known: dict[str, Family]) -> Family:
    if model.loss not in known:
        raise refuse_setting(
            model,
            f"loss={model.loss!r}",
            "this loss does not have two derivatives everywhere",
            f"Fit with loss={next(iter(known))!r}.",
        )
    return known[model.loss]


def _sgd_ridge(model: Any, rows: int) -> float:
    """Return nα: the penalty is ``(α/2)‖w‖²`` beside the mean of the losses over the records."""
    if model.penalty not in ("l2", None):
        raise refuse_setting(
            model,
            f"penalty={model.penalty!r}",
            "gradient steps bring coefficients near zero but not to it, so which columns are kept "
            "is not settled",
            "Fit with penalty='l2', or fit Lasso or ElasticNet.",
        )
    if getattr(model, "average", False):
        raise refuse_setting(
            model, "average=True", "the average of many steps minimises nothing", "Leave it out."
        )
    return 0.0 if model.penalty is None else rows * float(model.alpha)


# Classes ------------------------------------------------------------------------------------------


def _logistic(model: Any, table: Table, y: Any, sample_weight: Any) -> FittedGLM:
    """``LogisticRegression`` and ``LogisticRegressionCV``: ``C Σ ω ℓ + ½‖w‖²``."""
    check_fitted_columns(model, table)
    classes = as_numpy(model.classes_)
    ridge = _logistic_ridge(model)
    _check_logistic_form(model, len(classes))
    family = bernoulli if len(classes) == 2 else Categorical(len(classes))
    positions = read_known_classes(y, classes, table)
    weights = _with_class_weights(model, positions, read_weights(sample_weight, table), table)
    return FittedGLM.on(
        table,
        family,
        place_like(class_targets(positions, family), table.values),
        weights,
        coef=model.coef_,
        intercept=_intercept(model),
        ridge=ridge,
    )


def _logistic_ridge(model: Any) -> float:
    """Return 1/C; scikit-learn before 1.8 says ``penalty``, since then ``l1_ratio`` and ``C``."""
    penalty = getattr(model, "penalty", "deprecated")
    given: Any = getattr(model, "l1_ratio_", getattr(model, "l1_ratio", None))
    ratio = max((float(r) for r in np.atleast_1d(given) if r is not None), default=0.0)
    absolute = ratio > 0 if penalty == "deprecated" else penalty == "l1"
    mixed = penalty == "elasticnet" and ratio > 0
    if absolute or mixed:
        raise refuse_setting(
            model,
            "an L1 penalty",
            "its objective has no second derivative",
            "Fit with an L2 penalty only, or fit skglm's SparseLogisticRegression.",
        )
    C = np.unique(np.asarray(getattr(model, "C_", getattr(model, "C", np.inf)), dtype=float))
    if not getattr(model, "refit", True) or len(C) != 1:
        raise refuse_setting(
            model,
            "coefficients averaged over folds, or a C for each class",
            "they minimise no single objective",
            "Fit with refit=True and the multinomial loss.",
        )
    return 0.0 if penalty is None else 1.0 / float(C[0])


def _check_logistic_form(model: Any, classes: int) -> None:
    scheme = getattr(model, "multi_class", "deprecated")
    if classes > 2 and (scheme == "ovr" or model.solver == "liblinear"):
        raise refuse_setting(
            model,
            "one model per class (one-vs-rest)",
            "it is several models in one",
            "Fit the multinomial model, or audit each binary model by itself.",
        )
    if classes == 2 and scheme == "multinomial":
        raise refuse_setting(
            model,
            "multi_class='multinomial' and two classes",
            "it has two sets of coefficients that say the same",
            "Leave multi_class out.",
        )
    if model.solver == "liblinear" and model.fit_intercept:
        raise refuse_setting(
            model,
            "solver='liblinear' and an intercept",
            "liblinear penalises the intercept",
            "Fit with solver='lbfgs' or 'newton-cholesky'.",
        )


def _with_class_weights(
    model: Any, positions: np.ndarray, weights: Array | None, table: Table
) -> Array | None:
    """Return the sample weights times the weight of each record's class, by scikit-learn's rule."""
    if model.class_weight is None:
        return weights
    from sklearn.utils.class_weight import compute_class_weight

    classes = as_numpy(model.classes_)
    # Since 1.7 balanced weights count the sample weights; follow the version that fitted the model.
    counted = "sample_weight" in inspect.signature(compute_class_weight).parameters
    extra = {} if weights is None or not counted else {"sample_weight": as_numpy(weights)}
    of_class = compute_class_weight(
        model.class_weight, classes=classes, y=classes[positions], **extra
    )
    per_row = place_like(of_class[positions], table.values)
    return per_row if weights is None else per_row * weights


def _ridge_classifier(model: Any, table: Table, y: Any, sample_weight: Any) -> FittedGLM:
    """``Σ ω (wᵀx − y)² + α‖w‖²`` with −1 and 1 for the two classes."""
    positions, weights = _two_classes(model, table, y, sample_weight)
    return FittedGLM.on(
        table,
        gaussian,
        place_like(2.0 * positions - 1.0, table.values),
        weights,
        coef=model.coef_,
        intercept=_intercept(model),
        ridge=_alpha(model),
        label_unit=np.full(len(table), 2.0),
    )


def _sgd_classifier(model: Any, table: Table, y: Any, sample_weight: Any) -> FittedGLM:
    positions, weights = _two_classes(model, table, y, sample_weight)
    return FittedGLM.on(
        table,
        _sgd_family(model, {"log_loss": bernoulli}),
        place_like(positions.astype(float), table.values),
        weights,
        coef=model.coef_,
        intercept=_intercept(model),
        ridge=_sgd_ridge(model, len(table)),
    )


def _linear_svc(model: Any, table: Table, y: Any, sample_weight: Any) -> FittedGLM:
    """``C Σ ω max(0, 1 − y wᵀx)² + ½‖w‖²``."""
    if model.loss != "squared_hinge" or model.penalty != "l2":
        raise refuse_setting(
            model,
            f"loss={model.loss!r} and penalty={model.penalty!r}",
            "its objective has kinks",
            "Fit with the squared hinge and the L2 penalty.",
        )
    if model.fit_intercept:
        raise refuse_setting(
            model,
            "an intercept",
            "liblinear penalises it like a coefficient",
            "Centre the columns and fit with fit_intercept=False, or fit LogisticRegression.",
        )
    positions, weights = _two_classes(model, table, y, sample_weight)
    return FittedGLM.on(
        table,
        squared_hinge,
        place_like(positions.astype(float), table.values),
        weights,
        coef=model.coef_,
        intercept=None,
        ridge=1.0 / float(model.C),
    )


def _two_classes(
    model: Any, table: Table, y: Any, sample_weight: Any
) -> tuple[np.ndarray, Array | None]:
    """Return the position of every record's class among the model's two, and the weights."""
    check_fitted_columns(model, table)
    classes = as_numpy(model.classes_)
    if len(classes) != 2:
        raise refuse_setting(
            model,
            f"{len(classes)} classes",
            "it is one model for each class",
            "Fit LogisticRegression, which is one model for all classes.",
        )
    positions = read_known_classes(y, classes, table)
    weights = _with_class_weights(model, positions, read_weights(sample_weight, table), table)
    return positions, weights


_EDGES = (
    "Records outside the margin leak nothing to first order; a change large enough to carry one "
    "across its edge is left out."
)
_CODES = "The two classes are the numbers −1 and 1 here; changing the class moves the label by 2."
_LASSO = "Σ ω (wᵀx − y)² / 2Σω + α (ρ‖w‖₁ + (1 − ρ)‖w‖²/2)"
_MEAN = "Σ ω ℓ / Σω + (α/2)‖w‖²"


def _per_weight(model: Any, rows: int, weight: float) -> float:
    return float(model.alpha) * weight


def _per_record(model: Any, rows: int, weight: float) -> float:
    return _sgd_ridge(model, rows)


KINDS = (
    ModelKind("sklearn", "LinearRegression", _least_squares, "Σ ω (wᵀx − y)²"),
    ModelKind("sklearn", "Ridge", _least_squares, "Σ ω (wᵀx − y)² + α‖w‖²"),
    ModelKind("sklearn", "RidgeCV", _least_squares, "as Ridge, with the α chosen", TUNED),
    ModelKind("sklearn", "Lasso", selected(gaussian, _lasso_alpha), _LASSO, selects=True),
    ModelKind("sklearn", "ElasticNet", selected(gaussian, _lasso_alpha), _LASSO, selects=True),
    ModelKind(
        "sklearn",
        "LassoCV",
        selected(gaussian, _lasso_alpha),
        "as Lasso, with the α chosen",
        TUNED,
        selects=True,
    ),
    ModelKind(
        "sklearn",
        "ElasticNetCV",
        selected(gaussian, _lasso_alpha),
        "as ElasticNet, with α and ρ chosen",
        TUNED,
        selects=True,
    ),
    ModelKind("sklearn", "LogisticRegression", _logistic, "C Σ ω ℓ + ½‖w‖², also multinomial"),
    ModelKind(
        "sklearn", "LogisticRegressionCV", _logistic, "as LogisticRegression, C chosen", TUNED
    ),
    ModelKind(
        "sklearn",
        "RidgeClassifier",
        _ridge_classifier,
        "Σ ω (wᵀx − y)² + α‖w‖², two classes",
        _CODES,
    ),
    ModelKind(
        "sklearn",
        "RidgeClassifierCV",
        _ridge_classifier,
        "as RidgeClassifier, with the α chosen",
        f"{_CODES} {TUNED}",
    ),
    ModelKind(
        "sklearn",
        "PoissonRegressor",
        mean_loss(lambda model: poisson),
        _MEAN,
        penalty=_per_weight,
    ),
    ModelKind(
        "sklearn",
        "GammaRegressor",
        mean_loss(lambda model: gamma),
        _MEAN,
        penalty=_per_weight,
    ),
    ModelKind(
        "sklearn",
        "TweedieRegressor",
        mean_loss(_tweedie_of),
        f"{_MEAN}, powers 0 and 1 to 2",
        penalty=_per_weight,
    ),
    ModelKind(
        "sklearn",
        "SGDRegressor",
        _sgd_regressor,
        "Σ ω (wᵀx − y)²/2n + (α/2)‖w‖², if converged",
        penalty=_per_record,
    ),
    ModelKind(
        "sklearn",
        "SGDClassifier",
        _sgd_classifier,
        "Σ ω ℓ/n + (α/2)‖w‖², if converged",
        penalty=_per_record,
    ),
    ModelKind(
        "sklearn",
        "LinearSVC",
        _linear_svc,
        "C Σ ω max(0, 1 − y wᵀx)² + ½‖w‖², no intercept",
        _EDGES,
    ),
)

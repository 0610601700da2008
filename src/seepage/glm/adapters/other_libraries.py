"""How the models of glum and skglm are read."""

from __future__ import annotations

from typing import Any

import numpy as np

from seepage.glm.adapters.kinds import TUNED, ModelKind, RefusedKind, refuse_setting
from seepage.glm.adapters.scikit_learn import (
    kept_coefficients,
    selected,
    total_weight,
)
from seepage.glm.fitting.objective import FittedGLM
from seepage.glm.inputs import check_fitted_columns, read_response, read_weights
from seepage.glm.losses import Family, bernoulli, gamma, gaussian, poisson, tweedie
from seepage.support.library_classes import own_name
from seepage.tables.source import Table, as_numpy

_GLUM: dict[tuple[str | None, str | None], Family] = {
    ("NormalDistribution", "IdentityLink"): gaussian,
    ("BinomialDistribution", "LogitLink"): bernoulli,
    ("PoissonDistribution", "LogLink"): poisson,
    ("GammaDistribution", "LogLink"): gamma,
}
_FREE = {
    "scale_predictors": False,
    "P1": "identity",
    "P2": "identity",
    "monotonic_constraints": None,
}
_BOUNDS = ("lower_bounds", "upper_bounds", "A_ineq")


def _glum(model: Any, table: Table, y: Any, sample_weight: Any) -> FittedGLM:
    """``Σ ω ℓ / Σ ω + α (ρ‖w‖₁ + (1 − ρ)/2 ‖w‖²)``, on the columns that are kept."""
    check_fitted_columns(model, table)
    for name, plain in _FREE.items():
        given = getattr(model, name, plain)
        if given is not plain and not (isinstance(given, str) and given == plain):
            raise refuse_setting(
                model,
                name,
                "it changes the penalty or constrains the coefficients",
                f"Fit without {name}.",
            )
    for name in _BOUNDS:
        if getattr(model, name, None) is not None:
            raise refuse_setting(
                model, name, "it constrains the coefficients", f"Fit without {name}."
            )
    weights = read_weights(sample_weight, table)
    alpha = getattr(model, "alpha_", None)
    alpha = getattr(model, "alpha", None) if alpha is None else alpha
    ratio = float(getattr(model, "l1_ratio_", model.l1_ratio) or 0.0)
    total = float(alpha or 0.0) * total_weight(table, weights)
    coef = as_numpy(model.coef_) if total * ratio == 0 else kept_coefficients(model)
    return FittedGLM.on(
        table,
        _glum_family(model),
        read_response(y, table),
        weights,
        coef=coef,
        intercept=model.intercept_ if model.fit_intercept else None,
        ridge=total * (1 - ratio),
        tilt=total * ratio * np.sign(coef) if total * ratio > 0 else None,
    )


def _glum_family(model: Any) -> Family:
    family, link = model.family_instance, model.link_instance
    # Somebody's own class is not the one that is known by its name.
    own = (own_name(family, "glum"), own_name(link, "glum"))
    if own == ("TweedieDistribution", "LogLink") and 1 <= family.power <= 2:
        return tweedie(float(family.power))
    found = _GLUM.get(own)
    if found is None:
        raise refuse_setting(
            model,
            f"the family {model.family!r} and the link {model.link!r}",
            "this loss is not implemented here",
            "Take the normal family with the identity link, the binomial with the logit, or "
            "Poisson, gamma or Tweedie (power from 1 to 2) with the logarithm.",
        )
    return found


def _skglm_alpha(model: Any) -> tuple[float, float]:
    return float(model.alpha), float(getattr(model, "l1_ratio", 1.0))


_PENALTY = "Σ ω ℓ / Σω + α (ρ‖w‖₁ + (1 − ρ)‖w‖²/2)"
KINDS: tuple[ModelKind | RefusedKind, ...] = (
    ModelKind("glum", "GeneralizedLinearRegressor", _glum, _PENALTY, selects=True),
    ModelKind(
        "glum",
        "GeneralizedLinearRegressorCV",
        _glum,
        "the same, with α and ρ chosen",
        TUNED,
        selects=True,
    ),
    ModelKind("skglm", "Lasso", selected(gaussian, _skglm_alpha), _PENALTY, selects=True),
    ModelKind("skglm", "ElasticNet", selected(gaussian, _skglm_alpha), _PENALTY, selects=True),
    ModelKind(
        "skglm",
        "SparseLogisticRegression",
        selected(bernoulli, _skglm_alpha),
        _PENALTY,
        selects=True,
    ),
    RefusedKind(
        "skglm",
        "*",
        "The loss or penalty of this skglm estimator is not convex, or lacks a second derivative "
        "on the columns it keeps.",
        "Fit skglm's Lasso, ElasticNet or SparseLogisticRegression.",
    ),
)

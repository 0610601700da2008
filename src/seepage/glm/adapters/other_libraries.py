"""Readers for glum and skglm models."""

from __future__ import annotations

from functools import partial
from typing import Any

from seepage.core.result import PENALTY
from seepage.glm.adapters.registry import (
    ModelKind,
    RefusedKind,
    reader,
)
from seepage.glm.adapters.scikit_learn import lasso, lasso_ratio, per_weight
from seepage.glm.losses import Family, bernoulli, gamma, gaussian, poisson, tweedie
from seepage.glm.refusals import refuse_setting
from seepage.support.library_classes import own_name

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
    "lower_bounds": None,
    "upper_bounds": None,
    "A_ineq": None,
}


def _check_glum(model: Any) -> None:
    for name, plain in _FREE.items():
        given = getattr(model, name, plain)
        if given is not plain and not (isinstance(given, str) and given == plain):
            raise refuse_setting(
                model,
                name,
                "it changes the penalty or constrains the coefficients",
                f"Fit without {name}.",
            )


def _glum_penalty(model: Any, rows: int, weight: float) -> float:
    alpha = getattr(model, "alpha_", None)
    alpha = getattr(model, "alpha", None) if alpha is None else alpha
    return float(alpha or 0.0) * weight


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
            "this loss is not implemented in seepage",
            "Use the normal family with the identity link, the binomial with the logit, or "
            "Poisson, gamma or Tweedie (power from 1 to 2) with the logarithm.",
        )
    return found


_glum = reader(_glum_family, _glum_penalty, ratio_of=lasso_ratio, check=_check_glum)
_sparse_logistic = reader(bernoulli, per_weight, ratio_of=lasso_ratio)
_PENALTY = "Σ ω ℓ / Σω + α (ρ‖w‖₁ + (1 − ρ)‖w‖²/2)"
_kind = partial(ModelKind, selects=True)
KINDS: tuple[ModelKind | RefusedKind, ...] = (
    _kind("glum", "GeneralizedLinearRegressor", _glum, _PENALTY),
    _kind(
        "glum",
        "GeneralizedLinearRegressorCV",
        _glum,
        "as without CV, with the selected penalty",
        chooses=(PENALTY,),
    ),
    _kind("skglm", "Lasso", lasso, _PENALTY),
    _kind("skglm", "ElasticNet", lasso, _PENALTY),
    _kind("skglm", "SparseLogisticRegression", _sparse_logistic, _PENALTY),
    RefusedKind(
        "skglm",
        "*",
        "The loss or penalty of this skglm estimator is not convex, or lacks a second derivative "
        "on the columns it keeps.",
        "Fit skglm's Lasso, ElasticNet or SparseLogisticRegression.",
    ),
)

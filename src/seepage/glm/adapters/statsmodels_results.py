"""Readers for statsmodels results: least squares, logit, Poisson and GLM.

The table is the model's ``exog``, with or without its column of ones. If the table has no such
column, the column's coefficient is the intercept; otherwise the column is treated as data. For a
model with a formula, the table may also be the caller's data frame, which
:mod:`~seepage.glm.adapters.registry` converts.

An offset ``o`` is absorbed into the labels and weights. With a logarithmic link, ``ℓ_p(m + o, y) =
e^{(2−p)o} ℓ_p(m, y e^{−o})`` for the Tweedie loss of power p (Poisson: 1, gamma: 2). With the
identity link, ``ℓ(m + o, y) = ℓ(m, y − o)``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.glm.adapters.registry import (
    ModelKind,
    Read,
    check_column_count,
)
from seepage.glm.fitting.objective import FittedGLM
from seepage.glm.losses import (
    Family,
    bernoulli,
    gamma,
    gaussian,
    poisson,
    read_response,
    read_weights,
    tweedie,
)
from seepage.glm.refusals import refusal
from seepage.support.library_classes import own_name
from seepage.tables.source import Table, as_numpy, place_like

_LINKS: dict[tuple[str | None, str | None], Family] = {
    ("Gaussian", "Identity"): gaussian,
    ("Binomial", "Logit"): bernoulli,
    ("Poisson", "Log"): poisson,
    ("Gamma", "Log"): gamma,
}


def _reader(family_of: Callable[[Any], Family], weights_of: Callable[[Any], Any]) -> Read:
    """Return a reader for results whose model defines its family and weights."""

    def read(results: Any, table: Table, y: Any, sample_weight: Any) -> FittedGLM:
        model = getattr(results, "model", results)
        _check_fit(results, model)
        family = family_of(model)
        params = np.asarray(results.params, dtype=float)
        coef, intercept = _split_constant(params, model, table)
        target = read_response(y, table)
        weights = _own_weights(weights_of(model), table, sample_weight)
        unit = None
        offset = _offset(model)
        if offset is not None:
            target, weights, unit = _moved(
                family, offset, as_numpy(target), None if weights is None else as_numpy(weights)
            )
            target = place_like(target, table.values)
            weights = read_weights(weights, table)
        family.check_labels(target)
        return FittedGLM.on(
            table,
            family,
            target,
            weights,
            coef=coef,
            intercept=intercept,
            ridge=0.0,
            label_unit=unit,
        )

    return read


def _check_fit(results: Any, model: Any) -> None:
    """Raise an error if a model is not fitted, or does not minimise its own loss."""
    name = type(model).__name__
    if not hasattr(results, "params"):
        raise InputError(
            f"This statsmodels {name} is not fitted yet; pass the results of its fit()."
        )
    if "Regularized" in type(results).__name__ or type(results).__name__.startswith("L1"):
        raise refusal(
            "Regularised statsmodels fits are not supported, because their penalty is not stored "
            "in the results.",
            "Fit with seepage.glm or scikit-learn, whose L2 penalty can be read.",
        )
    if getattr(results, "constraints", None) is not None:
        raise refusal(
            f"A statsmodels {name} fitted under constraints is not supported, because its "
            "coefficients do not minimise the loss.",
            "Fit it without constraints.",
        )
    if np.any(np.asarray(getattr(model, "n_trials", 1)) != 1):
        raise refusal(
            f"A statsmodels {name} on counts of successes and failures is not supported, because "
            "one row contains several records.",
            "Pass one row per trial, or the share of successes with freq_weights.",
        )


def _glm_family(model: Any) -> Family:
    family, link = model.family, model.family.link
    # Somebody's own class is not the one that is known by its name.
    own = (own_name(family, "statsmodels"), own_name(link, "statsmodels"))
    if own == ("Tweedie", "Log") and 1 <= model.family.var_power <= 2:
        return tweedie(float(model.family.var_power))
    found = _LINKS.get(own)
    if found is None:
        known = ", ".join(f"{family} with {its}" for family, its in _LINKS)
        whose = " (a class other than statsmodels' own)" if None in own else ""
        raise refusal(
            f"A statsmodels GLM of family {type(family).__name__} with link "
            f"{type(link).__name__}{whose} is not supported, because its loss is not implemented.",
            f"Use {known}, or Tweedie with Log and a power from 1 to 2.",
        )
    return found


def _glm_weights(model: Any) -> Any:
    """Return the model's weights, freq_weights · var_weights."""
    return np.asarray(model.freq_weights, dtype=float) * np.asarray(model.var_weights, dtype=float)


def _gls_weights(model: Any) -> Any:
    """Return the inverse variances of the errors; raise an error if they are correlated."""
    sigma = model.sigma
    if sigma is None:
        return None
    sigma = np.asarray(sigma, dtype=float)
    if sigma.ndim == 2:
        if np.any(sigma - np.diag(np.diag(sigma))):
            raise refusal(
                "A GLS model with correlated errors is not supported: its objective is not a sum "
                "over records, and changing one record changes the weights of others.",
                "Fit WLS, or GLS with a diagonal sigma, or treat each correlated unit (a clinic, "
                "a household) as one record.",
            )
        sigma = np.diag(sigma)
    return 1 / np.broadcast_to(sigma, (len(np.asarray(model.endog)),))


def _offset(model: Any) -> np.ndarray | None:
    """Return the sum of offset and log exposure, or ``None`` if it is always zero."""
    total: np.ndarray | float = 0.0
    for what in ("offset", "exposure"):
        given = getattr(model, what, None)  # the exposure is kept as its logarithm
        if given is not None:
            total = total + np.asarray(given, dtype=float)
    return None if np.ndim(total) == 0 or not np.any(total) else np.asarray(total)


def _moved(
    family: Family, offset: np.ndarray, y: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Return labels and weights that absorb an offset, and the factor for label changes."""
    if family is gaussian:
        return y - offset, weights, None
    if family is bernoulli:
        raise refusal(
            "A logistic model with an offset is not supported, because labels and weights cannot "
            "absorb the offset.",
            "Add the offset to the table as a column with its own coefficient.",
        )
    power = 1.0 if family is poisson else 2.0 if family is gamma else float(family.name.split()[1])
    shrunk = np.exp(-offset)
    own = np.exp((2 - power) * offset)
    return y * shrunk, own if weights is None else own * weights, shrunk


def _split_constant(
    params: np.ndarray, model: Any, table: Table
) -> tuple[np.ndarray, float | None]:
    """Return the columns' coefficients, and the intercept if the table lacks a column of ones."""
    names = [str(name) for name in model.data.xnames]
    constant = model.data.const_idx
    without = constant is not None and table.values.shape[1] == params.shape[0] - 1
    if without:
        if np.any(np.asarray(model.exog)[:, constant] != 1):
            raise InputError(
                f"Column {names[constant]!r} of the statsmodels {type(model).__name__} is constant "
                "but not 1, so it is not an intercept; pass the table with this column."
            )
        names.pop(constant)
    else:
        check_column_count(params.shape[0], table)
    if table.library not in ("numpy", "torch") and tuple(names) != table.names:
        raise InputError(
            f"The columns of X are {', '.join(table.names[:8])}, but the model was fitted on "
            f"{', '.join(names[:8])}; pass the fitted columns in their original order."
        )
    if not without:
        return params, None
    return np.delete(params, constant), float(params[constant])


def _own_weights(own: Any, table: Table, sample_weight: Any) -> Any:
    """Return the model's own weights; ``sample_weight`` must be omitted or equal to them."""
    if own is None:
        own = np.ones(len(table))
    if sample_weight is not None and not np.array_equal(as_numpy(sample_weight), own):
        raise InputError(
            "The statsmodels model has its own weights (such as freq_weights · var_weights), "
            "which differ from sample_weight; omit sample_weight."
        )
    return read_weights(own, table)


def _none(model: Any) -> None:
    return None


def _own(model: Any) -> Any:
    return np.asarray(model.weights, dtype=float)


_squares = partial(_reader, lambda model: gaussian)
_kind = partial(ModelKind, "statsmodels")
KINDS = (
    _kind("OLS", _squares(_none), "Σ (wᵀx − y)²"),
    _kind("WLS", _squares(_own), "Σ ω (wᵀx − y)²"),
    _kind("GLS", _squares(_gls_weights), "Σ (wᵀx − y)²/σ², errors independent"),
    _kind("Logit", _reader(lambda model: bernoulli, _none), "Σ ℓ"),
    _kind("Poisson", _reader(lambda model: poisson, _none), "Σ ℓ, also with exposure"),
    _kind(
        "GLM",
        _reader(_glm_family, _glm_weights),
        "Σ ω ℓ: Gaussian, binomial with logit; Poisson, gamma, Tweedie with log; also with an "
        "offset or exposure",
    ),
)

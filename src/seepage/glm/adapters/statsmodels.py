"""Describe the results of statsmodels' GLM with its canonical links."""

from __future__ import annotations

from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.glm.estimators.inputs import check_column_count, read_response, read_weights
from seepage.glm.fitting.objective import FittedGLM
from seepage.glm.losses.families import Family, bernoulli, gaussian, poisson
from seepage.tables.source import Table, as_numpy

_CANONICAL: dict[tuple[str, str], Family] = {
    ("Gaussian", "Identity"): gaussian,
    ("Binomial", "Logit"): bernoulli,
    ("Poisson", "Log"): poisson,
}


def describe_statsmodels(
    results: Any, table: Table, y: Any, sample_weight: Any
) -> FittedGLM | None:
    """Return the description of statsmodels results, or ``None`` for others than GLM's.

    The table is the model's ``exog``, with or without its column of ones: left out, that column's
    coefficient is the intercept; passed, it counts as data like every other column.
    """
    model = getattr(results, "model", results)
    if type(model).__name__ != "GLM":
        return None
    if not hasattr(results, "params"):
        raise InputError("This statsmodels GLM is not fitted yet: pass the results of its fit().")
    if not type(results).__name__.startswith("GLMResults"):
        raise InputError(
            "Regularised fits of statsmodels are not supported; fit with seepage.glm or "
            "scikit-learn, whose L2 penalty is known."
        )
    _check_plain(results, model)
    params = np.asarray(results.params, dtype=float)
    coef, intercept = _split(params, model, table)
    target = read_response(y, table)
    weights = _weights(model, table, sample_weight)
    family = _family(model)
    return FittedGLM.on(table, family, target, weights, coef=coef, intercept=intercept, ridge=0.0)


def _family(model: Any) -> Family:
    name, link = type(model.family).__name__, type(model.family.link).__name__
    if (name, link) not in _CANONICAL:
        known = ", ".join(f"{family} with {its}" for family, its in _CANONICAL)
        raise InputError(
            f"A statsmodels GLM of family {name} with link {link} is not supported; supported are "
            f"{known}."
        )
    return _CANONICAL[name, link]


def _check_plain(results: Any, model: Any) -> None:
    for what in ("offset", "exposure"):
        given = getattr(model, what, None)
        if given is not None and np.any(np.asarray(given) != 0):  # the exposure is kept as its log
            raise InputError(
                f"A statsmodels GLM with an {what} is not supported; fit the model without it."
            )
    if getattr(results, "constraints", None) is not None:
        raise InputError(
            "A statsmodels GLM fitted under constraints is not supported: its coefficients do not "
            "minimise the loss; fit it freely."
        )
    if np.any(np.asarray(getattr(model, "n_trials", 1)) != 1):
        raise InputError(
            "A statsmodels GLM of counts of successes and failures is not supported; pass one row "
            "for each trial, or the share of successes with freq_weights."
        )


def _split(params: np.ndarray, model: Any, table: Table) -> tuple[np.ndarray, float | None]:
    """Return the coefficients of the table's columns, and the constant's if that is left out."""
    names = [str(name) for name in model.data.xnames]
    constant = model.data.const_idx
    without = constant is not None and table.values.shape[1] == params.shape[0] - 1
    if without:
        if np.any(np.asarray(model.exog)[:, constant] != 1):
            raise InputError(
                f"Column {names[constant]!r} of the statsmodels GLM is constant but not 1, so it "
                "is no intercept; pass the table with this column."
            )
        names.pop(constant)
    else:
        check_column_count(params.shape[0], table)
    if table.library not in ("numpy", "torch") and tuple(names) != table.names:
        raise InputError(
            f"The columns of X are {', '.join(table.names[:8])}, but the model was fitted on "
            f"{', '.join(names[:8])}; pass them in the order of the fit."
        )
    if not without:
        return params, None
    return np.delete(params, constant), float(params[constant])


def _weights(model: Any, table: Table, sample_weight: Any) -> Any:
    """Return freq_weights · var_weights, which the model remembers."""
    own = np.asarray(model.freq_weights, dtype=float) * np.asarray(model.var_weights, dtype=float)
    if sample_weight is not None and not np.array_equal(as_numpy(sample_weight), own):
        raise InputError(
            "The statsmodels GLM carries weights of its own (freq_weights · var_weights), which "
            "differ from sample_weight; leave sample_weight out."
        )
    return read_weights(own, table)

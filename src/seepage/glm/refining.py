"""Move a fitted model to the minimiser of its objective (``sp.refine``)."""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.glm.adapters.registry import best_of, describe
from seepage.glm.fitting.newton import minimise
from seepage.glm.fitting.objective import Objective
from seepage.glm.preprocessing.chain import Chain
from seepage.support.library_classes import is_pipeline, is_search
from seepage.tables.source import as_numpy, read_table


def refine(model: Any, X: Any, y: Any, sample_weight: Any = None) -> Any:
    """Return a copy of a fitted model, moved to the minimiser of its own objective on these data.

    Leakage is computed from the derivative of the minimiser with respect to the data. Therefore,
    :func:`seepage.leakage` raises an error for a model that stopped before the minimiser, such as
    ``SGDClassifier`` or a model with a loose ``tol``. Newton's method starts from the fitted model.
    Release the copy, not the original.

    Parameters
    ----------
    model
        A fitted model with ``coef_``, of a type that :func:`seepage.leakage` supports; or a
        pipeline that ends in such a model, or a search over such models, whose best model is
        refined.
    X, y, sample_weight
        The data the model was fitted on.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> from sklearn.linear_model import SGDRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((100, 3))
    >>> y = X @ [1.0, -2.0, 0.5] + rng.standard_normal(100)
    >>> rough = SGDRegressor(alpha=0.01, random_state=0).fit(X, y)
    >>> sp.leakage(sp.refine(rough, X, y), X, y, noise=sp.Gaussian(0.1)).records().shape
    (100,)
    """
    if is_search(model):
        model = best_of(model)
    if is_pipeline(model):
        rows = Chain.of_pipeline(model[:-1], X).transform(X)
        refined = copy(model)
        name = model.steps[-1][0]
        refined.steps = [*model.steps[:-1], (name, refine(model[-1], rows, y, sample_weight))]
        return refined
    if not hasattr(model, "coef_"):
        raise InputError(
            f"{type(model).__name__} cannot be refined, because it has no coef_ to change; refit "
            "it with a tighter tolerance."
        )
    table = read_table(X)
    fit = describe(model, table, y, sample_weight)
    found = minimise(Objective.of(fit, table.values), fit.parameters, table.names)
    fit = fit.at(found.parameters)
    refined = copy(model)
    refined.coef_ = np.reshape(as_numpy(fit.coef.T), np.shape(model.coef_))
    if fit.intercept is not None:
        free = as_numpy(fit.intercept)
        kept = np.shape(model.intercept_)
        refined.intercept_ = np.reshape(free, kept) if kept else float(free)
    return refined

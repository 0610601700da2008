"""What describing a fitted model takes, whatever library it comes from."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace

from seepage.errors import InputError
from seepage.glm.estimators.inputs import place_like
from seepage.glm.fitting.fitted import FittedGLM
from seepage.glm.losses.categorical import Categorical
from seepage.glm.losses.families import Family
from seepage.tables.frames import Table, as_numpy, check_length

Array = Any  # any array of the array API standard


def description(
    table: Table,
    target: Array,
    coef: Any,
    intercept: Any,
    ridge: float,
    weights: Array | None,
    family: Family | None = None,
) -> FittedGLM:
    """Return a :class:`FittedGLM` with everything placed where the table lives.

    ``coef`` is (d,) or (1, d) with a family; (d, K) without one, for :class:`Categorical`.
    """
    placed = place_like(coef, table.values)
    xp = array_namespace(placed)
    free = None if intercept is None else place_like(intercept, table.values)
    if family is not None:
        problem = family.problem_with(target)
        if problem is not None:
            raise InputError(f"y does not suit the {family.name} family: {problem}.")
        placed = xp.reshape(placed, (-1,))
        free = None if free is None else xp.reshape(free, ())
    loss = Categorical(placed.shape[1]) if family is None else family
    return FittedGLM(loss, placed, free, float(ridge), weights, target, table.names)


def check_columns(model: Any, table: Table) -> None:
    """Raise unless the model is fitted, on as many columns as the table's and of the same names."""
    if not hasattr(model, "coef_"):
        raise InputError(f"This {type(model).__name__} is not fitted yet: call fit first.")
    size = int(model.coef_.shape[-1])
    check_column_count(size, table)
    names = getattr(model, "feature_names_in_", None)
    if names is None or table.library in ("numpy", "torch"):
        return
    for position, (fitted, given) in enumerate(zip(names, table.names, strict=True)):
        if str(fitted) != given:
            raise InputError(
                f"Column {position} of X is {given!r}, but the model was fitted on {str(fitted)!r} "
                "there; pass the columns in the order of the fit."
            )


def check_column_count(fitted: int, table: Table) -> None:
    """Raise unless the table has as many columns as the model was fitted on."""
    if fitted != table.values.shape[1]:
        raise InputError(
            f"X has {table.values.shape[1]} columns, but the model was fitted on {fitted}; pass "
            "the table it was fitted on."
        )


def known_classes(y: Any, classes: Any, table: Table) -> np.ndarray:
    """Return the position of every label among the model's sorted classes, (n,)."""
    labels, known = as_numpy(y), as_numpy(classes)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    check_length(labels, table, "y")
    places = {label: position for position, label in enumerate(known.tolist())}
    positions = [places.get(label, -1) for label in labels.tolist()]
    if -1 in positions:
        row = positions.index(-1)
        raise InputError(
            f"y has the label {labels.tolist()[row]!r} (row {row}), which is none of the classes "
            f"the model was fitted on: {', '.join(map(repr, known.tolist()[:10]))}."
        )
    return np.asarray(positions)


def one_hot(positions: np.ndarray, classes: int, table: Table) -> Array:
    """Return labels as rows of the identity matrix, (n, K), where the table lives."""
    return place_like(np.eye(classes)[positions], table.values)

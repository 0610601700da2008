"""A class of models: its reader, or the reason why it is not supported and an alternative.

Library classes are identified by name, so that no library has to be imported; see
:mod:`seepage.support.library_classes`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from seepage.errors import InputError
from seepage.glm.fitting.balance import ClassBalance
from seepage.glm.fitting.objective import FittedGLM
from seepage.glm.inputs import (
    check_fitted_columns,
    read_known_classes,
    read_response,
    read_weights,
)
from seepage.glm.losses import Categorical, Family, class_targets
from seepage.tables.source import Array, Table, as_numpy, place_like

PAGE = "docs/how-to/models.md"

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
        """Return the error, with a link to the page that explains it."""
        return refusal(self.why, self.instead)


class NoDerivativeError(InputError):
    """Raised if a procedure is not differentiable in the records; refits may measure its risks."""

    def __init__(self, why: str, instead: str) -> None:
        super().__init__(str(refusal(why, instead)))
        self.why = why


def refusal(why: str, instead: str) -> InputError:
    """Return an error with the reason, an alternative, and the page that lists all models."""
    return InputError(f"{why} {instead} See {PAGE}.")


def refuse_setting(model: Any, what: str, why: str, instead: str) -> InputError:
    """Return the error for an unsupported setting of a supported model."""
    return refusal(f"{type(model).__name__} with {what} is not supported: {why}.", instead)


def reader(
    family_of: Family | Callable[[Any], Family | Categorical],
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
        The loss, or a function that returns it.
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
        family = family_of if isinstance(family_of, Family) else family_of(model)
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
            positions = read_known_classes(y, classes, table)
            if balances(model):
                balance = _balance(positions, weights, len(classes))
                weights = place_like(balance.weights(balance.sizes), table.values)
            elif getattr(model, "class_weight", None) is not None:
                weights = _with_class_weights(model, positions, weights, table)
            codes = class_targets(positions, family)
            codes = codes if label_unit is None else label_unit * (codes - 0.5)
            target = place_like(codes, table.values)
        else:
            target = read_response(y, table)
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


def balances(model: Any) -> bool:
    """Return whether a model computes its class weights from the labels."""
    weight = getattr(model, "class_weight", None)
    return isinstance(weight, str) and weight == "balanced"


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

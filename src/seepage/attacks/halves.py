"""Shadow models fitted on random halves of the records, for attacks that refit the model.

Each model is evaluated on all records: its training records (*members*) and the other records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from seepage.errors import InputError

Answer = TypeVar("Answer")


def random_halves(records: int, models: int, seed: int) -> np.ndarray:
    """Return whether each model trains on each record, (models, records): half of the models do."""
    if records < 8:
        raise InputError(
            f"This attack needs at least 8 records, but got {records}; give more records."
        )
    rng = np.random.default_rng(seed)
    order = np.argsort(rng.uniform(size=(models, records)), axis=0)
    return np.asarray(order < models / 2)


def fit_halves(
    estimator: Any,
    X: Any,
    y: np.ndarray,
    inside: np.ndarray,
    ask: Callable[[Any], Answer],
    *,
    jobs: int = 1,
) -> list[Answer]:
    """Fit a clone of an estimator on each half and return the results of ``ask(model)``."""
    from sklearn.utils.parallel import Parallel, delayed

    fits = Parallel(n_jobs=jobs)(
        delayed(_fit_and_ask)(estimator, X, y, half, ask) for half in inside
    )
    return list(fits)


def _fit_and_ask(
    estimator: Any, X: Any, y: np.ndarray, half: np.ndarray, ask: Callable[[Any], Answer]
) -> Answer:
    from sklearn.base import clone

    rows = np.flatnonzero(half)
    try:
        return ask(clone(estimator).fit(rows_of(X, rows), y[rows]))
    except InputError:
        raise
    except (TypeError, ValueError) as problem:
        raise InputError(
            f"A shadow model, {type(estimator).__name__}, failed on a random half of the records "
            f"({first_line(problem)}). All steps must accept values that occur only in the other "
            "half, as OneHotEncoder(handle_unknown='ignore') does."
        ) from problem


def rows_of(X: Any, rows: np.ndarray) -> Any:
    """Return the selected records of an array, data frame, tensor or mapping, in the same type."""
    if isinstance(X, Mapping):
        return {name: rows_of(value, rows) for name, value in X.items()}
    if hasattr(X, "detach"):  # a tensor of torch
        return X[rows]
    from sklearn.utils import _safe_indexing

    return _safe_indexing(X, rows, axis=0)


def first_line(problem: Exception) -> str:
    """Return another library's error message as one line, without its full stop."""
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    return lines[0].rstrip(".")

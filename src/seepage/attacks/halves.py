"""Models fitted on random halves of the records: what every attack by refitting starts from.

Each model is asked about all records, those it was fitted on (*members*) and the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from seepage.errors import InputError

Answer = TypeVar("Answer")


def random_halves(records: int, models: int, seed: int) -> np.ndarray:
    """Return which records each model gets, (models, n): every record in half of them."""
    if records < 8:
        raise InputError(f"{records} records are too few to attack; give more.")
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
    """Fit a clone of an estimator on each half and return what ``ask`` makes of each model."""
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
    except (TypeError, ValueError) as problem:
        raise InputError(
            f"Fitted on a random half of the records, as shadow models are, "
            f"{type(estimator).__name__} failed ({first_line(problem)}). Its steps must cope with "
            "values that only the other half has: OneHotEncoder(handle_unknown='ignore') does."
        ) from problem


def rows_of(X: Any, rows: np.ndarray) -> Any:
    """Return the records at some positions of an array, frame, tensor or mapping, as they are."""
    if isinstance(X, Mapping):
        return {name: rows_of(value, rows) for name, value in X.items()}
    if hasattr(X, "detach"):  # a tensor of torch
        return X[rows]
    from sklearn.utils import _safe_indexing

    return _safe_indexing(X, rows, axis=0)


def first_line(problem: Exception) -> str:
    """Return what another library says is wrong, in one line without its full stop."""
    lines = str(problem).strip().splitlines() or [type(problem).__name__]
    return lines[0].rstrip(".")

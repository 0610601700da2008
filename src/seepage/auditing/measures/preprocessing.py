"""How the features of a model move with the raw columns, through the preprocessing's Jacobian.

A scaler, a principal-component rotation or a one-hot encoder maps every row by itself and affinely,
``x = B z + c``. A column of ``B`` is then the difference of two transformed rows, without any error
but rounding; that it is the same for other rows and other steps is checked, so that a map that is
not affine is refused and never measured wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import narwhals as nw
import numpy as np
import scipy.sparse

from seepage.auditing.measures.subject import Attribute
from seepage.errors import InputError, nearest

_PROBED = 3  # rows at which the map is looked at
_TOLERANCE = 1e-6
_MOST_LEVELS = 1000

Transform = Callable[[Any], Any]


def raw_frame(X: Any) -> tuple[nw.DataFrame[Any], bool]:
    """Return the raw table as a frame, and whether it came as one (or as an array)."""
    if hasattr(X, "columns") or hasattr(X, "column_names"):
        try:
            frame = nw.from_native(X, eager_only=True)
        except TypeError as problem:
            raise InputError(f"X of type {type(X).__name__} is not a table: {problem}") from problem
        if any(not isinstance(name, str) for name in frame.columns):
            raise InputError("Every column of X needs a text as its name; rename the others.")
        return frame, True
    values = np.asarray(X)
    if values.ndim != 2 or 0 in values.shape:
        raise InputError(f"X must be a table with rows and columns, not of shape {values.shape}.")
    import pyarrow

    names = [f"x{j}" for j in range(values.shape[1])]
    table = pyarrow.table([pyarrow.array(values[:, j]) for j in range(len(names))], names=names)
    return nw.from_native(table, eager_only=True), False


def dense(features: Any) -> np.ndarray:
    """Return transformed rows as an array of floats."""
    if scipy.sparse.issparse(features):
        features = features.toarray()
    values = np.asarray(features, dtype=float)
    return values if values.ndim == 2 else values.reshape(len(values), -1)


def raw_attributes(
    frame: nw.DataFrame[Any], named: bool, transform: Transform, categorical: Sequence[str]
) -> tuple[Attribute, ...]:
    """Return every raw column that the model uses, with the directions it moves the features in.

    Parameters
    ----------
    frame
        The raw table.
    named
        Whether ``transform`` takes a frame like it (else: an array).
    transform
        The preprocessing, fitted.
    categorical
        Columns of numbers that are codes of categories.
    """
    for name in categorical:
        if name not in frame.columns:
            raise InputError(f"There is no column {name!r}{nearest(name, frame.columns)}.")
    probe = frame[: min(_PROBED, len(frame))]
    apply = _applied(transform, named)
    start = apply(probe)
    attributes = []
    for name in frame.columns:
        column = frame[name]
        if column.is_null().any() or (column.dtype.is_float() and column.is_nan().any()):
            raise InputError(
                f"Column {name!r} has missing values, of which there is nothing to leak; fill the "
                "gaps before the fit, or drop those rows."
            )
        if name in categorical or not (column.dtype.is_numeric() or column.dtype == nw.Boolean):
            found = _category(name, column, probe, apply)
        elif column.dtype == nw.Boolean:
            found = _boolean(name, column, probe, apply)
        else:
            found = _number(name, column, probe, apply, start)
        if found is not None:
            attributes.append(found)
    return tuple(attributes)


def _applied(transform: Transform, named: bool) -> Callable[[nw.DataFrame[Any]], np.ndarray]:
    if named:
        return lambda rows: dense(transform(rows.to_native()))
    return lambda rows: dense(transform(rows.to_numpy()))


def _number(
    name: str, column: nw.Series[Any], probe: nw.DataFrame[Any], apply: Any, start: np.ndarray
) -> Attribute | None:
    spread = float(np.std(column.to_numpy().astype(float)))
    step = spread or 1.0

    def moved(factor: float) -> np.ndarray:
        shifted = probe.with_columns(nw.col(name).cast(nw.Float64) + factor * step)
        try:
            return np.asarray((apply(shifted) - start) / (factor * step))
        except ValueError as problem:
            raise InputError(
                f"Column {name!r} cannot be moved by a fraction through the preprocessing; if its "
                f"numbers are codes of categories, name it in categorical= ({problem})."
            ) from problem

    once, twice = moved(1.0), moved(-2.0)
    return _attribute(name, "numeric", np.stack([*once, *twice]).T[:, None, :], spread)


def _boolean(
    name: str, column: nw.Series[Any], probe: nw.DataFrame[Any], apply: Any
) -> Attribute | None:
    off, on = (apply(probe.with_columns(nw.lit(value).alias(name))) for value in (False, True))
    spread = float(np.std(column.to_numpy().astype(float)))
    return _attribute(name, "boolean", (on - off).T[:, None, :], spread)


def _category(
    name: str, column: nw.Series[Any], probe: nw.DataFrame[Any], apply: Any
) -> Attribute | None:
    levels = sorted(column.unique().to_list(), key=lambda level: (str(type(level)), level))
    if len(levels) > _MOST_LEVELS:
        raise InputError(
            f"Column {name!r} has {len(levels)} different values, more than the {_MOST_LEVELS} a "
            "category may have; group rare values before the fit."
        )
    dtype = column.dtype
    placed = [apply(probe.with_columns(nw.lit(level).cast(dtype).alias(name))) for level in levels]
    if len(levels) == 1:
        return None
    changes = np.stack([after - placed[0] for after in placed[1:]])  # (levels − 1, rows, D)
    shares = np.unique(column.to_numpy().astype(str), return_counts=True)[1] / len(column)
    spread = float(np.sqrt(1 - np.sum(shares**2)))
    return _attribute(name, "categorical", changes.transpose(2, 0, 1), spread)


def _attribute(name: str, kind: str, moves: np.ndarray, spread: float) -> Attribute | None:
    """Return the attribute, given the move of every feature, ``(D, t, probes)``."""
    directions = moves.mean(axis=2)
    scale = np.max(np.abs(moves))
    if scale == 0:
        return None  # the preprocessing drops it
    if np.max(np.abs(moves - directions[:, :, None])) > _TOLERANCE * scale:
        raise InputError(
            f"The preprocessing of column {name!r} is not affine (it moves the features by amounts "
            "that depend on the row), so its leakage has no closed form; audit the final model on "
            "the transformed table instead: sp.audit(pipeline[-1], pipeline[:-1].transform(X), y)."
        )
    directions = np.where(np.abs(directions) > 1e-12 * scale, directions, 0.0)
    columns = tuple(int(j) for j in np.flatnonzero(np.any(directions != 0, axis=1)))
    return Attribute(name, kind, columns, directions[list(columns), :], spread)

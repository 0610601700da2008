"""Read and check the arguments of an estimator or a fitted model: sources, tables and labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse
from array_api_compat import array_namespace, is_torch_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from seepage.errors import InputError
from seepage.glm.losses import class_positions
from seepage.support.library_classes import is_pipeline, is_search, own_name
from seepage.tables.names import counted
from seepage.tables.source import (
    Array,
    MemorySource,
    RowSource,
    Table,
    as_numpy,
    check_column,
    check_length,
    column_names,
    distinct,
    read_table,
    read_vector,
)


def read_features(estimator: Any, X: Any, *, fitting: bool) -> Table:
    """Read ``X``, and store (if ``fitting``) or check the number and names of its columns."""
    if scipy.sparse.issparse(X):
        raise TypeError(
            "X is a sparse matrix, which is not supported; pass a dense table: X.toarray()."
        )
    if not (is_torch_array(X) or hasattr(X, "columns") or hasattr(X, "column_names")):
        X = _numbers(X)
    validate_data(estimator, X, reset=fitting, skip_check_array=True)
    return read_table(X)


def _numbers(X: Any) -> np.ndarray:
    """Convert lists, arrays and objects containing numbers to a numeric array."""
    values = np.asarray(X)
    if values.ndim == 1:
        raise InputError(
            "X must be a table with rows and columns, but it is one-dimensional. Reshape your "
            "data with X.reshape(-1, 1) if it is one column, or X.reshape(1, -1) if it is one row."
        )
    if values.ndim == 2 and values.shape[1] == 0:
        raise InputError(
            f"X is empty: 0 feature(s) (shape={values.shape}) while a minimum of 1 is required. "
            "Pass a table with at least one column."
        )
    if values.dtype.kind != "O" or values.ndim != 2:
        return values
    columns = []
    for j in range(values.shape[1]):
        try:
            columns.append(values[:, j].astype(float))
        except ValueError:
            raise InputError(
                f"Column 'x{j}' of X contains objects that are not numbers; encode it first (for "
                "example, one-hot), or drop it."
            ) from None
    return np.stack(columns, axis=1)


def read_response(y: Any, table: Table) -> Array:
    """Read the numeric target of a regression, of shape (n,)."""
    if y is None:
        raise InputError("This estimator requires y to be passed, but the target y is None.")
    if is_torch_array(y):
        return read_vector(y, table, "y")
    values = column_or_1d(as_numpy(y), warn=True)
    try:
        values = values.astype(float)
    except (TypeError, ValueError):
        raise InputError(
            "Unknown label type: y must contain numbers for a regression, but it contains "
            f"{values.dtype} values; convert them to numbers, or fit a classifier."
        ) from None
    return read_vector(values, table, "y")


def read_classes(y: Any, table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Read the labels of a classification; return the sorted classes and each label's position."""
    if y is None:
        raise InputError("This estimator requires y to be passed, but the target y is None.")
    labels = column_or_1d(as_numpy(y), warn=True)
    check_length(labels, table, "y")
    if labels.dtype.kind == "f" and not np.all(np.isfinite(labels)):
        raise InputError("y contains NaN or infinity; drop those rows or fill in missing values.")
    # Of an array of objects only the first is inspected.
    check_classification_targets(labels[:1] if labels.dtype.kind == "O" else labels)
    return distinct(labels)


def read_weights(sample_weight: Any, table: Table) -> Array | None:
    """Read non-negative sample weights, (n,), not all zero; return ``None`` if all equal one."""
    if sample_weight is None:
        return None
    weights = read_vector(sample_weight, table, "sample_weight")
    xp = array_namespace(weights)
    if bool(xp.any(weights < 0)):
        worst = int(xp.argmin(weights))
        raise InputError(
            f"sample_weight must not be negative, but row {worst} has the weight "
            f"{float(weights[worst]):g}; use 0 to exclude a row."
        )
    if not bool(xp.any(weights > 0)):
        raise InputError(
            "sample_weight is zero for every row, so no rows remain to fit; give some rows a "
            "positive weight."
        )
    return None if bool(xp.all(weights == 1)) else weights


def read_penalty(l2: Any, n: int) -> float:
    """Return ``nλ`` for a finite, non-negative ``l2``."""
    if not isinstance(l2, (int, float, np.integer, np.floating)) or isinstance(l2, bool):
        raise InputError(f"l2 must be a number, not {l2!r}.")
    if not 0 <= l2 < float("inf"):
        raise InputError(f"l2 must be finite and at least 0, but it is {l2!r}.")
    return n * float(l2)


def read_known_classes(y: Any, classes: Any, table: Table) -> np.ndarray:
    """Return the position of every label in a fitted model's sorted classes, of shape (n,)."""
    labels = as_numpy(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    check_length(labels, table, "y")
    return class_positions(labels, as_numpy(classes))


def check_fitted_columns(model: Any, table: Table) -> None:
    """Raise an error unless the model is fitted, and the table has the fitted columns."""
    if not hasattr(model, "coef_"):
        raise InputError(f"This {type(model).__name__} is not fitted yet; call fit first.")
    size = int(model.coef_.shape[-1])
    check_column_count(size, table)
    names = getattr(model, "feature_names_in_", None)
    if names is None or table.library in ("numpy", "torch"):
        return
    for position, (fitted, given) in enumerate(zip(names, table.names, strict=True)):
        if str(fitted) != given:
            raise InputError(_other_name("X", position, given, str(fitted)))


def check_columns(model: Any, X: Any, what: str = "X", known: Sequence[Any] | None = None) -> None:
    """Raise an error unless a data frame has the columns a model was fitted on, in the same order.

    ``known`` contains the fitted columns if the model does not store them. The last columns may be
    missing if a ``ColumnTransformer`` drops them.
    """
    inside = getattr(model, "best_estimator_", model) if is_search(model) else model
    fitted, given = getattr(inside, "feature_names_in_", known), column_names(X)
    size = getattr(inside, "n_features_in_", None) if is_pipeline(inside) else None
    if fitted is not None and given is not None:
        size = len(fitted)
    if size is None:
        return
    used, shape = _used(inside, size), np.shape(X)
    if len(shape) == 2 and not max(used, default=-1) < shape[1] <= size:
        raise InputError(_other_count(what, shape[1], size))
    if fitted is None or given is None:
        return
    for position in used:
        if str(given[position]) != str(fitted[position]):
            names = str(given[position]), str(fitted[position])
            raise InputError(_other_name(what, position, *names))


def _used(model: Any, size: int) -> Sequence[int]:
    """Return the positions of the columns that a pipeline's first step uses."""
    step = model
    while own_name(step, "sklearn", ("Pipeline",)) is not None:
        step = step.steps[0][1]
    if own_name(step, "sklearn", ("ColumnTransformer",)) is None:
        return range(size)
    dropped = [n for n, t, _ in step.transformers_ if isinstance(t, str) and t == "drop"]
    indices = step._transformer_to_input_indices.items()
    return sorted({int(j) for name, where in indices if name not in dropped for j in where})


def check_column_count(fitted: int, table: Table) -> None:
    """Raise an error unless the table has the number of columns that the model was fitted on."""
    if fitted != table.values.shape[1]:
        raise InputError(_other_count("X", table.values.shape[1], fitted))


def _other_name(what: str, position: int, given: str, fitted: str) -> str:
    return (
        f"Column {position} of {what} is {given!r}, but it was {fitted!r} when the model was "
        "fitted; pass the columns in their original order."
    )


def _other_count(what: str, given: int, fitted: int) -> str:
    if what == "X":
        return (
            f"X has {counted(given, 'column')}, but the model was fitted on {fitted}; pass the "
            "table it was fitted on."
        )
    return (
        f"The queries have {counted(given, 'column')}, but the model has {fitted}; pass the "
        "columns the model was fitted on."
    )


def is_streamed(X: Any) -> bool:
    """Return whether a caller's table is read in chunks: a source, a path or a data set."""
    library = type(X).__module__.partition(".")[0]
    of_arrow = library == "pyarrow" and hasattr(X, "get_fragments")
    return isinstance(X, RowSource | str | os.PathLike) or library == "dask" or of_arrow


def as_source(
    X: Any, y: Any, sample_weight: Any, dtype: str | None = None, beside: str | None = None
) -> RowSource:
    """Return the data source for a caller's table, or for a path with the names of its columns.

    ``beside`` names a column that is not a feature, such as people's identities, in data read in
    chunks. A table in memory is converted to ``dtype`` if the conversion does not change its
    numbers. Otherwise it is stored as float64, so that columns can be shifted near zero before
    rounding.
    """
    if not is_streamed(X):
        table = read_table(X, dtype=dtype)
        if dtype == "float32":
            wide, xp = read_table(X, check=False), array_namespace(table.values)
            same = xp.astype(table.values, xp.float64) == wide.values
            table = table if bool(xp.all(same)) else wide
        return MemorySource(table, y, sample_weight)
    if dtype not in (None, "float64"):
        raise InputError("Data read in chunks are always measured in float64; omit dtype.")
    if isinstance(X, RowSource):
        if y is not None or sample_weight is not None:
            raise InputError(
                f"The data already include the labels ({X.target!r}) and any weights; omit y and "
                "sample_weight."
            )
        return X
    if type(X).__module__.partition(".")[0] == "dask":
        from seepage.streams.dask.source import dask_rows

        known = [] if beside is None else [str(name) for name in getattr(X, "columns", ())]
        return dask_rows(X, y, columns=_but(beside, known, y, sample_weight), weight=sample_weight)
    from seepage.streams.disk.files import open_batches
    from seepage.streams.disk.source import parquet

    for what, given in (("y", y), ("sample_weight", sample_weight)):
        if not isinstance(given, str) and not (what == "sample_weight" and given is None):
            raise InputError(
                f"For Parquet data, {what} must be the name of a column, not "
                f"{type(given).__name__}."
            )
    known = [] if beside is None else open_batches(X).schema.names
    return parquet(X, target=y, columns=_but(beside, known, y, sample_weight), weight=sample_weight)


def _but(beside: str | None, known: list[str], *special: Any) -> list[str] | None:
    """Return ``known`` without ``beside`` and ``special``; ``None`` if there is no ``beside``."""
    if beside is None or not known:
        return None
    check_column(beside, known)
    return [name for name in known if name not in (beside, *special)]

"""Read and check the arguments of an estimator or a fitted model: sources, tables and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
from array_api_compat import is_torch_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from seepage.errors import InputError
from seepage.tables.source import (
    RowSource,
    Table,
    as_numpy,
    check_column,
    check_length,
    distinct,
    read_table,
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


def streamed_source(
    X: Any, y: Any, sample_weight: Any, dtype: str | None = None, beside: str | None = None
) -> RowSource:
    """Return the source for data read in chunks, or for a path with the names of its columns.

    ``beside`` names a column that is not a feature, such as people's identities.
    """
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

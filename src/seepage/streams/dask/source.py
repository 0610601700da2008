"""``sp.dask_rows``: dask arrays and data frames as a table to fit on and to measure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from seepage.errors import InputError
from seepage.streams.dask.rows import ArrayReader, DaskRows, FrameReader, as_piece
from seepage.streams.dask.tasks import fetch, named, tree_sum
from seepage.tables.columns import (
    ColumnSums,
    Scan,
    TableEncoding,
    check_column,
    choose_columns,
    class_levels,
    column_sums,
    encode_columns,
    plain_type,
    scan,
)


def dask_rows(
    data: Any,
    target: Any,
    *,
    columns: Sequence[str] | None = None,
    weight: Any = None,
    scale: bool = False,
    drop_first: bool = False,
) -> DaskRows:
    """Take a Dask collection as a table to fit on and to measure the leakage of.

    Estimators of :mod:`seepage.glm` and :func:`seepage.leakage` take Dask collections directly,
    too; this reads the levels and the lengths of the partitions once for all of them.

    Parameters
    ----------
    data
        A dask data frame, or a dask array with a row for every record.
    target
        The labels: the name of a column of the data frame; a dask array beside a dask array.
    columns
        The columns of the features, for a data frame; all others where not given. Text becomes one
        0/1 feature per level, named ``column=level``.
    weight
        The sample weights, given like the labels.
    scale, drop_first
        For a data frame, as for :func:`seepage.parquet`.

    Examples
    --------
    >>> import dask.array as da
    >>> import seepage as sp
    >>> from seepage.streams.dask.source import dask_rows
    >>> X = da.random.default_rng(0).standard_normal((1000, 3), chunks=(250, 3))
    >>> data = dask_rows(X, X.sum(axis=1) > 0)
    >>> model = sp.glm.LogisticRegression(l2=1e-2).fit(data)
    >>> leak = sp.leakage(model, data, noise=sp.Gaussian(0.1))
    >>> leak.records().to_dask().shape
    (1000,)
    """
    if hasattr(data, "dask") and hasattr(data, "columns"):
        return _of_frame(data, target, columns, weight, scale, drop_first)
    if not (hasattr(data, "dask") and hasattr(data, "chunks")):
        raise InputError(f"The data must be a dask array or data frame, not {type(data).__name__}.")
    if columns is not None or scale or drop_first:
        raise InputError("columns, scale and drop_first are for data frames, not for arrays.")
    return _of_arrays(data, target, weight)


def _of_frame(
    frame: Any,
    target: Any,
    columns: Sequence[str] | None,
    weight: Any,
    scale: bool,
    drop_first: bool,
) -> DaskRows:
    for what, given in (("target", target), ("weight", weight)):
        if not isinstance(given, str) and not (what == "weight" and given is None):
            raise InputError(
                f"With a dask data frame the {what} is the name of one of its columns, not "
                f"{type(given).__name__}; put it into the frame with frame.assign(…)."
            )
    known = [str(name) for name in frame.columns]
    wanted = choose_columns(known, target, weight, columns)
    # The types of text and categories are those of values, which an empty frame does not have.
    schema = pa.Schema.from_pandas(frame._meta_nonempty, preserve_index=False)
    lengths = _lengths(frame[[target]].to_delayed())
    if not sum(lengths):
        raise InputError("The dask data frame has no rows.")
    scan = partial(_scanned, frame, schema, lengths=lengths)
    parts = encode_columns(wanted, schema, scale, scan)
    coding = TableEncoding(parts, target, weight, scale, drop_first)

    def partitions(extra: tuple[str, ...]) -> Sequence[Any]:
        for name in extra:
            check_column(name, known)
        asked = list(dict.fromkeys([*coding.columns, *extra]))
        return list(frame[asked].to_delayed())

    def classes() -> np.ndarray:
        sums = _scanned(frame, schema, [target], lengths)[target]
        return class_levels(sums, plain_type(schema.field(target).type), target)

    return DaskRows(
        partitions,
        lengths,
        FrameReader(coding, schema),
        names=coding.names(),
        attributes=coding.attributes(),
        target=target,
        weighted=weight is not None,
        find_classes=classes,
    )


def _of_arrays(X: Any, y: Any, weight: Any) -> DaskRows:
    if X.ndim != 2:
        raise InputError(f"X must have rows and columns, but it has {X.ndim} dimension(s).")
    if X.dtype.kind not in "fiub":
        raise InputError(f"X holds {X.dtype} values instead of numbers.")
    X = _known(X).rechunk({1: -1})
    given = {"y": y, "sample_weight": weight} if weight is not None else {"y": y}
    beside = {what: _beside(X, array, what) for what, array in given.items()}
    lengths = X.chunks[0]
    columns = [list(array.to_delayed().ravel()) for array in (X, *beside.values())]
    if weight is None:
        columns.append([None] * len(lengths))
    names = tuple(f"x{j}" for j in range(X.shape[1]))

    def partitions(extra: tuple[str, ...]) -> Sequence[Any]:
        return [list(blocks) for blocks in zip(*columns, strict=True)]

    def classes() -> np.ndarray:
        from dask.delayed import delayed

        prefix = named("labels")
        sums = [
            delayed(_label_sums, pure=False)(block, dask_key_name=f"{prefix}-{k}")
            for k, block in enumerate(columns[1])
            if lengths[k]
        ]
        found: ColumnSums = fetch(tree_sum(sums, "labels"))
        kind = pa.string() if beside["y"].dtype.kind in "OU" else pa.from_numpy_dtype(y.dtype)
        return class_levels(found, kind, "y")

    return DaskRows(
        partitions,
        lengths,
        ArrayReader(names),
        names=names,
        attributes={},
        target="y",
        weighted=weight is not None,
        find_classes=classes,
    )


def _beside(X: Any, array: Any, what: str) -> Any:
    """Return labels or weights cut at the same rows as the features."""
    if not (hasattr(array, "dask") and hasattr(array, "chunks")):
        raise InputError(f"Beside a dask array {what} must be one too, not {type(array).__name__}.")
    if array.ndim != 1:
        raise InputError(f"{what} must have one dimension, but it has {array.ndim}.")
    array = _known(array)
    if array.shape[0] != X.shape[0]:
        raise InputError(f"X has {X.shape[0]:,} rows, but {what} has {array.shape[0]:,}.")
    return array.rechunk((X.chunks[0],))


def _known(array: Any) -> Any:
    """Return an array that knows how many rows its blocks have."""
    if any(np.isnan(size) for size in array.chunks[0]):
        return array.copy().compute_chunk_sizes()
    return array


def _lengths(partitions: Sequence[Any]) -> tuple[int, ...]:
    """Return how many rows each partition has: one number each comes here."""
    from dask.delayed import delayed

    prefix = named("rows")
    counts = [
        delayed(_counted, pure=False)(part, dask_key_name=f"{prefix}-{k}")
        for k, part in enumerate(partitions)
    ]
    return tuple(fetch(tree_sum(counts, "rows")))


def _scanned(frame: Any, schema: pa.Schema, names: list[str], lengths: Sequence[int]) -> Scan:
    from dask.delayed import delayed

    prefix = named("scan")
    look = partial(_scan_one, schema=schema)
    scans = [
        delayed(look, pure=False)(part, k, dask_key_name=f"{prefix}-{k}")
        for k, part in enumerate(frame[names].to_delayed())
        if lengths[k]
    ]
    found: Scan = fetch(tree_sum(scans, "scan"))
    return found


def _scan_one(part: Any, number: int, schema: pa.Schema) -> Scan:
    return scan([as_piece(part, schema, number)])


def _counted(part: Any) -> list[int]:
    return [len(part)]


def _label_sums(labels: Any) -> ColumnSums:
    return column_sums(pa.array(np.asarray(labels)))

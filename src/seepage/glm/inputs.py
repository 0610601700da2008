"""Read the arguments of an estimator or of a fitted model as a source that is read in chunks."""

from __future__ import annotations

from typing import Any

from seepage.errors import InputError
from seepage.tables.source import (
    RowSource,
    check_column,
)


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

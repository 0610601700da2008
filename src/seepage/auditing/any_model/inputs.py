"""The inputs of an estimator: the caller's own table, encoded if needed.

The estimator gets a data frame unchanged, and other input as an array. If the estimator cannot be
fitted on text, dates or missing values, an encoding step is put before it. That step is then part
of the audited model, and is reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin, clone, is_classifier

from seepage.attacks.halves import first_line
from seepage.errors import InputError
from seepage.tables.frames import as_labels, columns_as_they_are, is_frame
from seepage.tables.names import counted, listed
from seepage.tables.source import as_numpy


class ColumnEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Encodes every column of a table as numbers; the encoding is learnt from the training records.

    Text becomes one 0/1 column for each of its most frequent values; rarer values have zeros in all
    of them. Dates become days. A missing number is filled with the median, and an indicator column
    is added.

    Parameters
    ----------
    text
        Which columns contain text.
    most
        The largest number of values per text column that get a feature.
    """

    def __init__(self, text: tuple[bool, ...], most: int = 100) -> None:
        self.text = text
        self.most = most

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the text values and the medians."""
        self.levels_: list[np.ndarray] = []
        self.medians_: list[float] = []
        self.gaps_: list[bool] = []
        for text, values in self._columns(X):
            levels, median, gaps = np.array([], dtype=str), 0.0, False
            if text:
                known, counts = np.unique(values, return_counts=True)
                levels = known[np.argsort(-counts, kind="stable")[: self.most]]
            else:
                finite = values[np.isfinite(values)]
                median = float(np.median(finite)) if len(finite) else 0.0
                gaps = len(finite) < len(values)
            self.levels_.append(levels)
            self.medians_.append(median)
            self.gaps_.append(gaps)
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return the columns as numbers, (n, p)."""
        made = []
        for j, (text, values) in enumerate(self._columns(X)):
            if text:
                made.append((values[:, None] == self.levels_[j]).astype(float))
                continue
            known = np.isfinite(values)
            made.append(np.where(known, values, self.medians_[j])[:, None])
            if self.gaps_[j]:
                made.append((~known)[:, None].astype(float))
        return np.hstack(made)

    def _columns(self, X: Any) -> list[tuple[bool, np.ndarray]]:
        """Return every column as floats or as text; missing text counts as a separate value."""
        columns = columns_as_they_are(X, self.text)
        return [
            (text, np.array([str(cell) for cell in values.tolist()]) if text else values)
            for text, (_, values) in zip(self.text, columns, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class FittedInputs:
    """A fitted estimator with its inputs."""

    estimator: Any  # not fitted: with the encoding that was put before it, if any
    model: Any
    X: Any
    y: np.ndarray
    steps: tuple[str, ...]  # what was done for it, one sentence each


def prepare(estimator: Any, X: Any, y: Any) -> FittedInputs:
    """Fit an estimator on all records, with an encoding step before it if needed."""
    X, y = _as_given(X), as_labels(y)
    if len(X) != len(y):
        raise InputError(
            f"X has {counted(len(X), 'row')}, but y has {counted(len(y), 'label')}; pass one label "
            "per row."
        )
    labels = y
    if is_classifier(estimator) and y.dtype.kind == "f" and np.all(y == np.round(y)):
        labels = y.astype(np.int64)
    as_given = getattr(estimator, "as_given", None)  # of a network: with the weights that it has
    if as_given is not None:
        return FittedInputs(estimator, as_given(X, labels), X, labels, ())
    try:
        return FittedInputs(estimator, clone(estimator).fit(X, labels), X, labels, ())
    except Exception as problem:
        first = problem
    name = type(estimator).__name__
    encoded, steps = _encoded(estimator, X)
    attempts = [] if encoded is None else [(encoded, labels, steps)]
    if is_classifier(estimator) and labels.dtype.kind != "f":
        # Some libraries take classes only as 0, 1, 2 and so on
        known, codes = np.unique(labels, return_inverse=True)
        said = (
            f"{name} does not accept these labels, so the {len(known)} classes were numbered from "
            "0."
        )
        plain = [(estimator, ())] if encoded is None else [(estimator, ()), (encoded, steps)]
        attempts += [(made, codes.reshape(-1), (*done, said)) for made, done in plain]
    problems = [first]
    for made, taken, done in attempts:
        try:
            return FittedInputs(made, clone(made).fit(X, taken), X, taken, done)
        except Exception as problem:
            problems.append(problem)
    reasons = [first_line(problem) for problem in problems[:2]]
    again = encoded is not None and reasons[1] != reasons[0]
    beside = f"; with an encoding step: {reasons[1]}" if again else ""
    raise InputError(
        f"{name} cannot be fitted on these records ({reasons[0]}{beside}). Check that its steps "
        "name columns of X, and that y is its target."
    ) from first


def _encoded(estimator: Any, X: Any) -> tuple[Any, tuple[str, ...]]:
    """Return the estimator with an encoding step before it, and a sentence about that step.

    An array of numbers without missing values gets no encoding step.
    """
    from sklearn.pipeline import make_pipeline

    columns = columns_as_they_are(X)
    text = [name for name, values in columns if values.dtype.kind != "f"]
    gaps = [name for name, v in columns if v.dtype.kind == "f" and not np.all(np.isfinite(v))]
    if not (text or gaps or is_frame(X)):
        return None, ()
    done = [f"text was encoded with one column per value ({listed(text)})"] if text else []
    done += [
        f"missing values were replaced by medians and marked in indicator columns ({listed(gaps)})"
    ]
    done = done if gaps else done[:-1]
    said = (
        f"{type(estimator).__name__} cannot be fitted on the columns as they are. An encoding step "
        "was put before it and is part of the audited model: "
        f"{'; '.join(done) or 'all columns became numbers'}."
    )
    encoder = ColumnEncoder(tuple(values.dtype.kind != "f" for _, values in columns))
    return make_pipeline(encoder, clone(estimator)), (said,)


def _as_given(X: Any) -> Any:
    """Return a data frame unchanged, and other input as an array (of floats, unless with text)."""
    if is_frame(X):
        return X
    values = as_numpy(X.toarray() if hasattr(X, "toarray") else X)
    if values.ndim != 2:
        raise InputError(f"X has the shape {values.shape}; pass a table of rows and columns.")
    return values if values.dtype.kind in "OUSM" else np.asarray(values, dtype=float)

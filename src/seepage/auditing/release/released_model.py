"""A released model, with noisy coefficients and the encoding of raw columns as features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from typing import Any

import narwhals as nw
import numpy as np

from seepage.errors import InputError
from seepage.support.strict_json import FINITE, POSITIVE, TEXT, TEXTS, check_fields
from seepage.tables.columns import ColumnEncoding, TableEncoding, level_names
from seepage.tables.names import counted, printable, shown, unique

OTHER = "(other)"  # the level into which rare ones are merged
_KINDS = ("numeric", "boolean", "categorical")
_FIELDS = {
    "name": TEXT,
    "kind": (_KINDS.__contains__, "numeric, boolean or categorical"),
    "centre": FINITE,
    "unit": POSITIVE,
    "levels": TEXTS,
}


@dataclass(frozen=True)
class ColumnCoding:
    """The encoding of one column as features, with only publishable numbers and names."""

    name: str
    kind: str  # ``numeric``, ``boolean`` (two values) or ``categorical``
    # The feature is ``(value − centre)/unit``, which maps two values to 0 and 1
    centre: float = 0.0
    unit: float = 1.0
    levels: tuple[str, ...] = ()  # of a category: one 0/1 feature for each but the first

    @classmethod
    def of(cls, part: ColumnEncoding, scale: bool = True) -> ColumnCoding:
        """Return the part of an encoding that is published."""
        levels = () if part.levels is None else tuple(level_names(part.levels))
        scaling = (part.centre, part.unit) if scale else (0.0, 1.0)
        return cls(part.name, part.kind, *scaling, levels)

    @classmethod
    def read(cls, content: Any, place: int) -> ColumnCoding:
        """Return the column from its JSON form; raise ``ValueError`` if it is invalid."""
        check_fields(content, _FIELDS, f"column {place}")
        levels = tuple(content["levels"])
        if (content["kind"] == "categorical") != bool(levels) or len(levels) == 1:
            raise ValueError(
                f"column {place} must have at least two levels if categorical, otherwise none"
            )
        return cls(**content | {"levels": levels})

    def features(self, values: Sequence[Any]) -> np.ndarray:
        """Return the features of the given values, one row per value."""
        if not self.levels:
            try:
                numbers = np.asarray(values, dtype=float)
            except (TypeError, ValueError):
                raise InputError(
                    f"Column {shown(self.name)} must contain numbers; convert it."
                ) from None
            return ((numbers - self.centre) / self.unit).reshape(-1, 1)
        place = {level: k for k, level in enumerate(self.levels)}
        out = np.zeros((len(values), len(self.levels)))
        for row, value in enumerate(values):
            level = _level(value)
            if level not in place and OTHER in place:
                level = OTHER
            if level not in place:
                raise InputError(
                    f"Column {shown(self.name)} has the level {shown(level)}, which is unknown to "
                    "this model; drop those rows, or replace the value."
                )
            out[row, place[level]] = 1.0
        return out[:, 1:]


def _level(value: Any) -> str:
    """Return a value as the name of a level, with integers written without a decimal point."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float | np.floating):
        return f"{float(value):.15g}"
    return printable(str(value))


class ReleasedModel:
    """A released model that predicts from tables with the original columns.

    Parameters
    ----------
    estimator
        A noisy linear model from :mod:`seepage.glm` (or another estimator with ``coef_``) that
        predicts from features.
    columns
        The encoding of raw columns as features; none if the model predicts from features.

    Attributes
    ----------
    coef_, intercept_, classes_, feature_names_in_
        The attributes of the estimator.
    """

    def __init__(self, estimator: Any, columns: Sequence[ColumnCoding] = ()) -> None:
        # It is given features as an array, so feature names would only make it complain.
        self.estimator, self.columns = copy(estimator), tuple(columns)
        names = self.estimator.__dict__.pop("feature_names_in_", None)
        if self.columns:
            titles = ([f"{c.name}={level}" for level in c.levels[1:]] or [c.name] for c in columns)
            names = unique(title for several in titles for title in several)
        if names is not None:
            self.feature_names_in_ = np.asarray(names, dtype=object)

    @classmethod
    def of_table(cls, estimator: Any, coding: TableEncoding | None) -> ReleasedModel:
        """Return a model that predicts from raw tables or, without ``coding``, from features."""
        parts = [] if coding is None else [ColumnCoding.of(p, coding.scale) for p in coding.parts]
        return cls(estimator, parts)

    def __getattr__(self, name: str) -> Any:
        if name in ("coef_", "intercept_", "classes_", "n_features_in_"):
            return getattr(self.estimator, name)
        raise AttributeError(name)

    def transform(self, table: Any) -> np.ndarray:
        """Return the features of a table: any library's data frame, or a mapping of columns."""
        if not self.columns:
            return np.asarray(table, dtype=float)
        if isinstance(table, Mapping):
            found = {str(name): list(values) for name, values in table.items()}
        else:
            frame = nw.from_native(table, eager_only=True)
            found = {
                c.name: frame[c.name].to_list() for c in self.columns if c.name in frame.columns
            }
        missing = [c.name for c in self.columns if c.name not in found]
        if missing:
            raise InputError(
                f"The table has no column {shown(missing[0])}, which the model uses; add it."
            )
        return np.hstack([column.features(found[column.name]) for column in self.columns])

    def predict(self, table: Any) -> np.ndarray:
        """Return the model's prediction for each row."""
        return np.asarray(self.estimator.predict(self.transform(table)))

    def predict_proba(self, table: Any) -> np.ndarray:
        """Return the probability of each class for every row."""
        return np.asarray(self.estimator.predict_proba(self.transform(table)))

    def as_json(self) -> list[dict[str, Any]]:
        """Return the columns as plain JSON values."""
        return [asdict(column) for column in self.columns]

    @classmethod
    def read(cls, estimator: Any, content: Any) -> ReleasedModel:
        """Return a model from the JSON of :meth:`as_json`, or raise ``ValueError`` if invalid."""
        columns = [ColumnCoding.read(column, k) for k, column in enumerate(content, 1)]
        if len({column.name for column in columns}) < len(columns):
            raise ValueError("two columns have the same name")
        width = sum(max(len(c.levels) - 1, 1) for c in columns)
        if columns and width != estimator.n_features_in_:
            raise ValueError(
                "the number of features of the columns differs from the number of coefficients"
            )
        own = getattr(estimator, "feature_names_in_", None)
        model = cls(estimator, columns)
        if columns and own is not None and list(own) != list(model.feature_names_in_):
            raise ValueError("the model's feature names differ from the columns' feature names")
        return model

    def __repr__(self) -> str:
        inputs = counted(len(self.columns), "column")
        if not self.columns:  # written from Python: the inputs are features
            inputs = counted(int(self.estimator.n_features_in_), "feature")
        return f"<released {type(self.estimator).__name__} of {inputs}>"

"""scikit-learn's transformers as steps, with derivatives of outputs and of learnt parameters.

Each known kind of transformer defines its derivative with respect to the row, ``push``; the names
of its fitted attributes, ``learnt``; and the derivatives of these attributes with respect to one
row, ``influence``. Transformers of other kinds are differentiated by finite differences, and can be
frozen but not refitted. The same applies to a user's class, unless it derives from a known class
and overrides none of its methods. A transformer that uses the target raises an error, because its
output for a record depends on the labels of the other records.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.core.result import COLUMNS, LEVELS, SCALING
from seepage.errors import InputError
from seepage.glm.preprocessing.steps import FeatureStep, by_differences, dense
from seepage.glm.refusals import (
    NoDerivativeError,
    refusal,
)
from seepage.support.library_classes import library_of, own_name

Push = Callable[[Any, Any, np.ndarray], np.ndarray]
Influence = Callable[[Any, np.ndarray, np.ndarray], list[np.ndarray]]


@dataclass(frozen=True)
class TransformerKind:
    """A kind of transformer; ``influence`` returns an array (n, …) per name in ``learnt``."""

    push: Push
    learnt: tuple[str, ...] = ()
    influence: Influence | None = None


# Scalers ------------------------------------------------------------------------------------------


def _scaled(t: Any, X: Any, dX: np.ndarray) -> np.ndarray:
    scale = getattr(t, "scale_", None)
    return dX if scale is None else np.asarray(dX / scale)


def _min_max(t: Any, X: Any, dX: np.ndarray) -> np.ndarray:
    out = dX * t.scale_
    if t.clip:
        # A record at an end of the range still moves inwards.
        values = dense(X)
        out = np.where((values >= t.data_min_) & (values <= t.data_max_), out, 0.0)
    return np.asarray(out)


def _mean_moves(X: np.ndarray, dX: np.ndarray) -> np.ndarray:
    """Return the changes of the means over the non-missing cells, of shape (n, d)."""
    return np.asarray(np.where(np.isnan(X), 0.0, dX) / np.sum(~np.isnan(X), axis=0))


def _standard_moves(t: Any, X: np.ndarray, dX: np.ndarray) -> list[np.ndarray]:
    mean = _mean_moves(X, dX)
    moves = [mean]
    if t.scale_ is not None:
        centre = np.nanmean(X, axis=0)
        off = np.where(np.isnan(X), 0.0, X - centre)
        spread = np.where(t.var_ > 0, t.scale_, np.inf)
        moves.append(off * mean / spread)
    return moves


def _min_max_moves(t: Any, X: np.ndarray, dX: np.ndarray) -> list[np.ndarray]:
    low = _order_moves(X, dX, 0.0)
    high = _order_moves(X, dX, 1.0)
    scale = -t.scale_ / np.where(t.data_range_ > 0, t.data_range_, np.inf) * (high - low)
    return [scale, -t.data_min_ * scale - t.scale_ * low]


def _max_abs_moves(t: Any, X: np.ndarray, dX: np.ndarray) -> list[np.ndarray]:
    return [_order_moves(np.abs(X), np.sign(X) * dX, 1.0)]


def _robust_moves(t: Any, X: np.ndarray, dX: np.ndarray) -> list[np.ndarray]:
    moves = []
    if t.center_ is not None:
        moves.append(_order_moves(X, dX, 0.5))
    if t.scale_ is not None:
        low, high = (_order_moves(X, dX, q / 100) for q in t.quantile_range)
        apart = np.nanpercentile(X, t.quantile_range, axis=0)
        moves.append(
            np.where(apart[1] > apart[0], t.scale_ / (apart[1] - apart[0]), 0) * (high - low)
        )
    return moves


def _order_moves(X: np.ndarray, dX: np.ndarray, share: float) -> np.ndarray:
    """Return each row's effect on a quantile of the non-missing cells, of shape (n, d).

    The quantile is between two adjacent order statistics, and changes only with these two.
    """
    out = np.zeros_like(dX)
    for j in range(X.shape[1]):
        present = np.flatnonzero(~np.isnan(X[:, j]))
        order = present[np.argsort(X[present, j], kind="stable")]
        place = share * (len(order) - 1)
        below = int(np.floor(place))
        above = min(below + 1, len(order) - 1)
        out[order[below], j] += (1 - (place - below)) * dX[order[below], j]
        out[order[above], j] += (place - below) * dX[order[above], j]
    return out


# Gaps ---------------------------------------------------------------------------------------------


def _imputed(t: Any, X: Any, dX: np.ndarray) -> np.ndarray:
    present = ~_missing(t, X)
    valid = ~_all_missing(t)
    kept = np.where(present, dX, 0.0)[:, valid | t.keep_empty_features]
    if t.indicator_ is None:
        return kept
    flags = t.transform(X).shape[1] - kept.shape[1]
    return np.hstack([kept, np.zeros((len(dX), flags))])


def _missing(t: Any, X: Any) -> np.ndarray:
    values = np.asarray(X)
    marker = t.missing_values
    if marker is None or (isinstance(marker, float) and np.isnan(marker)):
        return (
            np.asarray(values != values) if values.dtype.kind != "O" else _objects_missing(values)
        )
    return np.asarray(values == marker)


def _objects_missing(values: np.ndarray) -> np.ndarray:
    return np.asarray([[v is None or v != v for v in row] for row in values.tolist()])


def _all_missing(t: Any) -> np.ndarray:
    statistics = np.asarray(t.statistics_)
    if statistics.dtype.kind == "O":
        return np.asarray([v is None or v != v for v in statistics.tolist()])
    return np.asarray(np.isnan(statistics))


def _imputer_moves(t: Any, X: np.ndarray, dX: np.ndarray) -> list[np.ndarray]:
    X = np.where(_missing(t, X), np.nan, X)
    if t.strategy == "mean":
        return [_mean_moves(X, dX)]
    if t.strategy == "median":
        return [_order_moves(X, dX, 0.5)]
    return [np.zeros_like(dX)]  # the most frequent value, or a constant


# Rotations ----------------------------------------------------------------------------------------


def _rotated(t: Any, X: Any, dX: np.ndarray) -> np.ndarray:
    out = dX @ t.components_.T
    return np.asarray(out / np.sqrt(t.explained_variance_) if t.whiten else out)


def _pca_moves(t: Any, X: np.ndarray, dX: np.ndarray) -> list[np.ndarray]:
    """Return the changes of mean, components and variances, by perturbing the covariance.

    One row changes the covariance by ``(dx cᵀ + c dxᵀ)/(n − 1)``, where c is the row minus the
    mean.
    """
    n = len(X)
    C = X - t.mean_
    values, vectors = np.linalg.eigh(C.T @ C / (n - 1))
    values, vectors = values[::-1], vectors[:, ::-1]
    kept = t.components_.shape[0]
    V = np.hstack([t.components_.T, vectors[:, kept:]])
    along, across = C @ V, dX @ V  # in the basis of the components, (n, d)
    components = np.zeros((n, kept, X.shape[1]))
    for k in range(kept):
        gaps = values[k] - values
        safe = np.where(np.arange(len(values)) == k, np.inf, gaps)
        if np.any(np.abs(safe) < 1e-9 * values[0]):
            raise InputError(
                "Two principal components have the same variance, so an arbitrarily small "
                "change of a record can rotate them; use fewer components, or "
                "preprocessing='frozen'."
            )
        turn = (across * along[:, k : k + 1] + along * across[:, k : k + 1]) / (n - 1) / safe
        components[:, k, :] = turn @ V.T
    variances = 2 * along[:, :kept] * across[:, :kept] / (n - 1)
    return [dX / n, components, variances]


# Curves and categories ----------------------------------------------------------------------------


def _polynomial(t: Any, X: Any, dX: np.ndarray) -> np.ndarray:
    values, powers = dense(X), t.powers_
    out = np.zeros((len(values), len(powers)))
    for j in range(values.shape[1]):
        lowered = powers.copy()
        lowered[:, j] = np.maximum(lowered[:, j] - 1, 0)
        for q in np.flatnonzero(powers[:, j]):
            out[:, q] += powers[q, j] * np.prod(values ** lowered[q], axis=1) * dX[:, j]
    return out


def _spline(t: Any, X: Any, dX: np.ndarray) -> np.ndarray:
    if t.extrapolation == "periodic":
        return _followed(t, X, dX)
    values, blocks = dense(X), []
    for j, spline in enumerate(t.bsplines_):
        knots, degree = spline.t, spline.k
        low, high = knots[degree], knots[-degree - 1]
        x = np.clip(values[:, j], low, high)
        slope = spline.derivative()(x)
        outside = (values[:, j] < low) | (values[:, j] > high)
        if t.extrapolation == "constant":
            slope = np.where(outside[:, None], 0.0, slope)
        elif t.extrapolation == "continue" and outside.any():
            slope[outside] = spline.derivative()(values[outside, j], extrapolate=True)
        blocks.append(slope * dX[:, j : j + 1])
    out = np.hstack(blocks)
    if not t.include_bias:
        width = out.shape[1] // len(t.bsplines_)
        out = np.delete(out, np.arange(width - 1, out.shape[1], width), axis=1)
    return out


class _Knots:
    """The learnt base knots of a spline transformer, of shape (K, d), flattened."""

    @staticmethod
    def of(t: Any) -> np.ndarray:
        return np.stack([s.t[s.k : -s.k or None] for s in t.bsplines_], axis=1)

    @staticmethod
    def put(t: Any, knots: np.ndarray) -> Any:
        from sklearn.base import clone

        # A record at an end moves together with the knot there: it stays on the same polynomial.
        outside = t.extrapolation if t.extrapolation == "periodic" else "continue"
        other = clone(t).set_params(knots=knots, extrapolation=outside)
        other = other.fit(np.stack([knots[0], knots[-1]]))
        if hasattr(t, "feature_names_in_"):
            other.feature_names_in_ = t.feature_names_in_
        return other


def _knot_moves(t: Any, X: np.ndarray, dX: np.ndarray) -> np.ndarray:
    """Return the change of the base knots with each row, (n, K, d)."""
    if not isinstance(t.knots, str):
        return np.zeros((len(X), *_Knots.of(t).shape))
    shares = np.linspace(0, 1, t.n_knots)
    if t.knots == "quantile":
        return np.stack([_order_moves(X, dX, s) for s in shares], axis=1)
    low, high = _order_moves(X, dX, 0.0), _order_moves(X, dX, 1.0)
    return np.stack([(1 - s) * low + s * high for s in shares], axis=1)


def _whole_levels(t: Any, X: Any, dX: np.ndarray) -> np.ndarray:
    if np.any(dX):
        raise InputError(
            f"{type(t).__name__} requires categories, which have no derivative; if the numbers in "
            "its columns are category codes, name these columns in categorical=."
        )
    return np.zeros((len(dX), dense(t.transform(X)).shape[1]))


def _followed(t: Any, X: Any, dX: np.ndarray) -> np.ndarray:
    """Return the derivative of the transformer at each row, by finite differences."""
    if not np.any(dX):
        return np.zeros((len(dX), dense(t.transform(X)).shape[1]))
    values = dense(X)
    half = _like(X, values)[: max(1, len(values) // 2)]
    if not np.allclose(dense(t.transform(half)), dense(t.transform(X))[: len(half)]):
        raise NoDerivativeError(
            f"{type(t).__name__} does not transform each row separately: its output for a record "
            "depends on the other records.",
            "Drop that step, or audit the final model on the transformed table.",
        )
    scale = np.nanstd(values, axis=0)
    unit = np.where(scale > 0, scale, 1.0)
    size = np.max(np.abs(np.nan_to_num(dX)) / unit) or 1.0

    def moved(h: float) -> np.ndarray:
        return dense(t.transform(_like(X, values + h / size * np.nan_to_num(dX))))

    return by_differences(moved, type(t).__name__) * size


def _like(X: Any, values: np.ndarray) -> Any:
    """Return numbers in the type of the input rows, a pandas data frame or an array."""
    if hasattr(X, "iloc"):
        return type(X)(values, columns=X.columns, index=X.index)
    return values


_BY_LABEL = (["sklearn", "feature_selection"], ["sklearn", "cross_decomposition"])
_NOT_BY_LABEL = ("VarianceThreshold", "SelectorMixin")  # the latter only picks columns
_PLACES = ("mean_", "center_", "statistics_")  # numbers that lie among a column's values
_PLAIN = ("components_", "min_")  # numbers of order one, or on the scale of the result
KNOWN: dict[str, TransformerKind] = {
    "StandardScaler": TransformerKind(_scaled, ("mean_", "scale_"), _standard_moves),
    "MinMaxScaler": TransformerKind(_min_max, ("scale_", "min_"), _min_max_moves),
    "MaxAbsScaler": TransformerKind(_scaled, ("scale_",), _max_abs_moves),
    "RobustScaler": TransformerKind(_scaled, ("center_", "scale_"), _robust_moves),
    "SimpleImputer": TransformerKind(_imputed, ("statistics_",), _imputer_moves),
    "PCA": TransformerKind(_rotated, ("mean_", "components_", "explained_variance_"), _pca_moves),
    "PolynomialFeatures": TransformerKind(_polynomial),
    "SplineTransformer": TransformerKind(_spline),
    "OneHotEncoder": TransformerKind(_whole_levels),
    "OrdinalEncoder": TransformerKind(_whole_levels),
    "FunctionTransformer": TransformerKind(_followed),
    "Normalizer": TransformerKind(_followed),
}


_CHOOSE = ("OneHotEncoder", "OrdinalEncoder")  # of the known kinds: levels, which no number moves
_CUT = ("KBinsDiscretizer", "Binarizer")
_LEARNT = {
    "StandardScaler": SCALING,
    "MinMaxScaler": SCALING,
    "MaxAbsScaler": SCALING,
    "RobustScaler": SCALING,
    "SimpleImputer": "imputed values",
    "KNNImputer": "imputed values",
    "IterativeImputer": "imputed values",
    "PCA": "components",
    "SplineTransformer": "knots",
    "OneHotEncoder": LEVELS,
    "OrdinalEncoder": LEVELS,
    "KBinsDiscretizer": "bins",
    "TargetEncoder": "encodings",
    "QuantileTransformer": SCALING,
    "PowerTransformer": SCALING,
}


def learnt_word(transformer: Any) -> str:
    """Return a word that describes the values a transformer learns from the data."""
    name = own_name(transformer, "sklearn", _LEARNT)
    if name is not None:
        return _LEARNT[name]
    return COLUMNS if hasattr(transformer, "get_support") else "preprocessing"


class Transformer(FeatureStep):
    """A scikit-learn transformer as a step."""

    def __init__(self, transformer: Any) -> None:
        self.inner, self.name = transformer, type(transformer).__name__
        # Its name among the known kinds; a class of the same name is none of them.
        self.known = own_name(transformer, "sklearn", KNOWN)
        self.kind = None if self.known is None else KNOWN[self.known]
        if own_name(transformer, "sklearn", _CUT) is not None:
            raise NoDerivativeError(
                f"{self.name} has no derivative: it bins numbers, so a change has no effect "
                "unless it crosses a bin edge.",
                "Drop that step, or measure risks by refits with sp.leakage(pipeline, X, y, "
                "…).membership().",
            )
        if self.kind is None and reads_target(transformer):
            raise NoDerivativeError(
                f"{self.name} uses the target: its output for a record depends on the labels of "
                "all other records, so seepage cannot differentiate it for one record.",
                "Use OneHotEncoder or OrdinalEncoder, select columns before fitting, or measure "
                "risks by refits with sp.leakage(pipeline, X, y, …).membership().",
            )

    def transform(self, X: Any) -> Any:
        """Return the transformed rows as a dense array."""
        out = self.inner.transform(X)
        return out.toarray() if hasattr(out, "toarray") else out

    def push(self, X: Any, dX: np.ndarray) -> np.ndarray:
        """Return the derivative along ``dX``, exact for known kinds."""
        kind = self.kind
        return _followed(self.inner, X, dX) if kind is None else kind.push(self.inner, X, dX)

    def refitted(self, X: Any) -> FeatureStep:
        """Return the transformer fitted on new rows."""
        from sklearn.base import clone

        return Transformer(clone(self.inner).fit(X))

    def _parts(self) -> list[tuple[str, np.ndarray]]:
        names = () if self.kind is None else self.kind.learnt
        held = [(name, getattr(self.inner, name, None)) for name in names]
        parts = [(name, _numeric(value)) for name, value in held if value is not None]
        return [(name, value) for name, value in parts if value.size]

    def learnt(self) -> np.ndarray:
        """Return the fitted numbers of a known kind."""
        self._check_known()
        if self.known == "SplineTransformer":
            return _Knots.of(self.inner).ravel()
        return np.concatenate([np.zeros(0), *(value.ravel() for _, value in self._parts())])

    @property
    def held(self) -> tuple[str, ...]:  # type: ignore[override]
        """Everything the transformer has learnt: numbers, levels or columns."""
        if not self._fitted() - {"n_output_features_"}:
            return ()
        return (learnt_word(self.inner),)

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """Everything the transformer has learnt, except numbers that vary smoothly with records."""
        moves = self.kind is not None and self.known not in _CHOOSE
        if moves and getattr(self.inner, "strategy", None) == "most_frequent":
            moves = False
        return () if moves else self.held

    def _fitted(self) -> set[str]:
        """Return the names of the transformer's learnt attributes.

        An unknown class may not follow the convention that these names end in ``_``. So every
        attribute is included, except settings that are not themselves fitted.
        """
        held = set(vars(self.inner)) - {"n_features_in_", "feature_names_in_"}
        if self.kind is not None:
            return {name for name in held if name.endswith("_")}
        ask = getattr(self.inner, "get_params", None)
        settings = {} if ask is None else ask(deep=True)
        held = {name for name in held - set(settings) if not name.startswith("_sklearn")}
        return held | {name for name, value in settings.items() if hasattr(value, "fit")}

    def units(self, X: Any) -> np.ndarray:
        """Return units of the learnt parameters: column spreads, the parameters' sizes, or 1."""
        if not len(self.learnt()):
            return np.zeros(0)
        spread = np.nanstd(dense(X), axis=0)
        if self.known == "SplineTransformer":
            return np.broadcast_to(spread, _Knots.of(self.inner).shape).ravel()
        found = []
        for name, value in self._parts():
            size = np.where(spread > 0, spread, 1.0) if name in _PLACES else np.abs(value)
            found.append(np.ravel(size if name not in _PLAIN else np.ones_like(value)))
        return np.concatenate(found)

    def with_learnt(self, numbers: np.ndarray) -> FeatureStep:
        """Return a copy with different learnt parameters."""
        other = copy(self)
        if self.known == "SplineTransformer":
            other.inner = _Knots.put(self.inner, numbers.reshape(_Knots.of(self.inner).shape))
            return other
        other.inner = copy(self.inner)
        if self.known == "MinMaxScaler":  # a record at an end moves together with the range
            other.inner.clip = False
        at = 0
        for name, value in self._parts():
            setattr(other.inner, name, numbers[at : at + value.size].reshape(value.shape))
            at += value.size
        return other

    def influence(self, X: Any, dX: np.ndarray) -> np.ndarray:
        """Return the change of the learnt parameters with each row."""
        if self.known == "SplineTransformer":
            return _knot_moves(self.inner, dense(X), dX).reshape(len(dX), -1)
        if self.kind is None or self.kind.influence is None or not self._parts():
            return np.zeros((len(dX), 0))
        moves = self.kind.influence(self.inner, dense(X), dX)
        return np.hstack([move.reshape(len(dX), -1) for move in moves])

    def _check_known(self) -> None:
        if self.kind is None and self._fitted():
            raise refusal(
                f"{self.name} cannot be refitted, because the effect of a record on its learnt "
                "parameters is unknown.",
                "Use preprocessing='frozen', which treats the learnt parameters as public, or use "
                f"one of {', '.join(sorted(KNOWN))}.",
            )


def _numeric(value: Any) -> np.ndarray:
    """Return fitted numbers as floats; empty for categorical fill values, which are fixed."""
    array = np.asarray(value)
    return np.zeros(0) if array.dtype.kind in "OUS" else np.asarray(array, dtype=float)


def reads_target(transformer: Any) -> bool:
    """Return whether a transformer uses the labels."""
    tags = getattr(transformer, "__sklearn_tags__", None)
    asks = tags is not None and bool(tags().target_tags.required)
    own = [cls for cls in type(transformer).__mro__ if library_of(cls) == "sklearn"]
    by_label = any(
        cls.__module__.split(".")[:2] in _BY_LABEL and cls.__name__ not in _NOT_BY_LABEL
        for cls in own[:1]
    )
    return asks or by_label

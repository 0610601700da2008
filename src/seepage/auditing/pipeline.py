"""``sp.audit``: the audit of a fitted model, or of a pipeline about its raw columns, in Python.

A scaler, a principal-component rotation or a one-hot encoder maps every row by itself and affinely,
``x = B z + c``. A column of ``B`` is then the difference of two transformed rows, without any error
but rounding; that it is the same for other rows and other steps is checked, so that a map that is
not affine is refused and never measured wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import narwhals as nw
import numpy as np
import scipy.sparse

from seepage.auditing.audit import audit_model
from seepage.auditing.findings import Audit
from seepage.auditing.intake.table import check_groups
from seepage.auditing.trained_model import (
    ROW,
    TARGET_OF,
    Attribute,
    EncodedTable,
    FitSettings,
    LabelFacts,
    RecordsInMemory,
    TrainedModel,
    settings_of,
)
from seepage.core.noise import Gaussian
from seepage.errors import InputError
from seepage.glm.adapters.registry import describe
from seepage.glm.estimators import LinearModel
from seepage.glm.fitting.objective import FittedGLM
from seepage.tables.columns import category_spread
from seepage.tables.source import as_numpy, check_column, read_table

_PROBED = 3  # rows at which the map is looked at
_TOLERANCE = 1e-6
_MOST_LEVELS = 1000

Transform = Callable[[Any], Any]


def audit(
    estimator: Any,
    X: Any,
    y: Any,
    *,
    noise: float | Gaussian | None = None,
    target_eta: float | None = None,
    sensitive: Sequence[str] = (),
    groups: Mapping[str, Any] | Sequence[str] | None = None,
    categorical: Sequence[str] = (),
    quantities: Sequence[str] = (),
    sample_weight: Any = None,
    source: str = "the given table",
    target: str | None = None,
    seed: int = 0,
) -> Audit:
    """Audit a fitted linear model, or a pipeline that ends in one, about the columns of ``X``.

    Through the steps before the model (scalers, one-hot encoders, column transformers, principal
    components: anything that maps each row by itself and affinely, ``x = B z + c``) the leakage is
    about the raw columns: the Jacobian of the release by ``z`` is the one by ``x`` times ``B``.
    What those steps learnt from the data (means, deviations, components) counts as public.

    Parameters
    ----------
    estimator
        A fitted model that :func:`seepage.leakage` takes, or a scikit-learn ``Pipeline`` of
        transformers and such a model.
    X, y
        The raw table and the labels it was fitted on.
    noise
        The standard deviation of the Gaussian noise on every released number; by default the least
        that meets ``target_eta``.
    target_eta
        The leakage that no record should exceed; 1 by default: one standard deviation.
    sensitive
        Columns of ``X`` for which the error on every record is reported.
    groups
        Columns of ``X``, or names with the group of every record, to compare the leakage of.
    categorical
        Columns whose numbers are codes of categories.
    quantities
        Columns of two numbers that are quantities all the same, such as doses: others are taken
        for a yes and a no, and measured in whole levels.
    sample_weight
        The weights the model was fitted with.
    source, target
        What the table and the labels are called in the report.
    seed
        Of the held-out rows and the noise in the privacy–utility curve.

    Examples
    --------
    >>> import seepage as sp
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    >>> model = make_pipeline(StandardScaler(), Ridge(1.0)).fit(X, y)
    >>> found = sp.audit(model, X, y, sensitive=["bmi"])
    >>> found.cell_errors["bmi"].shape
    (442,)
    """
    frame, named = _raw_frame(X)
    steps: list[str] = []
    if type(estimator).__name__ == "Pipeline":
        final, before = estimator[-1], estimator[:-1]
        transform = before.transform if len(before) else (lambda rows: rows)
        if len(before):
            steps.append(
                "Leakage is about the raw columns, through the Jacobian of the preprocessing; what "
                "its steps learnt from the data (means, deviations, components) counts as public."
            )
    else:
        final, transform = estimator, (lambda rows: rows)
    features = _transformed(transform, X)
    labels = as_numpy(y)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    name = target or str(getattr(y, "name", None) or "label")
    if name in frame.columns:
        name = f"{name} (label)"
    weights = None if sample_weight is None else np.asarray(as_numpy(sample_weight), dtype=float)
    fit = describe(final, read_table(features), labels, weights)
    settings = settings_of(fit, len(features))
    steps.append(
        f"The given {settings.model} model (L2 penalty λ = {settings.l2:.4g}) was checked to be "
        f"the minimiser of its objective on these {len(features):,} records."
    )
    names = [f"feature {j}" for j in range(features.shape[1])]
    # Those of the classes included, which another library's model may carry besides.
    weights = None if fit.sample_weight is None else np.asarray(fit.sample_weight)
    beside = _groups(groups, frame)
    beside[ROW] = np.arange(len(features))
    table = EncodedTable(
        source=RecordsInMemory(features, names, labels, weights, beside),
        attributes=_raw_attributes(frame, named, transform, categorical, quantities),
        target=name,
        target_kind=TARGET_OF[settings.model],
        labels=LabelFacts.of(labels, settings.classifies),
        groups=tuple(column for column in beside if column != ROW),
        sensitive=tuple(dict.fromkeys(sensitive)),
        steps=tuple(steps),
    )
    trained = TrainedModel(_as_ours(final, settings, fit, labels), settings, table)
    sigma = _sigma(noise)
    return audit_model(trained, name=source, sigma=sigma, target_eta=target_eta, seed=seed)


def _transformed(transform: Any, X: Any) -> np.ndarray:
    try:
        return _dense(transform(X))
    except (TypeError, ValueError) as problem:
        raise InputError(
            f"X cannot be turned into the model's features: {problem}; pass the raw table the "
            "model or pipeline was fitted on."
        ) from problem


def _sigma(noise: float | Gaussian | None) -> float | None:
    if noise is None:
        return None
    value = noise.sigma if isinstance(noise, Gaussian) else noise
    if np.ndim(value) != 0 or isinstance(value, bool):
        raise InputError(
            "An audit takes one standard deviation for all released numbers; measure other noise "
            "with sp.leakage."
        )
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(
            f"noise must be a standard deviation or sp.Gaussian(sigma), not {noise!r}."
        ) from None


def _groups(groups: Mapping[str, Any] | Sequence[str] | None, frame: Any) -> dict[str, np.ndarray]:
    if groups is None:
        return {}
    if isinstance(groups, Mapping):
        found = {str(name): as_numpy(labels) for name, labels in groups.items()}
    else:
        wanted = [groups] if isinstance(groups, str) else list(groups)
        for name in wanted:
            check_column(name, frame.columns)
        found = {name: frame[name].to_numpy() for name in wanted}
    for name, labels in found.items():
        if labels.shape != (len(frame),):
            raise InputError(
                f"The groups {name!r} must be one label for each of the {len(frame)} records, not "
                f"of shape {labels.shape}."
            )
    check_groups({name: len(np.unique(labels.astype(str))) for name, labels in found.items()})
    return found


def _as_ours(model: Any, settings: FitSettings, fit: FittedGLM, y: np.ndarray) -> Any:
    """Return a fitted model, ours or another library's, as one of ours.

    Another library's may carry class weights besides the sample weights; the weights of the
    description are the product of both, which ours takes as sample weights.
    """
    if isinstance(model, LinearModel):
        return model
    ours = settings.estimator()
    coef = np.asarray(fit.coef, dtype=float)
    outputs = coef.shape[1] if coef.ndim == 2 else 1
    free = np.zeros(outputs) if fit.intercept is None else np.ravel(np.asarray(fit.intercept))
    if settings.classifies:
        ours.classes_ = np.asarray(getattr(model, "classes_", np.unique(y)))
        ours.coef_, ours.intercept_ = np.atleast_2d(coef.T), free
    else:
        ours.coef_, ours.intercept_ = coef, free[0]
    ours.weighted_ = fit.sample_weight is not None
    ours.n_features_in_ = int(coef.shape[0])
    return ours


def _raw_frame(X: Any) -> tuple[nw.DataFrame[Any], bool]:
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


def _dense(features: Any) -> np.ndarray:
    """Return transformed rows as an array of floats."""
    if scipy.sparse.issparse(features):
        features = features.toarray()
    values = np.asarray(features, dtype=float)
    return values if values.ndim == 2 else values.reshape(len(values), -1)


def _raw_attributes(
    frame: nw.DataFrame[Any],
    named: bool,
    transform: Transform,
    categorical: Sequence[str],
    quantities: Sequence[str],
) -> tuple[Attribute, ...]:
    """Return every raw column that the model uses, with the directions it moves the features in.

    ``named`` says whether ``transform``, the fitted preprocessing, takes a frame (else: an array).
    """
    for name in [*categorical, *quantities]:
        check_column(name, frame.columns)
    probe = frame[: min(_PROBED, len(frame))]

    def apply(rows: nw.DataFrame[Any]) -> np.ndarray:
        return _dense(transform(rows.to_native() if named else rows.to_numpy()))

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
            found = _levels(name, "categorical", column, probe, apply)
        elif name not in quantities and len(column.unique()) == 2:
            # A yes and a no, however they are written: they move by whole levels.
            found = _levels(name, "boolean", column, probe, apply)
        else:
            found = _number(name, column, probe, apply, start)
        if found is not None:
            attributes.append(found)
    return tuple(attributes)


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


def _levels(
    name: str, kind: str, column: nw.Series[Any], probe: nw.DataFrame[Any], apply: Any
) -> Attribute | None:
    """Return a column that moves by whole levels: from the first to each of the others."""
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
    return _attribute(name, kind, changes.transpose(2, 0, 1), category_spread(shares))


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

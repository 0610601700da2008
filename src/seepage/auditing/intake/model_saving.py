"""``sp.save`` writes a fitted model to a file; ``sp.load`` and ``seepage audit`` read the file.

The file contains numbers and text, in the format of :mod:`seepage.auditing.intake.model_file`. Like
``release.json`` in a release folder, the file includes a pipeline's scaling, column by column. A
penalty that does not grow with the number of records is written as its total, ``ridge``, because
the number of records is unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seepage.auditing.intake.model_file import load_model
from seepage.auditing.release.released_model import ColumnCoding
from seepage.auditing.trained_model import MODELS, settings_of
from seepage.errors import InputError
from seepage.glm.adapters.registry import best_of, describe
from seepage.glm.fitting.objective import FittedGLM
from seepage.glm.refusals import refusal
from seepage.support.files import write_text
from seepage.support.library_classes import (
    is_pipeline,
    is_search,
    library_class,
    library_of,
    own_name,
)
from seepage.tables.names import counted
from seepage.tables.source import Table, as_numpy

_FAMILIES = ("linear", "logistic", "poisson", "softmax")
# The transformers of scikit-learn that a file can hold
_CODED = (
    "OneHotEncoder",
    "StandardScaler",
    "MinMaxScaler",
    "MaxAbsScaler",
    "RobustScaler",
    "FunctionTransformer",
)
_IN_PYTHON = "Audit it in Python, with sp.audit(model, X, y)."


def save(model: Any, path: str | Path) -> Path:
    """Write a fitted linear model to a JSON file for the command line, and return the path.

    The file contains the coefficients, penalty, classes and names, and the scaling or levels of raw
    columns. The file contains no records and no code. Only the owner can read the file, since
    coefficients without noise are private.

    Parameters
    ----------
    model
        A linear, logistic, Poisson or softmax model from :mod:`seepage.glm`, scikit-learn or
        statsmodels, fitted without weights; a pipeline that scales or one-hot encodes before such a
        model; or a hyperparameter search over either.
    path
        The ``.json`` file to write; an existing file is replaced.

    Notes
    -----
    Other programs may write this format; an audit checks that the coefficients minimise the
    objective on its table. The file contains one object::

        {
          "family": "logistic",
          "coefficients": [0.5, -1.25],
          "intercept": -0.1,
          "l2": 0.001,
          "classes": ["no", "yes"],
          "features": ["age", "sex=male"],
          "columns": [{"name": "age", "kind": "numeric", "centre": 50.0, "unit": 10.0}]
        }

    ``family`` is ``linear``, ``logistic``, ``poisson`` or ``softmax``. For softmax,
    ``coefficients`` has one list per class, and ``intercept`` one number per class. Logistic and
    softmax models have ``classes``; with two classes, a larger score favours the second.
    ``intercept``, ``features`` and ``columns`` are optional. ``columns`` states how raw columns are
    scaled, in this example ``(age − 50)/10``; without it, the coefficients apply to the raw
    columns. ``ridge`` (nλ) may be given instead of ``l2`` (λ). A ``.safetensors`` file contains the
    tensors ``coefficients`` and ``intercept``; its metadata contain ``family`` and ``l2`` as text,
    and ``classes`` and ``features`` as JSON lists. Pickles are not read, because opening a pickle
    can run arbitrary code.

    Examples
    --------
    >>> import numpy as np, seepage as sp, tempfile
    >>> from sklearn.linear_model import Ridge
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((100, 3))
    >>> model = make_pipeline(StandardScaler(), Ridge(1.0)).fit(X, X[:, 0])
    >>> path = sp.save(model, tempfile.mkdtemp() + "/model.json")
    >>> path.name
    'model.json'
    >>> bool(np.allclose(sp.load(path).predict(X), model.predict(X)))
    True
    """
    path = Path(path)
    if path.suffix.lower() != ".json":
        raise InputError(
            f"Models are saved as .json, not as {path.suffix or path.name!r}; change the file name."
        )
    content = json.dumps(_content(model), indent=2, allow_nan=False) + "\n"
    try:
        write_text(path, content)
    except OSError as error:
        raise InputError(
            f"{path.name} cannot be written: {error.strerror or error}; choose another path."
        ) from error
    return path


def load(path: str | Path) -> Any:
    """Return the model from a file that :func:`seepage.save` wrote, as if it had just been fitted.

    The result is an ``sp.glm`` model. If the file states the scaling or levels of raw columns, the
    result is a scikit-learn ``Pipeline`` that ends in such a model. Pass the result to
    :func:`seepage.audit` or :func:`seepage.leakage` with its training table. No code in the file is
    run, and unknown contents raise an error.

    Parameters
    ----------
    path
        The ``.json`` or ``.safetensors`` file. If all levels of a category are written as integers,
        they are read as integers, otherwise as text.

    Examples
    --------
    >>> import numpy as np, seepage as sp, tempfile
    >>> X = np.random.default_rng(0).standard_normal((100, 3))
    >>> model = sp.glm.LinearRegression(l2=0.1).fit(X, X[:, 0])
    >>> sp.load(sp.save(model, tempfile.mkdtemp() + "/model.json"))
    LinearRegression(l2=0.1)
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path.name} is a folder; read a release with sp.load_release.")
    model = load_model(path)
    if model.columns_ is None:
        return model
    try:
        codings = [
            ColumnCoding.read(asdict(ColumnCoding("", "numeric")) | {"levels": []} | column, place)
            for place, column in enumerate(model.columns_, 1)
        ]
        steps = _steps_of(codings, getattr(model, "feature_names_in_", None), model)
    except (TypeError, ValueError) as problem:
        raise InputError(
            f"{path.name}: its columns are invalid ({problem}); save the model again with sp.save."
        ) from problem
    return steps


def _steps_of(codings: list[ColumnCoding], features: Any, model: Any) -> Any:
    """Return the pipeline that encodes the columns and applies the model."""
    from sklearn.compose import ColumnTransformer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    if not any(coding.levels for coding in codings):
        parts: list[Any] = [_scaler(StandardScaler(), codings)]
        named = [coding.name for coding in codings]
        if named != [f"x{j}" for j in range(len(named))]:
            parts[0].feature_names_in_ = np.array(named, dtype=object)
        if len(codings) != model.n_features_in_:
            raise ValueError(
                f"{counted(len(codings), 'column')} for "
                f"{counted(model.n_features_in_, 'coefficient')}"
            )
    else:
        import pandas as pd

        known = None if features is None else {str(name) for name in features}
        made, rows, width = [], {}, 0
        for coding in codings:
            levels = _typed(coding.levels)
            if levels:
                whole = known is None or f"{coding.name}={coding.levels[0]}" in known
                step = OneHotEncoder(categories=[levels], drop=None if whole else "first")
                width += len(levels) - (not whole)
            else:
                step, width = StandardScaler(), width + 1
            rows[coding.name] = [levels[0], levels[-1]] if levels else _two_rows(coding)
            made.append((coding.name, step, [coding.name]))
        if width != model.n_features_in_ or len(rows) < len(codings):
            raise ValueError(
                f"{counted(width, 'feature')} for {counted(model.n_features_in_, 'coefficient')}"
            )
        whole_table = ColumnTransformer(made).fit(pd.DataFrame(rows))
        for coding in codings:
            if not coding.levels:
                _scaler(whole_table.named_transformers_[coding.name], [coding])
        parts = [whole_table]
    if hasattr(model, "feature_names_in_"):
        del model.feature_names_in_  # the steps name raw columns, and hand on an array
    return make_pipeline(*parts, model)


def _two_rows(coding: ColumnCoding) -> list[float]:
    return [coding.centre - coding.unit, coding.centre + coding.unit]


def _scaler(scaler: Any, codings: list[ColumnCoding]) -> Any:
    """Return a scaler with these centres and units, fitted first to set its other attributes."""
    names = getattr(scaler, "feature_names_in_", None)
    scaler.fit(np.column_stack([_two_rows(coding) for coding in codings]))
    scaler.mean_ = np.array([coding.centre for coding in codings])
    scaler.scale_ = np.array([coding.unit for coding in codings])
    scaler.var_ = scaler.scale_**2
    if names is not None:
        scaler.feature_names_in_ = names
    return scaler


def _typed(levels: tuple[str, ...]) -> list[Any]:
    """Return the levels as integers if all are written as integers, otherwise as text."""
    whole = all(re.fullmatch(r"-?(0|[1-9]\d{0,17})", level) for level in levels)
    return [int(level) for level in levels] if whole else list(levels)


def _content(model: Any) -> dict[str, Any]:
    """Return the contents of the model's file."""
    if is_search(model):
        model = best_of(model)
    columns: list[_Columns] = []
    if is_pipeline(model):
        columns = list(_columns_of(model[:-1]))
        model = model[-1]
    fit, ridge = _described(model)
    settings = settings_of(fit, 1)
    if settings.model not in _FAMILIES or not settings.refits:
        raise refusal(
            "A model file can describe only linear, logistic, Poisson and softmax models with an "
            "L2 penalty or none.",
            _IN_PYTHON,
        )
    if fit.sample_weight is not None:
        raise refusal(
            "A model file cannot store record or class weights, which belong to the data.",
            _IN_PYTHON,
        )
    coef = as_numpy(fit.coef)
    content: dict[str, Any] = {
        "family": settings.model,
        "coefficients": coef.T.tolist() if coef.ndim == 2 else coef.tolist(),
        **ridge,
    }
    if fit.intercept is not None:
        content["intercept"] = as_numpy(fit.intercept).tolist()
    classes = getattr(model, "classes_", None)
    if settings.classifies:
        known = np.asarray([0, 1] if classes is None else classes)
        content["classes"] = [int(c) if known.dtype.kind in "biu" else str(c) for c in known]
    names = _feature_names(model, columns)
    if names is not None:
        if len(names) != coef.shape[0]:
            raise refusal("The model must have one coefficient per encoded feature.", _IN_PYTHON)
        content["features"] = names
    if columns:
        content["columns"] = [asdict(c) for block in columns for c in block.codings]
    return content


def same_model(model: Any) -> str | None:
    """Return the call that makes the same model in ``sp.glm``, or ``None`` if there is none.

    The model may have been released, so only its settings are used, not its coefficients.
    """
    settings = copy(model)
    settings.__dict__.pop("release_", None)
    try:
        content = _content(settings)
    except InputError:
        return None
    ridge = content.get("ridge")
    l2 = repr(float(content["l2"])) if ridge is None else f"{float(ridge)!r} / len(X)"
    name = MODELS[content["family"]].__name__
    return f"sp.glm.{name}(l2={l2}, fit_intercept={'intercept' in content})"


def _described(model: Any) -> tuple[FittedGLM, dict[str, float]]:
    """Return a description of the model and its penalty: λ, or nλ if it is the same for every n."""
    if library_of(type(model)) == "statsmodels":
        inner = model.model
        exog = np.asarray(inner.exog)
        constant = inner.data.const_idx
        rows = exog if constant is None else np.delete(exog, constant, axis=1)
        table = Table(rows, tuple(f"x{j}" for j in range(rows.shape[1])), None, "numpy")
        return describe(model, table, inner.endog), {"l2": 0.0}
    if not hasattr(model, "coef_"):
        raise InputError("Only a fitted model with coef_ can be saved; fit it first.")
    if getattr(model, "weighted_", False):
        raise refusal(
            "A model file cannot store record weights, which belong to the data.", _IN_PYTHON
        )
    classes = getattr(model, "classes_", None)
    labels = np.ones(1) if classes is None else np.asarray(classes)
    few, many = (_on_made_up_rows(model, np.tile(labels, times)) for times in (1, 2))
    if few.ridge == many.ridge and few.ridge > 0:
        return few, {"ridge": few.ridge}
    return few, {"l2": few.ridge / len(labels)}


def _on_made_up_rows(model: Any, labels: np.ndarray) -> FittedGLM:
    width = int(np.shape(model.coef_)[-1])
    zero = np.broadcast_to(np.zeros((1, 1)), (len(labels), width))
    return describe(model, Table(zero, tuple(f"x{j}" for j in range(width)), None, "numpy"), labels)


def _feature_names(model: Any, columns: list[_Columns]) -> list[str] | None:
    if columns:
        return [title for block in columns for title in block.titles]
    names = getattr(model, "feature_names_in_", None)
    if names is None and library_of(type(model)) == "statsmodels":
        data = model.model.data
        names = [n for k, n in enumerate(data.xnames) if k != data.const_idx]
    return None if names is None else [str(name) for name in names]


# How columns become features ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Columns:
    """Stores columns and, in order, the names of the features that encode them."""

    codings: tuple[ColumnCoding, ...]
    titles: tuple[str, ...]


def _columns_of(pipeline: Any) -> Iterator[_Columns]:
    """Yield the encoded columns of a pipeline's scaler, or of each of its transformers."""
    steps = [step for _, step in pipeline.steps if step is not None and step != "passthrough"]
    if len(steps) != 1:
        raise refusal(
            "A model file can describe one step of scaling and encoding, but this pipeline has "
            f"{counted(len(steps), 'step')} before the model.",
            _IN_PYTHON,
        )
    step = steps[0]
    if own_name(step, "sklearn", ("ColumnTransformer",)) is None:
        _check_coded(step)
        yield _coded(step, _input_names(step))
        return
    for name, part, _ in step.transformers_:
        if isinstance(part, str) and part == "drop":
            continue
        places = step._transformer_to_input_indices[name]
        every = _input_names(step)
        yield _coded(part, [every[k] for k in places])


def _input_names(step: Any) -> list[str]:
    names = getattr(step, "feature_names_in_", None)
    return [f"x{j}" for j in range(step.n_features_in_)] if names is None else list(map(str, names))


def _coded(part: Any, names: list[str]) -> _Columns:
    """Return the encoded columns of one transformer."""
    part = _only_step(part)
    _check_coded(part)
    kind = own_name(part, "sklearn", _CODED)
    if kind == "OneHotEncoder":
        return _levels(part, names)
    count = len(names)
    if kind == "StandardScaler":
        centre = np.zeros(count) if part.mean_ is None else part.mean_
        unit = np.ones(count) if part.scale_ is None else part.scale_
    elif kind == "MinMaxScaler":
        centre, unit = -part.min_ / part.scale_, 1 / part.scale_
    elif kind == "MaxAbsScaler":
        centre, unit = np.zeros(count), part.scale_
    elif kind == "RobustScaler":
        centre = np.zeros(count) if part.center_ is None else part.center_
        unit = np.ones(count) if part.scale_ is None else part.scale_
    else:  # passed on as it is
        centre, unit = np.zeros(count), np.ones(count)
    codings = tuple(
        ColumnCoding(n, "numeric", float(c), float(u))
        for n, c, u in zip(names, centre, unit, strict=True)
    )
    return _Columns(codings, tuple(names))


def _only_step(part: Any) -> Any:
    """Return the step of a one-step pipeline; return any other transformer unchanged."""
    single = own_name(part, "sklearn", ("Pipeline",)) is not None and len(part.steps) == 1
    return part.steps[0][1] if single else part


def _check_coded(part: Any) -> None:
    """Raise an error for a transformer that the file format cannot describe."""
    part = _only_step(part)
    kind = own_name(part, "sklearn", _CODED)
    curved = kind == "FunctionTransformer" and part.func is not None
    if curved or (kind is None and not isinstance(part, str)):
        raise refusal(
            f"A model file cannot describe the encoding of a {type(part).__name__} "
            f"step.{_whose(part)}",
            _IN_PYTHON,
        )


def _whose(part: Any) -> str:
    """Return a note if a class only resembles or subclasses a scikit-learn class."""
    found = library_class(part, ("sklearn",))
    if found is not None and found.name in _CODED and found.overrides is not None:
        return f" {found.other_than(part)}."
    alike = type(part).__name__ in _CODED and (found is None or found.name not in _CODED)
    return " This class is not the scikit-learn class of that name." if alike else ""


def _levels(encoder: Any, names: list[str]) -> _Columns:
    codings, titles = [], []
    dropped = encoder.drop_idx_
    for k, (name, levels) in enumerate(zip(names, encoder.categories_, strict=True)):
        first = None if dropped is None else dropped[k]
        rare = encoder.min_frequency is not None or encoder.max_categories is not None
        if rare or first not in (None, 0):
            raise refusal(
                "A model file can describe categories only with all levels or without the first "
                "level, and not with merged levels.",
                _IN_PYTHON,
            )
        texts = tuple(str(level) for level in levels)
        codings.append(ColumnCoding(name, "categorical", levels=texts))
        titles += [f"{name}={text}" for text in texts[0 if first is None else 1 :]]
    return _Columns(tuple(codings), tuple(titles))

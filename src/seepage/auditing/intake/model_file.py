"""Reads a fitted linear model from a file that contains numbers and text but no executable code.

The format is JSON or safetensors. On the audited table, the model must minimise::

    Σᵢ ℓ(wᵀxᵢ + w₀, yᵢ) + (nλ/2) ‖w‖²        (n rows; the intercept w₀ is not penalised)

**JSON** (``.json``), one object::

    {
      "family": "logistic",              linear, logistic, poisson or softmax
      "coefficients": [0.5, -1.25],      w, one per feature; for softmax one such list per class
      "intercept": -0.1,                 w₀; for softmax one per class; left out: the model has none
      "l2": 0.001,                       λ; or instead "ridge": nλ
      "classes": ["no", "yes"],          logistic: two, a larger wᵀx favours the second;
                                         softmax: one per list of coefficients; otherwise left out
      "features": ["age", "sex=male"],   optional: what each coefficient belongs to
      "columns": [{"name": "age", "kind": "numeric", "centre": 50, "unit": 10}]
    }                                    optional: the feature is (age − 50)/10

``sp.save`` writes this format.

**safetensors** (``.safetensors``) stores ``coefficients`` with shape (d,), or (K, d) for softmax.
It may also store ``intercept``, which is one number, or has shape (K,) for softmax. Both tensors
are float64 or float32. The metadata contain ``family`` and ``l2`` as text, and ``classes`` and
``features`` as JSON lists; ``ridge`` and ``columns`` are not supported. Safetensors stores an array
in its memory order, so pass ``numpy.ascontiguousarray(coef)``, not a transposed view.

Pickles are not read, because opening a pickle can run arbitrary code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seepage.auditing.trained_model import MODELS
from seepage.errors import InputError, nearest
from seepage.support.files import check_input
from seepage.support.strict_json import parse_json
from seepage.tables.names import counted, listed, shown

MOST_BYTES = 256 * 10**6  # a linear model is far smaller; a larger file is a mistake

_KEYS = ("family", "coefficients", "intercept", "l2", "ridge", "classes", "features", "columns")
_PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".pth", ".bin")

Array = np.ndarray[Any, Any]


def load_model(path: Path) -> Any:
    """Return the model in a file as a fitted :mod:`seepage.glm` estimator."""
    path = Path(path)
    readers = {".json": _read_json, ".safetensors": _read_safetensors}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        why = (
            "may contain executable code, so it is not opened"
            if path.suffix.lower() in _PICKLES
            else "is not in a supported format for models"
        )
        raise InputError(
            f"{path.name} {why}; write the coefficients, intercept, family and l2 as .json or "
            ".safetensors."
        )
    check_input(path)
    if not path.is_file():
        raise InputError(f"There is no model file {path}; check the path.")
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise InputError(
            f"{path.name} is {size / 1e6:,.0f} MB, but a linear model may be at most "
            f"{MOST_BYTES / 1e6:g} MB; check that it is the model file."
        )
    return _build(path.name, reader(path))


def keeps_first_levels(model: Any, levels: Mapping[str, int]) -> bool:
    """Return whether a loaded model has a feature for every level of the table's categories.

    If not, the model omits the first level of each category. If the file does not name the
    features, a model without an intercept is assumed to have every level. ``levels`` maps each
    category to its number of levels.
    """
    known = [str(name) for name in getattr(model, "feature_names_in_", ())]
    if not known or not levels:
        return not model.fit_intercept
    return all(sum(f.startswith(f"{n}=") for f in known) == count for n, count in levels.items())


def settle_penalty(model: Any, rows: int) -> None:
    """Convert a penalty given as the total ``nλ`` to λ for this number of records."""
    if model.whole_ridge_ is not None:
        model.l2 = model.whole_ridge_ / rows


def match_features(model: Any, names: Sequence[str]) -> None:
    """Reorder a loaded model's coefficients to match the encoded features, or raise an error.

    If the file does not name the features, the model must have one coefficient per feature, in the
    same order.
    """
    known = getattr(model, "feature_names_in_", None)
    if known is None:
        if model.n_features_in_ != len(names):
            raise InputError(
                f"The model has {counted(model.n_features_in_, 'coefficient')}, but the encoded "
                f"table has {counted(len(names), 'feature')}: {listed(names)}. Give the table "
                "on which the model was fitted."
            )
        return
    place = {str(name): j for j, name in enumerate(known)}
    lacking = [name for name in names if name not in place]
    extra = [name for name in place if name not in set(names)]
    if lacking or extra:
        missing = f"has no coefficient for {listed(lacking)}" if lacking else ""
        beyond = f"has coefficients for {listed(extra)}, absent from the table" if extra else ""
        both = " and " if lacking and extra else ""
        raise InputError(
            f"The model {missing}{both}{beyond}; give the table on which the model was fitted."
        )
    order = [place[name] for name in names]
    model.coef_ = model.coef_[..., order]
    model.feature_names_in_ = np.asarray(names, dtype=object)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(path.read_bytes())
    except (ValueError, OSError) as error:
        raise InputError(f"{path.name} is not valid JSON: {error}; correct it.") from error
    if not isinstance(content, dict):
        raise InputError(
            f"{path.name} must contain one JSON object with keys from {', '.join(_KEYS)}."
        )
    return content


def _read_safetensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            content: dict[str, Any] = dict(file.metadata() or {})
            kept = set(content) & {"coefficients", "intercept"}
            if kept:
                raise InputError(f"{path.name}: {sorted(kept)[0]} must be a tensor.")
            for name in file.keys():  # noqa: SIM118 (no iterator of its own)
                part = file.get_slice(name)
                if name not in ("coefficients", "intercept"):
                    raise InputError(
                        f"{path.name} contains a tensor {shown(name)}; a linear model has only "
                        "'coefficients' and 'intercept'. Remove it."
                    )
                if part.get_dtype() not in ("F64", "F32"):
                    raise InputError(
                        f"{path.name}: {name} has the type {part.get_dtype()}; convert it to "
                        "float64 or float32 (F64, F32)."
                    )
                content[name] = np.asarray(file.get_tensor(name), dtype=np.float64)
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path.name} is not a complete safetensors file; copy it again."
        ) from error
    content.pop("format", None)  # added by other tools; says nothing about the model
    for name in ("classes", "features"):
        if name in content:
            try:
                content[name] = parse_json(content[name])
            except ValueError as error:
                raise InputError(
                    f"{path.name}: the metadata {name!r} must be a JSON list."
                ) from error
    if "l2" in content:
        try:
            content["l2"] = float(content["l2"])
        except ValueError as error:
            raise InputError(f"{path.name}: the metadata 'l2' must be a number.") from error
    return content


def _build(file: str, content: dict[str, Any]) -> Any:
    unknown = [key for key in content if key not in _KEYS]
    if unknown:
        hint = nearest(unknown[0][:100], _KEYS)
        raise InputError(f"{file} has the unknown key {shown(unknown[0])}{hint}; remove it.")
    if "ridge" in content and "l2" not in content:
        content = content | {"l2": content["ridge"]}
    elif "ridge" in content:
        raise InputError(f"{file} states both 'l2' and 'ridge', which is n times l2; remove one.")
    for key in ("family", "coefficients", "l2"):
        if key not in content:
            raise InputError(
                f"{file} does not state {key!r}; add it: a model needs family, coefficients, and "
                "l2 (or ridge)."
            )
    family = content["family"]
    if family not in tuple(MODELS):
        hint = nearest(str(family)[:100], tuple(MODELS))
        raise InputError(
            f"{file}: the family must be one of {', '.join(MODELS)}, not {shown(family)}{hint}."
        )
    softmax = family == "softmax"
    coef = _numbers(file, "coefficients", content["coefficients"], 2 if softmax else 1)
    if coef.shape[-1] == 0:
        raise InputError(f"{file} has no coefficients; add one per feature.")
    l2 = _numbers(file, "l2", content["l2"], 0)
    if l2 < 0:
        raise InputError(f"{file}: l2 must not be negative, but is {float(l2):g}.")
    has_intercept = content.get("intercept") is not None
    outputs = coef.shape[0] if softmax else 1
    free = np.zeros(outputs)
    if has_intercept:
        free = np.atleast_1d(_numbers(file, "intercept", content["intercept"], 1 if softmax else 0))
    if free.shape != (outputs,):
        raise InputError(
            f"{file} has {counted(free.shape[0], 'intercept')} for "
            f"{counted(outputs, 'class', 'classes')}; give one per class."
        )
    model = MODELS[family](l2=float(l2), fit_intercept=has_intercept)
    if family == "logistic":
        coef = coef[None, :]
    model.coef_ = coef
    model.intercept_ = free if family in ("logistic", "softmax") else free[0]
    model.n_features_in_ = coef.shape[-1]
    model.n_iter_ = 0
    model.weighted_ = False
    _add_classes(file, model, family, content.get("classes"), outputs)
    _add_features(file, model, content.get("features"))
    model.whole_ridge_ = float(l2) if "ridge" in content else None
    model.columns_ = content.get("columns")
    model.scaling_ = _scaling(file, model.columns_)
    return model


def _scaling(file: str, columns: Any) -> dict[str, tuple[float, float]] | None:
    """Return the centre and unit of each column that the file scales."""
    if columns is None:
        return None
    try:
        read = {str(c["name"]): (float(c["centre"]), float(c["unit"])) for c in columns}
    except (TypeError, KeyError, ValueError):
        read = {}
    good = all(np.isfinite(pair).all() and pair[1] > 0 for pair in read.values())
    if not isinstance(columns, list) or len(read) != len(columns) or not good:
        raise InputError(
            f"{file}: columns must be a list of objects, each with a different name, a centre and "
            "a positive unit."
        )
    return read


def _numbers(file: str, what: str, given: Any, dimensions: int) -> Array:
    """Return finite numbers with the stated number of dimensions."""
    shape = ("one number", "a list of numbers", "a list of equally long lists of numbers")
    wrong = InputError(f"{file}: {what} must be {shape[dimensions]}.")
    if isinstance(given, np.ndarray):
        values = given.reshape(()) if dimensions == 0 and given.size == 1 else given
        if dimensions == 1 and what == "coefficients" and given.ndim == 2 and given.shape[0] == 1:
            values = given[0]
    else:
        if not _all_numbers(given, dimensions):
            raise wrong
        try:
            values = np.array(given, dtype=np.float64)
        except (ValueError, OverflowError) as error:
            raise wrong from error
    if values.ndim != dimensions:
        raise wrong
    if not np.all(np.isfinite(values)):
        raise InputError(f"{file}: {what} must be finite.")
    return values


def _all_numbers(given: Any, dimensions: int) -> bool:
    if dimensions:
        return isinstance(given, list) and all(_all_numbers(g, dimensions - 1) for g in given)
    return isinstance(given, int | float) and not isinstance(given, bool)


def _add_classes(file: str, model: Any, family: str, classes: Any, outputs: int) -> None:
    if family not in ("logistic", "softmax"):
        if classes is not None:
            raise InputError(f"{file}: a {family} model has no classes; leave them out.")
        return
    wanted = 2 if family == "logistic" else outputs
    alike = isinstance(classes, list) and (
        all(isinstance(c, str) for c in classes) or all(type(c) is int for c in classes)
    )
    if not alike or len(classes) != wanted or len(set(classes)) != wanted or wanted < 2:
        raise InputError(
            f"{file}: classes must be a list of {max(wanted, 2)} different strings or integers, "
            "in the order of the coefficients."
        )
    whole = isinstance(classes[0], int)
    if whole and max(map(abs, classes)) > 2**62:
        raise InputError(
            f"{file}: integer classes must lie between −2⁶² and 2⁶²; use smaller integers, or "
            "strings."
        )
    model.classes_ = np.array(classes, dtype=np.int64 if whole else object)


def _add_features(file: str, model: Any, features: Any) -> None:
    if features is None:
        return
    size = model.n_features_in_
    if not isinstance(features, list) or not all(isinstance(f, str) for f in features):
        raise InputError(f"{file}: features must be a list of names.")
    if len(features) != size or len(set(features)) != size:
        raise InputError(
            f"{file} names {counted(len(features), 'feature')} for {counted(size, 'coefficient')}; "
            "name each feature once."
        )
    model.feature_names_in_ = np.array(features, dtype=object)

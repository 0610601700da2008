"""The folder that may be shared: the model, what leaves with it, and the card; nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seepage.auditing.intake.model_file import load_model
from seepage.auditing.release.released_model import ReleasedModel
from seepage.auditing.trained_model import MODELS
from seepage.errors import InputError
from seepage.support.files import read_manifest, whole_folder, write_private, write_text

FORMAT = "seepage-release/1"
_MODEL, _LIST, _CARD = FILES = ("model.safetensors", "release.json", "model-card.md")


def write_release(
    released: ReleasedModel,
    items: Sequence[Mapping[str, Any]],
    card: str,
    out: Path,
    *,
    keep: Sequence[Path] = (),
) -> Path:
    """Write a release into a folder of its own, completely or not at all, and return the folder.

    ``model.safetensors`` (the noisy coefficients), ``release.json`` (how columns become features,
    and everything that leaves with its protection), ``model-card.md``, and the ``manifest.json``
    with the checksums of these. ``items`` are JSON values, and ``keep`` names files that must not
    change: the inputs.
    """
    model = released.estimator
    families = {maker: name for name, maker in MODELS.items()}
    family = families.get(type(model))
    if family is None:
        raise InputError(
            f"A {type(model).__name__} cannot be written as a folder; release a linear, logistic, "
            "Poisson or softmax model of seepage.glm."
        )
    listing = {"format": FORMAT, "columns": released.told(), "leaves": list(items)}
    texts = {_LIST: json.dumps(listing, indent=2, allow_nan=False) + "\n", _CARD: card}
    content = _safetensors(released, family)
    try:
        with whole_folder(out, "release", keep) as folder:
            write_private(folder / _MODEL, lambda file: file.write(content))
            for name, text in texts.items():
                write_text(folder / name, text)
    except OSError as error:
        raise InputError(
            f"The release cannot be written to {out.name!r}: {error.strerror or error}; nothing "
            "was left behind."
        ) from error
    return out


def load_release(folder: str | Path) -> ReleasedModel:
    """Return the model in a release folder, which predicts from raw tables.

    The folder must hold every file that its manifest lists and no other, and each must have its
    checksum. The model has ``predict``, ``predict_proba``,
    ``coef_``, ``intercept_`` and ``classes_``, as scikit-learn's do; ``transform`` turns a data
    frame, or a mapping of columns, into its features.
    """
    folder = Path(folder)
    read_manifest(folder, "release", FILES)
    model = load_model(folder / _MODEL)
    try:
        listing = json.loads((folder / _LIST).read_text("utf-8"))
        if listing["format"] != FORMAT:
            raise ValueError("it is of another format")
        return ReleasedModel.read(model, listing["columns"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{_LIST} in {folder.name!r} cannot be read ({error}).") from error


def _safetensors(released: ReleasedModel, family: str) -> bytes:
    """Return the model as ``seepage audit --model-file`` and :func:`load_release` read it."""
    from safetensors.numpy import save

    model = released.estimator
    coef = np.asarray(model.coef_, dtype=float)
    tensors = {
        "coefficients": np.ascontiguousarray(coef if family == "softmax" else coef.reshape(-1))
    }
    if model.fit_intercept:
        tensors["intercept"] = np.asarray(model.intercept_, dtype=float).reshape(-1)
    about = {"family": family, "l2": repr(float(model.l2))}
    if hasattr(model, "classes_"):
        whole = np.asarray(model.classes_).dtype.kind in "iu"
        classes = [int(c) if whole else str(c) for c in model.classes_]
        about["classes"] = json.dumps(classes)
    if hasattr(released, "feature_names_in_"):
        about["features"] = json.dumps([str(name) for name in released.feature_names_in_])
    return bytes(save(tensors, metadata=about))

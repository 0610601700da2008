"""``sp.Release``: everything that leaves with a model, its protection, and the folder to share."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seepage.auditing.intake.model_file import load_model
from seepage.auditing.release.released_model import ReleasedModel
from seepage.auditing.trained_model import MODELS
from seepage.errors import InputError
from seepage.support.files import read_manifest, whole_folder, write_private, write_text
from seepage.support.library_classes import is_pipeline
from seepage.tables.names import counted

FORMAT = "seepage-release/1"
_MODEL, _LIST, _CARD = FILES = ("model.safetensors", "release.json", "model-card.md")
PROTECTIONS = {
    "noised": "noised and counted",
    "drawn": "drawn by a private mechanism",
    "coarse": "on a coarse public grid",
    "declared": "declared public",
    "withheld": "withheld",
}


@dataclass(frozen=True)
class Item:
    """One thing that leaves, or is withheld, and how it is protected."""

    name: str
    protection: str  # a key of :data:`PROTECTIONS`
    how: str  # one sentence
    count: int = 0  # how many numbers or names leave
    value: Any = None  # what leaves, if it is not in the model itself

    def __str__(self) -> str:
        many = f" ({self.count:,})" if self.count > 1 else ""
        return f"{self.name}{many}: {PROTECTIONS[self.protection]}. {self.how}"


@dataclass(frozen=True, eq=False)
class Release:
    """Everything that leaves: a model with noise, what it takes to use it, and the card.

    ``seepage release`` makes one of a table. :meth:`of` makes one of what :func:`seepage.release`
    returned. :func:`seepage.load_release` reads back what :meth:`write` wrote.

    Parameters
    ----------
    model
        The model with noise, and how raw columns become its features.
    items
        All that leaves, and what is withheld.
    card
        The model card, as Markdown.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> X = np.random.default_rng(0).normal(size=(50, 2))
    >>> model = sp.glm.LinearRegression(l2=0.1).fit(X, X[:, 0])
    >>> leaving = sp.Release.of(sp.release(model, sp.Gaussian(0.1)))
    >>> for item in leaving.items[:2]:
    ...     print(item)
    coefficients (2): noised and counted. Each has Gaussian(0.1) noise.
    noise: declared public. Gaussian(0.1) was given by whoever made the release.
    """

    model: ReleasedModel
    items: tuple[Item, ...]
    card: str

    @staticmethod
    def of(model: Any) -> Release:
        """Return what leaves with a model that :func:`seepage.release` put noise on.

        It takes features as they are: how they were made from raw columns is not part of it. The
        names, the classes, the noise and the constructor's parameters are listed as declared
        public, because nothing is known of their origin.
        """
        record = getattr(model, "release_", None)
        if record is None:
            raise InputError("Nothing may leave without noise: make it with sp.release first.")
        if record.seeded:
            raise InputError("Noise from a fixed seed protects nothing: release without a seed.")
        noise = repr(record.noise)
        learnt = [
            Item(f"learnt by {step}", "declared", "It leaves as it is, and counts as public.")
            for step in record.public
        ]
        model = model[-1] if learnt or is_pipeline(model) else model
        items = [
            Item("coefficients", "noised", f"Each has {noise} noise.", int(np.size(model.coef_)))
        ]
        if getattr(model, "fit_intercept", False):
            how = f"It has {noise} noise."
            items.append(Item("intercept", "noised", how, int(np.size(model.intercept_))))
        items.append(Item("noise", "declared", f"{noise} was given by whoever made the release."))
        items += [*learnt, *_declared(model)]
        card = ["# Model card", "", "What leaves with this model:", "", *item_table(items), ""]
        return Release(ReleasedModel(model), tuple(items), "\n".join(card))

    def write(
        self,
        folder: str | Path,
        *,
        keep: Sequence[Path] = (),
        complete: Callable[[Path], object] | None = None,
    ) -> Path:
        """Write the folder that may be shared, completely or not at all, and return it.

        ``model.safetensors`` (the noisy coefficients), ``release.json`` (how columns become
        features, and everything that leaves with its protection), ``model-card.md``, and the
        ``manifest.json`` with the checksums of these. ``keep`` names files that must not change:
        the inputs. ``complete`` is called when everything is written, before the folder takes its
        place.
        """
        model, out = self.model.estimator, Path(folder)
        family = {maker: name for name, maker in MODELS.items()}.get(type(model))
        if family is None:
            raise InputError(
                f"A {type(model).__name__} cannot be written as a folder; release a linear, "
                "logistic, Poisson or softmax model of seepage.glm."
            )
        listing = {
            "format": FORMAT,
            "columns": self.model.as_json(),
            "leaves": [asdict(item) for item in self.items],
        }
        texts = {_LIST: json.dumps(listing, indent=2, allow_nan=False) + "\n", _CARD: self.card}
        content = _safetensors(self.model, family)
        try:
            with whole_folder(out, "release", keep, complete) as new:
                write_private(new / _MODEL, lambda file: file.write(content))
                for name, text in texts.items():
                    write_text(new / name, text)
        except OSError as error:
            raise InputError(
                f"The release cannot be written to {out.name!r}: {error.strerror or error}; "
                "nothing was left behind."
            ) from error
        return out

    def __repr__(self) -> str:
        leaving = sum(item.protection != "withheld" for item in self.items)
        return f"<Release of {counted(leaving, 'kind')} of numbers and names>"


def _declared(model: Any) -> list[Item]:
    """Return the names and settings of a model, whose origin only its user knows."""
    items = []
    names = getattr(model, "feature_names_in_", None)
    if names is not None:
        items.append(Item("names of the features", "declared", "They are released.", len(names)))
    classes = getattr(model, "classes_", None)
    if classes is not None:
        how = "The classes are released by name."
        items.append(Item("classes", "declared", how, len(classes), [str(c) for c in classes]))
    settings = {key: value for key, value in model.get_params().items() if value is not None}
    how = "What was given to the constructor; a penalty tuned on the data would be a release."
    items.append(
        Item("settings", "declared", how, len(settings), {k: str(v) for k, v in settings.items()})
    )
    return items


def item_table(items: Sequence[Item]) -> list[str]:
    """Return the lines of a Markdown table of what leaves."""
    rows = (
        f"| {item.name} | {item.count or ''} | {PROTECTIONS[item.protection]} | {item.how} |"
        for item in items
    )
    return ["| what | how many | protection | how |", "|-|-|-|-|", *rows]


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

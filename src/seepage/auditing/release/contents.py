"""``sp.Release``: all published items of a model, their protection, and the folder to share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seepage.auditing.intake.model_file import MOST_BYTES, load_model
from seepage.auditing.intake.model_saving import same_model
from seepage.auditing.release.released_model import ReleasedModel
from seepage.auditing.trained_model import MODELS
from seepage.errors import InputError
from seepage.support.files import (
    MANIFEST,
    Manifest,
    check_input,
    digest_of,
    read_manifest,
    whole_folder,
    write_private,
    write_text,
)
from seepage.support.library_classes import is_pipeline
from seepage.support.signatures import Sign, public_key, signing_with
from seepage.support.strict_json import (
    COUNT,
    DIGEST,
    TEXT,
    check_fields,
    is_finite,
    is_text,
    read_json,
)
from seepage.tables.names import counted
from seepage.tables.result_table import Listing
from seepage.tables.source import build_frame

FORMAT = "seepage-release/1"
_MODEL, _LIST, _CARD = ("model.safetensors", "release.json", "model-card.md")
# The files of a folder, and the most bytes of each
_FILES = {_MODEL: MOST_BYTES, _LIST: 8 * 10**6, _CARD: 8 * 10**6}
PROTECTIONS = {
    "noised": "noised and counted",
    "drawn": "drawn by a private mechanism",
    "coarse": "on a coarse public grid",
    "declared": "declared public",
    "withheld": "withheld",
}


@dataclass(frozen=True)
class Item:
    """A published or withheld item, with its protection."""

    name: str
    protection: str  # a key of :data:`PROTECTIONS`
    how: str  # the protection, in a sentence
    count: int = 0  # the number of published numbers or names
    value: Any = None  # the published value, if it is not in the model itself

    @classmethod
    def read(cls, content: Any, place: int) -> Item:
        """Return the item from its JSON form; raise ``ValueError`` if it is invalid."""
        check_fields(content, _ITEM, f"item {place} of the release")
        return cls(**content)

    def __str__(self) -> str:
        many = f" ({self.count:,})" if self.count > 1 else ""
        return f"{self.name}{many}: {PROTECTIONS[self.protection]}. {self.how}"


def _is_value(value: Any) -> bool:
    """Return whether an object is a plain JSON value, or a list or object of such values."""
    parts = value.values() if isinstance(value, dict) else value
    several = isinstance(value, dict | list)
    return all(
        part is None or isinstance(part, bool) or is_text(part) or is_finite(part)
        for part in (parts if several else [value])
    )


_ITEM = {
    "name": TEXT,
    "protection": (
        lambda value: value in tuple(PROTECTIONS),
        f"one of {', '.join(PROTECTIONS)}",
    ),
    "how": TEXT,
    "count": COUNT,
    "value": (_is_value, "a value, or a list or an object of values"),
}
_LISTING = {
    "format": (lambda value: value == FORMAT, f"{FORMAT!r}; this file has another format"),
    "columns": (lambda value: isinstance(value, list), "a list"),
    "leaves": (lambda value: isinstance(value, list), "a list"),
    "replaces": DIGEST,
}


@dataclass(frozen=True, eq=False, repr=False)
class Release(Listing):
    """All items of a release: the noisy model, its encoding, and the model card.

    ``seepage release`` makes a release from a table. :meth:`of` makes one from the result of
    :func:`seepage.release`. :func:`seepage.load_release` reads a folder that :meth:`write` wrote.

    Parameters
    ----------
    model
        The noisy model, with the encoding of raw columns as features.
    items
        All items, published and withheld.
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
    noise: declared public. Gaussian(0.1) was given by the author of the release.
    """

    model: ReleasedModel
    items: tuple[Item, ...]
    card: str

    sensitive = False

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with one row per published or withheld item."""
        names = ("name", "protection", "count", "how")
        columns = {name: [getattr(item, name) for item in self.items] for name in names}
        return build_frame(columns, library or "pyarrow")

    @staticmethod
    def of(model: Any) -> Release:
        """Return the release of a noisy model from :func:`seepage.release`.

        The model predicts from features; the encoding of raw columns as features is not included.
        Names, classes, noise and constructor parameters are listed as "declared public". Whether
        they depend on the data cannot be checked; the author of the release is responsible.
        """
        record = getattr(model, "release_", None)
        if record is None:
            raise InputError(
                "A model without noise cannot be released; add noise with sp.release first."
            )
        if record.seeded:
            raise InputError("Noise from a fixed seed gives no protection; release without a seed.")
        noise = repr(record.noise)
        learnt = [
            Item(f"learnt by {step}", "declared", "Published unchanged and counted as public.")
            for step in record.public
        ]
        model = model[-1] if learnt or is_pipeline(model) else model
        items = [
            Item("coefficients", "noised", f"Each has {noise} noise.", int(np.size(model.coef_)))
        ]
        if getattr(model, "fit_intercept", False):
            how = f"It has {noise} noise."
            items.append(Item("intercept", "noised", how, int(np.size(model.intercept_))))
        items.append(Item("noise", "declared", f"{noise} was given by the author of the release."))
        items += [*learnt, *_declared(model)]
        card = ["# Model card", "", "Published with this model:", "", *item_table(items), ""]
        return Release(ReleasedModel(model), tuple(items), "\n".join(card))

    def write(
        self,
        folder: str | Path,
        *,
        keep: Sequence[Path] = (),
        sign: str | Path | None = None,
        replaces: str | Path | None = None,
        complete: Callable[[Path], object] | None = None,
    ) -> Path:
        """Write the release folder atomically, and return its path.

        The folder contains ``model.safetensors`` (the noisy coefficients), ``release.json`` (the
        encoding of columns, and all items with their protection), ``model-card.md``, and
        ``manifest.json`` with the checksums of these files.

        Parameters
        ----------
        folder
            The folder to write.
        keep
            Input files, which must not be overwritten.
        sign
            A PEM file with the private Ed25519 key that signs the manifest.
        replaces
            The folder of an earlier release that this one replaces. ``release.json`` refers to it
            by the SHA-256 of its manifest.
        complete
            A function that is called with the new folder when all files are written, before the
            folder is moved into place.
        """
        model, out = self.model.estimator, Path(folder)
        family = {maker: name for name, maker in MODELS.items()}.get(type(model))
        if family is None:
            same = same_model(model)
            remedy = "a linear, logistic, Poisson or softmax model from sp.glm"
            if same is not None:
                remedy = f"the equivalent sp.glm model, {same}.fit(X, y)"
            raise InputError(
                f"A model of type {type(model).__name__} cannot be written to a folder; release "
                f"{remedy}."
            )
        listing = {
            "format": FORMAT,
            "columns": self.model.as_json(),
            "leaves": [asdict(item) for item in self.items],
        }
        signing, replaced = check_origin(sign, replaces)
        if replaced is not None:
            listing["replaces"] = replaced
        keep = keep if sign is None else (*keep, Path(sign))
        texts = {_LIST: json.dumps(listing, indent=2, allow_nan=False) + "\n", _CARD: self.card}
        content = _safetensors(self.model, family)
        try:
            with whole_folder(out, "release", keep, sign=signing, complete=complete) as new:
                write_private(new / _MODEL, lambda file: file.write(content))
                for name, text in texts.items():
                    write_text(new / name, text)
                _read(new, out.name)  # nothing is shared that recipients would be refused
        except OSError as error:
            raise InputError(
                f"The release cannot be written to {out.name!r}: {error.strerror or error}. No "
                "files were left behind; correct this, or choose another folder."
            ) from error
        return out

    def __repr__(self) -> str:
        leaving = sum(item.protection != "withheld" for item in self.items)
        return f"<Release of {counted(leaving, 'kind')} of numbers and names>"


def _declared(model: Any) -> list[Item]:
    """Return the names and settings of a model, which its author declares public."""
    items = []
    names = getattr(model, "feature_names_in_", None)
    if names is not None:
        items.append(Item("names of the features", "declared", "They are released.", len(names)))
    classes = getattr(model, "classes_", None)
    if classes is not None:
        how = "The class names are released."
        items.append(Item("classes", "declared", how, len(classes), [str(c) for c in classes]))
    settings = {key: value for key, value in model.get_params().items() if value is not None}
    how = "The constructor's parameters are released; a penalty tuned on the data would also leak."
    items.append(
        Item("settings", "declared", how, len(settings), {k: str(v) for k, v in settings.items()})
    )
    return items


def item_table(items: Sequence[Item]) -> list[str]:
    """Return the lines of a Markdown table of items."""
    rows = (
        f"| {item.name} | {item.count or ''} | {PROTECTIONS[item.protection]} | {item.how} |"
        for item in items
    )
    return ["| what | how many | protection | how |", "|-|-|-|-|", *rows]


def check_origin(
    sign: str | Path | None = None, replaces: str | Path | None = None
) -> tuple[Sign | None, str | None]:
    """Return the signing key, and the SHA-256 of the replaced release's manifest."""
    signing = replaced = None
    if sign is not None:
        check_input(sign)
        signing = signing_with(Path(sign))
    if replaces is not None:
        read_manifest(Path(replaces), "release", _FILES)
        replaced = digest_of(Path(replaces) / MANIFEST)
    return signing, replaced


def load_release(folder: str | Path, *, key: str | Path | None = None) -> ReleasedModel:
    """Return the model from a release folder; it predicts from raw tables.

    The folder must contain exactly the files that its manifest lists. The model has ``predict``,
    ``predict_proba``, ``coef_``, ``intercept_`` and ``classes_``, as in scikit-learn.
    ``transform`` converts a data frame, or a mapping of columns, into features.

    Parameters
    ----------
    folder
        The release folder.
    key
        A PEM file with the public Ed25519 key of the release's author. If a key is given, the
        folder must be signed with it. Checksums alone detect damage, but not forgery.
    """
    return read_release(Path(folder), key).model


@dataclass(frozen=True, eq=False)
class ReleaseFolder:
    """The contents of a release folder, verified against its manifest."""

    model: ReleasedModel
    items: tuple[Item, ...]
    manifest: Manifest
    replaces: str | None  # the SHA-256 of the manifest of the release that this one replaces

    def sentences(self, trusted: bool) -> Iterator[str]:
        """Yield the verified facts; ``trusted`` means that the caller gave the signer's key."""
        signature = self.manifest.signature
        yield f"All {len(_FILES)} files match the manifest, and there are no others."
        if signature is None:
            yield "The release is not signed, so a forger could have changed the manifest too."
        else:
            doubt = ""
            if not trusted:
                doubt = " Compare it with the SHA-256 of the author's key, or pass the key (--key)."
            yield (
                "The release is signed with the Ed25519 key whose SHA-256 is "
                f"{signature.signer}.{doubt}"
            )
        if self.replaces is not None:
            yield (
                "This folder replaces the release whose manifest.json has the SHA-256 "
                f"{self.replaces}."
            )


def read_release(folder: Path, key: str | Path | None = None) -> ReleaseFolder:
    """Return the contents of a release folder after all checks; see :func:`load_release`."""
    if key is not None:
        check_input(key)
    trusted = None if key is None else public_key(Path(key))
    manifest = read_manifest(folder, "release", _FILES, trusted)
    model, items, replaces = _read(folder, folder.name)
    return ReleaseFolder(model, items, manifest, replaces)


def _read(folder: Path, name: str) -> tuple[ReleasedModel, tuple[Item, ...], str | None]:
    """Return the model, the items, and the replaced release's digest from a folder."""
    model = load_model(folder / _MODEL)
    try:
        listing = read_json(folder / _LIST)
        check_fields(listing, _LISTING, "the list", optional=("replaces",))
        released = ReleasedModel.read(model, listing["columns"])
        items = tuple(Item.read(item, k) for k, item in enumerate(listing["leaves"], 1))
        counts = {item.name: item.count for item in items}
        if len(counts) < len(items):
            raise ValueError("it lists an item twice")
        if counts.get("coefficients") != np.size(released.coef_):
            raise ValueError("its number of coefficients differs from the model's")
    except (ValueError, OSError) as error:
        raise InputError(
            f"{_LIST} in {name!a} cannot be read ({error}); get a new copy of the release."
        ) from error
    return released, items, listing.get("replaces")


def _safetensors(released: ReleasedModel, family: str) -> bytes:
    """Return the bytes of the model file that ``--model-file`` and :func:`load_release` read."""
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

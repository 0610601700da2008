"""``sp.Release``: every number and name that leaves with a model, and how each is protected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seepage.auditing.release.folder import write_release
from seepage.auditing.release.released_model import ReleasedModel
from seepage.errors import InputError
from seepage.support.library_classes import is_pipeline
from seepage.tables.names import counted

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

    def write(self, folder: str | Path, *, keep: Sequence[Path] = ()) -> Path:
        """Write the folder that may be shared: the model, what leaves with it, and the card.

        ``keep`` names files that must not change: the inputs.
        """
        items = [asdict(item) for item in self.items]
        return write_release(self.model, items, self.card, Path(folder), keep=keep)

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

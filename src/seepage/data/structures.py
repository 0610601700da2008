"""Data classes for loaded and prepared data: arrays, and the names of their columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Images:
    """Images as bytes, ``(n, height, width)`` or ``(n, height, width, 3)``, and their classes."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class ImageSet:
    """The publisher's splits of an image data set; ``classes[k]`` is the name of class ``k``."""

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]
    validation: Images | None = None


@dataclass(frozen=True, eq=False)
class Records:
    """Named columns of equal length, in the order of the file; text columns contain strings."""

    columns: Mapping[str, NDArray[Any]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name]


@dataclass(frozen=True, eq=False)
class Faces:
    """Images ``(n, height, width, 3)``, with one row of attributes per image.

    ``*_manual`` columns are labels by human annotators. ``pred_*`` columns are another model's
    scores and must always be referred to as predicted labels. Missing numbers are NaN, and missing
    text is empty.
    """

    images: NDArray[np.uint8]
    attributes: Records

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, eq=False)
class Tabular:
    """A numeric table with one target; ``classes`` is empty if the target is numeric."""

    name: str
    X: NDArray[np.float64]
    y: NDArray[Any]
    names: tuple[str, ...]
    classes: tuple[str, ...] = ()

    def table(self) -> Any:
        """Return the features as a pyarrow table with named columns."""
        return _arrow(self.X, self.names)


@dataclass(frozen=True, eq=False)
class Problem:
    """A prepared learning problem: features, targets, and the columns that encode each attribute.

    Parameters
    ----------
    X, y
        Training features ``(n, d)`` and targets ``(n,)``; two classes are 0 and 1.
    X_test, y_test
        The features and targets of the test split.
    names
        One name per feature.
    attributes
        For each one-hot encoded attribute, the names of its columns; the dropped level has no
        column.
    """

    X: NDArray[np.float64]
    y: NDArray[np.float64]
    X_test: NDArray[np.float64]
    y_test: NDArray[np.float64]
    names: tuple[str, ...]
    attributes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def table(self) -> Any:
        """Return the training features as a pyarrow table with named columns."""
        return _arrow(self.X, self.names)

    def indices(self) -> dict[str, tuple[int, ...]]:
        """Return :attr:`attributes` with column numbers instead of names, for plain arrays."""
        place = {name: j for j, name in enumerate(self.names)}
        return {key: tuple(place[name] for name in names) for key, names in self.attributes.items()}


def _arrow(X: NDArray[np.float64], names: tuple[str, ...]) -> Any:
    import pyarrow as pa

    return pa.table({name: X[:, j] for j, name in enumerate(names)})

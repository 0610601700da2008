"""Draws batches with and without a property, by default with the same mix of main-task labels.

If a property is correlated with the main task's label (such as glasses with gender), the labels of
a batch alone reveal the property, in every layer. ``"confounded"`` batches include that effect;
``"matched"`` batches exclude it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from seepage.errors import InputError, accepts_other_names
from seepage.nn.problem.views import Inputs, rows_of
from seepage.support.number_check import check_choice, check_count
from seepage.tables.source import as_numpy


@dataclass(frozen=True, eq=False)
class PropertyBatches:
    """The records of each batch, and the property that they share.

    Parameters
    ----------
    index
        The records of every batch, ``(n, batch_size)``.
    property
        The property of every batch, ``(n,)``.
    pool
        The pool of every batch, ``(n,)``; batches from different pools share no record.
    mix
        ``"matched"`` or ``"confounded"``.
    """

    index: np.ndarray
    property: np.ndarray
    pool: np.ndarray
    mix: str

    def __len__(self) -> int:
        return len(self.index)

    def of(self, x: Inputs, y: Tensor) -> Iterator[tuple[Inputs, Tensor]]:
        """Yield the inputs and targets of every batch."""
        for rows in self.index:
            yield rows_of(x, rows), y[rows]


@accepts_other_names
def property_batches(
    labels: Any,
    property: Any,
    *,
    batch_size: int = 32,
    count: int = 100,
    mix: str = "matched",
    pools: int = 1,
    people: Any = None,
    seed: int = 0,
) -> PropertyBatches:
    """Draw batches whose records all have the same property.

    Parameters
    ----------
    labels
        The main task's label of every record.
    property
        The property of every record, with two or more classes.
    batch_size
        The number of records in a batch, without duplicates.
    count
        The number of batches for each class of the property.
    mix
        ``"matched"``: the labels of every batch are drawn from the distribution over all records.
        ``"confounded"``: each class of the property has its own distribution of labels, so the
        labels alone may reveal the property.
    pools
        The number of pools into which records are divided; each batch is drawn from one pool.
    people
        The person to whom each record belongs, ``(n,)``; records of one person are assigned to the
        same pool.
    seed
        The seed of all random draws.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> labels, glasses = np.arange(400) % 2, np.arange(400) % 5 == 0
    >>> found = sp.layers.property_batches(labels, glasses, batch_size=8, count=3)
    >>> glasses[found.index].mean(axis=1)
    array([0., 0., 0., 1., 1., 1.])
    """
    check_choice(mix, "mix", ("matched", "confounded"))
    for name, number in {"batch_size": batch_size, "count": count, "pools": pools}.items():
        check_count(number, name)
    check_seed(seed)
    labels = as_numpy(labels)
    if labels.ndim != 1:
        raise InputError(
            f"labels must have one entry per record, but their shape is {labels.shape}."
        )
    _, label = read_property(labels, len(labels), "records", called="labels")
    levels, level = read_property(property, len(labels), "records")
    if len(levels) < 2:
        raise InputError(
            "All records have the same property, so there is nothing to infer; add records of "
            "another class."
        )
    draw = np.random.default_rng(seed)
    home = _deal(len(labels), pools, people, draw)
    shares = np.bincount(label) / len(label)
    index, properties, pool = [], [], []
    for k in range(len(levels)):
        for number in range(count):
            here = home == number % pools
            cells = [
                [np.flatnonzero(here & (level == j) & (label == c)) for c in range(len(shares))]
                for j in range(len(levels))
            ]
            index.append(_one_batch(cells, k, shares, batch_size, mix, draw))
            properties.append(levels[k])
            pool.append(number % pools)
    return PropertyBatches(np.stack(index), np.array(properties), np.array(pool), mix)


def read_property(
    property: Any, count: int, what: str, *, called: str = "property"
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted classes of a property, and the class number of every entry.

    For error messages, ``what`` names the entries ("gradients", "records") and ``called`` names the
    argument.

    Examples
    --------
    >>> from seepage.layers.measures.property_batches import read_property
    >>> read_property(["no", "yes", "no"], 3, "records")
    (array(['no', 'yes'], dtype='<U3'), array([0, 1, 0]))
    """
    raw = as_numpy(property)
    if raw.shape != (count,):
        raise InputError(
            f"There are {count} {what}, but {called} has the shape {raw.shape}; give one label for "
            f"each of the {what}."
        )
    missing = _missing(raw)
    if missing.any():
        raise InputError(
            f"{called} is missing (None, NaN or infinity) for {int(missing.sum())} of the {count} "
            f"{what}, the first at position {int(missing.argmax())}; drop those {what}."
        )
    try:
        levels, labels = np.unique(raw, return_inverse=True)
    except TypeError:
        raise InputError(
            f"{called} mixes types of labels, such as strings and numbers; convert all labels to "
            "one type."
        ) from None
    return levels, labels


def check_seed(seed: int) -> None:
    """Raise an error unless NumPy and scikit-learn accept this seed."""
    if not 0 <= seed < 1 << 32:
        raise InputError(f"seed must be between 0 and 2³² − 1, but is {seed!r}.")


def _deal(records: int, pools: int, people: Any, draw: np.random.Generator) -> np.ndarray:
    owner = np.arange(records) if people is None else people
    _, person = read_property(owner, records, "records", called="people")
    return np.asarray((draw.permutation(person.max() + 1) % pools)[person])


def _one_batch(
    cells: list[list[np.ndarray]],
    level: int,
    shares: np.ndarray,
    size: int,
    mix: str,
    draw: np.random.Generator,
) -> np.ndarray:
    own = cells[level]
    if mix == "confounded":
        records = np.concatenate(own)
        if len(records) < size:
            raise InputError(_too_few(size, len(records)))
        return draw.choice(records, size, replace=False)
    # The same limits for every class of the property; otherwise the limits would give it away.
    most = np.array([min(len(cells[j][c]) for j in range(len(cells))) for c in range(len(shares))])
    for _ in range(1000):  # a mix that fits so seldom asks for too large batches
        wanted = draw.multinomial(size, shares)
        if np.all(wanted <= most):
            chosen = [draw.choice(own[c], n, replace=False) for c, n in enumerate(wanted) if n]
            return np.concatenate(chosen)
    raise InputError(_too_few(size, int(most.min())))


def _too_few(size: int, have: int) -> str:
    return (
        f"There are too few records ({have} of the rarest kind in a pool) for batches of {size} "
        "with this mix of labels; use smaller batches or fewer pools."
    )


def _missing(raw: np.ndarray) -> np.ndarray:
    if raw.dtype.kind == "f":
        return np.asarray(~np.isfinite(raw))
    if raw.dtype.kind == "O":
        # A missing value (None, NaN, pandas.NA) is not equal to itself, or cannot be compared.
        return np.array([value is None or (value == value) is not True for value in raw], bool)
    return np.zeros(len(raw), bool)

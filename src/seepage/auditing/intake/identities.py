"""Determines each row's person from the identifying column, and detects likely identifiers.

All rows of a person are removed, changed or guessed together, so a repeated identifier must not
silently become a feature. A column *named* like an identifier raises an error until its role is
stated. Columns with the *shape* of an identifier, and rows that repeat in blocks as in panel data,
cause a notice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seepage.errors import InputError
from seepage.tables.columns import Column, decoded, is_text, plain_numbers
from seepage.tables.names import counted, listed, shown

if TYPE_CHECKING:
    from seepage.tables.columns import ColumnProfile, Scan

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_HOLDERS = (
    "person|persons|pers|patient|pat|subject|subj|participant|individual|respondent|proband|"
    "client|customer|cust|employee|student|pupil|user"
)
_MARKS = "id|ids|pid|uid|uuid|guid|nr|no|num|number|code|key"
_MARKED = re.compile(f"(?:{_HOLDERS})?(?:id|ids|pid|uid|uuid|guid)|(?:{_HOLDERS})(?:nr|no|num)")
_NAMING = re.compile(f"{_HOLDERS}|nr|{_MARKED.pattern}")


def people_of_rows(identities: Column | Sequence[object], name: str) -> np.ndarray:
    """Return the person of each row, numbered from 0 in the order of first appearance.

    A row without an identity raises an error, because it cannot be removed with the other rows of
    its person.
    """
    if not isinstance(identities, pa.Array | pa.ChunkedArray):
        identities = pa.array(identities, from_pandas=True)
    column = plain_numbers(decoded(identities))
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    if is_text(column.type):
        blank = pc.equal(pc.utf8_trim_whitespace(column), "")
        column = pc.if_else(blank, pa.scalar(None, column.type), column)
    if column.null_count:
        first = int(pc.index(pc.is_null(column), True).as_py())
        raise InputError(
            f"{counted(column.null_count, 'row has', 'rows have')} no value in {shown(name)}, the "
            f"column that identifies people (first in row {first:,}); fill in the values, or drop "
            "these rows."
        )
    return np.asarray(column.dictionary_encode().indices.to_numpy(zero_copy_only=False), np.int64)


def is_same_within(cells: Column | np.ndarray, person: np.ndarray) -> bool:
    """Return whether each person has the same value in all rows; missing counts as a value."""
    if isinstance(cells, np.ndarray):
        values = np.unique(cells.astype(str), return_inverse=True)[1].reshape(-1)
    else:
        coded = decoded(cells).cast(pa.string()).dictionary_encode(null_encoding="encode")
        values = np.concatenate([np.asarray(c.indices) for c in coded.unify_dictionaries().chunks])
    _, first = np.unique(person, return_index=True)
    return bool(np.all(values == values[first][person]))


def is_named_like_identifier(name: str) -> bool:
    """Return whether a column's name suggests an identifier.

    >>> [is_named_like_identifier(n) for n in ("id", "Person ID", "patient_nr", "subjid", "nr")]
    [True, True, True, True, True]
    >>> [is_named_like_identifier(n) for n in ("person_age", "paid", "no", "persons in household")]
    [False, False, False, False]
    """
    words = [word.lower() for word in _WORDS.findall(name)]
    if not words:
        return False
    if _MARKED.fullmatch(words[-1]):
        return True
    known = f"{_NAMING.pattern}|{_MARKS}"
    return any(map(_NAMING.fullmatch, words)) and all(re.fullmatch(known, word) for word in words)


def check_identifiers(
    features: Sequence[str], profiles: Mapping[str, ColumnProfile], settled: Sequence[str]
) -> None:
    """Raise an error for columns named like identifiers, unless their role is ``settled``.

    If a column has fewer than five values, no error is raised, since they identify nobody. If it
    has few values, each in many rows (such as the party identification ``PID`` in anes96),
    :func:`panel_notices` yields a notice instead.
    """
    fewest = 5  # different values: fewer identify nobody
    most_rows = 50  # of one person: beyond, a column more likely holds codes of a few levels
    for name in features:
        known = profiles[name]
        if name in settled or not is_named_like_identifier(name):
            continue
        if known.refused or not known.whole or known.distinct < fewest:
            continue
        filled = known.rows - known.missing
        if filled > most_rows * known.distinct:
            continue
        many = f"more than {known.distinct - 1:,}" if known.capped else f"{known.distinct:,}"
        flag = option(name)
        raise InputError(
            f"Column {shown(name)} is named like an identifier and has {many} different values in "
            f"{filled:,} rows. If the column identifies people, use --person {flag}: all rows of "
            f"a person then count together. If not, leave the column out with --drop {flag}, or "
            f"keep it as a feature with --categorical {flag} or --quantity {flag}."
        )


def option(name: str) -> str:
    """Return a column's name as a command-line argument."""
    return (
        name if re.fullmatch(r"[\w.-]+", name) else f'"{name}"' if '"' not in name else f"'{name}'"
    )


def panel_notices(
    raw: pa.Table | None, features: Sequence[str], sums: Scan, settled: Sequence[str]
) -> Iterator[str]:
    """Yield sentences on columns or rows that suggest several rows per person.

    ``raw`` is the table, if it is in memory; otherwise, only the summary ``sums`` is used.
    """
    rows = max((sums[name].rows for name in features), default=0)
    for name in features:
        whole = sums[name].whole and len(sums[name].levels or ()) >= 5  # fewer identify nobody
        if whole and name not in settled and is_named_like_identifier(name):
            flag = option(name)
            yield (
                f"Column {shown(name)} is named like an identifier but counts as a feature, "
                "because each of its few values is in many rows. All results count each row as a "
                f"different person. If the column identifies people, use --person {flag}."
            )
    named = {n: _repeated(raw, n, sums) for n in features if n not in settled}
    for name, count in ((n, count) for n, count in named.items() if count):
        flag = option(name)
        yield (
            f"Column {shown(name)} has {count:,} values, each in a few of the {rows:,} rows, like "
            "an identifier of people with several rows. The column counts as a feature, and all "
            "results count each row as a different person. If the column identifies people, use "
            f"--person {flag}; if not, drop it with --drop {flag}, or declare its kind with "
            "--categorical or --quantity."
        )
    if raw is not None and not any(named.values()):
        size, alike = _block_of_rows(raw, features)
        if size > 1:
            yield (
                f"The rows look like {rows // size:,} blocks of {size} rows each: within each "
                f"block, {listed(alike, 3)} are constant. All results are for single rows. If each "
                "block belongs to one person, add a column that identifies people, and name it "
                "with --person."
            )


def _repeated(raw: pa.Table | None, name: str, sums: Scan) -> int:
    """Return how many values a column has if there are many, each in few rows; otherwise 0.

    Every value must occur in equally many rows, or only in consecutive rows.
    """
    most_rows, fewest = 50, 30  # of one value, and different values
    known = sums[name]
    if not known.whole or known.missing or known.values < 2 * fewest:
        return 0
    if known.levels is not None:
        counts = np.asarray(list(known.levels.values()))
    elif raw is not None:
        counts = np.asarray(pc.value_counts(plain_numbers(decoded(raw.column(name)))).field(1))
    else:
        return 0
    mean = known.values / len(counts)
    if len(counts) < fewest or not 2 <= mean <= min(most_rows, len(counts)):
        return 0
    if counts.min() == counts.max():
        return len(counts)
    if raw is None or counts.max() > most_rows:
        return 0
    runs = 1 + np.count_nonzero(np.diff(people_of_rows(raw.column(name), name)))
    return len(counts) if runs == len(counts) else 0


def _block_of_rows(raw: pa.Table, features: Sequence[str]) -> tuple[int, list[str]]:
    """Return the largest block length T, and the columns that are constant in each block of T rows.

    At least two columns must be constant, and their values must differ between blocks often enough
    that the table is not merely sorted. If there is no such T, return (1, []).
    """
    rows, most_rows, fewest = raw.num_rows, 50, 30  # of a block, and blocks
    sizes = [t for t in range(min(most_rows, rows // fewest), 1, -1) if rows % t == 0]
    if not sizes:
        return 1, []

    def values(name: str, stop: int) -> np.ndarray:
        cells = decoded(raw.column(name)[:stop]).combine_chunks().dictionary_encode().indices
        return np.asarray(cells.to_numpy(zero_copy_only=False), float)

    # Most columns change within the first blocks, and the rest need not be read.
    start = {name: values(name, fewest * sizes[0]) for name in features}
    turns = {name: 1 + np.flatnonzero(v[1:] != v[:-1]) for name, v in start.items()}
    columns: dict[str, np.ndarray] = {}
    for size in sizes:
        alike = [name for name, at in turns.items() if not np.any(at % size)]
        if len(alike) < 2:
            continue
        columns |= {name: values(name, rows) for name in alike if name not in columns}
        blocks = {name: columns[name].reshape(-1, size) for name in alike}
        alike = [name for name in alike if np.all(blocks[name] == blocks[name][:, :1])]
        if len(alike) < 2:
            continue
        first = np.stack([blocks[name][:, 0] for name in alike])
        changes = np.any(np.diff(first, axis=1) != 0, axis=0)
        if 4 * np.count_nonzero(changes) >= len(changes):  # a sorted table changes seldom
            return size, alike
    return 1, []

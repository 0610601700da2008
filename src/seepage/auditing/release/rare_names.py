"""Names that would give people away: values that few records have, published as names of levels.

A category becomes one feature for each of its levels, and the names of the levels leave with the
model. A level of one record is that person's own text; a column of text whose values are nearly all
different is a list of such. Both are reported before anything is fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from seepage.auditing.intake.table import ColumnPlan
from seepage.auditing.release.released_model import OTHER
from seepage.errors import InputError
from seepage.tables.columns import decoded, plain_numbers
from seepage.tables.names import counted, listed, shown

CHOICES = ("refuse", "drop", "merge")
_DISTINCT = 0.5  # share of records with a value of their own: above it, text and not a category


@dataclass(frozen=True)
class RareNames:
    """The values of a column that would leave although too few records have them."""

    column: str
    levels: int  # different values
    rare: int  # those held by too few
    alone: int  # those held by a single record

    def __str__(self) -> str:
        return (
            f"{counted(self.rare, 'value')} of {shown(self.column)} (of {self.levels:,}; "
            f"{self.alone:,} of a single record)"
        )


def find_rare_names(raw: pa.Table, columns: Sequence[str], holders: int) -> tuple[RareNames, ...]:
    """Return the columns with values that fewer than ``holders`` records have."""
    found = []
    for name in columns:
        sizes = pc.value_counts(_values(raw, name)).field("counts")
        rare = pc.sum(pc.less(sizes, holders)).as_py() or 0
        if rare:
            alone = pc.sum(pc.equal(sizes, 1)).as_py() or 0
            found.append(RareNames(name, len(sizes), rare, alone))
    return tuple(found)


def named_columns(plan: ColumnPlan) -> tuple[str, ...]:
    """Return the columns whose values leave as names: categories, two values, classes."""
    named = tuple(n for n in plan.features if plan.kinds[n] != "numeric")
    return (plan.target, *named) if plan.classes else named


def settle_rare_names(
    raw: pa.Table, plan: ColumnPlan, holders: int, choice: str
) -> tuple[pa.Table, tuple[str, ...], tuple[str, ...]]:
    """Return the table with rare values merged, columns to drop, and what was done.

    Raises
    ------
    InputError
        If there are some and nothing was chosen, or if the classes themselves are rare.
    """
    if choice not in CHOICES:
        raise InputError(f"--rare must be refuse, drop or merge, not {choice!r}.")
    rare = find_rare_names(raw, named_columns(plan), holders)
    if not rare:
        return raw, (), ()
    if any(found.column == plan.target for found in rare):
        raise InputError(
            f"A class of the target {shown(plan.target)} has fewer than {holders} records, and its "
            "name would leave; merge classes first, or set --least-holders."
        )
    text = [f.column for f in rare if f.levels >= _DISTINCT * raw.num_rows]
    if choice == "refuse" or (choice == "merge" and text):
        what = "Nearly every record has a value of its own" if text else "Few records share a value"
        ways = "--drop or --rare drop" if text else "--rare drop, --rare merge or --drop"
        raise InputError(
            f"{what}, and its name would leave with the model: "
            f"{'; '.join(map(str, rare[:5]))}; fewer than {holders} records have each. Choose "
            f"{ways}."
        )
    # What has no level for the others can only be dropped.
    names = [found.column for found in rare]
    drop = [name for name in names if choice == "drop" or plan.kinds[name] != "categorical"]
    merged = [name for name in names if name not in drop]
    for name in merged:
        raw = _merged(raw, name, holders)
    told = []
    if drop:
        told.append(
            f"{counted(len(drop), 'column')} dropped for values of few records: {listed(drop)}."
        )
    if merged:
        told.append(
            f"Values that fewer than {holders} records have were put together as {OTHER!r}: "
            f"{listed(merged)}."
        )
    return raw, tuple(drop), tuple(told)


def _values(raw: pa.Table, name: str) -> pa.Array:
    return plain_numbers(decoded(raw.column(name))).drop_null().combine_chunks()


def _merged(raw: pa.Table, name: str, holders: int) -> pa.Table:
    """Merge rare values of a column, with as many others as it takes to have enough records."""
    counts = sorted(
        (int(c["counts"]), str(c["values"]))
        for c in pc.value_counts(_values(raw, name)).to_pylist()
    )
    merged, held = [], 0
    for size, value in counts:
        if size >= holders and held >= holders:
            break
        merged.append(value)
        held += size
    column = decoded(raw.column(name)).cast(pa.string())
    rare = pc.is_in(column, value_set=pa.array(merged, pa.string()))
    settled = pc.if_else(rare, pa.scalar(OTHER), column)
    return raw.set_column(raw.column_names.index(name), name, settled)

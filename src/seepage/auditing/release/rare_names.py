"""Names that would give people away: values that few records have, published as names of levels.

A category becomes one feature for each of its levels, and the names of the levels leave with the
model. A level of one record is that person's own text; a column of text whose values are nearly all
different is a list of such. Both are reported before anything is fitted.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from seepage.auditing.intake.table import ColumnPlan
from seepage.auditing.release.released_model import OTHER
from seepage.errors import InputError
from seepage.tables.columns import decoded, plain_numbers
from seepage.tables.names import counted, listed, shown

CHOICES = ("refuse", "drop", "merge")


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
    # Values leave as the names of categories, of two values, and of classes.
    named = [n for n in plan.features if plan.kinds[n] != "numeric"]
    sizes = {n: _counts(raw, n) for n in ([plan.target] if plan.classes else []) + named}
    rare = [n for n, counts in sizes.items() if min(counts.values(), default=holders) < holders]
    if not rare:
        return raw, (), ()
    if plan.target in rare:
        raise InputError(
            f"A class of the target {shown(plan.target)} has fewer than {holders} records, and its "
            "name would leave; merge classes first, or set --least-holders."
        )
    # Where half of the values are different it is text, and not a category.
    text = [name for name in rare if 2 * len(sizes[name]) >= raw.num_rows]
    if choice == "refuse" or (choice == "merge" and text):
        what = "Nearly every record has a value of its own" if text else "Few records share a value"
        ways = "--drop or --rare drop" if text else "--rare drop, --rare merge or --drop"
        held = {name: list(sizes[name].values()) for name in rare[:5]}
        which = "; ".join(
            f"{counted(sum(n < holders for n in counts), 'value')} of {shown(name)} (of "
            f"{len(counts):,}; {counts.count(1):,} of a single record)"
            for name, counts in held.items()
        )
        raise InputError(
            f"{what}, and its name would leave with the model: {which}; fewer than {holders} "
            f"records have each. Choose {ways}."
        )
    # What has no level for the others can only be dropped.
    drop = [name for name in rare if choice == "drop" or plan.kinds[name] != "categorical"]
    merged = [name for name in rare if name not in drop]
    for name in merged:
        raw = _merged(raw, name, sizes[name], holders)
    steps = []
    if drop:
        steps.append(
            f"{counted(len(drop), 'column')} dropped for values of few records: {listed(drop)}."
        )
    if merged:
        steps.append(
            f"Values that fewer than {holders} records have were put together as {OTHER!r}: "
            f"{listed(merged)}."
        )
    return raw, tuple(drop), tuple(steps)


def _counts(raw: pa.Table, name: str) -> dict[str, int]:
    """Return how many records have each value of a column."""
    found = pc.value_counts(plain_numbers(decoded(raw.column(name))).drop_null().combine_chunks())
    return {str(c["values"]): int(c["counts"]) for c in found.to_pylist()}


def _merged(raw: pa.Table, name: str, counts: dict[str, int], holders: int) -> pa.Table:
    """Merge rare values of a column, with as many others as it takes to have enough records."""
    merged, held = [], 0
    for size, value in sorted((size, value) for value, size in counts.items()):
        if size >= holders and held >= holders:
            break
        merged.append(value)
        held += size
    column = decoded(raw.column(name)).cast(pa.string())
    rare = pc.is_in(column, value_set=pa.array(merged, pa.string()))
    settled = pc.if_else(rare, pa.scalar(OTHER), column)
    return raw.set_column(raw.column_names.index(name), name, settled)

"""Handles rare values, which would identify people if published as names of levels.

A category is encoded as one feature per level, and the names of the levels are published with the
model. The name of a level with a single record reveals that record's value, as do most names of a
text column whose values are nearly unique. Both kinds of names are reported before the fit. If
people have several records, a value counts once per person: a value in twenty records of one person
has one holder.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from seepage.auditing.findings import ONE_PERSON, ONE_ROW
from seepage.auditing.intake.identities import people_of_rows
from seepage.auditing.intake.table import ColumnPlan
from seepage.auditing.release.released_model import OTHER
from seepage.auditing.report.words import MANY
from seepage.errors import InputError
from seepage.tables.columns import decoded, plain_numbers
from seepage.tables.names import counted, listed, shown

CHOICES = ("refuse", "drop", "merge")


def settle_rare_names(
    raw: pa.Table, plan: ColumnPlan, holders: int, choice: str
) -> tuple[pa.Table, tuple[str, ...], tuple[str, ...]]:
    """Return the table with rare values merged, the columns to drop, and sentences about both.

    Raises
    ------
    InputError
        If there are rare values and no treatment was chosen, or if a class is rare.
    """
    if choice not in CHOICES:
        raise InputError(f"--rare must be refuse, drop or merge, not {choice!r}.")
    # Values leave as the names of categories, of two values, and of classes.
    named = [n for n in plan.features if plan.kinds[n] != "numeric"]
    owner = None
    if plan.person is not None:
        owner = people_of_rows(raw.column(plan.person), plan.person)
    who = MANY[ONE_ROW if owner is None else ONE_PERSON]
    every = ([plan.target] if plan.classes else []) + named
    sizes = {name: _counts(raw, name, owner, plan) for name in every}
    rare = [n for n, counts in sizes.items() if min(counts.values(), default=holders) < holders]
    if not rare:
        return raw, (), ()
    if plan.target in rare:
        raise InputError(
            f"A class of the target {shown(plan.target)} has fewer than {holders} {who}, and its "
            "name would be published; merge classes first, or lower --least-holders."
        )
    # Where half of the values are different it is text, and not a category.
    text = [name for name in rare if 2 * len(sizes[name]) >= raw.num_rows]
    if choice == "refuse" or (choice == "merge" and text):
        what = f"Few {who} share a value"
        if text:
            what = "Some columns have at least half as many different values as the table has rows"
        ways = "--drop or --rare drop" if text else "--rare drop, --rare merge or --drop"
        held = {name: list(sizes[name].values()) for name in rare[:5]}
        which = "; ".join(
            f"{counted(sum(n < holders for n in counts), 'value')} of {shown(name)} (of "
            f"{len(counts):,}; {counts.count(1):,} of a single "
            f"{'record' if owner is None else 'person'})"
            for name, counts in held.items()
        )
        raise InputError(
            f"{what}, but values are published with the model as names of levels: {which}. "
            f"Each of these values is shared by fewer than {holders} {who}. Choose {ways}."
        )
    # What has no level for the others can only be dropped.
    drop = [name for name in rare if choice == "drop" or plan.kinds[name] != "categorical"]
    merged = [name for name in rare if name not in drop]
    for name in merged:
        raw = _merged(raw, name, sizes[name], holders, owner)
    steps = []
    if drop:
        steps.append(
            f"{counted(len(drop), 'column was', 'columns were')} dropped, because some values are "
            f"shared by fewer than {holders} {who}: {listed(drop)}."
        )
    if merged:
        steps.append(
            f"Values shared by fewer than {holders} {who} were merged into {OTHER!r}: "
            f"{listed(merged)}."
        )
    return raw, tuple(drop), tuple(steps)


def _counts(raw: pa.Table, name: str, owner: np.ndarray | None, plan: ColumnPlan) -> dict[str, int]:
    """Return how many records, or people, have each value of a column."""
    levels = plan.sums[name].levels
    if owner is None and levels is not None:
        return {str(value): count for value, count in levels.items()}
    column = plain_numbers(decoded(raw.column(name)))
    if owner is not None:  # every value of each person once
        held = pa.table({"value": column, "owner": owner}).group_by(["value", "owner"])
        column = held.aggregate([]).column("value")
    found = pc.value_counts(column.drop_null().combine_chunks())
    return {str(c["values"]): int(c["counts"]) for c in found.to_pylist()}


def _merged(
    raw: pa.Table, name: str, counts: dict[str, int], holders: int, owner: np.ndarray | None
) -> pa.Table:
    """Merge rare values of a column, and further values until there are enough holders.

    A person with two of the merged values counts as one holder.
    """
    column = decoded(raw.column(name)).cast(pa.string())
    texts = np.asarray(column.to_numpy(zero_copy_only=False), dtype=object)
    whose = np.arange(len(texts)) if owner is None else owner
    merged: list[str] = []
    held: set[int] = set()
    for size, value in sorted((size, value) for value, size in counts.items()):
        if size >= holders and len(held) >= holders:
            break
        merged.append(value)
        held.update(whose[texts == value].tolist())
    rare = pc.is_in(column, value_set=pa.array(merged, pa.string()))
    settled = pc.if_else(rare, pa.scalar(OTHER), column)
    return raw.set_column(raw.column_names.index(name), name, settled)

"""Decide what every column is for an audit of data that are read in chunks, from one scan of them.

What differs from a table in memory: of a column with more than 1,000 different values only that is
known, so text columns of that kind must be dropped by name, identifiers or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from seepage.auditing.intake.clean_batches import ROW, CleanBatches, CompleteRows
from seepage.auditing.intake.columns import (
    MOST_GROUPS,
    ColumnPlan,
    check_names,
    plan_from_facts,
    too_many_groups,
)
from seepage.auditing.intake.encoding import usable_parts
from seepage.errors import InputError
from seepage.streams.disk.column_scan import MOST_LEVELS, ColumnSums
from seepage.streams.disk.files import Batches, Piece
from seepage.streams.disk.source import scan_columns, sum_pieces
from seepage.tables.encoded import Part
from seepage.tables.facts import (
    COMMAS,
    ENOUGH,
    FEW,
    Facts,
    commas_in,
    is_number,
    is_text,
    looks_like_dates,
    numbers_in,
)
from seepage.tables.names import counted, shown

_ROUNDING = 1e-13  # a spread below this share of the largest value is rounding, not variation
_64_BITS = (1 << 64) - 1


def plan_streamed(
    batches: CleanBatches,
    target: str,
    *,
    drop: Sequence[str],
    sensitive: Sequence[str],
    groups: Sequence[str],
    categorical: Sequence[str],
    missing: str,
) -> tuple[ColumnPlan, Batches, tuple[Part, ...]]:
    """Return what every column is for, the rows that are used, and how the features are encoded.

    The parameters are those of :func:`seepage.auditing.intake.columns.plan_columns`.
    """
    names = batches.schema.names
    check_names(names, target, drop, sensitive, groups, categorical)
    if not batches.rows:
        raise InputError("The Parquet data have no rows.")
    wanted = [n for n in names if n == target or n not in drop]
    found = scan_columns(batches, list(dict.fromkeys([*wanted, *groups])))
    facts = {n: _facts(batches, n, found[n], n in categorical) for n in wanted}
    for name in groups:
        levels = found[name].levels
        if levels is None or len(levels) > MOST_GROUPS:
            raise too_many_groups(
                name, f"more than {MOST_LEVELS:,}" if levels is None else f"{len(levels):,}"
            )
    plan = plan_from_facts(
        facts,
        target,
        drop=drop,
        sensitive=sensitive,
        groups=groups,
        categorical=categorical,
        missing=missing,
        steps=batches.steps,
    )
    gaps = [n for n in plan.features if facts[n].missing]
    needed = [target] if facts[target].missing else []
    needed += gaps if missing == "drop" else []
    used = CompleteRows(batches, needed, _class_type(batches, plan, found[target]))
    steps = list(plan.steps)
    if needed:
        found = scan_columns(used, list(plan.features))
        _tell_lost(facts, target, batches.rows, used.rows, steps)
    parts = [_part(n, plan.kinds[n], batches.schema.field(n).type, found[n]) for n in plan.features]
    kept = tuple(usable_parts(parts, plan, steps))
    return replace(plan, steps=tuple(steps)), used, kept


def _tell_lost(
    facts: dict[str, Facts], target: str, before: int, after: int, steps: list[str]
) -> None:
    lost, gone = facts[target].missing, before - after
    if after < 2:
        raise InputError(
            f"{counted(after, 'row is', 'rows are')} left of {before:,} once those with missing "
            "values are dropped, and an audit needs two or more; drop the columns with the most "
            "gaps."
        )
    if lost:
        steps.append(f"{counted(lost, 'row')} dropped for a missing target.")
    if gone > lost:
        steps.append(
            f"{counted(gone - lost, 'row')} dropped for a missing value in a feature, of "
            f"{before:,}."
        )


def _facts(batches: Batches, name: str, sums: ColumnSums, as_codes: bool) -> Facts:
    """Return what :func:`seepage.tables.facts.look_at` finds, as far as a scan tells."""
    kind, rows, missing = batches.schema.field(name).type, sums.rows, sums.missing
    capped = sums.levels is None
    distinct = MOST_LEVELS + 1 if sums.levels is None else len(sums.levels)
    if pa.types.is_null(kind) or missing == rows:
        return Facts(rows, rows)
    if pa.types.is_temporal(kind):
        return Facts(rows, missing, refused="dates")
    if pa.types.is_boolean(kind):
        return Facts(rows, missing, distinct, "categorical" if as_codes else "boolean")
    if is_text(kind):
        return _text_facts(sums, distinct, capped, as_codes)
    if not is_number(kind):
        return Facts(rows, missing, refused="bytes or nested values")
    if not sums.finite:
        return Facts(rows, missing, distinct, "numeric", refused="infinite values", capped=capped)
    identifier = ""
    counts_up = sums.whole and missing == 0 and sums.most - sums.least == rows - 1
    if rows >= ENOUGH and counts_up and _all_different(batches, name, sums):
        identifier = "are all different and count up"
    boolean = sums.whole and distinct == 2 and (sums.least, sums.most) == (0.0, 1.0)
    plain = "boolean" if boolean else "numeric"
    return Facts(
        rows,
        missing,
        distinct,
        "categorical" if as_codes else plain,
        pa.types.is_integer(kind),
        sums.whole,
        sums.least,
        identifier,
        capped=capped,
    )


def _text_facts(sums: ColumnSums, distinct: int, capped: bool, as_codes: bool) -> Facts:
    rows, missing, filled = sums.rows, sums.missing, sums.values
    if as_codes or sums.levels is None:
        return Facts(rows, missing, distinct, capped=capped)
    texts, counts = pa.array(list(sums.levels)), np.asarray(list(sums.levels.values()))

    def rows_with(flags: pa.Array) -> int:
        return int(counts[flags.to_numpy(zero_copy_only=False)].sum())

    if looks_like_dates(texts[:100].to_pylist()):
        return Facts(rows, missing, distinct, refused="dates")
    if 2 * rows_with(commas_in(texts)) > filled:
        return Facts(rows, missing, distinct, refused=COMMAS)
    if distinct > FEW and filled > rows_with(numbers_in(texts)) >= 0.9 * filled:
        return Facts(rows, missing, distinct, almost_number=-1)
    identifier = "are all different" if filled >= ENOUGH and distinct == filled else ""
    return Facts(rows, missing, distinct, identifier=identifier)


def _all_different(batches: Batches, name: str, sums: ColumnSums) -> bool:
    """Say whether whole numbers that span as many values as there are rows take each of them."""
    surplus = sum_pieces(batches, [name, ROW], partial(_surplus, least=sums.least))
    return surplus is not None and not (surplus & _64_BITS)


def _surplus(pieces: Sequence[Piece], least: float) -> int:
    """Return the sum of a hash of the values, counted from the least, less that of the rows.

    Over all rows it vanishes modulo 2⁶⁴ where the values are the numbers of the rows in another
    order, and otherwise with a probability of 2⁻⁶⁴ only; a list of those seen would grow with the
    rows.
    """
    total = 0
    for piece in pieces:
        values = (_floats(piece.batch.column(0)) - least).astype(np.int64)
        rows = np.asarray(piece.batch.column(1))
        total += int(_mixed(values).sum()) - int(_mixed(rows).sum())
    return total


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Return hashes of whole numbers: the mixing function of SplitMix64 (Steele et al., 2014)."""
    z = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def _floats(column: pa.Array) -> np.ndarray:
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False))


def _class_type(batches: Batches, plan: ColumnPlan, sums: ColumnSums) -> dict[str, pa.DataType]:
    """Return the type of the labels: whole numbers where classes are numbers."""
    kind = batches.schema.field(plan.target).type
    if plan.target_kind in ("numeric", "count"):
        return {plan.target: pa.float64()}
    if is_text(kind):
        return {}
    return {plan.target: pa.int64() if sums.whole else pa.string()}


def _part(name: str, kind: str, stored: pa.DataType, sums: ColumnSums) -> Part:
    """Return how a column is encoded; see :meth:`Part.of`."""
    if kind == "categorical":
        return _category(name, stored, sums)
    fill = None
    if sums.missing:
        if kind == "numeric":
            raise InputError(
                f"The gaps in {shown(name)} cannot be filled while the data are read in chunks: "
                "its median takes the whole column; say --missing drop, or fill them first."
            )
        fill = float(sums.mean > 0.5)
    # With the fill in the place of the gaps.
    whole = (
        sums
        if fill is None
        else replace(sums, missing=0, rows=sums.values) + ColumnSums(sums.missing, 0, fill)
    )
    mean, squares = whole.mean, whole.squares
    spread = float(np.sqrt(squares / sums.rows))
    if not (np.isfinite(mean) and np.isfinite(spread)):
        raise InputError(
            f"The values of column {shown(name)} are too large for their spread to be computed; "
            "write them in a larger unit."
        )
    constant = spread <= _ROUNDING * max(abs(sums.least), abs(sums.most))
    return Part(name, kind, sums.missing, fill, mean, spread, None, constant)


def _category(name: str, stored: pa.DataType, sums: ColumnSums) -> Part:
    counts = dict(sorted((sums.levels or {}).items()))
    levels = pa.array(list(counts), stored)
    sizes = np.asarray(list(counts.values()), dtype=float)
    fill = None
    if sums.missing:
        fill = int(sizes.argmax())
        sizes[fill] += sums.missing
    shares = sizes / sizes.sum()
    spread = float(np.sqrt(max(0.0, 1.0 - float(shares @ shares))))
    return Part(name, "categorical", sums.missing, fill, 0.0, spread, levels, len(levels) < 2)

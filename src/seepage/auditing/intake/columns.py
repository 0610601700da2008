"""Decide what every column of a table is for an audit, and refuse what it cannot be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from seepage.errors import InputError, nearest
from seepage.tables.facts import FEW, Facts
from seepage.tables.names import SHOWN, counted, listed, shown

if TYPE_CHECKING:
    from seepage.auditing.intake.encoding import TableToAudit

MOST_LEVELS = 1000
MOST_CLASSES = 100
MOST_GROUPS = 100
MISSING_SHARE = 0.99  # of a column: from there on it is dropped

_NUMBER = re.compile(r"[-+]?\d+\.?\d*")


@dataclass(frozen=True)
class ColumnPlan:
    """What every column of a table is used for.

    Parameters
    ----------
    target, target_kind
        The column that is predicted: ``numeric``, ``count`` (whole numbers from 0 on), ``binary``
        or ``multiclass``.
    features
        The columns it is predicted from, in the order of the table.
    kinds
        For every feature: ``numeric``, ``boolean`` (true and false, or 0 and 1) or ``categorical``.
    sensitive
        Features the caller worries about most.
    groups
        Columns whose values say which group a record belongs to, features or not.
    missing
        What happens to a record with a missing value: ``refuse``, ``drop`` or ``impute``.
    steps
        What was done so far, one sentence each.
    """

    target: str
    target_kind: str
    features: tuple[str, ...]
    kinds: dict[str, str]
    sensitive: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    missing: str = "refuse"
    steps: tuple[str, ...] = field(default=())


def plan_columns(
    table: TableToAudit,
    target: str,
    *,
    drop: Sequence[str] = (),
    sensitive: Sequence[str] = (),
    groups: Sequence[str] = (),
    categorical: Sequence[str] = (),
    missing: str = "refuse",
) -> ColumnPlan:
    """Work out the kind of every column from its type and its values.

    Parameters
    ----------
    table
        The table.
    target
        The column to predict.
    drop
        Columns to leave out.
    sensitive
        Features to report cell by cell.
    groups
        Columns to compare groups by; one that is dropped still serves for that.
    categorical
        Columns of numbers that are codes of categories (the target too, for classes).
    missing
        ``"refuse"`` a table with gaps, ``"drop"`` the rows that have one, or ``"impute"`` the
        median or the most frequent value.

    Raises
    ------
    InputError
        For a name that is not a column, dates, nested or infinite values, too many categories, a
        target that is an identifier, has one value only or too many classes; gaps, unless
        ``missing`` says what to do; and when no feature is left.
    """
    _check_names(table.names, target, drop, sensitive, groups, categorical)
    if missing not in ("refuse", "drop", "impute"):
        raise InputError(f"missing must be 'refuse', 'drop' or 'impute', not {missing!r}.")
    wanted = [n for n in table.names if n not in {target, *drop}]
    facts, sizes = table.look([target, *wanted], set(categorical), groups)
    _check_groups(sizes)
    steps = list(table.steps)
    kind = _target_kind(target, facts[target], as_classes=target in categorical)
    if kind == "count":
        steps.append(
            f"The target {shown(target)} holds whole numbers from 0 on, more than two of them: "
            "taken as counts; if they stand for classes, name it with --categorical."
        )
    useless = _useless(facts, wanted)
    _check_sensitive(sensitive, target, drop, useless)
    for reason, names in _by_reason(useless).items():
        steps.append(f"{counted(len(names), 'column')} dropped, {reason}: {listed(names)}.")
    if drop:
        steps.append(f"{counted(len(set(drop)), 'column')} left out as asked: {listed(drop)}.")
    features = tuple(n for n in wanted if n not in useless)
    _check_features(features, facts)
    numbers = [n for n in features if facts[n].kind == "numeric" and facts[n].integer]
    few = [n for n in numbers if facts[n].distinct <= FEW]
    if few:
        steps.append(
            f"{counted(len(few), 'column')} of few different whole numbers taken as numeric; if "
            f"they are codes of categories, use --categorical: {listed(few)}."
        )
    if not features:
        raise InputError("No column is left to predict the target from; see what was dropped.")
    if missing == "refuse":
        _check_no_gaps([target, *features], facts, facts[target].rows)
    return ColumnPlan(
        target=target,
        target_kind=kind,
        features=features,
        kinds={n: facts[n].kind for n in features},
        sensitive=tuple(dict.fromkeys(sensitive)),
        groups=tuple(dict.fromkeys(groups)),
        missing=missing,
        steps=tuple(steps),
    )


def _check_names(known: Sequence[str], target: str, *asked: Iterable[str]) -> None:
    """Refuse names that are no columns; the first of ``asked`` are those that are dropped."""
    if len(set(known)) < len(known):
        twice = next(n for n in known if known.count(n) > 1)
        raise InputError(f"Several columns are called {shown(twice)}; rename all but one.")
    for name in [target, *(n for names in asked for n in names)]:
        if name in known:
            continue
        close = nearest(name, [n for n in known if len(n) <= SHOWN])
        hint = close or f": the columns are {listed(known, 10)}"
        data = any(_NUMBER.fullmatch(n) for n in known)
        advice = "; if these are a record, the file has no header: use --no-header" if data else ""
        raise InputError(f"There is no column {shown(name)}{hint}{advice}.")
    if target in set(asked[0]):
        raise InputError(f"The target {shown(target)} cannot be dropped.")


def _target_kind(name: str, facts: Facts, *, as_classes: bool) -> str:
    who = f"The target {shown(name)}"
    _check_usable(who, facts)
    if facts.missing == facts.rows:
        raise InputError(f"{who} has no values at all, so there is nothing to predict.")
    if facts.distinct == 1:
        raise InputError(f"{who} has one value only, so there is nothing to predict.")
    if facts.identifier:
        raise InputError(
            f"{who} is an identifier: its values {facts.identifier}, so there is nothing to learn; "
            "name another column."
        )
    if facts.kind == "boolean" or (facts.distinct == 2 and facts.whole):
        return "binary"
    if facts.kind == "numeric" and not as_classes:
        return "count" if facts.integer and facts.least == 0 else "numeric"
    if facts.distinct > MOST_CLASSES:
        raise InputError(
            f"{who} has {_many(facts)} classes, and at most {MOST_CLASSES} can be told apart; "
            "name another column."
        )
    return "binary" if facts.distinct == 2 else "multiclass"


def _useless(facts: dict[str, Facts], wanted: Sequence[str]) -> dict[str, str]:
    """Return the features that say nothing, each with the reason in words."""
    out = {}
    for name in wanted:
        known = facts[name]
        if known.missing >= MISSING_SHARE * known.rows:
            out[name] = "99 % or more of their values missing"
        elif known.distinct == 1 and not known.refused:
            out[name] = "with one value only"
        elif known.identifier:
            out[name] = f"identifiers whose values {known.identifier}"
    return out


def _by_reason(useless: dict[str, str]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for name, reason in useless.items():
        out.setdefault(reason, []).append(name)
    return out


def _check_sensitive(
    sensitive: Sequence[str], target: str, drop: Sequence[str], useless: dict[str, str]
) -> None:
    for name in sensitive:
        if name == target:
            raise InputError(
                f"{shown(name)} is the target, whose leakage is always reported; leave it out of "
                "the sensitive columns."
            )
        if name in drop:
            raise InputError(f"{shown(name)} is both sensitive and dropped; decide for one.")
        if name in useless:
            raise InputError(
                f"The sensitive column {shown(name)} cannot be used ({useless[name]}); leave it "
                "out of the sensitive columns."
            )


def _check_features(features: Sequence[str], facts: dict[str, Facts]) -> None:
    dates = [n for n in features if facts[n].refused == "dates"]
    if dates:
        raise InputError(
            f"Dates and times cannot be used as they are: {listed(dates)}; turn each into a number "
            "(for instance days since a reference date), or leave it out with --drop."
        )
    for name in features:
        _check_usable(f"Column {shown(name)}", facts[name])
        levels = facts[name].distinct
        if facts[name].kind == "categorical" and levels > MOST_LEVELS:
            raise InputError(
                f"Column {shown(name)} has {_many(facts[name])} different values, and a category "
                f"may have at most {MOST_LEVELS:,}; put rare ones together, or leave the column "
                "out with --drop."
            )


def _check_usable(who: str, facts: Facts) -> None:
    if facts.refused == "dates":
        raise InputError(
            f"{who} holds dates or times; turn them into a number (for instance days since a "
            "reference date)."
        )
    if facts.refused:
        raise InputError(f"{who} holds {facts.refused}; turn it into plain numbers, or drop it.")
    if facts.almost_number is not None:
        where = f", first in row {facts.almost_number:,}" if facts.almost_number >= 0 else ""
        raise InputError(
            f"{who} holds numbers, but also text{where}; correct that, or name the column with "
            "--categorical if its values are codes."
        )


def _many(facts: Facts) -> str:
    return f"more than {facts.distinct - 1:,}" if facts.capped else f"{facts.distinct:,}"


def _check_groups(sizes: Mapping[str, int | None]) -> None:
    for name, size in sizes.items():
        if size is None or size > MOST_GROUPS:
            levels = f"more than {MOST_LEVELS:,}" if size is None else f"{size:,}"
            raise InputError(
                f"Column {shown(name)} has {levels} different values, and at most {MOST_GROUPS} "
                "groups can be compared; put values together first (for instance into age bands)."
            )


def _check_no_gaps(names: Sequence[str], facts: dict[str, Facts], rows: int) -> None:
    gaps = [n for n in names if facts[n].missing]
    if gaps:
        worst = max(gaps, key=lambda n: facts[n].missing)
        raise InputError(
            f"{counted(len(gaps), 'column has', 'columns have')} missing values: {listed(gaps)} "
            f"(most in {shown(worst)}: {facts[worst].missing:,} of {rows:,}); say --missing drop "
            "to leave out those rows, or --missing impute to fill them."
        )

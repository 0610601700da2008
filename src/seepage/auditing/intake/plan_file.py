"""The plan of a table's columns, which can be printed, edited and passed back.

A plan is a small TOML file. The file states the target, the treatment of missing values, and the
kind of each column (``numeric``, ``boolean``, ``categorical`` or ``drop``), with comments on the
columns' contents.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from seepage.auditing.intake.identities import is_named_like_identifier
from seepage.auditing.intake.table import MISSING_SHARE, TableToAudit
from seepage.auditing.questions import ReleaseQuestion
from seepage.errors import InputError, nearest
from seepage.tables.columns import ColumnProfile, ColumnSums, decoded, plain_numbers
from seepage.tables.names import counted, listed, shown

KINDS = ("numeric", "boolean", "categorical", "drop")
_TEXTS, _LISTS = ("target", "missing", "person"), ("sensitive", "group")


@dataclass(frozen=True)
class ColumnFacts:
    """The role of a column, and a note on its contents."""

    name: str
    kind: str  # one of KINDS
    words: str


@dataclass(frozen=True)
class PlanFile:
    """A plan read from a file."""

    target: str | None = None
    missing: str = "refuse"
    sensitive: tuple[str, ...] = ()
    group: tuple[str, ...] = ()
    person: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> PlanFile:
        """Read a plan; raise an error if it is invalid."""
        try:
            content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(
                f"The plan {path.name} cannot be read: {error.strerror}; check its path."
            ) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(
                f"{path.name} is not a plan ({error}); print one with `seepage columns`."
            ) from error
        for key in content:
            if key not in (*_TEXTS, "columns", *_LISTS):
                raise InputError(
                    f"The plan {path.name} has an unknown key {shown(key)}; remove it."
                )
        columns = content.get("columns")
        if not isinstance(columns, dict) or not columns:
            raise InputError(f"The plan {path.name} lists no columns under [columns]; add them.")
        for name, kind in columns.items():
            if kind not in KINDS:
                raise InputError(
                    f"The plan declares column {shown(name)} as {shown(kind)}; choose from "
                    f"{', '.join(KINDS)}."
                )
        for key in _TEXTS:
            if not isinstance(content.get(key, ""), str):
                raise InputError(f"In the plan, {key} must be text.")
        for key in _LISTS:
            names = content.get(key, [])
            if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
                raise InputError(f"In the plan, {key} must be a list of columns.")
        return cls(
            content.get("target") or None,
            content.get("missing", "refuse"),
            tuple(content.get("sensitive", ())),
            tuple(content.get("group", ())),
            content.get("person") or None,
            columns,
        )

    def check(self, table: TableToAudit, target: str) -> None:
        """Raise an error if the plan does not match the columns of a table and their kinds."""
        if self.person is not None and self.person not in table.names:
            close = nearest(self.person, table.names)
            raise InputError(
                f"The plan states that {shown(self.person)} identifies people, but the table has "
                f"no such column{close}; correct the plan."
            )
        for name in self.columns:
            if name not in table.names:
                close = nearest(name, table.names)
                raise InputError(
                    f"The plan lists column {shown(name)}, which is not in the table{close}; "
                    "remove it."
                )
        forgotten = [name for name in table.names if name not in self.columns]
        if forgotten:
            raise InputError(
                f"The plan lists no kind for {listed(forgotten)}; add a kind for each column, or "
                "print a new plan with `seepage columns`."
            )
        stated = [name for name, kind in self.columns.items() if kind == "boolean"]
        known = {facts.name: facts.kind for facts in column_facts(table, stated)}
        for name in stated:
            if name != target and known[name] != "boolean":
                raise InputError(
                    f"The plan declares column {shown(name)} as boolean, but it does not have "
                    "exactly two numeric values; declare another kind."
                )

    def of_kind(self, kind: str, but: Sequence[str | None] = ()) -> tuple[str, ...]:
        """Return the columns of this kind, except those in ``but``."""
        return tuple(name for name, k in self.columns.items() if k == kind and name not in but)


def column_facts(table: TableToAudit, names: Sequence[str] | None = None) -> list[ColumnFacts]:
    """Return the proposed roles of columns (by default all), from one scan."""
    names = list(table.names) if names is None else list(names)
    if not names:
        return []
    sums = table.scan(names)
    return [_facts(table, name, sums[name]) for name in names]


def _facts(table: TableToAudit, name: str, sums: ColumnSums) -> ColumnFacts:
    profile = table.profile(name, sums, as_codes=False)
    missing = [f"{profile.missing:,} missing"] if profile.missing else []
    why = _useless(profile)
    if why:
        return ColumnFacts(name, "drop", "; ".join([why, *missing]))
    words = [_different(table, name, profile, sums), *missing]
    if is_named_like_identifier(name) and profile.whole and profile.distinct > 2:
        asked = (
            "identifier? If so, set it as person above; if not, declare it categorical or numeric"
        )
        return ColumnFacts(name, "drop", "; ".join([asked, *words]))
    if profile.kind == "categorical":
        sizes = list((sums.levels or {}).values())
        holders = ReleaseQuestion.least_holders
        rare = sum(size < holders for size in sizes)
        if rare:
            words.insert(
                1,
                f"{rare:,} in fewer than {holders} records, {sizes.count(1):,} of them in only one",
            )
    elif profile.kind == "numeric":
        words.insert(1, f"{sums.least:g} to {sums.most:g}")
    return ColumnFacts(name, profile.kind, "; ".join(words))


def _useless(profile: ColumnProfile) -> str:
    if profile.missing >= MISSING_SHARE * profile.rows:
        return "99 % or more missing"
    if profile.refused:
        return f"{profile.refused}: convert them to plain numbers to use them"
    if profile.distinct == 1:
        return "one value only"
    if profile.almost_numbers:
        return "numbers mixed with text: correct the values, or declare the column categorical"
    return f"identifier: its values {profile.identifier}" if profile.identifier else ""


def _different(table: TableToAudit, name: str, profile: ColumnProfile, sums: ColumnSums) -> str:
    count, known = profile.distinct, not profile.capped
    if profile.capped and table.raw is not None:
        column: pa.ChunkedArray = plain_numbers(decoded(table.raw.column(name)))
        count, known = pc.count_distinct(column.drop_null()).as_py(), True
    share = f" ({count / sums.values:.1%} of the values)" if known else ""
    what = counted(count, "level") if profile.kind == "categorical" else f"{count:,} different"
    return f"{what if known else f'more than {count - 1:,} different'}{share}"


def plan_text(source: str, rows: int, facts: Sequence[ColumnFacts], steps: Sequence[str]) -> str:
    """Return a plan as TOML, with comments on the columns."""
    kinds = [f"{json.dumps(f.name, ensure_ascii=False)} = {json.dumps(f.kind)}" for f in facts]
    width = max(map(len, kinds))
    lines = [
        f"# {source}: {counted(rows, 'row')}, {counted(len(facts), 'column')}",
        *(f"# {step}" for step in steps),
        "# Set the target, correct any errors, and pass the file back: seepage audit … --plan FILE",
        'target = ""',
        'missing = "refuse"  # or "drop" the rows, or "impute" the values',
        'person = ""  # the column that identifies people, if they have several rows',
        "sensitive = []",
        "group = []",
        "",
        f"[columns]  # each {', '.join(KINDS[:-1])} or {KINDS[-1]}",
        *(f"{k.ljust(width)}  # {f.words}" for k, f in zip(kinds, facts, strict=True)),
    ]
    return "\n".join(lines) + "\n"

"""The record table: as leakage.parquet, and packed into the page for its sortable view."""

from __future__ import annotations

import base64
from collections.abc import Container
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from seepage.auditing.measures.findings import Audit, Findings
from seepage.auditing.measures.records import NUMBERS, SomeRecords
from seepage.auditing.report.exposure import find_limit
from seepage.auditing.report.summary import SCHEMA
from seepage.auditing.report.wording import plain, short
from seepage.core.result import NOTICE

EMBEDDED_ROWS = 100_000  # beyond this the page holds the most leaked records only
EMBEDDED_CELLS = 6  # sensitive attributes shown per record in the page


def build_table(audit: Audit) -> pa.Table:
    """Return one row per audited record of a table in memory."""
    return record_table(audit.records.every)


def record_table(records: SomeRecords) -> pa.Table:
    """Return one row per record; ``error of <column>`` for every sensitive attribute."""
    columns = {"row": np.asarray(records.row, np.int64)}
    columns |= {name: np.asarray(values, float) for name, values in records.numbers.items()}
    for name, errors in records.errors.items():
        columns[_unused(f"error of {plain(name)}", columns)] = np.asarray(errors, float)
    return pa.table(columns).replace_schema_metadata({"schema": SCHEMA, "notice": NOTICE})


def _unused(name: str, taken: Container[str]) -> str:
    """Return the name, numbered where another column prints the same."""
    candidates = (name if k == 1 else f"{name} ({k})" for k in count(1))
    return next(candidate for candidate in candidates if candidate not in taken)


@dataclass(frozen=True)
class Column:
    """One column of the page's table: its heading, the full heading, and which order is natural."""

    label: str
    title: str
    descending: bool
    values: np.ndarray


def build_columns(records: SomeRecords) -> tuple[Column, ...]:
    """Return what the page shows of every record."""
    eta, features, label, exact = (records.numbers[name] for name in NUMBERS)
    columns = [
        Column("row", "number of the record in the table, 0 for the first", False, records.row),
        Column("leakage η", "about the whole record with its label", True, eta),
        Column("η of columns", "about the record without its label", True, features),
        Column("η of label", "about the label alone", True, label),
        Column(
            "error on all columns",
            "least error of an attack on all its columns at once, in standard deviations",
            False,
            exact,
        ),
    ]
    for name, errors in list(records.errors.items())[:EMBEDDED_CELLS]:
        title = f"least error of an attack on {plain(name)}, in its own units"
        columns.append(Column(f"± on {short(name, 24)}", title, False, errors))
    return tuple(columns)


def pack(audit: Findings) -> dict[str, Any]:
    """Return the records as JSON values: little-endian numbers in base64, one text per column."""
    kept = audit.records.most(EMBEDDED_ROWS)
    columns = build_columns(kept.at(np.argsort(kept.place)))
    return {
        "count": len(kept),
        "limit": find_limit(audit).eta,
        "columns": [
            {"label": c.label, "title": c.title, "descending": c.descending} for c in columns
        ],
        "rows": _encode(columns[0].values, "<f8"),
        "numbers": [_encode(column.values, "<f4") for column in columns[1:]],
    }


def _encode(values: np.ndarray, kind: str) -> str:
    with np.errstate(over="ignore"):  # beyond single precision is infinite for a reader
        return base64.b64encode(np.asarray(values).astype(kind).tobytes()).decode("ascii")

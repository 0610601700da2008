"""Reads language-model records from lines of text, JSON lines, JSON, CSV or Parquet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seepage.errors import InputError, not_utf8
from seepage.support.files import check_input

_NAMES = ("text", "messages", "prompt", "completion", "secrets")


def read_text_records(path: Path, limit: int | None = None) -> list[Any]:
    """Return the records in a file, or only the first ``limit``.

    A text file has one record per line. In other formats, a record is a line of a ``.jsonl`` file,
    an entry of a ``.json`` list or a row of a ``.csv`` or ``.parquet`` table. These records are
    strings, or mappings with ``text``, ``messages``, or ``prompt`` and ``completion``, and
    optionally ``secrets``.

    Raises
    ------
    InputError
        If the file cannot be used; the message does not quote its text.
    """
    check_input(path)
    if not path.is_file():
        raise InputError(f"There is no file {path}; check the path.")
    kind = path.suffix.lower()
    if kind in (".csv", ".parquet"):
        rows: list[Any] = _table(path, kind)
    else:
        try:
            text = path.read_text("utf-8-sig")
        except UnicodeDecodeError:
            raise not_utf8(path.name) from None
        if kind == ".json":
            rows = _parsed(text, path, 1)
            if not isinstance(rows, list):
                raise InputError(
                    f"{path.name} must contain a list of records; put the records in [ ]."
                )
        elif kind in (".jsonl", ".ndjson"):
            rows = [
                _parsed(line, path, number)
                for number, line in enumerate(text.splitlines(), 1)
                if line.strip()
            ]
        else:
            rows = [line for line in text.splitlines() if line.strip()]
    rows = rows[:limit]
    if not rows:
        raise InputError(f"{path.name} has no records; check that it was saved.")
    for number, row in enumerate(rows, 1):
        if not isinstance(row, str) and not (
            isinstance(row, Mapping) and any(row.get(name) for name in _NAMES)
        ):
            raise InputError(
                f"Record {number} of {path.name} has no text; a record must be a string, or have "
                "'text', 'messages', or 'prompt' and 'completion'."
            )
    return rows


def _parsed(text: str, path: Path, line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        at = line + error.lineno - 1
        raise InputError(f"Line {at} of {path.name} is not valid JSON; correct it.") from None


def _table(path: Path, kind: str) -> list[Any]:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    try:
        read = pyarrow.csv.read_csv if kind == ".csv" else pyarrow.parquet.read_table
        table = read(path)
    except (pa.ArrowInvalid, OSError):
        raise InputError(f"{path.name} is not a valid {kind} file; correct it.") from None
    names = [name for name in _NAMES if name in table.column_names]
    if not names:
        raise InputError(
            f"{path.name} has no column 'text'; rename the column that contains the text."
        )
    rows: list[Any] = table.select(names).to_pylist()
    return rows

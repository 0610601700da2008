"""Reads a property of clients, or of each of their updates, from a file.

The file is either a table, in any format of :func:`~seepage.auditing.intake.files.read_file`, or a
JSON object that maps nodes to values. A table has a column ``node`` or ``client``, a column for the
property, and optionally one for the ``round``. Nodes are stored as text, because Flower's 64-bit
node numbers exceed floating-point precision.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seepage.auditing.intake.files import read_file
from seepage.errors import InputError, nearest
from seepage.support.files import check_input
from seepage.tables.names import counted, listed, shown

_WHOSE = ("node", "client", "node_id", "client_id")
_WHEN = ("round", "server-round", "server_round")
_JSON = (".json", ".jsonl", ".ndjson")
_TEXT = {".csv": ",", ".tsv": "\t"}


@dataclass(frozen=True)
class ClientProperty:
    """Stores a property's name, and its value per client, or per client and round."""

    name: str
    values: Mapping[Any, str]


def read_client_property(path: Path, column: str | None = None) -> ClientProperty:
    """Return the property of the clients from a file.

    Parameters
    ----------
    path
        The file.
    column
        The property's column; by default, the only column other than node and round.

    Raises
    ------
    InputError
        If the file cannot be used; the message does not quote values of the property.
    """
    check_input(path)
    if not path.exists():
        raise InputError(f"There is no file {path}; check the path.")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the path of the file in it.")
    rows = _read_rows(path)
    if isinstance(rows, dict):
        return ClientProperty(column or path.stem, _checked(path, rows.items()))
    if not rows:
        raise InputError(f"{path.name} has no rows; add one per client.")
    names = list(dict.fromkeys(name for row in rows for name in row))
    whose = _one_of(names, _WHOSE)
    if whose is None:
        raise InputError(
            f"{path.name} has no column 'node' (or 'client') to identify the client, only "
            f"{listed(names)}; rename a column."
        )
    when = _one_of(names, _WHEN)
    chosen = _choose(path, [n for n in names if n not in (whose, when)], column)
    pairs = [
        (
            str(row.get(whose)) if when is None else (str(row.get(whose)), str(row.get(when))),
            row.get(chosen),
        )
        for row in rows
    ]
    return ClientProperty(chosen, _checked(path, pairs))


def _read_rows(path: Path) -> list[dict[str, Any]] | dict[str, Any]:
    ending = path.suffix.lower()
    if ending in _TEXT or ending in _JSON:
        try:
            text = path.read_text("utf-8-sig")
        except UnicodeDecodeError as error:
            raise InputError(f"{path.name} is not UTF-8 text; save it as UTF-8.") from error
        if ending in _TEXT:
            return _read_text(path, text, _TEXT[ending])
        return _read_json(path, text)
    return list(read_file(path).to_pylist())


def _read_text(path: Path, text: str, delimiter: str) -> list[dict[str, Any]]:
    try:
        reader = csv.reader(io.StringIO(text), delimiter=delimiter)
        lines = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except csv.Error as error:
        raise InputError(f"{path.name} cannot be read: {error}; correct it.") from error
    if not lines:
        raise InputError(f"{path.name} is empty; check that it was saved.")
    (_, head), *rest = lines
    for number, line in rest:
        if len(line) != len(head):
            raise InputError(
                f"{path.name} has {counted(len(line), 'cell')} in line {number}, but the first "
                f"line has {len(head)}; correct that line."
            )
    return [dict(zip(head, line, strict=True)) for _, line in rest]


def _read_json(path: Path, text: str) -> list[dict[str, Any]] | dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError:
        try:
            content = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError as error:
            raise InputError(
                f"{path.name} is neither a JSON object nor JSON lines; write one JSON object per "
                "line."
            ) from error
    if isinstance(content, dict) and _one_of(list(content), _WHOSE) is None:
        return content
    content = [content] if isinstance(content, dict) else content
    if not (isinstance(content, list) and all(isinstance(row, dict) for row in content)):
        raise InputError(f"{path.name} must map nodes to values, or list one object per client.")
    return content


def _one_of(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    return next((n for want in wanted for n in names if n.strip().lower() == want), None)


def _choose(path: Path, names: Sequence[str], column: str | None) -> str:
    if column is not None and column not in names:
        raise InputError(
            f"{path.name} has no column {shown(column)}{nearest(column, names)} for the property; "
            f"name another with --column (available: {listed(names) or 'none'})."
        )
    if column is not None:
        return column
    if not names:
        raise InputError(f"{path.name} has no column for the clients' property; add one.")
    if len(names) > 1:
        raise InputError(
            f"{path.name} has {len(names)} columns that could be the property ({listed(names)}); "
            "choose one with --column."
        )
    return names[0]


def _checked(path: Path, pairs: Any) -> dict[Any, str]:
    """Return the values by client; raise an error for a missing, nested or contradictory value."""
    values: dict[Any, str] = {}
    for key, value in pairs:
        who = " in round ".join(key) if isinstance(key, tuple) else key
        if value is None or (isinstance(value, str) and not value.strip()):
            raise InputError(f"{path.name} has no value for the client {shown(who)}; add one.")
        if isinstance(value, dict | list):
            raise InputError(
                f"{path.name} has a list or an object for the client {shown(who)}; give one value."
            )
        if values.setdefault(key, str(value)) != str(value):
            raise InputError(
                f"{path.name} lists the client {shown(who)} twice with different values; keep one."
            )
    return values

"""Reads file formats that store column types, each with its library.

Workbooks and DuckDB files need the extra ``tables``. SQLite is part of Python, and Arrow reads the
other formats. A URL is fetched with fsspec, and only on request.
"""

from __future__ import annotations

import io
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa

from seepage.errors import InputError, not_utf8, not_whole
from seepage.tables.names import listed, shown

LONGEST = 1 << 24  # bytes or characters of the longest cell or line that is read
_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"')
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.+)")


def read_typed(path: Path, kind: str, packed: str | None, sheet: str | None) -> pa.Table:
    """Read a file whose format stores types; ``packed`` is the compression of a JSON-lines file.

    ``sheet`` is the sheet of a workbook or the table of a database, if it has several.
    """
    if kind in _INSIDE:
        table = _INSIDE[kind](path, sheet)
    elif sheet is not None:
        raise InputError(
            f"{path.name} has a single table; use --sheet only with workbooks and databases."
        )
    elif kind == "JSON lines":
        try:
            table = _read_json_lines(path, packed)
        except OSError as error:
            raise not_whole(path.name, packed or kind) from error
    else:
        try:
            table = _WHOLE[kind](path)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise not_whole(path.name, kind) from error
    _check_whole(path, table, kind)
    return table


def _library(name: str, what: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            f"{what} is read with {name}, which is not installed: pip install 'seepage[tables]'."
        ) from error


def url_of(path: Path) -> str | None:
    """Return the URL that a path was made from, if any; paths drop one of the two slashes."""
    found = _URL.fullmatch(path.as_posix())
    if found is None or path.exists():
        return None
    return f"{found[1]}://{'/' if found[1] == 'file' else ''}{found[2]}"


@contextmanager
def fetched(url: str) -> Iterator[Path]:
    """Fetch a URL with fsspec into a temporary folder that only its owner can read."""
    fsspec = _library("fsspec", "A URL")
    name = PurePosixPath(url.partition("?")[0]).name or "table"
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / name
        try:
            with fsspec.open(url, "rb") as there, place.open("wb") as here:
                while block := there.read(1 << 20):
                    here.write(block)
        except ImportError as error:
            raise InputError(
                f"fsspec cannot read {url.partition(':')[0]} without the library "
                f"{shown(error.name) if error.name else 'for it'}; install that library, or "
                "download the file."
            ) from error
        except (OSError, ValueError) as error:
            raise InputError(
                f"{shown(url)} cannot be fetched ({type(error).__name__}); check the address."
            ) from error
        yield place


def _read_parquet(path: Path) -> pa.Table:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        return file.read()


def _read_arrow(path: Path) -> pa.Table:
    with pa.OSFile(str(path), "rb") as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source).read_all()


def _read_orc(path: Path) -> pa.Table:
    from pyarrow import orc

    return orc.ORCFile(path).read()


def _read_workbook(path: Path, sheet: str | None) -> pa.Table:
    """Read a sheet of an Excel workbook, with names in its first non-empty row.

    Formulas are read as their last computed values.
    """
    openpyxl = _library("openpyxl", "An Excel workbook")
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except Warning:  # of a style or an extension, raised by a filter: the file is whole
        raise
    except Exception as error:  # readers of damaged XML archives may raise anything
        raise not_whole(path.name, "Excel") from error
    with closing(book):
        name = _one_of(path, "sheet", book.sheetnames, sheet)
        rows = {
            number: row
            for number, row in enumerate(book[name].iter_rows(values_only=True), start=1)
            if any(c is not None for c in row)
        }
    if not rows:
        raise InputError(
            f"Sheet {shown(name)} of {path.name} is empty; choose another with --sheet."
        )
    header, *records = rows.values()
    width = max((j + 1 for j, cell in enumerate(header) if cell is not None), default=0)
    beyond = next((k for k, row in rows.items() if any(c is not None for c in row[width:])), None)
    if beyond is not None:
        raise InputError(
            f"Row {beyond:,} of sheet {shown(name)} in {path.name} has a value in a column without "
            "a name; name that column in the header row, or clear the cell."
        )
    cells = [[row[j] for row in records] for j in range(width)]
    names = ["" if cell is None else str(cell) for cell in header[:width]]
    return _from_cells(path, names, cells)


def _read_sqlite(path: Path, sheet: str | None) -> pa.Table:
    import sqlite3

    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as base:
            known = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY name"
            tables = [name for (name,) in base.execute(known) if not name.startswith("sqlite_")]
            name = _one_of(path, "table", tables, sheet)
            found = base.execute(f"SELECT * FROM {_quoted(name)}")  # noqa: S608 - quoted
            names = [column[0] for column in found.description]
            rows = found.fetchall()
    except sqlite3.Error as error:
        raise not_whole(path.name, "SQLite") from error
    return _from_cells(path, names, [[row[j] for row in rows] for j in range(len(names))])


def _read_duckdb(path: Path, sheet: str | None) -> pa.Table:
    duckdb = _library("duckdb", "A DuckDB file")
    try:
        with closing(duckdb.connect(str(path), read_only=True)) as base:
            base.execute("SET enable_external_access = false")  # a view may name other files
            tables = [row[0] for row in base.execute("SHOW TABLES").fetchall()]
            name = _one_of(path, "table", tables, sheet)
            table = base.sql(f"SELECT * FROM {_quoted(name)}").to_arrow_table()  # noqa: S608
    except duckdb.Error as error:
        raise not_whole(path.name, "DuckDB") from error
    return table


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _one_of(path: Path, what: str, known: Sequence[str], wanted: str | None) -> str:
    """Return the requested sheet or table, or the only one."""
    if wanted is None and len(known) == 1:
        return known[0]
    if not known:
        raise InputError(f"{path.name} contains no {what}; choose another file.")
    if wanted is None:
        raise InputError(
            f"{path.name} contains {len(known):,} {what}s ({listed(known)}); choose one with "
            "--sheet."
        )
    if wanted not in known:
        raise InputError(f"{path.name} has no {what} {shown(wanted)}; choose from {listed(known)}.")
    return wanted


def _from_cells(path: Path, names: Sequence[str], columns: Sequence[list[Any]]) -> pa.Table:
    """Return a table from cells; mixed numbers become floats, and other mixed types text."""
    arrays = []
    for name, cells in zip(names, columns, strict=True):
        try:
            arrays.append(pa.array(cells))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            kinds = {type(cell) for cell in cells if cell is not None}
            if kinds <= {int, float}:
                arrays.append(pa.array([None if c is None else float(c) for c in cells]))
            elif bytes in kinds:
                raise InputError(
                    f"Column {shown(name)} of {path.name} contains bytes; convert it to text or "
                    "numbers."
                ) from None
            else:
                arrays.append(pa.array([None if cell is None else str(cell) for cell in cells]))
    return pa.Table.from_arrays(arrays, names=list(names))


def _read_json_lines(path: Path, packed: str | None) -> pa.Table:
    import pyarrow.json as pj

    with pa.input_stream(str(path), compression=packed) as file:
        start = file.read(1 << 12).lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"["):
        raise InputError(
            f"{path.name} is a single JSON array; write one object per line instead (JSON lines)."
        )
    if not start.startswith(b"{"):
        raise InputError(f"{path.name} is not a JSON-lines file: every line must be a JSON object.")
    _check_depth(path, packed)
    try:
        with pa.input_stream(str(path), compression=packed) as file:
            return pj.read_json(file, read_options=pj.ReadOptions(block_size=LONGEST))
    except (pa.ArrowException, OSError, ValueError) as error:
        # Arrow's message may quote the data; only the row number is taken from it.
        row = re.search(r"in row (\d+)", str(error))
        where = f" (first error in row {row[1]})" if row else ""
        raise InputError(
            f"{path.name} cannot be read as JSON lines{where}: every line must be one JSON object, "
            "and each name must have the same type in all lines."
        ) from error


def _check_depth(path: Path, packed: str | None) -> None:
    """Raise an error for deep nesting: Arrow's parser overflows at about 10,000 levels."""
    most = 100  # no table of people is nested like that
    with pa.input_stream(str(path), compression=packed) as file:
        for row, line in enumerate(io.BufferedReader(file)):
            if line.count(b"[") + line.count(b"{") <= most:
                continue
            depth = deepest = 0
            for mark in re.findall(rb"[][{}]", _QUOTED.sub(b"", line)):
                depth += 1 if mark in b"[{" else -1
                deepest = max(deepest, depth)
            if deepest > most:
                raise InputError(f"{path.name} is nested too deeply in row {row:,}; flatten it.")


def _check_whole(path: Path, table: pa.Table, kind: str) -> None:
    """Validate UTF-8 text and buffer offsets before use."""
    try:
        table.validate(full=True)
    except (pa.ArrowException, UnicodeDecodeError) as error:  # in cells, and in names
        if isinstance(error, UnicodeDecodeError) or "UTF8" in str(error):
            raise not_utf8(path.name) from error
        raise not_whole(path.name, kind) from error


_WHOLE: dict[str, Callable[[Path], pa.Table]] = {
    "Parquet": _read_parquet,
    "Arrow": _read_arrow,
    "ORC": _read_orc,
}
_INSIDE: dict[str, Callable[[Path, str | None], pa.Table]] = {
    "Excel": _read_workbook,
    "SQLite": _read_sqlite,
    "DuckDB": _read_duckdb,
}

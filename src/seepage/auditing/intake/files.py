"""Read the file an audit is about, whatever its format, into one table of typed columns.

What is wrong with a file is said in one sentence, without any cell of it.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from seepage.errors import InputError, not_utf8, not_whole
from seepage.tables.columns import Column, decoded, is_text
from seepage.tables.names import counted, listed, printable, unique

MISSING = ("", "NA", "NaN", "nan", "null", "None", "?")

_FORMATS = {
    ".csv": "CSV",
    ".txt": "CSV",
    ".data": "CSV",
    ".tsv": "TSV",
    ".parquet": "Parquet",
    ".pq": "Parquet",
    ".arrow": "Arrow",
    ".feather": "Arrow",
    ".ipc": "Arrow",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".json": "JSON lines",
}
_USUAL = {"Parquet": ".parquet", "Arrow": ".feather"}
_SIGNS = {
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"FEA1": "Feather V1",
    b"PK\x03\x04": "zip archive (or Excel workbook)",
    b"\x1f\x8b": "gzip archive",
    b"BZh": "bzip2 archive",
    b"\x28\xb5\x2f\xfd": "Zstandard archive",
    b"\xfd7zXZ": "xz archive",
    b"%PDF": "PDF document",
    b"SQLite format 3": "SQLite data base",
    b"\x89HDF": "HDF5 file",
}
_JSON_BLOCK = 1 << 24  # bytes; the longest line that can be read
_DEPTH = 100
_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"')
_STEPS = b"seepage.steps"
_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "vertical bars", ",": "commas"}
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_CHUNK = 1 << 20  # bytes decoded at a time
_FIELD = 1 << 24  # characters: the longest cell of the first line


def read_file(
    path: Path,
    header: bool = True,
    names: Sequence[str] | None = None,
    missing: Sequence[str] = MISSING,
) -> pa.Table:
    """Read a CSV, Parquet, Arrow/Feather or JSON-lines file; its extension says which it is.

    White space around text is stripped, text that stands for a missing value becomes one, and
    columns get names that are printable, not empty and all different. What had to be changed is
    told by :func:`steps_of`. ``header`` and ``names`` are for CSV files: whether the first line
    holds the names of the columns, and what to call them instead. A file that cannot be read is
    refused in one sentence, without any cell of it.
    """
    path = Path(path)
    kind = _kind(path)
    if kind not in ("CSV", "TSV") and (names is not None or not header):
        raise InputError(
            f"{path.name} is a {kind} file, which carries its own column names; --no-header and "
            "--names are for CSV files."
        )
    steps: list[str] = []
    if kind in ("CSV", "TSV"):
        table, steps = _read_delimited(path, "," if kind == "CSV" else "\t", header, names, missing)
    else:
        reader: Callable[[Path], pa.Table] = {
            "Parquet": _read_parquet,
            "Arrow": _read_arrow,
            "JSON lines": _read_json_lines,
        }[kind]
        table = reader(path)
        _check_whole(path, table, kind)
    if table.num_columns == 0 or table.num_rows == 0:
        raise InputError(
            f"{path.name} has {counted(table.num_rows, 'row')} and "
            f"{counted(table.num_columns, 'column')}; an audit needs some of both."
        )
    names_now, changed = good_names(table.column_names)
    numbers = kind in ("CSV", "TSV")
    cleaned = [clean_column(column, missing, numbers) for column in table.columns]
    table = pa.Table.from_arrays(cleaned, names=names_now)
    # What the file's writer put there goes: the next reader takes it for ours.
    return table.replace_schema_metadata({_STEPS: json.dumps(steps + changed).encode()})


def steps_of(table: pa.Table) -> tuple[str, ...]:
    """Return what :func:`read_file` had to change, one sentence each."""
    return tuple(json.loads((table.schema.metadata or {}).get(_STEPS, b"[]")))


def _kind(path: Path) -> str:
    """Return the format of a file, having looked at its name and its first bytes."""
    if not path.exists():
        raise InputError(f"There is no file {path}.")
    if path.is_dir():
        raise InputError(f"{path} is a folder; name the file in it.")
    if not path.is_file():
        raise InputError(f"{path} is no ordinary file; save the table in one first.")
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {error.strerror}.") from error
    if not start:
        raise InputError(f"{path.name} is empty: it has no bytes at all.")
    claimed = _FORMATS.get(path.suffix.lower())
    found = next((name for sign, name in _SIGNS.items() if start.startswith(sign)), None)
    if claimed is not None and found in (None, claimed):
        return claimed
    ending = f"the extension {path.suffix!r}" if path.suffix else "no extension"
    if found in _USUAL:
        raise InputError(
            f"{path.name} has {ending}, but its contents are those of a {found} file; rename it to "
            f"{path.with_suffix(_USUAL[found]).name}."
        )
    if found is not None:
        raise InputError(
            f"{path.name} is a {found}, which cannot be read; save the table in it as CSV or "
            "Parquet."
        )
    raise InputError(
        f"{path.name} has {ending}, which says nothing about its format; it should be one of "
        f"{', '.join(_FORMATS)}."
    )


def _read_delimited(
    path: Path,
    delimiter: str,
    header: bool,
    names: Sequence[str] | None,
    missing: Sequence[str],
) -> tuple[pa.Table, list[str]]:
    """Return the table of a text file, and sentences on what a reader should know about it."""
    _check_encoding(path)
    blank, first = _first_line(path, delimiter)
    if len(first) == 1:
        _check_delimiter(path, first[0], delimiter)
    if names is not None and len(names) != len(first):
        raise InputError(
            f"{path.name} has {counted(len(first), 'column')}, but {counted(len(names), 'name')} "
            "were given; name every column once."
        )
    titles = first if header else [f"column {j + 1}" for j in range(len(first))]
    table = _read_text(path, delimiter, missing, blank, skip=1 if header else 0)
    steps = []
    odd = sum(_NUMBER.fullmatch(cell.strip()) is not None for cell in first)
    if header and odd and names is None:
        steps.append(
            f"The first line of {path.name} was taken for column names although "
            f"{counted(odd, 'of them is a number', 'of them are numbers')}: if it is a record, "
            "read the file with --no-header."
        )
    return table.rename_columns([str(n) for n in (titles if names is None else names)]), steps


def _check_encoding(path: Path) -> None:
    """Decode the whole file once: a wrong letter in one cell would be a wrong category."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    for block in _blocks(path):
        if offset == 0 and block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise _not_utf8(path, "it is UTF-16")
        if b"\x00" in block:
            raise InputError(f"{path.name} holds zero bytes: it is no text file, or UTF-16 text.")
        try:
            decoder.decode(block)
        except UnicodeDecodeError as error:
            raise _not_utf8(path, f"near byte {offset + error.start:,}") from error
        offset += len(block)
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise _not_utf8(path, "at its very end") from error


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_CHUNK):
            yield block


def _not_utf8(path: Path, where: str) -> InputError:
    return InputError(
        f"{path.name} is not UTF-8 text ({where}); save it as UTF-8, for example with "
        f"iconv -f WINDOWS-1252 -t UTF-8."
    )


def _first_line(path: Path, delimiter: str) -> tuple[int, list[str]]:
    """Return how many blank lines there are at the top, and the cells of the first other one."""
    before = csv.field_size_limit(_FIELD)
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            for blank, row in enumerate(csv.reader(stream, delimiter=delimiter)):
                if row:
                    return blank, row
    except csv.Error as error:
        raise InputError(f"The first line of {path.name} cannot be read: {error}.") from error
    finally:
        csv.field_size_limit(before)
    raise InputError(f"{path.name} is empty: it has blank lines only.")


def _check_delimiter(path: Path, cell: str, delimiter: str) -> None:
    """Refuse a file of a single column whose name holds another delimiter."""
    found = {mark: cell.count(mark) for mark in _DELIMITERS if mark != delimiter and mark in cell}
    if not found:
        return
    mark = max(found, key=lambda m: found[m])
    advice = (
        "rename it to .tsv" if mark == "\t" else f"save it with {_DELIMITERS[delimiter]} instead"
    )
    raise InputError(
        f"{path.name} seems to be separated by {_DELIMITERS[mark]}, not {_DELIMITERS[delimiter]}: "
        f"its first line is a single cell with {found[mark]:,} of them; {advice}."
    )


def _read_text(
    path: Path, delimiter: str, missing: Sequence[str], blank: int, skip: int
) -> pa.Table:
    bad: list[tuple[int | None, int, int]] = []

    def note(row: Any) -> str:
        bad.append((row.number, row.expected_columns, row.actual_columns))
        return "error"

    def attempt(threads: bool) -> pa.Table:
        return pcsv.read_csv(
            path,
            # The names are set afterwards: Arrow would not take them twice.
            pcsv.ReadOptions(
                use_threads=threads,
                skip_rows=blank,
                autogenerate_column_names=True,
                skip_rows_after_names=skip,
            ),
            pcsv.ParseOptions(
                delimiter=delimiter, newlines_in_values=True, invalid_row_handler=note
            ),
            pcsv.ConvertOptions(
                null_values=[around for m in missing for around in (m, f" {m}", f"{m} ")],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        )

    try:
        return attempt(threads=True)
    except (pa.ArrowException, ValueError) as error:
        if not bad:
            raise InputError(
                f"{path.name} cannot be read as text separated by {_DELIMITERS[delimiter]}; a "
                "quotation mark may be missing or a line be too long."
            ) from error
    bad.clear()
    with suppress(pa.ArrowException, ValueError):
        attempt(threads=False)  # only one thread can say which row it was
    number, expected, actual = bad[0]
    where = "a line" if number is None else f"line {number:,}"
    raise InputError(
        f"{path.name} has {counted(actual, 'cell')} in {where} where the first line has "
        f"{expected:,}: a delimiter or a quotation mark is missing or too many."
    )


def _read_parquet(path: Path) -> pa.Table:
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            return file.read()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise not_whole(path.name, "Parquet") from error


def _read_arrow(path: Path) -> pa.Table:
    try:
        with pa.OSFile(str(path), "rb") as source:
            start = source.read(6)
            source.seek(0)
            is_file = start == b"ARROW1"
            reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
            return reader.read_all()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise not_whole(path.name, "Arrow") from error


def _read_json_lines(path: Path) -> pa.Table:
    import pyarrow.json as pj

    with path.open("rb") as file:
        start = file.read(1 << 12).lstrip(b"\xef\xbb\xbf \t\r\n")
    if start.startswith(b"["):
        raise InputError(
            f"{path.name} is one JSON array; write one object per line instead (JSON lines)."
        )
    if not start.startswith(b"{"):
        raise InputError(f"{path.name} is no JSON-lines file: every line must be a JSON object.")
    _check_depth(path)
    try:
        return pj.read_json(path, read_options=pj.ReadOptions(block_size=_JSON_BLOCK))
    except (pa.ArrowException, OSError, ValueError) as error:
        # Arrow's message may quote the data; the row number is all that is taken from it.
        row = re.search(r"in row (\d+)", str(error))
        where = f" (first in row {row[1]})" if row else ""
        raise InputError(
            f"{path.name} cannot be read as JSON lines{where}: every line must be one JSON object, "
            "with the same type under the same name throughout."
        ) from error


def _check_depth(path: Path) -> None:
    """Refuse deep nesting: Arrow's parser recurses, and overruns its stack some 10,000 down."""
    with path.open("rb") as file:
        for row, line in enumerate(file):
            if line.count(b"[") + line.count(b"{") <= _DEPTH:
                continue
            depth = deepest = 0
            for mark in re.findall(rb"[][{}]", _QUOTED.sub(b"", line)):
                depth += 1 if mark in b"[{" else -1
                deepest = max(deepest, depth)
            if deepest > _DEPTH:
                raise InputError(f"{path.name} is nested too deeply in row {row:,}; flatten it.")


def _check_whole(path: Path, table: pa.Table, kind: str) -> None:
    """Find text that is not UTF-8, and offsets that point outside their buffers, before use."""
    try:
        table.validate(full=True)
    except (pa.ArrowException, UnicodeDecodeError) as error:  # in cells, and in names
        if isinstance(error, UnicodeDecodeError) or "UTF8" in str(error):
            raise not_utf8(path.name) from error
        raise not_whole(path.name, kind) from error


def good_names(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return names that are printable, not empty and all different, and what was changed."""
    steps = []
    cleaned = [printable(name) for name in given]
    empty = [j for j, name in enumerate(cleaned) if not name]
    changed = [
        name for name, old in zip(cleaned, given, strict=True) if name and name != old.strip()
    ]
    if changed:
        steps.append(f"Control characters were taken out of column names: {listed(changed)}.")
    for j in empty:
        cleaned[j] = f"column {j + 1}"
    names = unique(cleaned)
    if empty:
        called = listed([names[j] for j in empty])
        steps.append(f"{counted(len(empty), 'column')} had no name: called {called}.")
    renamed = [new for new, old in zip(names, cleaned, strict=True) if new != old]
    if renamed:
        steps.append(
            f"Several columns had the same name; the later ones are called {listed(renamed)}."
        )
    return names, steps


def clean_column(column: Column, missing: Sequence[str], numbers: bool = False) -> Column:
    """Strip text and mark what is missing; ``numbers`` reads what is nothing else as numbers."""
    column = decoded(column)
    if not is_text(column.type):
        return column
    column = pc.utf8_trim_whitespace(column)
    gone = pc.is_in(column, value_set=pa.array(list(missing), column.type))
    column = pc.if_else(gone, pa.scalar(None, column.type), column)
    for kind in (pa.int64(), pa.float64()) if numbers else ():
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    return column

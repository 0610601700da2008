"""Read comma- or tab-separated text, and say in one sentence what is wrong with what is not."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pcsv

from seepage.errors import InputError
from seepage.tables.names import counted

_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "vertical bars", ",": "commas"}
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_CHUNK = 1 << 20  # bytes decoded at a time
_FIELD = 1 << 24  # characters: the longest cell of the first line


def read_delimited(
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
    table = _read(path, delimiter, missing, blank, skip=1 if header else 0)
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


def _read(path: Path, delimiter: str, missing: Sequence[str], blank: int, skip: int) -> pa.Table:
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

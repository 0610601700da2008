"""Reads an input file of any supported format into one table of typed columns.

The dialect of a text file (separator, decimal mark, encoding) is detected and reported, unless the
caller states it. If a file's numbers can be read in two ways, an error names the option to set.
Error messages name columns, but never quote their cells.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from seepage.auditing.intake.formats import LONGEST, fetched, read_typed, url_of
from seepage.auditing.questions import DECIMALS, THOUSANDS, FileOptions
from seepage.errors import InputError, not_whole
from seepage.support.files import check_input
from seepage.tables.columns import Column, decoded, is_text
from seepage.tables.names import counted, listed, printable, shown, unique

MISSING = ("", "NA", "NaN", "nan", "null", "None", "?")

FORMATS = {
    ".csv": "CSV",
    ".txt": "CSV",
    ".data": "CSV",
    ".tsv": "TSV",
    ".parquet": "Parquet",
    ".pq": "Parquet",
    ".arrow": "Arrow",
    ".feather": "Arrow",
    ".ipc": "Arrow",
    ".orc": "ORC",
    ".jsonl": "JSON lines",
    ".ndjson": "JSON lines",
    ".json": "JSON lines",
    ".xlsx": "Excel",
    ".xlsm": "Excel",
    ".sqlite": "SQLite",
    ".sqlite3": "SQLite",
    ".db": "SQLite",
    ".duckdb": "DuckDB",
}
PACKED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_USUAL = {
    "Parquet": ".parquet",
    "Arrow": ".feather",
    "ORC": ".orc",
    "SQLite": ".sqlite",
    "DuckDB": ".duckdb",
}
# What a file is by its first bytes (for DuckDB, from the ninth on)
_SIGNS = {
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"FEA1": "Feather V1",
    b"ORC": "ORC",
    b"PK\x03\x04": "zip archive (or an Excel workbook with another extension)",
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz archive",
    b"%PDF": "PDF document",
    b"SQLite format 3": "SQLite",
    b"\x89HDF": "HDF5 file",
}
_DUCKDB = (8, b"DUCK")
_TEXT = ("CSV", "TSV")
_STEPS = b"seepage.steps"
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars", " ": "spaces"}
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_CHUNK = 1 << 20  # bytes decoded at a time
_MOST_UNPACKED = 8 * 10**9  # the most bytes of a compressed file
_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")  # bytes that occur in no text file
_NOT_1252 = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")
_LIKE_A_NUMBER = re.compile(r"[-+]?[\d.,' \u00a0\u202f\u2019]*\d([eE][-+]?\d+)?[ \u00a0\u202f]?%?")
_PER_CENT = r"[ \x{a0}\x{202f}]?%$"


def read_file(path: Path, options: FileOptions | None = None) -> pa.Table:
    """Read a file in any of the :data:`FORMATS`, or a URL if ``options`` permit it.

    The format is determined by the extension and checked against the file's first bytes. White
    space around text is stripped, texts that denote missing values become missing, and columns get
    printable, non-empty, unique names. :func:`steps_of` reports what was detected and changed. An
    unreadable file raises an error that does not quote its cells.
    """
    path, options = Path(path), options or FileOptions()
    check_input(path)
    if not path.exists() and (url := url_of(path)) is not None:
        if not options.fsspec:
            raise InputError(
                f"{shown(url)} is a URL, which is fetched only with --fsspec; add that option, or "
                "download the file."
            )
        with fetched(url) as file:
            return read_file(file, options)
    kind, packed = _kind(path)
    steps: list[str] = []
    if kind in _TEXT:
        table, steps = _TextFile(path, kind, packed, options).read()
    else:
        if options.names is not None or not options.header or any(options.dialect):
            raise InputError(
                f"{path.name} is {_a(kind)} file, whose columns and types are fixed; use "
                "--no-header, --names, --separator, --decimal, --thousands and --encoding only "
                "with CSV and TSV files."
            )
        table = _with_clean(read_typed(path, kind, packed, options.sheet), numbers=False)
    if table.num_columns == 0 or table.num_rows == 0:
        raise InputError(
            f"{path.name} has {counted(table.num_rows, 'row')} and "
            f"{counted(table.num_columns, 'column')}; give a file with rows and columns."
        )
    # Memory used by parsing, as much as the table itself, would otherwise stay with the process.
    pa.default_memory_pool().release_unused()
    names_now, changed = good_names(table.column_names)
    return with_steps(table.rename_columns(names_now), steps + changed)


def table_of_frame(frame: Any) -> pa.Table:
    """Return any library's data frame as if it had been read from a file, without its index."""
    import narwhals as nw

    try:
        read = nw.maybe_reset_index(nw.from_native(frame, eager_only=True))
        table = read.to_arrow()
    except (TypeError, ValueError, pa.ArrowException) as problem:
        raise InputError(
            f"The {type(frame).__name__} cannot be read as a table ({str(problem).rstrip('.')}); "
            "pass a data frame in memory, with a single type in each column."
        ) from problem
    if table.num_columns == 0 or table.num_rows == 0:
        raise InputError("The table is empty; pass a table with rows and columns.")
    names_now, changed = good_names([str(name) for name in read.columns])
    return with_steps(_with_clean(table, numbers=False).rename_columns(names_now), changed)


def with_steps(table: pa.Table, steps: Sequence[str]) -> pa.Table:
    """Return a table with notes on how it was read."""
    # Metadata of the file's writer is dropped: the next reader would take it for ours.
    return table.replace_schema_metadata({_STEPS: json.dumps(list(steps)).encode()})


def steps_of(table: pa.Table) -> tuple[str, ...]:
    """Return what :func:`read_file` detected and changed, as one sentence each."""
    return tuple(json.loads((table.schema.metadata or {}).get(_STEPS, b"[]")))


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'AEO' else 'a'} {kind}"


def _kind(path: Path) -> tuple[str, str | None]:
    """Return the format and compression of a file, from its name and first bytes."""
    if not path.exists():
        raise InputError(f"There is no file {path}; check the path.")
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the path of the file in it.")
    if not path.is_file():
        raise InputError(f"{path} is not an ordinary file; save its table in a file first.")
    try:
        with path.open("rb") as file:
            start = file.read(16)
    except OSError as error:
        raise InputError(
            f"{path.name} cannot be read: {error.strerror}; check its permissions."
        ) from error
    if not start:
        raise InputError(f"{path.name} is empty (0 bytes); check that it was saved.")
    inner = path.with_suffix("") if path.suffix.lower() in PACKED else path
    claimed = FORMATS.get(inner.suffix.lower())
    found = next((name for sign, name in _SIGNS.items() if start.startswith(sign)), None)
    if start.startswith(_DUCKDB[1], _DUCKDB[0]):
        found = "DuckDB"
    if found in PACKED.values() and claimed in (*_TEXT, "JSON lines"):
        return claimed, found
    if inner != path and found is None:
        raise not_whole(path.name, PACKED[path.suffix.lower()])
    if claimed == "Excel" and found is not None and found.startswith("zip"):
        return claimed, None
    if claimed in ("SQLite", "DuckDB") and found in ("SQLite", "DuckDB"):
        return found, None  # both are called .db
    if claimed is not None and found in (None, claimed):
        return claimed, None
    ending = f"the extension {path.suffix!r}" if path.suffix else "no extension"
    if found in _USUAL:
        raise InputError(
            f"{path.name} has {ending}, but it is {_a(found)} file; rename it to "
            f"{path.with_suffix(_USUAL[found]).name}."
        )
    if found in PACKED.values():
        raise InputError(
            f"{path.name} is compressed ({found}), but its name does not show its format; rename "
            "it, for instance to table.csv.gz."
        )
    if found is not None:
        raise InputError(
            f"{path.name} is a {found}, which cannot be read; save its table as CSV or Parquet."
        )
    raise InputError(
        f"{path.name} has {ending}, which is not a supported format; convert it to one of "
        f"{', '.join(FORMATS)}."
    )


class _TextFile:
    """A text file with separated columns, and its stated or detected dialect."""

    def __init__(self, path: Path, kind: str, packed: str | None, given: FileOptions) -> None:
        self.path, self.packed, self.given = path, packed, given
        self.usual = "," if kind == "CSV" else "\t"
        self.steps: list[str] = []
        self.encoding = self._find_encoding() if given.encoding is None else given.encoding
        if given.encoding is not None:
            self._check_given_encoding()
        self.separator = given.separator or self._find_separator()
        self.blank, self.first = self._first_line()
        self.skip = int(given.header)  # lines to skip after blank ones

    def read(self) -> tuple[pa.Table, list[str]]:
        """Return the table, and sentences that describe how it was read."""
        first, path, header = self.first, self.path, self.given.header
        names = None
        if self.given.names is not None:
            names = [name.strip() for name in self.given.names.split(",")]
        if names is not None and len(names) != len(first):
            raise InputError(
                f"{path.name} has {counted(len(first), 'column')}, but "
                f"--names gives {counted(len(names), 'name')}; give one name per column."
            )
        if header and all(len(n) > 2 and n[0] == n[-1] == "'" for n in first):
            first = [name[1:-1] for name in first]
            self.steps.append("The apostrophes around the column names were removed.")
        titles = first if header else [f"column {j + 1}" for j in range(len(first))]
        titles = list(titles if names is None else names)
        # With decimal commas stated, a point is not a decimal mark, whatever a cast would do.
        table = _with_clean(self._parse(), numbers=self.given.decimal_mark != ",")
        table = self._with_numbers(table, titles)
        odd = sum(_NUMBER.fullmatch(cell.strip()) is not None for cell in first)
        if header and odd and names is None:
            self.steps.append(
                f"The first line of {path.name} was read as column names, although "
                f"{counted(odd, 'of them is a number', 'of them are numbers')}; if that line is a "
                "record, use --no-header."
            )
        return table.rename_columns(titles), self.steps

    # How it is encoded ------------------------------------------------------------------------

    def _open(self) -> pa.NativeFile:
        return pa.input_stream(str(self.path), compression=self.packed)

    def _blocks(self) -> Iterator[bytes]:
        """Yield the decompressed bytes of the file."""
        size = 0
        try:
            with self._open() as file:
                while block := file.read(_CHUNK):
                    yield block
                    size += len(block)
                    if self.packed and size > _MOST_UNPACKED:
                        raise InputError(
                            f"{self.path.name} is larger than {_MOST_UNPACKED / 1e9:g} GB after "
                            "decompression; decompress it, and convert it to Parquet."
                        )
        except (OSError, pa.ArrowException) as error:
            raise not_whole(self.path.name, self.packed or "text") from error

    def _find_encoding(self) -> str:
        """Decode the whole file to find its encoding, since one wrong letter changes a category.

        If the first non-ASCII letter is not valid UTF-8, the text is read as Windows-1252, the
        usual encoding of such files. An error is raised if only a later letter is invalid, or if
        Windows-1252 does not define some byte.
        """
        decoder = codecs.getincrementaldecoder("utf-8")()
        offset = letters = 0
        where = ""
        for block in self._blocks():
            if offset == 0 and block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                self.steps.append("The text is UTF-16.")
                return "utf-16"
            if b"\x00" in block:
                raise InputError(
                    f"{self.path.name} contains zero bytes, so it is either not text or UTF-16; "
                    "for UTF-16, use --encoding utf-16-le (or utf-16-be)."
                )
            if not where:
                try:
                    letters += len(block) - len(decoder.decode(block))
                except UnicodeDecodeError as error:
                    at = error.start
                    with suppress(UnicodeDecodeError):
                        letters += at - len(block[:at].decode())
                    where = f"near byte {offset + at:,}"
            if where and (letters or _NO_TEXT.search(block) or _NOT_1252.search(block)):
                raise self._not_utf8(where)
            offset += len(block)
        if where:
            self.steps.append(
                "The text is not UTF-8 and was read as Windows-1252 (cp1252), the usual encoding "
                "of such files; if letters look wrong, set another encoding with --encoding."
            )
            return "cp1252"
        try:
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise self._not_utf8("at its very end") from error
        return "utf-8"

    def _check_given_encoding(self) -> None:
        try:
            decoder = codecs.getincrementaldecoder(self.encoding)()
            for block in self._blocks():
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except (UnicodeError, LookupError) as error:
            raise InputError(
                f"{self.path.name} is not valid text in the encoding {shown(self.encoding)}; omit "
                "--encoding to have it detected."
            ) from error

    def _not_utf8(self, where: str) -> InputError:
        return InputError(
            f"{self.path.name} is not UTF-8 text ({where}); state its encoding with --encoding, or "
            "convert it to UTF-8, for example with iconv -f WINDOWS-1252 -t UTF-8."
        )

    # What separates its columns -----------------------------------------------------------------

    def _stream(self) -> io.TextIOWrapper:
        encoding = "utf-8-sig" if self.encoding == "utf-8" else self.encoding
        return io.TextIOWrapper(self._open(), encoding=encoding, newline="")

    def _find_separator(self) -> str:
        """Return the separator that splits each of the first lines into the same number of cells.

        The number of cells must be at least two. If several separators qualify, an error is raised.
        If none does, the usual separator is returned, unless only another one splits the first
        line.
        """
        with self._stream() as stream:
            sample, cut = stream.read(1 << 16), bool(stream.read(1))
        cells: dict[str, list[int]] = {}  # of the first lines, without one that is cut off
        before = csv.field_size_limit(LONGEST)
        for mark in _SEPARATORS:
            cells[mark] = []
            with suppress(csv.Error):
                lines = csv.reader(io.StringIO(sample, newline=""), delimiter=mark)
                counts = [len(row) for row in lines if row]
                cells[mark] = (counts[:-1] if cut else counts)[:100]
        csv.field_size_limit(before)
        fits = [m for m, c in cells.items() if c and c[0] > 1 and len(set(c)) == 1]
        fits = [m for m in fits if m != " "] or fits  # names and texts contain spaces anyway
        if len(fits) > 1:
            ways = " or ".join(_SEPARATORS[mark] for mark in fits)
            raise InputError(
                f"{self.path.name} may be separated by {ways}: each splits the first lines into "
                "equal numbers of cells; choose one with --separator."
            )
        if not fits:  # some line is odd, which the reader will report
            cells.pop(" ")
            most = max(cells, key=lambda mark: (cells[mark] or [0])[0])
            usual = (cells[self.usual] or [0])[0] > 1 or (cells[most] or [0])[0] < 2
            fits = [self.usual if usual else most]
        if fits[0] != self.usual:
            self.steps.append(f"The columns are separated by {_SEPARATORS[fits[0]]}.")
        return fits[0]

    def _first_line(self) -> tuple[int, list[str]]:
        """Return the number of leading blank lines, and the cells of the first non-blank line."""
        before = csv.field_size_limit(LONGEST)
        try:
            with self._stream() as stream:
                for blank, row in enumerate(csv.reader(stream, delimiter=self.separator)):
                    if row:
                        return blank, row
        except csv.Error as error:
            raise InputError(
                f"The first line of {self.path.name} cannot be read: {error}. Correct the file."
            ) from error
        finally:
            csv.field_size_limit(before)
        raise InputError(f"{self.path.name} has only blank lines; check that it was saved.")

    # Its cells ----------------------------------------------------------------------------------

    def _parse(self, texts: Sequence[int] = ()) -> pa.Table:
        """Return the columns under generated names; with ``texts``, only those columns, as text."""
        bad: list[tuple[int | None, int, int]] = []
        as_text = {f"f{j}": pa.string() for j in texts}

        def note(row: Any) -> str:
            bad.append((row.number, row.expected_columns, row.actual_columns))
            return "error"

        options = (
            pcsv.ParseOptions(
                delimiter=self.separator, newlines_in_values=True, invalid_row_handler=note
            ),
            pcsv.ConvertOptions(
                null_values=[a for m in MISSING for a in (m, f" {m}", f"{m} ")],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
                decimal_point=self.given.decimal_mark or ".",
                column_types=as_text,
                include_columns=list(as_text),
            ),
        )

        def attempt(read: Callable[..., pa.Table], threads: bool = True) -> pa.Table:
            # The names are set afterwards: Arrow would not take them twice.
            how = pcsv.ReadOptions(
                use_threads=threads,
                skip_rows=self.blank,
                autogenerate_column_names=True,
                skip_rows_after_names=self.skip,
                encoding=self.encoding,
            )
            with self._open() as file:
                return read(file, how, *options)

        # The types of the first block mostly suit all blocks. Where they do not, all blocks are
        # kept as text until a type is found that does.
        with suppress(pa.ArrowException, ValueError, OSError):
            return attempt(lambda *given: pcsv.open_csv(*given).read_all())
        bad.clear()
        try:
            return attempt(pcsv.read_csv)
        except (pa.ArrowException, ValueError, OSError) as error:
            if not bad:
                marks = _SEPARATORS.get(self.separator, repr(self.separator))
                raise InputError(
                    f"{self.path.name} cannot be read as text separated by {marks}; a quotation "
                    "mark may be missing, or a line may be too long. Correct the file."
                ) from error
        bad.clear()
        with suppress(pa.ArrowException, ValueError):
            attempt(pcsv.read_csv, threads=False)  # only one thread can say which row it was
        number, expected, actual = bad[0]
        where = "a line" if number is None else f"line {number:,}"
        raise InputError(
            f"{self.path.name} has {counted(actual, 'cell')} in {where}, but the first line has "
            f"{expected:,}; correct the separators and quotation marks in that line."
        )

    # Its numbers --------------------------------------------------------------------------------

    def _with_numbers(self, table: pa.Table, titles: Sequence[str]) -> pa.Table:
        """Convert text columns that contain only numbers to numeric columns.

        A file has one decimal mark: the one with which every such column can be read. If there is
        none, or numbers can be read in two ways, an error is raised, unless the caller states the
        mark.
        """
        found = {
            j: written
            for j, column in enumerate(table.columns)
            if is_text(column.type) and (written := _Written.of(column, self.given.thousands))
        }
        decimal = self.given.decimal_mark
        if decimal is None:
            doubtful = []  # decimal marks may separate thousands: 23.456 may mean 23456
            for j, column in enumerate(table.columns):
                if pa.types.is_floating(column.type) and len(column.drop_null()):
                    values = np.abs(np.asarray(column.drop_null()))
                    rounded = np.abs(1000 * values - np.round(1000 * values)) < 1e-6
                    if np.all((values >= 1) & (values < 1000) & rounded):
                        doubtful.append(j)
            if doubtful:
                texts = _with_clean(self._parse(doubtful), numbers=False)
                for j, column in zip(doubtful, texts.columns, strict=True):
                    written = _Written.of(column, None)
                    if written is not None and len(written.groups) == 2:
                        found[j] = written
        if not found:
            return table
        if decimal is None:
            decimal = self._find_decimal(table, found, titles)
        for j, written in found.items():
            if decimal in written.groups:
                table = table.set_column(j, table.column_names[j], written.numbers(decimal))
        self._tell_numbers(decimal, found, titles)
        return table

    def _find_decimal(
        self, table: pa.Table, found: Mapping[int, _Written], titles: Sequence[str]
    ) -> str:
        """Return the decimal mark with which every column of numbers can be read."""
        forced: dict[str, int] = {}
        for j, column in enumerate(table.columns):
            if j not in found and pa.types.is_floating(column.type):
                forced.setdefault(".", j)
            elif j in found and len(found[j].groups) == 1:
                forced.setdefault(next(iter(found[j].groups)), j)
        if len(forced) == 2:
            raise InputError(
                f"{self.path.name} has decimal points in column {shown(titles[forced['.']])} and "
                f"decimal commas in column {shown(titles[forced[',']])}; choose one with "
                "--decimal, and the other column will be read as text."
            )
        open_ = [j for j, written in found.items() if written.ambiguous]
        if forced or not open_:
            return next(iter(forced), ".")
        first = shown(titles[open_[0]])
        if self.separator == "," and not any(found[j].commas for j in open_):
            return "."
        mark = "," if found[open_[0]].commas else "."
        raise InputError(
            f"Column {first} of {self.path.name} can be read in two ways: every "
            f"{THOUSANDS[mark][:-1]} in it precedes exactly three digits, so it may separate "
            f"thousands or decimals. Use --thousands '{mark}' or --decimal '{mark}'."
        )

    def _tell_numbers(
        self, decimal: str, found: Mapping[int, _Written], titles: Sequence[str]
    ) -> None:
        read = {j: written for j, written in found.items() if decimal in written.groups}
        stated = self.given.decimal_mark is not None
        by = "as requested" if stated else "since every column of numbers can be read in this way"
        if decimal == "," and read:
            self.steps.append(f"Numbers were read with decimal commas, {by}.")
        grouped = [j for j, written in read.items() if written.groups[decimal]]
        for mark in dict.fromkeys(read[j].groups[decimal] for j in grouped):
            names = listed([titles[j] for j in grouped if read[j].groups[decimal] == mark])
            self.steps.append(
                f"{THOUSANDS[str(mark)].capitalize()} were read as thousands separators in {names}."
            )
        cent = [titles[j] for j, written in read.items() if written.per_cent]
        if cent:
            self.steps.append(f"Per cent signs were removed from the numbers in {listed(cent)}.")
        doubt = [titles[j] for j, w in read.items() if w.ambiguous and w.groups[decimal] is None]
        if doubt and not stated:
            why = (
                "commas separate the columns"
                if self.separator == ","
                else "other columns use it as the decimal mark"
            )
            self.steps.append(
                f"In {listed(doubt)}, a {THOUSANDS[decimal][:-1]} that always precedes three "
                f"digits was read as the decimal mark, since {why}. If the mark separates "
                f"thousands, use --thousands '{decimal}'."
            )


@dataclass(frozen=True, eq=False)
class _Written:
    """A text column that contains numbers, with the decimal marks that it may have."""

    text: Column  # without per cent signs
    per_cent: bool
    groups: Mapping[str, str | None]  # for each decimal mark, what stands between groups of digits
    commas: bool  # whether it has a comma

    @classmethod
    def of(cls, column: Column, thousands: str | None) -> _Written | None:
        """Return how a column's numbers are written, or ``None`` if not all texts are numbers."""
        texts = pc.unique(column.drop_null())
        if not len(texts) or not all(map(_LIKE_A_NUMBER.fullmatch, texts[:100].to_pylist())):
            return None
        per_cent = bool(pc.all(pc.match_substring_regex(texts, _PER_CENT)).as_py())
        if per_cent:
            texts = pc.replace_substring_regex(texts, _PER_CENT, "")
            column = pc.replace_substring_regex(column, _PER_CENT, "")
        marks = [None, *THOUSANDS] if thousands is None else [thousands]
        groups: dict[str, str | None] = {}
        for decimal in DECIMALS:
            for mark in marks:
                if mark == decimal or decimal in groups:
                    continue
                if pc.all(pc.match_substring_regex(texts, _number(decimal, mark))).as_py():
                    groups[decimal] = mark
        commas = bool(pc.any(pc.match_substring(texts, ",")).as_py())
        return cls(column, per_cent, groups, commas) if groups else None

    @property
    def ambiguous(self) -> bool:
        """Whether different decimal marks give different numbers."""
        return len(self.groups) == 2 and (None in self.groups.values())

    def numbers(self, decimal: str) -> Column:
        """Return the numbers, read with this decimal mark."""
        text, mark = self.text, self.groups[decimal]
        if mark is not None:
            text = pc.replace_substring(text, mark, "")
        text = pc.replace_substring(text, decimal, ".")
        with suppress(pa.ArrowInvalid):
            return text.cast(pa.int64())
        return text.cast(pa.float64())


def _number(decimal: str, mark: str | None) -> str:
    """Return the regular expression of numbers with this decimal mark and thousands separator."""
    digits = r"\d+" if mark is None else rf"(\d+|[1-9]\d{{0,2}}({re.escape(mark)}\d{{3}})+)"
    point = re.escape(decimal)
    return rf"^[-+]?({digits}({point}\d+)?|{point}\d+)([eE][-+]?\d+)?$"


def _with_clean(table: pa.Table, numbers: bool) -> pa.Table:
    cleaned = [clean_column(column, numbers) for column in table.columns]
    return pa.Table.from_arrays(cleaned, names=table.column_names)


def good_names(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return printable, non-empty, unique names, and sentences on what was changed."""
    steps = []
    cleaned = [printable(name) for name in given]
    empty = [j for j, name in enumerate(cleaned) if not name]
    changed = [
        name for name, old in zip(cleaned, given, strict=True) if name and name != old.strip()
    ]
    if changed:
        steps.append(f"Control characters were removed from column names: {listed(changed)}.")
    for j in empty:
        cleaned[j] = f"column {j + 1}"
    names = unique(cleaned)
    if empty:
        called = listed([names[j] for j in empty])
        had = counted(len(empty), "column without a name was", "columns without a name were")
        steps.append(f"{had} named {called}.")
    renamed = [new for new, old in zip(names, cleaned, strict=True) if new != old]
    if renamed:
        steps.append(
            f"Several columns had the same name; the later ones are called {listed(renamed)}."
        )
    return names, steps


def clean_column(column: Column, numbers: bool = False) -> Column:
    """Strip text and mark missing values; with ``numbers``, convert columns of numbers."""
    column = decoded(column)
    if not is_text(column.type):
        return column
    column = pc.utf8_trim_whitespace(column)
    gone = pc.is_in(column, value_set=pa.array(MISSING, column.type))
    column = pc.if_else(gone, pa.scalar(None, column.type), column)
    for kind in (pa.int64(), pa.float64()) if numbers else ():
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    return column

"""Every dialect and every format of a table in a file: read right and said, or refused.

The table in ``docs/how-to/files.md`` is made of these cases; after a change,
``python tests/auditing/intake/test_file_formats.py`` writes it again.
"""

from __future__ import annotations

import bz2
import gzip
import json
import os
import re
import sqlite3
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from seepage.auditing.intake import files
from seepage.auditing.intake.files import FORMATS, read_file, steps_of
from seepage.auditing.questions import FileOptions
from seepage.errors import InputError

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "files.md"
BEGIN, END = "<!-- formats: begin -->", "<!-- formats: end -->"
TOWN = ["Köln", "Bonn", "Bonn"]
AGE = [31, 47, 8]
DOSE = [0.5, 1.25, -3.5]
TABLE = pa.table({"town": TOWN, "age": AGE, "dose": DOSE})


@dataclass(frozen=True)
class Case:
    """A file, how it is read, and what its column of numbers must be (or the refusal)."""

    what: str
    name: str
    content: bytes | Callable[[Path], None]
    numbers: list[float] | None
    said: str
    options: str = ""

    def write(self, folder: Path) -> Path:
        path = folder / self.name
        if callable(self.content):
            self.content(path)
        else:
            path.write_bytes(self.content)
        return path

    def line(self) -> str:
        """Return what the page says: the case, and the option it needs or may be changed by."""
        asked = [self.options] if self.options else re.findall(r"--[a-z]+", self.said)
        return self.what + (f" (`{'` or `'.join(dict.fromkeys(asked))}`)" if asked else "")

    def outcome(self) -> str:
        if self.numbers is None:
            return "Refused without an option"
        return "Read, and the report says how" if self.said else "Read without a remark"


def lines(*numbers: str, mark: str = ",", encoding: str = "utf-8") -> bytes:
    rows = [
        mark.join(["town", "x"]),
        *(mark.join(pair) for pair in zip(TOWN, numbers, strict=True)),
    ]
    return ("\n".join(rows) + "\n").encode(encoding)


def grouped(name: str, number: str, said: str, mark: str = ",") -> Case:
    """Return a case whose numbers have a mark, the number's second character, between digits."""
    cells = (number, "12", f"-23{number[1]}456")
    cells = tuple(f'"{cell}"' if mark in cell else cell for cell in cells)
    content = lines(*cells, mark=mark)
    return Case(f"`{number}`", f"{name}.csv", content, [1234.5, 12, -23456], said)


def workbook(path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in [["town", "x"], *zip(TOWN, DOSE, strict=True)]:
        book.active.append(list(row))
    book.create_sheet("notes").append(["nothing"])
    book.save(path)


def sqlite(path: Path) -> None:
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE people (town TEXT, x REAL)")
    base.executemany("INSERT INTO people VALUES (?, ?)", list(zip(TOWN, DOSE, strict=True)))
    base.commit()
    base.close()


def duckdb(path: Path) -> None:
    library = pytest.importorskip("duckdb")
    base = library.connect(str(path))
    base.execute("CREATE TABLE people (town VARCHAR, x DOUBLE)")
    base.executemany("INSERT INTO people VALUES (?, ?)", list(zip(TOWN, DOSE, strict=True)))
    base.close()


def arrow(write: Callable[[pa.Table, Path], object]) -> Callable[[Path], None]:
    def write_it(path: Path) -> None:
        write(pa.table({"town": TOWN, "x": DOSE}), path)

    return write_it


def json_lines(table: pa.Table, path: Path) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()), "utf-8")


PLAIN = lines("0.5", "1.25", "-3.5")
POINTS = ("23.456", "1.234", "7.891")
AS_DECIMALS, AS_THOUSANDS = [23.456, 1.234, 7.891], [23456, 1234, 7891]
BOTH = b"town;x;share\nK\xc3\xb6ln;23.456;0,5\nBonn;1.234;0,25\nBonn;7.891;0,75\n"
OTHER = b"town;x;share\nK\xc3\xb6ln;23.456;0.5\nBonn;1.234;0.25\nBonn;7.891;0.75\n"
MIXED = b"town;x;share\nK\xc3\xb6ln;2,5;0.5\nBonn;1,5;0.25\nBonn;7,5;0.75\n"
SEMI = "The columns are separated by semicolons."
COMMAS = (
    "Numbers were read with decimal commas, since every column of numbers can be read in this way."
)
ASKED = "Numbers were read with decimal commas, as requested."
GROUPED = "{} were read as thousands separators in 'x'."
TWO_WAYS = (
    "Column 'x' of {} can be read in two ways: every {} in it precedes exactly three digits, so "
    "it may separate thousands or decimals. Use --thousands '{}' or --decimal '{}'."
)
WINDOWS = (
    "The text is not UTF-8 and was read as Windows-1252 (cp1252), the usual encoding of such "
    "files; if letters look wrong, set another encoding with --encoding."
)
DOUBT = (
    "In 'x', a point that always precedes three digits was read as the decimal mark, since "
    "{}. If the mark separates thousands, use --thousands '.'."
)

CASES = [
    Case("commas", "people.csv", PLAIN, DOSE, ""),
    Case("tabs", "people.tsv", lines("0.5", "1.25", "-3.5", mark="\t"), DOSE, ""),
    Case(
        "tabs in a CSV file",
        "tabs.csv",
        lines("0.5", "1.25", "-3.5", mark="\t"),
        DOSE,
        "The columns are separated by tabs.",
    ),
    Case("semicolons", "semicolons.csv", lines("0.5", "1.25", "-3.5", mark=";"), DOSE, SEMI),
    Case(
        "vertical bars",
        "bars.csv",
        lines("0.5", "1.25", "-3.5", mark="|"),
        DOSE,
        "The columns are separated by vertical bars.",
    ),
    Case(
        "names in apostrophes",
        "apostrophes.csv",
        b"'town','x'\nK\xc3\xb6ln,0.5\nBonn,1.25\nBonn,-3.5\n",
        DOSE,
        "The apostrophes around the column names were removed.",
    ),
    Case(
        "spaces",
        "spaced.txt",
        lines("0.5", "1.25", "-3.5", mark=" "),
        DOSE,
        "The columns are separated by spaces.",
    ),
    Case(
        "another mark",
        "colons.csv",
        lines("0.5", "1.25", "-3.5", mark=":"),
        DOSE,
        "",
        "--separator :",
    ),
    Case(
        "two possible separators",
        "either.csv",
        b"town,x;y,z\nBonn,1;2,3\n",
        None,
        "either.csv may be separated by commas or semicolons: each splits the first lines into "
        "equal numbers of cells; choose one with --separator.",
    ),
    Case(
        "decimal commas",
        "decimals.csv",
        lines("0,5", "1,25", "-3,5", mark=";"),
        DOSE,
        f"{SEMI} {COMMAS}",
    ),
    grouped("both", "1.234,5", f"{SEMI} {COMMAS} {GROUPED.format('Points')}", mark=";"),
    grouped("english", "1,234.5", GROUPED.format("Commas")),
    grouped("spaces", "1 234,5", f"{SEMI} {COMMAS} {GROUPED.format('Spaces')}", mark=";"),
    grouped("swiss", "1'234.5", f"{SEMI} {GROUPED.format('Apostrophes')}", mark=";"),
    Case(
        "`23.456` beside decimal commas",
        "german.csv",
        BOTH,
        AS_THOUSANDS,
        f"{SEMI} {COMMAS} {GROUPED.format('Points')}",
    ),
    Case(
        "`23.456` beside decimal points",
        "points.csv",
        OTHER,
        AS_DECIMALS,
        f"{SEMI} {DOUBT.format('other columns use it as the decimal mark')}",
    ),
    Case(
        "`23.456` in a file of commas",
        "three.csv",
        lines(*POINTS),
        AS_DECIMALS,
        DOUBT.format("commas separate the columns"),
    ),
    Case(
        "`23.456` in an ambiguous file",
        "open.csv",
        lines(*POINTS, mark=";"),
        None,
        TWO_WAYS.format("open.csv", "point", ".", "."),
    ),
    Case(
        "`23.456` as thousands",
        "thousands.csv",
        lines(*POINTS, mark=";"),
        AS_THOUSANDS,
        f"{SEMI} {ASKED} {GROUPED.format('Points')}",
        "--thousands .",
    ),
    Case(
        "`23.456` as decimals",
        "decided.csv",
        lines(*POINTS, mark=";"),
        AS_DECIMALS,
        SEMI,
        "--decimal .",
    ),
    Case(
        "`23,456` in quotation marks",
        "quoted.csv",
        lines('"23,456"', '"1,234"', '"7,891"'),
        None,
        TWO_WAYS.format("quoted.csv", "comma", ",", ","),
    ),
    Case(
        "both decimal marks",
        "mixed.csv",
        MIXED,
        None,
        "mixed.csv has decimal points in column 'share' and decimal commas in column 'x'; choose "
        "one with --decimal, and the other column will be read as text.",
    ),
    Case(
        "`25.3%`",
        "percent.csv",
        lines("25.3%", "1%", "0.5 %"),
        [25.3, 1, 0.5],
        "Per cent signs were removed from the numbers in 'x'.",
    ),
    Case(
        "`25,3 %`",
        "prozent.csv",
        lines("25,3 %", "1 %", "0,5 %", mark=";"),
        [25.3, 1, 0.5],
        f"{SEMI} {COMMAS} Per cent signs were removed from the numbers in 'x'.",
    ),
    Case(
        "Windows-1252",
        "windows.csv",
        lines("0.5", "1.25", "-3.5", encoding="cp1252"),
        DOSE,
        WINDOWS,
    ),
    Case(
        "UTF-16",
        "utf16.csv",
        lines("0.5", "1.25", "-3.5", encoding="utf-16"),
        DOSE,
        "The text is UTF-16.",
    ),
    Case(
        "an encoding that is named",
        "dos.csv",
        lines("0.5", "1.25", "-3.5", encoding="cp437"),
        DOSE,
        "",
        "--encoding cp437",
    ),
    Case(
        "damaged UTF-8",
        "damaged.csv",
        PLAIN + b"K\xf6ln,2\n",
        None,
        "damaged.csv is not UTF-8 text (near byte 38); state its encoding with --encoding, or "
        "convert it to UTF-8, for example with iconv -f WINDOWS-1252 -t UTF-8.",
    ),
    Case("gzip", "people.csv.gz", gzip.compress(PLAIN, mtime=0), DOSE, ""),
    Case("Zstandard", "people.csv.zst", pa.compress(PLAIN, "zstd", asbytes=True), DOSE, ""),
    Case("bzip2", "people.csv.bz2", bz2.compress(PLAIN), DOSE, ""),
    Case("Parquet", "people.parquet", arrow(pq.write_table), DOSE, ""),
    Case("Feather (Arrow)", "people.feather", arrow(feather.write_feather), DOSE, ""),
    Case("ORC", "people.orc", arrow(orc.write_table), DOSE, ""),
    Case("JSON lines", "people.jsonl", arrow(json_lines), DOSE, ""),
    Case(
        "Excel, several sheets",
        "book.xlsx",
        workbook,
        None,
        "book.xlsx contains 2 sheets ('Sheet', 'notes'); choose one with --sheet.",
    ),
    Case("Excel", "people.xlsx", workbook, DOSE, "", "--sheet Sheet"),
    Case("SQLite", "people.sqlite", sqlite, DOSE, ""),
    Case("DuckDB", "people.duckdb", duckdb, DOSE, ""),
]


def options_of(case: Case) -> FileOptions:
    name, _, value = case.options.partition(" ")
    key = name.removeprefix("--")
    return FileOptions(**{key: value}) if key else FileOptions()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_a_file_is_read_right_and_said_or_refused(case, tmp_path):
    path = case.write(tmp_path)
    if case.numbers is None:
        with pytest.raises(InputError) as caught:
            read_file(path, options_of(case))
        assert str(caught.value) == case.said
        return
    table = read_file(path, options_of(case))
    assert " ".join(steps_of(table)) == case.said
    assert table.column("x").to_pylist() == case.numbers
    assert table.column("town").to_pylist() == TOWN


def made() -> str:
    outcomes: dict[str, list[str]] = {}
    for case in CASES:
        outcomes.setdefault(case.outcome(), []).append(case.line())
    rows = [f"|{outcome}|{'; '.join(lines)}|" for outcome, lines in outcomes.items()]
    return "\n".join([BEGIN, "|outcome|files|", "|---|---|", *rows, END])


def test_the_page_has_this_table():
    assert made() in PAGE.read_text("utf-8")
    named = {case.name.rpartition(".")[2] for case in CASES}
    assert {".csv", ".tsv", ".parquet", ".feather", ".orc", ".jsonl", ".xlsx"} < set(FORMATS)
    assert {"gz", "zst", "bz2", "sqlite", "duckdb"} < named


def test_a_url_is_fetched_only_where_asked(tmp_path):
    path = tmp_path / "people.csv"
    path.write_bytes(PLAIN)
    url = Path(f"file://{path}")
    with pytest.raises(InputError, match="is fetched only with --fsspec"):
        read_file(url)
    assert read_file(url, FileOptions(fsspec=True)).column("x").to_pylist() == DOSE
    with pytest.raises(InputError, match="cannot be fetched"):
        read_file(Path(f"file://{tmp_path}/gone.csv"), FileOptions(fsspec=True))
    with pytest.raises(InputError, match="cannot be fetched"):
        read_file(Path("nonsense://somewhere/people.csv"), FileOptions(fsspec=True))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"separator": ";;"}, "one character"),
        ({"decimal": ";"}, '"." or ",", not \';\''),
        ({"thousands": "_"}, "a space or an apostrophe, not '_'"),
        ({"decimal": ",", "thousands": ","}, "two different marks"),
        ({"encoding": "klingon"}, "There is no encoding 'klingon'"),
    ],
)
def test_a_dialect_that_means_nothing_is_refused(options, said):
    with pytest.raises(InputError, match=said):
        FileOptions(**options)


def test_a_wrong_encoding_that_is_named_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(lines("1", "2", "3", encoding="cp1252"))
    with pytest.raises(InputError, match="not valid text in the encoding 'ascii'"):
        read_file(path, FileOptions(encoding="ascii"))


def test_sheets_and_dialects_are_for_files_that_have_them(tmp_path):
    pq.write_table(TABLE, tmp_path / "t.parquet")
    with pytest.raises(InputError, match="has a single table"):
        read_file(tmp_path / "t.parquet", FileOptions(sheet="people"))
    with pytest.raises(InputError, match="columns and types are fixed"):
        read_file(tmp_path / "t.parquet", FileOptions(decimal=","))
    sqlite(tmp_path / "t.db")
    with pytest.raises(InputError, match="has no table 'animals'; choose from 'people'"):
        read_file(tmp_path / "t.db", FileOptions(sheet="animals"))


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("t.xlsx", b"PK\x03\x04rest", "Excel"),
        ("t.sqlite", b"SQLite format 3\x00rest", "SQLite"),
        ("t.duckdb", b"12345678DUCKrest", "DuckDB"),
        ("t.orc", b"ORCrest", "ORC"),
        ("t.csv.gz", gzip.compress(PLAIN * 100, mtime=0)[:-20], "gzip"),
        ("t.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 100, mtime=0)[:-20], "gzip"),
    ],
)
def test_damaged_files_are_refused_in_a_sentence(tmp_path, name, content, kind):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_file(tmp_path / name)
    assert kind in str(caught.value)
    assert "\n" not in str(caught.value)


def sheet(path, *rows):
    import openpyxl

    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.save(path)
    return path


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "Sheet 'Sheet' of t.xlsx is empty; choose another with --sheet."),
        (
            [["age", None], [31, None], [47, "note"]],
            "Row 3 of sheet 'Sheet' in t.xlsx has a value in a column without a name; name that "
            "column in the header row, or clear the cell.",
        ),
        (  # empty rows count too
            [["age", None], [], [31, None], [], [47, "note"]],
            "Row 5 of sheet 'Sheet' in t.xlsx has a value in a column without a name; name that "
            "column in the header row, or clear the cell.",
        ),
    ],
)
def test_sheets_that_are_no_table_are_refused(tmp_path, rows, said):
    with pytest.raises(InputError) as caught:
        read_file(sheet(tmp_path / "t.xlsx", *rows))
    assert str(caught.value) == said


def test_a_workbook_without_styles_is_whole(tmp_path):
    """What openpyxl says of it is an error to a filter of the caller's, not of the file."""
    plain, bare = sheet(tmp_path / "plain.xlsx", ["age"], [31], [47]), tmp_path / "bare.xlsx"
    with zipfile.ZipFile(plain) as whole, zipfile.ZipFile(bare, "w") as copy:
        for name in whole.namelist():
            content = whole.read(name)
            if name == "xl/styles.xml":
                content = re.sub(rb"<cellStyles.*</cellStyles>", b"", content)
            copy.writestr(name, content)
    with pytest.raises(UserWarning, match="contains no default style"):
        read_file(bare)
    with pytest.warns(UserWarning, match="contains no default style"):
        assert read_file(bare).column("age").to_pylist() == [31, 47]


def database(path, *cells):
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE t (x)")
        base.executemany("INSERT INTO t VALUES (?)", [(cell,) for cell in cells])
        if not cells:
            base.execute("DROP TABLE t")
    base.close()
    return path


@pytest.mark.parametrize(
    ("cells", "column"),
    [
        ((2**60, 0.5, None), [2.0**60, 0.5, None]),
        ((1, "two", None), ["1", "two", None]),
    ],
)
def test_cells_of_several_types_become_one(tmp_path, cells, column):
    assert read_file(database(tmp_path / "t.db", *cells)).column("x").to_pylist() == column


def test_databases_of_bytes_or_without_tables_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"Column 'x' of bytes\.db contains bytes;"):
        read_file(database(tmp_path / "bytes.db", 1, b"\x00"))
    with pytest.raises(InputError, match=r"none\.db contains no table;"):
        read_file(database(tmp_path / "none.db"))


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (("+1,5", "-2,5"), [1.5, -2.5]),
        (("+1 234", "-2 345"), [1234, -2345]),
        (("99 999 999 999 999 999 999", "2 345"), [1e20, 2345.0]),  # beyond 64 bits
        ((",5e3", "1,25e-1"), [500.0, 0.125]),
    ],
)
def test_whatever_is_written_like_a_number_becomes_one(tmp_path, cells, numbers):
    (tmp_path / "t.csv").write_text("town;x\n" + "".join(f"Bonn;{cell}\n" for cell in cells))
    assert read_file(tmp_path / "t.csv").column("x").to_pylist() == numbers


def test_a_column_with_another_decimal_mark_than_the_named_one_stays_text(tmp_path):
    (tmp_path / "t.csv").write_text("a;b\n1,5;2.5%\n2,5;3.5%\n")
    with pytest.raises(InputError, match="decimal points in column 'b' and decimal commas in"):
        read_file(tmp_path / "t.csv")
    found = read_file(tmp_path / "t.csv", FileOptions(decimal=","))
    assert found.to_pydict() == {"a": [1.5, 2.5], "b": ["2.5%", "3.5%"]}


def test_what_is_no_ordinary_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "t.csv")
    with pytest.raises(InputError, match="is not an ordinary file; save its table in a file first"):
        read_file(tmp_path / "t.csv")


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path, monkeypatch):
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(PLAIN * 50))
    monkeypatch.setattr(files, "_CHUNK", 100)
    monkeypatch.setattr(files, "_MOST_UNPACKED", 1000)
    with pytest.raises(InputError, match=r"t\.csv\.gz is larger than 1e-06 GB after decompression"):
        read_file(tmp_path / "t.csv.gz")


def test_letters_of_windows_far_apart_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_CHUNK", 8)
    towns = ["Köln", "Bonn", "Düren", "Zülpich"]
    (tmp_path / "t.csv").write_bytes("\n".join(["town", *towns, ""]).encode("cp1252"))
    assert read_file(tmp_path / "t.csv").column("town").to_pylist() == towns


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (FileOptions(header=False), "--no-header cannot"),
        (FileOptions(names="a"), "--names cannot"),
        (FileOptions(sheet="people"), "--sheet cannot"),
        (FileOptions(decimal=","), "--separator, --decimal, --thousands or"),
    ],
)
def test_options_of_text_are_not_for_data_read_in_chunks(options, said):
    with pytest.raises(InputError, match=said):
        options.refuse_in_chunks()
    FileOptions().refuse_in_chunks()


if __name__ == "__main__":
    text = PAGE.read_text("utf-8")
    start, stop = text.index(BEGIN), text.index(END) + len(END)
    PAGE.write_text(text[:start] + made() + text[stop:], "utf-8")

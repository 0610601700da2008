"""Files in every format become the same table; what cannot be read is refused in one sentence."""

import json

import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from seepage.auditing.intake import parquet
from seepage.auditing.intake.files import read_file, steps_of
from seepage.auditing.intake.parquet import AuditedRows, TableInChunks
from seepage.auditing.questions import FileOptions
from seepage.auditing.trained_model import ROW
from seepage.errors import InputError
from seepage.streams.disk.files import open_batches

TABLE = pa.table(
    {
        "age": pa.array([31, 47, None, 8], pa.int64()),
        "town": pa.array(["Łódź", "Bonn", "Bonn", None]),
        "dose": [0.5, 1.25, 2.0, -3.5],
        "ill": [True, False, True, True],
    }
)


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refusal(path, **options):
    with pytest.raises(InputError) as caught:
        read_file(path, FileOptions(**options))
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


def as_csv(path):
    pcsv.write_csv(TABLE, path)


def as_arrow_file(path):
    with pa.ipc.new_file(path, TABLE.schema) as writer:
        writer.write_table(TABLE)


def as_arrow_stream(path):
    with pa.ipc.new_stream(path, TABLE.schema) as writer:
        writer.write_table(TABLE)


def as_json_lines(path):
    path.write_text("".join(json.dumps(row) + "\n" for row in TABLE.to_pylist()), "utf-8")


@pytest.mark.parametrize(
    ("name", "writer"),
    [
        ("t.csv", as_csv),
        ("t.CSV", as_csv),
        ("t.parquet", lambda path: pq.write_table(TABLE, path)),
        ("t.feather", as_arrow_file),
        ("t.arrow", as_arrow_stream),
        ("t.jsonl", as_json_lines),
    ],
)
def test_every_format_gives_the_same_table(tmp_path, name, writer):
    writer(tmp_path / name)
    table = read_file(tmp_path / name)
    assert table.to_pydict() == TABLE.to_pydict()
    assert table.schema.types == TABLE.schema.types
    assert steps_of(table) == ()


def test_headerless_csv_with_padded_cells_and_question_marks(tmp_path):
    path = write(tmp_path / "adult.data", "39, State-gov, ?, <=50K\n50, ?, 13,  >50K \n")
    table = read_file(path, FileOptions(header=False, names="age, work, hours, income"))
    assert table.to_pydict() == {
        "age": [39, 50],
        "work": ["State-gov", None],
        "hours": [None, 13],
        "income": ["<=50K", ">50K"],
    }
    unnamed = read_file(path, FileOptions(header=False))
    assert unnamed.column_names == ["column 1", "column 2", "column 3", "column 4"]


def test_names_replace_a_header_and_must_be_as_many(tmp_path):
    path = write(tmp_path / "t.csv", "a,b\n1,2\n")
    assert read_file(path, FileOptions(names="c,d")).to_pydict() == {"c": [1], "d": [2]}
    assert "2 columns, but --names gives 3 names" in refusal(path, names="c,d,e")


def test_a_record_taken_for_a_header_is_pointed_out(tmp_path):
    (step,) = steps_of(read_file(write(tmp_path / "t.csv", "39,Private,13\n50,Public,9\n")))
    assert "2 of them are numbers" in step
    assert "--no-header" in step


def test_missing_markers_are_the_callers(tmp_path):
    path = write(tmp_path / "t.csv", "country,n\nNA,1\nDE,-\n")
    assert read_file(path).to_pydict() == {"country": [None, "DE"], "n": ["1", "-"]}


def test_numbers_padded_by_more_than_one_space_are_numbers(tmp_path):
    path = write(tmp_path / "t.csv", "n,x\n  ?  ,   1.5\n   7,  ?\n")
    assert read_file(path).to_pydict() == {"n": [None, 7], "x": [1.5, None]}


def test_text_of_digits_stays_text_in_a_typed_format(tmp_path):
    pq.write_table(pa.table({"zip": ["01234", "99999"]}), tmp_path / "t.parquet")
    assert read_file(tmp_path / "t.parquet").to_pydict() == {"zip": ["01234", "99999"]}


def test_dictionary_columns_become_text(tmp_path):
    pq.write_table(
        pa.table({"c": pa.array([" a", "b", "?"]).dictionary_encode()}), tmp_path / "t.parquet"
    )
    assert read_file(tmp_path / "t.parquet").to_pydict() == {"c": ["a", "b", None]}


def test_blank_lines_byte_order_mark_and_quoted_newlines(tmp_path):
    path = write(tmp_path / "t.csv", b'\xef\xbb\xbf\n\na,"b\nc"\n1,"x\ny"\n\n2,z\n')
    table = read_file(path)
    assert table.to_pydict() == {"a": [1, 2], "b c": ["x\ny", "z"]}


def test_tabs_are_read_from_tsv(tmp_path):
    assert read_file(write(tmp_path / "t.tsv", "a\tb\n1\t2\n")).to_pydict() == {"a": [1], "b": [2]}


def test_type_is_inferred_from_the_whole_file(tmp_path):
    lines = "".join(f"{i},{i % 7}\n" for i in range(200_000))
    table = read_file(write(tmp_path / "t.csv", f"a,b\n{lines}0.5,x\n"))
    assert table.schema.types == [pa.float64(), pa.string()]
    assert table.num_rows == 200_001


def test_no_such_file_folder_and_empty_file(tmp_path):
    assert "no file" in refusal(tmp_path / "t.csv")
    assert "folder" in refusal(tmp_path)
    assert "0 bytes" in refusal(write(tmp_path / "t.csv", ""))
    assert "only blank lines" in refusal(write(tmp_path / "t.csv", "\n\n"))
    assert "0 rows" in refusal(write(tmp_path / "t.csv", "a,b\n"))


def test_row_with_too_many_cells_is_located_without_quoting_it(tmp_path):
    message = refusal(write(tmp_path / "t.csv", "a,b\n1,2\nsecret,2,3\n"))
    assert "3 cells in line 3, but the first line has 2" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("kind", "writer"),
    [
        ("Parquet", lambda path: pq.write_table(TABLE, path)),
        ("Arrow", as_arrow_file),
    ],
)
def test_truncated_file_is_named_so(tmp_path, kind, writer):
    path = tmp_path / ("t.parquet" if kind == "Parquet" else "t.feather")
    writer(path)
    write(path, path.read_bytes()[: path.stat().st_size // 2])
    assert f"not a complete {kind} file" in refusal(path)


def test_wrong_extension_is_named_with_the_right_one(tmp_path):
    pq.write_table(TABLE, tmp_path / "t.csv")
    assert "rename it to t.parquet" in refusal(tmp_path / "t.csv")
    as_arrow_file(tmp_path / "t.xyz")
    assert "rename it to t.feather" in refusal(tmp_path / "t.xyz")
    assert "Excel" in refusal(write(tmp_path / "t.xlsx", b"PK\x03\x04rest"))
    assert "Excel" in refusal(write(tmp_path / "t.csv", b"PK\x03\x04rest"))
    assert "gzip" in refusal(write(tmp_path / "t.csv", b"\x1f\x8brest"))
    assert "table.csv.gz" in refusal(write(tmp_path / "t.gz", b"\x1f\x8brest"))
    assert "not a complete zstd" in refusal(write(tmp_path / "t.csv.zst", "a,b\n1,2\n"))
    assert "'.dat'" in refusal(write(tmp_path / "t.dat", "a,b\n"))
    assert "no extension" in refusal(write(tmp_path / "table", "a,b\n"))
    assert "not a complete Parquet" in refusal(write(tmp_path / "t.parquet", "a,b\n1,2\n"))


def test_header_options_are_for_csv_only(tmp_path):
    pq.write_table(TABLE, tmp_path / "t.parquet")
    assert "--no-header" in refusal(tmp_path / "t.parquet", header=False)
    assert "--names" in refusal(tmp_path / "t.parquet", names="a,b,c,d")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'[{"a": 1}]\n', "single JSON array"),
        (b"a,b\n1,2\n", "every line must be a JSON object"),
        (b'{"a": 1}\n{"a": "secret"}\n', "in row 1"),
        (b'{"a": 1}\n{"a": ', "in row 1"),
        (b'{"a": "\xff\xfe"}\n', "not UTF-8"),
        (b'{"\xff": 1}\n', "not UTF-8"),
        (b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}\n", "nested too deeply in row 0"),
        (b'{"a":' * 20_000 + b"1" + b"}" * 20_000 + b"\n", "nested too deeply in row 0"),
    ],
)
def test_bad_json_lines(tmp_path, text, said):
    message = refusal(write(tmp_path / "t.jsonl", text))
    assert said in message
    assert "secret" not in message


def test_brackets_in_a_json_text_are_not_nesting(tmp_path):
    text = "[{" * 500 + '"'
    path = write(tmp_path / "t.jsonl", json.dumps({"a": text}) + "\n")
    assert read_file(path).to_pydict() == {"a": [text]}


def test_a_folder_is_read_whole_only_if_it_fits(tmp_path, monkeypatch):
    for k in range(2):
        pq.write_table(pa.table({"a": [k, 2.0], "b": ["x", "y"]}), tmp_path / f"{k}.parquet")
    table = TableInChunks.of(open_batches(tmp_path))
    assert table.whole().to_pydict() == {"a": [0, 2, 1, 2], "b": ["x", "y", "x", "y"]}
    monkeypatch.setattr(parquet, "MOST_BYTES", 8 * 4 * 2 - 1)
    with pytest.raises(InputError, match=r"4 rows and 2 columns, .* audit a sample of its rows"):
        table.whole()


def test_runs_of_rows_are_cleaned_like_all_rows(tmp_path):
    """From the middle of the files; not where dropped rows shift those after them."""
    for k in range(2):
        part = pa.table({" a": [4.0 * k + j for j in range(4)], "b": ["x ", "y", "n/a", " z"]})
        pq.write_table(part, tmp_path / f"{k}.parquet", row_group_size=3)
    rows = AuditedRows(open_batches(tmp_path), first=100)
    every = [p.batch.to_pylist() for p in rows.read(["a", "b", ROW], 9)]
    whole = [record for records in every for record in records]
    runs = list(rows.runs(["a", "b", ROW], 2, [1, 6], 2))
    for start, piece in runs:
        assert piece.batch.to_pylist() == whole[start : start + piece.batch.num_rows]
    assert sorted(s + j for s, p in runs for j in range(p.batch.num_rows)) == [1, 2, 6, 7]
    assert [whole[1][ROW], whole[1]["b"]] == [101, "y"]
    assert list(rows.complete(["b"]).runs(["a"], 2, [1, 6], 2)) == []

"""Tables from people who mean no good, or did not look: nothing breaks, everything is said."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from people import encode, plan_columns

from seepage.auditing.intake.files import read_file, steps_of
from seepage.errors import InputError
from seepage.tables.names import SHOWN, printable, shown, unique

N = 40
RNG = np.random.default_rng(1)
NUMBERS = RNG.normal(size=N)
HOSTILE = [
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "=HYPERLINK(A1)",
    "+1+cmd|' /C calc'!A0",
    "@SUM(1)",
    "{{ 7 * 7 }}{% raw %}",
    "👩‍👩‍👧 emoji 🔥",
    "'; DROP TABLE people; --",
    "../../etc/passwd",
    "%s %d {0}",
    "x" * 10_000,
]


def write_csv(path, names, rows):
    import csv

    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, quoting=csv.QUOTE_ALL).writerows([names, *rows])
    return path


def one_sentence(error):
    message = str(error.value)
    assert "\n" not in message
    assert message.endswith(".")
    assert len(message) < 600
    return message


@pytest.mark.parametrize("bad", HOSTILE)
def test_hostile_names_and_cells_come_through_as_they_are(tmp_path, bad):
    rows = [[value, bad if i % 2 else "plain", i % 2] for i, value in enumerate(NUMBERS)]
    path = write_csv(tmp_path / "t.csv", [bad, f"{bad} too", "y"], rows)
    table = read_file(path)
    assert table.column_names == [bad, f"{bad} too", "y"]
    found = encode(table, plan_columns(table, "y", groups=[f"{bad} too"], sensitive=[bad]))
    assert found.X.shape == (N, 2)
    assert set(found.attributes) == {bad, f"{bad} too"}
    assert set(found.groups[f"{bad} too"]) == {bad, "plain"}
    assert max(map(len, found.steps)) < 600
    hostile_class = encode(table, plan_columns(table, f"{bad} too"))
    assert set(hostile_class.y) == {bad, "plain"}


@pytest.mark.parametrize("bad", HOSTILE)
def test_errors_about_hostile_names_are_short_sentences(bad):
    table = pa.table({bad: ["same"] * N, "y": NUMBERS})
    with pytest.raises(InputError) as caught:
        plan_columns(table, bad)
    one_sentence(caught)
    with pytest.raises(InputError) as caught:
        plan_columns(table, "y", drop=[bad[:-1] + "¤"])
    one_sentence(caught)


def test_control_codes_and_direction_marks_leave_names():
    assert printable("\x1b[31mred\x07\u202egnp\u2066") == "[31mred  gnp"
    assert printable("a\nb\tc\r\x00") == "a b c"
    table = pa.table({"c": ["a\x1b[2J", "a\x07[2J", "b"] * 10, "y": RNG.normal(size=30)})
    found = encode(table, plan_columns(table, "y"), drop_first=False)
    assert found.names == ("c=a [2J", "c=a [2J (2)", "c=b")
    np.testing.assert_array_equal(found.X.sum(axis=0), 10)


def test_levels_that_look_alike_stay_apart_as_classes_and_groups():
    table = pa.table({"c": ["a\x1bb", "a\x07b"] * 10, "x": NUMBERS[:20]})
    found = encode(table, plan_columns(table, "c", groups=["c"]))
    assert found.y.tolist() == ["a b", "a b (2)"] * 10
    assert found.groups["c"].tolist() == found.y.tolist()


def test_long_names_are_cut_in_sentences():
    assert len(shown("x" * 10_000)) <= SHOWN + 2
    assert shown("short") == "'short'"


def test_unique_names_never_collide():
    assert unique(["a", "a", "a (2)", "a"]) == ["a", "a (3)", "a (2)", "a (4)"]
    assert unique(["", ""]) == ["", " (2)"]


def test_duplicate_and_empty_names_are_made_unique_and_said(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,,a,  ,column 2\n" + "1,2,3,4,5\n" * 3)
    table = read_file(path)
    assert table.column_names == ["a", "column 2", "a (2)", "column 4", "column 2 (2)"]
    said = " ".join(steps_of(table))
    assert "2 columns without a name were named 'column 2', 'column 4'." in said
    assert "'a (2)', 'column 2 (2)'" in said
    pq.write_table(pa.Table.from_arrays([[1], [2]], names=["a", "a"]), tmp_path / "t.parquet")
    assert read_file(tmp_path / "t.parquet").to_pydict() == {"a": [1], "a (2)": [2]}
    with pytest.raises(InputError, match="Several columns have the name 'a'"):
        plan_columns(pa.Table.from_arrays([[1], [2]], names=["a", "a"]), "a")


def test_metadata_of_a_file_is_not_taken_for_ours(tmp_path):
    table = pa.table({"a": [1]}).replace_schema_metadata({"seepage.steps": '["<script>"]'})
    pq.write_table(table, tmp_path / "t.parquet")
    assert steps_of(read_file(tmp_path / "t.parquet")) == ()


@pytest.mark.parametrize(
    ("mark", "name"), [(";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars")]
)
def test_another_separator_is_recognised_and_said(tmp_path, mark, name):
    path = tmp_path / "t.csv"
    path.write_text("".join(mark.join(row) + "\n" for row in ["abc", "123"]))
    table = read_file(path)
    assert table.to_pydict() == {"a": [1], "b": [2], "c": [3]}
    assert steps_of(table) == (f"The columns are separated by {name}.",)


def test_commas_in_a_tab_separated_file_are_recognised(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("a,b\n1,2\n")
    table = read_file(path)
    assert table.to_pydict() == {"a": [1], "b": [2]}
    assert steps_of(table) == ("The columns are separated by commas.",)


@pytest.mark.parametrize(
    ("text", "encoding", "said"),
    [
        ("name,x\nJosé,1\n", "latin-1", "read as Windows-1252"),
        ("naïve,x\nJ,1\n", "cp1252", "read as Windows-1252"),
        ("name,x\nJosé,1\n", "utf-16", "The text is UTF-16."),
    ],
)
def test_another_encoding_is_recognised_and_said(tmp_path, text, encoding, said):
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode(encoding))
    table = read_file(path)
    (step,) = steps_of(table)
    assert said in step
    lines = text.splitlines()
    names, cells = lines[0].split(","), lines[1].split(",")
    assert table.to_pydict() == {names[0]: [cells[0]], names[1]: [int(cells[1])]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("name,x\nJ,1\n".encode("utf-16-le"), "zero bytes"),
        ("é,x\n".encode() + b"Jos\xe9,1\n", "not UTF-8 text (near byte 8)"),
        (b"name,x\nJos\xe9\x81,1\n", "not UTF-8 text (near byte 10)"),
        (b"name,x\nJos\xe9\x07,1\n", "not UTF-8 text (near byte 10)"),
    ],
)
def test_what_is_neither_utf8_nor_windows_text_is_refused(tmp_path, content, said):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_file(path)
    assert said in one_sentence(caught)


def test_wrong_encoding_far_into_a_file_is_found(tmp_path):
    path = tmp_path / "t.csv"
    start = "é,x\n".encode() + b"Jose,1\n" * 200_000
    path.write_bytes(start + b"Jos\xe9,1\n")
    with pytest.raises(InputError, match=f"near byte {len(start) + 3:,}"):
        read_file(path)


def test_a_file_cut_in_the_middle_of_a_letter(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("a\né".encode()[:-1])
    with pytest.raises(InputError, match="at its very end"):
        read_file(path)


def test_a_careless_table_from_file_to_numbers(tmp_path):
    rows = [
        [f"p{i}", i + 1, "same", "rare" if i == 0 else "", value, i % 2]
        for i, value in enumerate(RNG.normal(size=200))
    ]
    path = write_csv(tmp_path / "t.csv", ["id", "row", "constant", "gaps", "x", "y"], rows)
    table = read_file(path)
    with pytest.raises(InputError, match="is an identifier"):
        plan_columns(table, "id")
    with pytest.raises(InputError, match="is an identifier"):
        plan_columns(table, "row")
    with pytest.raises(InputError, match="only one value"):
        plan_columns(table, "constant")
    found = encode(table, plan_columns(table, "y"))
    assert found.names == ("x",)
    said = " ".join(found.steps)
    for name in ("id", "row", "constant", "gaps"):
        assert repr(name) in said


def test_a_cell_of_a_megabyte_costs_one_copy():
    huge = "z" * 1_000_000
    table = pa.table({"c": pa.array([huge, "b"] * 20), "x": NUMBERS, "y": NUMBERS**2})
    found = encode(table, plan_columns(table, "y", groups=["c"]))
    assert found.groups["c"][0] is found.groups["c"][2]
    assert found.groups["c"].nbytes < 1000

"""What a file says about clients, however it is written, and how it is refused."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from seepage.auditing.intake.property_file import read_client_property
from seepage.errors import InputError

LARGE = 2**64 - 3  # a node of Flower's, beyond what a float or a signed number holds
WANTED = {"7": "yes", str(LARGE): "no"}


def written(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("glasses.csv", f"node,glasses\n7,yes\n{LARGE},no\n"),
        ("glasses.csv", f"\ufeffClient , glasses\r\n 7 , yes \r\n\r\n{LARGE},no\r\n"),
        ("glasses.tsv", f"glasses\tnode_id\nyes\t7\nno\t{LARGE}\n"),
        ("glasses.json", json.dumps({"7": "yes", str(LARGE): "no"})),
        (
            "glasses.json",
            json.dumps([{"node": 7, "glasses": "yes"}, {"node": LARGE, "glasses": "no"}]),
        ),
        (
            "glasses.jsonl",
            f'{{"node": 7, "glasses": "yes"}}\n{{"node": {LARGE}, "glasses": "no"}}\n',
        ),
    ],
)
def test_every_way_of_writing_says_the_same(tmp_path, name, text):
    found = read_client_property(written(tmp_path, name, text))
    assert found.name == "glasses"
    assert found.values == WANTED


def test_parquet(tmp_path):
    table = {"node": pa.array([7, LARGE], pa.uint64()), "glasses": ["yes", "no"]}
    pq.write_table(pa.table(table), tmp_path / "glasses.parquet")
    assert read_client_property(tmp_path / "glasses.parquet").values == WANTED


def test_a_column_of_several_and_a_value_for_each_round(tmp_path):
    path = written(tmp_path, "all.csv", "node,round,age,glasses\n7,1,old,yes\n7,2,old,no\n")
    found = read_client_property(path, "glasses")
    assert found.values == {("7", "1"): "yes", ("7", "2"): "no"}


@pytest.mark.parametrize(
    ("name", "text", "column", "complaint"),
    [
        ("a.csv", "person,glasses\n1,yes\n", None, "a.csv has no column 'node' .or 'client'."),
        ("a.csv", "node,a,b\n1,2,3\n", None, "2 columns that could be the property .'a', 'b'."),
        ("a.csv", "node,glasses\n1,2\n", "glases", "did you mean 'glasses'"),
        ("a.csv", "node\n1\n", None, "has no column for the clients' property"),
        ("a.csv", "node,glasses\n1,yes\n1,no\n", None, "'1' twice with different values"),
        ("a.csv", "node,glasses\n1,\n", None, "no value for the client '1'"),
        ("a.csv", "node,glasses\n1,yes,3\n", None, "3 cells in line 2, but the first line has 2"),
        ("a.csv", "node,glasses\n\n1,yes,3\n", None, "3 cells in line 3, but"),
        ("a.csv", "", None, "a.csv is empty"),
        ("a.csv", "node,glasses\n", None, "a.csv has no rows"),
        ("a.json", "{", None, "neither a JSON object nor JSON lines"),
        ("a.json", "[1]", None, "must map nodes to values"),
        ("a.json", '{"7": [1]}', None, "a list or an object for the client '7'"),
        ("a.xyz", "1", None, "is not a supported format"),
    ],
)
def test_refusals_are_one_sentence(tmp_path, name, text, column, complaint):
    with pytest.raises(InputError, match=complaint) as refused:
        read_client_property(written(tmp_path, name, text), column)
    assert "\n" not in str(refused.value)


def test_what_is_not_there(tmp_path):
    with pytest.raises(InputError, match="There is no file"):
        read_client_property(tmp_path / "none.csv")
    with pytest.raises(InputError, match="is a folder"):
        read_client_property(tmp_path)
    (tmp_path / "latin.csv").write_bytes(b"node,\xe9\n")
    with pytest.raises(InputError, match="not UTF-8"):
        read_client_property(tmp_path / "latin.csv")

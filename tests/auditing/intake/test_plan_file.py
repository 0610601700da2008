"""A plan of a table's columns: printed, edited, handed back; and what it cannot mean."""

import json
import tomllib

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from seepage.auditing.intake.plan_file import PlanFile, column_facts
from seepage.auditing.intake.table import TableInMemory
from seepage.cli import app
from seepage.errors import InputError

ROWS = [
    (20 + i % 31, 50 + 7 * (i % 13) / 4, "abc"[i % 3], "yes" if (i * i) % 7 < 3 else "no", i % 2)
    for i in range(60)
]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [("age", "dose", "clinic", "ill", "arm", "id")]
    rows += [(*row, f"p{i}") for i, row in enumerate(ROWS)]
    lines = [",".join(map(str, row)) for row in rows]
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    return lambda *words: CliRunner().invoke(app, [*words])


def written(run, tmp_path, **changes):
    text = run("columns", "people.csv").stdout
    for old, new in changes.get("replace", ()):
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "plan.toml").write_text(text)
    return text


def test_the_plan_says_what_every_column_is_taken_for(run):
    plan = tomllib.loads(run("columns", "people.csv").stdout)
    assert plan["columns"] == {
        "age": "numeric",
        "dose": "numeric",
        "clinic": "categorical",
        "ill": "categorical",
        "arm": "boolean",
        "id": "drop",
    }
    text = run("columns", "people.csv").stdout
    assert "identifier: its values are all different" in text
    assert "31 different (51.7% of the values); 20 to 50" in text


@pytest.mark.slow
def test_a_plan_comes_back_edited(run, tmp_path):
    edits = [
        ('target = ""', 'target = "ill"'),
        ("group = []", 'group = ["clinic"]'),
        ('"dose" = "numeric"', '"dose" = "drop"'),
        ('"arm" = "boolean"', '"arm" = "numeric"'),
    ]
    written(run, tmp_path, replace=edits)
    result = run("audit", "people.csv", "--plan", "plan.toml", "--quick", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    by_hand = run(
        *("audit", "people.csv", "--target", "ill", "--group", "clinic", "--drop", "dose"),
        *("--drop", "id", "--quantity", "arm", "--quick", "--json"),
    )
    wanted = json.loads(by_hand.stdout)
    assert found["attributes"] == wanted["attributes"]
    assert found["groupings"] == wanted["groupings"]


@pytest.mark.slow
def test_a_release_takes_a_plan(run, tmp_path):
    written(run, tmp_path, replace=[('target = ""', 'target = "ill"')])
    result = run("release", "people.csv", "--plan", "plan.toml", "--sigma", "1")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"age" = "numeric"', '"agee" = "numeric"', "'agee', which is not in the table"),
        ('"age" = "numeric"', "", "lists no kind for 'age'"),
        ('"age" = "numeric"', '"age" = "number"', "as 'number'; choose from numeric"),
        ('"age" = "numeric"', '"age" = "boolean"', "does not have exactly two"),
        ('"clinic" = "categorical"', '"clinic" = "numeric"', "cannot be a quantity"),
        ("group = []", "group = 3", "group must be a list of columns"),
        ("group = []", "secret = 3", "unknown key 'secret'"),
        ("missing = ", "missing = 3 # ", "missing must be text"),
        ("[columns]", "[columns", "is not a plan"),
    ],
)
def test_what_a_plan_cannot_mean_is_refused_in_a_sentence(run, tmp_path, old, new, said):
    written(run, tmp_path, replace=[(old, new), ('target = ""', 'target = "ill"')])
    result = run("audit", "people.csv", "--plan", "plan.toml", "--quick", "--json")
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("text", ['target = "ill"', "[columns]", "columns = 3"])
def test_a_plan_names_columns(tmp_path, text):
    (tmp_path / "plan.toml").write_text(text)
    with pytest.raises(InputError, match=r"plan\.toml lists no columns under \[columns\]"):
        PlanFile.read(tmp_path / "plan.toml")


def test_a_release_takes_no_groups_or_sensitive_columns(run, tmp_path):
    edits = [('target = ""', 'target = "ill"'), ("group = []", 'group = ["clinic"]')]
    written(run, tmp_path, replace=edits)
    result = run("release", "people.csv", "--plan", "plan.toml", "--sigma", "1")
    assert result.exit_code == 2
    assert "A release accepts no sensitive columns or groups; remove them" in result.stderr
    assert not (tmp_path / "seepage-release").exists()


@pytest.mark.parametrize(
    ("cells", "kind", "words"),
    [
        ([1.0] + [None] * 199, "drop", "99 % or more missing; 199 missing"),
        ([float("inf"), 1.0] * 100, "drop", "infinite values: convert them to plain numbers"),
        (["same"] * 200, "drop", "one value only"),
        ([f"{i % 99}.5" for i in range(199)] + ["x"], "drop", "numbers mixed with text"),
        (
            ["a"] * 150 + ["b"] * 48 + ["c", "d"],
            "categorical",
            "2 in fewer than 10 records, 2 of them in only",
        ),
        ([i / 7 for i in range(1200)], "numeric", "1,200 different (100.0% of the values); 0 to"),
    ],
)
def test_what_is_found_in_a_column_is_said(cells, kind, words):
    (facts,) = column_facts(TableInMemory(pa.table({"x": cells})))
    assert facts.kind == kind
    assert words in facts.words


def test_what_was_done_to_the_file_is_listed_with_the_columns(run, tmp_path):
    text = (tmp_path / "people.csv").read_text().replace(",", ";")
    (tmp_path / "other.csv").write_text(text)
    result = run("audit", "other.csv")
    assert result.exit_code == 2
    first, second = result.stdout.splitlines()[:2]
    assert first == "'other.csv' has 60 rows."
    assert second.startswith("  - ")
    assert "separat" in second
    assert "Name the column with --target" in result.stderr


def test_without_a_target_the_columns_are_listed(run):
    result = run("audit", "people.csv")
    assert result.exit_code == 2
    assert "'clinic'  categorical  3 levels (5.0% of the values)" in result.stdout
    assert "'id'      drop         identifier: its values are all different" in result.stdout
    assert result.stderr == (
        "error: Which column does the model predict? Name the column with --target.\n"
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--remedies", "prayer"],
            "no remedy 'prayer'; choose one or more of noise, penalty, combination",
        ),
        (["--remedies", "shape"], "name their table with --public"),
    ],
)
def test_remedies_are_chosen_by_name(run, words, said):
    result = run("audit", "people.csv", "--target", "ill", "--drop", "id", *words)
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.minutes
def test_the_remedies_that_are_named_are_the_ones_that_are_tried(run):
    words = ["audit", "people.csv", "--target", "ill", "--drop", "id", "--json", "--quick"]
    for asked, names in {
        "noise,penalty": ["more noise"],  # the target is met: no penalty is needed for it
        "combination": ["regularisation and noise"],
        "weights": ["reweighting"],
        "none": [],
    }.items():
        result = run(*words, "--remedies", asked)
        assert [r["name"] for r in json.loads(result.stdout)["remedies"]] == names

"""Checks for output checkers: what they recommend, of which files, and what they never replace."""

from __future__ import annotations

import hashlib
import json
import stat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from people import people
from sklearn.tree import DecisionTreeClassifier
from typer.testing import CliRunner

import seepage as sp
import seepage.auditing.command as command
from seepage.auditing.decision.check import checked_files, recommend, stated
from seepage.auditing.findings import Gate
from seepage.auditing.questions import FileOptions, Limits, Question
from seepage.auditing.report.words import Verdict
from seepage.cli import app

AUDIT = ["audit", "people.csv", "--target", "ill", "--quick", "--sigma", "0.3"]
RELEASE = ["release", "people.csv", "--target", "ill", "--domain", "age=0:110", "--sigma", "1"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept = people(300).select(["age", "smoker", "town", "ill"])
    pa_csv.write_csv(kept, tmp_path / "people.csv")
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def sha(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def gates(*passed):
    return tuple((Gate("--max-eta", 1.0, 0.5, one), "text") for one in passed)


@pytest.mark.parametrize(
    ("tone", "met", "leaving", "advice"),
    [
        ("good", (True,), True, "release"),
        ("good", (True, True), False, "review"),  # nothing that may leave
        ("good", (), True, "review"),  # nobody said what is allowed
        ("caution", (True,), True, "review"),
        ("good", (True, False), True, "refuse"),
        ("bad", (True,), True, "refuse"),
        ("bad", (), False, "refuse"),  # an attack succeeded
        ("caution", (), False, "review"),
    ],
)
def test_a_release_is_recommended_only_if_all_speaks_for_it(tone, met, leaving, advice):
    assert recommend(Verdict(tone, "label", "headline", (), gates=gates(*met)), leaving) == advice


def test_an_audit_writes_a_check(folder):
    made = run(*AUDIT, "--preset", "internal", "--check", "check.json")
    assert made.exit_code == 0, made.output
    check = json.loads((folder / "check.json").read_text())
    summary = json.loads((folder / "seepage-audit" / "summary.json").read_text())
    assert check["schema"] == "seepage-check/1"
    assert check["recommendation"] == "review"
    assert any("writes no file to publish" in reason for reason in check["reasons"])
    # The numbers are those of the report
    assert check["limits"] == summary["gates"]
    for key in ("risks", "model", "source", "unit", "release", "usefulness", "versions"):
        assert check["found"][key] == summary[key]
    assert check["preset"] == summary["preset"] == "internal"
    assert check["run"]["command"] == "audit"
    assert check["run"]["settings"]["table"] == "people.csv"
    assert check["run"]["settings"]["sigma"] == 0.3
    table = folder / "people.csv"
    assert check["files"] == [
        {
            "role": "table",
            "name": "people.csv",
            "bytes": table.stat().st_size,
            "sha256": sha(table),
        }
    ]
    sheet = (folder / "check.txt").read_text()
    assert "A PERSON MUST DECIDE" in sheet
    assert sha(table) in sheet
    assert "covers no file for publication" in sheet
    for reason in check["reasons"]:
        assert reason.split()[0] in sheet
    for file in ("check.json", "check.txt"):
        assert stat.S_IMODE((folder / file).stat().st_mode) == 0o600
        assert str(folder) not in (folder / file).read_text()


def test_a_limit_that_is_exceeded_is_refused(folder):
    made = run(*AUDIT, "--max-membership", "0.5001", "--json", "--check", "check.json")
    assert made.exit_code == 1
    check = json.loads((folder / "check.json").read_text())
    assert (check["recommendation"], check["passed"]) == ("refuse", False)
    assert check["reasons"][1].startswith("--max-membership: ")
    sheet = (folder / "check.txt").read_text()
    assert "DO NOT RELEASE" in sheet
    assert f"with noise σ = {check['found']['release']['sigma']:.4g}" in sheet
    # What is exceeded comes before what is met.
    made = run(*AUDIT, "--max-eta", "1e9", "--max-membership", "0.5001", "--check", "check.json")
    reasons = json.loads((folder / "check.json").read_text())["reasons"]
    assert [one.split(":")[0] for one in reasons[1:3]] == ["--max-membership", "--max-eta"]


def test_a_release_is_checked_file_by_file(folder):
    many = people(800).select(["age", "smoker", "town", "ill"])  # enough for a useful model
    pa_csv.write_csv(many, folder / "people.csv")
    made = run(*RELEASE[:-1], "0.2", "--check", "check.json")
    assert made.exit_code == 0, made.output
    check = json.loads((folder / "check.json").read_text())
    left = {f["name"]: f["sha256"] for f in check["files"] if f["role"] == "release"}
    files = sorted((folder / "seepage-release").iterdir())
    assert left == {f"seepage-release/{file.name}": sha(file) for file in files}
    assert len(left) == 4
    assert check["recommendation"] == "release", check["reasons"]
    assert check["found"]["sigma"] == 0.2
    sheet = (folder / "check.txt").read_text()
    assert "RELEASE, as far as this check goes" in sheet
    assert "Only the files with the role" in sheet


@pytest.mark.minutes
def test_a_refused_release_leaves_nothing_to_compare(folder):
    made = run(*RELEASE, "--max-membership", "0.5001", "--check", "check.json")
    assert made.exit_code == 1
    check = json.loads((folder / "check.json").read_text())
    assert check["recommendation"] == "refuse"
    assert [file["role"] for file in check["files"]] == ["table"]
    assert not (folder / "seepage-release").exists()


def test_what_changes_while_it_is_audited_gets_no_check(folder, monkeypatch):
    answer = command.answer

    def late(*given, **how):
        found = answer(*given, **how)
        with (folder / "people.csv").open("a") as file:
            file.write("50,true,Bonn,no\n")
        return found

    monkeypatch.setattr(command, "answer", late)
    made = run(*AUDIT, "--check", "check.json")
    assert made.exit_code == 2
    assert "changed while it was audited" in made.stderr
    assert not (folder / "check.json").exists()
    assert not (folder / "seepage-audit").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("check.txt", "The check must be a .json file"),
        ("people.json", "would overwrite or lie inside"),
        ("seepage-audit/check.json", "would overwrite or lie inside"),
        ("mine.json", "is not an earlier check and is not replaced"),
        ("notes.json", "or the sheet next to it"),
    ],
)
def test_nothing_else_is_replaced(folder, name, words):
    (folder / "mine.json").write_text("{}")
    (folder / "notes.txt").write_text("mine")
    (folder / "people.csv").rename(folder / "people.txt")  # the sheet of people.json
    made = run("audit", "people.txt", *AUDIT[2:], "--check", name)
    assert made.exit_code == 2
    assert words in made.stderr
    assert not (folder / "seepage-audit").exists()  # refused before any work
    assert (folder / "mine.json").read_text() == "{}"
    assert (folder / "notes.txt").read_text() == "mine"


def small(preset=None):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((120, 2))
    y = X[:, 0] + rng.standard_normal(120) > 0
    model = sp.glm.LogisticRegression(l2=0.1).fit(X, y)
    return sp.audit(model, X, y, noise=3.0, preset=preset)


def test_checks_in_python(folder):
    found = small("internal")
    sheet = sp.check(found, folder / "check.json", files={"table": folder / "people.csv"})
    assert sheet == folder / "check.txt"
    first = json.loads((folder / "check.json").read_text())
    assert first["recommendation"] == "review"
    assert first["files"][0]["sha256"] == sha(folder / "people.csv")
    sp.check(small(), folder / "check.json")  # its own may be replaced
    second = json.loads((folder / "check.json").read_text())
    assert second["files"] == []
    assert second["passed"] is None
    assert any("No limit was set" in reason for reason in second["reasons"])
    with pytest.raises(sp.InputError, match="No file of an audit can have the role 'release'"):
        sp.check(found, folder / "check.json", files={"release": folder / "people.csv"})
    with pytest.raises(sp.InputError, match="is not a file on this machine"):
        sp.check(found, folder / "check.json", files={"table": "gone.csv"})
    with pytest.raises(sp.InputError, match=r"sp\.check requires the result of sp\.audit"):
        sp.check("an audit", folder / "check.json")


def test_an_attack_supports_no_release(folder):
    rng = np.random.default_rng(2)
    X, y = rng.standard_normal((200, 3)), rng.integers(0, 2, 200)
    found = sp.audit_estimator(DecisionTreeClassifier(random_state=0), X, y, shadows=8)
    sp.check(found, folder / "check.json")
    check = json.loads((folder / "check.json").read_text())
    assert check["recommendation"] in ("refuse", "review")
    assert any("leaf" in reason for reason in check["reasons"])
    assert any("never an upper bound" in reason for reason in check["reasons"])
    assert any("that of a constant prediction" in reason for reason in check["reasons"])
    assert len(check["found"]["guesses"]) == 3
    assert check["found"]["held_out"]["error"] == found.held_out.error
    assert "OUTPUT CHECK" in (folder / "check.txt").read_text()


def test_a_folder_is_checked_file_by_file_and_names_do_no_harm(tmp_path):
    (tmp_path / "parts" / "deep").mkdir(parents=True)
    (tmp_path / "parts" / "a.parquet").write_bytes(b"a")
    (tmp_path / "parts" / "deep" / "b.parquet").write_bytes(b"b")
    found = checked_files({"table": tmp_path / "parts"})
    assert [file.name for file in found] == ["parts/a.parquet", "parts/deep/b.parquet"]
    assert [file.sha256 for file in found] == [hashlib.sha256(b).hexdigest() for b in (b"a", b"b")]


def test_names_from_the_table_stay_on_their_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    name = "a\nRecommendation: RELEASE\x1b[2J"
    data = {name: rng.standard_normal(80), "y": rng.standard_normal(80)}
    pq.write_table(pa.table(data), "t.parquet")
    made = run("audit", "t.parquet", "--target", "y", "--quick", "--check", "c.json")
    assert made.exit_code == 0, made.output
    lines = (tmp_path / "c.txt").read_text().splitlines()
    assert [line for line in lines if line.startswith("Recommendation")] == [lines[2]]
    assert "\x1b" not in "".join(lines)


def test_only_what_was_stated_is_listed():
    table = Path("folder") / "t.csv"
    question = Question(table=table, target="y", options=FileOptions(separator=";"))
    assert stated(question, Limits()) == {"table": "t.csv", "target": "y", "separator": ";"}

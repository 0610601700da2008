"""Every promise that a release once broke, by its number, through commands and public calls alone.

Nothing here knows how the package is built, so the same file runs beside earlier versions.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import seepage as sp
from seepage.cli import app

ROWS = 101
SIGMA = "--sigma=0.6769"  # with it the patients below have nearly all of η = 1
LIMITS = ("--max-membership", "--max-guess-gain", "--max-guess-tpr")


def run(*arguments):
    return CliRunner().invoke(app, [str(part) for part in arguments])


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEEPAGE_LEDGER", raising=False)
    return tmp_path


def patients(rows=ROWS):
    rng = np.random.default_rng(1)
    age, dose = rng.integers(20, 80, rows), rng.normal(50, 10, rows).round(1)
    response = (0.1 * dose + 0.02 * age + rng.normal(0, 1, rows)).round(2)
    return pd.DataFrame({"age": age, "dose": dose, "response": response})


def without_limits(*but):
    """Return options that switch all other limits off; earlier versions had none."""
    said = run("release", "--help").stdout
    return [f"{name}=1" for name in LIMITS if name in said and name not in but]


def options():
    ends = ["--domain=age=0:120", "--domain=dose=0:150", "--domain=response=-10:30"]
    return ["--target=response", "--target-eta=1", *ends, *without_limits()]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            lambda t: pd.concat([t, t.iloc[:1] + 0.5], ignore_index=True), id="45 becomes 45.0"
        ),
        pytest.param(lambda t: t.astype("float32"), id="single precision"),
        pytest.param(lambda t: t.assign(ward=1 + np.arange(len(t)) % 2), id="one column more"),
    ],
)
def test_the_ledger_forgets_nobody(here, change):
    """The first release spends nearly all of η = 1, so none of the same people is left."""
    patients().to_parquet("first.parquet")
    assert run("release", "first.parquet", *options(), SIGMA).exit_code == 0
    assert run("release", "first.parquet", *options(), SIGMA).exit_code == 2
    change(patients()).to_parquet("again.parquet")
    again = run("release", "again.parquet", *options(), SIGMA)
    assert again.exit_code == 2, again.output
    assert "η = 1" in again.stderr


@pytest.mark.minutes
def test_a_vote_of_every_release_counts(here):
    """ε = 0.4 of each vote: two or three together allow 75 % and more."""
    rng = np.random.default_rng(0)
    age, dose = rng.normal(50, 15, 520), rng.normal(100, 30, 520)
    response = 0.1 * dose + 0.3 * age + rng.normal(0, 5, 520)
    pd.DataFrame({"age": age, "dose": dose, "response": response}).to_parquet("t.parquet")
    ends = ["--domain=age=-50:150", "--domain=dose=-100:300", "--domain=response=-50:120"]
    rest = ["--sigma-epsilon=0.4", "--target-eta=0.5", *without_limits("--max-membership")]
    codes = []
    while len(codes) < 3 and (not codes or codes[-1] == 0):
        codes.append(run("release", "t.parquet", "--target=response", *ends, *rest).exit_code)
    assert codes[0] == 0
    assert codes[-1] == 1


def test_what_fails_spends_nothing(here, monkeypatch):
    """The disk is full when the folder takes its place, twice; the third try finds all of η."""
    patients().to_csv("t.csv", index=False)
    rename = os.rename

    def full(source, target, **more):
        if Path(target).name == "seepage-release":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(source, target, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", full)
        for _ in range(2):
            failed = run("release", "t.csv", *options(), SIGMA)
            assert failed.exit_code == 2, failed.output
            assert not Path("seepage-release").exists()
    assert run("release", "t.csv", *options(), SIGMA).exit_code == 0


def test_the_card_promises_no_whole_level(here):
    """At η = 0.981 an estimate that is unbiased at both values may be off by 0.785 levels only."""
    table = patients().assign(response=lambda t: np.where(t.response > 6, "yes", "no"))
    table.to_csv("t.csv", index=False)
    told = run("release", "t.csv", "--sigma=30", *options()[:4], *without_limits())
    assert told.exit_code == 0, told.output
    assert "of a whole level" not in Path("seepage-release/model-card.md").read_text("utf-8")


@pytest.fixture
def folder(here):
    X = np.random.default_rng(0).normal(size=(40, 2))
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(y=X @ [1.0, 2.0])
    frame.to_csv("t.csv", index=False)
    ends = ["--domain=a=-6:6", "--domain=b=-6:6", "--domain=y=-20:20"]
    rest = ["--sigma=9", "--target-eta=99", *ends, *without_limits()]
    told = run("release", "t.csv", "--target=y", *rest)
    assert told.exit_code == 0, told.output
    return Path("seepage-release")


def changed(folder, change):
    """Change the list of what leaves, and write its checksum into the manifest."""
    path, manifest = folder / "release.json", folder / "manifest.json"
    path.write_text(change(json.loads(path.read_text("utf-8"))), "utf-8")
    listing = json.loads(manifest.read_text("utf-8"))
    listing["files"]["release.json"] = hashlib.sha256(path.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(listing), "utf-8")


def with_column(**fields):
    def change(listing):
        listing["columns"][0] |= fields
        return json.dumps(listing)

    return change


FORGED = {
    "unit 0": with_column(unit=0.0),
    "unit -1": with_column(unit=-1.0),
    "two columns of one name": with_column(name="b"),
    "deep": lambda listing: json.dumps(listing)[:-1] + ', "x": ' + "[" * 9**5 + "]" * 9**5 + "}",
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_list_is_refused_in_a_sentence(folder, case):
    sp.load_release(folder)
    changed(folder, FORGED[case])
    with pytest.raises(ValueError, match=r"release\.json"):
        sp.load_release(folder)


def test_a_manifest_that_lists_nothing_is_refused(folder):
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text("utf-8")) | {"files": {}}))
    with pytest.raises(ValueError, match="manifest"):
        sp.load_release(folder)


def test_nobody_else_can_write_into_a_report(here):
    """Under a umask of 0 the folders are as private as under any other."""
    patients().to_csv("t.csv", index=False)
    before = os.umask(0)
    try:
        told = run("audit", "t.csv", "--target=response", "--quick", "--out=report")
    finally:
        os.umask(before)
    assert told.exit_code == 0, told.output
    for path in (Path("report"), *Path("report").rglob("*")):
        assert not path.stat().st_mode & 0o022, path


@pytest.mark.minutes
def test_a_class_of_one_record_is_no_failure(here, monkeypatch):
    monkeypatch.setattr("seepage.auditing.neighbours.CHECKED", 60)  # the last among them
    X = np.random.default_rng(0).standard_normal((60, 2))
    label = ["u", "v"] * 29 + ["u", "w"]
    pd.DataFrame(X, columns=["a", "b"]).assign(label=label).to_csv("t.csv", index=False)
    told = run("audit", "t.csv", "--target=label")
    assert told.exit_code == 0, told.output


def test_a_circle_of_links_is_answered_in_a_sentence(here):
    Path("one.csv").symlink_to("two.csv")
    Path("two.csv").symlink_to("one.csv")
    told = run("audit", "one.csv", "--target=y")
    assert told.exit_code == 2, told.output
    assert told.stderr.count("\n") == 1


def test_a_name_that_is_not_utf8_is_answered_in_a_sentence(here):
    patients().to_csv("good.csv", index=False)
    Path("good.csv").rename(os.fsdecode(b"\xff.csv"))
    told = run("audit", os.fsdecode(b"\xff.csv"), "--target=response")
    assert told.exit_code == 2, told.output
    assert told.stderr.count("\n") == 1


def test_what_membership_proves_is_guaranteed():
    """Of a record whose absence hardly moves the model, the advantage is not "at most 1"."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3))
    y = X[:, 0] + rng.normal(size=400) > 0
    leak = sp.leakage(sp.glm.LogisticRegression(l2=0.05).fit(X, y), X, y, noise=sp.Gaussian(0.1))
    proved = 2 * float(np.max(np.asarray(leak.membership().accuracy()))) - 1
    assert proved < 0.5
    lines = sp.guarantees(leak, domain=(-6, 6)).rows
    stated = [line.value for line in lines if line.name.startswith("advantage") and line.applies]
    assert min(stated) <= proved + 1e-9

"""Paths that no program can follow, and names that are not UTF-8: one sentence, status 2."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import seepage as sp
from seepage.cli import app

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 2))
FRAME = pd.DataFrame(X, columns=["a", "b"]).assign(label=X @ [1.0, -1.0] + RNG.normal(size=60))
NOT_TEXT = os.fsdecode(b"\xff")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with good files, files of a name that is not UTF-8, and links in a circle."""
    monkeypatch.chdir(tmp_path)
    FRAME.to_csv("good.csv", index=False)
    FRAME.to_parquet("good.parquet")
    Path("good.json").write_text('{"client": 1}')
    Path("good.npz").write_bytes(b"")
    Path("known.csv").write_text("node,glasses\n1,0\n2,1\n")
    for good in list(tmp_path.glob("good.*")):
        try:
            Path(NOT_TEXT + good.suffix).write_bytes(good.read_bytes())
        except OSError:
            pytest.skip("this file system takes UTF-8 names only")
    for suffix in (".csv", ".parquet", ".npz", ".json", ""):
        Path(f"one{suffix}").symlink_to(f"other{suffix}")
        Path(f"other{suffix}").symlink_to(f"one{suffix}")
    return tmp_path


READ = {
    "audit": ["audit", "{}.csv", "--target", "label"],
    "audit of parquet": ["audit", "{}.parquet", "--target", "label"],
    "audit by attack": ["audit", "{}.csv", "--target", "label", "--model-kind", "tree"],
    "audit of a model file": ["audit", "good.csv", "--target", "label", "--model-file", "{}.json"],
    "audit with public records": ["audit", "good.csv", "--target", "label", "--public", "{}.csv"],
    "columns": ["columns", "{}.csv"],
    "columns of parquet": ["columns", "{}.parquet"],
    "calibrate": ["calibrate", "{}.csv", "--target", "label"],
    "release": ["release", "{}.csv", "--target", "label", "--sigma", "1"],
    "layers": ["layers", "{}.npz", "--property", "known.csv"],
    "layers by property": ["layers", "good.npz", "--property", "{}.json"],
}
WRITTEN = {
    "audit": ["audit", "good.csv", "--target", "label", "--out", "{}"],
    "audit inside": ["audit", "good.csv", "--target", "label", "--out", "{}/report"],
    "audit by attack": ["audit", "good.csv", "--target=label", "--model-kind=tree", "--out", "{}"],
    "release": ["release", "good.csv", "--target", "label", "--sigma", "1", "--out", "{}"],
    "release's report": ["release", "good.csv", "--target", "label", "--report", "{}"],
    "release's ledger": ["release", "good.csv", "--target", "label", "--ledger", "{}.json"],
    "layers": ["layers", "good.npz", "--property", "known.csv", "--out", "{}"],
    "demo": ["demo", "--out", "{}"],
}


def refused(command, name):
    said = CliRunner().invoke(app, [part.format(name) for part in command])
    assert said.exit_code == 2, said.output
    assert said.stderr.startswith("error: ")
    assert said.stderr.count("\n") == 1
    said.stderr.encode()  # it can be printed anywhere
    return said.stderr


@pytest.mark.parametrize("case", READ)
def test_files_that_cannot_be_read(folder, case):
    assert "form a loop" in refused(READ[case], "one")
    assert r"\udcff" in (sentence := refused(READ[case], NOT_TEXT))
    assert "is not UTF-8" in sentence


@pytest.mark.parametrize("case", WRITTEN)
def test_folders_that_cannot_be_written(folder, case):
    assert "form a loop" in refused(WRITTEN[case], "one")


def test_a_folder_whose_name_is_not_utf8_is_written(folder):
    command = ["audit", "good.csv", "--target", "label", "--quick", "--out", NOT_TEXT]
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 0, said.output
    assert (folder / NOT_TEXT / "report.html").is_file()
    assert r"Report: \udcff/report.html" in said.stdout


def test_a_name_that_is_too_long(folder):
    command = ["audit", f"{'x' * 300}.csv", "--target", "label"]
    assert "cannot be opened: File name too long" in refused(command, "")


def test_the_same_in_python(folder):
    model = sp.glm.LinearRegression().fit(X, FRAME["label"])
    noise = sp.Gaussian(1.0)
    calls = (
        lambda path: sp.parquet(path, target="label"),
        lambda path: sp.parquet([path], target="label"),
        lambda path: sp.leakage(model, path, "label", noise=noise),
        lambda path: sp.glm.LinearRegression().fit(path, "label"),
    )
    for ask in calls:
        with pytest.raises(sp.InputError, match="form a loop"):
            ask("one.parquet")
        for name in (f"{NOT_TEXT}.parquet", Path(f"{NOT_TEXT}.parquet")):
            with pytest.raises(sp.InputError, match="is not UTF-8") as problem:
                ask(name)
            str(problem.value).encode()
    leak = sp.leakage(model, X, FRAME["label"], noise=noise)
    with pytest.raises(sp.InputError, match="form a loop"):
        leak.write_rows("one.parquet")
    with pytest.raises(sp.InputError, match="form a loop"):
        sp.report(sp.audit(model, X, FRAME["label"]), "one")
    with pytest.raises(sp.InputError, match="not a valid file name"):
        sp.parquet("a\0b.parquet", target="label")

"""The command that makes experiments again: its files, its words, its refusals."""

from __future__ import annotations

import json
import sys
import types

import pytest
from typer.testing import CliRunner

import reproduction
import seepage as sp
from reproduction import Experiment, reproducing
from reproduction.reproducing import reproduce
from seepage.cli import app


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, ["reproduce", *arguments])


def test_files_of_an_experiment(fake, run, tmp_path):
    result = run(fake.name, "--out", "results")
    assert result.exit_code == 0, result.output
    home = tmp_path / "results" / fake.name
    assert sorted(path.name for path in home.iterdir()) == [
        "figure.png",
        "figure.svg",
        "result.json",
    ]
    found = json.loads((home / "result.json").read_text())
    assert found["name"] == fake.name
    assert found["title"] == "A rising line"
    assert found["paper"] == "Hannun et al. 2021"
    assert found["quick"] is False
    assert found["seen"] == "The line rises."
    assert found["alternative"] == "A line from 0 to 1"
    assert found["seconds"] >= 0
    assert found["versions"]["seepage"] == sp.__version__
    assert {"python", "numpy", "scipy", "scikit-learn"} <= found["versions"].keys()
    first, second = found["quantities"]
    assert first["published"] == 0.04
    assert first["measured"] == 0.0405
    assert first["difference"] == pytest.approx(0.0005)
    assert (second["published"], second["measured"], second["difference"]) == (None, 100, None)
    assert (home / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (home / "figure.svg").read_text()


def test_what_it_tells(fake, run):
    lines = run(fake.name).output.splitlines()
    assert lines[0] == f"{fake.name}: A rising line (Hannun et al. 2021, Figure 1)"
    assert lines[2].split()[3:] == ["0.040", "0.04050", "+0.00050", "result", "agrees"]
    assert "  The line rises." in lines
    assert f"seepage-reproduction/{fake.name}/result.json" in lines[-2]


def test_a_quick_run_says_so(fake, run, tmp_path):
    result = run(fake.name, "--quick")
    assert "--quick" in result.output
    found = json.loads((tmp_path / "seepage-reproduction" / fake.name / "result.json").read_text())
    assert found["quick"] is True
    assert found["quantities"][1]["measured"] == 2


def test_as_json_it_tells_what_it_writes(fake, run, tmp_path):
    told = json.loads(run(fake.name, "--json").stdout)
    home = tmp_path / "seepage-reproduction" / fake.name
    assert told == json.loads((home / "result.json").read_text())
    first = told["quantities"][0]
    assert (first["verdict"], first["kind"], first["evidence"]) == ("agrees", "result", [])
    assert told["processor_seconds"] >= 0


def test_all_of_them(fake, run, tmp_path):
    assert run("all").exit_code == 0
    assert (tmp_path / "seepage-reproduction" / fake.name / "result.json").exists()


def test_of_all_those_without_their_data_are_left_out(fake, run, monkeypatch, tmp_path):
    def without_data(quick):
        raise sp.InputError("The data are not here.")

    module = types.SimpleNamespace(reproduce=without_data)
    monkeypatch.setitem(sys.modules, "reproduction.other.figure", module)
    other = Experiment("other-figure", "Guo et al. 2022", "Figure 9", "Another one")
    both = {other.name: other, fake.name: fake}
    for owner in (reproduction, reproducing):
        monkeypatch.setattr(owner, "EXPERIMENTS", both)
    result = run("all")
    assert result.exit_code == 0
    assert "other-figure is left out: The data are not here." in result.output
    assert "1 of 2 in " in result.output
    assert (tmp_path / "seepage-reproduction" / fake.name / "result.json").exists()
    other_left, made = json.loads(run("all", "--json").stdout)
    assert other_left == {"name": "other-figure", "left_out": "The data are not here."}
    assert made["name"] == fake.name
    alone = run("other-figure")
    assert alone.exit_code == 2
    assert "The data are not here." in alone.output


def test_the_same_twice(fake, draw_anew, run, tmp_path):
    home = tmp_path / "seepage-reproduction" / fake.name
    run(fake.name)
    first = {name: (home / name).read_bytes() for name in ("figure.svg", "figure.png")}
    draw_anew()
    run(fake.name)
    assert {name: (home / name).read_bytes() for name in first} == first


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("fake-figur1",), "did you mean 'fake-figure1'"),
        ((), "Name what to reproduce"),
        (("fake-figure1", "--out", "taken"), "'taken' is a file"),
    ],
)
def test_bad_input_is_one_line_and_status_two(fake, run, tmp_path, arguments, complaint):
    (tmp_path / "taken").write_text("")
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert complaint in result.stderr


def test_missing_data_is_the_loaders_own_sentence(run, monkeypatch, tmp_path):
    def refuse():
        raise sp.InputError("The data set mnist is not in /nowhere.")

    monkeypatch.setattr("reproduction.fil.image_models.LOADERS", {"MNIST": refuse})
    monkeypatch.setattr("reproduction.fil.image_models._problem", lambda data: refuse())
    result = run("fil-figure4")
    assert (result.exit_code, result.stderr) == (
        2,
        "error: The data set mnist is not in /nowhere.\n",
    )
    assert list(tmp_path.iterdir()) == []


def test_a_failure_leaves_the_earlier_result(fake, monkeypatch, tmp_path):
    reproduce(fake.name, tmp_path, quick=False, say=lambda line: None)
    before = (tmp_path / fake.name / "result.json").read_bytes()

    def fail(quick):
        raise sp.InputError("no luck")

    module = types.SimpleNamespace(reproduce=fail)
    monkeypatch.setitem(sys.modules, "reproduction.fake.figure1", module)
    with pytest.raises(sp.InputError, match="no luck"):
        reproduce(fake.name, tmp_path, quick=False, say=lambda line: None)
    assert (tmp_path / fake.name / "result.json").read_bytes() == before


def test_the_list(run):
    result = run("--list")
    assert result.exit_code == 0
    assert "fil-table1" in result.output

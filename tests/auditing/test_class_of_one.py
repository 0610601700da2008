"""A class that a single record has: an audit says what that gives away, and does not fail."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from seepage.auditing.release.procedure import Procedure
from seepage.cli import app


@pytest.fixture(params=[1, *(pytest.param(d, marks=pytest.mark.slow) for d in (2, 5))])
def table(request, tmp_path, monkeypatch):
    """60 records, of classes u and v in turn; the last alone has class w."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("seepage.auditing.neighbours.CHECKED", 60)  # the last among them
    X = np.random.default_rng(0).standard_normal((60, request.param))
    frame = pd.DataFrame(X, columns=[f"x{j}" for j in range(request.param)])
    frame["label"] = ["u", "v"] * 29 + ["u", "w"]
    frame.to_csv("three.csv", index=False)
    return "three.csv"


def test_an_audit_says_that_the_record_is_alone(table):
    """It failed with status 3 where a refit without the record had one class less."""
    said = CliRunner().invoke(
        app, ["audit", table, "--target", "label", "--json", "--remedies", "none"]
    )
    assert said.exit_code == 0, said.output
    told = json.loads(said.stdout)
    assert told["model"]["classes"] == ["u", "v", "w"]
    assert told["disclosures"]["checked"] == 60
    alone = [
        found["row"] for found in told["disclosures"]["found"] if "classes" in found["figures"]
    ]
    assert alone == [59]
    assert sum("row 59 is the only record of its class" in step for step in told["steps"]) == 1
    assert told["risks"]["row"] == 59
    assert told["risks"]["membership"] > 0.999
    guess = next(g for g in told["risks"]["guesses"] if g["prior"] == "frequencies")
    assert guess["row"] == 59
    assert guess["right"] > 0.999
    assert guess["baseline"] == 0.5  # the commonest class, of 30 records


@pytest.mark.slow
def test_several_records_alone_are_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(1).standard_normal((20, 1))
    frame = pd.DataFrame(X, columns=["a"])
    frame["label"] = [*["u", "v"] * 7, *"klmnop"]
    frame.to_csv("many.csv", index=False)
    said = CliRunner().invoke(
        app, ["audit", "many.csv", "--target", "label", "--json", "--remedies", "none"]
    )
    assert said.exit_code == 0, said.output
    summary = json.loads(said.stdout)
    found, steps = summary["disclosures"]["found"], summary["steps"]
    assert [one["row"] for one in found if one["figures"] == ["classes"]] == [*range(14, 20)]
    assert any("rows 14, 15, 16, 17, 18 and 1 more are each the only record" in s for s in steps)


def test_a_model_of_more_classes_is_no_start():
    rng = np.random.default_rng(0)
    table = pa.table({"a": rng.normal(size=40), "y": [*["u", "v", "t"] * 13, "w"]})
    procedure = Procedure(target="y", sigma=30.0, least_holders=1)
    near = procedure.fit(table)
    again = procedure.fit(table.slice(0, 39), near)
    scratch = procedure.fit(table.slice(0, 39))
    np.testing.assert_allclose(again.model.coef_, scratch.model.coef_, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [3, 4])
def test_a_release_says_that_the_record_is_alone(tmp_path, monkeypatch, classes):
    """Without the record a model of all classes is no start of a model of one class less."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("seepage.auditing.neighbours.CHECKED", 60)  # the last among them
    X = np.random.default_rng(0).standard_normal((60, 2))
    label = [*(["u", "v", "t"][: classes - 1] * 30)[:59], "w"]
    pd.DataFrame(X, columns=["a", "b"]).assign(label=label).to_csv("t.csv", index=False)
    limits = [f"--max-{name}=1" for name in ("membership", "guess-gain", "guess-tpr")]
    options = ["--least-holders=1", "--sigma=30", "--json", *limits]
    said = CliRunner().invoke(app, ["release", "t.csv", "--target=label", *options])
    assert said.exit_code == 0, said.output
    found = json.loads(said.stdout)["disclosures"]["found"]
    assert ("left out", 59) in [(one["change"], one["row"]) for one in found]
    entry = json.loads((tmp_path / "seepage-ledger.json").read_text("utf-8"))["releases"][0]
    assert entry["mu"][59] is None  # nothing is hidden

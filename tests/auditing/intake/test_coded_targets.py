"""A target of a few whole numbers may be codes of classes: that is said at once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import seepage as sp
from seepage.cli import app


@pytest.fixture
def audited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Return an audit of a target, as it is printed and as JSON has it."""
    monkeypatch.chdir(tmp_path)

    def audit(labels: np.ndarray, *options: str):
        rng = np.random.default_rng(0)
        x = rng.normal(size=len(labels)) + 0.3 * labels
        cells = zip(x, rng.normal(size=len(x)), labels, strict=True)
        lines = [f"{a:.4f},{b:.4f},{label:g}" for a, b, label in cells]
        (tmp_path / "stays.csv").write_text("\n".join(["a,b,status", *lines]))
        asked = ["audit", "stays.csv", "--target", "status", "--quick", "--sigma", "1", *options]
        said = CliRunner().invoke(app, asked)
        assert said.exit_code == 0, said.output
        return said.stdout, json.loads(Path("seepage-audit/summary.json").read_text("utf-8"))

    return audit


def draws(values: list[int], rows: int = 90) -> np.ndarray:
    return np.random.default_rng(1).choice(values, rows)


@pytest.mark.parametrize(
    ("values", "kind", "taken"),
    [
        ([1, 2, 3], "linear", "numbers"),
        ([-1, 0, 1], "linear", "numbers"),
        ([10, 20, 30, 40], "linear", "numbers"),
        ([0, 1, 2], "poisson", "counts"),
    ],
)
def test_codes_are_named_on_the_first_screen_and_in_the_steps(audited, values, kind, taken) -> None:
    said, summary = audited(draws(values))
    assert (summary["model"]["kind"], summary["model"]["codes"]) == (kind, len(values))
    words = f"has only {len(values)} different values, all whole numbers, and was read as {taken}"
    first = " ".join(said.partition("leakage η")[0].split())  # before any number
    assert words in first
    assert "use --categorical 'status'" in first
    assert any(words in step for step in summary["steps"])
    assert words in Path("seepage-audit/report.html").read_text("utf-8")


@pytest.mark.parametrize("option", [("--categorical", "status"), ("--model", "softmax")])
@pytest.mark.parametrize("values", [[1, 2, 3], [0, 1, 2]])
def test_either_remedy_makes_classes_of_them(audited, option, values) -> None:
    said, summary = audited(draws(values), *option)
    assert summary["model"]["kind"] == "softmax"
    assert summary["model"]["classes"] == [str(v) for v in values]
    assert summary["model"]["codes"] == 0
    assert "class codes" not in said


def test_whoever_states_the_model_is_not_asked(audited) -> None:
    said, summary = audited(draws([1, 2, 3]), "--model", "linear")
    assert (summary["model"]["kind"], summary["model"]["codes"]) == ("linear", 0)
    assert "class codes" not in said


def test_many_values_and_fractions_are_numbers(audited) -> None:
    for labels in (np.arange(90) % 11 + 1, draws([1, 2, 3]) / 2):
        said, summary = audited(labels)
        assert summary["model"]["codes"] == 0
        assert "class codes" not in said
    said, _ = audited(np.arange(90) % 30, "--verbose")  # counts in plain sight keep their line
    assert "read as counts" in said


def test_a_number_is_still_no_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"{k % 7},{k / 3:.3f}" for k in range(40)]
    Path("t.csv").write_text("\n".join(["a,y", *lines]))
    said = CliRunner().invoke(app, ["audit", "t.csv", "--target", "y", "--model", "softmax"])
    assert said.exit_code == 2
    assert "a number, which a softmax model cannot predict" in " ".join(said.output.split())


def test_an_audit_from_python_names_its_arguments(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=90), "status": draws([1, 2, 3])})
    found = sp.audit(table, target="status")
    page = sp.report(found, tmp_path / "report").read_text("utf-8")
    assert "has only 3 different values" in page
    steps = " ".join(json.loads((tmp_path / "report" / "summary.json").read_text("utf-8"))["steps"])
    assert "use categorical=['status']; if not, use quantities=['status']." in steps
    assert "--" not in steps
    classes = sp.audit(table, target="status", categorical=["status"])
    numbers = sp.audit(table, target="status", quantities=["status"])
    assert (classes.model, classes.codes) == ("softmax", 0)
    assert (numbers.model, numbers.codes) == ("linear", 0)

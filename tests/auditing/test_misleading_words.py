"""What a reader in a hurry would take wrongly: each was printed once, and is not any more."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.linear_model import Ridge
from typer.testing import CliRunner

import seepage as sp
from seepage.cli import app


def births() -> pa.Table:
    """A table like MASS::birthwt: 189 births, of whose mothers few are older than 35."""
    rng = np.random.default_rng(1)
    age = np.round(np.clip(rng.gamma(20, 1.15, 189), 14, 45))
    smoke = rng.random(189) < 0.4
    low = rng.random(189) < 1 / (1 + np.exp(0.9 + (age - 23) / 30 - 0.4 * smoke))
    return pa.table({"age": age, "smoke": smoke, "low": low})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    pq.write_table(births(), "births.parquet")
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


RELEASE = ("release", "births.parquet", "--target", "low", "--sigma", "1")


def scaled_with(table: pd.DataFrame, row: int, age: float) -> tuple[float, float]:
    """The published unit and centre of age with another age in one row, from their definition."""
    ages = table["age"].to_numpy(copy=True)
    ages[row] = age
    low, high = np.quantile(ages, [0.05, 0.95], method="inverted_cdf")
    wide = (high - low) / (2 * 1.6448536269514722)
    grid = [m * 10.0**k for k in range(-2, 4) for m in (2, 5)]
    unit = min(step for step in grid if step >= wide)
    return unit, round((low + high) / 2 / unit - 0.13) * unit


def test_a_release_whose_figures_rule_values_out_for_certain_is_not_to_be_shared(run) -> None:
    """The scaling of age would be another with the largest age in some rows: exit 0 before."""
    result = run(*RELEASE)
    summary = json.loads(Path("seepage-audit/summary.json").read_text("utf-8"))
    risks = summary["risks"]
    assert risks["replacing"] == ["scaling or levels of 'age'"]
    table = births().to_pandas()
    own = scaled_with(table, 0, table["age"][0])
    ends = [table["age"].min(), table["age"].max()]
    for row in risks["replaced"]:
        assert any(scaled_with(table, row, end) != own for end in ends)
    assert len(risks["replaced"]) > 1
    (gate,) = (g for g in summary["gates"] if g["name"] == "--max-guess-tpr")
    assert (gate["passed"], gate["measured"]) == (False, 1.0)
    assert f"({len(risks['replaced'])} rows of those tried)" in gate["text"]
    assert result.exit_code == 1
    assert "to be shared" not in result.stdout
    assert "Nothing was released" in result.stdout
    assert not Path("seepage-release").exists()


def test_a_declared_range_or_a_limit_of_one_releases_it(run) -> None:
    result = run(*RELEASE, "--domain", "age=10:60")
    assert result.exit_code == 0, result.output
    summary = json.loads(Path("seepage-audit/summary.json").read_text("utf-8"))
    assert summary["risks"]["replaced"] == []
    result = run(*RELEASE, "--max-guess-tpr", "1", "--out", "other", "--ledger", "other.json")
    assert result.exit_code == 0, result.output
    assert "within --max-guess-tpr: With other values of row" in result.stdout


def test_no_sentence_of_the_page_breaks_off(run) -> None:
    """The reason for σ ended in "does not depen…", and what a release discloses in "A numb…"."""
    run("audit", "births.parquet", "--target", "low", "--quick", "--out", "audit")
    run(*RELEASE)
    for folder in ("audit", "seepage-audit"):
        page = Path(folder, "report.html").read_text("utf-8")
        assert not re.findall(r".{0,60}…", re.sub(r"(?s)<script.*?</script>", "", page))
    page = Path("audit/report.html").read_text("utf-8")
    assert "in advance (--sigma; noise= in Python) does not depend" in page


def test_one_limit_is_the_limit(run) -> None:
    """It read "1 of 1 limit you set is not met."."""
    limited = ("audit", "births.parquet", "--target", "low", "--quick", "--json", "--max-eta")
    told = json.loads(run(*limited, "0.1").stdout)["verdict"]["headline"]
    assert told == "Do not release: the limit you set is exceeded."
    told = json.loads(run(*limited, "0.1", "--max-membership", "0.99").stdout)["verdict"]
    assert told["headline"] == "Do not release: 1 of the 2 limits you set is exceeded."
    told = json.loads(run(*limited, "0.1", "--max-membership", "0.51").stdout)["verdict"]
    assert told["headline"] == "Do not release: 2 of the 2 limits you set are exceeded."


@pytest.mark.parametrize(
    "ask", [lambda leak: leak.within("target", 1), lambda leak: leak.guess("target")]
)
def test_who_asks_for_the_label_by_its_name_is_told_how_to_ask(ask) -> None:
    """It was asked whether 'worst area' was meant."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(60, 2)), columns=["worst area", "weight"])
    y = pd.Series(X["weight"] + rng.normal(size=60), name="target")
    leak = sp.leakage(Ridge(1.0).fit(X, y), X, y, noise=sp.Gaussian(1.0))
    with pytest.raises(sp.InputError) as refused:
        ask(leak)
    assert str(refused.value) == (
        "There is no column 'target' among the features. The label has no column name: to "
        "measure it, leave the column out or pass None."
    )
    assert leak.within(None, 1).right.shape == (60,)
    with pytest.raises(sp.InputError, match="did you mean 'worst area'"):
        leak.within("worst aera", 1)


def test_membership_on_the_page_is_that_of_the_first_screen(run) -> None:
    """It said "advantage, at most – does not apply" below a screen of 89 in 100."""
    run("audit", "births.parquet", "--target", "low", "--out", "audit", "--sigma", "0.1")
    summary = json.loads(Path("audit/summary.json").read_text("utf-8"))
    (line,) = (b for b in summary["guarantees"] if b["bound"] == "advantage, this record")
    assert line["value"] is not None
    assert 0 < line["value"] <= 2 * summary["risks"]["membership"] - 1 + 1e-9
    assert "advantage, at most" not in Path("audit/report.html").read_text("utf-8")

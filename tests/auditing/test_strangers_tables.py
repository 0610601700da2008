"""Tables that nobody here has made or prepared, each audited by one command."""

import json
from pathlib import Path

import pytest
import sklearn
import statsmodels
from typer.testing import CliRunner

from sampled import sampled
from seepage.cli import app

STATSMODELS = Path(statsmodels.__file__).parent / "datasets"
SKLEARN = Path(sklearn.__file__).parent / "datasets" / "data"

# What each needs to be told, besides the target; the kind of model that follows; its records.
TABLES = {
    "anes96/anes96.csv": (["--target", "vote"], "logistic", 944),  # tabs, names in apostrophes
    "spector/spector.csv": (["--target", "GRADE"], "logistic", 32),  # spaces
    # semicolons, and four rows of each of 210 people
    "modechoice/modechoice.csv": (
        ["--target", "choice", "--person", "individual"],
        "logistic",
        210,
    ),
    "star98/star98.csv": (["--target", "MATHTOT"], "linear", 303),  # a column without a name
    "fertility/fertility.csv": (["--target", "2005", "--missing", "drop"], "linear", 192),  # gaps
    "grunfeld/grunfeld.csv": (["--target", "invest"], "linear", 220),  # a category of firms
    "statecrime/statecrime.csv": (["--target", "murder"], "linear", 51),  # an identifier
    "strikes/strikes.csv": (["--target", "duration"], "linear", 62),  # padded numbers
    "scotland/scotvote.csv": (["--target", "YES"], "linear", 32),
    "engel/engel.csv": (["--target", "foodexp"], "linear", 235),
    "ccard/ccard.csv": (["--target", "AVGEXP"], "linear", 72),
    "linnerud_exercise.csv": (["--target", "Chins"], "linear", 20),
}


@pytest.mark.parametrize("name", sampled(list(TABLES), 4))
def test_a_strangers_table_is_audited_by_one_command(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, model, records = TABLES[name]
    path = STATSMODELS / name if "/" in name else SKLEARN / name
    result = CliRunner().invoke(app, ["audit", str(path), *words, "--quick", "--json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["model"]["kind"] == model
    assert found["records"]["count"] == records
    assert 0 < found["records"]["eta"]["1"] <= 1 + 1e-9

"""The demo end to end: what it prints and what it writes."""

import json
import stat

import numpy as np
import pytest
from typer.testing import CliRunner

from seepage.cli import app
from seepage.demo import SIGMA, measure


@pytest.fixture(scope="module")
def audit():
    return measure()


def test_the_demo_writes_a_figure_and_private_numbers(tmp_path):
    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    for words in ("569 patients", "Most leaked records", "Most leaked attributes", "What to do"):
        assert words in result.output
    summary = tmp_path / "leakage.json"
    assert stat.S_IMODE(summary.stat().st_mode) == 0o600
    numbers = json.loads(summary.read_text())
    assert len(numbers["records"]) == 569
    assert len(numbers["attributes"]) == 30
    assert "do not publish" in numbers["notice"]
    assert (tmp_path / "leakage.png").read_bytes().startswith(b"\x89PNG")


def test_the_advice_holds(audit):
    """With the noise it names, the smallest error on a single cell is one standard deviation."""
    smallest = (audit["cells"] / audit["spread"]).min()
    assert smallest * audit["enough"].sigma / SIGMA == pytest.approx(1.0, rel=1e-12)


def test_a_record_leaks_at_least_as_much_as_its_parts(audit):
    rows = np.asarray(audit["rows"])
    assert np.all(rows >= np.asarray(audit["measurements"]) * (1 - 1e-12))
    assert np.all(rows >= np.asarray(audit["diagnosis"]) * (1 - 1e-12))

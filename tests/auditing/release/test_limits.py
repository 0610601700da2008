"""A release states membership and guesses as it is made, and nothing leaves above their limits."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.csv as pa_csv
import pytest
from release_cases import people, stays
from typer.testing import CliRunner

import seepage.auditing.neighbours as neighbours
from seepage.auditing.findings import RELEASED_OR_NOT
from seepage.auditing.questions import MAX_GUESS_GAIN, MAX_MEMBERSHIP, Limits
from seepage.auditing.release.making import make_release
from seepage.auditing.release.procedure import Procedure
from seepage.auditing.report.rendering import tell
from seepage.cli import app


def released(sigma):
    command = ["release", "stays.csv", "--target", "los", "--sigma", sigma]
    return CliRunner().invoke(app, command)


def test_the_noise_that_is_named_is_enough(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pa_csv.write_csv(stays(2001), tmp_path / "stays.csv")
    assert released("0.1").exit_code == 1
    summary = json.loads((tmp_path / "seepage-audit" / "summary.json").read_text())
    membership = summary["gates"][0]
    assert f"σ = {membership['enough']:g} would be enough" in membership["text"]
    result = released(str(membership["enough"]))
    assert result.exit_code == 0, result.output
    card = (tmp_path / "seepage-release" / "model-card.md").read_text()
    assert "membership inference succeeds at most 75 % of the time" in card
    summary = json.loads((tmp_path / "seepage-audit" / "summary.json").read_text())
    assert 0.6 < summary["risks"]["membership"] <= MAX_MEMBERSHIP


def test_a_figure_that_gives_a_row_away_counts_as_certain_membership():
    made = make_release(
        Procedure(target="los", sigma=1.0),
        stays(200, outlier=False),
        limits=Limits(max_membership=MAX_MEMBERSHIP, max_guess_gain=MAX_GUESS_GAIN),
        name="stays",
        tell=lambda words: None,
    )
    risks = made.audit.risks
    assert risks.membership < MAX_MEMBERSHIP  # through the noisy numbers
    assert len(risks.disclosed) == neighbours.CHECKED
    assert risks.disclosing == ("number of records",)
    assert risks.recognised == 1.0
    membership, gain = made.audit.gates
    assert (membership.passed, membership.measured) == (False, 1.0)
    assert gain.passed
    told = tell("gate", made.audit, membership)
    assert told.endswith("close to the next value of its grid.")


def test_no_noise_is_advised_against_a_figure_beside_the_numbers():
    made = make_release(
        Procedure(target="los", sigma=1.0),
        stays(200, outlier=False),
        limits=Limits(max_membership=0.6),
        name="stays",
        tell=lambda words: None,
    )
    (noise,) = [r for r in made.audit.remedies if r.kind == "noise"]
    said = tell("remedy", made.audit, noise)
    assert said.startswith("No noise helps: number of records would change without")
    assert noise.sigma < 100
    assert "then succeeds" not in said


def test_the_advice_fits_the_figure_that_changes():
    scaling = tell("how_to_hide", ("scaling or levels of 'age'",))
    assert scaling == "Declare the range of such a column with --domain."
    for said in (
        tell("how_to_hide", (RELEASED_OR_NOT,)),
        tell("disclosed", {RELEASED_OR_NOT}, [3], "row"),
    ):
        assert "larger --sigma or --target-eta" in said
        assert "--domain" not in said


def test_what_is_drawn_beside_the_numbers_counts():
    def gates(**options):
        procedure = Procedure(target="ill", drop=("number",), rare="drop", **options)
        made = make_release(
            procedure,
            people(),
            limits=Limits(max_membership=MAX_MEMBERSHIP, max_guess_gain=MAX_GUESS_GAIN),
            name="people",
            tell=lambda words: None,
        )
        return made.prepared, made.audit

    prepared, audit = gates()
    # Ten to twelve blocks vote with ε = 16 over their number: 79 % by randomised response.
    assert prepared.vote.epsilon > 1.3
    assert audit.risks.membership >= 1 / (1 + np.exp(-prepared.vote.epsilon)) > MAX_MEMBERSHIP
    assert audit.gates[0].beside == pytest.approx(1 / (1 + np.exp(-audit.risks.epsilon)))
    assert audit.gates[0].enough is None
    assert "declare the noise with --sigma" in tell("gate", audit, audit.gates[0])
    _, audit = gates(sigma=0.5)
    assert all(gate.passed for gate in audit.gates)
    assert audit.risks.epsilon == 0
    worst = max(guess.gain for guess in audit.risks.guesses)
    assert audit.gates[1].measured == worst < MAX_GUESS_GAIN

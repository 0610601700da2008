"""Gates: within, over, and who is named."""

import io
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from people import encoded_people

from coarse import point_above
from seepage.auditing.audit import ONLY_NOISE, audit_table
from seepage.auditing.command import progress
from seepage.auditing.findings import RecordLeakage
from seepage.auditing.gates import held_to
from seepage.auditing.questions import Limits
from seepage.auditing.report.audit_report import AuditReport
from seepage.auditing.report.rendering import tell
from seepage.errors import InputError


@pytest.fixture(scope="module")
def audit():
    encoded = encoded_people("logistic", groups=["town"])
    found = audit_table(encoded, name="people", effort=ONLY_NOISE)
    # Row numbers of the caller's table, which are not positions among the records.
    every = found.records.every
    records = RecordLeakage(every.row + 1000, every.numbers, every.errors)
    return replace(found, records=records)


def test_without_limits_there_is_no_gate(audit):
    assert held_to(Limits(), audit).gates == ()


def test_calibrated_noise_meets_its_own_target(audit):
    worst = audit.eta.max()
    assert 0.6 < worst <= 1.0
    (gate,) = held_to(Limits(max_eta=1.0), audit).gates
    assert gate.passed
    assert gate.measured == pytest.approx(worst)
    (gate,) = held_to(Limits(min_mse=1.0), audit).gates
    assert gate.passed
    assert gate.measured == pytest.approx(worst**-2.0)


@pytest.mark.parametrize(("name", "limit"), [("max_eta", 0.5), ("min_mse", 4.0)])
def test_offenders_are_named_by_row_worst_first(audit, name, limit):
    (gate,) = held_to(Limits(**{name: limit}), audit).gates
    over = int(np.sum(audit.eta > 0.5))
    assert not gate.passed
    assert over > 10
    worst = audit.row_index[np.argsort(-audit.eta)[:10]]
    assert (gate.over, gate.rows) == (over, tuple(worst))
    assert gate.enough == point_above(2 * audit.sigma * audit.eta.max())
    told = tell("gate", audit, gate)
    assert f"{over} records (rows {', '.join(map(str, worst))} and {over - 10} more)" in told
    assert f"σ = {gate.enough:g} would be enough" in told


def test_one_offender_is_one(audit):
    limit = float(np.mean(np.sort(audit.eta)[-2:]))
    (gate,) = held_to(Limits(max_eta=limit), audit).gates
    assert (gate.over, gate.rows) == (1, (audit.row_index[np.argmax(audit.eta)],))
    assert tell("gate", audit, gate).startswith(f"1 record (row {gate.rows[0]}) leaks")


def test_groups(audit):
    ratio = audit.groupings[0].ratio
    within, over = (
        held_to(Limits(max_group_ratio=ratio), audit).gates,
        held_to(Limits(max_group_ratio=ratio * 0.999), audit).gates,
    )
    assert within[0].passed
    assert not over[0].passed
    assert over[0].measured == ratio
    assert over[0].where == "town"
    told = tell("gate", audit, over[0])
    assert "'town'" in told
    assert not any(group.label in told for group in audit.groupings[0].groups)


def test_gates_come_together(audit):
    gates = held_to(Limits(max_eta=2, min_mse=0.1, max_group_ratio=1000), audit).gates
    assert [g.name for g in gates] == ["--max-eta", "--min-mse", "--max-group-ratio"]
    assert all(g.passed for g in gates)


def test_without_a_report_none_is_spoken_of(audit, capsys):
    AuditReport(audit).tell(Path("out") / "report.html", as_json=False)
    assert "Report: out/report.html" in capsys.readouterr().out
    AuditReport(audit).tell(None, as_json=False)
    said = capsys.readouterr().out
    assert "people" in said
    assert "Report:" not in said


@pytest.mark.parametrize(
    "limits", [{"max_eta": 0}, {"min_mse": -1}, {"max_group_ratio": 0.5}, {"max_eta": np.nan}]
)
def test_limits_that_mean_nothing_are_refused(audit, limits):
    with pytest.raises(InputError, match="must be"):
        held_to(Limits(**limits), audit)


def test_a_group_ratio_needs_groups(audit):
    with pytest.raises(InputError, match="--group"):
        held_to(Limits(max_group_ratio=2), replace(audit, groupings=()))


def test_a_bar_names_the_stage_on_a_terminal_and_nowhere_else(monkeypatch):
    told = {}
    for terminal in (True, False):
        told[terminal] = io.StringIO()
        told[terminal].isatty = lambda terminal=terminal: terminal
        monkeypatch.setattr(sys, "stderr", told[terminal])
        with progress(2) as tell:
            tell("fitting")
    assert "fitting" in told[True].getvalue()
    assert told[False].getvalue() == ""

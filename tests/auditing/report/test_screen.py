"""What a terminal shows after an audit: one screen, whose numbers are the fields of the summary."""

from __future__ import annotations

import inspect
import json
import os
import pty
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from seepage.auditing.demo import measure
from seepage.auditing.findings import Audit, UsefulnessFinding
from seepage.auditing.gates import held_to
from seepage.auditing.questions import GROUP_OF, Limits, Question
from seepage.auditing.report.audit_report import AuditReport, tell_briefly
from seepage.auditing.report.words import number, percent
from seepage.cli import app


@pytest.fixture(scope="module")
def demo() -> Audit:
    return measure()


@pytest.fixture
def show(capsys: pytest.CaptureFixture[str]):
    def printed(audit: Audit, page: Path | None = Path("seepage-audit/report.html")) -> list[str]:
        tell_briefly(AuditReport(audit), page)
        return capsys.readouterr().out.splitlines()

    return printed


def cells(lines: list[str]) -> list[list[str]]:
    return [re.split(r"  +", line.strip()) for line in lines]


def fits(lines: list[str]) -> bool:
    return len(lines) <= 25 and all(cell_len(line) <= 80 for line in lines)


def test_the_demo_fits_a_screen_and_prints_its_fields(demo: Audit, show) -> None:
    lines, summary = show(demo), AuditReport(demo).summary()
    assert fits(lines), lines
    assert lines[:2] == [
        "Over the default limit: 3 of 569 records can be recognised as members, up to",
        "88.7 % of the time (limit 75 %, chance 50 %); guesses gain 37.3 points.",
    ]
    said, risks = cells(lines), summary["risks"]
    row = f"row {risks['recognised_row']}"
    assert [
        "a row recognised as in the data", percent(risks["recognised"]), "50 %, chance", row
    ] in said  # fmt: skip
    guess = max(risks["guesses"], key=lambda g: g["gain"])
    baseline = f"{percent(guess['baseline'])} without it"
    words = f"“{guess['name']}” guessed right"
    assert [words, percent(guess["right"]), baseline, f"row {guess['row']}"] in said
    error, constant = summary["release"]["test_error"], summary["release"]["constant_error"]
    assert [
        "error rate, unseen records",
        f"{100 * error:.1f} %",
        f"{100 * constant:.1f} % for a constant",
    ] in said
    worst = number(summary["records"]["eta"]["1"])
    assert [
        "leakage η",
        worst,
        "1, the default limit",
        f"row {summary['records']['worst_row']}",
    ] in said
    # Cost and benefit of every remedy, in the order of the summary.
    table = said[said.index(next(c for c in said if c[0] == "remedy, by error")) :]
    tried = [remedy for remedy in summary["remedies"] if remedy["error"] is not None]
    for line, remedy in zip(table[2:], tried, strict=False):
        taken = {f"σ = {remedy['sigma']:.3g}", f"λ = {remedy['l2'] or 0:.3g}"}
        assert any(change in line[0] for change in taken)
        assert line[1] == number(remedy["eta"])
        member = remedy["membership"]
        assert line[2] == ("not measured" if member is None else percent(member))
        assert line[-1] == remedy["compared"]
        assert line[4] == f"{100 * remedy['error']:.1f} %"
    assert lines[-3] == "Report: seepage-audit/report.html"
    assert " ".join(lines[-2:]).startswith("These numbers depend on the data")
    assert lines[-1].endswith("More: --verbose.")


def test_a_useless_remedy_says_so_in_its_line(demo: Audit, show) -> None:
    worse = UsefulnessFinding(-0.2, -0.3, -0.1, 5)
    useless = tuple(replace(remedy, usefulness=worse) for remedy in demo.remedies)
    lines = show(replace(demo, remedies=useless))
    assert sum(line.endswith("worse") for line in lines) == len(useless)
    short = tuple(replace(r, membership=0.9, reaches_target=False) for r in demo.remedies)
    assert sum(line.endswith("not enough") for line in show(replace(demo, remedies=short))) == 3


def test_everything_at_once_still_fits(demo: Audit, show) -> None:
    """All gates, long names, a long path and more notices than there is room for."""
    limits = Limits(
        max_eta=0.1, min_mse=2, max_group_ratio=1, max_membership=0.51, max_guess_gain=0.01,
        max_guess_tpr=0.02,
    )  # fmt: skip
    full = replace(demo, gates=held_to(limits, demo).gates, source="x" * 90, target="y" * 90)
    lines = show(full)
    assert fits(lines), lines
    over = [line for line in lines if line.startswith("OVER --max-eta 0.1: measured 16.3; σ = ")]
    assert len(over) == 1
    noticed = show(replace(full, notices=("A long notice, word by word. " * 9,) * 2))
    assert fits(noticed), noticed
    assert "Read the notices first, in the report or with --verbose." in noticed
    noticed = show(replace(demo, notices=("The table looks like a panel.",)))
    assert fits(noticed)
    assert noticed[2] == "Notice: The table looks like a panel."
    codes = show(replace(demo, codes=3))
    assert any(line.startswith("Notice: The target 'diagnosis' has only 3") for line in codes)


def test_what_was_not_measured_is_not_left_out_silently(demo: Audit, show) -> None:
    lines = show(replace(demo, risks=None, risks_reason="No refits.", remedies=()))
    assert "Membership and guesses were not measured; --verbose gives the reason." in lines
    assert not any("guessed right" in line or "recognised" in line for line in lines[2:])


def table(folder: Path) -> str:
    rng = np.random.default_rng(0)
    age, dose = rng.normal(50, 9, 80), rng.normal(3, 1, 80)
    ill = np.where(age + rng.normal(0, 9, 80) > 50, "yes", "no")
    pa_csv.write_csv(pa.table({"age": age, "dose": dose, "ill": ill}), folder / "t.csv")
    return str(folder / "t.csv")


def test_the_command_prints_one_screen_and_verbose_prints_the_rest(tmp_path: Path) -> None:
    asked = ["audit", table(tmp_path), "--target", "ill", "--quick", "--out", str(tmp_path / "o")]
    asked += ["--attacker", "knows=0.5", "--sigma", "0.5"]
    brief = CliRunner().invoke(app, asked)
    lines = brief.stdout.splitlines()
    assert (brief.exit_code, len(lines) <= 25) == (0, True), brief.output
    assert "\x1b" not in brief.stdout
    informed, outsider = (i for i, line in enumerate(lines) if "50 %, chance" in line)
    assert outsider > informed  # an estimate never stands alone
    summary = json.loads((tmp_path / "o" / "summary.json").read_text("utf-8"))
    told = " ".join(" ".join(lines).split())
    assert f"about {percent(summary['outsider']['membership'])}" in told
    assert "(estimate)" in told
    bare = CliRunner().invoke(app, asked[:-2]).stdout  # no σ: for the model as it is
    said = cells(bare.splitlines())
    assert ["no noise: all others known", "100 %", "50 %, chance"] in said
    assert any(line[0].startswith("no noise: an attacker") for line in said)
    assert len(bare.splitlines()) <= 25
    whole = CliRunner().invoke(app, [*asked, "--verbose"]).stdout
    for words in ("What was done to the data:", "Columns that an unbiased attack", "Is any row"):
        assert words in whole
        assert words not in brief.stdout


def test_an_audit_by_attack_prints_one_screen_too(tmp_path: Path) -> None:
    asked = ["audit", table(tmp_path), "--target", "ill", "--model-kind", "tree"]
    asked += ["--out", str(tmp_path / "o")]
    brief, whole = (CliRunner().invoke(app, [*asked, *more]) for more in ([], ["--verbose"]))
    lines = [part for line in brief.stdout.splitlines() for part in textwrap.wrap(line, 80) or [""]]
    assert len(lines) <= 25
    assert "  - class disclosure:" in whole.stdout
    assert "  - class disclosure:" not in brief.stdout


def test_a_terminal_has_colour_and_a_pipe_has_none(tmp_path: Path) -> None:
    """The screen of a pseudo-terminal."""
    code = (
        "from seepage.auditing.demo import measure\n"
        "from seepage.auditing.report.audit_report import AuditReport, tell_briefly\n"
        "tell_briefly(AuditReport(measure()), None)\n"
    )
    command = [sys.executable, "-c", code]
    ours, theirs = pty.openpty()
    clean = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR")}
    environment = clean | {"TERM": "xterm"}
    subprocess.run(command, stdout=theirs, check=True, env=environment)  # noqa: S603
    os.close(theirs)
    seen = os.read(ours, 4096).decode()
    os.close(ours)
    assert "\x1b[1;33mOver the default limit" in seen
    piped = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=True, env=environment
    )
    assert piped.stdout.startswith("Over the default limit: ")


def test_options_stand_in_named_groups() -> None:
    told = CliRunner().invoke(app, ["audit", "--help"], env={"COLUMNS": "120"}).stdout
    heads = re.findall(r"╭─ (.*?) ─", told)
    own = inspect.signature(Question).parameters
    assert {group for name, group in GROUP_OF.items() if name in own} <= set(heads)
    limits = told.partition("╭─ Limits")[2].partition("╭─")[0]
    assert "--max-membership" in limits
    assert "--separator" not in limits


@pytest.mark.parametrize(
    ("words", "offered"),
    [("seepage aud", "audit"), ("seepage audit --max-mem", "--max-membership")],
)
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands_and_options(shell: str, words: str, offered: str) -> None:
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    asked |= {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    asked |= {"_SEEPAGE_COMPLETE": f"complete_{shell}"}
    told = CliRunner().invoke(app, prog_name="seepage", env=asked).stdout
    assert offered in told
    script = (
        CliRunner()
        .invoke(app, prog_name="seepage", env={"_SEEPAGE_COMPLETE": f"source_{shell}"})
        .stdout
    )
    assert "_SEEPAGE_COMPLETE=complete_" in script

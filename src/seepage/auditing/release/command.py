"""Implementation of ``seepage release``."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from seepage.auditing.audit import RISKS, find_versions
from seepage.auditing.command import planned, progress
from seepage.auditing.decision.check import PendingCheck
from seepage.auditing.findings import ONE_PERSON, ONE_ROW
from seepage.auditing.gates import check_limits
from seepage.auditing.intake.parquet import read_whole
from seepage.auditing.intake.plan_file import PlanFile
from seepage.auditing.intake.table import TableInMemory
from seepage.auditing.questions import FileOptions, Limits, ReleaseQuestion
from seepage.auditing.release.contents import check_origin
from seepage.auditing.release.ledger import (
    BudgetSpentError,
    PastRelease,
    UnrecognisedRecordsWarning,
    open_ledger,
)
from seepage.auditing.release.making import MadeRelease, make_release
from seepage.auditing.release.procedure import Procedure
from seepage.auditing.report.audit_report import AuditReport
from seepage.auditing.report.rendering import json_text, to_plain
from seepage.auditing.report.verdict import tell_disclosures, tell_ledger, warn_of_constant
from seepage.core.result import NOTICE
from seepage.errors import InputError
from seepage.support.files import check_folder, check_path
from seepage.tables.names import shown

SCHEMA = "seepage-release-summary/2"
# What the summary of a release has in common with that of its audit
_SHARED = ("gates", "passed", "preset", "risks", "risks_reason", "disclosures", "ledger")


def run_release(
    table: Path,
    question: ReleaseQuestion,
    folders: Mapping[str, Path],
    *,
    options: FileOptions,
    limits: Limits,
    origin: Mapping[str, Path | None] | None = None,
    as_json: bool = False,
    check: Path | None = None,
) -> bool:
    """Make a release from a table, write both folders and the ledger, and print the findings.

    ``folders`` maps ``release`` and ``report`` to folders, and ``ledger`` to a file. ``origin``
    maps ``sign`` to a signing key, and ``replaces`` to the folder of the release being replaced. If
    a limit is exceeded, only the private report is written. Return whether all limits are met.
    """
    ledger = folders["ledger"]
    _keep_apart(*folders.values())
    check_limits(limits, False)
    origin = origin or {}
    check_origin(**origin)
    for kind in ("release", "report"):
        check_folder(folders[kind], kind, (table, ledger))
    inputs = {"table": table} | ({} if question.plan is None else {"plan": question.plan})
    pending = None
    if check is not None:
        pending = PendingCheck(check, inputs, folders.values(), question, options, limits)
    raw = read_whole(table, options)
    procedure = Procedure(**vars(planned(question)))
    if procedure.plan is not None:
        PlanFile.read(procedure.plan).check(TableInMemory(raw), procedure.target)
    for name in procedure.domains:
        if name not in raw.column_names:
            raise InputError(
                f"There is no column {shown(name)} for --domain; name a column of the table."
            )
    with open_ledger(ledger) as held:
        before = held.ledger
        doubts = before.recognise(raw, procedure.person).doubts
        doubts += before.doubts_about(folders["release"])
        for doubt in doubts:
            typer.echo(f"warning: {doubt}", err=True)
        with progress(2 + RISKS.stages) as tell, warnings.catch_warnings():
            warnings.simplefilter("ignore", UnrecognisedRecordsWarning)  # said above
            procedure = replace(procedure, ledger=before)
            try:
                made = make_release(procedure, raw, limits=limits, name=table.name, tell=tell)
            except BudgetSpentError as refusal:
                if as_json:
                    summary = _summary_of_refusal(procedure, table.name, limits, str(refusal))
                    typer.echo(json_text(summary), nl=False)
                raise
        if pending is not None:
            pending.compare()
        report = ReleaseReport(made, folders)
        page = AuditReport(made.audit).write(folders["report"], keep=(table, ledger))
        left = folders["release"] if report.verdict.passed else None
        if left is not None:
            # The ledger lists the release once it is complete and before anybody can see it.
            with held.prepared(release_entry(procedure, made), left) as complete:
                made.release.write(left, keep=(table, ledger), complete=complete, **origin)
        if pending is not None:
            pending.write(report, "release", left)
    return report.tell(page, as_json=as_json)


def _summary_of_refusal(
    procedure: Procedure, source: str, limits: Limits, reason: str
) -> dict[str, Any]:
    """Return :meth:`ReleaseReport.summary` where the ledger refused, so nothing was measured."""
    unmeasured = ("risks", "disclosures", "ledger", "usefulness", "choice", "sigma_reason")
    return {
        "schema": SCHEMA,
        "notice": NOTICE,
        "source": source,
        "unit": ONE_ROW if procedure.person is None else ONE_PERSON,
        "model": {
            "kind": procedure.model,
            "target": procedure.target,
            "l2": procedure.l2,
            "intercept": True,
            "classes": [],
            "codes": 0,
        },
        "verdict": {"tone": "bad", "label": "Privacy budget spent", "headline": reason},
        "released": False,
        "sigma": procedure.sigma,
        "target_eta": procedure.target_eta,
        **dict.fromkeys((*unmeasured, "epsilon", "delta")),
        "items": [],
        "gates": [],
        "passed": False,
        "preset": limits.preset,
        "risks_reason": reason,
        "folders": {},
        "versions": find_versions(),
    }


def release_entry(procedure: Procedure, made: MadeRelease) -> PastRelease:
    """Return the ledger entry of a release."""
    prepared = made.prepared
    trained, recognition = prepared.trained, prepared.recognition
    assert recognition is not None  # noqa: S101 - the procedure was given a ledger
    about = {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "what": "release",
        "target": procedure.target,
        "family": trained.settings.model,
        "sigma": prepared.sigma,
        "target_eta": procedure.target_eta,
        "unit": trained.unit,
        "seats": f"{prepared.seats.seed:032x}",  # so that an attack knows who voted where
        "guesses": made.guesses.as_json(),
        "replaced": {
            change: {"epsilon": epsilon, "delta": delta}
            for change, (epsilon, delta) in made.replaced.items()
        },
    }
    return PastRelease(about, made.loss.at(trained.records.owner), recognition.people)


def _keep_apart(out: Path, report: Path, ledger: Path) -> None:
    """Raise an error if a private file would be written into the release folder."""
    for path in (out, report, ledger):
        check_path(path)
    shared, private = out.resolve(), report.resolve()
    if private.is_relative_to(shared) or shared.is_relative_to(private):
        raise InputError(
            "The report is private: --report and --out must be different folders, neither inside "
            "the other."
        )
    if ledger.resolve().is_relative_to(shared) or ledger.resolve().is_relative_to(private):
        raise InputError("The ledger is private: put it outside --out and --report.")


class ReleaseReport(AuditReport):
    """The private report for the author, on a release that was written or withheld.

    ``folders`` are those of :func:`run_release`.
    """

    screen = "release.txt.j2"

    def __init__(self, made: MadeRelease, folders: Mapping[str, Path]) -> None:
        super().__init__(made.audit)
        self.made, self.folders = made, folders

    def about(self) -> dict[str, Any]:
        """Return the variables of the report template."""
        check, ledger = self.audit.disclosures, self.audit.ledger
        return super().about() | {
            "made": self.made,
            "folders": self.folders,
            "ledger_lines": [] if ledger is None else tell_ledger(ledger),
            "disclosed": [] if check is None else tell_disclosures(check)[:1],
            "useless": warn_of_constant(self.audit),
        }

    def summary(self) -> dict[str, Any]:
        """Return the release, or why it was withheld, as JSON values (see ``docs/report.md``)."""
        made, passed, whole = self.made, self.verdict.passed, super().summary()
        noise = whole["release"]
        written = self.folders if passed else {"report": self.folders["report"]}
        plain: dict[str, Any] = to_plain(
            {
                "schema": SCHEMA,
                **{key: whole[key] for key in ("notice", "source", "unit", "model", "verdict")},
                "released": passed,
                **{key: noise[key] for key in ("sigma", "choice", "sigma_reason")},
                "target_eta": made.audit.target_eta,
                "epsilon": made.epsilon,
                "delta": made.delta,
                "items": [asdict(item) for item in made.release.items],
                **{key: whole[key] for key in _SHARED},
                "usefulness": made.usefulness and asdict(made.usefulness),
                "folders": {name: str(path) for name, path in written.items()},
                "versions": whole["versions"],
            }
        )
        return plain

"""What ``seepage release`` does between the command line and the two folders."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import typer

from seepage.auditing.audit import RISKS
from seepage.auditing.command import all_passed, progress, tell_gates
from seepage.auditing.gates import Limits
from seepage.auditing.intake.files import FileOptions
from seepage.auditing.intake.plan_file import PlanFile
from seepage.auditing.intake.table import TableInMemory
from seepage.auditing.release.ledger import ReleaseLedger, UnrecognisedRecordsWarning
from seepage.auditing.release.making import MadeRelease, make_release
from seepage.auditing.release.procedure import Domain, Procedure
from seepage.auditing.report import summarise, write_report
from seepage.auditing.report.words import (
    judge,
    tell_disclosures,
    tell_ledger,
    tell_noise,
    warn_of_constant,
)
from seepage.auditing.report.writing import json_text, to_plain
from seepage.core.result import NOTICE
from seepage.errors import InputError
from seepage.support.files import check_folder, check_path, only_writer
from seepage.tables.names import escaped, shown

SCHEMA = "seepage-release-summary/1"
# What the summary of a release has in common with that of its audit
_SHARED = ("gates", "passed", "risks", "risks_reason", "disclosures", "ledger")


def run_release(
    table: Path,
    procedure: Procedure,
    *,
    out: Path,
    report: Path,
    ledger: Path,
    options: FileOptions,
    limits: Limits,
    plan: PlanFile | None = None,
    as_json: bool = False,
) -> bool:
    """Make a release of a table, write both folders and the ledger, and print what leaves.

    Above a limit nothing leaves: only the private report is written. Returns whether all are met.
    """
    _keep_apart(out, report, ledger)
    limits.check(False)
    for folder, kind in ((out, "release"), (report, "report")):
        check_folder(folder, kind, (table, ledger))
    raw = _read(table, options)
    procedure = _planned(procedure, plan, raw)
    for name in procedure.domain:
        if name not in raw.column_names:
            raise InputError(f"There is no column {shown(name)} for --domain.")
    with only_writer(ledger):
        before = ReleaseLedger.read(ledger)
        for doubt in before.recognise(raw, procedure.identity).doubts:
            typer.echo(f"warning: {doubt}", err=True)
        with progress(2 + RISKS.stages) as tell, warnings.catch_warnings():
            warnings.simplefilter("ignore", UnrecognisedRecordsWarning)  # said above
            procedure = replace(procedure, ledger=before)
            made = make_release(procedure, raw, limits=limits, name=table.name, tell=tell)
        passed = all_passed(judge(made.audit), as_json=as_json)
        if passed:
            # The ledger first: no release may exist that it does not list.
            eta = made.prepared.eta / made.prepared.sigma
            entry = _entry(procedure, made)
            recognition = made.prepared.recognition
            assert recognition is not None  # noqa: S101 - the procedure was given a ledger
            before.with_release(entry, recognition.people, eta).write(ledger)
        page = write_report(made.audit, report, keep=(table, ledger))
        if passed:
            made.release.write(out, keep=(table, ledger))
    if as_json:
        folders = {"report": report} | ({"release": out, "ledger": ledger} if passed else {})
        typer.echo(json_text(summarise_release(made, folders)), nl=False)
    elif passed:
        _tell(made, out, page, ledger)
    else:
        _tell_refusal(made, page)
    return passed


def _read(table: Path, options: FileOptions) -> pa.Table:
    """Read a file, or a folder of Parquet files, into memory, to change records one by one."""
    if not table.is_dir():
        return options.read(table)
    from seepage.auditing.intake.parquet import TableInChunks
    from seepage.streams.disk.files import open_batches

    options.refuse_in_chunks()
    return TableInChunks.of(open_batches(table)).whole()


def read_domain(given: Sequence[str]) -> Domain:
    """Return the ends of columns' domains from ``column=low:high``."""
    ends = {}
    for text in given:
        name, _, interval = text.rpartition("=")
        low, _, high = interval.partition(":")
        try:
            ends[name] = (float(low), float(high))
        except ValueError:
            raise InputError(f"--domain takes column=low:high, not {shown(text)}.") from None
        if not name or not ends[name][0] < ends[name][1] or not all(map(math.isfinite, ends[name])):
            raise InputError(
                f"--domain takes column=low:high with low below high, not {shown(text)}."
            )
    return ends


def _keep_apart(out: Path, report: Path, ledger: Path) -> None:
    """Refuse to put anything private where the release goes."""
    for path in (out, report, ledger):
        check_path(path)
    shared, private = out.resolve(), report.resolve()
    if private.is_relative_to(shared) or shared.is_relative_to(private):
        raise InputError("The report is private: --report and --out must be two separate folders.")
    if ledger.resolve().is_relative_to(shared) or ledger.resolve().is_relative_to(private):
        raise InputError("The ledger is private: keep it outside --out and --report.")


def _planned(procedure: Procedure, plan: PlanFile | None, raw: pa.Table) -> Procedure:
    """Return a procedure with the plan's columns in place of the options."""
    target = procedure.target or (plan.target if plan is not None else None)
    if not target:
        raise InputError("Which column does the model predict? Name it with --target.")
    if plan is None:
        return procedure
    plan.check(TableInMemory(raw), target)
    if plan.sensitive or plan.group:
        raise InputError("A release takes no sensitive columns or groups: audit those first.")
    drop = tuple(dict.fromkeys([*procedure.drop, *plan.of_kind("drop", but=[target])]))
    return replace(
        procedure,
        target=target,
        drop=drop,
        categorical=(*procedure.categorical, *plan.of_kind("categorical", but=drop)),
        quantities=(*procedure.quantities, *plan.of_kind("numeric", but=(target, *drop))),
        missing=plan.missing if procedure.missing == "refuse" else procedure.missing,
    )


def _entry(procedure: Procedure, made: MadeRelease) -> dict[str, object]:
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "target": procedure.target,
        "family": made.prepared.trained.settings.model,
        "sigma": made.prepared.sigma,
        "target_eta": procedure.target_eta,
    }


def summarise_release(made: MadeRelease, folders: Mapping[str, Path]) -> dict[str, Any]:
    """Return what was released or refused as plain JSON values; ``docs/report.md`` has the schema.

    ``folders`` are those that were written: of a refused release, the private report alone.
    """
    whole = summarise(made.audit)
    noise = whole["release"]
    plain: dict[str, Any] = to_plain(
        {
            "schema": SCHEMA,
            **{key: whole[key] for key in ("notice", "source", "model", "verdict")},
            "released": "release" in folders,
            **{key: noise[key] for key in ("sigma", "choice", "sigma_reason")},
            "target_eta": made.audit.target_eta,
            "epsilon": made.epsilon,
            "items": [asdict(item) for item in made.release.items],
            **{key: whole[key] for key in _SHARED},
            "usefulness": None if made.usefulness is None else asdict(made.usefulness),
            "folders": {name: str(path) for name, path in folders.items()},
            "versions": whole["versions"],
        }
    )
    return plain


def _disclosed(made: MadeRelease) -> list[str]:
    check = made.audit.disclosures
    return [] if check is None else tell_disclosures(check)[:1]


def _tell_refusal(made: MadeRelease, page: Path) -> None:
    """Say which limits are exceeded, and that nothing was released."""
    verdict = judge(made.audit)
    typer.echo(f"{verdict.label}: {verdict.headline}")
    tell_gates(verdict)
    for sentence in _disclosed(made):
        typer.echo(f"\n{sentence}")
    typer.echo("\nNothing was released, and nothing was added to the ledger.")
    typer.echo(f"Report, private: {escaped(str(page))}")
    typer.echo(NOTICE)


def _tell(made: MadeRelease, out: Path, page: Path, ledger: Path) -> None:
    say = typer.echo
    say("What leaves:")
    for item in made.release.items:
        say(f"  - {item}")
    say("")
    say(tell_noise(made.audit))
    ledger_lines = () if made.audit.ledger is None else tell_ledger(made.audit.ledger)
    for sentence in (*ledger_lines, *_disclosed(made)):
        say(sentence)
    tell_gates(judge(made.audit))
    if worse := warn_of_constant(made.audit):
        say(worse)
    say(f"\nRelease, to be shared: {escaped(str(out))}")
    say(f"Report, private: {escaped(str(page))}")
    say(f"Ledger, private: {escaped(str(ledger))}")
    say(NOTICE)

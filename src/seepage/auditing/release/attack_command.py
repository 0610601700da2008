"""What ``seepage attack-release`` prints."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import typer

from seepage.auditing.command import planned
from seepage.auditing.intake.files import read_file
from seepage.auditing.questions import FileOptions, ReleaseQuestion
from seepage.auditing.release.attack import Attack, attack_release
from seepage.auditing.release.contents import read_release
from seepage.auditing.release.ledger import (
    ReleaseLedger,
    UnrecognisedRecordsWarning,
    find_ledger,
)
from seepage.auditing.release.procedure import Procedure
from seepage.auditing.report.words import percent
from seepage.core.result import NOTICE
from seepage.errors import InputError
from seepage.support.files import check_path
from seepage.support.number_check import check_count
from seepage.support.text_table import text_table
from seepage.tables.names import shown


def run_release_attack(
    table: Path,
    question: ReleaseQuestion,
    options: FileOptions,
    *,
    row: int | None,
    releases: int,
    folder: Path | None = None,
    ledger: Path | None = None,
) -> bool:
    """Attack, print what was seen beside what is stated, and return whether no statement failed.

    ``folder`` is a release whose entry in the ledger is held to it; without one, a new release.
    """
    check_count(releases, "releases", 100)
    raw = read_file(table, options)
    procedure, listed = Procedure(**vars(planned(question))), None
    if folder is not None:
        before, listed = _listed(folder, ledger)
        procedure = replace(procedure, ledger=before if before.releases else None)
        _check_same(procedure, raw, folder, listed)
    elif ledger is not None:
        raise InputError("Name the release whose entry in the ledger is meant with --folder.")
    with warnings.catch_warnings():
        # The release warned of records that its ledger cannot tell; every table here would again.
        warnings.simplefilter("ignore", UnrecognisedRecordsWarning)
        found = list(attack_release(procedure, raw, releases=releases, row=row, listed=listed))
    level = 1 - 0.001 / len(found)  # 99.9 % over all changes together
    cells = [(attack.change, *_cells(attack)) for attack in found]
    heads = ("CHANGE", "TOLD APART", "STATED AT MOST", "FIGURES THAT DIFFER")
    typer.echo(f"Row {found[0].row}, {releases:,} releases of each table; chance is 50 %.")
    typer.echo(text_table(cells, heads))
    failed = [attack.change for attack in found if attack.exceeds(level)]
    for change in failed:
        typer.echo(f"MORE OFTEN THAN STATED (99.9 %): {change}. Do not release; please report it.")
    typer.echo(NOTICE)
    return not failed


def _listed(folder: Path, ledger: Path | None) -> tuple[ReleaseLedger, ReleaseLedger]:
    """Return the ledger before a release, and one with its entry alone."""
    path = find_ledger() if ledger is None else ledger
    for place in (folder, path):
        check_path(place)
    if not path.is_file():
        raise InputError(f"There is no ledger {shown(path.name)}; name the file with --ledger.")
    return ReleaseLedger.read(path).split_at(folder)


def _check_same(procedure: Procedure, raw: pa.Table, folder: Path, listed: ReleaseLedger) -> None:
    """Refuse a folder that was made of another table, or with other options."""
    published, about = read_release(folder), listed.entries[0].about
    trained = procedure.fit(raw)
    values = {item.name: item.value for item in published.items}
    asked = {
        "target": (about.get("target"), procedure.target),
        "family": (about.get("family"), trained.settings.model),
        "unit": (about.get("unit"), trained.unit),
        "--target-eta": (about.get("target_eta"), procedure.target_eta),
        "--l2": (values.get("penalty λ"), trained.settings.l2),
        "number of rows": (len(listed.entries[0]), len(trained.records)),
    }
    for name, (theirs, ours) in asked.items():
        if theirs != ours:
            raise InputError(
                f"The release in {shown(folder.name)} was made of another table or with other "
                f"options: its {name} is {theirs}, not {ours}."
            )


def _cells(attack: Attack) -> tuple[str, str, str]:
    if attack.disclosed:
        return "always", "always", ", ".join(attack.disclosed)
    return percent(attack.seen), percent(attack.stated), "none"

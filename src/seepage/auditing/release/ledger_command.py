"""Implementation of ``seepage ledger``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import typer

from seepage.auditing.intake.parquet import read_whole
from seepage.auditing.questions import FileOptions
from seepage.auditing.release.ledger import (
    VOIDED,
    OpenLedger,
    PastRelease,
    Recognition,
    find_ledger,
    open_ledger,
    state_of,
)
from seepage.auditing.report.rendering import json_text, tell
from seepage.errors import InputError
from seepage.risks.privacy_loss import PrivacyLoss
from seepage.support.files import check_path, write_frame
from seepage.support.text_table import text_table
from seepage.tables.names import escaped, shown

SCHEMA = "seepage-ledger-summary/1"
_HEADS = ("ENTRY", "WHEN", "WHAT", "STATE", "RECORDS", "η", "μ", "ε", "δ", "η, ALL", "SUCCESS, ALL")


def show_ledger(
    path: Path | None,
    table: Path | None,
    options: FileOptions,
    *,
    person: str | None,
    target_eta: float,
    people: Path | None,
    as_json: bool,
) -> None:
    """Print the entries of a ledger, and the remaining privacy budgets of the people in a table.

    ``people`` is the private Parquet file to write, with the privacy losses and the remaining η of
    every row.
    """
    if table is None and (people is not None or person is not None):
        raise InputError(
            "The ledger stores no values: --person and --people also need TABLE, the table of the "
            "people."
        )
    raw = None if table is None else read_whole(table, options)
    with _opened(path) as held:
        entries = list(_entries(held))
        found = None if raw is None else held.ledger.recognise(raw, person)
    summary: dict[str, Any] = {"schema": SCHEMA, "ledger": str(held.path), "entries": entries}
    if found is not None:
        summary["table"] = _of_table(found, target_eta)
        if people is not None:
            write_frame(_frame(found, target_eta), people)
    if as_json:
        typer.echo(json_text(summary), nl=False)
        return
    typer.echo(text_table([_line(entry) for entry in entries], _HEADS) if entries else "No entry.")
    if found is not None and table is not None:
        for doubt in found.doubts:
            typer.echo(f"warning: {doubt}", err=True)
        typer.echo("\n" + tell("left", escaped(table.name), summary["table"], person is not None))
    if people is not None:
        typer.echo(f"Rows, private: {escaped(str(people))}")


def void_entry(path: Path | None, number: int, reason: str) -> None:
    """Void an entry of a ledger."""
    with _opened(path) as held:
        held.void(number, reason)
    typer.echo(f"Entry {number} is now voided: {escaped(reason)}")


def _opened(path: Path | None) -> Any:
    place = find_ledger() if path is None else path
    check_path(place)
    if not place.is_file():
        if path is not None:
            raise InputError(f"There is no ledger at {shown(str(place))}; check --ledger.")
        if os.environ.get("SEEPAGE_LEDGER"):
            raise InputError(f"There is no ledger at {shown(str(place))}; check SEEPAGE_LEDGER.")
        raise InputError(
            f"There is no ledger {shown(place.name)} in this folder or the project's folders above "
            "it; change to the project's folder, or give the file with --ledger."
        )
    return open_ledger(place)


def _entries(held: OpenLedger) -> Iterator[dict[str, Any]]:
    """Yield each entry with its records' largest privacy losses, in it and over all entries."""
    for number, entry in enumerate(held.ledger.entries, 1):
        about = {key: value for key, value in entry.about.items() if key != "folder"}
        folder = entry.about.get("folder")
        yield {
            "entry": number,
            **about,
            "state": state_of(entry),
            "folder": None if folder is None else folder["path"],
            "records": len(entry),
            "largest": _largest(entry.loss),
            "over_all": (
                _largest(held.ledger.total(entry.people).loss)
                if isinstance(entry, PastRelease)
                and state_of(entry) != VOIDED
                and held.ledger.of_one_form
                else None
            ),
        }


def _largest(loss: PrivacyLoss) -> dict[str, float]:
    """Return the largest η, μ, ε and δ, and the largest success rate of membership inference."""
    numbers = {**loss.columns, "membership": loss.membership()}
    return {name: float(np.max(values, initial=0.0)) for name, values in numbers.items()}


def _line(entry: dict[str, Any]) -> tuple[str, ...]:
    largest, total = entry["largest"], entry["over_all"]
    what = " of ".join(str(entry[key]) for key in ("what", "target") if entry.get(key))
    return (
        str(entry["entry"]),
        str(entry.get("when", "")),
        escaped(what or "release"),
        entry["state"],
        f"{entry['records']:,}",
        *(_number(largest[name]) for name in ("eta", "mu", "epsilon", "delta")),
        "" if total is None else _number(total["eta"]),
        "" if total is None else f"{100 * total['membership']:.1f} %",
    )


def _number(value: float) -> str:
    return f"{value:.3g}" if np.isfinite(value) else "no bound"


def _of_table(found: Recognition, target_eta: float) -> dict[str, Any]:
    """Return a summary of the privacy losses of a table's rows."""
    eta = found.loss.eta
    return {
        "rows": len(eta),
        "known": int(np.sum(found.known)),
        "target_eta": target_eta,
        "spent": int(np.sum(eta >= target_eta)),
        "median_eta": float(np.median(eta)) if len(eta) else 0.0,
        "largest": _largest(found.loss),
        "doubts": list(found.doubts),
    }


def _frame(found: Recognition, target_eta: float) -> pa.Table:
    """Return the privacy loss and the remaining η of every row."""
    left = np.sqrt(np.maximum(target_eta**2 - found.spent, 0.0))
    return pa.table(
        {
            "row": np.arange(len(left)),
            "known": found.known,
            **found.loss.columns,
            "membership": found.loss.membership(),
            "eta_left": left,
        }
    )

"""Implementation of ``seepage explain``, which prints and draws the explanation of a budget."""

from __future__ import annotations

from pathlib import Path

import typer

from seepage.auditing.explaining.explanation import explain
from seepage.auditing.questions import BudgetQuestion


def run_explanation(question: BudgetQuestion, *, picture: Path | None, as_json: bool) -> None:
    """Print the explanation of a privacy budget."""
    found = explain(**vars(question))
    drawn = None if picture is None else found.picture(picture)
    typer.echo(found.to_json() if as_json else str(found), nl=not as_json)
    if drawn is not None and not as_json:
        typer.echo(f"\nPicture: {drawn}")

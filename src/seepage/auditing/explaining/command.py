"""Implementation of ``seepage explain``, which prints and draws the explanation of a budget."""

from __future__ import annotations

from pathlib import Path

import typer

from seepage.auditing.explaining.explanation import explain
from seepage.auditing.questions import BudgetQuestion
from seepage.errors import InputError


def run_explanation(question: BudgetQuestion, *, picture: Path | None, as_json: bool) -> None:
    """Print the explanation of a privacy budget, and draw the ROC curves if requested."""
    if question.epsilon is None and question.noise_multiplier is None:
        raise InputError(
            "Give a budget, --epsilon 8 --delta 1e-5, or the settings of private SGD, "
            "--noise-multiplier 1 --sample-rate 0.01 --steps 1000 --delta 1e-5."
        )
    found = explain(**vars(question))
    drawn = None if picture is None else found.picture(picture)
    typer.echo(found.to_json() if as_json else str(found), nl=not as_json)
    if drawn is not None and not as_json:
        typer.echo(f"\nPicture: {drawn}")

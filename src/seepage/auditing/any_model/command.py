"""What ``seepage audit --model-kind`` does: read a table, fit, attack, write and print."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import typer

from seepage.auditing.any_model.attack_audit import audit_estimator, make_estimator
from seepage.auditing.any_model.report import (
    judge_attack,
    summarise_attack,
    tell_risk,
    write_attack_report,
)
from seepage.auditing.command import Question, list_columns, planned, progress
from seepage.auditing.intake.table import TableInMemory, encode, plan_columns
from seepage.auditing.report.writing import json_text
from seepage.auditing.trained_model import RecordsInMemory
from seepage.core.result import NOTICE
from seepage.errors import InputError
from seepage.support.files import check_folder
from seepage.tables.names import escaped, shown

_LINEAR_ONLY = ("model", "l2", "sigma", "target_eta", "model_file", "refit", "dask", "workers")


def run_attack_audit(question: Question, kind: str, *, out: Path | None, as_json: bool) -> None:
    """Audit a kind of model by attack on a table in a file, write the report, print it."""
    for option in _LINEAR_ONLY:
        if getattr(question, option) is not None:
            raise InputError(
                f"--{option.replace('_', '-')} is for linear models; leave it out with "
                "--model-kind."
            )
    if question.show_values:
        raise InputError("--show-values is for linear models; leave it out with --model-kind.")
    question = planned(question)
    if not question.target:
        list_columns(question)
    make_estimator(kind, True)  # refused before the table is read
    if out is not None:
        check_folder(out, "report", question.inputs)
    with progress(4) as tell:
        tell("reading")
        table = TableInMemory(question.options.read(question.table))
        if question.plan is not None:
            question.plan.check(table, question.target)
        plan = plan_columns(
            table,
            question.target,
            drop=question.drop,
            categorical=question.categorical,
            quantities=question.quantities,
            missing=question.missing,
        )
        encoded = encode(table, plan, scale=question.scale, drop_first=False)
        source = cast(RecordsInMemory, encoded.source)
        classes = encoded.target_kind in ("binary", "multiclass")
        audit = audit_estimator(
            make_estimator(kind, classes),
            np.asarray(source.X),
            np.asarray(source.y),
            source=question.table.name,
            target=encoded.target,
            steps=encoded.steps,
            tell=tell,
        )
    page = None if out is None else write_attack_report(audit, out, question.inputs)
    if as_json:
        typer.echo(json_text(summarise_attack(audit)), nl=False)
        return
    verdict = judge_attack(audit)
    what = f"{audit.model} of {shown(audit.target)}"
    typer.echo(f"{shown(audit.source)}: {what} on {audit.records:,} records.")
    typer.echo(f"\n{verdict.label}: {verdict.headline}")
    for sentence in verdict.sentences:
        typer.echo(f"  {sentence}")
    typer.echo("\nWhat the model gives away by how it is made:")
    for risk in audit.structure:
        typer.echo(f"  - {risk.name}: {tell_risk(risk)}")
    if page is not None:
        typer.echo(f"\nReport: {escaped(str(page))}")
    typer.echo(NOTICE)

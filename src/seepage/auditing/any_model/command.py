"""Implementation of ``seepage audit --model-kind``."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np

from seepage.auditing.any_model.attack_audit import audit_estimator, make_estimator
from seepage.auditing.any_model.limits import check_attack_limits
from seepage.auditing.any_model.report import AttackReport
from seepage.auditing.audit import check_rows
from seepage.auditing.command import open_table, planned, progress, roles
from seepage.auditing.decision.check import PendingCheck
from seepage.auditing.intake.table import encode
from seepage.auditing.questions import Limits, Question
from seepage.auditing.trained_model import RecordsInMemory
from seepage.errors import InputError
from seepage.support.files import check_folder

_LINEAR_ONLY = [
    "model",
    "l2",
    "sigma",
    "target_eta",
    "model_file",
    "refit",
    "dask",
    "workers",
    "show_values",
    "person",
    "attacker",
]


def run_attack_audit(
    question: Question,
    kind: str,
    limits: Limits,
    *,
    out: Path | None,
    as_json: bool,
    check: Path | None = None,
    verbose: bool = False,
) -> bool:
    """Audit a model kind by attack on a table in a file; write and print the report."""
    asked = question, limits
    check_attack_limits(limits)
    for option in _LINEAR_ONLY:
        if getattr(question, option) not in (None, False):
            raise InputError(
                f"--{option.replace('_', '-')} applies only to linear models; leave it out with "
                "--model-kind."
            )
    question = planned(question)
    make_estimator(kind, True)  # refused before the table is read
    if out is not None:
        check_folder(out, "report", question.inputs)
    pending = None
    if check is not None:
        folders = () if out is None else (out,)
        pending = PendingCheck(check, question.named_inputs, folders, *asked)
        pending.settings["model_kind"] = kind
    with progress(4) as tell:
        tell("reading")
        table = open_table(question)
        encoded = encode(table, roles(question, table), scale=question.scale, drop_first=False)
        source = cast(RecordsInMemory, encoded.source)
        check_rows(len(source))
        classes = encoded.target_kind in ("binary", "multiclass")
        audit = audit_estimator(
            make_estimator(kind, classes),
            np.asarray(source.X),
            np.asarray(source.y),
            together={one.name: one.columns for one in encoded.attributes},
            limits=limits,
            groups={name: source.beside[name] for name in encoded.groups},
            source=question.table.name,
            target=encoded.target,
            steps=encoded.steps,
            tell=tell,
        )
    report = AttackReport(audit, verbose)
    if pending is not None:
        pending.compare()
    page = None if out is None else report.write(out, question.inputs)
    if pending is not None:
        pending.write(report, "audit")
    return report.tell(page, as_json=as_json)

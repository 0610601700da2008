"""``sp.report``: the report of an audit of either kind, written into a folder."""

from __future__ import annotations

import os
from pathlib import Path

from seepage.auditing.any_model.attack_audit import AttackAudit
from seepage.auditing.any_model.report import AttackReport
from seepage.auditing.findings import Audit
from seepage.auditing.report.audit_report import AuditReport
from seepage.errors import InputError


def report(audit: Audit | AttackAudit, folder: str | os.PathLike[str] = "seepage-audit") -> Path:
    """Write the report of an audit into a folder, private to its owner; return its page's path.

    The folder holds what :func:`~seepage.auditing.report.rendering.Report.write`
    lists; for an audit by attack, of
    :func:`seepage.audit_estimator`, the page, ``summary.json`` and ``records.parquet``. In a
    notebook, an audit of a linear model shows the same page.

    Examples
    --------
    >>> import tempfile, seepage as sp
    >>> wine = sp.data.load_bundled("wine")
    >>> model = sp.glm.LogisticRegression(l2=0.1).fit(wine.X, wine.y == 0)
    >>> found = sp.audit(model, wine.X, wine.y == 0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     sp.report(found, f"{folder}/report").name
    'report.html'
    """
    if isinstance(audit, Audit):
        return AuditReport(audit).write(folder)
    if isinstance(audit, AttackAudit):
        return AttackReport(audit).write(folder)
    raise InputError(
        "sp.report writes what sp.audit(model, X, y) or sp.audit_estimator(model, X, y) found, not "
        f"a {type(audit).__name__}."
    )

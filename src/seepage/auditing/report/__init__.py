"""The report, which presents an audit's findings in words and in machine-readable form.

This package turns an :class:`~seepage.auditing.findings.Audit` into sentences, figures, a
self-contained page, a summary, a table of records and a paragraph for a model card. Other kinds of
audits use the same renderer. This package measures nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from seepage.auditing.findings import SCHEMA, Audit
from seepage.auditing.report.audit_report import AuditReport
from seepage.auditing.report.rendering import json_text

__all__ = ["SCHEMA", "summarise", "to_json", "write_report"]


def write_report(audit: Audit, out: str | os.PathLike[str], *, keep: Sequence[Path] = ()) -> Path:
    """Write the report of an audit into a folder; see ``Report.write``."""
    return AuditReport(audit).write(out, keep)


def summarise(audit: Audit) -> dict[str, Any]:
    """Return the summary of an audit as plain JSON values."""
    return AuditReport(audit).summary()


def to_json(audit: Audit) -> str:
    """Return the summary as JSON text."""
    return json_text(AuditReport(audit).summary())

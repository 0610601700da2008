"""Display of an audit: the verdict in an interpreter, the whole report in a notebook."""

from __future__ import annotations

import textwrap
from html import escape

from seepage.auditing.findings import ONE_PERSON, Audit
from seepage.auditing.report.audit_report import AuditReport
from seepage.auditing.report.rendering import tell
from seepage.auditing.report.words import number_of
from seepage.tables.names import counted


def _counted(audit: Audit) -> str:
    if audit.unit == ONE_PERSON:
        return f"{audit.records.rows:,} rows of {number_of(audit.records.count, audit.unit)}"
    return f"{audit.records.count:,} records"


class ReportRendering:
    """Shows the report as a short text, or as a frame in a notebook."""

    def text(self, audit: Audit) -> str:
        """Return the name of the audited data, and the verdict."""
        verdict = AuditReport(audit).verdict
        lines = [
            f"<Audit of {audit.source}: a {audit.model} model of {audit.target!r} on "
            f"{_counted(audit)}, {counted(audit.released, 'number')} released, "
            f"σ = {audit.sigma:.4g}",
            *(f"Notice: {notice}" for notice in audit.notices),
            f"{verdict.label}: {verdict.headline}",
            *verdict.sentences[:4],  # more would not fit a screen
            *filter(None, [tell("outsider", audit)]),
            "sp.report(audit, folder) writes the full report.",
        ]
        return (
            "\n  ".join(textwrap.fill(line, 98, subsequent_indent="    ") for line in lines) + ">"
        )

    def html(self, audit: Audit) -> str:
        """Return the report as an HTML frame."""
        report = AuditReport(audit)
        page = escape(report.page(report.figures()))
        return (
            f'<iframe srcdoc="{page}" title="Report of an audit" sandbox="allow-scripts" '
            'style="width: 100%; height: 640px; border: 1px solid #888"></iframe>'
        )

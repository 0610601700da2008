"""The report: what an audit found, written for people and for machines.

This folder turns an :class:`~seepage.auditing.findings.Audit` into sentences, figures, a
self-contained page, a summary, a table of records and a paragraph for a model card. Nothing here
measures anything.
"""

from seepage.auditing.findings import SCHEMA
from seepage.auditing.report.writing import summarise, to_json, write_report

__all__ = ["SCHEMA", "summarise", "to_json", "write_report"]

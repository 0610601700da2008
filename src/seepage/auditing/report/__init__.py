"""The report: a self-contained page, the numbers beside it, and a paragraph for a model card."""

from seepage.auditing.report.summary import SCHEMA, summarise, to_json
from seepage.auditing.report.writing import write_report

__all__ = ["SCHEMA", "summarise", "to_json", "write_report"]

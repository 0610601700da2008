"""The report on recorded rounds of federated learning: what updates tell about the clients.

This folder turns a :class:`~seepage.layers.recording_audit.RecordingAudit` into sentences,
figures, a page, a summary and a table of clients, with the pieces and in the style of the report on
tables. Nothing here measures anything.
"""

from seepage.auditing.report.rounds.words import SCHEMA, RecordingReport
from seepage.auditing.report.rounds.writing import (
    summarise_recording,
    write_recording_report,
)

__all__ = ["SCHEMA", "RecordingReport", "summarise_recording", "write_recording_report"]

"""Recorded rounds of federated learning: ``seepage layers`` and its report.

This package turns a :class:`~seepage.layers.recording_audit.RecordingAudit` into sentences,
figures, a page, a summary and a table of clients, like the report on tables.
"""

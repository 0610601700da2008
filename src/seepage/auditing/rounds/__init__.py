"""Recorded rounds of federated learning: ``seepage layers`` and its report.

A :class:`~seepage.layers.recording_audit.RecordingAudit` becomes sentences, figures, a page, a
summary and a table of clients, in the style of the report on tables.
"""

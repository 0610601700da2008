"""The report: what an audit found, written for people and for machines.

This folder turns an :class:`~seepage.auditing.findings.Audit` into sentences, figures, a
self-contained page, a summary, a table of records and a paragraph for a model card; the rooms of
other kinds of audits do so for theirs with the same renderer. Nothing here measures anything.
"""

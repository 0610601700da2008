"""Measures how much a model leaks about its training table, and reports the findings.

Tables of all sizes use the same code path. The intake reads a table, plans its columns and encodes
it. :mod:`~seepage.auditing.audit` fits the model, measures it, chooses the noise, computes its cost
and tries remedies. The report presents the findings. The measures themselves come from the packages
that this one imports.
"""

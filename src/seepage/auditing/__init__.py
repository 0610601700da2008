"""The audit: measures the leakage of a model of a table and reports it.

The path is the same for tables of all sizes. The intake reads a table, plans its columns and
encodes it. :mod:`~seepage.auditing.audit` fits, measures, chooses the noise, computes its cost and
tries remedies. The report presents the findings. The measures come from the packages below.
"""

"""The audit: from a table and a model to what its release leaks, in words people can act on.

There is one path, whatever the size of the table and wherever its rows are: the intake reads a
table, plans its columns and encodes it; :mod:`~seepage.auditing.audit` fits, measures, chooses the
noise, weighs its cost and says what would help; the report writes the findings down. Only that path
and the command that starts it are here; the numbers come from the layers below.
"""

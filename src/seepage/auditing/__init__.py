"""The audit: from a table and a model to what its release leaks, in words people can act on.

One way through, whatever the size of the table and wherever its rows are: the intake reads a table,
plans its columns and encodes it; :mod:`~seepage.auditing.audit` fits, measures, chooses the noise,
weighs its price and says what would help; the report writes the findings down. Only what belongs to
that way, and the command that starts it, is here; the numbers come from the rooms below.
"""

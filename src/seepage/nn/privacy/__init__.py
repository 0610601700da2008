"""Differential privacy of a training run, for the run as a whole and for each record by itself.

What may be in it: the ledger of a run's steps, and what guarantees follow from it or from the
lengths of a record's own gradients. Statements about any release are in ``seepage.privacy``.
"""

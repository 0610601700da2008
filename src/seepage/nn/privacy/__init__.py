"""Differential privacy of a training run, as a whole and for each record.

The ledger of a run's steps, and the guarantees that follow from it or from the norms of a record's
own gradients. Statements about any release are in ``seepage.privacy``.
"""

"""Differential privacy of a training run, as a whole and for each record.

Contains the ledger of a run's steps, and guarantees computed from the ledger or from the norms of a
record's gradients. Statements that apply to any release are in ``seepage.privacy``.
"""

"""The accountant of a training loop, and the measured run, which stores the account.

The accountant sums the leakage of a run about every record, step by step. A measured run contains
these sums. The other modules join and evaluate runs. The engine (``nn/jacobian``) measures steps,
and the trainer (``nn/training``) takes them.
"""

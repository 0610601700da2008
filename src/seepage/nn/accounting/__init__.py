"""The accountant that runs beside a training loop, and the measured run it stores.

The accountant sums the leakage of a run about every record, step by step; a measured run holds the
sums; the other modules join runs and evaluate them. The engine (``nn/jacobian``) measures steps,
and the trainer (``nn/training``) takes them.
"""

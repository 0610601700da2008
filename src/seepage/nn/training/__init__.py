"""Private training loops with a leakage accountant: seepage's own, and Opacus's.

The trainer, the attachment of the accountant to other trainers, and the checkpoints from which a
run resumes.
"""

"""Private training loops with the accountant beside them: our own, and Opacus's.

The trainer, the attachment of the accountant to other trainers, and the checkpoints from which a
run resumes.
"""

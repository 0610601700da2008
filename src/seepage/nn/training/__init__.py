"""Private training with a leakage accountant, in seepage's own loop or in Opacus's.

Contains the trainer, the code that attaches an accountant to Opacus, and checkpoints from which a
run can resume.
"""

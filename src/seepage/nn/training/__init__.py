"""Private training with a leakage accountant, in seepage's own loop or in another loop.

Contains the trainer, private gradients for any loop, a Lightning callback, the code that attaches
an accountant to Opacus, and checkpoints from which a run can resume.
"""

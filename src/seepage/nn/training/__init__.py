"""Loops that train privately with the accountant beside them: our own, and Opacus's.

What may be in it: trainers, what attaches the accountant to other people's trainers, and the
checkpoints a run goes on from.
"""

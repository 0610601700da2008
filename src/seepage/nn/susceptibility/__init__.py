"""PLIS (Mueller et al. 2022): which attributes of a record drive its privacy loss.

Computes PLIS of one gradient and of a run, its norms over attributes, patches and records, and its
comparison with JacSens and FIL.
"""

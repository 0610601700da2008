"""The entries: ``sp.audit`` and ``sp.leakage`` for whatever people have.

Each looks at what it was given (a linear model, a pipeline, any other estimator, a network, a table
with a target) and hands it to the room that measures it. No file here computes a number.
"""

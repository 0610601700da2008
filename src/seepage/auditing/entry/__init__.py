"""The entries: ``sp.audit`` and ``sp.leakage`` for models and tables of every kind.

Each function determines the kind of its input (a linear model, a pipeline, any other estimator, a
network, or a table with a target) and calls the package that measures it. This package computes
nothing.
"""

"""The objective of a generalized linear model and its minimiser, in memory and over chunks.

It includes the objective over a table or a source's chunks, Newton's method, least squares, and the
errors for data without a unique minimiser. This folder depends on losses, arrays and sources, but
not on estimators or leakage.
"""

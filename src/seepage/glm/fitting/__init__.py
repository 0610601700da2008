"""The objective of a generalised linear model and its minimiser, in memory or in chunks.

The package contains the objective for a table or a source's chunks, Newton's method, least squares,
and the errors for data without a unique minimiser. It depends on losses, arrays and sources, but
not on estimators or leakage.
"""

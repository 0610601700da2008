"""The objective of a generalized linear model and its minimiser, in memory and over chunks.

The objective over a table or over the chunks of a source, Newton's method, least squares, and the
refusal of data without a unique minimiser. This folder knows losses, arrays and sources, but
neither estimators nor leakage.
"""

"""The objective of a generalized linear model and its minimiser, in memory and over chunks.

The objective on one table and as a sum over the chunks of a source, Newton's method and least
squares for either, and the refusal of data that have no unique minimiser. What is here knows losses
and arrays, but no estimator and no leakage.
"""

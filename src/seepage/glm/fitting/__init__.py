"""The objective of a generalized linear model and its minimiser, in memory and over chunks.

The objective on one table and as a sum over the chunks of a source, Newton's method and least
squares for either, and the refusal of data without a unique minimiser. This folder knows losses and
arrays, but neither estimators nor leakage.
"""

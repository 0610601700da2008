"""Adversaries who reconstruct a whole record from a released linear model, and their errors.

The informed adversary knows all other records; its algebra is in one file for models with one
margin and in one for softmax. The linearised adversary knows a prior.
"""

"""Adversaries who reconstruct a record from a released linear model, and their errors.

The informed adversary knows all other records. Two modules contain this adversary's algebra, one
for models with one margin and one for softmax models. The linearised adversary uses a prior.
"""

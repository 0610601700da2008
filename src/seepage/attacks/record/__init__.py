"""Adversaries who reconstruct a record from a released linear model, and their errors.

The informed adversary knows all other records. Two modules contain its algebra, one for models with
one margin and one for softmax models. The linearised adversary uses a prior.
"""

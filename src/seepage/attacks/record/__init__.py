"""Adversaries who reconstruct a whole record from a released linear model, and their errors.

The informed adversary knows all other records; its algebra is in two modules, for models with one
margin and for softmax models. The linearised adversary uses a prior.
"""

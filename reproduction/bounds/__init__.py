"""Guo et al. 2022, bounds on reconstruction: its figures, one file each, and the models they share.

The private networks of Figures 5 and 6 are trained in :mod:`reproduction.private_sgd`.
"""

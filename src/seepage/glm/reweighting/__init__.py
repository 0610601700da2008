"""Iteratively reweighted Fisher information loss (paper 001, algorithm 1)."""

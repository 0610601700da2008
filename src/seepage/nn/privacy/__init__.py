"""Differential privacy of a training run, for the run and for each record."""

"""Adversaries who rebuild records from gradients of a network."""

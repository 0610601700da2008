"""Adversaries who rebuild a whole record from a released linear model."""

"""Adversaries who know a record but for one attribute."""

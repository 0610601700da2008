"""Puts this folder on the path, so that every test finds the case table and the oracle."""

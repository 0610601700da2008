"""Puts this folder on the path: the oracle and the modules here serve the rooms below."""

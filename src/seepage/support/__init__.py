"""Helpers shared by all packages: work in chunks, files, lazy imports and number checks.

The helpers are short, independent of data and models, and used by several packages.
"""

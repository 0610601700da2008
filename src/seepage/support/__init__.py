"""Helpers shared by all packages: work in chunks, files, lazy imports, number checks.

Code here is short, independent of data and models, and used by several packages.
"""

"""Helpers shared by all folders: work in chunks, files, lazy imports, number checks.

Code here is short, knows nothing of data or models, and is used by several folders.
"""

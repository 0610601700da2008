"""Reads input tables as sources of records.

This package defines column types, names and encodings, and the source with one chunk, which is a
table in memory. It does not depend on any model or measure.
"""

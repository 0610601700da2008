"""Reads input tables as sources of records.

This package defines column types, names and encodings, and the class for a table in memory, a
source with a single chunk. It does not depend on any model or measure.
"""

"""Input tables as sources of records.

This package defines the types, names and encodings of columns, and the source with one chunk (a
table in memory). Nothing here depends on a model or a measure.
"""

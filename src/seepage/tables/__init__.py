"""Input tables, each a source of records.

The type, name and encoding of columns, and the source with one chunk (a table in memory). Nothing
here depends on a model or a measure.
"""

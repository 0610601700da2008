"""Tables in Parquet files, read in chunks.

Nothing here depends on a model or an audit.
"""

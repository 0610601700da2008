"""Tables in Parquet files, read in chunks: finding the files, reading them, encoding them.

Nothing here knows a model or an audit.
"""

"""Tables in Parquet files, read in chunks.

This package does not depend on models or audits.
"""

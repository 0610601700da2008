"""Reads tables from Parquet files in chunks.

This package does not depend on models or audits.
"""

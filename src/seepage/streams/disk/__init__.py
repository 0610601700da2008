"""Tables in Parquet files, read in chunks."""

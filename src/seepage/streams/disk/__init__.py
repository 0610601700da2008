"""Tables in Parquet files, read in chunks: finding the files, reading them, making them numbers."""

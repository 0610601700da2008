"""Tables in Parquet files, read in chunks: finding the files, reading them, making them numbers.

What a folder of files has to do with a model or an audit is not known here.
"""

"""Tables on a Dask cluster: collections, and files that its workers read.

Nothing else in the package imports Dask.
"""

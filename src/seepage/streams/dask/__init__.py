"""Tables on a Dask cluster: collections, and files that its workers read; only sums come back.

Nothing else in the package imports Dask.
"""

"""Tables on a Dask cluster: collections, and files that its workers read. Only sums come here.

Nothing else in the package imports Dask.
"""

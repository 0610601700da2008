"""Tables on a Dask cluster: Dask collections, and files that the workers read.

Nothing else in the package imports Dask.
"""

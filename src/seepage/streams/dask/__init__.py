"""Tables on a Dask cluster, as Dask collections or as files that the workers read.

Nothing else in the package imports Dask.
"""

"""Tables spread over a cluster: Dask collections as rows that come in chunks."""

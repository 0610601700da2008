"""The audit: from a table and a model to what its release leaks, in words people can act on."""

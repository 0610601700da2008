"""Adapters for fitted models: readers for supported models, and reasons for unsupported ones.

Each library's models are read in a separate module; ``refused`` lists models without an exact
audit. ``registry`` contains all kinds; its ``describe`` is the only entry point. ``unwrapping``
extracts the model from searches, pipelines and formulas, and removes columns that a penalty
dropped.
"""

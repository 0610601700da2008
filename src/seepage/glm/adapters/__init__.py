"""Adapters for fitted models: how each supported kind is read, and why others are refused.

Each library has a file on how its models are read, and ``refused`` lists those without an exact
audit. ``registry`` holds all kinds; its ``describe`` is the only entry point. ``unwrapping``
extracts the model from searches, pipelines, formulas, and penalties that drop columns.
"""

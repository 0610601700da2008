"""Adapters for fitted models: how each supported kind is read, and why others are not supported.

Each library has a file on how its models are read; ``refused`` lists models without an exact audit.
``registry`` holds all kinds; its ``describe`` is the only entry point. ``unwrapping`` extracts the
model from searches, pipelines, formulas, and penalties that drop columns.
"""

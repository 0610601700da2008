"""Input: tables and fitted models from files, checked, planned and encoded.

Unusable files and columns raise an error that states the remedy in one sentence. Models are neither
fitted nor measured here.
"""

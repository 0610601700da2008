"""Input: tables and fitted models are read from files, checked, planned and encoded.

Unusable files and columns raise an error that states the remedy in one sentence. This package
neither fits models nor measures leakage.
"""

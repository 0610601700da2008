"""Input: reads and checks tables and fitted models from files, and encodes the tables.

Unusable files and columns raise an error that states the remedy in one sentence. This package
neither fits models nor measures leakage.
"""

"""Attribute-inference attacks on a nominal attribute of records whose other columns are known.

The attribute is defined in ``nominal`` and the base class in ``adversary``. The adversaries are the
baselines, the black-box adversary, and the white-box adversary with its candidate models.
"""

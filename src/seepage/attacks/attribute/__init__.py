"""Attribute inference attacks on a nominal attribute of records whose other columns are known.

``nominal`` defines the attribute, and ``adversary`` the base class. The adversaries are the
baselines, the black-box adversary, and the white-box adversary with its candidate models.
"""

"""Attribute inference attacks on one attribute of records whose other columns are known.

``nominal`` defines a nominal attribute, and ``adversary`` the base class. The adversaries are the
baselines, the black-box adversary, and the white-box adversary with its candidate models.
``any_model`` attacks every column of a table, with any model that can be refitted.
"""

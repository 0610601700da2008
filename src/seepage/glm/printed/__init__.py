"""Printed regression tables: coefficients, standard errors, n and R², rounded.

``specification`` computes the numbers of one column of a table for any weights of its records,
``table`` the leakage of all printed numbers about a person, and ``output_rules`` checks the rules
of output checking. Parameters and predictions are covered by :mod:`seepage.glm.outsider`.
"""

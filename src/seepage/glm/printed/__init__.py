"""Printed regression tables with rounded coefficients, standard errors, n and R².

``specification`` computes the numbers of one table column for any weights of its records. ``table``
computes the leakage of all printed numbers about a person, and ``output_rules`` applies
output-checking rules. For parameters and predictions, see :mod:`seepage.glm.outsider`.
"""

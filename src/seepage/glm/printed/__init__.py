"""Regression tables as they are printed: coefficients, standard errors, n and R², rounded.

``specification`` computes the numbers of one column of a table for any weights of its records,
``table`` what all printed numbers together tell about a person, and ``output_rules`` the rules of
output checking beside it. What holds for parameters and predictions is in
:mod:`seepage.glm.outsider`.
"""

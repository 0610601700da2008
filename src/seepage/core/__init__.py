"""Leakage measures, computed from the Jacobian of a release with respect to the data.

This package defines that operator (``jacobian``) and the unknowns of a query (``unknowns``), and
computes views, measures and risks from any operator (``leakage``). Nothing here depends on a model:
fitting, differentiation and file reading are in other packages. Only ``release`` writes noisy
numbers back into a model.

By default the attacker knows every other record. All formulas assume this, and results
state it as an assumption (``result.held_sentences``, ``result.UNBIASED``).
"""

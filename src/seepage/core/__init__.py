"""Measures as functionals of the Jacobian of a release with respect to the data.

This folder defines that operator (``jacobian``) and the unknowns of a question (``unknowns``), and
takes views, measures and risks from any operator (``leakage``). Nothing here depends on a model:
fitting, differentiation and file reading live elsewhere. Only ``release`` writes noisy numbers
back into a model.

By default the attacker knows every other record. All formulas assume this, and results
state it as an assumption (``result.held_sentences``, ``result.UNBIASED``).
"""

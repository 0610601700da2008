"""Leakage measures, computed from the Jacobian of a release with respect to the data.

This package defines the Jacobian as an operator (``jacobian``) and the unknowns of a query
(``unknowns``), and computes views, measures and risks from any such operator (``leakage``). The
package does not depend on a model: fitting, differentiation and file reading are in other packages.
Only ``release`` writes noisy numbers back into a model.

By default the attacker knows every other record. All formulas make this assumption, and results
state it (``result.held_sentences``, ``result.UNBIASED``).
"""

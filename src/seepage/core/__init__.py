"""The idea: every measure is a functional of the Jacobian of a release with respect to the data.

This folder says what such an operator must answer (``jacobian``) and what can be asked about
(``unknowns``), takes views and measures of any operator (``leakage``), and draws the conclusions.
Nothing here knows a model: whatever fits, differentiates or reads files lives elsewhere; only
``release`` writes noisy numbers back into one.

The attacker is always one who knows every other record. That is no object but the frame of all
formulas: results state it as an assumption (``result.held_sentences``, ``result.UNBIASED``).
"""

"""The idea: every measure is a functional of the Jacobian of a release with respect to the data.

This folder says what such an operator must answer (``jacobian``) and what can be asked about
(``unknowns``), takes views and measures of any operator (``leakage``), and draws the conclusions.
Nothing here knows a model: whatever fits, differentiates or reads files lives elsewhere.
"""

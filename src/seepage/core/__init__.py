"""The idea: every measure is a functional of the Jacobian of a release with respect to the data.

Here is what such an operator must answer (``jacobian``), what is asked about (``unknowns``), views
and measures of any operator (``leakage``), and what follows from their numbers. Nothing here knows
a model: whatever fits, differentiates or reads files lives in other rooms.
"""

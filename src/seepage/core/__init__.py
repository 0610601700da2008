"""Leakage measures, computed from the Jacobian of a release with respect to the data.

This package defines the Jacobian as an operator and the unknowns of a query (``jacobian``), and
computes views, measures and risks from any such operator (``leakage``). The package does not depend
on a model: fitting, differentiation and file reading are in other packages. Only ``release`` writes
noisy numbers back into a model.

The measures assume by default that the attacker knows every other record. Results state their
assumptions (``assumptions``) and what is held fixed (``held``).
"""

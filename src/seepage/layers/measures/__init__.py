"""Measures with one number per layer: sensitivity (from its Jacobian) and V-information.

Beside them stands what they are made of: norms and columns of the layers' Jacobians, classifiers,
batches with and without a property, and the result that both return.
"""

"""Measures with one number per layer: sensitivity (from the layer's Jacobian) and V-information.

Also here: norms and columns of the layers' Jacobians, classifiers, batches with and without a
property, and the result class of both measures.
"""

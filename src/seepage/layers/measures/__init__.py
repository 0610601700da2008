"""Measures with one value per layer: sensitivity (from the layer's Jacobian) and V-information.

The package also contains the norms and columns of the layers' Jacobians, classifiers, batches with
and without a property, and the class of the results.
"""

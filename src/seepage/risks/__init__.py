"""Membership- and attribute-inference risks as probabilities, from the distances between releases.

Under two candidate tables, a release with Gaussian noise has one of two normal distributions of
equal covariance. The distance between their means determines the success rate of the best attack.
This package converts these distances to probabilities. The package does not depend on the model;
each release computes its own distances.
"""

"""Membership- and attribute-inference risks as probabilities, from the distances between releases.

Under two candidate tables, a release with Gaussian noise has one of two normal distributions. If
their covariances are equal, the distance between their means, in units of the noise, determines the
success rate of the best attack (``guessing``). Otherwise, the rate is integrated numerically
(``two_normals``, ``several_normals``). This package does not depend on the model: each release
computes its own distances.
"""

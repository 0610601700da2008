"""Risks, as probabilities that people understand, from how far a release moves.

A release with Gaussian noise under two candidate tables is one of two normal distributions of equal
covariance, so all that any adversary can do follows from the distance between their means. This
folder turns such distances into probabilities; it knows no model, and the release measures the
distances.
"""

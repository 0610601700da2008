"""Risks, in probabilities that people understand: from how far a release moves to what is told.

A release with Gaussian noise under two candidate tables is one of two normal distributions of equal
covariance, so all that any adversary can do follows from the distance between their means. This
room turns such distances into probabilities; it knows no model, and who measures the distances is
the business of the release.
"""

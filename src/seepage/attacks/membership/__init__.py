"""Membership inference: an attacker infers from a model's predictions who was in the training data.

``signals`` measures a scikit-learn estimator's confidence in a record. ``scores`` compares this
confidence with that of shadow models fitted with and without the record. ``inference`` fits the
shadow models and measures the success rate of the attack.
"""

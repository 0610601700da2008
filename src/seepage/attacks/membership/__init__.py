"""Membership inference: who was in the training data, inferred from a model's predictions.

``signals`` measures a scikit-learn estimator's confidence in a record. ``scores`` compares it with
shadow models fitted with and without the record. ``inference`` fits the shadow models and measures
the attack's success.
"""

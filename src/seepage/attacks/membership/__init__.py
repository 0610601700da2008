"""Membership inference: infers from a model's predictions which records it was trained on.

``signals`` measures a scikit-learn estimator's confidence in a record, ``networks`` a network's and
``texts`` a language model's. ``references`` trains reference models, with and without the record;
``scores`` compares the attacked model's confidence with that of the reference models. ``inference``
measures the success rate of the attack.
"""

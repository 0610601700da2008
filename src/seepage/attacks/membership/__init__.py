"""Membership inference: who was in the data, told from what a model says about a record.

``signals`` reads off any scikit-learn estimator how well it knows a record; ``scores`` turns that
into evidence, beside shadow models fitted with and without the record; ``inference`` fits those and
counts what the evidence is worth.
"""

"""Membership inference: telling who was in the data from a model's predictions.

``signals`` measures how well any scikit-learn estimator knows a record; ``scores`` turns that into
evidence by comparison with shadow models fitted with and without the record; ``inference`` fits the
shadow models and counts how often the evidence is right.
"""

"""From raw columns to a linear model's features, with derivatives: frozen or refitted.

``steps`` defines a step, ``transformers`` implements it for scikit-learn's transformers, ``chain``
combines steps and follows raw columns through them, and ``jacobian`` is the Jacobian of a release
with respect to raw columns.
"""

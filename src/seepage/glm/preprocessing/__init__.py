"""From raw columns to a linear model's features, with derivatives: frozen, or fitted again.

``steps`` says what a step must answer, ``transformers`` answers for scikit-learn's, ``chain`` puts
steps one after the other and follows raw columns through them, and ``jacobian`` is the Jacobian of
a release by raw columns.
"""

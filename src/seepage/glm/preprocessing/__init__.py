"""From raw columns to a linear model's features, with derivatives, frozen or refitted.

``steps`` defines the interface of a step, and ``transformers`` implements it for scikit-learn's
transformers. ``chain`` combines steps, ``formula`` is the step for a statsmodels formula, and
``raw_columns`` computes the effect of raw columns on the features. ``jacobian`` computes the
Jacobian of a release with respect to raw columns.
"""

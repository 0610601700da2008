"""From raw columns to a linear model's features, with derivatives, frozen or refitted.

``steps`` defines the interface of a step, and ``transformers`` implements it for scikit-learn's
transformers. ``chain`` combines steps and tracks raw columns through them; ``jacobian`` computes
the Jacobian of a release with respect to raw columns.
"""

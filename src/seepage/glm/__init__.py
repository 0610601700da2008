"""Generalized linear models: their losses, their fits, and what releasing them leaks.

From the bottom up: ``losses``, ``fitting`` (objectives and minimisers), ``estimators``,
``adapters`` (models of other libraries), ``jacobian`` (the closed forms of a release's Jacobian)
and ``reweighting``; ``leakage`` is the door. Everything that knows the shape of a GLM belongs here,
and nothing that would do for any release.
"""

from seepage.glm.estimators.classifiers import LogisticRegression, SoftmaxRegression
from seepage.glm.estimators.regressors import (
    GeneralizedLinearRegression,
    LinearRegression,
    PoissonRegression,
)
from seepage.glm.losses.families import Family, get_family, register_family
from seepage.glm.reweighting.reweight import Reweighting, reweight

__all__ = [
    "Family",
    "GeneralizedLinearRegression",
    "LinearRegression",
    "LogisticRegression",
    "PoissonRegression",
    "Reweighting",
    "SoftmaxRegression",
    "get_family",
    "register_family",
    "reweight",
]

"""Generalized linear models: their losses, their fits, and what releasing them leaks.

From the bottom up: ``inputs`` (what callers hand in), ``losses``, ``fitting`` (objectives and
minimisers), ``estimators`` (with scikit-learn's interface), ``adapters`` (models of other
libraries), ``jacobian`` (the closed forms of a release's Jacobian) and ``reweighting``; ``leakage``
is the door. Everything that knows the shape of a GLM belongs here, and nothing that would do for
any release.
"""

from seepage.glm.estimators import (
    GeneralizedLinearRegression,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
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

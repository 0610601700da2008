"""Generalized linear models: families of losses, estimators, and what their release leaks."""

from seepage.glm.estimators.general import GeneralizedLinearRegression
from seepage.glm.estimators.linear import LinearRegression
from seepage.glm.estimators.logistic import LogisticRegression
from seepage.glm.estimators.poisson import PoissonRegression
from seepage.glm.estimators.softmax import SoftmaxRegression
from seepage.glm.losses.families import Family, get_family, register_family
from seepage.glm.reweighting.result import Reweighting
from seepage.glm.reweighting.reweight import reweight

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

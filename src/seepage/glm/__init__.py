"""Generalized linear models: families of losses, estimators, and what their release leaks."""

from seepage.glm.families import Family, get_family, register_family
from seepage.glm.general import GeneralizedLinearRegression
from seepage.glm.linear import LinearRegression
from seepage.glm.logistic import LogisticRegression
from seepage.glm.poisson import PoissonRegression
from seepage.glm.reweight_result import Reweighting
from seepage.glm.reweighting import reweight
from seepage.glm.softmax import SoftmaxRegression

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

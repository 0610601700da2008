"""The four models of images: MNIST and CIFAR-10, by linear and logistic regression.

Two classes in twenty principal components (section 6.1); targets −1 and 1 and no penalty for linear
regression; for logistic regression the penalties the authors' own scripts use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seepage import glm
from seepage.core.noise import Gaussian
from seepage.data import load_cifar10, load_mnist, two_class_pca
from seepage.data.structures import ImageSet, Problem
from seepage.glm.leakage import leakage

Vector = NDArray[np.float64]

LOADERS = {"MNIST": load_mnist, "CIFAR-10": load_cifar10}
CLASSES = {"MNIST": ("digit 0", "digit 1"), "CIFAR-10": ("plane", "car")}
MODELS = ("linear", "logistic")
SETTING = (
    "MNIST digits 0 and 1 (12,665 records) and CIFAR-10 planes and cars (10,000), scaled to the "
    "unit ball and projected onto 20 principal components, without an intercept. Linear regression "
    "with targets −1 and 1 and no penalty; logistic regression with λ = 0.0008 on MNIST and "
    "0.00008 on CIFAR-10. Noise σ = 1; η is about all features and the label."
)
_PENALTY = {"MNIST": 8e-4, "CIFAR-10": 8e-5}


@dataclass(frozen=True, eq=False)
class ImageModel:
    """One data set and the model to fit on it; ``target`` holds the model's labels."""

    data: str
    kind: str
    estimator: Any
    problem: Problem
    target: Vector

    def __str__(self) -> str:
        return f"{self.data}, {self.kind}"

    def fit(self) -> Any:
        """Return the fitted model."""
        return self.estimator.fit(self.problem.X, self.target)

    def eta(self) -> Vector:
        """Return the leakage of every record from the model fitted without weights."""
        leak = leakage(self.fit(), self.problem.X, self.target, noise=Gaussian(1.0))
        return np.asarray(leak.rows())

    def accuracy(self, model: Any) -> float:
        """Return the accuracy on the test data in percent, even for a linear regression."""
        margin = self.problem.X_test @ np.ravel(model.coef_)
        return 100 * float(np.mean((margin > 0) == (self.problem.y_test == 1)))


def data_names(quick: bool) -> tuple[str, ...]:
    """Return the data sets of an experiment: only the smaller one if it must be quick."""
    return ("MNIST",) if quick else tuple(LOADERS)


def image_models(quick: bool) -> Iterator[ImageModel]:
    """Yield the models in the order of the paper's Table 1."""
    for data in data_names(quick):
        for kind in MODELS:
            yield image_model(data, kind)


def image_model(data: str, kind: str) -> ImageModel:
    """Return one of the four models, ready to be fitted."""
    problem = _problem(data)
    if kind == "linear":
        return ImageModel(data, kind, glm.LinearRegression(), problem, 2 * problem.y - 1)
    estimator = glm.LogisticRegression(l2=_PENALTY[data])
    return ImageModel(data, kind, estimator, problem, problem.y)


def load_images(data: str) -> ImageSet:
    """Return the images themselves."""
    return LOADERS[data]()


@cache  # the projection of CIFAR-10 takes seconds, and most experiments need it
def _problem(data: str) -> Problem:
    return two_class_pca(load_images(data))

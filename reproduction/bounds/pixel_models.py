"""Logistic regression of raw pixels: MNIST digits 0 and 1 (sections 7.1 and 7.2)."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seepage import glm
from seepage.bounds import cramer_rao_rows
from seepage.core.noise import Gaussian
from seepage.data import load_mnist, two_class_pixels
from seepage.data.structures import Problem
from seepage.glm.leakage import leakage

Vector = NDArray[np.float64]

L2 = 1e-2
SIDE = 28
DATA = "MNIST digits 0 and 1 (12,665 records), raw pixels between 0 and 1; the label is public."


class Bounds(NamedTuple):
    """The least mean squared error per pixel of every record's reconstruction."""

    dfil: Vector
    exact: Vector


@cache
def problem() -> Problem:
    """Return the images as rows of pixels; cached, since three figures use them."""
    return two_class_pixels(load_mnist())


def model() -> glm.LogisticRegression:
    """Return the model, not yet fitted."""
    return glm.LogisticRegression(l2=L2)


def with_ones(X: Vector) -> Vector:
    """Return the pixels with a last column of ones, in place of an intercept."""
    return np.hstack([X, np.ones((len(X), 1))])


def bounds(fitted: glm.LogisticRegression, X: Vector, y: Vector, sigma: float) -> Bounds:
    """Return the bounds on every record's pixels; a column of ones is known and not among them."""
    leak = leakage(fitted, X, y, noise=Gaussian(sigma))
    pixels = list(range(SIDE * SIDE))
    dfil = leak.rows(columns=pixels, label=False, measure="dfil").mse_bound()
    exact = cramer_rao_rows(leak, columns=pixels)
    return Bounds(np.asarray(dfil), np.asarray(exact))

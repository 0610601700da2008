"""Simulated releases to attack: one released model, or many copies with independent noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from seepage.core.noise import Noise, check_noise_kind
from seepage.errors import InputError, accepts_other_names
from seepage.glm.adapters.registry import kind_of
from seepage.glm.estimators import GLMRegressor, LinearModel, LogisticRegression
from seepage.support.number_check import check_count
from seepage.tables.names import counted
from seepage.tables.source import as_numpy


@dataclass(frozen=True, eq=False)
class Releases:
    """Simulated releases of one model: its parameters with independent noise in each copy.

    Parameters
    ----------
    parameters
        An array (T, P): one row per release; the intercept, if any, is the last column.
    features
        The number of parameters that belong to columns of the table: P, or P − 1 with an intercept.
    decide
        A function from margins to predictions: the mean for a regression, the class for a
        classifier.
    classes
        The classes of a classifier in sorted order; ``None`` for a regression.
    noise
        The noise added.
    """

    parameters: np.ndarray
    features: int
    decide: Callable[[np.ndarray], np.ndarray]
    classes: np.ndarray | None
    noise: Noise

    def __len__(self) -> int:
        return len(self.parameters)

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the predictions of every release for numeric rows, (T, n)."""
        margins = self.parameters[:, : self.features] @ X.T
        if self.features < self.parameters.shape[1]:
            margins += self.parameters[:, -1:]
        return self.decide(margins)


@accepts_other_names
def draw_releases(
    model: Any, noise: Noise, trials: int = 100, *, seed: int | None = None
) -> Releases:
    """Draw independent noisy releases of a fitted model, for experiments.

    Parameters
    ----------
    model
        A fitted model from :mod:`seepage.glm` with one margin: any except ``SoftmaxRegression``.
    noise
        The noise added to the parameters: :class:`Gaussian` or :class:`Laplace`.
    trials
        The number of releases.
    seed
        The seed of the noise.

    Examples
    --------
    >>> import seepage as sp
    >>> diabetes = sp.data.load_bundled("diabetes")
    >>> model = sp.glm.LinearRegression(l2=1e-2).fit(diabetes.X, diabetes.y)
    >>> sp.attacks.draw_releases(model, sp.Gaussian(0.1), 5, seed=0).parameters.shape
    (5, 10)
    """
    check_noise_kind(noise)
    check_count(trials, "trials")
    if not hasattr(model, "coef_"):
        raise InputError(
            f"This {type(model).__name__} has no coef_; fit it first, or pass another linear model."
        )
    decide, classes = _decision(model)
    (theta,) = parameters_of(model, np.size(model.coef_) + bool(model.fit_intercept))
    copies = noise.rounded(theta + noise.draw((trials, len(theta)), seed))
    return Releases(copies, int(model.coef_.shape[-1]), decide, classes, noise)


def parameters_of(release: Any, size: int) -> np.ndarray:
    """Return released parameters, (T, P), by feature, then by class; the intercept is last."""
    if isinstance(release, Releases):
        theta = release.parameters
    elif hasattr(release, "coef_"):
        coef = np.atleast_2d(as_numpy(release.coef_).astype(float)).T
        last = np.reshape(as_numpy(release.intercept_).astype(float), (1, -1))
        # Released models without an intercept carry a zero.
        bare = coef.size == size and not np.any(last)
        theta = (coef if bare else np.concatenate([coef, last])).reshape(1, -1)
    else:
        theta = np.atleast_2d(as_numpy(release))
        if theta.dtype.kind not in "biuf":
            raise InputError(
                f"This {type(release).__name__} is not a release of a linear model; pass a release "
                "created with sp.release."
            )
    if theta.ndim != 2 or theta.shape[1] != size:
        raise InputError(
            f"The release has {counted(theta.shape[-1], 'parameter')}, but the model has {size} "
            "(including any intercept); pass a release of this model."
        )
    return np.asarray(theta, dtype=float)


def _decision(
    model: Any,
) -> tuple[Callable[[np.ndarray], np.ndarray], np.ndarray | None]:
    """Return the map from margins to predictions, and the classes of a classifier."""
    if isinstance(model, LinearModel):
        kind_of(model)  # refuses a derived class that overrides how it predicts
    if isinstance(model, LogisticRegression):
        classes = model.classes_
        return lambda margins: classes[(margins > 0).astype(np.int64)], classes
    if isinstance(model, GLMRegressor):
        return model._loss.mean, None
    kind = (
        "an unsupported model" if isinstance(model, LinearModel) else "a model from another library"
    )
    raise InputError(
        f"{type(model).__name__} is {kind}, but draw_releases supports only seepage.glm's models "
        "with one margin; attack one release at a time with sp.release(model, noise)."
    )

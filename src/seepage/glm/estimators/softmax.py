"""Softmax regression of K classes."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from seepage.errors import InputError
from seepage.glm.estimators.base import split_parameters
from seepage.glm.estimators.classification import GLMClassifier, check_two_classes
from seepage.glm.estimators.inputs import place_like, read_classes, read_features, read_weights
from seepage.glm.losses.categorical import Categorical
from seepage.streams.dispatch import as_source, is_streamed
from seepage.tables.frames import as_numpy

Array = Any  # any array of the array API standard


class SoftmaxRegression(GLMClassifier):
    """Softmax regression: minimises ``Σᵢ ωᵢ (log Σ_k exp(m_ik) − m_i[yᵢ]) + (nλ/2) ‖W‖²``.

    Here mᵢ = Wᵀxᵢ + w₀ has an entry for each of K classes, W is (d, K), n is the number of rows,
    λ = ``l2``, ω the sample weights (one where none are given); the intercepts w₀ are not
    penalised. Adding one vector to the parameters of every class changes no probability; of all
    such solutions this is the one that sums to zero over the classes.

    Parameters
    ----------
    l2
        λ, at least 0. At 0 the columns must be linearly independent and the classes must overlap.
    fit_intercept
        Whether there is an intercept for every class; they are then part of what is released.

    Attributes
    ----------
    coef_
        ``Wᵀ``, (K, d), as in scikit-learn, for two classes too.
    intercept_
        ``w₀``, (K,); zeros where the model has none.
    classes_
        The K classes, sorted.
    n_iter_
        The number of Newton steps.
    n_features_in_, feature_names_in_
        The number of columns, and their names where ``X`` was a data frame.
    weighted_
        Whether sample weights other than one took part.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from seepage.glm import SoftmaxRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> SoftmaxRegression(l2=1e-2).fit(X, y).coef_.shape
    (3, 4)
    """

    def __init__(self, l2: float = 1e-2, fit_intercept: bool = False) -> None:
        super().__init__(l2=l2, fit_intercept=fit_intercept)

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Minimise the objective on a table ``X``, (n, d), labels ``y`` and weights ``ω``, (n,).

        A torch tensor is fitted where it lives, and ``coef_`` is then a tensor there. With
        ``seepage.parquet`` data, or a path with column names for ``y`` and ``sample_weight``, rows
        are read in chunks, once for every Newton step.
        """
        if is_streamed(X):
            source = as_source(X, y, sample_weight)
            self.classes_ = source.classes()
            check_two_classes(self.classes_, self.classes_, None)
            family = Categorical(self.classes_.shape[0])
            return self._with(self._solve_streamed(source, family, self.classes_))
        table = read_features(self, X, fitting=True)
        self.classes_, positions = read_classes(y, table)
        weights = read_weights(sample_weight, table)
        check_two_classes(self.classes_, positions, weights)
        self._check_every_class_counts(positions, weights)
        classes = self.classes_.shape[0]
        target = place_like(np.eye(classes)[positions], table.values)
        return self._with(self._solve_in_memory(table, Categorical(classes), target, weights))

    def _with(self, theta: Array) -> Self:
        coef, self.intercept_ = split_parameters(theta, bool(self.fit_intercept))
        self.coef_ = coef.T
        return self

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of every class, (n, K), in the order of ``classes_``."""
        margins = self._margins(X)
        return Categorical(margins.shape[1]).mean(margins)

    def _check_every_class_counts(self, positions: np.ndarray, weights: Array | None) -> None:
        if weights is None or not self.fit_intercept:
            return
        totals = np.bincount(positions, weights=as_numpy(weights))
        if np.any(totals == 0):
            empty = self.classes_[int(np.argmin(totals))]
            raise InputError(
                f"Every row of class {empty!r} has weight zero, so its intercept diverges; leave "
                "those rows out."
            )

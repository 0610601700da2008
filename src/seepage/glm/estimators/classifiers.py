"""Classifiers: two classes by one margin, or K classes by a margin each."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_numpy_array
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score

from seepage.errors import InputError
from seepage.glm.estimators.base import LinearModel
from seepage.glm.estimators.inputs import read_classes, read_weights
from seepage.glm.losses.families import Categorical, Family, bernoulli, class_targets
from seepage.tables.source import RowSource, Table, as_numpy, place_like

Array = Any  # any array of the array API standard


class GLMClassifier(ClassifierMixin, LinearModel):  # type: ignore[misc]
    """A generalized linear model of classes."""

    classes_: np.ndarray

    def __init__(self, l2: float = 1e-2, fit_intercept: bool = False) -> None:
        super().__init__(l2=l2, fit_intercept=fit_intercept)

    def _family_of(self, classes: int) -> Family | Categorical:
        """Return the loss for so many classes."""
        raise NotImplementedError

    def _read_source(self, source: RowSource) -> tuple[Family | Categorical, np.ndarray]:
        self.classes_ = source.classes
        _check_two_classes(self.classes_, self.classes_, None)
        return self._family_of(len(self.classes_)), self.classes_

    def _read_labels(
        self, y: Any, sample_weight: Any, table: Table
    ) -> tuple[Family | Categorical, Array, Array | None]:
        self.classes_, positions = read_classes(y, table)
        weights = read_weights(sample_weight, table)
        _check_two_classes(self.classes_, positions, weights)
        family = self._family_of(len(self.classes_))
        if isinstance(family, Categorical):
            self._check_every_class_counts(positions, weights)
        return family, place_like(class_targets(positions, family), table.values), weights

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

    def _store(self, theta: Array) -> None:
        """Keep the parameters in scikit-learn's shapes, (K, d) and (K,), or (1, d) and (1,)."""
        super()._store(theta)
        self.coef_ = self.coef_[None, :] if len(theta.shape) == 1 else self.coef_.T
        self.intercept_ = array_namespace(theta).reshape(self.intercept_, (-1,))

    def decision_function(self, X: Any) -> Array:
        """Return the margins ``wᵀx + w₀``, (n, K); for two classes that of the second, (n,).

        Two classes with a margin each are told apart by the difference of the two.
        """
        margins = self._margins(X)
        if len(margins.shape) == 2 and margins.shape[1] == 2:
            return margins[:, 1] - margins[:, 0]
        return margins

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of every class, (n, K), in the order of ``classes_``."""
        raise NotImplementedError

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithm of the probability of every class, (n, K)."""
        probabilities = self.predict_proba(X)
        with np.errstate(divide="ignore"):
            return array_namespace(probabilities).log(probabilities)

    def predict(self, X: Any) -> Array:
        """Return the most probable class of every record, (n,).

        In the library of ``X``, save that classes that are not numbers come as a NumPy array.
        """
        margins = self.decision_function(X)
        xp = array_namespace(margins)
        best = (
            xp.astype(margins > 0, xp.int64)
            if len(margins.shape) == 1
            else xp.argmax(margins, axis=1)
        )
        if is_numpy_array(best) or self.classes_.dtype.kind not in "biuf":
            return self.classes_[as_numpy(best)]
        return xp.asarray(self.classes_, device=best.device)[best]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy: the (weighted) share of records whose class is predicted."""
        weights = None if sample_weight is None else as_numpy(sample_weight)
        return float(accuracy_score(as_numpy(y), as_numpy(self.predict(X)), sample_weight=weights))


def _check_two_classes(classes: np.ndarray, positions: np.ndarray, weights: Array | None) -> None:
    """Raise unless there are two classes or more among the records of positive weight."""
    if classes.shape[0] < 2:
        raise InputError(
            f"y has one class only ({classes[0]!r}), so there is nothing to tell apart; a "
            "classifier needs at least two."
        )
    if weights is None:
        return
    seen = np.unique(positions[as_numpy(weights) > 0])
    if seen.shape[0] == 1:
        raise InputError(
            f"The rows of positive weight have one class only ({classes[seen[0]]!r}); a classifier "
            "needs at least two."
        )


class LogisticRegression(GLMClassifier):
    """Logistic regression: minimises ``Σᵢ ωᵢ (log(1 + exp mᵢ) − yᵢ mᵢ) + (nλ/2) ‖w‖²``.

    Here mᵢ = wᵀxᵢ + w₀, yᵢ = 1 for the second of the two classes in sorted order and 0 for the
    first, n is the number of records, λ = ``l2``, ω the sample weights (one where none are given);
    the intercept w₀ is not penalised (paper 001, equation 13).

    Parameters
    ----------
    l2
        λ, at least 0. At 0 the columns must be linearly independent and the classes must overlap.
    fit_intercept
        Whether there is an intercept; it is then part of what is released.

    Attributes
    ----------
    coef_
        ``w``, (1, d), as in scikit-learn.
    intercept_
        ``w₀``, (1,); 0 where the model has none.
    classes_
        The two classes, sorted: 0 and 1, −1 and 1, or whatever they are called.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from seepage.glm import LogisticRegression
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = LogisticRegression(l2=1e-2, fit_intercept=True).fit(scale(X), y)
    >>> round(model.score(scale(X), y), 3)
    0.986
    """

    def _family_of(self, classes: int) -> Family:
        if classes > 2:
            raise InputError(
                "Only binary classification is supported. The type of the target is multiclass "
                f"({classes} classes): use SoftmaxRegression."
            )
        return bernoulli

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of the first and the second class, (n, 2)."""
        margins = self._margins(X)
        xp = array_namespace(margins)
        return xp.stack([bernoulli.mean(-margins), bernoulli.mean(margins)], axis=1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class SoftmaxRegression(GLMClassifier):
    """Softmax regression: minimises ``Σᵢ ωᵢ (log Σ_k exp(m_ik) − m_i[yᵢ]) + (nλ/2) ‖W‖²``.

    Here mᵢ = Wᵀxᵢ + w₀ has an entry for each of K classes, W is (d, K), n is the number of records,
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

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from seepage.glm import SoftmaxRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> SoftmaxRegression(l2=1e-2).fit(X, y).coef_.shape
    (3, 4)
    """

    def _family_of(self, classes: int) -> Categorical:
        return Categorical(classes)

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of every class, (n, K), in the order of ``classes_``."""
        margins = self._margins(X)
        return Categorical(margins.shape[1]).mean(margins)

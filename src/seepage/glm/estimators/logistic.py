"""Logistic regression of two classes."""

from __future__ import annotations

from typing import Any, Self

from array_api_compat import array_namespace

from seepage.errors import InputError
from seepage.glm.estimators.base import split_parameters
from seepage.glm.estimators.classification import GLMClassifier, check_two_classes
from seepage.glm.estimators.inputs import place_like, read_classes, read_features, read_weights
from seepage.glm.losses.families import bernoulli
from seepage.streams.dispatch import as_source, is_streamed

Array = Any  # any array of the array API standard


class LogisticRegression(GLMClassifier):
    """Logistic regression: minimises ``Σᵢ ωᵢ (log(1 + exp mᵢ) − yᵢ mᵢ) + (nλ/2) ‖w‖²``.

    Here mᵢ = wᵀxᵢ + w₀, yᵢ = 1 for the second of the two classes in sorted order and 0 for the
    first, n is the number of rows, λ = ``l2``, ω the sample weights (one where none are given); the
    intercept w₀ is not penalised (paper 001, equation 13).

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
    n_iter_
        The number of Newton steps.
    n_features_in_, feature_names_in_
        The number of columns, and their names where ``X`` was a data frame.
    weighted_
        Whether sample weights other than one took part.

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
            self._check_binary()
            return self._with(self._solve_streamed(source, bernoulli, self.classes_))
        table = read_features(self, X, fitting=True)
        self.classes_, positions = read_classes(y, table)
        weights = read_weights(sample_weight, table)
        check_two_classes(self.classes_, positions, weights)
        self._check_binary()
        target = place_like(positions, table.values)
        return self._with(self._solve_in_memory(table, bernoulli, target, weights))

    def _check_binary(self) -> None:
        if self.classes_.shape[0] > 2:
            raise InputError(
                "Only binary classification is supported. The type of the target is multiclass "
                f"({self.classes_.shape[0]} classes): use SoftmaxRegression."
            )

    def _with(self, theta: Array) -> Self:
        coef, intercept = split_parameters(theta, bool(self.fit_intercept))
        xp = array_namespace(theta)
        self.coef_, self.intercept_ = coef[None, :], xp.reshape(intercept, (1,))
        return self

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of the first and the second class, (n, 2)."""
        margins = self._margins(X)
        xp = array_namespace(margins)
        return xp.stack([bernoulli.mean(-margins), bernoulli.mean(margins)], axis=1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

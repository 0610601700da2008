"""Baseline adversaries who ignore the release; only accuracy above theirs shows leakage."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from seepage.attacks.attribute.adversary import AttributeInversion
from seepage.errors import InputError


class Prior(AttributeInversion):
    """Guesses the level with the highest frequency ``p(k)`` for every record (Hannun et al. 2021).

    Parameters
    ----------
    attribute
        The attribute to infer.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> X = np.array([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    >>> allele = sp.attacks.NominalAttribute.from_table(X, [0], "allele")
    >>> sp.attacks.Prior(allele).fit(X, np.zeros(3)).attack(X, np.zeros(3)).accuracy
    0.6666666666666666
    """

    name = "prior"

    def _scores(self, X: np.ndarray, y: np.ndarray, rows: slice, release: Any) -> np.ndarray:
        return np.broadcast_to(self.log_prior_, (1, len(X), len(self.attribute)))


class Ideal(AttributeInversion):
    """Guesses with a classifier trained to predict the attribute: imputation without the model.

    No release is attacked: the guess is based only on the other columns and the label. An attack
    that is no more accurate than this baseline reveals nothing beyond imputation from similar
    records.

    Fit on rows that are not attacked (half of the table, or a test set), because accuracy on the
    classifier's own training rows is too optimistic.

    Parameters
    ----------
    attribute
        The attribute to infer.
    classifier
        Any scikit-learn classifier, of which a copy is fitted; by default, multinomial logistic
        regression on standardised columns.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> rng = np.random.default_rng(0)
    >>> level = rng.integers(0, 2, 400).astype(float)
    >>> X = np.column_stack([level, level + rng.standard_normal(400)])
    >>> y = np.zeros(400)
    >>> attribute = sp.attacks.NominalAttribute.from_table(X, [0], "level")
    >>> ideal = sp.attacks.Ideal(attribute).fit(X[:200], y[:200])
    >>> ideal.attack(X[200:], y[200:]).accuracy > 0.6
    True
    """

    name = "ideal"

    def __init__(self, attribute: Any, classifier: Any = None) -> None:
        super().__init__(attribute)
        self.classifier = classifier

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the classifier on rows ``X``, which include the attribute, and labels ``y``."""
        from sklearn.base import clone

        super().fit(X, y)
        labels, levels = self._labels, self._levels
        # Non-numeric labels become one column per class.
        self.classes_ = None if labels.dtype.kind in "biuf" else np.unique(labels)
        features = self._features(self._without_attribute(self._known, slice(None)), labels)
        seen = np.unique(levels)
        if len(seen) < 2:
            raise InputError(
                f"All rows have the level {self.attribute.levels[seen[0]]!r}, so no classifier can "
                "be trained; pass rows with at least two levels."
            )
        template = _default_classifier() if self.classifier is None else self.classifier
        self.classifier_ = clone(template).fit(features, levels)
        return self

    def _scores(self, X: np.ndarray, y: np.ndarray, rows: slice, release: Any) -> np.ndarray:
        guesses = self.classifier_.predict(self._features(X, y))
        return np.asarray(np.eye(len(self.attribute))[guesses][None])

    def _features(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        label = y[:, None] if self.classes_ is None else y[:, None] == self.classes_
        return np.hstack([X[:, self.attribute.others(X.shape[1])], label])


def _default_classifier() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))

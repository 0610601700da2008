"""What the classifiers share: probabilities, decisions and accuracy."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_numpy_array
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score

from seepage.errors import InputError
from seepage.glm.estimators.base import LinearModel
from seepage.tables.frames import as_numpy

Array = Any  # any array of the array API standard


class GLMClassifier(ClassifierMixin, LinearModel):  # type: ignore[misc]
    """A generalized linear model of classes."""

    classes_: np.ndarray

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
        """Return the most probable class of every row, (n,).

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
        """Return the accuracy: the (weighted) share of rows whose class is predicted."""
        weights = None if sample_weight is None else as_numpy(sample_weight)
        return float(accuracy_score(as_numpy(y), as_numpy(self.predict(X)), sample_weight=weights))


def check_two_classes(classes: np.ndarray, positions: np.ndarray, weights: Array | None) -> None:
    """Raise unless the rows of positive weight have two classes or more, and all that there are."""
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

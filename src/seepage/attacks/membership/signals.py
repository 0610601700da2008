"""A fitted model's confidence in each record, from its predictions.

For a classifier with probabilities, the confidence is the probability ``p`` of the record's true
class. With only a decision function, the confidence is the logistic function of the true class's
lead over the best other class; with neither, the confidence is 1 for a correct prediction and 0
otherwise. For a regressor, the confidence is ``exp(−(y − ŷ)²/2s²)``, where ``s²`` is the mean
squared residual over the records on which shadow models were not fitted. For a network, the
log-odds are computed directly (``networks``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import expit

from seepage.errors import InputError
from seepage.glm.adapters.refused import NETWORK
from seepage.support.library_classes import is_network, library_class
from seepage.tables.source import as_numpy

_CERTAIN = 1e-6  # probabilities are kept this far from 0 and 1, which forests often predict


def confidence(model: Any, X: Any, y: np.ndarray) -> np.ndarray:
    """Return the model's confidence in each record: higher means more confident.

    For a classifier, the confidence is the probability of the true class or its substitute (see the
    module); for a regressor, it is the negative squared residual.
    """
    classes = getattr(model, "classes_", None)
    if classes is None:
        return np.asarray(-((np.asarray(model.predict(X), dtype=float) - y) ** 2))
    where = {label: k for k, label in enumerate(np.asarray(classes).tolist())}
    own = np.array([where.get(label, -1) for label in np.asarray(y).tolist()])
    rows = np.arange(len(own))
    if hasattr(model, "predict_proba"):
        probabilities = np.asarray(model.predict_proba(X))
        chosen = np.where(own >= 0, probabilities[rows, own], 0.0)
    elif hasattr(model, "decision_function"):
        margins = np.asarray(model.decision_function(X), dtype=float)
        if margins.ndim == 1:
            margins = np.stack([-margins / 2, margins / 2], axis=1)
        mine = margins[rows, own]
        others = margins.copy()
        others[rows, own] = -np.inf
        chosen = np.where(own >= 0, expit(mine - others.max(axis=1)), 0.0)
    else:
        chosen = (np.asarray(model.predict(X)) == y).astype(float)
    return np.asarray(np.clip(chosen, _CERTAIN, 1 - _CERTAIN))


def as_probabilities(signals: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """Return probabilities unchanged, and negative squared residuals as Gaussian likelihoods."""
    if np.all(signals > 0):
        return signals
    scale = float(np.mean(-outside)) or 1.0
    return np.asarray(np.clip(np.exp(signals / (2 * scale)), _CERTAIN, 1 - _CERTAIN))


@dataclass(frozen=True, eq=False)
class ModelAnswers:
    """One model's confidence in each record, by query, ``(n, Q)``.

    Parameters
    ----------
    values
        The log-odds, or the negative squared errors.
    residual
        Whether the values are negative squared errors, which need a scale to become log-odds.
    """

    values: np.ndarray
    residual: bool


@dataclass(frozen=True, eq=False)
class Questions:
    """The queries sent to every model: all records, both unchanged and augmented.

    Parameters
    ----------
    X, y
        The records and their labels; ``y`` may be None for a model that computes its own loss.
    loss
        The loss of a network, as in :mod:`seepage.nn`; None means the model's own loss, or
        cross-entropy.
    queries
        Functions that return changed records, for example mirrored or shifted.
    tokenizer
        The tokenizer of a causal language model, if the records are texts.
    """

    X: Any
    y: Any
    loss: Any = None
    queries: Sequence[Callable[[Any], Any]] = ()
    tokenizer: Any = None

    def __call__(self, model: Any) -> ModelAnswers:
        """Return a model's confidence for each query."""
        views = [self.X, *(query(self.X) for query in self.queries)]
        if self.tokenizer is not None:
            from seepage.attacks.membership.texts import text_log_odds

            odds = [text_log_odds(model, view, self.tokenizer) for view in views]
            return ModelAnswers(np.stack(odds, axis=1), residual=False)
        if is_network(model):
            from seepage.attacks.membership.networks import network_log_odds

            pairs = [network_log_odds(model, view, self.y, loss=self.loss) for view in views]
            return ModelAnswers(np.stack([values for values, _ in pairs], axis=1), pairs[0][1])
        values = np.stack([confidence(model, view, as_numpy(self.y)) for view in views], axis=1)
        residual = getattr(model, "classes_", None) is None
        return ModelAnswers(values if residual else log_odds(values), residual)


def as_log_odds(answers: Sequence[ModelAnswers], inside: np.ndarray) -> np.ndarray:
    """Return all models' log-odds of the records, ``(M, n, Q)``, the attacked model's first.

    ``inside`` is a mask of each other model's training records, ``(M − 1, n)``.
    """
    values = np.stack([answer.values for answer in answers])
    if not answers[0].residual:
        return values
    return log_odds(as_probabilities(values, values[1:][~inside]))


def count_records(X: Any, y: Any) -> int:
    """Return the number of records."""
    if y is not None:
        return len(y)
    if isinstance(X, Mapping):
        return len(next(iter(X.values())))
    return len(X)


def log_odds(probabilities: np.ndarray) -> np.ndarray:
    """Return ``log p/(1 − p)``, which is roughly normal over models (Carlini et al. 2022)."""
    return np.asarray(np.log(probabilities) - np.log1p(-probabilities))


def check_estimator(estimator: Any) -> None:
    """Raise an error if an estimator cannot be cloned, fitted or used for predictions."""
    if isinstance(estimator, type):
        raise InputError(
            f"{estimator.__name__} is a class; pass an instance of it, such as "
            f"{estimator.__name__}()."
        )
    # A stack of models has predict only when it is fitted, but its class says so
    wanted = ("fit", "predict", "get_params")
    lacking = [n for n in wanted if not (hasattr(estimator, n) or hasattr(type(estimator), n))]
    if lacking and library_class(estimator, ("torch",)) is not None:
        raise NETWORK.error()
    if lacking:
        raise InputError(
            "A membership attack needs an estimator with fit and predict that scikit-learn can "
            f"clone; {type(estimator).__name__} has no {' and no '.join(lacking)}. Derive the "
            "estimator from sklearn.base.BaseEstimator, or pass one of scikit-learn's estimators."
        )

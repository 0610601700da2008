"""How well a fitted estimator knows a record: one number each, from what it predicts.

For a classifier with probabilities, that of the record's own class, ``p``; for one with a decision
function, its logistic transform; for a regressor ``exp(−(y − ŷ)²/2s²)``, with ``s²`` the mean
squared residual over records that shadow models were not fitted on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit

from seepage.errors import InputError
from seepage.glm.adapters.refused import NETWORK
from seepage.support.library_classes import library_class

_CERTAIN = 1e-6  # probabilities are kept this far from 0 and 1, which forests often predict


def confidence(model: Any, X: Any, y: np.ndarray) -> np.ndarray:
    """Return the probability that a classifier gives to each record's own class, or a residual.

    For a regressor it returns the negative squared residuals: higher is better known.
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
    """Return signals as likelihoods; residuals are scaled by their spread over non-members."""
    if np.all(signals > 0):
        return signals
    scale = float(np.mean(-outside)) or 1.0
    return np.asarray(np.clip(np.exp(signals / (2 * scale)), _CERTAIN, 1 - _CERTAIN))


def log_odds(probabilities: np.ndarray) -> np.ndarray:
    """Return ``log p/(1 − p)``, about normal over shadow models (Carlini et al. 2022)."""
    return np.asarray(np.log(probabilities) - np.log1p(-probabilities))


def check_estimator(estimator: Any) -> None:
    """Refuse an estimator that cannot be cloned, fitted or asked."""
    if isinstance(estimator, type):
        raise InputError(
            f"{estimator.__name__} is a class; pass an estimator of it, such as "
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
            f"clone; {type(estimator).__name__} has no {' and no '.join(lacking)}. Derive it from "
            "sklearn.base.BaseEstimator, or pass one of scikit-learn's estimators."
        )

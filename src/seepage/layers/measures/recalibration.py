"""Makes a classifier's probabilities honest: a slope and an offset per class, learnt held out.

From probabilities ``q`` one passes to ``p_k ∝ exp(a log q_k + b_k)`` with ``a ≥ 0``. With a = 0
this is a constant, so that the best constant prediction always belongs to the family, as the
definition of V-information asks ("optional ignorance", Xu et al. 2020). A negative slope is left
out: it would turn the slight opposition between a fold's classes and its complement's into
information.
"""

from __future__ import annotations

import numpy as np

_STEEPEST, _FURTHEST = 5.0, 20.0


def recalibrated(fitted_on: np.ndarray, labels: np.ndarray, applied_to: np.ndarray) -> np.ndarray:
    """Return honest log-probabilities for ``applied_to``, ``(m, K)``, learnt from other records.

    Parameters
    ----------
    fitted_on
        Held-out probabilities, ``(n, K)``.
    labels
        The true classes of these, 0 to K − 1.
    applied_to
        Probabilities to correct, ``(m, K)``.
    """
    n, classes = fitted_on.shape
    floor = 1.0 / (2 * n)
    logs, wanted = _logs(fitted_on, floor), np.eye(classes)[labels]
    shares = (wanted.sum(axis=0) + 0.5) / (n + 0.5 * classes)

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        scores = _log_softmax(theta[0] * logs + theta[1:])
        errors = np.exp(scores) - wanted
        slope = np.concatenate([[np.sum(errors * logs)], errors.sum(axis=0)]) / n
        return -float(np.sum(scores * wanted)) / n, slope

    from scipy.optimize import minimize

    best = None
    # From the constant as well: a steep start may end on the way down to it.
    for slope in (0.0, 1.0):
        offsets = np.log(shares) * (1 - slope)
        found = minimize(
            objective,
            np.concatenate([[slope], offsets]),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, _STEEPEST)] + [(-_FURTHEST, _FURTHEST)] * classes,
        )
        best = found if best is None or found.fun < best.fun else best
    assert best is not None  # noqa: S101  the loop ran
    sure = np.exp(_log_softmax(best.x[0] * _logs(applied_to, floor) + best.x[1:]))
    # n records never make anyone surer than n to one: a single surprise must not cost the earth.
    doubt = 1.0 / (n + 1)
    return np.asarray(np.log((1 - doubt) * sure + doubt * shares))


def _logs(probabilities: np.ndarray, floor: float) -> np.ndarray:
    kept = np.maximum(probabilities, floor)
    return np.asarray(np.log(kept / kept.sum(axis=1, keepdims=True)))


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))

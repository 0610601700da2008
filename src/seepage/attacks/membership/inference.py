"""Membership inference against any estimator: shadow models, scores, and their success.

Every model, attacked or shadow, is fitted on a random half of the records. Each attacked model is
tested on the records it was fitted on and the others, with all other models as shadows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, logit, ndtri
from scipy.stats import beta, binom

from seepage.attacks.halves import fit_halves, random_halves
from seepage.attacks.intervals import ConfidenceInterval, area_under_curve
from seepage.attacks.membership.scores import lira, rmia
from seepage.attacks.membership.signals import (
    as_probabilities,
    check_estimator,
    confidence,
    log_odds,
)
from seepage.errors import InputError, accepts_other_names
from seepage.support.number_check import check_choice, check_count, check_share
from seepage.tables.result_table import SummaryTable
from seepage.tables.source import as_numpy

_METHODS = ("lira", "rmia")


class Rate(NamedTuple):
    """A true positive rate with its 95 % interval."""

    rate: float
    interval: ConfidenceInterval


@dataclass(frozen=True, eq=False, repr=False)
class MembershipInferenceResult(SummaryTable):
    """How well an adversary could tell who was in the data.

    The scores depend on the data and are themselves sensitive: do not publish them.

    Parameters
    ----------
    method
        ``lira`` or ``rmia``, and whether online or offline.
    scores
        The evidence that each attacked model was fitted on each record, ``(T, n)``.
    members
        Whether it was, ``(T, n)``.
    kind
        ``attack``: this much can be told, never that no more can be.
    """

    method: str
    scores: np.ndarray
    members: np.ndarray
    kind: str = "attack"

    mark = (0.5, "chance (AUC)")

    def spans(self) -> Mapping[str, tuple[float, float, float]]:
        """Return the area under the curve and the true positive rate, with 95 % intervals."""
        rate = self.tpr(0.01)
        return {
            "AUC": (self.auc, *self.interval),
            "true positive rate at 1 % false positives": (rate.rate, *rate.interval),
        }

    @property
    def auc(self) -> float:
        """The area under the ROC curve, the mean over the attacked models."""
        return float(np.mean([area for area, _ in self._areas()]))

    @property
    def interval(self) -> ConfidenceInterval:
        """A 95 % interval of the area, for further records and further models.

        It adds DeLong's variance over the records (which all models share, so it is not divided by
        their number) and the variance between models, on the scale of log-odds.
        """
        areas = self._areas()
        middle = float(np.clip(self.auc, 1e-6, 1 - 1e-6))
        reaches = [
            (logit(min(end.high, 1 - 1e-9)) - logit(max(end.low, 1e-9))) / 2 for _, end in areas
        ]
        values = logit(np.clip([area for area, _ in areas], 1e-6, 1 - 1e-6))
        between = float(np.var(values, ddof=1)) / len(values) if len(values) > 1 else 0.0
        reach = math.sqrt(float(np.mean(np.square(reaches))) + ndtri(0.975) ** 2 * between)
        low, high = expit(logit(middle) + np.array([-reach, reach])).tolist()
        return ConfidenceInterval(low, high)

    def tpr(self, fpr: float = 0.01) -> Rate:
        """Return the true positive rate at a false positive rate.

        The threshold is taken from the scores; the interval counts the records of one model only
        and errs on the wide side: from the most cautious threshold that the non-members' scores
        allow to the boldest.
        """
        check_share(fpr, "fpr")
        outside = np.sort(self.scores[~self.members])[::-1]
        inside = self.scores[self.members]
        models = len(self.scores)
        out_count, in_count = len(outside) // models, len(inside) // models
        middle = float(np.mean(inside > _threshold(outside, fpr)))
        cautious = binom.ppf(0.0125, out_count, fpr) / out_count
        bold = binom.ppf(0.9875, out_count, fpr) / out_count
        low = float(np.mean(inside > _threshold(outside, cautious)))
        high = float(np.mean(inside > _threshold(outside, bold)))
        return Rate(
            middle,
            ConfidenceInterval(
                _clopper_pearson(low, in_count, 0.0125).low,
                _clopper_pearson(high, in_count, 0.0125).high,
            ),
        )

    def record_scores(self) -> np.ndarray:
        """Return how much more evidence there is for each record when it is a member, (n,).

        The difference of its mean scores as member and non-member, in units of the non-members'
        spread; NaN if it was always a member, or never.
        """
        spread = float(np.std(self.scores[~self.members])) or 1.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the mean of no scores
            inside = self.scores.mean(axis=0, where=self.members)
            outside = self.scores.mean(axis=0, where=~self.members)
        return np.asarray((inside - outside) / spread)

    def __repr__(self) -> str:
        ends, rate = self.interval, self.tpr(0.01)
        return (
            f"<membership inference by {self.method}, attack: AUC {self.auc:.3f} "
            f"[{ends.low:.3f}, {ends.high:.3f}], {100 * rate.rate:.1f} % of members found at 1 % "
            f"false positives [{100 * rate.interval.low:.1f}, {100 * rate.interval.high:.1f}]>"
        )

    def _areas(self) -> list[tuple[float, ConfidenceInterval]]:
        return [
            area_under_curve(score, member)
            for score, member in zip(self.scores, self.members, strict=True)
        ]


@accepts_other_names
@dataclass(eq=False, repr=False)
class MembershipInference:
    """Tell who was in the data of a scikit-learn estimator, by LiRA or RMIA.

    Parameters
    ----------
    estimator
        Any classifier or regressor with ``fit`` and ``predict`` (probabilities help); it is cloned.
    method
        ``"lira"`` or ``"rmia"``.
    online
        Whether shadow models fitted *with* the record in question are used as well.
    shadows
        How many shadow models to fit.
    jobs
        How many to fit at a time, in separate processes; −1 for one per core.
    seed
        The seed of the random halves.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.standard_normal((200, 5)), rng.integers(0, 2, 200)
    >>> attack = sp.attacks.MembershipInference(DecisionTreeClassifier(random_state=0), shadows=8)
    >>> attack.run(X, y).auc > 0.6
    True
    """

    estimator: Any
    _: KW_ONLY
    method: str = "lira"
    online: bool = True
    shadows: int = 32
    jobs: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_estimator(self.estimator)
        check_choice(self.method, "method", _METHODS)
        check_count(self.shadows, "shadows", 4)

    def run(self, X: Any, y: Any, *, targets: int = 4) -> MembershipInferenceResult:
        """Fit shadows and ``targets`` models to attack, all on random halves of the records."""
        signals, inside = self._shadow_fits(X, y, self.shadows + targets)
        return _attacked(signals, inside, targets, self.method, self.online)

    def against(self, model: Any, X: Any, y: Any, members: Any) -> MembershipInferenceResult:
        """Attack one fitted model, with shadow models fitted on random halves of the given records.

        ``members`` says which of the records the model was fitted on.
        """
        y, members = as_numpy(y), as_numpy(members).astype(bool)
        if members.all() or not members.any():
            raise InputError(
                "The attack needs records that the model was fitted on and others; give both."
            )
        signals, inside = self._shadow_fits(X, y, self.shadows)
        target = confidence(model, X, y)
        scores = _scores(target, signals, inside, self.method, self.online)
        return _result(scores[None, :], members[None, :], self.method, self.online)

    def _shadow_fits(self, X: Any, y: Any, models: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the signals of models for all records, and each model's members, a random half."""
        labels = as_numpy(y)
        inside = random_halves(len(labels), models, self.seed)
        ask = partial(confidence, X=X, y=labels)
        fits = fit_halves(self.estimator, X, labels, inside, ask, jobs=self.jobs)
        return np.stack(fits), inside


def attack_all(
    signals: np.ndarray, inside: np.ndarray, targets: int
) -> tuple[MembershipInferenceResult, ...]:
    """Return the results of both methods, online and offline, from models fitted on halves.

    Parameters
    ----------
    signals
        The :func:`~seepage.attacks.membership.signals.confidence` of every model in every record,
        ``(M, n)``.
    inside
        Whether it was fitted on it, ``(M, n)``.
    targets
        How many of the models are attacked, each with all others as shadows.
    """
    return tuple(
        _attacked(signals, inside, targets, method, online)
        for method in _METHODS
        for online in (True, False)
    )


def _attacked(
    signals: np.ndarray, inside: np.ndarray, targets: int, method: str, online: bool
) -> MembershipInferenceResult:
    """Attack the first models, each with all others as shadows."""
    scores = []
    for k in range(targets):
        others, had = np.delete(signals, k, axis=0), np.delete(inside, k, axis=0)
        scores.append(_scores(signals[k], others, had, method, online))
    return _result(np.stack(scores), inside[:targets], method, online)


def _scores(
    target: np.ndarray, shadows: np.ndarray, inside: np.ndarray, method: str, online: bool
) -> np.ndarray:
    outside = shadows[~inside]
    p, q = as_probabilities(target, outside), as_probabilities(shadows, outside)
    if method == "rmia":
        return rmia(p, q, inside, online=online)
    return lira(log_odds(p), log_odds(q), inside, online=online)


def _result(
    scores: np.ndarray, members: np.ndarray, method: str, online: bool
) -> MembershipInferenceResult:
    name = {"lira": "LiRA", "rmia": "RMIA"}[method]
    how = "online" if online else "offline"
    return MembershipInferenceResult(f"{name}, {how}", scores, members)


def _threshold(descending: np.ndarray, fpr: float) -> float:
    """Return a score that at most a given share of the sorted scores exceed."""
    allowed = math.floor(fpr * len(descending) + 1e-9)
    return float(descending[min(allowed, len(descending) - 1)])


def _clopper_pearson(share: float, count: int, tail: float) -> ConfidenceInterval:
    hits = share * count
    low = float(beta.ppf(tail, hits, count - hits + 1)) if hits > 0 else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, count - hits)) if hits < count else 1.0
    return ConfidenceInterval(low, high)

"""Membership inference against any model, with reference models, scores and success rates.

Attacked models and reference models are each fitted on a random half of the records, unless they
are given. The attack on a model is tested on the model's members and non-members.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, logit, ndtri, stdtrit
from scipy.stats import beta, binom

from seepage.attacks.halves import random_halves
from seepage.attacks.intervals import ConfidenceInterval, area_under_curve
from seepage.attacks.membership.references import given_answers, trained_answers
from seepage.attacks.membership.scores import intervals, offline_constant, score
from seepage.attacks.membership.signals import (
    ModelAnswers,
    Questions,
    as_log_odds,
    as_probabilities,
    check_estimator,
    count_records,
    log_odds,
)
from seepage.errors import InputError, accepts_other_names
from seepage.support.library_classes import is_network
from seepage.support.number_check import check_choice, check_count, check_share
from seepage.tables.result_table import SummaryTable
from seepage.tables.source import as_numpy

_COMPARING = {"lira": "LiRA", "rmia": "RMIA"}  # the methods that need reference models
_METHODS = (*_COMPARING, "loss")


class Rate(NamedTuple):
    """A true positive rate with its 95 % confidence interval."""

    rate: float
    interval: ConfidenceInterval


class ExposedRecord(NamedTuple):
    """A record's position and its score, with a 95 % confidence interval over reference models.

    The interval is None with fewer than eight reference models, or if the score is a mean over
    several attacked models.
    """

    record: int
    score: float
    interval: ConfidenceInterval | None


@dataclass(frozen=True, eq=False, repr=False)
class MembershipInferenceResult(SummaryTable):
    """The success rates of a membership inference attack.

    The scores depend on the data and are themselves sensitive: do not publish them.
    A score is NaN if the reference models it needs do not exist; records with a NaN score are not
    counted.

    Parameters
    ----------
    method
        The method of the attack: LiRA or RMIA, online or offline, or the loss.
    scores
        Each attacked model's membership score for each record, ``(T, n)``; a higher score means
        that the record is more likely to be a member.
    members
        Whether each attacked model was fitted on each record, ``(T, n)``.
    kind
        ``attack``: a lower bound on what can be inferred, never an upper bound.
    references
        The number of reference models.
    constant
        The constant ``a`` of offline RMIA, tuned on the reference models; None for other methods.
    reach
        The half-width of each score's 95 % confidence interval over reference models, ``(T, n)``;
        None with fewer than eight reference models.
    """

    method: str
    scores: np.ndarray
    members: np.ndarray
    kind: str = "attack"
    references: int = 0
    constant: float | None = None
    reach: np.ndarray | None = None

    mark = (0.5, "chance (AUC)")

    def spans(self) -> Mapping[str, tuple[float, float, float]]:
        """Return the area under the ROC curve and the true positive rate, with 95 % intervals."""
        rate = self.tpr(0.01)
        return {
            "AUC": (self.auc, *self.interval),
            "true positive rate at 1 % false positives": (rate.rate, *rate.interval),
        }

    @property
    def auc(self) -> float:
        """The area under the ROC curve (AUC), averaged over the attacked models."""
        return float(np.mean([area for area, _ in self._areas()]))

    @property
    def interval(self) -> ConfidenceInterval:
        """The 95 % confidence interval of the AUC, for new records and new models.

        The variance of the AUC, on the log-odds scale, is the sum of two parts. The first part is
        the variance over records, averaged over the models because they share the records. The
        second part is the variance between models, divided by the number of models.
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
        """Return the true positive rate at a false positive rate, with its 95 % interval.

        The threshold is chosen from the non-members' scores. The interval is conservative: it
        counts only one model's records, and allows for the sampling error of the threshold.
        """
        check_share(fpr, "fpr")
        known = np.isfinite(self.scores)
        outside = np.sort(self.scores[~self.members & known])[::-1]
        inside = self.scores[self.members & known]
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

    def roc(self, fprs: Sequence[float] = (0.001, 0.01, 0.1)) -> dict[float, Rate]:
        """Return the true positive rates at the given false positive rates (see :meth:`tpr`).

        The interval is wide for a false positive rate below one over the number of non-members.
        """
        return {float(fpr): self.tpr(fpr) for fpr in fprs}

    def exposed(self, count: int = 10) -> list[ExposedRecord]:
        """Return the members with the highest scores, the most exposed first.

        With several attacked models, a record's score is the mean over the models fitted on it.
        """
        check_count(count, "count")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the mean of no scores
            mean = np.nanmean(np.where(self.members, self.scores, np.nan), axis=0)
        order = np.argsort(-np.where(np.isfinite(mean), mean, -np.inf), kind="stable")
        ranked = [int(row) for row in order[:count] if np.isfinite(mean[row])]
        if self.reach is None or len(self.scores) > 1:
            return [ExposedRecord(row, float(mean[row]), None) for row in ranked]
        reach = self.reach[0]
        return [
            ExposedRecord(
                row,
                float(mean[row]),
                ConfidenceInterval(float(mean[row] - reach[row]), float(mean[row] + reach[row])),
            )
            for row in ranked
        ]

    def record_scores(self) -> np.ndarray:
        """Return the mean increase in each record's score when it is a member, ``(n,)``.

        The increase is the record's mean score as a member minus its mean score as a non-member,
        divided by the standard deviation of all non-members' scores. The increase is NaN for a
        record that was always or never a member.
        """
        spread = float(np.nanstd(self.scores[~self.members])) or 1.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # the mean of no scores
            inside = self.scores.mean(axis=0, where=self.members)
            outside = self.scores.mean(axis=0, where=~self.members)
        return np.asarray((inside - outside) / spread)

    def __repr__(self) -> str:
        ends, rate = self.interval, self.tpr(0.01)
        return (
            f"<membership inference by {self.method}, attack: AUC {self.auc:.3f} [{ends.low:.3f}, "
            f"{ends.high:.3f}], {100 * rate.rate:.1f} % of members found at 1 % false positives "
            f"[{100 * rate.interval.low:.1f}, {100 * rate.interval.high:.1f}]>"
        )

    def _areas(self) -> list[tuple[float, ConfidenceInterval]]:
        known = np.isfinite(self.scores)
        return [
            area_under_curve(values[some], member[some])
            for values, member, some in zip(self.scores, self.members, known, strict=True)
        ]


@accepts_other_names
@dataclass(eq=False, repr=False)
class MembershipInference:
    """Membership inference against an estimator or a network, by LiRA, RMIA or the loss.

    Parameters
    ----------
    estimator
        Any classifier (preferably with probabilities) or regressor with ``fit`` and ``predict``; it
        is cloned. Alternatively, a training function ``train(X, y)`` (``train(X)`` if ``y`` is
        None). The function must return a trained model: a torch module, a Hugging Face model or any
        object with ``predict``. An estimator is not needed if reference models are given.
    method
        ``"lira"``, ``"rmia"`` or ``"loss"``. With few reference models, RMIA is stronger than LiRA.
        The loss alone (Yeom et al. 2018) needs no reference model and is the weakest.
    online
        Whether to use reference models trained *with* the attacked record as well.
    shadows
        The number of reference models to fit: at least one if offline, two if online.
    jobs
        The number of models to fit in parallel, in separate processes; −1 for one per core.
    seed
        The seed of the random halves; NumPy and torch are seeded before each call of the
        training function.
    loss
        The loss of a network, as in :func:`seepage.nn.leakage`. The default is the model's own loss
        if the model computes one from labels among its inputs, and cross-entropy otherwise.
    queries
        Augmentations: functions that return modified records, such as mirror images. Every model is
        queried with the original and the augmented records, and the scores are averaged.
    folder
        The folder in which each reference model's predictions are stored. An interrupted run
        resumes from this folder; choose a new folder if the training function or a query has
        changed.
    load
        A function that loads a model from the path of a checkpoint. By default, ``.safetensors``
        files and ``from_pretrained`` folders are loaded as the attacked model's class.
    tokenizer
        The tokenizer of a causal language model; the records ``X`` are then texts, and ``y`` is
        None.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> from sklearn.tree import DecisionTreeClassifier
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.standard_normal((200, 5)), rng.integers(0, 2, 200)
    >>> attack = sp.attacks.MembershipInference(DecisionTreeClassifier(random_state=0), shadows=8)
    >>> attack.run(X, y).auc > 0.6
    True

    A network with two given reference models:

    >>> import torch
    >>> def train(X, y):
    ...     layers = torch.nn.Linear(5, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
    ...     net = torch.nn.Sequential(*layers)
    ...     optimizer = torch.optim.Adam(net.parameters(), 0.01)
    ...     for _ in range(200):
    ...         optimizer.zero_grad()
    ...         torch.nn.functional.cross_entropy(net(X), y).backward()
    ...         optimizer.step()
    ...     return net
    >>> _ = torch.manual_seed(0)
    >>> X, y = torch.tensor(X).float(), torch.tensor(y)
    >>> members = rng.permutation(200) < 100
    >>> had = np.stack([rng.permutation(200) < 100, rng.permutation(200) < 100])
    >>> references = [train(X[half], y[half]) for half in had]
    >>> attack = sp.attacks.MembershipInference(method="rmia", online=False)
    >>> result = attack.against(train(X[members], y[members]), X, y, members, references, had)
    >>> result.auc > 0.6, result.reach is None
    (True, True)
    """

    estimator: Any = None
    _: KW_ONLY
    method: str = "lira"
    online: bool = True
    shadows: int = 32
    jobs: int = 1
    seed: int = 0
    loss: Any = None
    queries: Sequence[Callable[[Any], Any]] = ()
    folder: str | os.PathLike[str] | None = None
    load: Callable[[Path], Any] | None = None
    tokenizer: Any = None

    def __post_init__(self) -> None:
        check_choice(self.method, "method", _METHODS)
        if self.method in _COMPARING:
            check_count(self.shadows, "shadows", 2 if self.online else 1)
        if is_network(self.estimator):
            raise InputError(
                "A trained network cannot be retrained without a training procedure. Give a "
                "training function, sp.attacks.MembershipInference(train).against(net, X, y, "
                "members), or reference models, sp.attacks.MembershipInference().against(net, X, "
                "y, members, references, had). sp.nn.leakage measures the leakage of one private "
                "training step."
            )
        function = callable(self.estimator) and not isinstance(self.estimator, type)
        if self.estimator is not None and (hasattr(self.estimator, "fit") or not function):
            check_estimator(self.estimator)

    def run(self, X: Any, y: Any = None, *, targets: int = 4) -> MembershipInferenceResult:
        """Attack ``targets`` models; all models are trained on random halves of the records.

        With fewer than 16 reference models, every attacked model is compared only with them. With
        16 or more reference models, the other attacked models also serve as reference models.
        """
        check_count(targets, "targets")
        n = count_records(X, y)
        if self.method not in _COMPARING:
            inside = np.concatenate([_halves(n, 1, self.seed + 1 + k) for k in range(targets)])
            return self._by_loss(self._trained(X, y, inside), inside)
        few = self.shadows < 16
        if few:  # the halves of attacked models must say nothing about those of the others
            apart = [_halves(n, 1, self.seed + 1 + k) for k in range(targets)]
            inside = np.concatenate([*apart, _halves(n, self.shadows, self.seed)])
        else:
            inside = random_halves(n, self.shadows + targets, self.seed)
        answers = self._trained(X, y, inside)
        results = []
        for k in range(targets):
            others = [i for i in range(targets if few else 0, len(inside)) if i != k]
            odds = as_log_odds([answers[k], *(answers[i] for i in others)], inside[others])
            results.append(self._attacked(odds, inside[others]))
        return self._result(results, inside[:targets], len(inside) - (targets if few else 1))

    def against(
        self,
        model: Any,
        X: Any,
        y: Any,
        members: Any,
        references: Sequence[Any] | None = None,
        had: Any = None,
    ) -> MembershipInferenceResult:
        """Attack one trained model.

        Parameters
        ----------
        model
            The model: an estimator, a torch module or a Hugging Face model.
        X, y
            The records and their labels; the model was trained on some, but not all, of them.
        members
            Whether the model was trained on each record; used only to measure the success rate.
        references
            Reference models, or the paths of their checkpoints. If None, reference models are
            trained on random halves of the records.
        had
            Whether each reference model was trained on each record, ``(M, n)``. None means that no
            reference model was trained on any of the records; only offline attacks are then
            possible.
        """
        n = count_records(X, y)
        members = as_numpy(members).astype(bool)
        if members.shape != (n,):
            raise InputError(f"members must contain True or False for each of the {n} records.")
        if members.all() or not members.any():
            raise InputError(
                "The attack needs both members (records on which the model was trained) and "
                "non-members; give both."
            )
        questions = self._questions(X, y)
        if self.method not in _COMPARING:
            if references is not None:
                raise InputError(
                    'method="loss" uses no reference models; leave them out, or pass method="rmia".'
                )
            return self._by_loss([questions(model)], members[None, :])
        if references is None:
            inside = _halves(n, self.shadows, self.seed)
            answers = self._trained(X, y, inside)
        else:
            inside = self._memberships(had, len(references), n)
            answers = given_answers(references, questions, self.load, model)
        odds = as_log_odds([questions(model), *answers], inside)
        return self._result([self._attacked(odds, inside)], members[None, :], len(inside))

    def _memberships(self, had: Any, models: int, records: int) -> np.ndarray:
        """Return a mask of the records on which each given reference model was trained."""
        if not models:
            raise InputError("references is empty; give at least one model.")
        if had is None:
            if self.online:
                raise InputError(
                    "An online attack needs reference models trained with and without each "
                    "record; give had=, a mask of each model's training records, or pass "
                    "online=False."
                )
            return np.zeros((models, records), dtype=bool)
        inside = as_numpy(had).astype(bool)
        if inside.shape != (models, records):
            raise InputError(
                f"had= must have the shape ({models}, {records}), one row per reference model, but "
                f"it has the shape {inside.shape}."
            )
        sides = [~inside, inside] if self.online else [~inside]
        if not any(np.all([side.any(axis=0) for side in sides], axis=0)):
            raise InputError(
                "An online attack needs reference models trained with a record and others trained "
                "without it; no record has both. Give other models, or pass online=False."
                if self.online
                else "Every reference model was trained on all records, but the attack needs "
                "models trained without some of the records; give other reference models."
            )
        return inside

    def _questions(self, X: Any, y: Any) -> Questions:
        return Questions(X, y, self.loss, tuple(self.queries), self.tokenizer)

    def _trained(self, X: Any, y: Any, inside: np.ndarray) -> list[ModelAnswers]:
        if self.estimator is None:
            raise InputError(
                "Reference models cannot be trained without a training procedure. Give an "
                "estimator or a training function, as in MembershipInference(train), or pass "
                "trained models as references to against()."
            )
        return trained_answers(
            self.estimator,
            self._questions(X, y),
            inside,
            jobs=self.jobs,
            folder=self.folder,
            seed=self.seed,
        )

    def _by_loss(
        self, answers: Sequence[ModelAnswers], members: np.ndarray
    ) -> MembershipInferenceResult:
        """Return the result of an attack that classifies records with small losses as members."""
        scores = np.stack([answer.values.mean(axis=1) for answer in answers])
        return MembershipInferenceResult("loss", scores, members)

    def _attacked(self, odds: np.ndarray, inside: np.ndarray) -> _Attack:
        """Attack the first model in an array ``(1 + M, n, Q)``, with the others as references."""
        target, references = odds[0], odds[1:]
        constant = None
        if self.method == "rmia" and not self.online:
            constant = offline_constant(references, inside)
        settings: dict[str, Any] = {"method": self.method, "online": self.online}
        if constant is not None:
            settings["constant"] = constant
        scores = score(target, references, inside, **settings)
        reach = None
        if len(inside) >= 8:  # a jackknife over fewer models says too little
            quantile = float(stdtrit(len(inside) - 1, 0.975))
            reach = intervals(target, references, inside, quantile=quantile, **settings)
        return _Attack(scores, reach, constant)

    def _result(
        self, attacks: Sequence[_Attack], members: np.ndarray, references: int
    ) -> MembershipInferenceResult:
        constants = [attack.constant for attack in attacks if attack.constant is not None]
        reaches = [attack.reach for attack in attacks if attack.reach is not None]
        return MembershipInferenceResult(
            _name(self.method, self.online),
            np.stack([attack.scores for attack in attacks]),
            members,
            references=references,
            constant=float(np.mean(constants)) if constants else None,
            reach=np.stack(reaches) if reaches else None,
        )


def attack_all(
    signals: np.ndarray, inside: np.ndarray, targets: int
) -> tuple[MembershipInferenceResult, ...]:
    """Return the results of LiRA and RMIA, online and offline, for models fitted on halves.

    Parameters
    ----------
    signals
        The :func:`~seepage.attacks.membership.signals.confidence` of every model in every record,
        ``(M, n)``.
    inside
        Whether each model was fitted on each record, ``(M, n)``.
    targets
        The number of attacked models; all other models serve as shadow models for each of them.
    """
    attacks = []
    for method in _COMPARING:
        for online in (True, False):
            scores = []
            for k in range(targets):
                others, had = np.delete(signals, k, axis=0), np.delete(inside, k, axis=0)
                outside = others[~had]
                odds = log_odds(as_probabilities(np.stack([signals[k], *others]), outside))
                one, *rest = odds[..., None]
                scores.append(score(one, np.stack(rest), had, method=method, online=online))
            name = _name(method, online)
            attacks.append(MembershipInferenceResult(name, np.stack(scores), inside[:targets]))
    return tuple(attacks)


class _Attack(NamedTuple):
    """The scores, interval half-widths and constant of the attack on one model."""

    scores: np.ndarray
    reach: np.ndarray | None
    constant: float | None


def _name(method: str, online: bool) -> str:
    return f"{_COMPARING[method]}, {'online' if online else 'offline'}"


def _halves(records: int, models: int, seed: int) -> np.ndarray:
    """Return random halves of the records, even if there is only one model."""
    return random_halves(records, max(2, models), seed)[:models]


def _threshold(descending: np.ndarray, fpr: float) -> float:
    """Return a threshold above which lies at most the share ``fpr`` of the sorted scores."""
    allowed = math.floor(fpr * len(descending) + 1e-9)
    return float(descending[min(allowed, len(descending) - 1)])


def _clopper_pearson(share: float, count: int, tail: float) -> ConfidenceInterval:
    hits = share * count
    low = float(beta.ppf(tail, hits, count - hits + 1)) if hits > 0 else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, count - hits)) if hits < count else 1.0
    return ConfidenceInterval(low, high)

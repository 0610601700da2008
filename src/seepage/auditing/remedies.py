"""Remedies for the most exposed records: settings, protection and cost of each.

Each remedy is strengthened until the most exposed record meets the targets for leakage η,
membership inference and attribute inference. Each remedy is reported with its held-out error and
that of a constant prediction. The choice of noise and penalty depends on the data, so both are
rounded up to a coarse grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np

from seepage.auditing.findings import (
    FALSE_POSITIVES,
    REMEDY_NAMES,
    WIDEST,
    GuessFinding,
    Remedy,
    RemedyKind,
    RiskFinding,
    TradeoffCurve,
)
from seepage.auditing.measures import record_leakage
from seepage.auditing.questions import MAX_GUESS_GAIN, MAX_GUESS_TPR, MAX_MEMBERSHIP, Limits
from seepage.auditing.tradeoff import SPLITS, HeldOutTrial, judge_usefulness, try_out
from seepage.auditing.trained_model import RecordsInMemory, TrainedModel
from seepage.core.noise import Gaussian
from seepage.core.result import SAME, round_up
from seepage.errors import InputError
from seepage.glm.reweighting import reweight
from seepage.glm.shaped_noise import noise_shape
from seepage.risks.guessing import (
    accuracy,
    accuracy_beside,
    rate_beside,
    right_beside,
    true_positive_rate,
)

_LARGEST_PENALTY = 1e3  # beyond it a standardised column has no weight left
# Budgets in multiplications of one pass, a few seconds each: beyond them a search tries fewer
# penalties, and penalties and weights are tried only if asked for by name.
_MANY_PENALTIES = 2e8
_BUDGETS = {"penalty": 5e9, "weights": 2e7}

# In the order in which they are tried
KINDS = tuple(kind for kind in RemedyKind if kind != RemedyKind.REFITS)

# The risks of a release of a model with noise σ, and of a shape, where they are known
RisksOf = Callable[[TrainedModel, float, Gaussian | None], RiskFinding | None]


@dataclass(frozen=True)
class Protection:
    """The target of the remedies: the largest allowed leakage of any record, and risk limits."""

    eta: float
    membership: float = MAX_MEMBERSHIP
    gain: float = MAX_GUESS_GAIN
    tpr: float = MAX_GUESS_TPR

    @classmethod
    def asked(cls, eta: float, limits: Limits | None) -> Protection:
        """Return the limits set by the caller, or the verdict's default limits."""
        if limits is None:
            return cls(eta)
        stated = {
            "membership": limits.max_membership,
            "gain": limits.max_guess_gain,
            "tpr": limits.max_guess_tpr,
        }
        return cls(eta, **{name: limit for name, limit in stated.items() if limit is not None})

    def reached(self, remedy: Remedy, risks: RiskFinding | None = None) -> bool:
        """Return whether a remedy meets the target.

        Every risk known for the release must also be known for the remedy; a risk that was not
        measured counts as exceeding its limit.
        """
        known = _with_risks(remedy, risks)
        return remedy.eta is not None and all(
            getattr(known, name) is None or (value is not None and value <= limit * (1 + SAME))
            for name, limit in vars(self).items()
            for value in [getattr(remedy, name)]
        )


def find_remedies(
    trained: TrainedModel,
    trial: HeldOutTrial,
    *,
    sigma: float,
    asked: Protection,
    worst: float,
    risks: RiskFinding | None,
    risks_of: RisksOf,
    curve: TradeoffCurve,
    seed: int,
    splits: int = SPLITS,
    wanted: Sequence[str] | None = None,
    say: Callable[[str], object] = lambda words: None,
) -> tuple[Remedy, ...]:
    """Return remedies with other noise, penalties, weights and noise shapes, in order of rank.

    Remedies that refit the model several times are tried for tables in memory only, and within a
    budget unless ``wanted`` names the kind of remedy. ``worst`` is the largest leakage of a record
    at σ = 1. ``risks`` contains the risks of the current release, and ``risks_of`` computes those
    of another model or noise. ``curve`` contains the errors with other noise; each remedy's model
    is compared with a constant prediction over ``splits`` train/test splits. ``say`` is called with
    the name of each stage. Remedies whose model is no better than a constant prediction come last.
    """
    kinds = KINDS if wanted is None else tuple(RemedyKind(name) for name in wanted)
    within = {name: wanted is not None or trained.work <= most for name, most in _BUDGETS.items()}
    if not within["weights"]:  # as many passes as weights take

        def risks_of(*_: Any) -> None:
            """Leave the risks unmeasured."""

    splits = splits if trained.work <= _MANY_PENALTIES else 1
    search = _Search(trained, trial, sigma, asked, worst, risks, risks_of, curve, seed, splits)
    remedies = [search.more_noise()] if RemedyKind.NOISE in kinds else []
    # Without public records there is no shape, and a penalty that is enough needs no other.
    left_out = {RemedyKind.NOISE}
    left_out |= {RemedyKind.SHAPE} if trained.table.public is None else set()
    left_out |= {RemedyKind.PENALTY} if search.met else set()
    refits = [kind for kind in kinds if kind not in left_out]
    if math.isinf(trained.refit_work) or not any(within.values()):
        large = [Remedy(kind=RemedyKind.REFITS, reason="large")] if refits else []
        return _ordered([*remedies, *large], trial, asked, risks)
    try:
        for kind in refits:
            say(f"remedy: {REMEDY_NAMES[kind]}")
            if kind == RemedyKind.PENALTY:
                remedies.append(search.penalty())
            elif kind == RemedyKind.COMBINATION:
                remedies.append(search.combination())
            elif kind == RemedyKind.WEIGHTS:
                remedies.append(search.weights(within["weights"]))
            elif trained.table.public is not None:
                remedies.append(search.shape(trained.table.public))
    except InputError as problem:
        remedies.append(Remedy(kind=RemedyKind.REFITS, reason="failed", problem=str(problem)))
    return _ordered(remedies, trial, asked, risks)


def _ordered(
    remedies: Iterable[Remedy], trial: HeldOutTrial, asked: Protection, risks: RiskFinding | None
) -> tuple[Remedy, ...]:
    """Compare remedies with the target and a constant prediction; return them in order of rank.

    Of two remedies with the same noise and penalty, the simpler one is kept.
    """
    distinct: dict[Any, Remedy] = {}
    for remedy in remedies:
        taken = (remedy.sigma, remedy.l2) if remedy.l2 is not None else remedy.kind
        distinct.setdefault(taken, remedy)

    def beside(remedy: Remedy) -> Remedy:
        constant = None if remedy.error is None else trial.trivial_error()
        return replace(remedy, constant=constant, reaches_target=asked.reached(remedy, risks))

    return tuple(sorted(map(beside, distinct.values()), key=attrgetter("rank")))


@dataclass(frozen=True, eq=False)
class _Search:
    """The search for remedies: a model with its noise, and the target."""

    trained: TrainedModel
    trial: HeldOutTrial
    sigma: float
    asked: Protection
    worst: float  # the largest leakage of a record at σ = 1
    risks: RiskFinding | None
    risks_of: RisksOf
    curve: TradeoffCurve
    seed: int
    splits: int

    @property
    def met(self) -> bool:
        """Whether the current release meets the target for every record."""
        here = Remedy(kind=RemedyKind.NOISE, eta=self.worst / self.sigma)
        return self.asked.reached(_with_risks(here, self.risks), self.risks)

    def more_noise(self) -> Remedy:
        """Return more noise: enough for the target, or at least 2σ if the target is already met."""
        start = Remedy(kind=RemedyKind.NOISE)
        least = 2 * self.sigma if self.met else self._plain_noise
        found = self._enough(start, self.trained, self.worst, least)
        assert found.sigma is not None  # noqa: S101 - told to the type checker
        known = self.curve.usefulness_at(found.sigma)
        if known is None:
            return self._tried(found, self.trained, self.trial)
        return replace(found, error=self.trial.error(found.sigma), usefulness=known)

    def penalty(self) -> Remedy:
        """Search for the smallest λ with which the current noise suffices, by bisecting log λ."""
        steps = 5 if self.trained.work > _MANY_PENALTIES else 12

        @cache
        def leaks(l2: float) -> float:
            return float(record_leakage(self._refitted(l2)).max())

        @cache
        def tried(l2: float) -> Remedy:
            start = Remedy(kind=RemedyKind.PENALTY, l2=l2, sigma=self.sigma)
            risks = self.risks_of(self._refitted(l2), self.sigma, None)
            return _with_risks(replace(start, eta=leaks(l2) / self.sigma), risks)

        def calm(l2: float) -> bool:
            return leaks(l2) <= self.asked.eta * self.sigma

        def enough(l2: float) -> bool:
            return calm(l2) and self.asked.reached(tried(l2))

        def least(test: Callable[[float], bool], low: float, high: float) -> float:
            for _ in range(steps):
                middle = math.sqrt(low * high)
                low, high = (low, middle) if test(middle) else (middle, high)
                if high / low < 1.02:
                    break
            return round_up(high)

        if not enough(_LARGEST_PENALTY):
            return replace(tried(_LARGEST_PENALTY), reason="no penalty")
        l2 = least(calm, max(self.trained.settings.l2, 1e-8), _LARGEST_PENALTY)
        if not enough(l2):  # seldom: what is enough for η is mostly enough for the rest
            l2 = least(enough, l2, _LARGEST_PENALTY)
        # Leakage need not fall all the way from one point of the grid to the next.
        while not enough(l2) and l2 < _LARGEST_PENALTY:
            l2 = round_up(1.01 * l2)
        return self._tried(tried(l2), self._refitted(l2), self._after(l2))

    def combination(self) -> Remedy:
        """Return the stronger penalty with the smallest error, and the noise that it needs."""
        work, tried = self.trained.work, []
        factors = (3, 10, 30, 100, 300, 1000)
        few = factors[3:4] if work > _MANY_PENALTIES else factors[1::2]
        for factor in factors if work <= _BUDGETS["weights"] else few:
            l2 = factor * max(self.trained.settings.l2, 1e-4)
            worst = float(record_leakage(self._refitted(l2)).max())
            after = self._after(l2)
            tried.append((after.error(round_up(worst / self.asked.eta)), l2, worst, after))
        _, l2, worst, after = min(tried, key=lambda option: option[0])
        start = Remedy(kind=RemedyKind.COMBINATION, l2=after.settings.l2)
        found = self._enough(start, self._refitted(l2), worst, round_up(worst / self.asked.eta))
        return self._tried(found, self._refitted(l2), after)

    def weights(self, affordable: bool) -> Remedy:
        """Refit with weights that even out the leakage (Hannun et al. 2021, algorithm 1).

        The leakage is that of the whole procedure: the weights depend on the data, and choosing
        them can leak more than they save. The risks of this remedy are unknown.
        """
        trained, kind = self.trained, RemedyKind.WEIGHTS
        if trained.owner is not None:  # what weights leak is computed for single records
            return Remedy(kind=kind, reason="rows")
        known = trained.settings.model in ("linear", "logistic") and trained.basis() is None
        if not (known and len(trained.source.names) <= WIDEST):  # what weights leak is not known
            return Remedy(kind=kind, reason="unknown")
        if not affordable:
            return Remedy(kind=kind, reason="slow")
        source = trained.records
        # A label in units of its spread and noise to match are the same release, with the label's
        # step one.
        step = trained.table.labels.step
        y = source.y / step if trained.settings.model == "linear" else source.y
        fair = reweight(
            trained.settings.estimator(),
            source.X,
            y,
            rounds=60,  # it mostly settles in ten or twenty
            tolerance=1e-4,
            noise=Gaussian(1 / step),
            sample_weight=source.sample_weight,
            scoring=lambda *_: math.nan,  # the remedy is judged by its error on held-out records
        )
        worst = float(np.max(np.asarray(fair.whole_procedure())))
        needed = round_up(worst / self.asked.eta)
        rounds = len(fair.trajectory) - 1
        tried = Remedy(kind=kind, sigma=needed, rounds=rounds, eta=worst / needed)
        if needed >= self._plain_noise:
            return replace(tried, reason="no gain")
        weighted = replace(trained.table, source=source.weighted_by(fair.weights))
        other = replace(trained, table=weighted)
        return self._tried(tried, other, try_out(other, trained.settings, self.seed))

    def shape(self, public: RecordsInMemory) -> Remedy:
        """Return the remedy whose noise is shaped by a model of public records."""
        trained, trial = self.trained, self.trial
        pilot = trained.settings.fit(public)
        shape = noise_shape(pilot, public.X, public.y)
        worst = float(record_leakage(trained, shape).max())
        start = Remedy(kind=RemedyKind.SHAPE, public=len(public))
        found = self._enough(start, trained, worst, round_up(worst / self.asked.eta), shape)
        after = replace(trial, root=np.linalg.cholesky(shape.sigma), _known={})
        found = self._tried(found, trained, after)
        assert found.error is not None  # noqa: S101 - told to the type checker
        gained = found.error < trial.error(self._plain_noise)
        return found if gained else replace(found, reason="no gain")

    def _tried(self, remedy: Remedy, trained: TrainedModel, trial: HeldOutTrial) -> Remedy:
        """Return a remedy with its error, compared with that of a constant prediction."""
        assert remedy.sigma is not None  # noqa: S101 - told to the type checker
        found = judge_usefulness(trained, trial, [remedy.sigma], self.seed, self.splits)
        error = trial.error(remedy.sigma)
        return replace(remedy, error=error, usefulness=found[0] if found else None)

    @property
    def _plain_noise(self) -> float:
        """The smallest noise on the coarse grid with which the current model meets the target η."""
        return round_up(self.worst / self.asked.eta)

    def _refitted(self, l2: float) -> TrainedModel:
        return self.trained.refitted(replace(self.trained.settings, l2=l2))

    def _after(self, l2: float) -> HeldOutTrial:
        """Return the trial of a model with another penalty on the same held-out records."""
        settings = replace(self.trained.settings, l2=l2)
        other = try_out(self.trained, settings, self.seed)
        return replace(other, held_out=self.trial.held_out)  # no copies

    def _enough(
        self,
        start: Remedy,
        trained: TrainedModel,
        worst: float,
        least: float,
        shape: Gaussian | None = None,
    ) -> Remedy:
        """Return a remedy with the smallest noise, at least ``least``, that meets the target.

        ``worst`` is the largest leakage of a model's records at σ = 1. The risks are computed once,
        and rescaled in closed form for more noise.
        """
        known, sigma = self.risks, self.sigma
        if trained is not self.trained or shape is not None:
            known, sigma = self.risks_of(trained, least, shape), least

        def at(noise: float) -> Remedy:
            found = replace(start, sigma=noise, eta=worst / noise)
            return _with_risks(found, known and with_noise(known, sigma, noise))

        found = at(least)
        # Without some record there may be no model, which no noise hides; nor does it hide the
        # figures beside the noisy numbers.
        while not self.asked.reached(found) and (known is None or math.isfinite(known.mu)):
            if found.sigma is None or found.sigma > 1e6 * least:
                return at(least)
            found = at(round_up(1.01 * found.sigma))
        return found


def with_noise(risks: RiskFinding, sigma: float, noise: float) -> RiskFinding:
    """Convert the risks of a model from the noise ``sigma`` to ``noise``, as upper bounds.

    Distances μ between releases are inversely proportional to the noise, and membership inference
    succeeds ``Φ(μ/2)`` of the time. Suppose that no two of K levels are farther apart than μ. Then
    a guess among them gains at most ``(1 − 1/K)(2Φ(μ/2) − 1)``, for any prior. The reason is ``∫
    maxⱼ pⱼfⱼ ≤ p + Σⱼ pⱼ∫(fⱼ − fₖ)₊``, where ``fⱼ`` is the density of the release at level j of
    prior ``pⱼ``, and k is the most common level, of prior ``p``. A guess also gains at most the
    largest gain on the curve at the nearest smaller noise. All risks include the figures published
    with the noisy numbers.
    """
    times, most = noise / sigma, math.inf
    absent, values = (risks.epsilon, risks.delta), (risks.guess_epsilon, risks.guess_delta)
    if times == 1:
        return risks
    curve = risks.curve
    if curve is not None and curve.right is not None and curve.baseline is not None:
        # More noise adds no more to a guess: the last stop before it has the most it can gain.
        before = np.flatnonzero(curve.sigma <= noise)
        most = float((curve.right - curve.baseline)[before[-1]]) if len(before) else math.inf

    def guess(found: GuessFinding) -> GuessFinding:
        if found.mu is None:
            return found
        mu = found.mu / times
        closed = found.baseline + (1 - 1 / found.levels) * (2 * float(accuracy(mu)) - 1)
        right = float(right_beside(min(closed, 1.0), found.baseline, found.levels, *values))
        gain = min(right - found.baseline, most, found.gain if times > 1 else math.inf)
        tpr = rate_beside(
            float(true_positive_rate(mu, FALSE_POSITIVES[0])), FALSE_POSITIVES[0], *values
        )
        return replace(found, right=found.baseline + gain, mu=mu, tpr=tpr)

    mu = risks.mu / times
    return replace(
        risks,
        membership=float(accuracy_beside(mu, 0.5, *absent)),
        mu=mu,
        guesses=tuple(guess(found) for found in risks.guesses),
    )


def _with_risks(remedy: Remedy, risks: RiskFinding | None) -> Remedy:
    if risks is None:
        return remedy
    worst, told = risks.worst_guess, risks.told_best
    return replace(
        remedy,
        membership=risks.recognised,
        gain=None if worst is None else worst.gain,
        tpr=None if told is None else told.tpr,
    )

"""The privacy–utility trade-off: held-out error against noise.

A model is fitted without some records and tested on them with noise. The error follows from sums
of losses over the held-out records, computed where these are stored. Only the model, its settings
and the scales and seed of the noise are sent there. The leakage in the curve is that of the
released model, which is fitted on all records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.special import stdtrit

from seepage.auditing.findings import TradeoffCurve, UsefulnessFinding
from seepage.auditing.trained_model import FitSettings, LabelFacts, TrainedModel
from seepage.core.result import round_up
from seepage.errors import InputError
from seepage.glm.losses import class_positions
from seepage.tables.names import counted
from seepage.tables.source import Chunk, RowSource, distinct

DRAWS = 20  # of the noise
SPLITS = 5  # splits over which a model is judged useful or not
_WEAKEST_PENALTY = 1e-6  # the penalty with which an unpenalised model is fitted to part of the rows
_HEAVY = 2e9  # multiplications in one pass above which no split is repeated


@dataclass(frozen=True, eq=False)
class _LossSums:
    """Sums of losses ``l``, and of the terms of a constant's loss, over held-out records.

    The loss of a constant prediction is ``f·w``. For classes, ``f`` is a record's one-hot class.
    For numbers, it contains the powers ``(1, a, a²)`` of the record's distance ``a`` from the mean
    of all records. ``w`` is known only after all sums are computed. In ``squares`` and ``beside``,
    ``l`` is a record's mean loss over the noise draws at one noise scale.
    """

    count: int
    noisy: np.ndarray  # Σ l of every draw, (scales, draws)
    squares: np.ndarray  # Σ l², (scales,)
    beside: np.ndarray  # Σ l f, (scales, J)
    labels: np.ndarray  # Σ f fᵀ, (J, J)

    def __add__(self, other: _LossSums) -> _LossSums:
        return _LossSums(
            *(getattr(self, f.name) + getattr(other, f.name) for f in fields(_LossSums))
        )


@dataclass(eq=False)
class HeldOutTrial:
    """A model fitted without some records, and the errors of its noisy copies on them."""

    held_out: RowSource  # the test records
    model: Any
    settings: FitSettings
    labels: LabelFacts  # a summary of the labels of all records
    rows: int  # the number of all records, including the held-out ones
    seed: int  # the seed of the noise
    # Whether the model was fitted on the test records too, because none could be fitted without
    saw_them: bool = False
    largest: int = 1  # the largest number of held-out records of one person
    root: np.ndarray | None = None  # the root of the noise covariance: see noisy_margins
    _known: dict[float, tuple[float, UsefulnessFinding]] = field(default_factory=dict)
    _trivial: float = np.nan

    def prepare(self, scales: Iterable[float]) -> None:
        """Compute the errors at several noise scales in one pass."""
        wanted = tuple(dict.fromkeys(float(s) for s in scales if float(s) not in self._known))
        if not wanted:
            return
        ask = partial(
            _lost,
            model=self.model,
            settings=self.settings,
            labels=self.labels,
            seed=self.seed,
            scales=wanted,
            root=self.root,
        )
        total: _LossSums = self.held_out.total(ask, "held-out records")
        m, (weights, constant) = total.count, self._constant(total)
        self._trivial = self.as_error(constant)
        with np.errstate(invalid="ignore"):  # a loss may be infinite
            squares = total.squares - 2 * total.beside @ weights + weights @ total.labels @ weights
        for s, draws, square in zip(wanted, total.noisy, squares / m, strict=True):
            loss = float(np.mean(draws)) / m
            self._known[s] = (self.as_error(loss), self._judge(constant, loss, float(square), m))

    def error(self, sigma: float) -> float:
        """Return the error with noise σ, averaged over the draws (root mean square for regression).

        The draws are the same for every σ up to scale, so that differences between errors are not
        due to chance.
        """
        self.prepare([sigma])
        return self._known[sigma][0]

    def usefulness(self, sigma: float) -> UsefulnessFinding:
        """Return the advantage over a constant prediction with noise σ, and its interval."""
        self.prepare([sigma])
        return self._known[sigma][1]

    def trivial_error(self) -> float:
        """Return the error of a constant prediction."""
        self.error(0.0)
        return self._trivial

    def _constant(self, held_out: _LossSums) -> tuple[np.ndarray, float]:
        """Return ``w``, and the held-out loss of the training records' commonest class or mean."""
        counts, sums = self.labels.counts, held_out.labels
        seen = np.diag(sums) if self.settings.classifies else sums[0]  # Σ f
        if counts is None:
            # From the mean of all records to that of the others: (a − t)² = t² − 2ta + a².
            apart = -float(seen[1]) / (self.rows - held_out.count)
            weights = np.array([apart * apart, -2 * apart, 1.0])
        else:
            everyone = np.asarray([counts[label] for label in self.model.classes_.tolist()])
            weights = np.asarray(1.0 - np.eye(len(seen))[np.argmax(everyone - seen)])
        return weights, float(seen @ weights) / held_out.count

    def _judge(self, constant: float, loss: float, square: float, m: int) -> UsefulnessFinding:
        """Return the advantage, from the mean losses and ``square``, the mean squared difference.

        The interval is computed from the paired differences of the held-out records. Records of one
        person are dependent: the variance of their sum is at most ``largest``, the most records of
        one person, times that of independent records.
        """
        if not math.isfinite(square):  # so wrong that the square of it overflows
            return UsefulnessFinding(-math.inf, -math.inf, -math.inf, 1)
        gain = constant - loss
        variance = max(square - gain * gain, 0.0) * self.largest / max(m - 1, 1)
        reach = float(stdtrit(m - 1, 0.975)) * math.sqrt(variance) if m > 1 else math.inf
        # Roots of mean squares differ by the difference of those over the sum of the roots.
        both = 1.0 if self.settings.classifies else self.as_error(constant) + self.as_error(loss)
        low, gain, high = (x / both if both > 0 else x for x in (gain - reach, gain, gain + reach))
        return UsefulnessFinding(gain, low, high, 1)

    def as_error(self, loss: float) -> float:
        """Return a mean loss as reported: an error rate, or a root mean squared error."""
        return loss if self.settings.classifies else float(np.sqrt(loss))


def try_out(trained: TrainedModel, settings: FitSettings, seed: int) -> HeldOutTrial:
    """Fit without a fifth of the records (or people), at most 20,000, to test the noise on them.

    The fit starts from the model of all records, which is usually close. If there is no unique
    model, a weak penalty is used; without a penalty, this happens if only held-out records have
    some level. If there is still no model (all records of a class are held out), the model of all
    records is used instead.
    """
    if math.isinf(trained.refit_work):
        # The labels of a table beyond memory are not known, but every class keeps some of so many.
        chosen = held_out_rows(len(trained.source), seed)
    else:
        chosen = split(trained.records.y, settings.classifies, seed, trained.owner)[1]
    # λ counts per record: where records stay with weight zero, it is scaled by their share.
    rest, held_out, share = trained.source.parted(chosen)
    stronger = [settings]
    if settings.l2 < _WEAKEST_PENALTY:
        stronger.append(replace(settings, l2=_WEAKEST_PENALTY))
    model, used = None, settings
    for used in stronger:
        with suppress(InputError):
            model = replace(used, l2=used.l2 * share).fit(rest, start=trained.model)
            break
    saw_them = model is None
    if model is None:
        used = settings
        model = trained.model if used == trained.settings else used.fit(trained.source)
    rows, owner = len(trained.source), trained.owner
    largest = 1 if owner is None else int(np.bincount(owner[chosen]).max())
    labels = trained.table.labels
    return HeldOutTrial(held_out, model, used, labels, rows, seed, saw_them, largest)


def _lost(
    chunk: Chunk,
    model: Any,
    settings: FitSettings,
    labels: LabelFacts,
    seed: int,
    scales: tuple[float, ...],
    root: np.ndarray | None,
) -> _LossSums:
    """Return the sums of the losses over a chunk's records."""
    margins, shifts = noisy_margins(model, settings, chunk.X, seed, root=root)
    if settings.classifies:
        truth = class_positions(chunk.y, model.classes_)
        features = np.eye(len(model.classes_))[truth]
    else:
        truth = np.asarray(chunk.y, dtype=float)
        features = np.vander(truth - labels.mean, 3, increasing=True)
    noisy, squares, beside = [], [], []
    for s in scales:
        each = [losses(settings, margins + s * shift, truth, labels.most) for shift in shifts]
        mean = np.mean(each, axis=0)
        noisy.append(np.sum(each, axis=1, dtype=float))
        with np.errstate(over="ignore", invalid="ignore"):
            squares.append(float(mean @ mean))
            beside.append(mean @ features)
    return _LossSums(
        len(chunk),
        np.asarray(noisy),
        np.asarray(squares),
        np.asarray(beside),
        features.T @ features,
    )


def losses(
    settings: FitSettings, margins: np.ndarray, truth: np.ndarray, ceiling: float
) -> np.ndarray:
    """Return the loss of every record: whether its prediction is wrong, or the squared error."""
    if settings.classifies and settings.model != "softmax":
        return np.asarray((margins[:, 0] > 0) != truth)
    if settings.model == "softmax":
        return np.asarray(np.argmax(margins, axis=1) != truth)
    predicted = margins[:, 0]
    if settings.model == "poisson":
        # Nobody would believe a count far beyond any in the data.
        predicted = np.minimum(np.exp(np.minimum(predicted, 700.0)), ceiling)
    elif settings.family is not None:
        with np.errstate(over="ignore"):
            predicted = np.minimum(settings.family.mean(predicted), ceiling)
    return np.asarray((predicted - truth) ** 2)


def noisy_margins(
    model: Any,
    settings: FitSettings,
    X: np.ndarray,
    seed: int,
    draws: int = DRAWS,
    root: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the margins, (m, K), of m records, and their changes by noise at σ = 1, (draws, m, K).

    For noise with covariance ``LLᵀ`` instead of the identity, ``root`` is the lower triangular
    ``L``.
    """
    coef = np.atleast_2d(np.asarray(model.coef_, dtype=float)).T  # (D, K)
    if settings.intercept:
        coef = np.vstack([coef, np.reshape(np.asarray(model.intercept_, dtype=float), (1, -1))])
    noise = np.random.default_rng(seed).standard_normal((draws, *coef.shape))
    if root is not None:
        noise = np.reshape(noise.reshape(draws, -1) @ root.T, noise.shape)
    d = X.shape[1]

    def seen(theta: np.ndarray) -> np.ndarray:
        return np.asarray(X @ theta[:d] + theta[d:].sum(axis=0))  # the intercept's, if any

    return seen(coef), np.reshape([seen(draw) for draw in noise], (draws, len(X), coef.shape[1]))


def wrong_classes(chunk: Chunk, model: Any, settings: FitSettings) -> int:
    """Return how many of a chunk's records the model predicts to be of another class."""
    margins, _ = noisy_margins(model, settings, chunk.X, 0, draws=0)
    truth = class_positions(chunk.y, model.classes_)
    return int(np.sum(losses(settings, margins, truth, 0.0)))


def draw_curve(
    trial: HeldOutTrial, sigma: float, calibrated: float, median: float, worst: float
) -> TradeoffCurve:
    """Return held-out error and leakage at noise scales around the release's and the target's.

    ``median`` and ``worst`` are the leakages of records at σ = 1.
    """
    # Both scales and 2σ, and larger points of the coarse grid, from which remedies choose their
    # noise, so that no reported error is interpolated
    low, high = min(sigma, calibrated), max(sigma, calibrated)
    around = [*np.geomspace(low / 100, high, 12), sigma, calibrated, 2 * sigma]
    point = round_up(high)
    while point <= 30 * high:
        around.append(point)
        point = round_up(1.01 * point)
    scales = np.unique(around)
    trial.prepare([0.0, *scales])
    name = "error rate" if trial.settings.classifies else "root mean squared error"
    if trial.settings.model == "poisson":
        name += " (predictions capped at the largest count)"
    return TradeoffCurve(
        sigma=scales,
        error=np.array([trial.error(float(s)) for s in scales]),
        median_eta=median / scales,
        worst_eta=worst / scales,
        error_name=name,
        noiseless_error=trial.error(0.0),
        trivial_error=trial.trivial_error(),
        l2=trial.settings.l2,
        held_out=not trial.saw_them,
    )


def judge_usefulness(
    trained: TrainedModel,
    first: HeldOutTrial,
    scales: Iterable[float],
    seed: int,
    splits: int = SPLITS,
) -> tuple[UsefulnessFinding, ...]:
    """Return how much better a model predicts than a constant prediction, at some noise scales.

    Over several splits with different held-out records, the interval allows for records shared
    between splits (Nadeau and Bengio 2003). If only one split is requested, or more fits would take
    too long, the interval is over the held-out records of the ``first`` split only. The result is
    empty if the model was fitted on the test records.
    """
    wanted = [float(s) for s in scales]
    trials, found = 1 if trained.refit_work > _HEAVY else splits, []
    for k in range(trials):  # one after the other: each has a copy of its held-out records
        trial = try_out(trained, trained.settings, seed + k) if k else first
        if trial.saw_them:
            return ()
        trial = replace(trial, root=first.root)
        trial.prepare(wanted)
        found.append([trial.trivial_error() - trial.error(s) for s in wanted])
    if trials == 1:
        return tuple(first.usefulness(s) for s in wanted)
    gains, tested = np.array(found), len(first.held_out)
    with np.errstate(invalid="ignore"):  # an error may be infinite
        spread = gains.std(axis=0, ddof=1) * math.sqrt(1 / trials + tested / (first.rows - tested))
    reach = np.nan_to_num(float(stdtrit(trials - 1, 0.975)) * spread, nan=0.0)
    middle = gains.mean(axis=0)
    return tuple(
        UsefulnessFinding(float(g), float(g - r), float(g + r), trials)
        for g, r in zip(middle, reach, strict=True)
    )


def split(
    y: np.ndarray, classes: bool, seed: int, owner: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the training and held-out rows, with every class in the training rows.

    About the same fraction of every class is held out, so that the held-out error of a constant
    prediction does not vary by chance. With an ``owner`` of every row, a fifth of the owners are
    held out with all of their rows.
    """
    if owner is not None:
        return _split_of_people(y, classes, seed, owner)
    n = len(y)
    order = np.random.default_rng(seed).permutation(n)
    wanted = _held_out_count(n)
    if classes:
        # The first record of every class (in random order) stays with the fit; the others are
        # ordered by their position within their own class.
        inverse = distinct(y[order])[1]
        first = np.unique(inverse, return_index=True)[1]
        among = np.empty(n)
        for k in range(len(first)):
            own = np.flatnonzero(inverse == k)
            among[own] = (np.arange(len(own)) + 0.5) / len(own)
        among[first] = np.inf
        ranked = order[np.argsort(among, kind="stable")]
        rest, train = ranked[: n - len(first)], ranked[n - len(first) :]
    else:
        rest, train = order, order[:0]
    wanted = min(wanted, len(rest) - 1)
    if wanted < 1:
        raise InputError(
            f"The table has {counted(n, 'usable row')}, too few to fit a model on some rows and "
            "test it on others; add rows."
        )
    return np.sort(np.concatenate([train, rest[wanted:]])), np.sort(rest[:wanted])


def _held_out_count(rows: int) -> int:
    """Return a fifth of the rows, at most 20,000: more hardly make the error more certain."""
    return min(20_000, max(1, round(rows / 5)))


def _split_of_people(
    y: np.ndarray, classes: bool, seed: int, owner: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of training and held-out people, stratified by each person's first label."""
    first = np.unique(owner, return_index=True)[1]
    held_out = np.isin(owner, split(y[first], classes, seed)[1])
    if classes:
        # A class that only held-out people have: the first of them stays with the fit after all.
        for label in np.setdiff1d(y[held_out], y[~held_out]):
            held_out[owner == owner[np.flatnonzero(y == label)[0]]] = False
    if not held_out.any():
        raise InputError(
            f"The table has usable rows of {counted(len(first), 'person', 'people')}, too few to "
            "fit a model on some people and test it on others; add people."
        )
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def held_out_rows(rows: int, seed: int) -> np.ndarray:
    """Draw the held-out rows without permuting all rows; return them sorted."""
    wanted = _held_out_count(rows)
    generator = np.random.default_rng(seed)
    chosen = np.unique(generator.integers(0, rows, wanted))
    while len(chosen) < wanted:
        chosen = np.unique(np.concatenate([chosen, generator.integers(0, rows, wanted)]))
    return np.sort(generator.permutation(chosen)[:wanted])

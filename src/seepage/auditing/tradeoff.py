"""What privacy costs, and how to pay less: noise against error, and remedies with their cost.

A model is fitted without some records and tried on them with noise. The error is a sum of losses
over those records, computed where they are: the draws of the noise, a few parameter vectors, are
sent to the records. The leakage drawn beside it is that of the release itself. Each remedy that
would lower the worst record's leakage is given with the number it takes and what that costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, cast

import numpy as np
from scipy.special import stdtrit

from seepage.auditing.findings import WIDEST, Advice, TradeoffCurve, UsefulnessFinding
from seepage.auditing.measures import record_leakage
from seepage.auditing.trained_model import FitSettings, LabelFacts, RecordsInMemory, TrainedModel
from seepage.core.noise import Gaussian
from seepage.core.result import SAME, round_up
from seepage.errors import InputError
from seepage.glm.losses import class_positions
from seepage.glm.reweighting import reweight
from seepage.glm.shaped_noise import noise_shape
from seepage.tables.source import Chunk, RowSource, distinct

DRAWS = 20  # of the noise
SPLITS = 5  # splits over which a model is judged useful or not
_WEAKEST_PENALTY = 1e-6  # the penalty with which an unpenalised model is fitted to part of the rows
_LARGEST_PENALTY = 1e3  # beyond it a standardised column has no weight left
_HEAVY = 2e9  # multiplications in one pass above which no split is repeated
# Budgets in multiplications of one pass, a few seconds each: beyond them a search tries fewer
# penalties, and penalties and weights are tried only if asked for by name.
_MANY_PENALTIES = 2e8
_BUDGETS = {"penalty": 5e9, "weights": 2e7}

REMEDIES = {
    "noise": "more noise",
    "penalty": "more regularisation",
    "weights": "reweighting",
    "shape": "shaped noise",
}

Answer = TypeVar("Answer")


@dataclass(frozen=True, eq=False)
class _LossSums:
    """Sums over held-out records: their losses with noise, (scales, draws), and their labels.

    For classes there are counts; for numbers the sums of their distances from the mean of all
    records, and of the squared distances.
    """

    count: int
    noisy: np.ndarray
    labels: np.ndarray

    def __add__(self, other: _LossSums) -> _LossSums:
        return _LossSums(
            self.count + other.count, self.noisy + other.noisy, self.labels + other.labels
        )


@dataclass(eq=False)
class HeldOutTrial:
    """A model fitted without some records, with what its noisy copies predict for them."""

    held_out: RowSource  # the records that are tried
    # The model, and how it was fitted
    model: Any
    settings: FitSettings
    labels: LabelFacts  # facts about the labels of all records
    rows: int  # how many records there are, the held-out ones included
    seed: int  # of the noise
    # Whether no model could be fitted without these records, so that this model has seen them
    saw_them: bool = False
    _known: dict[float, float] = field(default_factory=dict)
    _trivial: float = np.nan

    def prepare(self, scales: Iterable[float]) -> None:
        """Find the errors at several noise scales in one pass."""
        wanted = tuple(dict.fromkeys(float(s) for s in scales if float(s) not in self._known))
        ask = partial(
            _lost,
            model=self.model,
            settings=self.settings,
            labels=self.labels,
            seed=self.seed,
            scales=wanted,
        )
        total: _LossSums = self.held_out.total(ask, "held-out records")
        found = np.mean(total.noisy / total.count, axis=1)
        self._known |= {s: self._named(float(loss)) for s, loss in zip(wanted, found, strict=True)}
        self._trivial = self._named(self._constant_loss(total))

    def error(self, sigma: float) -> float:
        """Return the error with noise σ, the mean over the draws (a root mean square of numbers).

        Draws are the same for every σ, so that errors differ because of the noise, not by chance.
        """
        if sigma not in self._known:
            self.prepare([sigma])
        return self._known[sigma]

    def trivial_error(self) -> float:
        """Return the error of a constant prediction."""
        self.error(0.0)
        return self._trivial

    def _constant_loss(self, held_out: _LossSums) -> float:
        """Return the loss of predicting the other records' most frequent class, or mean."""
        counts, m = self.labels.counts, held_out.count
        if counts is None:
            along, squares = held_out.labels
            # From the mean of all records to that of the others.
            apart = -along / (self.rows - m)
            return float((squares - 2 * apart * along) / m + apart * apart)
        everyone = np.asarray([counts[label] for label in self.model.classes_.tolist()])
        return float(1 - held_out.labels[np.argmax(everyone - held_out.labels)] / m)

    def _named(self, loss: float) -> float:
        return loss if self.settings.classifies else float(np.sqrt(loss))


def try_out(trained: TrainedModel, settings: FitSettings, seed: int) -> HeldOutTrial:
    """Fit without a fifth of the records, at most 20,000, to try noise on those.

    Or without a fifth of the people, with all of their records. The fit starts from the model of
    all records, only a step or two away. A level that only held-out records have leaves its
    coefficient undetermined without a penalty, so a weak penalty is used then; if no model exists
    even so (all records of a class are held out), the model of all records is tried instead.
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
    rows = len(trained.source)
    return HeldOutTrial(held_out, model, used, trained.table.labels, rows, seed, saw_them)


def _lost(
    chunk: Chunk,
    model: Any,
    settings: FitSettings,
    labels: LabelFacts,
    seed: int,
    scales: tuple[float, ...],
) -> _LossSums:
    """Return the losses of the records of a chunk."""
    margins, shifts = noisy_margins(model, settings, chunk.X, seed)
    truth = truth_of(model, settings, chunk.y)
    if settings.classifies:
        seen = np.bincount(truth, minlength=len(model.classes_))
    else:
        away = truth - labels.mean
        seen = np.asarray([away.sum(), away @ away])
    noisy = [
        [np.sum(losses(settings, margins + s * shift, truth, labels.most)) for shift in shifts]
        for s in scales
    ]
    return _LossSums(len(chunk), np.asarray(noisy, dtype=float), seen)


def truth_of(model: Any, settings: FitSettings, y: np.ndarray) -> np.ndarray:
    """Return the labels as losses compare them: positions of classes, or numbers."""
    if settings.classifies:
        return class_positions(y, model.classes_)
    return np.asarray(y, dtype=float)


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
    """Return the margins (m, K) of some records, and what noise draws add at σ = 1.

    ``root`` is the lower triangle ``L`` of a covariance ``LLᵀ`` for noise of another shape.
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


def tells_apart(trained: TrainedModel) -> bool:
    """Say whether the model predicts every record's class correctly."""
    ask = partial(_told_wrongly, model=trained.model, settings=trained.settings)
    return trained.source.total(ask, "predictions") == 0


def _told_wrongly(chunk: Chunk, model: Any, settings: FitSettings) -> int:
    margins, _ = noisy_margins(model, settings, chunk.X, 0, draws=0)
    return int(np.sum(losses(settings, margins, truth_of(model, settings, chunk.y), 0.0)))


def draw_curve(
    trial: HeldOutTrial, sigma: float, calibrated: float, median: float, worst: float
) -> TradeoffCurve:
    """Return the error and the leakage over noise scales around the two that matter.

    ``median`` and ``worst`` are the leakages of records at σ = 1.
    """
    low, high = min(sigma, calibrated), max(sigma, calibrated)
    # The two themselves are among them, so that nothing is read off between points.
    scales = np.unique([*np.geomspace(low / 100, high * 30, 15), sigma, calibrated])
    # Advice may be about twice the noise.
    trial.prepare([0.0, *scales, 2 * sigma])
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
    trained: TrainedModel, first: HeldOutTrial, sigma: float, seed: int
) -> UsefulnessFinding | None:
    """Return how much better the noisy model is than a constant prediction, over several splits.

    ``None`` if fitting that often takes too long, or if part of the rows has no model.
    """
    if trained.refit_work > _HEAVY:
        return None
    found = []
    for k in range(SPLITS):  # one after the other: each has a copy of its held-out records
        trial = try_out(trained, trained.settings, seed + k) if k else first
        if trial.saw_them:
            return None
        found.append(trial.trivial_error() - trial.error(sigma))
    gains = np.array(found)
    tested = len(first.held_out)
    spread = float(gains.std(ddof=1)) * math.sqrt(1 / SPLITS + tested / (first.rows - tested))
    reach = float(stdtrit(SPLITS - 1, 0.975)) * spread
    middle = float(gains.mean())
    return UsefulnessFinding(middle, middle - reach, middle + reach, SPLITS)


def find_remedies(
    trained: TrainedModel,
    trial: HeldOutTrial,
    *,
    sigma: float,
    target: float,
    worst: float,
    seed: int,
    wanted: Sequence[str] | None = None,
    say: Callable[[str], object] = lambda words: None,
) -> tuple[Advice, ...]:
    """Return what more noise, more regularisation, reweighting and shaped noise would do.

    Refitting the model several times is tried for tables in memory only, and within a budget unless
    a remedy is ``wanted`` by its name in :data:`REMEDIES`. ``worst`` is the largest leakage of a
    record at σ = 1, ``target`` the leakage to reach; ``say`` is called with what runs. What leaves
    a model no better than a constant prediction is called useless and comes last.
    """
    met = worst / target <= sigma * (1 + SAME)
    enough = round_up(worst / target)
    public = trained.table.public
    asked = REMEDIES if wanted is None else wanted
    remedies = []
    if "noise" in asked:
        # With the target met, half of the leakage.
        more = 2 * sigma if met else enough
        remedies.append(
            Advice(name=REMEDIES["noise"], sigma=more, eta=worst / more, error=trial.error(more))
        )
    within = {name: wanted is not None or trained.work <= most for name, most in _BUDGETS.items()}
    refits = [name for name in asked if name != "noise"]
    if math.isinf(trained.refit_work) or not any(within.values()):
        large = [Advice(name="refitting", reason="large")] if refits else []
        return _judged([*remedies, *large], trial, target)
    try:
        if "penalty" in refits:
            say(f"remedy: {REMEDIES['penalty']}")
            if met:
                remedies.append(_lighter_noise(trained, trial, target, seed))
            else:
                remedies.append(_penalty(trained, sigma, target, seed))
        if "weights" in refits:
            say(f"remedy: {REMEDIES['weights']}")
            remedies.append(_reweighting(trained, enough, target, seed, within["weights"]))
        if "shape" in refits and public is not None:
            say(f"remedy: {REMEDIES['shape']}")
            remedies.append(_shaped(trained, trial, public, enough, target))
    except InputError as problem:
        remedies.append(Advice(name="refitting", reason="failed", problem=str(problem)))
    return _judged(remedies, trial, target)


def _judged(remedies: Iterable[Advice], trial: HeldOutTrial, target: float) -> tuple[Advice, ...]:
    """Return remedies beside the target and a constant prediction; the useless ones are last."""

    def beside(remedy: Advice) -> Advice:
        return replace(
            remedy,
            constant=None if remedy.error is None else trial.trivial_error(),
            reaches_target=remedy.eta is not None and remedy.eta <= target * (1 + SAME),
        )

    return tuple(sorted(map(beside, remedies), key=lambda remedy: remedy.useless))


def _lighter_noise(trained: TrainedModel, trial: HeldOutTrial, target: float, seed: int) -> Advice:
    """Return the stronger penalty that leaves the least error, with the noise it then takes."""
    tried = []
    for factor in (10, 100, 1000) if trained.work <= _MANY_PENALTIES else (100,):
        stronger = replace(trained.settings, l2=factor * max(trained.settings.l2, 1e-4))
        worst = float(record_leakage(trained.refitted(stronger)).max())
        needed = round_up(worst / target)
        after = replace(try_out(trained, stronger, seed), held_out=trial.held_out)  # no copies
        tried.append((after.error(needed), needed, after.settings.l2, worst / needed))
    error, needed, l2, eta = min(tried, key=lambda option: option[0])
    return Advice(name=REMEDIES["penalty"], sigma=needed, l2=l2, eta=eta, error=error)


def _penalty(trained: TrainedModel, sigma: float, target: float, seed: int) -> Advice:
    """Search for the least λ with which the present noise is enough, by bisection of log λ.

    It depends on the data, like the noise, and is rounded up to the same coarse grid.
    """
    wanted = target * sigma  # worst leakage at σ = 1
    low, high = max(trained.settings.l2, 1e-8), _LARGEST_PENALTY

    def leak_at(l2: float) -> float:
        return float(record_leakage(trained.refitted(replace(trained.settings, l2=l2))).max())

    at_most = leak_at(high)
    tried = Advice(name=REMEDIES["penalty"], sigma=sigma)
    if at_most > wanted:
        return replace(tried, l2=high, eta=at_most / sigma, reason="no penalty")
    steps = 5 if trained.work > _MANY_PENALTIES else 12
    for _ in range(steps):
        middle = math.sqrt(low * high)
        if leak_at(middle) > wanted:
            low = middle
        else:
            high = middle
        if high / low < 1.02:
            break
    high = round_up(high)
    # Leakage need not fall all the way from one point of the grid to the next.
    while (leak := leak_at(high)) > wanted and high < _LARGEST_PENALTY:
        high = round_up(1.01 * high)
    after = try_out(trained, replace(trained.settings, l2=high), seed)
    return replace(tried, l2=high, eta=leak / sigma, error=after.error(sigma))


def _reweighting(
    trained: TrainedModel, enough: float, target: float, seed: int, affordable: bool
) -> Advice:
    """Refit with weights that even out the leakage (paper 001, algorithm 1).

    What counts is the leakage of the whole procedure: the choice of the weights depends on the data
    and can give away more than it saves.
    """
    if trained.owner is not None:  # what weights leak is computed for single records
        return Advice(name=REMEDIES["weights"], reason="rows")
    known = trained.settings.model in ("linear", "logistic") and trained.basis() is None
    if not (known and len(trained.source.names) <= WIDEST):  # what weights leak is not known
        return Advice(name=REMEDIES["weights"], reason="unknown")
    if not affordable:
        return Advice(name=REMEDIES["weights"], reason="slow")
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
    )
    worst = float(np.max(np.asarray(fair.whole_procedure())))
    needed = round_up(worst / target)
    rounds = len(fair.trajectory) - 1
    tried = Advice(name=REMEDIES["weights"], sigma=needed, rounds=rounds, eta=worst / needed)
    if needed >= enough:
        return replace(tried, reason="no gain")
    after = try_out(
        replace(trained, table=replace(trained.table, source=source.weighted_by(fair.weights))),
        trained.settings,
        seed,
    )
    return replace(tried, error=after.error(needed))


def _shaped(
    trained: TrainedModel,
    trial: HeldOutTrial,
    public: RecordsInMemory,
    enough: float,
    target: float,
) -> Advice:
    """Return what noise in the shape of a model of public records would cost."""
    pilot = trained.settings.fit(public)
    shape = noise_shape(pilot, public.X, public.y)
    worst = float(record_leakage(trained, shape).max())
    needed = round_up(worst / target)
    held_out, settings = cast(RecordsInMemory, trial.held_out), trial.settings
    margins, shifts = noisy_margins(
        trial.model, settings, held_out.X, trial.seed, root=np.linalg.cholesky(shape.sigma)
    )
    truth = truth_of(trial.model, settings, held_out.y)
    lost = [losses(settings, margins + needed * s, truth, trial.labels.most) for s in shifts]
    error = trial._named(float(np.mean(lost)))
    return Advice(
        name=REMEDIES["shape"],
        sigma=needed,
        public=len(public),
        eta=worst / needed,
        error=error,
        reason=None if error < trial.error(enough) else "no gain",
    )


def split(
    y: np.ndarray, classes: bool, seed: int, owner: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows to fit on and those held out, every class on the first side.

    About the same share of every class is held out, so that a constant prediction, which is judged
    on the held-out records, does not look better or worse by chance. With an ``owner`` of every
    row, a fifth of the owners are held out with all of their rows.
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
            f"The table has {n} usable rows, too few to fit a model on some and test it on others."
        )
    return np.sort(np.concatenate([train, rest[wanted:]])), np.sort(rest[:wanted])


def _split_of_people(
    y: np.ndarray, classes: bool, seed: int, owner: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of people to fit on and of those held out, by their first labels."""
    first = np.unique(owner, return_index=True)[1]
    held_out = np.isin(owner, split(y[first], classes, seed)[1])
    if classes:
        # A class that only held-out people have: the first of them stays with the fit after all.
        for label in np.setdiff1d(y[held_out], y[~held_out]):
            held_out[owner == owner[np.flatnonzero(y == label)[0]]] = False
    if not held_out.any():
        raise InputError(
            f"The table has {len(first)} usable people, too few to fit a model on some and test it "
            "on others."
        )
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _held_out_count(rows: int) -> int:
    # A fifth; more than 20,000 would not make the error more certain.
    return min(20_000, max(1, round(0.2 * rows)))


def held_out_rows(rows: int, seed: int) -> np.ndarray:
    """Return which rows are held out, sorted, without permuting all of them."""
    wanted = _held_out_count(rows)
    generator = np.random.default_rng(seed)
    chosen = np.unique(generator.integers(0, rows, wanted))
    while len(chosen) < wanted:
        chosen = np.unique(np.concatenate([chosen, generator.integers(0, rows, wanted)]))
    return np.sort(generator.permutation(chosen)[:wanted])

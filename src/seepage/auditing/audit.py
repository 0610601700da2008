"""The audit: fit, measure, choose the noise, compute its cost, and try remedies.

The same steps apply to a table in memory and to a table read in chunks. Some stages run only for
tables in memory: the remedies that refit the model, and the table of bounds for one exposed record.
The report states when they were left out. The risks are success rates of membership and attribute
inference. Attribute inference is judged by its gain over the best guess without the release.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

from seepage.auditing.findings import (
    FALSE_POSITIVES,
    AttributeFinding,
    Audit,
    GuessFinding,
    NoiseChoice,
    RecordLeakage,
    Remedy,
    RiskCurve,
    RiskFinding,
    median_of,
)
from seepage.auditing.measures import group_members, measure
from seepage.auditing.neighbours import find_other_noise
from seepage.auditing.outsider import find_outsider
from seepage.auditing.questions import Limits
from seepage.auditing.remedies import KINDS, Protection, find_remedies
from seepage.auditing.report.showing import ReportRendering
from seepage.auditing.tradeoff import SPLITS, draw_curve, judge_usefulness, try_out, wrong_classes
from seepage.auditing.trained_model import (
    FEWEST_ROWS,
    MODELS,
    ROW,
    EncodedTable,
    FitSettings,
    TrainedModel,
    choose_model,
    settings_of,
)
from seepage.bounds.guarantees import Guarantees, guarantees
from seepage.core.noise import Attacker, Gaussian
from seepage.core.result import NOISE, PENALTY, held_sentences, joined, less, round_up
from seepage.core.risk_views import (
    Guess,
    Membership,
    among_levels,
    changes_of,
    guess_among,
    membership,
)
from seepage.errors import InputError, nearest
from seepage.glm.leakage import describe_on
from seepage.risks.guessing import (
    accuracy,
    accuracy_beside,
    distance,
    rate_beside,
    right_beside,
    true_positive_rate,
)
from seepage.support.chunks import blas_on_one_core, give_back_memory
from seepage.support.number_check import check_positive
from seepage.support.room import computed, sorted_numbers
from seepage.support.version import __version__
from seepage.tables.source import MemorySource, Table

DEFAULT_L2 = 1e-3  # small beside a standardised column, and the minimiser is unique
SEPARABLE_L2 = 1e-2  # where classes can be told apart perfectly: keeps coefficients moderate

_SMALLEST = 1e-60  # of the noise: its square times the leakage is still representable
_TOO_HEAVY = 2e9  # multiplications in one pass over the table; the table of bounds takes many
MOST_AT_ONCE = 2e6  # guesses of all records at all noises that are held in memory: 16 MB
_DRAWS = 64  # draws from the adversary's prior: an uncertainty of a few per cent
_REFIT_WORK = 2e11  # multiplications allowed to refits for the risks
_FEWEST_RISKS = 20  # records whose risks are computed, however long that takes
_MOVES_WORK = 2e9  # multiplications allowed to the moves of every record to every level
_MOST_INTEGRATED = 12  # levels; an integral over more takes seconds
_EXACT_WORK = 1e9  # multiplications for refits of records whose risks are known to an interval
_MOST_WHOLE = 1000  # records without which everything is refitted
_COLUMN_KINDS = {"numeric": "numeric", "count": "numeric", "binary": "boolean"}

_GUESSES_HELD = (
    "For guesses, the encoding of the columns is held fixed while a class or category changes."
)

Tell = Callable[[str], object]


@dataclass(frozen=True)
class Anew:
    """The whole procedure, which can be rerun without some of the records."""

    released: Callable[[np.ndarray], np.ndarray]  # the numbers released from records at positions
    kept: tuple[str, ...] = (PENALTY,)  # the quantities that stay fixed
    fits: int = 1  # the number of models that one run fits


# From how far the release moves without some records or people, at σ = 1, and their places
Moves = Callable[[np.ndarray, np.ndarray | None], np.ndarray]


@dataclass(frozen=True)
class Effort:
    """The optional stages of an audit, which run after the measures and the curve."""

    # Whether models are refitted without some records: on repeated splits, to measure the
    # usefulness of the noisy model, and without each of the most exposed records, to check σ
    refits: bool = True
    risks: bool = True  # whether to compute membership and attribute inference
    # The :data:`~seepage.auditing.remedies.KINDS` of remedies to try; ``None`` for all, each within
    # its budget
    remedies: tuple[str, ...] | None = None
    quick: bool = False  # whether a quick audit was requested, whose report lists what is missing

    @property
    def stages(self) -> int:
        """The number of stages: three fixed stages plus the selected optional ones."""
        remedies = KINDS if self.remedies is None else self.remedies
        return 3 + 2 * self.refits + self.risks + len({*remedies} - {"noise"})

    def words(self) -> str:
        """Return a sentence about the stages that a quick audit omits."""
        return (
            "This quick audit used one train/test split"
            + (", tried no remedies" if self.remedies == () else "")
            + " and computed no table of bounds for one exposed record."
        )


EVERYTHING = Effort()
QUICK = Effort(refits=False, remedies=(), quick=True)
RISKS = Effort(refits=False, remedies=("noise",))
ONLY_NOISE = Effort(refits=False, risks=False, remedies=())


@blas_on_one_core()
def audit_table(
    table: EncodedTable,
    *,
    name: str,
    model: str | None = None,
    l2: float | None = None,
    intercept: bool = True,
    sigma: float | None = None,
    target_eta: float | None = None,
    limits: Limits | None = None,
    attacker: Attacker | None = None,
    sensitive: Sequence[str] | None = None,
    fitted: Any = None,
    show_values: bool = False,
    effort: Effort = EVERYTHING,
    seed: int = 0,
    encode_anew: Callable[[np.ndarray], EncodedTable] | None = None,
    tell: Tell | None = None,
) -> Audit:
    """Audit the release of a linear model fitted on an encoded table, in memory or in chunks.

    By default the kind of model follows from the target (see :func:`choose_model`), and the penalty
    λ is 0.001 (0.01 if the classes can be separated without error). Without ``sigma``, the noise is
    the smallest on a coarse grid with which no record leaks more than ``target_eta`` (1 by
    default). Remedies aim at that target and at the ``limits`` on risks. ``attacker`` is an
    attacker who knows only some of the other records. The success rate of this attacker is
    estimated for this noise or, if neither ``sigma`` nor ``target_eta`` is given, for a release
    without noise.

    ``sensitive`` names columns (the target may be one) for which the error on every record is
    reported; by default those of ``table``. ``fitted`` is a fitted model of :mod:`seepage.glm` to
    audit; if it is omitted, a model is fitted. With ``show_values``, the audit stores the caller's
    own values, for a table in memory. ``effort`` selects the optional stages; ``seed`` sets the
    held-out rows and the noise in the privacy–utility curve. ``encode_anew`` encodes only the
    records at given positions; with it, membership is inferred from the whole procedure. ``tell``
    is called with the name of each stage.
    """
    check_rows(len(table.source))
    check_noise_or_target(sigma, target_eta)
    if tell is not None:
        tell("fitting")
    if sensitive is not None:
        table = replace(table, sensitive=tuple(dict.fromkeys(sensitive)))
    trained = _train(table, fitted, model, l2, intercept)
    audit = audit_model(
        trained,
        name=name,
        sigma=sigma,
        target_eta=target_eta,
        limits=limits,
        attacker=attacker,
        values=_values(trained) if show_values else None,
        effort=effort,
        seed=seed,
        anew=None if encode_anew is None else Anew(partial(_fitted_anew, trained, encode_anew)),
        tell=tell,
    )
    # Whoever states the kind of model knows what the target is.
    return audit if model or fitted is not None else replace(audit, codes=table.labels.codes)


def check_rows(rows: int) -> None:
    """Raise an error if a table has too few rows for an audit."""
    if rows < FEWEST_ROWS:
        raise InputError(
            f"An audit needs at least {FEWEST_ROWS} usable rows, but the table has {rows}; provide "
            "more rows."
        )


def _values(trained: TrainedModel) -> dict[str, list[str]]:
    """Return the caller's cells as text; for people, those of each person's first row."""
    values, owner = trained.table.values(), trained.owner
    if owner is None:
        return values
    first = np.unique(owner, return_index=True)[1]
    return {name: [cells[k] for k in first] for name, cells in values.items()}


def _fitted_anew(
    trained: TrainedModel, encode_anew: Callable[[np.ndarray], EncodedTable], kept: np.ndarray
) -> np.ndarray:
    """Return the numbers released from the records at positions ``kept``; empty if there is no fit.

    nλ, the number of records times the penalty, does not change.
    """
    settings, rows = trained.settings, len(trained.source)
    try:
        source = encode_anew(kept).source
        model = replace(settings, l2=settings.l2 * rows / len(kept)).fit(source)
        return np.asarray(describe_on(model, source)[0].parameters).reshape(-1)
    except InputError:
        return np.zeros(0)


@blas_on_one_core()
def audit_model(
    trained: TrainedModel,
    *,
    name: str,
    sigma: float | None,
    target_eta: float | None,
    limits: Limits | None = None,
    attacker: Attacker | None = None,
    values: dict[str, list[str]] | None = None,
    effort: Effort = EVERYTHING,
    seed: int = 0,
    anew: Anew | None = None,
    beside: tuple[float, float] = (0.0, 0.0),
    guessing: tuple[float, float] = (0.0, 0.0),
    moves: Moves | None = None,
    tell: Tell | None = None,
) -> Audit:
    """Measure a fitted model and return the findings.

    :func:`audit_table` describes the parameters that both functions have.

    With ``anew``, which reruns the whole procedure, membership is inferred from that procedure.
    ``beside`` is the (ε, δ) of all figures published with the noisy numbers, for the removal of a
    record. ``guessing`` is their (ε, δ) for a change of class or category. Every risk includes
    these figures.
    """

    def say(words: str) -> None:
        """Begin a stage, after freeing the memory of the previous one."""
        give_back_memory()
        if tell is not None:
            tell(words)

    check_noise_or_target(sigma, target_eta)
    _check_sensitive(trained.table)
    settings, table, steps = trained.settings, trained.table, list(trained.table.steps)
    say("leakage of every record")
    found = measure(trained)
    worst = found.records.quantile("eta", 1)
    target, calibrated, noise = _choose_noise(worst, sigma, target_eta)
    say("privacy and utility")
    groups = group_members(trained)
    trained = trained.taken()
    trial = try_out(trained, settings, seed)
    curve = draw_curve(trial, noise, calibrated, found.records.quantile("eta", 0.5), worst)
    if np.isnan(found.records.quantile("exact_error", 1)):
        steps.append(
            "The exact Cramér–Rao bound on each record was left out because its computation would "
            "take too long."
        )
    if effort.quick:
        steps.append(effort.words())
    bounds = disclosures = None
    splits = SPLITS if effort.refits else 1
    if effort.refits:
        say("repeated splits")
    useful = judge_usefulness(trained, trial, curve.sigma, seed, splits)
    curve = replace(curve, usefulness=useful)
    if effort.refits:
        if sigma is None:
            disclosures = find_other_noise(trained, noise, target)
        say("bounds on one exposed record")
        bounds = _find_guarantees(trained, noise)
        if trained.owner is not None:
            steps.append(
                "The table of all bounds was left out because it is about single rows, and in this "
                "audit all rows of a person count together."
            )
    advise = None
    if effort.remedies != ():
        advise = partial(
            find_remedies,
            trained,
            trial,
            sigma=noise,
            asked=Protection.asked(target, limits),
            worst=worst,
            curve=curve,
            seed=seed,
            splits=splits,
            wanted=effort.remedies,
            say=say,
        )
    del trial  # with the held-out records, unless remedies need them
    # A linear model may take a count as a number.
    target_kind = {"linear": "numeric", "poisson": "count"}.get(settings.model, table.target_kind)
    kind = _COLUMN_KINDS.get(target_kind, "categorical")
    spread = table.labels.deviation(target_kind)
    classes = getattr(trained.model, "classes_", None)
    attributes = found.attributes(noise, (table.target, kind, spread), table.same)
    records = found.records.with_noise(noise)
    risks, risks_reason = None, ""
    people = trained.owner is not None
    if effort.risks:
        say(f"{'who was' if people else 'which rows were'} in the data, and guesses")
        try:
            risks, records = find_risks(
                trained, noise, records, attributes, anew, found.rows, curve.sigma, moves=moves
            )
        except InputError as problem:
            risks_reason = str(problem)
    if risks is not None:
        risks = beside_figures(risks, *beside, *guessing)
    chosen = (NOISE,) if sigma is None else ()
    guessed = {g.name: g for g in risks.guesses if g.prior == "frequencies"} if risks else {}
    attributes = tuple(
        replace(a, gain=own.gain, tpr=own.tpr, tpr_strict=own.tpr_strict)
        if (own := guessed.get(a.name)) is not None
        else a
        for a in attributes
    )
    if risks is not None:
        told = (*risks.assumptions, *held_sentences(chosen))
        risks = replace(risks, held=joined(chosen, risks.held), assumptions=told)
    if risks is not None and anew is not None:
        product = "nλ (number of records times penalty)"
        unchanged = f"the noise and {product}" if PENALTY in anew.kept else "the noise"
        steps.append(
            "For membership inference, "
            "the preparation and the model were refitted without each of the "
            f"{risks.looked_at:,} most exposed {'people' if people else 'records'}; {unchanged} "
            "remained unchanged."
        )

    def risks_of(
        other: TrainedModel, sigma: float, shape: Gaussian | None = None
    ) -> RiskFinding | None:
        """Return upper bounds on the risks of a remedy, from few refits, or ``None`` if unknown."""
        exposed = found.records.with_noise(sigma)
        ask = partial(find_risks, other, sigma, exposed, attributes, None, found.rows)
        try:
            risks = ask(effort=0.01, shape=shape)[0]
        except InputError:
            return None
        return beside_figures(risks, *beside, *guessing)

    outsider, outsider_reason = None, ""
    if attacker is not None:
        say("an attacker who knows less")
        stated = None if sigma is None and target_eta is None else noise
        try:
            outsider = find_outsider(trained, attacker, stated, records, risks, effort.refits)
        except InputError as problem:
            outsider_reason = str(problem)
    # Last: they take longest, and nothing else waits for them.
    remedies: tuple[Remedy, ...] = ()
    if advise is not None:
        measured = effort.risks and anew is None  # held fixed, a pipeline has other risks
        remedies = advise(risks=risks, risks_of=risks_of if measured else lambda *_: None)
    give_back_memory()  # the figures of a report take memory
    return Audit(
        source=name,
        target=table.target,
        model=settings.model,
        l2=settings.l2,
        intercept=settings.intercept,
        sigma=noise,
        noise=NoiseChoice("given" if sigma is not None else "target" if target_eta else "default"),
        released=found.released,
        steps=tuple(steps),
        notices=table.notices,
        attributes=attributes,
        dataset_eta=found.dataset / noise,
        curve=curve,
        records=records,
        groupings=tuple(found.grouping(column, noise) for column in table.groups),
        classes=() if classes is None else tuple(str(c) for c in classes),
        target_eta=target,
        calibrated_sigma=calibrated,
        remedies=remedies,
        values=values,
        guarantees=bounds,
        risks=risks,
        held=joined(chosen, trained.learnt),
        risks_reason=risks_reason,
        outsider=outsider,
        outsider_reason=outsider_reason,
        disclosures=disclosures,
        members=groups,
        versions=find_versions(),
        rendering=ReportRendering(),
    )


def _train(
    table: EncodedTable, fitted: Any, model: str | None, l2: float | None, intercept: bool
) -> TrainedModel:
    """Return the given model, or fit one; the table's steps then describe the fit."""
    source, steps = table.source, []
    if fitted is not None:
        settings = settings_of(describe_on(fitted, source)[0], len(source))
        trained = TrainedModel(fitted, settings, table, learnt=table.learnt)
        steps.append(
            f"The given {settings.model} model (L2 penalty λ = {settings.l2:g}) was confirmed to "
            f"minimise its objective on these {len(source):,} records."
        )
    else:
        kind = choose_model(model, table.target_kind, table.target)
        settings = FitSettings(kind, DEFAULT_L2 if l2 is None else l2, intercept)
        trained = TrainedModel(settings.fit(source), settings, table, learnt=table.learnt)
        wrong = partial(wrong_classes, model=trained.model, settings=settings)
        if l2 is None and settings.classifies and not source.total(wrong, "predictions"):
            trained = trained.refitted(replace(settings, l2=SEPARABLE_L2))
            steps.append(
                "The classes can be separated without error, so the penalty was raised to "
                f"λ = {SEPARABLE_L2:g}."
            )
        steps.append(
            f"A {kind} model {'with' if intercept else 'without'} an intercept and "
            f"{'' if intercept else 'with '}L2 penalty λ = {trained.settings.l2:g} was fitted on "
            f"{len(source):,} records and {len(source.names):,} features."
        )
    return replace(trained, table=replace(table, steps=(*table.steps, *steps)))


def _check_sensitive(table: EncodedTable) -> None:
    """Raise an error for sensitive columns that the model does not use."""
    known = [a.name for a in table.attributes] + [table.target]
    for name in table.sensitive:
        if name not in known:
            raise InputError(
                f"The model uses no column {name!r}{nearest(name, known)}, so its leakage cannot "
                "be measured; name a column that the model uses, or do not drop this column."
            )


def check_noise_or_target(sigma: float | None, target_eta: float | None) -> None:
    """Reject a noise or target that is not positive, or whose square over- or underflows."""
    for name, number in (("sigma", sigma), ("target_eta", target_eta)):
        if number is None:
            continue
        check_positive(number, name)
        if not _SMALLEST <= number <= 1 / _SMALLEST:
            raise InputError(
                f"{name} must be between {_SMALLEST:g} and {1 / _SMALLEST:g}, not {number:g}: its "
                "square would be zero or infinite."
            )


def _choose_noise(
    worst: float, sigma: float | None, target_eta: float | None
) -> tuple[float, float, float]:
    """Return the target, the smallest coarse-grid noise that meets it, and the noise to report.

    ``worst`` is the largest leakage at σ = 1.
    """
    if not (np.isfinite(worst) and worst > 0):
        raise InputError(
            "The leakage is zero or not finite (as for a model that fits the data without error), "
            "so no audit is possible; check the target and the columns."
        )
    target = 1.0 if target_eta is None else target_eta
    calibrated = round_up(worst / target)
    return target, calibrated, calibrated if sigma is None else sigma


def _find_guarantees(trained: TrainedModel, sigma: float) -> Guarantees | None:
    """Return error bounds, in standard deviations, for reconstructing one record.

    The record is the one with the largest dFIL. Return ``None`` if the bounds are unknown: if the
    unit is the person, if columns are not features themselves, or if the computation would take
    minutes.
    """
    if trained.refit_work > _TOO_HEAVY or trained.basis() is not None:
        return None
    if trained.owner is not None:  # the bounds are about single records
        return None
    source = trained.records
    named = Table(source.X, _feature_names(trained), None, "numpy")
    records = MemorySource(named, source.y, source.sample_weight)
    leak = trained.leakage(records, sigma)
    try:
        # Of a larger table the averages are over fewer draws.
        found = guarantees(leak, draws=_DRAWS if trained.work <= 1e8 else 16)
    except InputError:
        return None
    return replace(found, label=str(source.beside[ROW][found.row]))


def _feature_names(trained: TrainedModel) -> tuple[str, ...]:
    """Return a name for every feature; the features of one category are numbered."""
    names = [f"feature {j}" for j in range(len(trained.source.names))]
    for attribute in trained.table.attributes:
        for k, j in enumerate(attribute.columns, 1):
            several = len(attribute.columns) > 1
            names[j] = f"{attribute.name} ({k})" if several else attribute.name
    taken: set[str] = set()
    for j in range(len(names)):
        while names[j] in taken:  # a column may have the name of another's feature
            names[j] += "′"
        taken.add(names[j])
    return tuple(names)


def find_versions() -> dict[str, str]:
    """Return the names and versions of the software that computed an audit."""
    names = ("numpy", "scipy", "scikit-learn", "pyarrow")
    return {
        "seepage": __version__,
        "Python": platform.python_version(),
        **{name: version(name) for name in names},
    }


def find_risks(
    trained: TrainedModel,
    sigma: float,
    records: RecordLeakage,
    attributes: Sequence[AttributeFinding],
    anew: Anew | None = None,
    rows: RecordLeakage | None = None,
    noises: np.ndarray | None = None,
    effort: float = 1.0,
    shape: Gaussian | None = None,
    moves: Moves | None = None,
) -> tuple[RiskFinding, RecordLeakage]:
    """Return the risks of a release with noise σ, and ``records`` with the membership risks.

    ``records`` stores the leakage of every record or person; if not all can be examined, only the
    most exposed are. If the risks cannot be computed, an error gives the reason. ``rows`` stores
    the leakage of single records, for guesses of values that differ between the records of a
    person. With ``anew``, membership risks are those of the whole procedure, which is rerun without
    each examined record in turn. The risks are also computed for the other ``noises``. ``effort``
    is the fraction of the usual work allowed for refits, and ``shape`` the noise covariance at σ =
    1. ``moves`` converts distances at fixed nλ into distances of a procedure that fixes λ.
    """
    source = trained.source
    if not trained.settings.refits:
        raise InputError(
            "The risks need leave-one-out refits, but this model can be fitted only by its own "
            "library; fit one of seepage.glm's models instead."
        )
    if not trained.held and anew is None:
        raise InputError(
            "The preprocessing is learnt from the records, so it changes if a record is left out; "
            "audit the whole pipeline with refit='pipeline'."
        )
    leak = trained.leakage(source, sigma if shape is None else shape.scaled(sigma))
    changes = changes_of(leak)
    try:
        work = leak.release.finite_changes().work
    except InputError:  # of records that are read in chunks, whose risks are certified without
        work = math.inf
    # Families with a certified expansion need few refits; for others, for values of people, which
    # change in all of their records, and for guesses among several classes, whose intervals are
    # wide, only the most exposed are examined if refits of all would take long.
    everybody = None if leak.person is None else leak.person.together
    certified = trained.settings.model in MODELS
    several = trained.settings.model == "softmax"
    most = max(_FEWEST_RISKS, int(effort * _REFIT_WORK / work))
    rows = records if rows is None else rows

    def exposed(count: int, among: RecordLeakage = records) -> np.ndarray | None:
        """Return the most exposed records' positions in table order; ``None`` for all."""
        return None if count >= among.count else np.sort(among.most(count).place)

    def refits(alternatives: int) -> bool | int:
        """Return for how many of the most exposed records a refit is allowed."""
        allowed = _REFIT_WORK / 2 if several else _EXACT_WORK
        return certified and everybody is None and int(effort * allowed / work / alternatives)

    if anew is None:
        examined = None if certified else exposed(most)
    else:
        # Preparing and fitting the records takes about 20 passes over them.
        affordable = min(_REFIT_WORK / (20 * trained.work), _MOST_WHOLE) / anew.fits
        examined = exposed(min(max(_FEWEST_RISKS, int(affordable)), _MOST_WHOLE))

    def told(examined: np.ndarray | None, exact: bool | int) -> Membership:
        refit = None if anew is None else anew.released
        if everybody is None:
            return membership(leak, examined, None, exact, refit, changes)
        return membership(leak, None, everybody.at(examined), exact, refit, changes)

    if anew is None:
        members = _asked(partial(told, examined), refits(1), work)
        if everybody is not None and np.isinf(np.max(np.asarray(members.mu))):
            # Somebody has so many records that only a refit knows what would be without them.
            examined = exposed(most)
            members = told(examined, True)
        assumed = members.mu.assumptions
    else:
        members = told(examined, False)
        assumed = (*members.mu.assumptions, *held_sentences(anew.kept))
    mu, kept = np.asarray(members.mu), members.mu.held if anew is None else anew.kept
    if moves is not None:
        mu, kept = moves(mu * sigma, examined) / sigma, less(kept, (PENALTY,))
        assumed = tuple(word for word in assumed if word not in held_sentences((PENALTY,)))
    worst = int(np.argmax(mu))
    if np.isinf(mu[worst]) and np.isinf(work) and trained.settings.model != "linear":
        # Least squares has a closed form, which is infinite only where the risk is.
        raise InputError(
            "For records read in chunks there are no leave-one-out refits, and the bound without "
            "refits is infinite; audit the table, or a sample of it, in memory."
        )
    guesses = []
    largest = _LargestGains(sigma, noises, rows.count)
    for name, columns in _guessable(trained, [a.name for a in attributes]):
        label = columns is None
        priors = ("frequencies", "model") if label else ("frequencies",)
        try:
            candidates = among_levels(leak, changes, columns, 1e-5 if label else 1e-3)
        except InputError:  # one level only, or far too many
            if label:
                raise
            continue
        levels = len(candidates.levels)
        among = records if candidates.together else rows
        asked = None
        # Among more than three levels, a limit takes about four times as long as a closed form.
        moves_work = 0.0 if label else levels * trained.work * (1 if levels <= 3 else 4)
        if label and (several or not certified or candidates.together):
            asked = exposed(max(_FEWEST_RISKS, most // (2 * levels)), among)
        elif not certified or moves_work > _MOVES_WORK:
            asked = exposed(_FEWEST_RISKS, among)
        elif candidates.together:
            asked = exposed(max(_FEWEST_RISKS, most // levels), among)
        if asked is not None and not label:
            # The record whose category is estimated best need not be the one guessed best.
            easiest = next(a.easiest_row for a in attributes if a.name == name)
            asked = np.union1d(among.place_of(easiest), asked)
        those = asked
        if asked is not None and candidates.together is not None:
            those = np.array([held[0] for held in candidates.together.sets[asked]])
        ask = partial(
            guess_among,
            *(leak, changes, candidates, priors, those),
            # For how many records the rates are integrated; other records get a bound.
            integrals=_FEWEST_RISKS if levels <= _MOST_INTEGRATED else 0,
        )
        for prior, guess in largest.own(name, priors, partial(_asked, ask, refits(levels), work)):
            guesses.append(_finding(name, prior, guess, asked, among))
    ordered = sorted_numbers(mu)
    middle = ordered[[(len(ordered) - 1) // 2, len(ordered) // 2]]  # their mean is the median
    finding = RiskFinding(
        membership=float(accuracy(mu[worst])),
        row=int(records.row[worst if examined is None else examined[worst]]),
        median=median_of(np.asarray(accuracy(middle))),
        mu=float(mu[worst]),
        looked_at=len(mu),
        exact=members.mu.kind == "exact" and moves is None,
        guesses=tuple(guesses),
        assumptions=(*assumed, _GUESSES_HELD) if guesses and anew is not None else assumed,
        held=kept,
        curve=largest.curve(float(mu[worst]), middle),
    )
    return finding, records.with_membership(mu, examined)


class _LargestGains:
    """Keeps, for each noise scale, the guess with the largest gain so far."""

    def __init__(self, sigma: float, noises: np.ndarray | None, records: int) -> None:
        self.sigma = sigma
        self.noises = np.array([sigma]) if noises is None else np.asarray(noises, dtype=float)
        # Numbers of so many records with every noise would take much memory: membership alone.
        many = records * len(self.noises) > MOST_AT_ONCE
        guessed = np.array([sigma]) if many else self.noises
        self.scales = sigma / guessed
        (self.place,) = np.flatnonzero(guessed == sigma)
        self.gain = np.full(len(guessed), -np.inf)
        self.right, self.baseline = np.full((2, len(guessed)), np.nan)
        self.what = [("", "", 0)] * len(guessed)  # the column, the prior, the number of levels

    def own(
        self, name: str, priors: Sequence[str], ask: Callable[..., list[Guess]]
    ) -> list[tuple[str, Guess]]:
        """Ask at all noise scales, and return each prior's guess at the noise of the release."""
        beyond = self.gain.copy()
        beyond[self.place] = -np.inf  # what is found with the noise itself is told of every column
        guesses = ask(scales=self.scales.tolist(), beyond=beyond.tolist())
        every = len(self.scales)
        for k, guess in enumerate(guesses):
            place, gains = k % every, np.asarray(guess.gain())
            if len(guess.levels) == 2 and guess.mu is not None and place != self.place:
                # Whatever the prior, which may be known to an interval: most is gained on a coin.
                gains = np.minimum(gains, accuracy(guess.mu) - 0.5)
            worst = int(np.argmax(gains))
            if gains[worst] > self.gain[place]:
                self.gain[place], self.baseline[place] = gains[worst], guess.baseline[worst]
                self.right[place] = guess.baseline[worst] + gains[worst]
                self.what[place] = (name, priors[k // every], len(guess.levels))
        return list(zip(priors, guesses[int(self.place) :: every], strict=True))

    def curve(self, worst: float, middle: np.ndarray) -> RiskCurve | None:
        """Return the risks at each noise scale, from the largest and median distances μ."""
        if len(self.noises) == 1:
            return None
        scales = self.sigma / self.noises
        curve = RiskCurve(
            sigma=self.noises,
            membership=np.asarray(accuracy(worst * scales)),
            median=np.array([median_of(np.asarray(accuracy(middle * s))) for s in scales]),
        )
        names, priors, levels = zip(*self.what, strict=True)
        if len(self.scales) == 1 or not all(names):
            return curve
        return replace(
            curve,
            right=self.right,
            baseline=self.baseline,
            names=names,
            priors=priors,
            levels=levels,
        )


def _guessable(
    trained: TrainedModel, known: Sequence[str]
) -> Iterator[tuple[str, list[int] | None]]:
    """Yield the columns to guess, with their features: classes (``None``) and categories."""
    if trained.held and trained.settings.classifies:
        yield trained.table.target, None
    if trained.held and trained.basis() is None:
        for attribute in trained.table.attributes:
            if attribute.name in known and attribute.kind != "numeric":
                yield attribute.name, list(attribute.columns)


def beside_figures(
    risks: RiskFinding,
    epsilon: float,
    delta: float = 0.0,
    guess_epsilon: float | None = None,
    guess_delta: float | None = None,
) -> RiskFinding:
    """Return the risks of a release with other figures, (ε, δ)-differentially private in total.

    ``guess_epsilon`` and ``guess_delta``, if given, replace ε and δ for attribute inference.
    """
    values = (
        epsilon if guess_epsilon is None else guess_epsilon,
        delta if guess_delta is None else guess_delta,
    )
    if not (epsilon or delta or any(values)):
        return risks

    def membership(right: Any) -> np.ndarray:
        return accuracy_beside(distance(right, 0.5), 0.5, epsilon, delta)

    def guess(found: GuessFinding) -> GuessFinding:
        right, median = (
            float(right_beside(right, baseline, found.levels, *values))
            for right, baseline in (
                (found.right, found.baseline),
                (found.median_right, found.median_baseline),
            )
        )
        found = replace(found, right=right, median_right=median)
        if found.mu is None:
            return found
        told: dict[str, Any] = _told_apart(found.mu, *values)
        return replace(found, **told)

    curve = risks.curve
    if curve is not None:
        curve = replace(
            curve, membership=membership(curve.membership), median=membership(curve.median)
        )
    if curve is not None and curve.right is not None:
        right, baseline, levels = map(np.asarray, (curve.right, curve.baseline, curve.levels))
        told = np.empty(len(right))
        for count in np.unique(levels).tolist():
            some = levels == count
            told[some] = right_beside(right[some], baseline[some], count, *values)
        curve = replace(curve, right=told)
    return replace(
        risks,
        membership=float(membership(risks.membership)),
        median=float(membership(risks.median)),
        guesses=tuple(guess(found) for found in risks.guesses),
        epsilon=epsilon,
        delta=delta,
        guess_epsilon=values[0],
        guess_delta=values[1],
        curve=curve,
    )


def _told_apart(mu: float, epsilon: float = 0.0, delta: float = 0.0) -> dict[str, float]:
    """Return the success rates of distinguishing two values whose releases are μ apart."""
    tpr, strict = (
        rate_beside(float(true_positive_rate(mu, rate)), rate, epsilon, delta)
        for rate in FALSE_POSITIVES
    )
    even = float(accuracy_beside(mu, 0.5, epsilon, delta))
    return {"tpr": tpr, "tpr_strict": strict, "even": even, "mu": mu}


def _asked(ask: Callable[..., Any], refits: bool | int, work: float, **more: Any) -> Any:
    """Return the risks, computed with as many refits as the effort allows.

    If the effort allows no refits and the risk of the most exposed record is uncertain by more than
    half a percentage point, one refit is still made, if possible. ``work`` is the cost of one
    refit.
    """
    answer = ask(exact=refits, **more)
    if refits is False or refits > 0 or np.isinf(work):
        return answer
    for risk in answer if isinstance(answer, list) else [answer]:
        guess = isinstance(risk, Guess)
        upper = np.asarray(risk.right if guess else risk.mu)
        worst = _most_gained(risk) if guess else int(np.argmax(upper))
        ends = upper[worst], risk.lower[worst]
        high, low = ends if guess else map(accuracy, ends)
        if not high - low <= 0.005:  # half a percentage point
            return ask(exact=1, **more)
    return answer


def _most_gained(guess: Guess) -> int:
    """Return the position of the record whose guess gains most from the release."""
    return int(np.argmax(computed(np.subtract, np.asarray(guess.right), guess.baseline)))


def _finding(
    name: str, prior: str, guess: Guess, asked: np.ndarray | None, records: RecordLeakage
) -> GuessFinding:
    """Return the reported numbers of a guess: for the record with the largest gain, and medians."""
    right, mu = np.asarray(guess.right), np.asarray(guess.mu)
    worst, easiest = _most_gained(guess), int(np.argmax(mu))
    row, tpr_row = (int(records.row[k if asked is None else asked[k]]) for k in (worst, easiest))
    return GuessFinding(
        name=name,
        prior=prior,
        right=float(right[worst]),
        baseline=float(guess.baseline[worst]),
        row=row,
        median_right=median_of(sorted_numbers(right)),
        median_baseline=median_of(sorted_numbers(guess.baseline)),
        looked_at=len(right),
        levels=len(guess.levels),
        tpr_row=tpr_row,
        unit=records.unit,
        held=guess.right.held,
        **_told_apart(float(mu[easiest])),
    )

"""How to bring the worst record's leakage down, each way with the number it takes and its price."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from seepage.auditing.intake.recipe import Recipe
from seepage.auditing.measures.findings import Remedy
from seepage.auditing.measures.measure import worst_record
from seepage.auditing.measures.subject import Subject
from seepage.auditing.measures.tradeoff import Trial, Tried, error_name, try_out
from seepage.core.noise import Gaussian
from seepage.errors import InputError
from seepage.glm.reweighting.reweight import reweight
from seepage.tables.names import counted

_LARGEST_PENALTY = 1e3
_ROUNDS = 60  # of reweighting, at most: it mostly settles in ten or twenty
_WIDEST = 60  # features up to which the leakage of reweighting as a whole is quickly computed
_HEAVY = 2e9  # multiplications in one pass, beyond which the searches stop earlier
_TOO_HEAVY = 5e9  # beyond which they are not begun: so many fits would take minutes
_CLOSE = 1.02  # a search ends when it is within this factor


def find_remedies(
    subject: Subject,
    recipe: Recipe,
    trial: Trial,
    *,
    sigma: float,
    target: float,
    worst: float,
    seed: int,
) -> tuple[Remedy, ...]:
    """Return what more noise, more regularisation and reweighting would do.

    ``worst`` is the largest leakage of a record at σ = 1; ``target`` the one that is wanted.
    """
    enough = worst / target
    met = _is_met(sigma, enough)
    if _work(subject) > _TOO_HEAVY:
        return remedies_of_noise(trial, sigma=sigma, target=target, worst=worst)
    remedies = [_noise_remedy(trial, sigma, enough, target)]
    try:
        if met:
            remedies.append(_lighter_noise(subject, recipe, trial, enough, target, seed))
        else:
            remedies.append(_penalty(subject, recipe, trial, sigma, target, seed))
        remedies.append(_reweighting(subject, recipe, enough, target, seed))
    except InputError as problem:
        remedies.append(Remedy("refitting", f"Another fit could not be tried: {problem}"))
    return tuple(remedies)


def remedies_of_noise(
    trial: Tried, *, sigma: float, target: float, worst: float
) -> tuple[Remedy, ...]:
    """Return what can be said without fitting the model again."""
    words = "Other penalties and weights were not tried: fitting a table this large is slow."
    return (
        _noise_remedy(trial, sigma, worst / target, target),
        Remedy("refitting", words),
    )


def _is_met(sigma: float, enough: float) -> bool:
    return enough <= sigma * (1 + 1e-9)


def _noise_remedy(trial: Tried, sigma: float, enough: float, target: float) -> Remedy:
    if _is_met(sigma, enough):
        return _noise_when_met(trial, sigma, target)
    return _noise(trial, sigma, enough, target)


def _noise(trial: Tried, sigma: float, enough: float, target: float) -> Remedy:
    return Remedy(
        "more noise",
        f"With σ = {enough:.3g} instead of {sigma:.3g} no record leaks more than η = {target:.3g}; "
        f"{_cost(trial, enough)} ({_said(trial, trial.error(sigma))} at σ = {sigma:.3g}, "
        f"{_said(trial, trial.noiseless_error())} without noise).",
    )


def _noise_when_met(trial: Tried, sigma: float, target: float) -> Remedy:
    return Remedy(
        "more noise",
        f"The target η = {target:.3g} is met. Leakage is inversely proportional to the noise: half "
        f"of it takes σ = {2 * sigma:.3g}, and {_cost(trial, 2 * sigma)} "
        f"({_said(trial, trial.error(sigma))} at σ = {sigma:.3g}, "
        f"{_said(trial, trial.noiseless_error())} without noise).",
    )


def _lighter_noise(
    subject: Subject, recipe: Recipe, trial: Trial, enough: float, target: float, seed: int
) -> Remedy:
    """Say which stronger penalty leaves the least error once the noise is what it then takes."""
    tried = []
    for factor in (10, 100, 1000) if not _is_heavy(subject) else (10,):
        stronger = recipe.with_penalty(factor * max(recipe.l2, 1e-4))
        needed = worst_record(_refitted(subject, stronger)) / target
        after = try_out(subject, stronger, seed)
        tried.append((after.error(needed), needed, after))
    _, needed, after = min(tried, key=lambda option: option[0])
    effect = "only " if needed < enough else "even "
    return Remedy(
        "more regularisation",
        f"With λ = {after.recipe.l2:.3g} instead of {recipe.l2:.3g} the target η = {target:.3g} "
        f"takes {effect}σ = {needed:.3g} (now {enough:.3g}); {_cost(after, needed)} "
        f"({_said(trial, trial.error(enough))} now).",
    )


def _penalty(
    subject: Subject, recipe: Recipe, trial: Trial, sigma: float, target: float, seed: int
) -> Remedy:
    """Search the least λ with which the noise that is there is enough, by bisection of log λ."""
    wanted = target * sigma  # worst leakage at σ = 1
    low, high = max(recipe.l2, 1e-8), _LARGEST_PENALTY

    def leak_at(l2: float) -> float:
        return worst_record(_refitted(subject, recipe.with_penalty(l2)))

    at_most = leak_at(high)
    if at_most > wanted:
        return Remedy(
            "more regularisation",
            f"No penalty is enough at σ = {sigma:.3g}: even with λ = {high:g} the most leaked "
            f"record has η = {at_most / sigma:.3g}.",
        )
    steps = 5 if _is_heavy(subject) else 12
    for _ in range(steps):
        middle = math.sqrt(low * high)
        if leak_at(middle) > wanted:
            low = middle
        else:
            high = middle
        if high / low < _CLOSE:
            break
    after = try_out(subject, recipe.with_penalty(high), seed)
    return Remedy(
        "more regularisation",
        f"With λ = {high:.3g} instead of {recipe.l2:.3g} the noise σ = {sigma:.3g} is enough for "
        f"η = {target:.3g}; {_cost(after, sigma)} ({_said(trial, trial.error(sigma))} now).",
    )


def _reweighting(
    subject: Subject, recipe: Recipe, enough: float, target: float, seed: int
) -> Remedy:
    """Refit with weights that even out the leakage (paper 001, algorithm 1).

    What counts is the leakage of the whole procedure: the choice of the weights depends on the data
    and can give away more than it saves.
    """
    known = recipe.model in ("linear", "logistic") and subject.basis() is None
    if not known or subject.X.shape[1] > _WIDEST:
        return Remedy(
            "reweighting",
            "Weights that even out the leakage were not tried: what choosing them would itself "
            "give away is computed for linear and logistic models of up to "
            f"{_WIDEST} standardised features only.",
        )
    if _is_heavy(subject):
        words = "Weights that even out the leakage were not tried: so many refits would be slow."
        return Remedy("reweighting", words)
    # A label in units of its spread and noise to match are the same release, with the label's
    # step one.
    step = subject.label_spread
    y = subject.y / step if recipe.model == "linear" else subject.y
    fair = reweight(
        recipe.estimator(),
        subject.X,
        y,
        rounds=_ROUNDS,
        tolerance=1e-4,
        noise=Gaussian(1 / step),
        sample_weight=subject.sample_weight,
    )
    needed = float(np.max(np.asarray(fair.whole_procedure()))) / target
    rounds = len(fair.trajectory) - 1
    how = f"Fitted again with weights that even out the leakage ({counted(rounds, 'round')}), "
    counting = "the choice of the weights counted in"
    if needed >= enough:
        return Remedy(
            "reweighting",
            f"{how}the worst record would need σ = {needed:.3g} for η = {target:.3g}, {counting}, "
            f"instead of {enough:.3g}: it does not help here.",
        )
    after = try_out(replace(subject, sample_weight=fair.weights), recipe, seed)
    return Remedy(
        "reweighting",
        f"{how}σ = {needed:.3g} instead of {enough:.3g} is enough for η = {target:.3g}, "
        f"{counting}; {_cost(after, needed)}. Do not publish the weights.",
    )


def _refitted(subject: Subject, recipe: Recipe, weights: np.ndarray | None = None) -> Subject:
    chosen = subject.sample_weight if weights is None else weights
    model = recipe.fit(subject.X, subject.y, chosen)
    return replace(subject, model=model, sample_weight=chosen)


def _work(subject: Subject) -> float:
    """Return the multiplications that one sum of outer products over the rows takes."""
    rows, features = map(float, subject.X.shape)
    return rows * features * features


def _is_heavy(subject: Subject) -> bool:
    return _work(subject) > _HEAVY


def _cost(trial: Tried, sigma: float) -> str:
    return f"the {error_name(trial.recipe)} on held-out records is then " + _said(
        trial, trial.error(sigma)
    )


def _said(trial: Tried, error: float) -> str:
    return f"{error:.1%}" if trial.recipe.classifies else f"{error:.3g}"

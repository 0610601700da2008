"""How to bring the worst record's leakage down, each way with the number it takes and its price."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from seepage.auditing.findings import Advice
from seepage.auditing.measures import worst_record
from seepage.auditing.tradeoff import HeldOutTrial, error_name, try_out
from seepage.auditing.trained_model import RecordsInMemory, TrainedModel
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
    trained: TrainedModel,
    trial: HeldOutTrial,
    *,
    sigma: float,
    target: float,
    worst: float,
    seed: int,
) -> tuple[Advice, ...]:
    """Return what more noise, more regularisation and reweighting would do.

    Fitting the model again, several times, is tried with tables in memory only. ``worst`` is the
    largest leakage of a record at σ = 1; ``target`` the one that is wanted.
    """
    enough = worst / target
    met = enough <= sigma * (1 + 1e-9)
    noise = _noise_when_met(trial, sigma, target) if met else _noise(trial, sigma, enough, target)
    source = trained.source
    if not isinstance(source, RecordsInMemory) or trained.work > _TOO_HEAVY:
        words = "Other penalties and weights were not tried: fitting a table this large is slow."
        return noise, Advice("refitting", words)
    remedies = [noise]
    try:
        if met:
            remedies.append(_lighter_noise(trained, trial, enough, target, seed))
        else:
            remedies.append(_penalty(trained, trial, sigma, target, seed))
        remedies.append(_reweighting(trained, source, enough, target, seed))
    except InputError as problem:
        remedies.append(Advice("refitting", f"Another fit could not be tried: {problem}"))
    return tuple(remedies)


def _noise(trial: HeldOutTrial, sigma: float, enough: float, target: float) -> Advice:
    return Advice(
        "more noise",
        f"With σ = {enough:.3g} instead of {sigma:.3g} no record leaks more than η = {target:.3g}; "
        f"{_cost(trial, enough)} ({_said(trial, trial.error(sigma))} at σ = {sigma:.3g}, "
        f"{_said(trial, trial.noiseless_error())} without noise).",
    )


def _noise_when_met(trial: HeldOutTrial, sigma: float, target: float) -> Advice:
    return Advice(
        "more noise",
        f"The target η = {target:.3g} is met. Leakage is inversely proportional to the noise: half "
        f"of it takes σ = {2 * sigma:.3g}, and {_cost(trial, 2 * sigma)} "
        f"({_said(trial, trial.error(sigma))} at σ = {sigma:.3g}, "
        f"{_said(trial, trial.noiseless_error())} without noise).",
    )


def _lighter_noise(
    trained: TrainedModel, trial: HeldOutTrial, enough: float, target: float, seed: int
) -> Advice:
    """Say which stronger penalty leaves the least error once the noise is what it then takes."""
    tried = []
    for factor in (10, 100, 1000) if trained.work <= _HEAVY else (10,):
        stronger = trained.settings.with_penalty(factor * max(trained.settings.l2, 1e-4))
        needed = worst_record(trained.refitted(stronger)) / target
        after = try_out(trained, stronger, seed)
        tried.append((after.error(needed), needed, after))
    _, needed, after = min(tried, key=lambda option: option[0])
    effect = "only " if needed < enough else "even "
    return Advice(
        "more regularisation",
        f"With λ = {after.settings.l2:.3g} instead of {trained.settings.l2:.3g} the target "
        f"η = {target:.3g} takes {effect}σ = {needed:.3g} (now {enough:.3g}); "
        f"{_cost(after, needed)} ({_said(trial, trial.error(enough))} now).",
    )


def _penalty(
    trained: TrainedModel, trial: HeldOutTrial, sigma: float, target: float, seed: int
) -> Advice:
    """Search the least λ with which the noise that is there is enough, by bisection of log λ."""
    wanted = target * sigma  # worst leakage at σ = 1
    low, high = max(trained.settings.l2, 1e-8), _LARGEST_PENALTY

    def leak_at(l2: float) -> float:
        return worst_record(trained.refitted(trained.settings.with_penalty(l2)))

    at_most = leak_at(high)
    if at_most > wanted:
        return Advice(
            "more regularisation",
            f"No penalty is enough at σ = {sigma:.3g}: even with λ = {high:g} the most leaked "
            f"record has η = {at_most / sigma:.3g}.",
        )
    steps = 5 if trained.work > _HEAVY else 12
    for _ in range(steps):
        middle = math.sqrt(low * high)
        if leak_at(middle) > wanted:
            low = middle
        else:
            high = middle
        if high / low < _CLOSE:
            break
    after = try_out(trained, trained.settings.with_penalty(high), seed)
    return Advice(
        "more regularisation",
        f"With λ = {high:.3g} instead of {trained.settings.l2:.3g} the noise σ = {sigma:.3g} is "
        f"enough for η = {target:.3g}; {_cost(after, sigma)} "
        f"({_said(trial, trial.error(sigma))} now).",
    )


def _reweighting(
    trained: TrainedModel, source: RecordsInMemory, enough: float, target: float, seed: int
) -> Advice:
    """Refit with weights that even out the leakage (paper 001, algorithm 1).

    What counts is the leakage of the whole procedure: the choice of the weights depends on the data
    and can give away more than it saves.
    """
    known = trained.settings.model in ("linear", "logistic") and trained.basis() is None
    if not known or len(source.names) > _WIDEST:
        return Advice(
            "reweighting",
            "Weights that even out the leakage were not tried: what choosing them would itself "
            "give away is computed for linear and logistic models of up to "
            f"{_WIDEST} standardised features only.",
        )
    if trained.work > _HEAVY:
        words = "Weights that even out the leakage were not tried: so many refits would be slow."
        return Advice("reweighting", words)
    # A label in units of its spread and noise to match are the same release, with the label's
    # step one.
    step = trained.labels.step
    y = source.y / step if trained.settings.model == "linear" else source.y
    fair = reweight(
        trained.settings.estimator(),
        source.X,
        y,
        rounds=_ROUNDS,
        tolerance=1e-4,
        noise=Gaussian(1 / step),
        sample_weight=source.sample_weight,
    )
    needed = float(np.max(np.asarray(fair.whole_procedure()))) / target
    rounds = len(fair.trajectory) - 1
    how = f"Fitted again with weights that even out the leakage ({counted(rounds, 'round')}), "
    counting = "the choice of the weights counted in"
    if needed >= enough:
        return Advice(
            "reweighting",
            f"{how}the worst record would need σ = {needed:.3g} for η = {target:.3g}, {counting}, "
            f"instead of {enough:.3g}: it does not help here.",
        )
    after = try_out(
        replace(trained, source=source.weighted_by(fair.weights)), trained.settings, seed
    )
    return Advice(
        "reweighting",
        f"{how}σ = {needed:.3g} instead of {enough:.3g} is enough for η = {target:.3g}, "
        f"{counting}; {_cost(after, needed)}. Do not publish the weights.",
    )


def _cost(trial: HeldOutTrial, sigma: float) -> str:
    return f"the {error_name(trial.settings)} on held-out records is then " + _said(
        trial, trial.error(sigma)
    )


def _said(trial: HeldOutTrial, error: float) -> str:
    return f"{error:.1%}" if trial.settings.classifies else f"{error:.3g}"

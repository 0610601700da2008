"""Compare membership and guesses of one problem with refits in 60 digits."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import mpmath
import numpy as np
from checking import TIMES_STATED, Verdict, reason_of
from frames import Frame, draw
from truth import DIGITS, NoMinimiserError, UndecidedError

import seepage as sp

mpmath.mp.dps = DIGITS
ROUNDED = 4 * float(np.finfo(float).eps)  # what writing a number down costs, beside its interval


def _compare(
    verdict: Verdict, name: str, ends: tuple[float, float], true: Any, resolution: Any = 0
) -> None:
    """Count a number that is said to lie between two others.

    ``resolution`` is what the truth itself may be off by.
    """
    ratio = _beyond(float(ends[0]), float(ends[1]), true, resolution)
    verdict.answers += 1
    verdict.worst = max(verdict.worst, ratio)
    verdict.once += ratio > 1
    verdict.ten += ratio > TIMES_STATED
    low, high = map(float, ends)
    if not name.startswith("certified") and 0 < high < np.inf:
        verdict.least_stated = max(verdict.least_stated, (high - low) / high)
    if ratio > TIMES_STATED:
        verdict.broken.append(f"{name}: {low:.17g} to {high:.17g} for {float(true):.17g}")


def _beyond(low: float, high: float, true: Any, resolution: Any) -> float:
    """Return how far a number is from the middle of an interval, in halves of its width."""
    if np.isinf(float(true)):
        return 0.0 if np.isinf(high) else np.inf
    if np.isinf(high):
        inside = low <= mpmath.mpf(str(true)) * (1 + ROUNDED)
        return 0.0 if np.isfinite(low) and inside else np.inf
    true = mpmath.mpf(str(true))
    middle, half = (mpmath.mpf(low) + mpmath.mpf(high)) / 2, (mpmath.mpf(high) - low) / 2
    half += ROUNDED * abs(true) + mpmath.mpf(str(resolution))
    return float(abs(true - middle) / half) if true != middle else 0.0


def judge(seed: int, kind: str | None = None) -> Verdict:
    """Draw the problem of a seed, ask about finite changes of it, and compare."""
    frame = draw(seed, kind)
    verdict = Verdict(seed, frame.kind, frame.family)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            leak = frame.leakage()
        except sp.InputError as error:
            verdict.refusals.append(reason_of(error))
            return verdict
        except Exception as error:
            verdict.broken.append(f"raised {type(error).__name__}: {str(error)[:80]}")
            return verdict
        try:
            frame.candidates  # noqa: B018 - the refit of all records
        except NoMinimiserError:
            return verdict
        except UndecidedError:
            verdict.undecided += 1
            return verdict
        for question in (_membership, _people, _column, _label):
            try:
                question(frame, leak, verdict)
            except UndecidedError:
                verdict.undecided += 1
            except sp.InputError as error:
                verdict.refusals.append(reason_of(error))
                verdict.broken.append(f"{question.__name__}: {error}")
            except Exception as error:
                said = f"{type(error).__name__}: {str(error)[:80]}"
                verdict.broken.append(f"{question.__name__} raised {said}")
    return verdict


def _some(frame: Frame, mu: np.ndarray) -> list[int]:
    """Return the records to compare: the most exposed, and as many others as are cheap."""
    rng = np.random.default_rng([frame.seed, 1])
    others = {"gaussian": 16, "categorical": 1}.get(frame.family, 2)
    return sorted({int(np.argmax(mu)), *rng.permutation(len(mu))[:others].tolist()})


def _held(result: sp.Result) -> bool:
    """Say whether class weights are those of all records in an answer."""
    return "class weights" in getattr(result, "held", ("class weights",))


def _distance(frame: Frame, refit: Any, *told: Any, **how: Any) -> Any:
    """Return how far a refit is from the release, infinite where there is none."""
    try:
        return frame.candidates.distance(refit(*told, **how))
    except NoMinimiserError:
        return float("inf")


def _membership(frame: Frame, leak: sp.Leakage, verdict: Verdict) -> None:
    answers = {"membership": leak.membership(), "certified membership": leak.membership(exact=0)}
    if frame.balanced and not _held(answers["membership"].mu):
        answers["membership held"] = leak.membership(refit="model")
    for i in _some(frame, np.asarray(answers["membership"])):
        for name, answer in answers.items():
            true = _distance(frame, frame.candidates.without, np.array([i]), held=_held(answer.mu))
            ends = (answer.lower[i], answer.mu[i])
            _compare(verdict, f"{name} of {i}", ends, true, frame.candidates.resolution)


def _people(frame: Frame, leak: sp.Leakage, verdict: Verdict) -> None:
    if frame.person is None:
        return
    leak = frame.leakage(frame.person)
    answer = leak.membership()
    for k in _some(frame, np.asarray(answer)):
        rows = np.flatnonzero(frame.person == answer.mu.labels()[k])
        true = _distance(frame, frame.candidates.without, rows, held=_held(answer.mu))
        ends = (answer.lower[k], answer.mu[k])
        _compare(verdict, f"membership of person {k}", ends, true, frame.candidates.resolution)
    if frame.kind != "people" or not frame.levels:
        return
    guess = leak.guess(0)  # the same in all records of a person
    identities, first = np.unique(frame.person, return_index=True)
    of_people = frame.X[first, 0] == frame.candidates.values[0]
    share = mpmath.mpf(int(np.sum(of_people))) / len(identities)
    for k in _some(frame, guess.mu):
        rows = np.flatnonzero(frame.person == guess.right.labels()[k])
        true = _distance(frame, frame.candidates.replaced, rows, "column")
        _compare_guess(frame, verdict, "guess about people", guess, k, true, share)


def _column(frame: Frame, leak: sp.Leakage, verdict: Verdict) -> None:
    if not frame.levels:
        return
    n = len(frame.X)
    share = mpmath.mpf(int(np.sum(frame.X[:, 0] == frame.candidates.values[0]))) / n
    for answer, name in _guesses(leak, 0):
        for i in _some(frame, answer.mu):
            true = _distance(frame, frame.candidates.replaced, [i], "column")
            _compare_guess(frame, verdict, name + " of a column", answer, i, true, share)


def _label(frame: Frame, leak: sp.Leakage, verdict: Verdict) -> None:
    if frame.classes == 1:
        return
    n, steps = len(frame.X), range(1, frame.classes)
    share = mpmath.mpf(int(np.sum(frame.y == 0))) / n
    for answer, name in _guesses(leak, None):
        for i in _some(frame, answer.mu):
            refit, held = frame.candidates.replaced, _held(answer.right)
            if frame.classes == 2:
                true = _distance(frame, refit, [i], "label", 1, held=held)
                _compare_guess(frame, verdict, name + " of the label", answer, i, true, share)
                continue
            try:
                fits = [refit([i], "label", c, held=held) for c in steps]
            except NoMinimiserError:
                widest: Any = float("inf")
            else:
                fits = [frame.candidates.here, *fits]
                pairs = [(a, b) for a in fits for b in fits if a is not b]
                widest = max(frame.candidates.distance(a, b) for a, b in pairs)
            _compare_most(frame, verdict, f"{name} of the label of {i}", answer.mu[i], widest)


def _guesses(leak: sp.Leakage, column: int | None) -> Iterator[tuple[sp.Guess, str]]:
    yield leak.guess(column), "guess"
    yield leak.guess(column, exact=0), "certified guess"


def _compare_guess(
    frame: Frame, verdict: Verdict, name: str, answer: Any, i: int, distance: Any, share: Any
) -> None:
    """Compare the probability of the best guess between two levels, and their distance."""
    ends = (answer.lower[i], answer.right[i])
    _compare(verdict, f"{name} of {i}", ends, _right(distance, share))
    _compare_most(frame, verdict, f"{name} of {i}", answer.mu[i], distance)


def _compare_most(frame: Frame, verdict: Verdict, name: str, most: float, true: Any) -> None:
    """Compare what a distance is at most: nothing is stated beside it, so nothing may exceed it."""
    verdict.answers += 1
    short = np.isfinite(most)
    if np.isfinite(float(true)):
        least = mpmath.mpf(str(true)) * (1 - ROUNDED)
        short = float(most) < least - mpmath.mpf(str(frame.candidates.resolution))
    if short:
        verdict.once += 1
        verdict.ten += 1
        verdict.broken.append(f"{name}: at most {most:.17g} for {float(true):.17g}")


def _right(distance: Any, share: Any) -> Any:
    """Return how often the best guess between two levels is right, in 60 digits."""
    baseline = max(share, 1 - share)
    if np.isinf(float(distance)):
        return mpmath.mpf(1)
    mu = mpmath.mpf(str(distance))
    if mu == 0 or baseline == 1:
        return baseline
    odds = mpmath.log(share / (1 - share)) / mu
    return share * mpmath.ncdf(mu / 2 + odds) + (1 - share) * mpmath.ncdf(mu / 2 - odds)

"""Compare the package's answers to one problem with the truth, and say what broke which rule."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field

import numpy as np
from problems import Problem, draw
from questions import questions
from truth import NoMinimiserError

import seepage as sp

TIMES_STATED = 10.0  # an answer may be off by so many times its stated accuracy
GOOD, GOOD_CONDITION = 1e-6, 1e8  # what must be stated in float64 up to this condition number
NO_REFUSAL = 1e10  # the condition number up to which only problems without an answer are refused
# What Result.accuracy says of numbers that are next to nothing beside the largest of their view.
NEGLIGIBLE = 1e-8
# 60 digits leave some 1e-56 of what is zero, and 1e112 of a bound that is infinite: no information
# at all, as for the one record of a Poisson model whose intercept fits it perfectly.
BEYOND = 1e40
NOTHING, NOTHING_TO_ROUNDING = 1e-40, 1e-12
# An information is singular where its accuracy times its condition passes this: the package may
# then say that the bound is infinite, however large it is in 60 digits.
SINGULAR = 1e-3


@dataclass
class Verdict:
    """What one problem showed."""

    seed: int
    kind: str
    family: str
    condition: float = float("inf")
    answers: int = 0
    once: int = 0  # answers that are off by more than their stated accuracy
    ten: int = 0  # and by more than ten times that
    undecided: int = 0  # questions for whose truth 60 digits are too few
    refusals: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    worst: float = 0.0  # the error over the stated accuracy
    least_stated: float = 0.0  # the worst accuracy that was stated


def judge(seed: int, kind: str | None = None) -> Verdict:
    """Draw the problem of a seed, ask everything about it, and compare."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _judge(draw(seed, kind))


def _judge(problem: Problem) -> Verdict:
    verdict = Verdict(problem.seed, problem.kind, problem.family)
    try:
        whitened = problem.truth.whitened(problem.scale)
        verdict.condition = problem.truth.condition
    except NoMinimiserError:
        whitened = None
    try:
        leak = problem.leakage()
    except sp.InputError as error:
        named = "separable" in str(error) or "counts are all zero" in str(error)
        lost = named and problem.separable
        _refused(verdict, error, whitened is not None and not lost)
        return verdict
    except Exception as error:
        verdict.broken.append(f"raised {type(error).__name__}: {str(error)[:80]}")
        return verdict
    if whitened is None:
        return verdict  # separable to rounding only, or nearly: nothing to compare with
    scale = whitened.measure(whitened.block(None, None, True), "fil")
    for question in questions(problem, whitened):
        try:
            answer = question.ask(leak)
        except sp.InputError as error:
            # Only what is asked along the simplex of a category may be refused as not one-hot.
            _refused(verdict, error, "one-hot" not in str(error))
            continue
        except Exception as error:
            verdict.broken.append(
                f"{question.name} raised {type(error).__name__}: {str(error)[:80]}"
            )
            continue
        true, condition = question.true()
        found = np.asarray(answer, dtype=float)
        _compare(
            verdict, problem, question.name, answer, true.reshape(found.shape), condition, scale
        )
    return verdict


def _compare(
    verdict: Verdict,
    problem: Problem,
    name: str,
    answer: sp.Result,
    true: np.ndarray,
    condition: np.ndarray | None,
    scale: float,
) -> None:
    found = np.asarray(answer, dtype=float)
    if condition is not None:
        true = np.where(true * scale**2 > BEYOND, np.inf, true)
        found = np.where(found * scale**2 > BEYOND, np.inf, found)
    verdict.answers += found.size
    stated = np.broadcast_to(np.asarray(answer.accuracy, dtype=float), found.shape)
    # Of numbers that are nothing beside the largest of their view, a share of that counts.
    finite = np.where(np.isfinite(true), np.abs(true), 0.0)
    floor = NEGLIGIBLE * np.max(finite) if condition is None else 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.where(found == true, 0.0, np.abs(found - true) / np.maximum(np.abs(true), floor))
    # Zero to rounding, beside what the whole table shows.
    nothing = (true <= NOTHING * scale) & (found <= NOTHING_TO_ROUNDING * scale)
    error = np.where(nothing, 0.0, error)
    # Of a view that is zero throughout no relative accuracy can be stated: of any other number, a
    # share below one of it would be false, for it is off by all of itself.
    if condition is None and np.any(true > NOTHING * scale):
        worst = float(np.max(stated))
        verdict.least_stated = max(verdict.least_stated, worst)
        if problem.dtype == "float64" and verdict.condition < GOOD_CONDITION and worst > GOOD:
            verdict.broken.append(f"{name} states no better than {worst:.1e}")
    elif condition is not None:
        shape = (len(condition), *(1,) * (found.ndim - 1)) if found.ndim else ()
        at = np.broadcast_to(condition.reshape(shape), found.shape)
        hopeless = at * max(verdict.least_stated, 1e-15) > SINGULAR
        error = np.where(np.isinf(found) & hopeless, 0.0, error)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.where(error == 0, 0.0, error / stated)
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    top = float(np.max(ratio, initial=0.0))
    verdict.worst = max(verdict.worst, top)
    verdict.once += int(np.sum(ratio > 1))
    verdict.ten += int(np.sum(ratio > TIMES_STATED))
    if top > TIMES_STATED:
        k = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        verdict.broken.append(
            f"{name}: {found[k]:.6g} for {true[k]:.6g}, accuracy stated {stated[k]:.1e}"
        )


def _refused(verdict: Verdict, error: Exception, has_answer: bool) -> None:
    verdict.refusals.append(reason_of(error))
    if has_answer and verdict.condition < NO_REFUSAL:
        verdict.broken.append(f"refused at condition {verdict.condition:.1e}: {str(error)[:120]}")


def reason_of(error: Exception) -> str:
    """Return what an error says, without the names and numbers in it."""
    sentence = str(error).split(":")[0].split(";")[0]
    return re.sub(r"'[^']*'|[\d.]+(e[-+]?\d+)?", "…", sentence)[:100]

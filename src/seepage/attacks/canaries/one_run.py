"""A lower bound on ε from guesses about one run (Steinke, Nasr and Jagielski 2023).

Each of m canaries is included by a fair coin flip. An attacker guesses r of the coin flips and
abstains from guessing the others; v guesses are correct. If the procedure is (ε, δ)-differentially
private for adding or removing one record, then the main theorem of the paper, with ``W ~
Binomial(r, e^ε/(1 + e^ε))``, states::

    P[v or more correct] ≤ P[W ≥ v] + 2mδ · max_{1 ≤ i ≤ v} P[v > W ≥ v − i]/i

An ε is refuted with 95 % confidence if the right-hand side is below 5 %. The coin flips are
independent, so one run with many canaries replaces many runs with one canary each.
"""

from __future__ import annotations

import numpy as np

from seepage.errors import InputError
from seepage.support.number_check import check_count, check_not_negative, check_number, check_share


def chance_of_guesses(
    correct: int, guesses: int, *, abstentions: int = 0, epsilon: float, delta: float
) -> float:
    """Return an upper bound on the probability of ``correct`` or more correct guesses.

    The bound holds under (ε, δ)-differential privacy. The number of guesses must have been chosen
    without knowing the coin flips.

    Examples
    --------
    >>> from seepage.attacks.canaries.one_run import chance_of_guesses
    >>> round(chance_of_guesses(90, 100, abstentions=900, epsilon=1.0, delta=1e-5), 6)
    0.000841
    """
    from scipy.special import expit
    from scipy.stats import binom

    _check(correct, guesses, abstentions, delta)
    check_not_negative(epsilon, "epsilon")
    luck = float(expit(epsilon))
    tail = float(binom.sf(correct - 1, guesses, luck))
    fewer = np.arange(1, correct + 1)
    within = binom.sf(correct - fewer - 1, guesses, luck) - tail
    revealed = 2 * (guesses + abstentions) * delta * float(np.max(within / fewer, initial=0.0))
    return min(1.0, tail + revealed)


def epsilon_lower_bound(
    correct: int,
    guesses: int,
    *,
    abstentions: int = 0,
    delta: float,
    confidence: float = 0.95,
) -> float:
    """Return a lower bound on ε: the guesses refute every smaller ε at the given confidence.

    The result exceeds the true ε with a probability of at most ``1 − confidence``. A small bound is
    not evidence of privacy: a stronger attack may guess more canaries correctly.

    Parameters
    ----------
    correct, guesses
        The numbers of correct guesses and of all guesses.
    abstentions
        The number of canaries that were not guessed.
    delta
        The δ of the guarantee, which may be 0.
    confidence
        The confidence level of the bound.

    Examples
    --------
    >>> from seepage.attacks import epsilon_lower_bound
    >>> round(epsilon_lower_bound(190, 200, abstentions=800, delta=1e-5), 2)
    2.39
    >>> epsilon_lower_bound(100, 200, abstentions=800, delta=1e-5)
    0.0
    """
    _check(correct, guesses, abstentions, delta)
    check_share(confidence, "confidence")

    def refuted(epsilon: float) -> bool:
        chance = chance_of_guesses(
            correct, guesses, abstentions=abstentions, epsilon=epsilon, delta=delta
        )
        return chance < 1 - confidence

    # The first ε that is not refuted, from below: a later one might be refuted again if δ is large,
    # and to answer with that would be too bold. Beyond 700, e^ε is no number.
    low, step = 0.0, 0.05
    while low < 700 and refuted(low + step):
        low += step
    if low == 0.0 and not refuted(0.0):
        return 0.0
    high = low + step
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _check(correct: int, guesses: int, abstentions: int, delta: float) -> None:
    for value, name in ((correct, "correct"), (guesses, "guesses"), (abstentions, "abstentions")):
        check_count(value, name, 0)
    if correct > guesses:
        raise InputError(f"correct={correct} exceeds guesses={guesses}; check both counts.")
    check_number(delta, "delta")
    if not 0 <= delta < 1:
        raise InputError(f"delta must be at least 0 and below 1, but is {delta!r}.")

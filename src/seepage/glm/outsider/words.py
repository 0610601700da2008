"""Describe the assumptions behind results for an attacker who does not know all other records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seepage.core.result import held_sentences, joined
from seepage.glm.outsider.resampled import Resampled
from seepage.glm.outsider.seen import SeenRelease
from seepage.tables.names import counted


def assumptions(parts: Sequence[SeenRelease], *found: str, guess: str = "") -> tuple[str, ...]:
    """Return the assumptions for membership and η, or for a guess.

    ``found`` contains sentences about the results; ``guess`` says whose value is guessed.
    """
    attacker, known = parts[0].attacker, "exactly"
    if attacker.reference is not None:
        known = f"from {attacker.reference:,} records"
    noisy = any(part.noise is not None for part in parts)
    noise = "with the stated noise" if noisy else "without noise"
    return (
        f"The result is for {attacker}: the other records come from a population that the attacker "
        f"knows {known}, and their number is known. "
        + (
            f"The attacker knows everything about the {guess} except the unknowns."
            if guess
            else "Absence means that another person replaces this person."
        ),
        "The result is a normal approximation from one fit: an estimate, not a guarantee.",
        *held_sentences(held(parts)),
        f"Only the measured release is published, {noise}; inference about the population is not "
        "counted.",
        *_rounded(parts[0].digits),
        *found,
        *joined(*(part.informed.notes for part in parts)),
    )


def held(parts: Sequence[SeenRelease]) -> tuple[str, ...]:
    """Return everything that any of the releases holds fixed."""
    return joined(*(part.informed.held for part in parts))


def _rounded(digits: int | None) -> tuple[str, ...]:
    if digits is None:
        return ()
    return (
        f"The numbers are rounded to {counted(digits, 'decimal')}. Rounding adds a variance of "
        "r²/12 to numbers that vary by more than a rounding step r, and nothing to other numbers. "
        "An attacker who knows all other records is certain about each record whose absence "
        "changes a printed digit, and no better than chance about the remaining records. The "
        "success rate of an attacker who knows less is a mean over tables of other people.",
    )


def agreement(checked: Resampled, in_reach: bool) -> tuple[str, ...]:
    """Return a sentence about the difference between refits and the normal approximation."""
    known = ~np.isnan(checked.right)
    if not in_reach:
        return (
            "The approximation was not checked by refits on other people, which need all records "
            "in memory and a single release.",
        )
    if not len(checked.people):
        return (
            "The approximation was not checked by refits on other people; pass exact=10 to check "
            "it for the 10 most exposed people.",
        )
    if not known.any():
        return (
            "Refits on other people often had no minimiser, so they could not check the "
            "approximation.",
        )
    return (
        f"Refits on other people checked {checked.largest_difference()}. For records that cause "
        "most of the variation, the refits replace the approximation.",
    )


def hidden_by_few(known: np.ndarray) -> tuple[str, ...]:
    """Return a sentence about how many people are hidden mainly by one other person."""
    if not known.any():
        return ()
    return (
        f"For {np.count_nonzero(known):,} of the people measured, one other person causes more "
        "than four fifths of the variation that hides them, and is treated as known to the "
        "attacker.",
    )

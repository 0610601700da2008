"""What the numbers for an attacker who does not know all others assume, in words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seepage.core.result import held_sentences, joined
from seepage.glm.outsider.resampled import Resampled
from seepage.glm.outsider.seen import SeenRelease


def assumptions(parts: Sequence[SeenRelease], *found: str, guess: str = "") -> tuple[str, ...]:
    """Return what the numbers of releases assume: of membership and η, or of a guess.

    ``found`` is what was learnt on the way, ``guess`` what a guess is about.
    """
    attacker, known = parts[0].attacker, "exactly"
    if attacker.reference is not None:
        known = f"from {attacker.reference:,} records"
    noisy = any(part.noise is not None for part in parts)
    noise = "with the stated noise on it" if noisy else "without noise"
    return (
        f"This is {attacker}: the others come from a population that she knows {known}, "
        "and how many there are. "
        + (
            f"Of the {guess} she knows all that is not asked about."
            if guess
            else "Out means somebody else instead."
        ),
        "A normal approximation from one fit: an estimate, which promises nothing.",
        *held_sentences(held(parts)),
        f"Nothing leaves but what was measured, {noise}; what it teaches about the population "
        "is not counted.",
        *_rounded(parts[0].digits),
        *found,
        *joined(*(part.informed.notes for part in parts)),
    )


def held(parts: Sequence[SeenRelease]) -> tuple[str, ...]:
    """Return what is held fixed, in any of the releases."""
    return joined(*(part.informed.held for part in parts))


def _rounded(digits: int | None) -> tuple[str, ...]:
    if digits is None:
        return ()
    return (
        f"The numbers are rounded to {digits} decimals: a variance of r²/12 where they "
        "vary by more than a step r, and nothing where the step is coarser. Who knows all the "
        "rest is certain of those whose absence changes a digit of this very table, and tosses "
        "a coin about the others; how often one is right who knows less is a mean over tables "
        "of other people.",
    )


def agreement(checked: Resampled, in_reach: bool) -> tuple[str, ...]:
    """Return how far refits and the normal approximation are apart."""
    known = ~np.isnan(checked.right)
    if not in_reach:
        return (
            "No refits on other people have checked it: these need all records in memory, and one "
            "release.",
        )
    if not len(checked.people):
        return ("No refits on other people have checked it; exact=10 checks the most exposed.",)
    if not known.any():
        return ("Refits on other people often had no minimiser, and checked nothing.",)
    return (
        f"Refits on other people checked {checked.largest_difference()}; where the record is most "
        "of what varies, the refits count.",
    )


def hidden_by_few(known: np.ndarray) -> tuple[str, ...]:
    """Return how many people are hidden by hardly more than one other."""
    if not known.any():
        return ()
    return (
        f"For {np.count_nonzero(known):,} of these, one other person was more than four fifths of "
        "what hides them, and is taken to be known to her.",
    )

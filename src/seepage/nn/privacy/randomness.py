"""Describes how predictable a run's noise and batches are, and the effect on its guarantees.

Differential privacy and leakage both assume noise that the attacker cannot know, and amplification
by sampling assumes batches that the attacker cannot know. An attacker who knows a run's seed, or
can try all states of a small generator, can regenerate both and subtract the noise. The ledger
stores the origin of each step's noise, and every statement about the run includes the resulting
condition from this module. A run whose noise can be regenerated is an *experiment*: its results are
marked as such and cannot be published as guarantees.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from seepage.errors import InputError
from seepage.support.number_check import check_choice

SECURE, SEED, FAST, UNSTATED = "secure", "seed", "fast", "unstated"
SEEDED_AND_FAST = "seed and fast"

_SEEDED = (
    "Noise and batches came from a seed, so the result holds only against attackers who neither "
    "know nor guess the seed. Anyone who knows it can regenerate the batches and subtract the "
    "noise."
)
_TRIED_OUT = (
    "The noise (in Opacus also the batches) came from torch's own generator, which may use as few "
    "as 32 bits of a seed. The result therefore holds only against attackers who do not try all "
    "seeds; anyone who does can subtract the noise."
)
_ASSUMED = (
    "The origin of noise and batches was not stated; it is assumed that attackers cannot "
    "regenerate them."
)
_CONDITIONS: dict[str, tuple[str, ...]] = {
    SECURE: (),
    SEED: (_SEEDED,),
    FAST: (_TRIED_OUT,),
    SEEDED_AND_FAST: (_SEEDED, _TRIED_OUT),
    UNSTATED: (_ASSUMED,),
}
_MARKS = {
    _SEEDED: "experiment, noise from a seed: valid only if no attacker knows or guesses it",
    _TRIED_OUT: (
        "experiment, noise from a fast generator: valid only if no attacker tries its seeds"
    ),
}


def check_randomness(randomness: str) -> None:
    """Raise an error unless ``randomness`` is a known origin of noise and batches."""
    check_choice(randomness, "randomness", tuple(_CONDITIONS))


def conditions_of(origins: Iterable[str]) -> tuple[str, ...]:
    """Return sentences that state the conditions for steps whose noise has these origins.

    >>> conditions_of(["secure"])
    ()
    """
    sentences = (text for origin in origins for text in _CONDITIONS[origin])
    return tuple(dict.fromkeys(sentences))  # each once, in the order of the steps


def mark_of(conditions: Sequence[str]) -> str:
    """Return a note if the conditions say that the noise can be regenerated, or an empty text.

    >>> mark_of(conditions_of(["secure", "seed"]))
    'experiment, noise from a seed: valid only if no attacker knows or guesses it'
    """
    return "; ".join(mark for text, mark in _MARKS.items() if text in conditions)


def refuse_experiment(conditions: Sequence[str]) -> None:
    """Raise an error if the conditions are those of an experiment, which must not be published."""
    mark = mark_of(conditions)
    if mark:
        raise InputError(
            f"The noise of this run can be regenerated ({mark}), so its guarantee "
            "cannot be published; train again without seed= and with randomness='secure' (Opacus: "
            "PrivacyEngine(secure_mode=True))."
        )


def marked(words: str, conditions: Sequence[str]) -> str:
    """Return ``words`` with the note of :func:`mark_of`, at the end or before a repr's ``>``."""
    mark = mark_of(conditions)
    if not mark:
        return words
    inside = words.removesuffix(">")
    return f"{inside}; {mark}{words[len(inside) :]}"

"""What a result holds fixed: one word for a machine, one sentence for a reader.

A procedure learns more from the data than the numbers it releases: a penalty, the weights of
classes, the scaling of columns. A measure differentiates or refits some of that; the rest stays
what it is with the record, and is *held*. Adapters and preprocessing say what was learnt, measures
what they choose anew, and :attr:`~seepage.core.result.Result.held` is the difference.
"""

from __future__ import annotations

from collections.abc import Iterable

CLASS_WEIGHTS = "class weights"
COLUMNS = "selected columns"
LEVELS = "levels"
NOISE = "noise"
PENALTY = "penalty"
SCALING = "scaling"
SETTINGS = "settings"

# The preparation of columns is one sentence, which lists the words that have no sentence here.
_SENTENCES = {
    CLASS_WEIGHTS: (
        "class_weight='balanced' computed the weights of the classes from all labels; they are "
        "held fixed, though a record that changes or leaves would change the weights of all others."
    ),
    COLUMNS: (
        "Which columns the model keeps was decided by looking at the data; the choice and the "
        "signs of an L1 penalty are held fixed, and what the choice reveals is left out."
    ),
    NOISE: (
        "The noise was chosen by looking at the data; it is held fixed, though without a record it "
        "might have been chosen otherwise."
    ),
    PENALTY: (
        "The penalty nλ is held fixed: a record that changes or leaves would change its choice or "
        "its size, and what that reveals is left out."
    ),
    SETTINGS: (
        "A search chose the settings by looking at the data; they are held fixed, and what the "
        "choice reveals is left out."
    ),
}


def held_sentences(held: Iterable[str]) -> tuple[str, ...]:
    """Return what is held fixed in sentences, in the order of the words.

    >>> held_sentences(("scaling", "levels"))[0]
    'What the preprocessing learnt from the data (scaling, levels) is held fixed, and counts as ...
    """
    words = tuple(held)
    told = [_SENTENCES[word] for word in words if word in _SENTENCES]
    prepared = [word for word in words if word not in _SENTENCES]
    if prepared:
        told.append(
            f"What the preprocessing learnt from the data ({', '.join(prepared)}) is held fixed, "
            "and counts as public."
        )
    return tuple(told)


def joined(*parts: Iterable[str]) -> tuple[str, ...]:
    """Return all words of several lists, each once, in their order."""
    return tuple(dict.fromkeys(word for part in parts for word in part))


def less(held: Iterable[str], anew: Iterable[str]) -> tuple[str, ...]:
    """Return the words that are not among those chosen anew."""
    chosen = set(anew)
    return tuple(word for word in held if word not in chosen)

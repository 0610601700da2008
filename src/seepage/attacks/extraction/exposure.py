"""The exposure of a secret: how high it ranks among all candidates of the same shape.

Let the secret be the r-th most probable in the set ``R`` of candidates of the same shape. Its
exposure is (Carlini et al. 2019, The Secret Sharer)::

    exposure = log2 |R| − log2 r        bits

The maximum, ``log2 |R|``, means that the model prefers the secret to every other candidate. A
secret that the model has never seen has an exposure of 1.4 bits on average. If there are few
candidates, all of them are ranked. Otherwise a random sample is ranked. The share of candidates
that are more probable than the secret has an exact confidence interval (Clopper and Pearson); the
negative logarithms to base 2 of its ends are the ends of the exposure's interval.
"""

from __future__ import annotations

import math
import random
import string
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.stats import binomtest

from seepage.attacks.extraction.probability import LanguageModel
from seepage.attacks.extraction.text import Target, Vocabulary
from seepage.errors import InputError


@dataclass(frozen=True)
class Exposure:
    """The exposure of a secret in bits, with its 95 % interval if candidates were sampled."""

    bits: float
    low: float
    high: float
    candidates: int  # |R|
    compared: int  # how many of them were scored

    @property
    def enumerated(self) -> bool:
        """Whether every candidate was ranked."""
        return self.compared == self.candidates


def alphabets(secret: str) -> list[str]:
    """Return the characters allowed at each position of a string of the secret's shape.

    A digit stands for any digit, and a letter from a to z for any of these letters in the same
    case. Other characters are kept.

    Examples
    --------
    >>> from seepage.attacks.extraction.exposure import alphabets
    >>> [len(letters) for letters in alphabets("7-b")]
    [10, 1, 26]
    """
    kinds = (string.digits, string.ascii_lowercase, string.ascii_uppercase)
    return [next((kind for kind in kinds if character in kind), character) for character in secret]


def measure_exposure(
    model: LanguageModel,
    vocabulary: Vocabulary,
    target: Target,
    secret: str,
    *,
    candidates: Sequence[str] | None = None,
    most: int = 1_000_000,
    draws: int = 10_000,
    seed: int = 0,
    special: bool = True,
) -> Exposure:
    """Rank a secret among candidates by the probability of their tokens, at temperature 1.

    Parameters
    ----------
    model, vocabulary
        The model and its tokenizer.
    target, secret
        The given tokens and the target tokens, and the secret as text.
    candidates
        The alternatives; by default, all strings of the secret's shape (:func:`alphabets`).
    most
        The largest number of candidates for which all are ranked.
    draws
        The number of candidates to sample if there are more than ``most``.
    seed
        The seed of the sample.
    special
        As for :func:`~seepage.attacks.extraction.text.locate`.
    """
    drawn: Iterator[str]
    if candidates is not None:
        others = sorted(set(candidates) - {secret})
        total = len(others) + 1
        picked = others if total <= most else random.Random(seed).sample(others, draws)  # noqa: S311
        drawn = iter(picked)
    else:
        places = alphabets(secret)
        total = math.prod(map(len, places))
        if total <= most:
            drawn = ("".join(letters) for letters in product(*places))
        else:
            rng = np.random.default_rng(seed)
            drawn = ("".join(rng.choice(list(p)) for p in places) for _ in range(draws))
        drawn = (other for other in drawn if other != secret)
    if total < 2:
        raise InputError(
            "The secret is the only candidate, so it cannot be ranked; give at least one other "
            "candidate."
        )
    joined = target.emitted[: len(target.emitted) - len(secret)]
    (own,) = _scores(model, vocabulary, target, [joined + secret], special)
    above, ties, compared = 0, 0, 0
    for batch in _batches(drawn):
        scores = _scores(model, vocabulary, target, [joined + other for other in batch], special)
        above += int(np.sum(scores > own))
        ties += int(np.sum(scores == own))
        compared += len(batch)
    worse = above + ties / 2
    if compared + 1 == total:
        bits = math.log2(total / (1 + worse))
        return Exposure(bits, bits, bits, total, total)
    ends = binomtest(math.ceil(worse), compared).proportion_ci(method="exact")
    most_bits = math.log2(total)
    bits = min(most_bits, math.log2((compared + 1) / (1 + worse)))
    return Exposure(
        bits,
        -math.log2(ends.high),
        min(most_bits, -math.log2(ends.low) if ends.low > 0 else math.inf),
        total,
        compared,
    )


def _batches(texts: Iterator[str], size: int = 4096) -> Iterator[list[str]]:
    while batch := [text for _, text in zip(range(size), texts, strict=False)]:
        yield batch


def _scores(
    model: LanguageModel,
    vocabulary: Vocabulary,
    target: Target,
    endings: Sequence[str],
    special: bool,
) -> np.ndarray:
    """Return the log-probability of each text, split by the tokenizer, after the given tokens."""
    context = tuple(target.passage.ids[: target.passage.start])
    continuations = []
    whole = vocabulary.encode([target.given + text for text in endings], special=special)
    for text, (ids, ends) in zip(endings, whole, strict=True):
        first = bisect_right(ends, len(target.given))
        if not 0 < first < len(ids) or ends[first - 1] != len(target.given):
            # This candidate joins what is given, which stays as it is: it is written after it.
            ((ids, _),), first = vocabulary.encode([text], special=False), 0
        continuations.append(ids[first:])
    return model.score_endings(context, continuations)

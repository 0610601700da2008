"""Near-verbatim copies: how often a sampled continuation almost matches the secret.

Near-verbatim copies have no closed-form probability. Continuations are sampled instead, and those
within a given edit distance of the secret are counted. Ippolito et al. (2023) find that models leak
near-verbatim copies more often than verbatim ones. The share of copies has an exact 95 % confidence
interval (Clopper and Pearson), even if no copy is found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest
from torch import Tensor

from seepage.attacks.extraction.probability import LanguageModel
from seepage.attacks.extraction.sampler import TokenSampler
from seepage.attacks.extraction.text import Target, Vocabulary


@dataclass(frozen=True)
class NearCopies:
    """The numbers of samples and of near-verbatim copies, with a 95 % interval of the rate."""

    draws: int
    hits: int
    verbatim: int  # those that begin with the very text

    @property
    def rate(self) -> float:
        """The share of continuations that are near-verbatim copies."""
        return self.hits / self.draws

    @property
    def interval(self) -> tuple[float, float]:
        """The exact 95 % confidence interval of :attr:`rate`."""
        ends = binomtest(self.hits, self.draws).proportion_ci(method="exact")
        return float(ends.low), float(ends.high)


def draw_continuations(
    model: LanguageModel,
    context: tuple[int, ...],
    length: int,
    draws: int,
    sampler: TokenSampler,
    seed: int = 0,
) -> Tensor:
    """Sample continuations of a context, ``(draws, length)``."""
    generator = torch.Generator(model.device).manual_seed(seed)
    size = max(1, model.batch_tokens // (len(context) + length))
    parts = []
    for first in range(0, draws, size):
        ids = torch.tensor([context] * min(size, draws - first), device=model.device)
        kept: dict[str, Any] = {}
        for _ in range(length):
            logits, kept = model.next_of(ids, kept)
            ids = torch.cat([ids, sampler.draw(logits, generator)[:, None]], 1)
        parts.append(ids[:, len(context) :].cpu())
    return torch.cat(parts)


def count_near_copies(
    model: LanguageModel,
    vocabulary: Vocabulary,
    sampler: TokenSampler,
    target: Target,
    *,
    draws: int = 1000,
    distance: float = 0.1,
    seed: int = 0,
) -> NearCopies:
    """Draw continuations and count those within a given edit distance of the secret.

    Parameters
    ----------
    model, vocabulary, sampler
        The model, its tokenizer and its sampler.
    target
        The given tokens and the target tokens.
    draws, seed
        The number of continuations, and the random seed.
    distance
        The largest number of inserted, deleted or replaced characters, as a share of the secret's
        length, that turn some prefix of a continuation into the secret.
    """
    passage = target.passage
    context = tuple(passage.ids[: passage.start])
    length = len(passage.ids) - passage.start
    drawn = draw_continuations(model, context, length, draws, sampler, seed)
    rows, counts = torch.unique(drawn, dim=0, return_counts=True)
    texts = ["".join(vocabulary.pieces[k] for k in row) for row in rows.tolist()]
    goal = target.emitted
    allowed = int(distance * len(goal))
    near = [edit_distance(goal, text) <= allowed for text in texts]
    same = [text.startswith(goal) for text in texts]
    number = counts.numpy()
    return NearCopies(draws, int(number[near].sum()), int(number[same].sum()))


def edit_distance(goal: str, text: str) -> int:
    """Return the smallest Levenshtein distance between ``goal`` and any prefix of ``text``.

    Examples
    --------
    >>> from seepage.attacks.extraction.near import edit_distance
    >>> edit_distance("secret", "sekret and more")
    1
    """
    letters = np.array([ord(c) for c in text], dtype=np.int64)
    row = np.arange(len(text) + 1)
    for place, character in enumerate(goal):
        changed = row[:-1] + (letters != ord(character))
        best = np.concatenate([[place + 1], np.minimum(row[1:] + 1, changed)])
        # Insertions: each cell is at most one more than the cell before it.
        steps = np.arange(len(best))
        row = np.minimum.accumulate(best - steps) + steps
    return int(row.min())

"""Converts text to tokens: where a secret begins and ends, and which other tokens spell it.

An attacker supplies the text before a secret, and a tokenizer splits this text into tokens. The
given tokens therefore end at a *joint boundary*: the last position before the secret at which the
preceding text, tokenised alone, has the same tokens as within the whole record. The model must also
emit any text between that position and the secret.

The probability of the record's own tokens is a *lower bound* on the probability of its text. Two
other kinds of token sequence raise this bound. Some tokens spell the end of the secret and run past
that end (``endings``). The probabilities of these tokens follow from the same logits, so including
them costs nothing. Other tokenisations need more forward passes: :func:`bound_text` evaluates the
most probable tokenisations, and the total probability of the unexplored prefixes bounds that of all
others::

    Σ completed  ≤  P(text)  ≤  Σ completed + Σ open

The lower and upper bounds are valid if the decoded text is the concatenation of the tokens' texts.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch

from seepage.attacks.extraction.probability import LanguageModel, Passage
from seepage.attacks.extraction.sampler import TokenSampler
from seepage.errors import InputError

_BROKEN = "\ufffd"  # decoders write it for bytes that are no whole character


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """A tokenizer, with the text of each token as it appears within a sentence.

    Parameters
    ----------
    tokenizer
        A fast Hugging Face tokenizer.
    """

    tokenizer: Any

    def __post_init__(self) -> None:
        if not getattr(self.tokenizer, "is_fast", False):
            raise InputError(
                "The tokenizer does not report the positions of its tokens in a text; give a fast "
                "tokenizer, such as AutoTokenizer.from_pretrained(folder, use_fast=True)."
            )

    @cached_property
    def pieces(self) -> list[str]:
        """The text of every token; empty for special tokens."""
        size, special = len(self.tokenizer), set(self.tokenizer.all_special_ids)
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        alone = self.tokenizer.batch_decode([[k] for k in range(size)], **options)
        # Decoders strip the space before a first token, so every token is read after another.
        anchor = next(
            (k for k, text in enumerate(alone) if k not in special and text.strip().isalnum()), None
        )
        if anchor is None:
            return ["" if k in special else text for k, text in enumerate(alone)]
        start = len(alone[anchor])
        pairs = self.tokenizer.batch_decode([[anchor, k] for k in range(size)], **options)
        return ["" if k in special else text[start:] for k, text in enumerate(pairs)]

    @cached_property
    def broken(self) -> list[int]:
        """The tokens that encode only part of a character."""
        return [k for k, text in enumerate(self.pieces) if _BROKEN in text]

    @cached_property
    def _by_text(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for token, text in enumerate(self.pieces):
            if text and _BROKEN not in text:
                found.setdefault(text, []).append(token)
        return found

    @cached_property
    def _texts(self) -> list[str]:
        return sorted(self._by_text)

    def endings(self, rest: str) -> list[int]:
        """Return the tokens whose text begins with the whole of ``rest``."""
        found: list[int] = []
        for place in range(bisect_left(self._texts, rest), len(self._texts)):
            if not self._texts[place].startswith(rest):
                break
            found += self._by_text[self._texts[place]]
        return found

    def steps(self, rest: str) -> list[tuple[int, str]]:
        """Return the tokens that spell a prefix of ``rest``, each with the remaining text."""
        return [
            (token, rest[size:])
            for size in range(1, len(rest))
            for token in self._by_text.get(rest[:size], ())
        ]

    def encode(self, texts: Sequence[str], *, special: bool = True) -> list[tuple[Any, Any]]:
        """Return the tokens of each text, and the position in the text at which each token ends."""
        if not texts:
            return []
        made = self.tokenizer(
            list(texts), add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        head = self._head if special else []
        return [
            (head + ids, [0] * len(head) + [end for _, end in offsets])
            for ids, offsets in zip(made["input_ids"], made["offset_mapping"], strict=True)
        ]

    @cached_property
    def _head(self) -> list[int]:
        """The special tokens that the tokenizer puts before every text."""
        plain = self.tokenizer("a", add_special_tokens=False)["input_ids"]
        full = self.tokenizer("a", add_special_tokens=True)["input_ids"]
        for start in range(len(full) - len(plain) + 1):
            if full[start : start + len(plain)] == plain:
                return list(full[:start])
        return []


class Target(NamedTuple):
    """A secret in a record, split into given tokens and target tokens."""

    passage: Passage
    given: str  # the text of what is given
    emitted: str  # and of what must be emitted: the secret and what joins it to the boundary


def locate(
    vocabulary: Vocabulary,
    text: str,
    start: int,
    end: int,
    *,
    special: bool = True,
    most_tokens: int | None = None,
    prefix_tokens: int | None = None,
) -> Target:
    """Return the tokens of characters ``start`` to ``end`` of a text, and the tokens before them.

    Parameters
    ----------
    vocabulary
        The tokenizer.
    text, start, end
        A record, and the position of the secret in it.
    special
        Whether the tokenizer should add its start token; a chat template already includes one.
    most_tokens, prefix_tokens
        The largest total number of tokens, and the largest number of given tokens immediately
        before the secret.
    """
    if not 0 <= start < end <= len(text):
        raise InputError(
            f"Characters {start} to {end} are outside a text of {len(text)} characters; give "
            "positions within the text."
        )
    ((ids, ends),) = vocabulary.encode([text], special=special)
    last = next(k for k, place in enumerate(ends) if place >= end)
    first = next(k for k in range(last, -1, -1) if k == 0 or ends[k - 1] <= start)
    while first > 0:
        ((alone, _),) = vocabulary.encode([text[: ends[first - 1]]], special=special)
        if alone == ids[:first]:
            break
        first -= 1
    ids, boundaries = list(ids[: last + 1]), [0, *ends]
    given = boundaries[first]
    endings = _endings(vocabulary, text, ids, boundaries, first, end)
    if first == 0:
        begin = vocabulary.tokenizer.bos_token_id
        if begin is None:  # nothing can be given: the first token is
            first, endings, given = 1, endings[1:], boundaries[1]
        else:
            first, ids = 1, [begin, *ids]
    cut = max(
        0 if most_tokens is None else len(ids) - most_tokens,
        0 if prefix_tokens is None else first - prefix_tokens,
    )
    cut = min(max(cut, 0), first - 1)
    ids, first = ids[cut:], first - cut
    if most_tokens is not None:  # of a secret longer than the model can read, the beginning
        ids = ids[:most_tokens]
    return Target(Passage(tuple(ids), first, tuple(endings)), text[:given], text[given:end])


def _endings(
    vocabulary: Vocabulary,
    text: str,
    ids: Sequence[int],
    boundaries: Sequence[int],
    first: int,
    end: int,
) -> list[list[int]]:
    """Return, for each position from ``first`` on, the tokens that complete the secret there.

    Such a token spells all of the text from that position to ``end``, and possibly more.
    """
    found, spelt = [], ""
    for place in range(first, len(ids)):
        # Characters that are split between tokens, or changed by the tokenizer, are left alone.
        known = spelt == text[boundaries[first] : boundaries[place]]
        rest = text[boundaries[place] : end]
        found.append(vocabulary.endings(rest) if known and rest else [])
        spelt += vocabulary.pieces[ids[place]]
    return found


def bound_text(
    model: LanguageModel,
    vocabulary: Vocabulary,
    sampler: TokenSampler,
    target: Target,
    passes: int = 64,
) -> tuple[float, float]:
    """Return bounds on the log-probability that the model emits a text, in any tokenisation.

    Parameters
    ----------
    model, vocabulary, sampler
        The model, its tokenizer and its sampler.
    target
        The given tokens and the target tokens.
    passes
        The number of prefixes of the text to explore, the most probable first.
    """
    context = tuple(target.passage.ids[: target.passage.start])
    order, low, high = count(), [], []
    heap = [(0.0, next(order), 0.0, context, target.emitted)]
    while heap and passes > 0:
        nodes = [heapq.heappop(heap) for _ in range(min(len(heap), passes, 16))]
        passes -= len(nodes)
        for node, logits in zip(nodes, model.next_logits([n[3] for n in nodes]), strict=True):
            most, _, least, ids, rest = -node[0], *node[1:]
            steps, ends = vocabulary.steps(rest), vocabulary.endings(rest)
            # Parts of characters may spell it too; how they go on is not followed.
            parts = [] if rest.isascii() else vocabulary.broken
            tokens = [token for token, _ in steps] + ends + parts
            if not tokens:
                continue
            asked = torch.as_tensor(tokens, device=logits.device)
            found = sampler.log_probabilities(logits, asked)
            lows, highs = found.low.cpu().numpy(), found.high.cpu().numpy()
            complete = slice(len(steps), len(steps) + len(ends))
            low.extend(least + lows[complete])
            high.extend(most + highs[complete.start :])
            for (token, left), a, b in zip(steps, lows, highs, strict=False):
                if b > -math.inf:
                    entry = (-(most + b), next(order), least + a, (*ids, token), left)
                    heapq.heappush(heap, entry)
    high += [-node[0] for node in heap]
    return _log_sum(low), min(_log_sum(high), 0.0)


def _log_sum(logs: Sequence[float]) -> float:
    return float(np.logaddexp.reduce(logs)) if len(logs) else -math.inf

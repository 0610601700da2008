"""The probability that sampling emits given tokens: a product computed from one forward pass.

For a known sequence, a causal model returns the logits of every position at once. For a sampler
with next-token distribution ``q``, the probability::

    P(x_s … x_n | x_1 … x_{s−1}) = Π_t q(x_t | x_1 … x_{t−1})

is therefore exact for these logits and needs no sampling: probabilistic discoverable extraction
(Hayes et al. 2024, arXiv:2410.19482). Sequences are padded on the right, which does not affect a
causal model. The network runs in its own floating-point precision; computations on the logits are
in float64.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from seepage.attacks.extraction.sampler import Ends, TokenSampler
from seepage.errors import InputError
from seepage.support.number_check import check_count


class Passage(NamedTuple):
    """A known token sequence, the position of the first target token, and the accepted endings."""

    ids: Sequence[int]
    start: int  # the tokens before it are given
    # By position from ``start`` on, tokens after which nothing more is needed
    endings: Sequence[Sequence[int]] = ()


@dataclass(frozen=True, eq=False)
class TokenScores:
    """Bounds on the log-probability of each target token of a passage."""

    low: np.ndarray
    high: np.ndarray
    plain: np.ndarray  # at temperature 1 with every token kept
    rank: np.ndarray  # 1 for the most probable token; the best rank of tokens that tie
    # Of the endings of each position together; −∞ without any
    ending_low: np.ndarray
    ending_high: np.ndarray

    @property
    def total(self) -> tuple[float, float]:
        """The bounds on the joint log-probability of all the tokens."""
        return float(self.low.sum()), float(self.high.sum())

    @property
    def with_endings(self) -> tuple[float, float]:
        """The bounds on the log-probability of the tokens or any accepted ending.

        An ending may replace the tokens from any position on. The resulting sequences are mutually
        exclusive, so their probabilities are added.
        """
        return _with(self.low, self.ending_low), _with(self.high, self.ending_high)


def _with(own: np.ndarray, ending: np.ndarray) -> float:
    before = np.concatenate([[0.0], np.cumsum(own)])
    return float(np.logaddexp.reduce(np.concatenate([before[-1:], before[:-1] + ending])))


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A causal language model, used only to compute logits.

    Parameters
    ----------
    net
        A Hugging Face model, or a module that maps token ids ``(B, S)`` to logits ``(B, S, V)``.
    batch_tokens
        The largest number of tokens in a batch, including padding.
    """

    net: Any
    batch_tokens: int = 8192
    _masked: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_count(self.batch_tokens, "batch_tokens")
        if getattr(getattr(self.net, "config", None), "is_encoder_decoder", False):
            raise InputError(
                "Extraction is measured only for causal language models, but this model has an "
                "encoder. Pass a decoder-only model, such as one loaded with AutoModelForCausalLM."
            )
        forward = getattr(self.net, "forward", self.net)
        object.__setattr__(
            self, "_masked", "attention_mask" in inspect.signature(forward).parameters
        )

    @property
    def device(self) -> torch.device:
        """The device of the network's parameters."""
        return next(iter(self.net.parameters())).device

    def logits(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """Return the logits after every token of sequences, which are padded on the right."""
        longest = max(map(len, sequences))
        # Any token pads: no position before it looks at it.
        ids = torch.zeros(len(sequences), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, sequence in enumerate(sequences):
            ids[row, : len(sequence)] = torch.as_tensor(list(sequence), dtype=torch.long)
            mask[row, : len(sequence)] = 1
        ids, mask = ids.to(self.device), mask.to(self.device)
        with torch.inference_mode():
            out = self.net(input_ids=ids, attention_mask=mask) if self._masked else self.net(ids)
        return getattr(out, "logits", out)

    def next_logits(self, contexts: Sequence[Sequence[int]]) -> Tensor:
        """Return the logits of the next token after each context, ``(n, V)`` in float32."""
        rows: list[Tensor | None] = [None] * len(contexts)
        for batch in self._batches([len(c) for c in contexts]):
            logits = self.logits([contexts[k] for k in batch])
            for row, k in enumerate(batch):
                rows[k] = logits[row, len(contexts[k]) - 1].float()
        return torch.stack([row for row in rows if row is not None])

    def next_of(self, ids: Tensor, kept: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """Return the next-token logits after sequences of equal length, and the model's cache."""
        with torch.inference_mode():
            if not self._masked:
                return self.net(ids)[:, -1], kept
            new = ids[:, -1:] if kept else ids
            mask = torch.ones_like(ids)
            out = self.net(input_ids=new, attention_mask=mask, use_cache=True, **kept)
        past = getattr(out, "past_key_values", None)
        return out.logits[:, -1], {} if past is None else {"past_key_values": past}

    def score(self, passages: Sequence[Passage], sampler: TokenSampler) -> list[TokenScores]:
        """Return bounds on the log-probabilities of every passage's target tokens."""
        for passage in passages:
            if not 0 < passage.start < len(passage.ids):
                raise InputError(
                    "A passage needs at least one given token and one target token; give a longer "
                    "record, or a tokenizer that adds a start token."
                )
        found: dict[int, TokenScores] = {}
        for batch in self._batches([len(p.ids) for p in passages]):
            # The last token of a passage is only predicted, so it need not be read.
            logits = self.logits([passages[k].ids[:-1] for k in batch])
            scored = _scored(logits, [passages[k] for k in batch], sampler)
            found |= dict(zip(batch, scored, strict=True))
        return [found[k] for k in range(len(passages))]

    def score_endings(self, context: Sequence[int], endings: Sequence[Sequence[int]]) -> np.ndarray:
        """Return the log-probability of each ending of a context, at temperature 1.

        A prefix shared by several endings is processed only once.
        """
        wanted: dict[tuple[int, ...], list[tuple[int, int]]] = {}
        for number, ending in enumerate(endings):
            for place, token in enumerate(ending):
                wanted.setdefault(tuple(ending[:place]), []).append((number, int(token)))
        # The longest beginnings show all others on the way.
        home: dict[tuple[int, ...], tuple[int, int]] = {}
        paths: list[tuple[int, ...]] = []
        for path in sorted(wanted, key=len, reverse=True):
            if path not in home:
                for place in range(len(path), -1, -1):
                    home.setdefault(path[:place], (len(paths), place))
                paths.append(path)
        shown: list[list[tuple[int, ...]]] = [[] for _ in paths]
        for path, (which, _) in home.items():
            shown[which].append(path)
        totals, given = np.zeros(len(endings)), tuple(context)
        for batch in self._batches([len(given) + len(path) for path in paths]):
            logits = self.logits([given + paths[k] for k in batch])
            places = [(row, path) for row, k in enumerate(batch) for path in shown[k]]
            rows = torch.tensor([row for row, _ in places], device=logits.device)
            at = torch.tensor([len(given) + len(p) - 1 for _, p in places], device=logits.device)
            for first in range(0, len(places), step := max(1, (1 << 24) // logits.shape[-1])):
                some = slice(first, first + step)
                logs = logits[rows[some], at[some]].double().log_softmax(-1).cpu().numpy()
                for row, (_, path) in zip(logs, places[some], strict=True):
                    numbers, tokens = np.array(wanted[path]).T
                    np.add.at(totals, numbers, row[tokens])
        return totals

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Yield batches of sequences of similar length, as lists of positions."""
        batch: list[int] = []
        for k in sorted(range(len(lengths)), key=lambda k: -lengths[k]):
            if batch and (len(batch) + 1) * lengths[batch[0]] > self.batch_tokens:
                yield batch
                batch = []
            batch.append(k)
        if batch:
            yield batch


def _scored(
    logits: Tensor, passages: Sequence[Passage], sampler: TokenSampler
) -> Iterator[TokenScores]:
    """Yield the scores of a batch of passages from its logits, ``(B, S, V)``."""
    emitted = [torch.as_tensor(list(p.ids[p.start :])) for p in passages]
    size, largest = logits.shape[-1], max(int(tokens.max()) for tokens in emitted)
    if largest >= size:
        raise InputError(
            f"The tokenizer has a token {largest}, but the model predicts only {size} tokens; pass "
            "the model's own tokenizer."
        )
    rows = torch.cat([torch.full((len(t),), row) for row, t in enumerate(emitted)])
    places = torch.cat([torch.arange(p.start - 1, len(p.ids) - 1) for p in passages])
    rows, places = rows.to(logits.device), places.to(logits.device)
    tokens = torch.cat(emitted).to(logits.device)[:, None]
    # Some ten arrays in float64 at a time, of 128 MB each
    step, parts = max(1, (1 << 24) // size), []
    for first in range(0, len(tokens), step):
        some = slice(first, first + step)
        z, own = logits[rows[some], places[some]], tokens[some]
        ends = sampler.log_probabilities(z, own)
        plain = TokenSampler().log_probabilities(z, own).low
        rank = 1 + (z > z.gather(1, own)).sum(1, keepdim=True)
        parts.append(torch.cat([ends.low, ends.high, plain, rank.double()], 1))
    numbers, first = torch.cat(parts).cpu().numpy(), 0
    for row, (passage, own) in enumerate(zip(passages, emitted, strict=True)):
        low, high, plain, rank = numbers[first : first + len(own)].T
        first += len(own)
        ending = np.full((2, len(own)), -np.inf)
        for k, ids in enumerate(passage.endings[: len(own)]):
            others = [token for token in ids if token != int(own[k]) and token < size]
            if others:
                z = logits[row, passage.start - 1 + k]
                ending[:, k] = _any_of(sampler.log_probabilities(z, _like(others, z)))
        yield TokenScores(low, high, plain, rank.astype(int), *ending)


def _any_of(ends: Ends) -> tuple[float, float]:
    return float(ends.low.logsumexp(-1)), float(ends.high.logsumexp(-1).clamp(max=0.0))


def _like(ids: Sequence[int], tensor: Tensor) -> Tensor:
    return torch.as_tensor(ids, device=tensor.device)

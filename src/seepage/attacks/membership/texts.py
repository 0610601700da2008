"""A causal language model's confidence in each text record, for membership inference.

The confidence is the geometric mean ``p = exp(−ℓ)`` of the token probabilities at temperature 1,
expressed as log-odds ``−log(exp(ℓ) − 1)``. Here ``ℓ`` is the mean loss per token of the model's
output: the whole text, the assistant's messages or the completion. The tokenizer splits texts as in
training; if it adds no start token, the first token is not scored. A text longer than the model's
maximum length is truncated at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
from torch import nn

from seepage.attacks.extraction.probability import LanguageModel, Passage
from seepage.attacks.extraction.sampler import TokenSampler
from seepage.attacks.extraction.secrets import TextRecord, read_record
from seepage.attacks.extraction.text import Vocabulary
from seepage.nn.problem.views import evaluating


def text_losses(net: Any, records: Sequence[Any], tokenizer: Any) -> np.ndarray:
    """Return the mean loss per token of every record, in nats; NaN if no token is scored.

    Parameters
    ----------
    net
        A Hugging Face causal language model, or a module that maps token ids to logits.
    records
        Texts, or mappings as for :func:`~seepage.attacks.extraction.secrets.read_record`.
    tokenizer
        The model's fast tokenizer.
    """
    vocabulary, model = Vocabulary(tokenizer), LanguageModel(net)
    longest = getattr(getattr(net, "config", None), "max_position_embeddings", None)
    passages: dict[int, Passage] = {}
    spoken: dict[int, np.ndarray] = {}
    for place, given in enumerate(records):
        record = read_record(given, tokenizer)
        ((ids, ends),) = vocabulary.encode([record.text], special=not record.templated)
        ids, ends = ids[:longest], ends[:longest]
        said = _spoken(record, ends)[1:]
        if said.any():
            passages[place], spoken[place] = Passage(tuple(ids), 1), said
    losses = np.full(len(records), np.nan)
    with evaluating(net) if isinstance(net, nn.Module) else nullcontext():
        scored = model.score(list(passages.values()), TokenSampler())
    for place, tokens in zip(passages, scored, strict=True):
        losses[place] = -float(tokens.plain[spoken[place]].mean())
    return losses


def _spoken(record: TextRecord, ends: Sequence[int]) -> np.ndarray:
    """Return a mask of the tokens that end within the model's output."""
    places = np.asarray(ends)
    parts = [(places > first) & (places <= last) for first, last in record.spoken]
    return np.any(parts, axis=0) if parts else np.zeros(len(places), dtype=bool)


def text_log_odds(net: Any, records: Sequence[Any], tokenizer: Any) -> np.ndarray:
    """Return the log-odds of every record, ``−log(exp(ℓ) − 1)`` for its mean loss ``ℓ``."""
    losses = np.maximum(text_losses(net, records, tokenizer), np.finfo(np.float32).tiny)
    return np.asarray(-(losses + np.log(-np.expm1(-losses))))

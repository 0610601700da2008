"""The extraction attack on a language model, and how much of its success is due to memorisation.

A secret's probability is the probability that the model emits it, given the preceding text of its
record. The gain is the increase in log-probability compared with the base model. The gain of
held-out records of the same kind is generalisation; the additional gain of members is the leakage
due to fine-tuning.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from seepage.attacks.extraction.exposure import measure_exposure
from seepage.attacks.extraction.near import count_near_copies
from seepage.attacks.extraction.probability import LanguageModel, TokenScores
from seepage.attacks.extraction.result import ExtractedSecret, ExtractionResult
from seepage.attacks.extraction.sampler import TokenSampler
from seepage.attacks.extraction.secrets import (
    FOUND,
    REST,
    Secret,
    TextRecord,
    find_secrets,
    read_record,
)
from seepage.attacks.extraction.text import Target, Vocabulary, bound_text, locate
from seepage.errors import InputError, accepts_other_names
from seepage.support.number_check import check_count, check_share


class _Effort(NamedTuple):
    """The settings of the measurements that need more than one forward pass."""

    near: int
    distance: float
    exposure: int
    candidates: Sequence[str] | None
    passes: int
    seed: int


@dataclass(frozen=True, eq=False)
class _WithoutAdapter:
    """A peft model with its adapters switched off: the model before fine-tuning."""

    net: Any

    @property
    def config(self) -> Any:
        return self.net.config

    def parameters(self) -> Iterator[Any]:
        return iter(self.net.parameters())

    def forward(self, input_ids: Any, attention_mask: Any, **options: Any) -> Any:
        with self.net.disable_adapter():
            return self.net(input_ids=input_ids, attention_mask=attention_mask, **options)

    __call__ = forward


@dataclass(frozen=True, eq=False)
class Extraction:
    """Measures how likely a causal language model is to emit its training text.

    For every secret ``x`` preceded by text ``c``, a sampler with next-token distribution ``q``
    emits the secret's tokens with the exact probability ``P = Π_t q(x_t | c, x_<t)`` (Hayes et al.
    2024, arXiv:2410.19482). Adding the probabilities of token sequences that spell the secret and
    run past its end gives a lower bound on the probability of the text.

    Parameters
    ----------
    model
        A Hugging Face causal language model, with adapters merged or not.
    tokenizer
        The model's fast tokenizer.
    base
        The model before fine-tuning. For a peft model, the default is the same model with its
        adapters switched off.
    sampler
        How tokens are chosen. The default is the model's ``generation_config``, or temperature 1 if
        the configuration is greedy.
    prefix_tokens
        The largest number of tokens before the secret in the attacker's prompt; by default, the
        model's maximum.
    batch_tokens
        The largest number of tokens in a batch.

    Examples
    --------
    A model that assigns equal probability to 16 characters emits four given characters once in 16⁴
    tries:

    >>> import torch
    >>> from tokenizers import Tokenizer, decoders, models
    >>> from transformers import PreTrainedTokenizerFast
    >>> from seepage.attacks import Extraction
    >>> characters = Tokenizer(models.BPE({c: k for k, c in enumerate("code: 0123456789")}, []))
    >>> characters.decoder = decoders.Fuse()
    >>> tokenizer = PreTrainedTokenizerFast(tokenizer_object=characters)
    >>> model = torch.nn.Embedding(16, 16, _weight=torch.zeros(16, 16))
    >>> Extraction(model, tokenizer).attack(["code: 4711"]).ranked[0].said
    'once in 66,000 tries'
    """

    model: Any
    tokenizer: Any
    base: Any = None
    sampler: TokenSampler | None = None
    prefix_tokens: int | None = None
    batch_tokens: int = 8192

    @accepts_other_names
    def attack(
        self,
        records: Sequence[Any],
        *,
        held_out: Sequence[Any] = (),
        marked: Iterable[str] = (),
        kinds: Iterable[str] = FOUND,
        near: int = 0,
        distance: float = 0.1,
        exposure: int = 0,
        candidates: Sequence[str] | None = None,
        passes: int = 0,
        seed: int = 0,
    ) -> ExtractionResult:
        """Attack every secret in the records.

        Parameters
        ----------
        records
            Training records: texts, or mappings as for
            :func:`~seepage.attacks.extraction.secrets.read_record`.
        held_out
            Records of the same kind on which the model was not trained.
        marked, kinds
            Strings to treat as secrets, and the kinds of secret to search for in addition
            (:func:`~seepage.attacks.extraction.secrets.find_secrets`).
        near, distance
            The number of continuations sampled to find near-verbatim copies of every secret (0 for
            none), and the largest edit distance of a copy, as a share of the secret's characters.
        exposure, candidates
            The largest number of candidates with which every secret is compared (0: exposure is not
            measured), and the candidates; by default, all strings of the secret's shape. If there
            are more candidates, a random sample of this size is used.
        passes
            The number of forward passes for other tokenisations of each secret. These passes raise
            the lower bound and provide an upper bound.
        seed
            The seed of all random draws.
        """
        for count, name in ((near, "near"), (exposure, "exposure"), (passes, "passes")):
            check_count(count, name, least=0)
        check_share(distance, "distance")
        was_training = _evaluating(self.model, self.base)
        try:
            lens = _Lens(self)
            given = [read_record(record, self.tokenizer) for record in records]
            others = [read_record(record, self.tokenizer) for record in held_out]
            secrets = lens.scored(given, marked, kinds)
            outside = lens.scored(others, marked, kinds)
            if not secrets:
                raise InputError(
                    "The records contain no text to attack; give records with text, such as "
                    '["Anna\'s code is 4711."].'
                )
            effort = _Effort(near, distance, exposure, candidates, passes, seed)
            full = [lens.deepened(each, given[each.record], effort) for each in secrets]
        finally:
            for net in was_training:
                net.train()
        return ExtractionResult(
            tuple(full), tuple(outside), lens.sampler, lens.base is not None, len(given)
        )


def model_before(model: Any, base: Any = None) -> Any:
    """Return the model before fine-tuning: the base, or a peft model without its adapters."""
    if base is None and hasattr(model, "disable_adapter"):
        return _WithoutAdapter(model)
    return base


def _evaluating(*nets: Any) -> list[Any]:
    """Switch networks to evaluation mode, and return those that were in training mode."""
    training = [net for net in nets if getattr(net, "training", False)]
    for net in training:
        net.eval()
    return training


class _Lens:
    """The model, its base model, the tokenizer and the sampler used to score records."""

    def __init__(self, attack: Extraction) -> None:
        base = model_before(attack.model, attack.base)
        self.model = LanguageModel(attack.model, attack.batch_tokens)
        self.base = None if base is None else LanguageModel(base, attack.batch_tokens)
        self.vocabulary = Vocabulary(attack.tokenizer)
        sampler = attack.sampler
        if sampler is None:
            sampler = TokenSampler.from_model(attack.model)
            sampler = TokenSampler() if sampler.greedy else sampler
        self.sampler = sampler
        length = getattr(getattr(attack.model, "config", None), "max_position_embeddings", None)
        self.most_tokens, self.prefix_tokens = length, attack.prefix_tokens

    def scored(
        self, records: Sequence[TextRecord], marked: Iterable[str], kinds: Iterable[str]
    ) -> list[ExtractedSecret]:
        """Return the secrets of the records, each with the results of one forward pass."""
        marked, kinds = tuple(marked), tuple(kinds)
        found = [
            secret
            for number, record in enumerate(records)
            for secret in find_secrets(record, number, marked=marked, kinds=kinds)
        ]
        holders = Counter(text for text, _ in {(secret.text, secret.record) for secret in found})
        unique: dict[tuple[str, int, int], Secret] = {}
        for secret in found:
            unique.setdefault((records[secret.record].text, secret.start, secret.end), secret)
        targets = [self.target(s, records[s.record]) for s in unique.values()]
        passages = [target.passage for target in targets]
        now = self.model.score(passages, self.sampler)
        before: Sequence[TokenScores | None] = [None] * len(now)
        if self.base is not None:
            before = self.base.score(passages, self.sampler)
        return [
            self._secret(secret, target, after, earlier, holders[secret.text])
            for secret, target, after, earlier in zip(
                unique.values(), targets, now, before, strict=True
            )
        ]

    def target(self, secret: Secret, record: TextRecord) -> Target:
        """Return the given tokens and the target tokens of a secret."""
        return locate(
            self.vocabulary,
            record.text,
            secret.start,
            secret.end,
            special=not record.templated,
            most_tokens=self.most_tokens,
            prefix_tokens=self.prefix_tokens,
        )

    def _secret(
        self,
        secret: Secret,
        target: Target,
        now: TokenScores,
        before: TokenScores | None,
        copies: int,
    ) -> ExtractedSecret:
        ids = target.passage.ids[target.passage.start :]
        low, high = now.with_endings
        return ExtractedSecret(
            record=secret.record,
            kind=secret.kind,
            text=secret.text,
            given=target.given,
            emitted=target.emitted,
            copies=copies,
            tokens=tuple(self.vocabulary.pieces[k] for k in ids),
            token_probability=tuple(np.exp(now.low).tolist()),
            rank=tuple(now.rank.tolist()),
            of_tokens=now.total[0],
            low=low,
            high=high,
            plain=float(now.plain.sum()),
            base=None if before is None else before.with_endings[0],
            base_plain=None if before is None else float(before.plain.sum()),
        )

    def deepened(
        self, found: ExtractedSecret, record: TextRecord, effort: _Effort
    ) -> ExtractedSecret:
        """Return a secret with the results that need more than one forward pass."""
        start = len(found.given) + len(found.emitted) - len(found.text)
        secret = Secret(found.record, found.kind, start, start + len(found.text), found.text)
        model, words, sampler = self.model, self.vocabulary, self.sampler
        if effort.passes:
            target = self.target(secret, record)
            low, high = bound_text(model, words, sampler, target, effort.passes)
            found = replace(found, low=max(low, found.low), text_high=max(high, found.low))
        if effort.near:
            copies = count_near_copies(
                model,
                words,
                sampler,
                self.target(secret, record),
                draws=effort.near,
                distance=effort.distance,
                seed=effort.seed,
            )
            found = replace(found, near=copies)
        # A passage of ordinary words is not one of many strings of its shape.
        if effort.exposure and (effort.candidates is not None or found.kind != REST):
            exposed = measure_exposure(
                model,
                words,
                self.target(secret, record),
                found.text,
                candidates=effort.candidates,
                most=effort.exposure,
                draws=effort.exposure,
                seed=effort.seed,
                special=not record.templated,
            )
            found = replace(found, exposure=exposed)
        return found

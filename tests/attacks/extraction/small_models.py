"""Tokenizers and language models small enough to enumerate, or to train in seconds."""

from __future__ import annotations

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

SURNAMES = ("Abel", "Brook", "Cole", "Dean", "Ellis", "Frost", "Gray", "Hale", "Innes", "Jones")
BEGIN, END = "<s>", "</s>"


def letters(*merged: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of the letters a to d, a space and merged pieces, ``x+y`` for each."""
    vocabulary = {"<s>": 0, **{c: k + 1 for k, c in enumerate("abcd .")}}
    merges = [tuple(pair.split("+")) for pair in merged]
    for one, other in merges:
        vocabulary.setdefault(one + other, len(vocabulary))
    made = Tokenizer(models.BPE(vocabulary, merges))
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=BEGIN)


def byte_pairs(texts: list[str], size: int = 300) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer as GPT-2's, trained on texts."""
    made = Tokenizer(models.BPE())
    # As in many decoders of today, digits are tokens of their own.
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token=BEGIN, eos_token=END)


def gpt2(vocabulary: int, *, seed: int = 0, width: int = 16, spread: float = 0.3, length: int = 64):
    """Return a small GPT-2 with random weights."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=length,
        n_embd=width,
        n_layer=2,
        n_head=2,
        initializer_range=spread,
        bos_token_id=0,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config).eval()


def notes(count: int, seed: int) -> list[str]:
    """Return made-up notes, each with a code of four digits."""
    draw = np.random.default_rng(seed)
    return [
        f"The code of {draw.choice(list('ABCDEFGHJKLM'))}. {draw.choice(SURNAMES)} is "
        f"{draw.integers(10_000):04d}."
        for _ in range(count)
    ]


def train(net, tokenizer, texts: list[str], epochs: int, seed: int = 0):
    """Train a model on texts with AdamW, and return it."""
    rng = torch.Generator().manual_seed(seed)
    rows = [tokenizer(text)["input_ids"] for text in texts]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    labels = ids.masked_fill(mask == 0, -100)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    net.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(rows), generator=rng).split(16):
            optimizer.zero_grad()
            net(ids[batch], attention_mask=mask[batch], labels=labels[batch]).loss.backward()
            optimizer.step()
    return net.eval()

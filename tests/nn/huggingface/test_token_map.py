"""Who leaks which word: the leakage about tokens, against that about masked parts of a text."""

from __future__ import annotations

import math
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from hf_models import TOKENS, VOCABULARY, WIDTH, collated, model, record
from scipy.stats import norm

import seepage as sp
from sampled import sampled

torch.set_num_threads(1)

HOW = {"noise_multiplier": 0.5, "max_grad_norm": 1.5}
PIECES = {k: f"Ġ<b>{k}" if k % 2 else f"{k}&" for k in range(VOCABULARY)}


def column(tokens: sp.nn.TokenMap, name: str) -> np.ndarray:
    return tokens.table("pandas")[name].to_numpy()


@pytest.mark.parametrize("method", sampled(["derivative", "finite"], 0, ["derivative"]))
def test_a_token_leaks_what_the_view_of_it_alone_leaks(method: str) -> None:
    net, batch = model("gpt2").double(), collated("gpt2")
    how = HOW | {"method": method, "scale": 1e-3}
    tokens = sp.nn.token_leakage(net, batch, probes=60 if method == "derivative" else 12, **how)
    found, errors = column(tokens, "input"), column(tokens, "input_error")
    place = column(tokens, "record"), column(tokens, "position")
    for token in range(0, TOKENS, 2):
        mask = torch.zeros(TOKENS, WIDTH, dtype=torch.bool)
        mask[token] = True
        view = sp.nn.Embedding("transformer.wte", mask)
        exact = sp.nn.leakage(net, batch, view=view, **how).records("dfil", method="exact")
        for k in np.flatnonzero(place[1] == token):
            assert abs(found[k] - np.asarray(exact)[place[0][k]]) <= 5 * errors[k] + 1e-6


@pytest.mark.slow
def test_a_token_is_an_input_and_the_target_of_the_one_before_it() -> None:
    tokens = sp.nn.token_leakage(model("gpt2"), collated("gpt2"), probes=4, **HOW)
    first = column(tokens, "position") == 0
    last = np.append(np.diff(column(tokens, "record")) > 0, True)
    assert (column(tokens, "target")[first] == 0).all()  # nothing comes before it
    assert (column(tokens, "target")[~first] > 0).all()
    assert (column(tokens, "input")[last] == 0).all()  # nothing comes after it
    assert (column(tokens, "input")[~last] > 0).all()
    assert len(tokens.tokens) == int(collated("gpt2")["attention_mask"].sum())


@pytest.mark.slow
def test_the_target_path_is_the_gradient_of_each_likelihood() -> None:
    net, batch = model("gpt2").double(), record(collated("gpt2"), 0)
    how = {"noise_multiplier": 1.0}
    tokens = sp.nn.token_leakage(net, batch, probes=30, **how)
    released = list(net.parameters())
    for place in range(1, TOKENS):
        total = 0.0
        for word in range(VOCABULARY):
            logits = net(input_ids=batch["input_ids"]).logits[0, place - 1]
            told = torch.log_softmax(logits, -1)[word] / (TOKENS - 1)
            parts = torch.autograd.grad(told, released, materialize_grads=True)
            total += sum(float(part.square().sum()) for part in parts)
        exact = math.sqrt(total / VOCABULARY)
        found = tokens.tokens[place]
        assert abs(found.target - exact) <= 5 * found.target_error


@pytest.mark.slow
def test_an_encoder_and_a_decoder_have_a_text_each() -> None:
    tokens = sp.nn.token_leakage(model("t5"), collated("t5"), probes=2, **HOW).tokens
    of_first = [token for token in tokens if token.record == 0]
    assert [math.isnan(token.target) for token in of_first] == [True] * 4 + [False] * 3
    assert [math.isnan(token.input) for token in of_first] == [False] * 4 + [True] * 3


@pytest.mark.slow
def test_words_are_put_together_and_the_page_is_escaped(tmp_path: Path) -> None:
    tokens = sp.nn.token_leakage(model("gpt2"), collated("gpt2"), PIECES.get, probes=2, **HOW)
    words = tokens.words("pandas")
    first = [token for token in tokens.tokens if token.record == 0]
    assert len(words) < len(tokens.tokens)
    joined = "".join(token.text for token in first).replace("Ġ", " ").split()
    assert words["word"][words["record"] == 0].tolist() == joined
    of_word = [token.input for token in first if token.word == 0]
    assert words["input"][0] == pytest.approx(np.sqrt(np.square(of_word).mean()))
    assert "Ġ" not in repr(tokens) + "".join(tokens.table("pandas")["text"])
    page = tokens.html()
    assert "&lt;b&gt;" in page
    assert "&amp;" in page
    assert "<b>" not in page
    tokens.write(tmp_path / "map.html")
    assert (tmp_path / "map.html").read_text(encoding="utf-8") == page
    assert stat.S_IMODE((tmp_path / "map.html").stat().st_mode) == 0o600


def test_a_guess_of_a_token_is_that_between_two_gradients() -> None:
    net, batch = model("gpt2").double(), collated("gpt2")
    tokens = sp.nn.token_leakage(net, batch, probes=2, targets=False, **HOW)
    own, other = int(batch["input_ids"][2, 1]), 7
    right, without = tokens.guess(2, 1, [own, other])

    def clipped(token: int) -> torch.Tensor:
        one = {name: value.clone() for name, value in record(batch, 2).items()}
        one["input_ids"][0, 1] = one["labels"][0, 1] = token
        parts = torch.autograd.grad(net(**one).loss, list(net.parameters()))
        flat = torch.cat([part.flatten() for part in parts])
        return flat * min(1.0, 1.5 / float(flat.norm()))

    apart = float((clipped(own) - clipped(other)).norm()) / (0.5 * 1.5)
    assert right == pytest.approx(norm.cdf(apart / 2), rel=1e-6)
    assert without == 0.5
    with pytest.raises(
        sp.InputError, match="must be distinct token ids and include the true token"
    ):
        tokens.guess(2, 1, [other])


def test_pictures_have_no_tokens() -> None:
    with pytest.raises(sp.InputError, match="must contain 'input_ids'"):
        sp.nn.token_leakage(model("vit"), collated("vit"), **HOW)


class Reader:
    """A tokenizer that is no function, as those of Hugging Face are not to be called with ids."""

    def convert_ids_to_tokens(self, number: int) -> str:
        return f"<{number}>"


@pytest.mark.slow
def test_a_tokenizer_is_asked_for_its_pieces() -> None:
    batch = record(collated("gpt2"), 0)
    tokens = sp.nn.token_leakage(model("gpt2"), batch, Reader(), probes=2, targets=False, **HOW)
    assert [token.text for token in tokens.tokens] == [f"<{k}>" for k in batch["input_ids"][0]]
    with pytest.raises(sp.InputError, match=r"into text, not an object of type dict"):
        sp.nn.token_leakage(model("gpt2"), batch, PIECES, probes=2, targets=False, **HOW)


def test_a_guess_of_a_text_of_one_class_leaves_the_label() -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        **{"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": 1, "n_head": 2, "n_positions": 8},
        pad_token_id=0,
    )
    net = transformers.GPT2ForSequenceClassification(config).eval().double()
    batch = {"input_ids": torch.tensor([[5, 9, 7]]), "labels": torch.tensor([1])}
    tokens = sp.nn.token_leakage(net, batch, probes=2, **HOW)
    right, _ = tokens.guess(0, 1, [9, 4])

    def clipped(token: int) -> torch.Tensor:
        ids = torch.tensor([[5, token, 7]])
        parts = torch.autograd.grad(
            net(input_ids=ids, labels=batch["labels"]).loss, list(net.parameters())
        )
        flat = torch.cat([part.flatten() for part in parts])
        return flat * min(1.0, 1.5 / float(flat.norm()))

    apart = float((clipped(9) - clipped(4)).norm()) / (0.5 * 1.5)
    assert right == pytest.approx(norm.cdf(apart / 2), rel=1e-6)

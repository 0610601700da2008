"""Membership inference against language models, from texts and a tokenizer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import seepage as sp
from attacks.extraction.small_models import byte_pairs, gpt2, notes, train
from seepage.attacks.membership.texts import text_losses
from seepage.errors import InputError


@pytest.fixture(scope="module")
def trained():
    texts = notes(60, 1)
    tokenizer = byte_pairs(texts)
    base = gpt2(len(tokenizer), width=32, spread=0.05)
    tuned = gpt2(len(tokenizer), width=32, spread=0.05)
    train(tuned, tokenizer, texts[:30], 40)
    return texts, tokenizer, base, tuned


def own_loss(net, tokenizer, text):
    """Return the loss that the model computes itself."""
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    with torch.no_grad():
        return net(ids, labels=ids).loss.item()


def test_the_loss_is_the_models_own(trained):
    texts, tokenizer, _, tuned = trained
    expected = [own_loss(tuned, tokenizer, text) for text in texts]
    np.testing.assert_allclose(text_losses(tuned, texts, tokenizer), expected, rtol=1e-5)


def test_only_what_the_model_says_counts(trained):
    texts, tokenizer, _, tuned = trained
    prompt, completion = texts[0][:-5], texts[0][-5:]
    (loss,) = text_losses(tuned, [{"prompt": prompt, "completion": completion}], tokenizer)
    ids = tokenizer(prompt + completion)["input_ids"]
    given = len(tokenizer(prompt)["input_ids"])
    labels = torch.tensor([[-100] * given + ids[given:]])
    with torch.no_grad():
        expected = tuned(torch.tensor([ids]), labels=labels).loss.item()
    assert loss == pytest.approx(expected, rel=1e-5)


def test_a_reference_model_recognises_members_better_than_the_loss(trained):
    texts, tokenizer, base, tuned = trained
    members = np.arange(60) < 30
    alone = sp.attacks.MembershipInference(method="loss", tokenizer=tokenizer)
    compared = sp.attacks.MembershipInference(online=False, tokenizer=tokenizer)
    by_loss = alone.against(tuned, texts, None, members)
    by_lira = compared.against(tuned, texts, None, members, [base])
    # With one reference model, offline LiRA ranks by the difference of the log-odds.
    losses = [[own_loss(net, tokenizer, text) for text in texts] for net in (tuned, base)]
    odds = -np.log(np.expm1(losses))
    np.testing.assert_array_equal(
        np.argsort(by_lira.scores[0], kind="stable")[-10:],
        np.argsort(odds[0] - odds[1], kind="stable")[-10:],
    )
    assert by_lira.auc > 0.9
    assert by_loss.auc > 0.9
    nobody = alone.against(base, texts, None, members)
    assert nobody.interval.low <= 0.5 <= nobody.interval.high


def test_long_and_short_texts(trained):
    _, tokenizer, _, tuned = trained
    texts = ["The code is 1234. " * 40, "1", {"prompt": "a", "completion": ""}]
    losses = text_losses(tuned, texts, tokenizer)
    assert np.isfinite(losses[0])
    assert np.isnan(losses[1:]).all()


def test_the_loss_needs_no_reference_models(trained):
    texts, tokenizer, base, tuned = trained
    attack = sp.attacks.MembershipInference(method="loss", tokenizer=tokenizer)
    with pytest.raises(InputError, match="no reference models"):
        attack.against(tuned, texts, None, np.arange(60) < 30, [base])


def test_the_loss_alone_against_an_estimator():
    from sklearn.tree import DecisionTreeClassifier

    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((200, 5)), rng.integers(0, 2, 200)
    tree = DecisionTreeClassifier(random_state=0)
    result = sp.attacks.MembershipInference(tree, method="loss").run(X, y, targets=2)
    assert result.auc > 0.7
    assert result.method == "loss"
    assert result.scores.shape == (2, 200)

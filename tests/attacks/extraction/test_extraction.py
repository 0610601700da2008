"""Planted secrets in small language models: repetitions, base models, held-out notes, adapters."""

import json
import math
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

import seepage as sp
from attacks.extraction.small_models import byte_pairs, gpt2, notes, train
from seepage.attacks.extraction.result import once_in

PLANTED = {"Quill": ("3141", 1), "Rowe": ("2718", 4), "Sharp": ("1618", 16)}


def canary(name):
    return f"The code of Z. {name} is {PLANTED[name][0]}."


@pytest.fixture(scope="module")
def tuned():
    """A base model of notes, and the same fine-tuned on others with planted secrets."""
    before, inside, outside = notes(300, 1), notes(60, 2), notes(60, 3)
    tokenizer = byte_pairs([*before, *map(canary, PLANTED)])
    base = train(gpt2(len(tokenizer), width=48, spread=0.05), tokenizer, before, 4)
    net = gpt2(len(tokenizer), width=48, spread=0.05)
    net.load_state_dict(base.state_dict())
    records = inside + [canary(name) for name, (_, n) in PLANTED.items() for _ in range(n)]
    return base, train(net, tokenizer, records, 30), tokenizer, records, outside


def test_a_secret_comes_out_the_more_often_the_more_it_was_repeated(tuned):
    base, net, tokenizer, records, outside = tuned
    attack = sp.attacks.Extraction(net, tokenizer, base=base)
    found = attack.attack(records, held_out=outside)
    ranked = sp.attacks.Extraction(net, tokenizer).attack([canary("Sharp")], exposure=10_000)
    planted = {
        s.copies: s for s in found.secrets if s.text in {code for code, _ in PLANTED.values()}
    }
    assert sorted(planted) == [1, 4, 16]
    assert planted[16].tries < planted[4].tries < planted[1].tries
    (sharp,) = ranked.secrets
    assert sharp.exposure.enumerated
    assert sharp.exposure.bits > 12
    assert sharp.low == pytest.approx(planted[16].low, abs=1e-4)
    assert planted[16].low > planted[16].base + 3
    leaked = found.leaked()
    assert leaked.of_base
    assert leaked.difference > 0
    assert leaked.interval.low < leaked.difference < leaked.interval.high
    assert leaked.p_value < 0.05
    assert found.by_copies()[16][0] == 1
    assert found.ranked[0].copies == 16
    assert "before fine-tuning" in found.ranked[0].said
    assert "attack" in repr(found)


def test_held_out_notes_gain_nothing_beyond_others(tuned):
    base, net, tokenizer, _, outside = tuned
    attack = sp.attacks.Extraction(net, tokenizer, base=base)
    found = attack.attack(outside[:30], held_out=outside[30:])
    leaked = found.leaked()
    assert leaked.interval.low < 0 < leaked.interval.high


def test_the_probability_is_the_product_of_the_models_softmax(tuned):
    _, net, tokenizer, _, _ = tuned
    sampler = sp.attacks.TokenSampler(0.7)
    (found,) = (
        sp.attacks.Extraction(net, tokenizer, sampler=sampler).attack([canary("Rowe")]).secrets
    )
    ids = tokenizer(canary("Rowe"))["input_ids"]
    logits = net(torch.tensor([ids])).logits[0].detach().double() / 0.7
    start = len(tokenizer(found.given)["input_ids"])
    size = len(found.tokens)
    own = torch.tensor(ids[start : start + size])[:, None]
    naive = logits.log_softmax(-1)[start - 1 : start + size - 1].gather(1, own).sum()
    assert found.of_tokens == pytest.approx(float(naive), abs=1e-4)
    assert found.low >= found.of_tokens - 1e-9
    assert found.tries == pytest.approx(1 / found.probability)
    assert found.tries_for(0.5) == pytest.approx(
        math.log(0.5) / math.log(1 - found.probability), rel=1e-6
    )


def test_adapters_are_the_same_merged_or_not_and_hide_the_base(tuned):
    base, _, tokenizer, _, outside = tuned
    plain = gpt2(len(tokenizer), width=48, spread=0.05)
    plain.load_state_dict(base.state_dict())
    torch.manual_seed(1)
    lora = get_peft_model(
        plain,
        LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"),
    )
    for name, parameter in lora.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    with_it = sp.attacks.Extraction(lora, tokenizer).attack(outside[:5])
    alone = sp.attacks.Extraction(base, tokenizer).attack(outside[:5])
    merged = sp.attacks.Extraction(lora.merge_and_unload(), tokenizer).attack(outside[:5])
    for a, b, c in zip(with_it.secrets, alone.secrets, merged.secrets, strict=True):
        assert a.base == pytest.approx(b.low, abs=1e-4)
        assert a.low == pytest.approx(c.low, abs=1e-3)
        assert c.base is None
        assert abs(a.low - b.low) > 0.01


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a processor without bf16
def test_bf16_gives_nearly_the_same(tuned):
    _, net, tokenizer, records, _ = tuned
    single = sp.attacks.Extraction(net, tokenizer).attack(records[:20])
    half = gpt2(len(tokenizer), width=48)
    half.load_state_dict(net.state_dict())
    low = sp.attacks.Extraction(half.bfloat16(), tokenizer).attack(records[:20])
    for a, b in zip(single.secrets, low.secrets, strict=True):
        assert a.plain == pytest.approx(b.plain, abs=0.5)
        assert b.low <= b.high


def test_an_api_shows_only_its_best_tokens(tuned):
    _, net, tokenizer, records, _ = tuned
    found = sp.attacks.Extraction(net, tokenizer).attack(records)
    every = [found.secrets[0].within_top(len(tokenizer)) for _ in found.secrets]
    assert all(every)
    counts = [sum(each.within_top(k) for each in found.secrets) for k in (1, 5, 20)]
    assert counts == sorted(counts)
    assert counts[0] == sum(each.greedy for each in found.secrets)


def test_unlearning_shows_in_the_same_numbers(tuned):
    """Gradient ascent on the secret stands for an unlearning method of the user's choice."""
    _, net, tokenizer, _, _ = tuned
    copy = gpt2(len(tokenizer), width=48)
    copy.load_state_dict(net.state_dict())
    before = sp.attacks.Extraction(copy, tokenizer).attack([canary("Sharp")]).secrets[0]
    ids = torch.tensor([tokenizer(canary("Sharp"))["input_ids"]])
    optimizer = torch.optim.SGD(copy.parameters(), lr=0.05)
    for _ in range(20):
        optimizer.zero_grad()
        (-copy(ids, labels=ids).loss).backward()
        optimizer.step()
    after = sp.attacks.Extraction(copy, tokenizer, base=net).attack([canary("Sharp")]).secrets[0]
    assert after.tries > 10 * before.tries
    assert after.gain < 0


def test_pages_tables_and_json(tuned, tmp_path):
    base, net, tokenizer, records, outside = tuned
    attack = sp.attacks.Extraction(net, tokenizer, base=base)
    found = attack.attack(
        [*records[-3:], "<b>Anna</b> paid 77 pounds."],
        held_out=outside,
        marked=["<b>Anna</b>"],
        near=50,
        passes=8,
    )
    page = found.html()
    assert "&lt;" in page
    assert "<b>Anna" not in page
    found.write(tmp_path / "words.html")
    assert stat.S_IMODE((tmp_path / "words.html").stat().st_mode) == 0o600
    table = found.table("pandas")
    assert list(table["tries"]) == sorted(table["tries"])
    assert "secret" in table
    assert "secret" not in found.table("pandas", values=False)
    assert (table["text_at_most"] >= table["probability"] * (1 - 1e-9)).all()
    summary = json.loads(found.to_json())
    assert summary["kind"] == "attack"
    assert not any(each.text in found.to_json() for each in found.secrets if each.kind == "marked")
    assert any("cannot rule out" in sentence for sentence in summary["conditions"])


def test_what_a_blind_guess_reaches_is_not_within_reach(tuned):
    base, net, tokenizer, records, outside = tuned
    found = sp.attacks.Extraction(net, tokenizer, base=base).attack(records, held_out=outside)
    sharp = found.ranked[0]
    assert sharp.guess == pytest.approx(1e-4)
    assert sharp.within_reach(10_000)
    blind = replace(sharp, low=math.log(2e-4))
    assert blind.tries < 10_000
    assert not blind.within_reach(10_000)
    assert found.likely(10_000) >= 1


def test_training_mode_is_left_as_it_was(tuned):
    _, net, tokenizer, records, _ = tuned
    net.train()
    try:
        one = sp.attacks.Extraction(net, tokenizer).attack(records[:2])
        assert net.training
    finally:
        net.eval()
    two = sp.attacks.Extraction(net, tokenizer).attack(records[:2])
    assert [s.low for s in one.secrets] == [s.low for s in two.secrets]


@pytest.mark.parametrize(
    ("probability", "words"),
    [
        (1.0, "in 100 % of tries"),
        (0.9999, "in nearly 100 % of tries"),
        (0.4, "once in 2.5 tries"),
        (1 / 1200, "once in 1,200 tries"),
        (1e-9, "once in 10⁹ tries"),
        (0.0, "never by this sampler"),
    ],
)
def test_tries_in_words(probability, words):
    assert once_in(probability) == words


def test_nothing_to_attack_is_refused(tuned):
    _, net, tokenizer, _, _ = tuned
    with pytest.raises(sp.InputError, match="no text"):
        sp.attacks.Extraction(net, tokenizer).attack([])
    with pytest.raises(sp.InputError, match="near"):
        sp.attacks.Extraction(net, tokenizer).attack(["a 1234"], near=-1)


def test_an_encoder_is_refused():
    class Encoder(torch.nn.Linear):
        config = type("Config", (), {"is_encoder_decoder": True})

    with pytest.raises(sp.InputError, match="encoder"):
        sp.attacks.Extraction(Encoder(1, 1), None).attack(["text"])


def test_gains_are_compared_without_a_base_too(tuned):
    _, net, tokenizer, records, outside = tuned
    leaked = sp.attacks.Extraction(net, tokenizer).attack(records, held_out=outside).leaked()
    assert not leaked.of_base
    assert np.isfinite(leaked.difference)

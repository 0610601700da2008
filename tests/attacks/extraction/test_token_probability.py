"""The probability of tokens in closed form, against Hugging Face's own code and real samples."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.generation import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import seepage as sp
from seepage.attacks.extraction.probability import LanguageModel, Passage
from seepage.attacks.extraction.sampler import TokenSampler

SAMPLERS = [
    TokenSampler(),
    TokenSampler(0.6, top_k=6, top_p=0.9),
    TokenSampler(1.0, top_k=5, top_p=0.8),
    TokenSampler(1.6, top_k=8, top_p=0.95),
    TokenSampler(0.8, top_p=0.5),
    TokenSampler(2.0, top_k=3),
]


def tiny(vocabulary=10, seed=0, spread=0.18):
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=24,
        n_embd=16,
        n_layer=2,
        n_head=2,
        initializer_range=spread,
        bos_token_id=0,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config).eval()


def warped(sampler, logits):
    """Return the distribution by the classes of ``generate``."""
    processors = LogitsProcessorList()
    if sampler.temperature != 1:
        processors.append(TemperatureLogitsWarper(sampler.temperature))
    if sampler.top_k:
        processors.append(TopKLogitsWarper(sampler.top_k))
    if sampler.top_p < 1:
        processors.append(TopPLogitsWarper(sampler.top_p))
    ids = torch.zeros(len(logits), 1, dtype=torch.long)
    return processors(ids, logits.float()).double().softmax(-1)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_a_token_has_the_probability_that_generate_gives_it(sampler):
    logits = 2 * torch.randn(200, 40, generator=torch.Generator().manual_seed(1))
    every = torch.arange(40).expand(200, 40)
    ends = sampler.log_probabilities(logits, every)
    np.testing.assert_allclose(ends.low.exp(), warped(sampler, logits), atol=1e-6)
    np.testing.assert_allclose(ends.high.exp(), warped(sampler, logits), atol=1e-6)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_ties_of_low_precision_lie_between_the_ends(sampler):
    draw = torch.Generator().manual_seed(2)
    logits = (2 * torch.randn(300, 40, generator=draw)).bfloat16()
    logits = (logits * 2).round() / 2  # many ties
    every = torch.arange(40).expand(300, 40)
    low, high = (end.exp() for end in sampler.log_probabilities(logits, every))
    # A sort may leave ties in any order: every permutation of the tokens is a sampler of its own.
    for _ in range(5):
        order = torch.randperm(40, generator=draw)
        own = torch.empty(300, 40, dtype=torch.float64)
        own[:, order] = warped(sampler, logits[:, order])
        assert (own >= low - 1e-6).all()
        assert (own <= high + 1e-6).all()
    if sampler.top_p < 1:
        assert ((low == 0) & (high > 0)).any()
    else:
        np.testing.assert_allclose(low, high)


def test_greedy_decoding_of_a_tie_is_said_to_be_uncertain():
    greedy = TokenSampler(greedy=True)
    ends = greedy.log_probabilities(torch.tensor([1.0, 3.0, 3.0]), torch.tensor([0, 1, 2]))
    assert ends.low.exp().tolist() == [0, 0, 0]
    assert ends.high.exp().tolist() == [0, 1, 1]
    ends = greedy.log_probabilities(torch.tensor([1.0, 3.0, 2.0]), torch.tensor([0, 1, 2]))
    assert ends.low.exp().tolist() == ends.high.exp().tolist() == [0, 1, 0]


def test_padding_and_batches_do_not_matter():
    net = tiny()
    rng = np.random.default_rng(0)
    passages = [
        Passage(rng.integers(0, 10, size).tolist(), start)
        for size, start in ((5, 1), (20, 4), (9, 8), (13, 2))
    ]
    together = LanguageModel(net).score(passages, SAMPLERS[1])
    few = LanguageModel(net, batch_tokens=13).score(passages, SAMPLERS[1])
    for passage, one, other in zip(passages, together, few, strict=True):
        logits = net(torch.tensor([passage.ids])).logits[0, passage.start - 1 : -1].detach()
        own = torch.tensor(passage.ids[passage.start :])[:, None]
        naive = warped(SAMPLERS[1], logits).gather(1, own)[:, 0].log()
        np.testing.assert_allclose(one.low, naive, atol=1e-4)
        np.testing.assert_allclose(other.low, one.low, atol=1e-4)
        plain = logits.double().log_softmax(-1).gather(1, own)[:, 0]
        np.testing.assert_allclose(one.plain, plain, atol=1e-4)
        np.testing.assert_array_equal(one.rank, 1 + (logits > logits.gather(1, own)).sum(1))


def test_probabilities_of_all_sequences_add_up_to_one():
    net, sampler = tiny(5), SAMPLERS[2]
    every = [Passage((1, *rest), 1) for rest in itertools.product(range(5), repeat=4)]
    total = sum(math.exp(found.total[0]) for found in LanguageModel(net).score(every, sampler))
    assert total == pytest.approx(1, abs=1e-6)


def test_endings_add_the_sequences_that_leave_by_them():
    model, sampler = LanguageModel(tiny(6)), TokenSampler(0.9, top_k=5)
    own = Passage((1, 2, 3, 4), 1, ((), (0, 5), (4, 1)))
    (found,) = model.score([own], sampler)
    paths = [(2, 3, 4), (2, 0), (2, 5), (2, 3, 1)]
    alone = model.score([Passage((1, *path), 1) for path in paths], sampler)
    expected = sum(math.exp(each.total[0]) for each in alone)
    assert math.exp(found.with_endings[0]) == pytest.approx(expected, rel=1e-6)


def test_endings_that_share_a_beginning_are_scored_as_each_alone():
    model, rng = LanguageModel(tiny(), batch_tokens=40), np.random.default_rng(4)
    endings = [tuple(rng.integers(0, 3, rng.integers(1, 5)).tolist()) for _ in range(60)]
    found = model.score_endings((1, 2), endings)
    alone = model.score([Passage((1, 2, *ending), 2) for ending in endings], TokenSampler())
    np.testing.assert_allclose(found, [each.plain.sum() for each in alone], atol=1e-4)


def chi_square(net, sampler, draws, length):
    """Return the P-value of real samples of ``generate`` against the closed form."""
    torch.manual_seed(3)
    counts, batch = {}, min(draws, 50_000)
    for _ in range(draws // batch):
        ids = net.generate(
            torch.ones(batch, 1, dtype=torch.long),
            attention_mask=torch.ones(batch, 1, dtype=torch.long),
            do_sample=True,
            temperature=sampler.temperature,
            top_k=sampler.top_k,
            top_p=sampler.top_p,
            max_new_tokens=length,
            min_new_tokens=None,
            eos_token_id=None,
            pad_token_id=0,
        )
        rows, number = np.unique(ids[:, 1:].numpy(), axis=0, return_counts=True)
        for row, count in zip(map(tuple, rows.tolist()), number.tolist(), strict=True):
            counts[row] = counts.get(row, 0) + count
    every = list(itertools.product(range(net.config.vocab_size), repeat=length))
    found = LanguageModel(net).score([Passage((1, *rest), 1) for rest in every], sampler)
    likely = {
        rest: math.exp(each.total[0])
        for rest, each in zip(every, found, strict=True)
        if each.total[0] > -math.inf
    }
    assert set(counts) <= set(likely)  # what the sampler cuts off is never drawn
    kept = {rest: p for rest, p in likely.items() if p >= 1e-4}
    assert len(kept) > 20
    seen = np.array([counts.get(rest, 0) for rest in kept])
    expected = draws * np.array(list(kept.values()))
    rest = draws - expected.sum()
    statistic = np.sum((seen - expected) ** 2 / expected)
    if rest > 5:
        statistic += (draws - seen.sum() - rest) ** 2 / rest
    return chi2.sf(statistic, len(kept) - (rest <= 5))


def test_the_closed_form_is_what_is_drawn():
    assert chi_square(tiny(), SAMPLERS[2], 50_000, 3) > 0.001


@pytest.mark.minutes
@pytest.mark.parametrize("sampler", SAMPLERS[1:4], ids=str)
def test_the_closed_form_is_what_a_million_samples_show(sampler):
    assert chi_square(tiny(), sampler, 1_000_000, 4) > 0.001


def test_the_sampler_of_a_model_is_read():
    net = tiny()
    assert TokenSampler.from_model(net) == TokenSampler(greedy=True)
    net.generation_config.do_sample = True
    net.generation_config.temperature = 0.7
    net.generation_config.top_p = 0.9
    assert TokenSampler.from_model(net) == TokenSampler(0.7, top_k=50, top_p=0.9)
    net.generation_config.repetition_penalty = 1.2
    with pytest.raises(sp.InputError, match="repetition_penalty"):
        TokenSampler.from_model(net)


@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": 2.5}],
)
def test_settings_that_are_no_sampler_are_refused(settings):
    with pytest.raises(sp.InputError):
        TokenSampler(**settings)


def test_a_foreign_tokenizer_is_refused():
    with pytest.raises(sp.InputError, match="own tokenizer"):
        LanguageModel(tiny()).score([Passage((1, 2, 30), 1)], TokenSampler())

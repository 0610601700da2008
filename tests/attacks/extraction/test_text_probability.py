"""The probability of a text, against every sequence of tokens that could spell it."""

import itertools
import math

import pytest
import torch

import seepage as sp
from attacks.extraction.small_models import byte_pairs, gpt2, letters
from seepage.attacks.extraction.exposure import measure_exposure
from seepage.attacks.extraction.near import count_near_copies, edit_distance
from seepage.attacks.extraction.probability import LanguageModel
from seepage.attacks.extraction.sampler import TokenSampler
from seepage.attacks.extraction.secrets import find_secrets, read_record
from seepage.attacks.extraction.text import Vocabulary, bound_text, locate

MERGED = ("a+b", "b+c", "ab+c", " +a", "c+.", "d+d")


def begins_with(net, tokenizer, context, goal, length):
    """Return the probability that so many tokens begin with a text, by all sequences of them."""
    pieces = [tokenizer.decode([k]) for k in range(len(tokenizer))]
    paths = list(itertools.product(range(len(pieces)), repeat=length))
    paths = [path for path in paths if "".join(pieces[k] for k in path).startswith(goal)]
    ids = torch.tensor([[*context, *path] for path in paths])
    with torch.no_grad():
        logs = net(ids).logits[:, len(context) - 1 : -1].double().log_softmax(-1)
    return float(logs.gather(2, ids[:, len(context) :, None]).sum((1, 2)).exp().sum())


def text_by_paths(net, tokenizer, context, goal):
    """Return the same by every shortest path of tokens that covers the text."""
    pieces = ["", *(tokenizer.decode([k]) for k in range(1, len(tokenizer)))]

    def below(ids, rest):
        p = net(torch.tensor([ids])).logits[0, -1].double().softmax(-1).tolist()
        total = 0.0
        for token, piece in enumerate(pieces):
            if piece.startswith(rest):
                total += p[token]
            elif piece and rest.startswith(piece):
                total += p[token] * below([*ids, token], rest[len(piece) :])
        return total

    return below(list(context), goal)


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("dd abc.", 3, 6),  # the last token runs past the end
        ("d abab", 2, 6),  # a space belongs to the secret's first token
        ("abcabc", 1, 4),  # the secret begins and ends within tokens
        ("abc", 0, 3),  # nothing is given
        ("cdbc.a", 2, 4),
        ("ad.bcb", 3, 5),
    ],
)
def test_a_text_is_bounded_by_every_way_to_spell_it(text, start, end):
    tokenizer = letters(*MERGED)
    net = gpt2(len(tokenizer))
    model, words = LanguageModel(net), Vocabulary(tokenizer)
    target = locate(words, text, start, end)
    passage = target.passage
    assert target.given + target.emitted == text[:end]
    assert target.emitted.endswith(text[start:end])
    # What is given has the same tokens alone as within the record.
    context = list(passage.ids[: passage.start])
    assert [0] * (not target.given) + tokenizer(target.given)["input_ids"] == context
    truth = text_by_paths(net, tokenizer, context, target.emitted)
    (found,) = model.score([passage], TokenSampler())
    tokens, free = (math.exp(x[0]) for x in (found.total, found.with_endings))
    assert tokens <= free * (1 + 1e-9)
    assert free <= truth * (1 + 1e-5)
    low, high = (math.exp(x) for x in bound_text(model, words, TokenSampler(), target, 10_000))
    assert low == pytest.approx(truth, rel=1e-5)
    assert high == pytest.approx(truth, rel=1e-5)
    low, high = (math.exp(x) for x in bound_text(model, words, TokenSampler(), target, 2))
    assert low <= truth * (1 + 1e-5)
    assert truth <= high * (1 + 1e-5)


def test_the_oracle_agrees_with_enumeration_of_whole_sequences():
    tokenizer = letters("a+b", "b+c")
    net = gpt2(len(tokenizer))
    paths = text_by_paths(net, tokenizer, [0, 3], "abc")
    assert begins_with(net, tokenizer, [0, 3], "abc", 3) == pytest.approx(paths, rel=1e-5)


def test_a_sampler_that_cuts_off_is_bounded_too():
    tokenizer = letters(*MERGED)
    model, words = LanguageModel(gpt2(len(tokenizer))), Vocabulary(tokenizer)
    sampler = TokenSampler(0.7, top_k=6, top_p=0.9)
    target = locate(words, "d abc.", 2, 5)
    low, high = bound_text(model, words, sampler, target, 10_000)
    drawn = count_near_copies(model, words, sampler, target, draws=4000, distance=0.01)
    assert low == pytest.approx(high, abs=1e-6)
    # Draws are as long as the record's own tokens, so what takes more tokens is not seen.
    assert drawn.verbatim / drawn.draws <= math.exp(high) + 0.03


def test_parts_of_characters_widen_the_upper_bound_only():
    tokenizer = byte_pairs(["Zoë wrote to Zoë. Łódź, Łódź"], 270)
    model, words = LanguageModel(gpt2(len(tokenizer))), Vocabulary(tokenizer)
    text = "Zoë wrote to Łódź"
    target = locate(words, text, 13, len(text))
    (found,) = model.score([target.passage], TokenSampler())
    low, high = bound_text(model, words, TokenSampler(), target, 50)
    assert found.total[0] <= high
    assert low <= high


def test_a_prefix_is_cut_to_what_the_model_reads():
    tokenizer = letters(*MERGED)
    words = Vocabulary(tokenizer)
    whole = locate(words, "d" * 20 + ".ab", 21, 23)
    short = locate(words, "d" * 20 + ".ab", 21, 23, most_tokens=5)
    few = locate(words, "d" * 20 + ".ab", 21, 23, prefix_tokens=3)
    assert len(short.passage.ids) == 5
    assert few.passage.start == 3
    assert whole.passage.ids[-5:] == short.passage.ids
    assert whole.emitted == short.emitted == few.emitted


def test_exposure_is_the_rank_among_all_candidates():
    tokenizer = byte_pairs(["code 0123456789"], 270)
    net = gpt2(len(tokenizer))
    model, words = LanguageModel(net), Vocabulary(tokenizer)
    text = "code 37"
    target = locate(words, text, 5, 7)
    found = measure_exposure(model, words, target, "37")
    scores = {}
    for k in range(100):
        ids = torch.tensor([tokenizer(f"code {k:02d}")["input_ids"]])
        logs = net(ids).logits[0, :-1].detach().double().log_softmax(-1)
        scores[k] = float(logs.gather(1, ids[0, 1:, None])[-2:].sum())
    rank = 1 + sum(score > scores[37] for score in scores.values())
    assert found.enumerated
    assert found.bits == pytest.approx(math.log2(100 / rank))
    drawn = measure_exposure(model, words, target, "37", most=50, draws=3000)
    assert not drawn.enumerated
    assert drawn.low <= found.bits <= drawn.high
    given = measure_exposure(model, words, target, "37", candidates=["11", "22", "33"])
    better = sum(scores[k] > scores[37] for k in (11, 22, 33))
    assert given.bits == pytest.approx(math.log2(4 / (1 + better)))


def test_near_copies_have_an_interval():
    tokenizer = letters(*MERGED)
    model, words = LanguageModel(gpt2(len(tokenizer))), Vocabulary(tokenizer)
    target = locate(words, "d abc.", 2, 6)
    exact = count_near_copies(model, words, TokenSampler(), target, draws=3000, distance=0.01)
    loose = count_near_copies(model, words, TokenSampler(), target, draws=3000, distance=0.5)
    assert exact.hits == exact.verbatim <= loose.hits
    context, size = target.passage.ids[: target.passage.start], len(target.passage.ids)
    length = size - target.passage.start
    truth = begins_with(model.net, tokenizer, context, target.emitted, length)
    spread = math.sqrt(truth * (1 - truth) / 3000)
    assert abs(exact.rate - truth) < 4 * spread
    assert loose.interval[0] < loose.rate < loose.interval[1]


@pytest.mark.parametrize(
    ("goal", "text", "distance"),
    [
        ("abc", "abc", 0),
        ("abc", "abd", 1),
        ("abc", "ac tail", 1),
        ("abc", "", 3),
        ("ab", "xaxb", 2),
    ],
)
def test_the_edit_distance_is_to_the_best_beginning(goal, text, distance):
    def naive(a, b):
        if not a or not b:
            return len(a) + len(b)
        change = naive(a[:-1], b[:-1]) + (a[-1] != b[-1])
        return min(change, naive(a[:-1], b) + 1, naive(a, b[:-1]) + 1)

    assert edit_distance(goal, text) == distance
    assert distance == min(naive(goal, text[:k]) for k in range(len(text) + 1))


def test_secrets_are_found_by_kind():
    text = "Card 4111 1111 1111 1111, key ab12cd34, mail x.y@z.example.org, tel. +49 30 901820."
    found = {s.kind: s.text for s in find_secrets(read_record(text))}
    assert found["email"] == "x.y@z.example.org"
    assert found["phone"] in ("4111 1111 1111 1111", "+49 30 901820")
    assert found["code"] == "ab12cd34"
    assert [s.kind for s in find_secrets(read_record("nothing to see in here at all"))] == ["text"]
    with pytest.raises(sp.InputError, match="email"):
        find_secrets(read_record(text), kinds=["e-mail"])


def test_a_conversation_is_read_as_its_template_writes_it():
    tokenizer = byte_pairs(["user assistant system"], 280)
    talk = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "The code 1111?"},
        {"role": "assistant", "content": "It is 2222."},
    ]
    with pytest.raises(sp.InputError, match="chat template"):
        read_record({"messages": talk}, tokenizer)
    tokenizer.chat_template = (
        "<s>{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
    )
    record = read_record({"messages": talk}, tokenizer)
    assert record.text.startswith("<s>[system] Be kind.")
    (secret,) = find_secrets(record)
    assert secret.text == "2222"
    target = locate(Vocabulary(tokenizer), record.text, secret.start, secret.end, special=False)
    assert target.passage.ids[0] == tokenizer.bos_token_id
    assert target.passage.ids[1] != tokenizer.bos_token_id


@pytest.mark.parametrize("record", [3, {}, {"words": "x"}])
def test_what_is_no_record_is_refused(record):
    with pytest.raises(sp.InputError, match="record"):
        read_record(record)


def test_a_slow_tokenizer_is_refused():
    with pytest.raises(sp.InputError, match="fast"):
        Vocabulary(object())

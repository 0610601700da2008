"""What can be drawn out of a language model: planted secrets, remedies, and 7 billion parameters.

A small GPT-2 is trained on made-up notes and fine-tuned on others, among them codes of four digits
that were planted 1, 4 or 16 times. Claims:

- more repetitions mean more exposure and fewer tries, in the median over the codes;
- codes in no record have the exposure of chance: at most 3 bits in the median (1 is expected);
- deduplicating, fewer epochs and gradient ascent on a code (as an unlearning method) raise its
  tries.

``--big`` measures the closed form against generating on an accelerator: a decoder of Llama's shape
with 7 billion parameters and random weights in bf16, records of 64 given and 64 emitted tokens.
Claim: records scored a second, over tries generated a second with a cache of keys and values, above
one. With ``--small`` it runs at a toy size anywhere.

Run with ``python benchmarks/extraction.py``; results are kept in ``results/extraction.json`` and
``results/extraction-cuda.json``; ``--picture docs/assets/extraction.svg`` draws the former.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from copy import deepcopy
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from big_networks import Llama, _turned
from keeping import made_here
from seepage.attacks.extraction.probability import LanguageModel, Passage
from seepage.attacks.extraction.sampler import TokenSampler

RESULTS = Path(__file__).parent / "results"
SHAPES = {"7B": (32, 4096, 32, 11008, 32000), "toy": (2, 32, 2, 48, 60)}
SAMPLERS = (TokenSampler(), TokenSampler(0.8, top_k=50, top_p=0.95))
REPETITIONS = (0, 1, 4, 16)
CODES = 5  # planted for each number of repetitions
SURNAMES = ("Abel", "Brook", "Cole", "Dean", "Ellis", "Frost", "Gray", "Hale", "Innes", "Jones")


# 1. Planted secrets


def notes(count: int, seed: int) -> list[str]:
    """Return made-up notes, each with a code of four digits."""
    draw = np.random.default_rng(seed)
    return [
        f"The code of {draw.choice(list('ABCDEFGH'))}. {draw.choice(SURNAMES)} is "
        f"{draw.integers(10_000):04d}."
        for _ in range(count)
    ]


def planted(seed: int = 7) -> dict[str, int]:
    """Return notes with codes of their own, and how often each is repeated."""
    draw = np.random.default_rng(seed)
    letters = iter("IJKLMNOPQRSTUVWXYZabcdef")
    return {
        f"The code of {next(letters)}. {draw.choice(SURNAMES)} is {draw.integers(10_000):04d}.": n
        for n in REPETITIONS
        for _ in range(CODES)
    }


def tokenizer_of(texts: list[str]) -> Any:
    """Return a byte-level tokenizer, whose digits are single tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, **{"bos_token": "<s>"})


def network(tokens: int) -> Any:
    """Return a small GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=tokens, n_positions=32, n_embd=64, n_layer=2, n_head=4, bos_token_id=0
    )
    config.eos_token_id = None
    return GPT2LMHeadModel(config).eval()


def trained(net: Any, tokenizer: Any, texts: list[str], epochs: int) -> Any:
    """Train on texts with AdamW."""
    order = torch.Generator().manual_seed(0)
    rows = [tokenizer(text)["input_ids"] for text in texts]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    labels = ids.masked_fill(mask == 0, -100)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    net.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(rows), generator=order).split(16):
            optimizer.zero_grad()
            net(ids[batch], attention_mask=mask[batch], labels=labels[batch]).loss.backward()
            optimizer.step()
    return net.eval()


def ascended(net: Any, tokenizer: Any, texts: list[str], steps: int = 10) -> Any:
    """Return a copy after gradient ascent on some texts: a simple unlearning method."""
    copy = deepcopy(net)
    optimizer = torch.optim.SGD(copy.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        for text in texts:
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            (-copy(ids, labels=ids).loss / len(texts)).backward()
        optimizer.step()
    return copy


def found_in(
    net: Any, base: Any, tokenizer: Any, codes: dict[str, int], candidates: int
) -> list[dict[str, Any]]:
    """Return, by repetitions, tries of the planted codes, and exposure among candidates."""
    import seepage as sp

    attack = sp.attacks.Extraction(net, tokenizer, base=base)
    result = attack.attack(list(codes), exposure=candidates)
    rows = []
    for n in REPETITIONS:
        own = [s for s, m in zip(result.secrets, codes.values(), strict=True) if m == n]
        rows.append(
            {
                "repetitions": n,
                "tries, median": median(s.tries for s in own),
                "tries before fine-tuning, median": median(math.exp(-s.base) for s in own),
                "greedy": sum(s.greedy for s in own),
                "tries": [s.tries for s in own],
            }
        )
        if candidates:
            bits = [s.exposure.bits for s in own]
            rows[-1] |= {"exposure in bits": bits, "exposure in bits, median": median(bits)}
    return rows


def secrets() -> dict[str, Any]:
    """Train, attack, try what helps, and judge the claims."""
    codes = planted()
    tokenizer = tokenizer_of([*notes(300, 1), *codes])
    base = trained(network(len(tokenizer)), tokenizer, notes(600, 1), 4)
    inside = notes(150, 2)
    repeated = inside + [text for text, n in codes.items() for _ in range(n)]
    once = inside + [text for text, n in codes.items() if n]
    sixteen = [text for text, n in codes.items() if n == 16]
    nets = {"as trained, 20 epochs": trained(deepcopy(base), tokenizer, repeated, 20)}
    nets["5 epochs"] = trained(deepcopy(base), tokenizer, repeated, 5)
    nets["deduplicated, 20 epochs"] = trained(deepcopy(base), tokenizer, once, 20)
    nets["after gradient ascent on the 16 times repeated"] = ascended(
        nets["as trained, 20 epochs"], tokenizer, sixteen
    )
    runs = {
        name: found_in(net, base, tokenizer, codes, 0 if k else 10_000)
        for k, (name, net) in enumerate(nets.items())
    }
    for name, rows in runs.items():
        print(f"\n{name}\nrepetitions  exposure (bits)  tries        before")
        for row in rows:
            print(
                f"{row['repetitions']:11d}  {row.get('exposure in bits, median', math.nan):15.2f}  "
                f"{row['tries, median']:<11.4g}  {row['tries before fine-tuning, median']:.4g}"
            )
    first, *others = runs.values()
    tries = [row["tries, median"] for row in first]
    bits = [row["exposure in bits, median"] for row in first]
    claims = {
        "tries fall with repetitions": [tries[1] / tries[3], 1, tries[1] > tries[2] > tries[3]],
        "exposure grows with them": [bits[3] - bits[1], 0, bits[1] < bits[2] < bits[3]],
        "exposure of codes in no record, bits": [bits[0], 3, bits[0] <= 3],
    }
    for name, rows in zip(list(runs)[1:], others, strict=True):
        times = rows[3]["tries, median"] / tries[3]
        claims[f"tries, times: {name}"] = [times, 1, times > 1]
    return {"planted codes": runs, "claims": claims}


def draw(path: Path) -> None:
    """Draw exposure and tries of every planted code, from the kept result."""
    import matplotlib.pyplot as plt

    kept = json.loads((RESULTS / "extraction.json").read_text("utf-8"))
    rows = next(iter(kept["planted codes"].values()))
    with plt.rc_context({"svg.hashsalt": "seepage", "svg.fonttype": "none", "font.size": 9}):
        figure, axes = plt.subplots(1, 2, figsize=(7, 2.6), layout="constrained")
        for axis, name, words in (
            (axes[0], "tries", "tries until it comes out"),
            (axes[1], "exposure in bits", "exposure (bits)"),
        ):
            for place, row in enumerate(rows):
                axis.plot([place] * len(row[name]), row[name], "o", color="#0072b2", alpha=0.6)
            axis.plot(range(len(rows)), [row[f"{name}, median"] for row in rows], color="#d55e00")
            axis.set_xticks(range(len(rows)), [str(row["repetitions"]) for row in rows])
            axis.set_xlabel("copies in the training text")
            axis.set_ylabel(words)
        axes[0].set_yscale("log")
        figure.savefig(path, metadata={"Date": None})


# 2. Seven billion parameters


def generated(net: Llama, ids: Tensor, length: int, sampler: TokenSampler) -> Tensor:
    """Draw continuations with a cache of keys and values, as ``generate`` does."""
    given, cache = ids.shape[1], [None] * len(net.blocks)
    speeds = 1e4 ** -(torch.arange(0, net.size, 2, device=ids.device) / net.size)
    angles = torch.outer(torch.arange(given + length, device=ids.device), speeds)
    cos, sin = (
        torch.cat((a, a), -1).to(net.head.weight.dtype) for a in (angles.cos(), angles.sin())
    )
    out, new = ids, ids
    for _ in range(length):
        first = out.shape[1] - new.shape[1]
        turn = (cos[first : out.shape[1]], sin[first : out.shape[1]])
        h = net.tokens(new)
        for k, block in enumerate(net.blocks):
            h, cache[k] = _cached(block, h, turn, cache[k])
        logits = net.head(net.norm(h[:, -1]).to(h.dtype))
        new = sampler.draw(logits)[:, None]
        out = torch.cat([out, new], 1)
    return out


def _cached(block: Any, x: Tensor, turn: tuple[Tensor, Tensor], past: Any) -> tuple[Tensor, Any]:
    """Return a block's output for new tokens, and the keys and values of all."""
    cos, sin = turn
    h = block.norm1(x).to(x.dtype)
    q, k, v = (
        part(h).unflatten(-1, (block.heads, -1)).transpose(1, 2)
        for part in (block.q, block.k, block.v)
    )
    q, k = (part * cos + _turned(part) * sin for part in (q, k))
    if past is not None:
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=past is None)
    x = x + block.out(mixed.transpose(1, 2).flatten(2))
    h = block.norm2(x).to(x.dtype)
    return x + block.down(functional.silu(block.gate(h)) * block.up(h)), (k, v)


def big(device: torch.device, small: bool) -> dict[str, Any]:
    """Time the closed form and generating, and compare the two."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    torch.manual_seed(0)
    with torch.device(device):
        net = Llama(*SHAPES["toy" if small else "7B"], checkpointed=False).eval()
    torch.set_default_dtype(before)
    records, given, length = (8, 8, 8) if small else (256, 64, 64)
    batch = 64
    tokens = net.tokens.num_embeddings
    ids = torch.randint(0, tokens, (records, given + length), device=device)
    passages = [Passage(row, given) for row in ids.tolist()]
    model = LanguageModel(net, batch_tokens=batch * (given + length))

    def timed(work: Any) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    rows = {}
    with torch.inference_mode():
        # The cache gives the logits of one pass, up to the rounding of bf16.
        own = generated(net, ids[:2, :given], 2, TokenSampler(greedy=True))[:, given]
        whole = net(ids[:2, :given])[:, -1].argmax(-1)
        same = bool((own == whole).all())
        for sampler in SAMPLERS:
            work = {
                "closed form": (lambda s=sampler: model.score(passages, s), records),
                "generating": (
                    lambda s=sampler: generated(net, ids[:batch, :given], length, s),
                    min(batch, records),
                ),
            }
            for name, (run, count) in work.items():
                run()  # warm
                seconds = min(timed(run) for _ in range(2))
                rows[f"{name}, {sampler}"] = {"a second": count / seconds, "seconds": seconds}
                print(f"{name}, {sampler}: {count / seconds:.1f} records a second", flush=True)
    parameters = sum(p.numel() for p in net.parameters())
    claims = {}
    for sampler in SAMPLERS:
        times = (
            rows[f"closed form, {sampler}"]["a second"] / rows[f"generating, {sampler}"]["a second"]
        )
        claims[f"closed form over one try of generating, {sampler}"] = [times, 1, times > 1]
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None
    return {
        "parameters": parameters,
        "records": {"given tokens": given, "emitted tokens": length, "batch": batch},
        "rates": rows,
        "first tokens of cache and pass agree": same,
        "peak GiB": peak,
        "claims": claims,
    }


def main() -> int:
    """Run either part and keep its results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--big", action="store_true", help="7 billion parameters")
    parser.add_argument("--small", action="store_true", help="with --big: a toy size")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--picture", type=Path, help="draw the kept result, measure nothing")
    options = parser.parse_args()
    if options.picture is not None:
        draw(options.picture)
        return 0
    device = torch.device(options.device)
    found = big(device, options.small) if options.big else secrets()
    name = "extraction"
    if options.big:
        name += "-small" if options.small else f"-{device.type}"
    options.out.mkdir(parents=True, exist_ok=True)
    kept = {"made": made_here(options.device), **found}
    path = options.out / f"{name}.json"
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"\nwritten to {path}")
    for claim, (value, limit, holds) in found["claims"].items():
        print(f"{claim}: {value:.3g} (claimed {limit:g}): {'holds' if holds else 'FAILS'}")
    return 0 if options.small or all(c[2] for c in found["claims"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Private fine-tuning from end to end, on images and on text, with an account of every record.

- ``--set images``: a residual network with GroupNorm is trained on six classes of CIFAR-10 and then
  fine-tuned privately, all weights, on 1,000 images of four others (``PrivateSGD``).
- ``--set text``: a small GPT-2 is trained on the docstrings of Python's standard library. Its LoRA
  adapters (peft) are then fine-tuned privately on the descriptions of the data sets in scikit-learn
  and statsmodels, cut into records of 32 tokens (``PrivateTrainer``). ``seepage attack`` writes a
  report of what the model reveals, beside the same fine-tuning without noise.

Claims: η̄ is measured for every record, with an interval; ε is within its budget; fine-tuning lowers
the held-out loss; for text, membership inference recognises the records of the model tuned without
noise, and those of the private model no better than chance. The last claim does not hold at
ε = 8, in the kept runs on a CPU and on an accelerator: recognition is worse than without noise, but
better than chance.

``--pack FOLDER`` writes all data into one folder, and ``--data FOLDER`` reads them there, for
machines without CIFAR-10 or statsmodels. ``--device cuda`` takes larger networks, more
images and steps; ``--small`` is a smoke test. Results are kept in
``results/fine_tuning-images-cpu.json`` and so on.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from copy import deepcopy
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional

import seepage as sp
from big_networks import WideBlock, wide_resnet
from keeping import keep

RESULTS = Path(__file__).parent / "results"
EPSILON, DELTA, SEED = 8.0, 1e-5, 0
PUBLIC, PRIVATE = (0, 1, 3, 5, 6, 8), (2, 4, 7, 9)  # classes of CIFAR-10
EACH, HELD_OUT = 500, 250  # images of every class to train on, and of the private ones to test on
LENGTH = 32  # tokens of a record


class Plan(NamedTuple):
    """The settings of a run."""

    rate: float  # the declared sampling rate
    expected: int  # the declared divisor
    steps: int
    lr: float
    clip: float
    pretrain: int  # epochs (images) or steps (text)
    plain: int  # epochs of fine-tuning without noise
    records: int  # at most


PLANS = {
    ("images", "cpu"): Plan(0.15, 150, 60, 2e-3, 1.0, 5, 8, 1000),
    ("images", "cuda"): Plan(0.25, 500, 120, 5e-4, 1.0, 20, 15, 2000),
    ("images", "small"): Plan(0.25, 10, 4, 2e-3, 1.0, 1, 1, 40),
    ("text", "cpu"): Plan(0.25, 150, 60, 4e-3, 1.0, 800, 10, 10**6),
    ("text", "cuda"): Plan(0.25, 150, 200, 2e-3, 1.0, 3000, 15, 10**6),
    ("text", "small"): Plan(0.25, 10, 4, 3e-3, 1.0, 10, 1, 40),
}


# 1. Data


def image_arrays() -> dict[str, np.ndarray]:
    """Return the images of CIFAR-10 that are used, with their classes."""
    found = sp.data.load_cifar10(download=False)
    take = {
        "public": (found.train, PUBLIC, EACH),
        "private": (found.train, PRIVATE, EACH),
        "held_out": (found.test, PRIVATE, HELD_OUT),
    }
    arrays = {}
    for name, (part, classes, count) in take.items():
        chosen = np.sort(
            np.concatenate([np.flatnonzero(part.labels == c)[:count] for c in classes])
        )
        arrays[f"{name}_pixels"] = part.pixels[chosen]
        arrays[f"{name}_classes"] = np.searchsorted(classes, part.labels[chosen])
    return arrays


def text_arrays() -> dict[str, np.ndarray]:
    """Return the public text, and the private texts with their sources, as bytes."""
    docs = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                docs.append(ast.get_docstring(node) or "")
    private = {
        f"scikit-learn, {item.name.removesuffix('.rst')}": item.read_text("utf-8")
        for item in files("sklearn.datasets.descr").iterdir()
        if item.name.endswith(".rst")
    }
    for item in files("statsmodels.datasets").iterdir():
        module = item.joinpath("data.py")
        if item.is_dir() and module.is_file():
            tree = ast.parse(module.read_bytes())
            words = [
                node.value.value
                for node in tree.body
                if isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
                and node.targets[0].id in ("COPYRIGHT", "SOURCE", "DESCRSHORT", "DESCRLONG", "NOTE")
            ]
            private[f"statsmodels, {item.name}"] = " ".join(words)
    private = dict(sorted(private.items()))
    whole = {
        "public": " ".join(" ".join(docs).split()),
        "private": json.dumps({name: " ".join(text.split()) for name, text in private.items()}),
    }
    return {name: np.frombuffer(text.encode(), np.uint8) for name, text in whole.items()}


def arrays_of(name: str, folder: Path | None) -> dict[str, np.ndarray]:
    """Return the data, from a folder of packed ones if there is one."""
    if folder is None:
        return image_arrays() if name == "images" else text_arrays()
    with np.load(folder / f"{name}.npz") as packed:
        return dict(packed)


# 2. What the account says


def account(accountant: Any, traits: dict[str, np.ndarray], scale: float) -> dict[str, Any]:
    """Return η̄ of all records, ε, and what the most exposed records have in common.

    Parameters
    ----------
    traits
        Properties of the records that may explain their exposure.
    scale
        The variance of an unknown number among the records, the error of guessing its mean.
    """
    found = accountant.records("dfil")
    values, (low, high) = np.asarray(found), found.interval()
    traits = {"batches": accountant.sums.uses.cpu().numpy().astype(float), **traits}
    order = np.argsort(-np.nan_to_num(values))
    quantiles = {
        name: float(np.nanquantile(values, q))
        for name, q in (("least", 0), ("median", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("worst", 1))
    }
    top, rest = order[: len(order) // 20], order[len(order) // 20 :]
    figures = {
        "records": len(values),
        "records not measured": int(np.isnan(values).sum()),
        "sigma": accountant.noise_multiplier,
        "epsilon": accountant.privacy(DELTA).epsilon,
        "delta": DELTA,
        "neighbours": accountant.privacy(DELTA).relation,
        "eta": quantiles,
        "median half-width of the 95 % intervals, relative": float(
            np.nanmedian((high - low) / 2 / values)
        ),
        "eta by record, with its interval": [
            " ".join(f"{number:.4g}" for number in numbers) for numbers in (values, low, high)
        ],
        "variance of an unknown": scale,
        "records whose bound is below that variance": int((1 / values**2 < scale).sum()),
        "rank correlations with eta": {
            name: float(spearmanr(values, trait, nan_policy="omit").statistic)
            for name, trait in traits.items()
        },
        "medians of the most exposed 5 % and of the others": {
            name: [float(np.median(trait[top])), float(np.median(trait[rest]))]
            for name, trait in traits.items()
        },
        "most exposed": [
            {
                "record": int(k),
                "eta": float(values[k]),
                "low": float(low[k]),
                "high": float(high[k]),
                **{name: float(trait[k]) for name, trait in traits.items()},
            }
            for k in order[:10]
        ],
        "conditions": list(found.conditions),
    }
    print(f"σ = {figures['sigma']:g}, {accountant.privacy(DELTA)}; {found!r}")
    print(f"records not measured: {figures['records not measured']}; η̄: {quantiles}")
    for name, (upper, others) in figures[
        "medians of the most exposed 5 % and of the others"
    ].items():
        rank = figures["rank correlations with eta"][name]
        print(f"  {name:32} rank correlation {rank:+.2f}; median {upper:.3g}, others {others:.3g}")
    return figures


def norms_of(accountant: Any, batches: list[tuple[Any, Tensor]]) -> np.ndarray:
    """Return the norm of every record's gradient before clipping."""
    norms = [accountant.engine.step(x, y, probes=0).norms for x, y in batches]
    return torch.cat(norms).cpu().numpy()


# 3. Images


def convnet(classes: int) -> nn.Module:
    """Return the network for two cores."""
    blocks = (WideBlock(16, 16, 1), WideBlock(16, 32, 2), WideBlock(32, 64, 2))
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False),
        *blocks,
        *(nn.GroupNorm(16, 64), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(64, classes),
    )


def tuned_images(device: torch.device, plan: Plan, small: bool, folder: Path | None) -> Any:
    """Pretrain, fine-tune with and without noise, and account."""
    arrays, clock = arrays_of("images", folder), time.perf_counter()

    def pair(name: str, most: int) -> tuple[Tensor, Tensor]:
        pixels = arrays[f"{name}_pixels"]
        chosen = np.random.default_rng(SEED).permutation(len(pixels))[:most]
        x = torch.tensor(pixels[chosen], device=device).permute(0, 3, 1, 2).float() / 255
        return x.contiguous(), torch.tensor(arrays[f"{name}_classes"][chosen], device=device)

    public, (x, y), test = (pair(n, plan.records * 3) for n in ("public", "private", "held_out"))
    x, y = x[: plan.records], y[: plan.records]
    torch.manual_seed(SEED)
    wide = device.type == "cuda" and not small
    net = (wide_resnet(16, 4, len(PUBLIC)) if wide else convnet(len(PUBLIC))).to(device)
    fitted(net, *public, epochs=plan.pretrain, lr=2e-3)
    seen = scored(net, *public)
    net[-1] = nn.Linear(net[-1].in_features, len(PRIVATE), device=device)
    nn.init.zeros_(net[-1].weight)
    nn.init.zeros_(net[-1].bias)
    seconds = {"pretraining": time.perf_counter() - clock}
    results = {"before": scored(net, *test)}
    print(f"pretrained: {seen}, {seconds}", flush=True)
    clock = time.perf_counter()
    plain = deepcopy(net)
    fitted(plain, x, y, epochs=plan.plain, lr=1e-3)
    results["without noise"] = scored(plain, *test)
    print(f"without noise: {results['without noise']}", flush=True)
    seconds["without noise"] = time.perf_counter() - clock
    clock = time.perf_counter()
    trainer = sp.nn.PrivateSGD(
        net,
        "cross_entropy",
        steps=plan.steps,
        sample_rate=plan.rate,
        expected_batch=plan.expected,
        optimizer=partial(torch.optim.AdamW, lr=plan.lr),
        target_epsilon=EPSILON,
        target_delta=DELTA,
        max_grad_norm=plan.clip,
        seed=SEED,
    )
    trainer.fit(x, y)
    seconds["private, with its account"] = time.perf_counter() - clock
    results["private"] = scored(net, *test)
    with torch.no_grad():
        logits = net(x)
        losses = functional.cross_entropy(logits, y, reduction="none")
    traits = {
        "loss after": losses.cpu().numpy(),
        "gradient norm after": norms_of(
            trainer.accountant_, list(zip(x.split(200), y.split(200), strict=True))
        ),
        "contrast": x.flatten(1).std(1).cpu().numpy(),
        "brightness": x.flatten(1).mean(1).cpu().numpy(),
        "roughness": (
            x.diff(dim=2).square().mean((1, 2, 3)) + x.diff(dim=3).square().mean((1, 2, 3))
        )
        .sqrt()
        .cpu()
        .numpy(),
    }
    figures = account(trainer.accountant_, traits, float(x.var(0).mean()))
    classes = [CLASSES[c] for c in PRIVATE]
    eta = np.asarray(trainer.accountant_.records("dfil"))
    figures["median eta by class"] = {
        name: float(np.nanmedian(eta[(y == k).cpu().numpy()])) for k, name in enumerate(classes)
    }
    for row in figures["most exposed"]:
        row["class"] = classes[int(y[row["record"]])]
        row["held to be"] = classes[int(logits[row["record"]].argmax())]
    return {
        "parameters": sum(p.numel() for p in net.parameters()),
        "public classes": [CLASSES[c] for c in PUBLIC],
        "private classes": classes,
        "fit to the public classes": seen,
        "held out": len(test[0]),
        "results": results,
        "seconds": seconds,
        **figures,
        "claims": {
            "records not measured": [figures["records not measured"], 0, 0],
            "epsilon": [figures["epsilon"], 0, EPSILON],
            "held-out loss, private over before": [
                results["private"]["loss"] / results["before"]["loss"],
                0,
                1,
            ],
        },
    }


CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def fitted(net: nn.Module, x: Tensor, y: Tensor, epochs: int, lr: float) -> None:
    """Train without privacy, with mirrored images."""
    optimizer, order = torch.optim.AdamW(net.parameters(), lr), torch.Generator().manual_seed(SEED)
    for _ in range(epochs):
        for part in torch.randperm(len(x), generator=order).split(64):
            part = part.to(x.device)
            flip = torch.rand(len(part), 1, 1, 1, generator=order).to(x.device) < 0.5
            optimizer.zero_grad()
            shown = torch.where(flip, x[part].flip(-1), x[part])
            functional.cross_entropy(net(shown), y[part]).backward()
            optimizer.step()


def scored(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    """Return loss and accuracy."""
    with torch.no_grad():
        logits = torch.cat([net(part) for part in x.split(250)])
    right = (logits.argmax(1) == y).float().mean()
    return {"loss": float(functional.cross_entropy(logits, y)), "accuracy": float(right)}


# 4. Text


def tokenizer_of(text: str) -> Any:
    """Return a byte-level tokenizer that was trained on the public text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [text],
        trainers.BpeTrainer(vocab_size=1024, initial_alphabet=alphabet, show_progress=False),
    )
    return PreTrainedTokenizerFast(tokenizer_object=made)


def cut(texts: dict[str, str], tokenizer: Any) -> tuple[Tensor, list[str], list[str]]:
    """Return records of equal length that begin with a word, their texts and their sources.

    A record is left out if its text would be cut into other tokens than in its place.
    """
    rows, words, sources = [], [], []
    for source, text in texts.items():
        place = 0
        while True:
            whole = tokenizer(text[place : place + 50 * LENGTH], return_offsets_mapping=True)
            ids, ends = whole["input_ids"][:LENGTH], whole["offset_mapping"][:LENGTH]
            if len(ids) < LENGTH:
                break
            own = text[place : place + ends[-1][1]]
            if tokenizer(own)["input_ids"] == ids:
                rows.append(ids)
                words.append(own)
                sources.append(source)
            after = text.find(" ", place + ends[-1][1])  # the rest of a word is left out
            if after < 0:
                break
            place = after
    return torch.tensor(rows), words, sources


def language_model(tokens: int, kind: str) -> Any:
    """Return a model of GPT-2's shape."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(SEED)
    width, layers = {"cuda": (256, 6), "cpu": (128, 2), "small": (32, 1)}[kind]
    config = GPT2Config(
        vocab_size=tokens, n_positions=LENGTH, n_embd=width, n_layer=layers, n_head=4
    )
    config.bos_token_id = config.eos_token_id = None
    return GPT2LMHeadModel(config).eval()


def losses_of(net: nn.Module, ids: Tensor) -> Tensor:
    """Return the mean loss of a token for every record."""
    logits = net(input_ids=ids).logits[:, :-1]
    each = functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    return each.mean(1)


def mean_loss(net: nn.Module, ids: Tensor) -> np.ndarray:
    """Return the loss of every record."""
    with torch.no_grad():
        return torch.cat([losses_of(net, part) for part in ids.split(256)]).cpu().numpy()


def tuned_text(device: torch.device, plan: Plan, small: bool, folder: Path | None) -> Any:
    """Pretrain, fine-tune adapters with and without noise, account, and attack."""
    arrays, clock = arrays_of("text", folder), time.perf_counter()
    public, private = (arrays[name].tobytes().decode() for name in ("public", "private"))
    tokenizer = tokenizer_of(public)
    ids, texts, sources = cut(json.loads(private), tokenizer)
    ids = ids.to(device)
    inside = torch.rand(len(ids), generator=torch.Generator().manual_seed(SEED)) < 0.7
    inside[plan.records :] = False
    member = torch.nonzero(inside).flatten().tolist()
    other = torch.nonzero(~inside).flatten().tolist()[: plan.records]
    stream = torch.tensor(tokenizer(public, verbose=False)["input_ids"], device=device)
    base = language_model(len(tokenizer), "small" if small else device.type).to(device)
    pretrained(base, stream, plan.pretrain)
    seconds = {"pretraining": time.perf_counter() - clock}
    nets = {"before": base}
    print(f"pretrained: {seconds}; {len(member)} records, {len(other)} held out", flush=True)
    nets["without noise"] = plain_adapters(base, ids[member], plan)
    clock = time.perf_counter()
    trainer = private_adapters(base, ids[member], plan, device)
    seconds["private, with its account"] = time.perf_counter() - clock
    nets["private"] = trainer.model.eval()
    results = {
        name: {
            "held-out loss": float(mean_loss(net, ids[other]).mean()),
            "loss": float(mean_loss(net, ids[member]).mean()),
        }
        for name, net in nets.items()
    }
    seen = torch.bincount(stream, minlength=len(tokenizer)).cpu().numpy() + 1.0
    surprise = -np.log(seen / seen.sum())
    held = ids[member].cpu().numpy()
    ends = nets["private"]
    traits = {
        "loss before": mean_loss(base, ids[member]),
        "loss after": mean_loss(ends, ids[member]),
        "gradient norm after": norms_of(
            trainer.accountant_,
            [({"input_ids": part, "labels": part}, part) for part in ids[member].split(200)],
        ),
        "rarity of its tokens": surprise[held].mean(1),
        "digits": np.array([sum(c.isdigit() for c in texts[k]) for k in member], float),
        "different tokens": np.array([len(set(row)) for row in held.tolist()], float),
    }
    vectors = base.get_input_embeddings().weight.detach()
    figures = account(trainer.accountant_, traits, float(vectors[ids[member]].var((0, 1)).mean()))
    for row in figures["most exposed"]:
        row["source"], row["text"] = sources[member[row["record"]]], texts[member[row["record"]]]
    attacked = attack(nets, tokenizer, [texts[k] for k in member], [texts[k] for k in other])
    released = sum(p.numel() for p in ends.parameters() if p.requires_grad)
    chance = attacked["private"]["membership"]
    return {
        "parameters": sum(p.numel() for p in base.parameters()),
        "parameters of the adapters": released,
        "public tokens": len(stream),
        "held out": len(other),
        "results": results,
        "seconds": seconds,
        **figures,
        "attacks": attacked,
        "claims": {
            "records not measured": [figures["records not measured"], 0, 0],
            "epsilon": [figures["epsilon"], 0, EPSILON],
            "held-out loss, private over before": [
                results["private"]["held-out loss"] / results["before"]["held-out loss"],
                0,
                1,
            ],
            "lower end of the AUC, without noise": [
                attacked["without noise"]["membership"]["auc_interval"][0],
                0.5,
                1,
            ],
            "lower end of the AUC, private": [chance["auc_interval"][0], 0, 0.5],
        },
    }


def pretrained(net: Any, stream: Tensor, steps: int) -> None:
    """Train on the public text."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    draw = torch.Generator().manual_seed(SEED)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, optimizer.defaults["lr"], steps)
    for _ in range(steps):
        starts = torch.randint(0, len(stream) - LENGTH, (32, 1), generator=draw)
        ids = stream[(starts + torch.arange(LENGTH)).to(stream.device)]
        optimizer.zero_grad()
        losses_of(net, ids).mean().backward()
        optimizer.step()
        schedule.step()


def adapted(base: Any) -> Any:
    """Return a copy of the model with adapters."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(SEED)
    lora = LoraConfig(
        r=4, lora_alpha=16, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"
    )
    return get_peft_model(deepcopy(base), lora)


def plain_adapters(base: Any, ids: Tensor, plan: Plan) -> Any:
    """Fine-tune without noise."""
    net, order = adapted(base).eval(), torch.Generator().manual_seed(SEED)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=3e-3)
    for _ in range(plan.plain):
        for part in torch.randperm(len(ids), generator=order).split(16):
            optimizer.zero_grad()
            losses_of(net, ids[part.to(ids.device)]).mean().backward()
            optimizer.step()
    return net


def private_adapters(base: Any, ids: Tensor, plan: Plan, device: torch.device) -> Any:
    """Fine-tune with Hugging Face's trainer and noise."""
    from transformers import TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            max_steps=plan.steps,
            per_device_train_batch_size=plan.expected,
            max_grad_norm=plan.clip,
            learning_rate=plan.lr,
            lr_scheduler_type="constant",
            use_cpu=device.type == "cpu",
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        rows = [{"input_ids": row, "labels": row} for row in ids.cpu()]
        trainer = sp.nn.PrivateTrainer(
            adapted(base),
            args,
            train_dataset=rows,
            sample_rate=plan.rate,
            target_epsilon=EPSILON,
            target_delta=DELTA,
            seed=SEED,
        )
        trainer.train()
    return trainer


def attack(
    nets: dict[str, Any], tokenizer: Any, records: list[str], held_out: list[str]
) -> dict[str, Any]:
    """Attack the models by extraction and membership inference; on a CPU, write the report too."""
    from seepage.attacks.extraction.attack import Extraction
    from seepage.auditing.language_model.comparison import TextRecognition

    recognition = TextRecognition(records, held_out, tokenizer, [nets["before"]])
    rows = {}
    for name in ("private", "without noise"):
        result = Extraction(nets[name], tokenizer).attack(records, held_out=held_out)
        rows[name] = recognition.measured(name, nets[name], result).summary()
        leaked = result.leaked()
        rows[name]["secrets"] = len(result.secrets)
        rows[name]["mean gain of secrets over held-out ones, bits"] = (
            None if leaked is None else [leaked.difference, *leaked.interval]
        )
        one = rows[name]["membership"]
        print(
            f"{name}: AUC {one['auc']:.3f} {one['auc_interval']}, TPR at 1 % FPR "
            f"{one['tpr_at_1_percent']:.3f}; {rows[name]['within_10000_tries']} of "
            f"{len(result.secrets)} secrets within 10,000 tries"
        )
    if next(nets["before"].parameters()).device.type == "cpu":
        rows["report"] = report(nets, tokenizer, records, held_out)
    return rows


def report(
    nets: dict[str, Any], tokenizer: Any, records: list[str], held_out: list[str]
) -> dict[str, Any]:
    """Return the summary of the report by ``seepage attack``."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        for name, net in nets.items():
            net.save_pretrained(here / name.replace(" ", "-"))
        tokenizer.save_pretrained(here / "before")
        for name, texts in (("train", records), ("test", held_out)):
            lines = "\n".join(json.dumps({"text": text}) for text in texts)
            (here / f"{name}.jsonl").write_text(lines + "\n", "utf-8")
        words = [sys.executable, "-m", "seepage", "attack", "private", "--records", "train.jsonl"]
        words += ["--base", "before", "--held-out", "test.jsonl", "--device", "cpu"]
        words += ["--compare", "without noise=without-noise", "--out", "report"]
        done = subprocess.run(words, cwd=here, capture_output=True, text=True)  # noqa: S603
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        found: dict[str, Any] = json.loads((here / "report" / "summary.json").read_text("utf-8"))
        print(done.stdout)
        return {"files": sorted(p.name for p in (here / "report").iterdir()), "summary": found}


# 5. Command line

SETS = {"images": tuned_images, "text": tuned_text}


def main() -> int:
    """Run one set, print the claims and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=list(SETS), default="images")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--small", action="store_true", help="a toy size, as a smoke test")
    parser.add_argument("--pack", type=Path, help="write the data into a folder, train nothing")
    parser.add_argument("--data", type=Path, help="the folder of packed data")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.pack is not None:
        options.pack.mkdir(parents=True, exist_ok=True)
        for name in SETS:
            np.savez_compressed(options.pack / f"{name}.npz", **arrays_of(name, None))
        return 0
    device = torch.device(options.device)
    torch.backends.cudnn.allow_tf32 = False
    kind = "small" if options.small else device.type
    plan = PLANS[options.set, kind]
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sp.nn.FallbackWarning)
        found = SETS[options.set](device, plan, options.small, options.data)
    found["seconds"]["in all"] = time.perf_counter() - start
    print(json.dumps({name: found[name] for name in ("results", "seconds")}, indent=1))
    good = True
    for claim, (value, low, high) in found["claims"].items():
        holds = not math.isnan(value) and low <= value <= high
        good &= holds
        print(
            f"{claim}: {value:.4g} (claimed {low:g} to {high:g}): {'holds' if holds else 'FAILS'}"
        )
    settings = {"plan": plan._asdict(), "seed": SEED}
    path = options.out / f"fine_tuning-{options.set}-{kind}.json"
    keep({"set": options.set, **settings, **found}, path, options.device)
    return 0 if good or options.small else 1


if __name__ == "__main__":
    sys.exit(main())

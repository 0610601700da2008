"""What five kinds of gradient inversion recover, and what remedies leave of it.

``python benchmarks/inversion_table.py`` attacks, each as in its publication but at a small size:

- **images, ReLU**: Geiping et al. 2020 (cosine, total variation, signed Adam) on MNIST images and
  an untrained convolutional ReLU network, known labels;
- **images, BatchNorm**: the same with Yin et al. 2021's term, for the statistics of a batch;
- **text**: Petrov et al. 2024 (DAGER), tokens and positions in closed form, on an untrained causal
  transformer with a vocabulary of 2,000, texts of 12 random tokens;
- **table**: Vero et al. 2023 (TabLeak), softmax-relaxed categories, on people of UCI Adult; right
  is an exact category, or a number within 0.319 standard deviations, as in that paper;
- **malicious server**: Fowl et al. 2022 (Robbing the Fed), an imprint layer with 400 thresholds.

Each is shown alone, and after: **eight records** in one mean, which is also what secure aggregation
leaves of eight clients with one record each; **five local steps** of SGD (modelled by the attacker
in the searches; in the closed forms, the update is taken for a gradient); **clipping** to C = 1;
**8 bits**: each parameter's gradient in 255 steps; the **first layer not sent** (for text, both
embeddings); and **clipping and noise**: one release, clipped to C = 1, with Gaussian noise at ε =
8, δ = 0.00001. Without BatchNorm's statistics (FedBN) only the gradient is left.

One setting is as published with figures: four images of CIFAR-10, known labels, four local steps on
two images each (SGD, lr 0.001), but through our two convolutions instead of ResNet-18.

``chance`` is what an attacker gets without the gradient: the mean image, or each column's most
common category and mean. Figures are written to ``benchmarks/results/inversion_table.json``;
``--small`` takes seconds and keeps nothing; ``--only`` keeps the other attacks' figures. One core
needs about eight minutes.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import seepage as sp
from keeping import keep
from measuring import show

RESULTS = Path(__file__).parent / "results" / "inversion_table.json"
WIDTHS = (26, 34, 7, 7, 12, 10, 10)
MANY, STEPS = 8, 5
NORM_WEIGHT = 1e-2  # of BatchNorm statistics, chosen on other images
SIGMA = sp.privacy.analytic_gaussian_sigma(8.0, 1e-5)
CLIP = sp.nn.HardClip(1.0)
# From abstracts, and from what the notebooks of the authors' own implementation print
# (github.com/JonasGeiping/breaching, folder examples); the papers' tables were not compared.
PUBLISHED = {
    "images, ReLU": "Inverting Gradients, ResNet18 on CIFAR10, Federated Averaging (notebook): "
    "SSIM 0.7056, PSNR 19.46; four images, four local steps",
    "images, BatchNorm": "Yin et al. 2021 (abstract): batches of 8 to 48 ImageNet images, "
    "ResNet-50; no figure",
    "text": "Petrov et al. 2024 (abstract): ROUGE-1 and ROUGE-2 above 0.99, batches of up to 128; "
    "TAG, FL-Transformer (notebook): 87.50 % of the tokens of one text of 16",
    "table": "Vero et al. 2023 (abstract): above 90 % of cells for large subsets of a batch of 128",
    "malicious server": "Fowl et al. 2022: n (1 − 1/k)^(n−1) of n records exactly, k bins; Robbing "
    "The Fed, Wikitext (notebook): 86.33 % of the tokens of 128 texts at their place",
}


@dataclass
class Row:
    """One line of the table."""

    attack: str
    setting: str
    batch: int
    steps: int
    measure: str
    value: float
    chance: float
    seconds: float
    more: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """What the server sees: records in a release, local steps, and a remedy."""

    name: str
    batch: int = 1
    steps: int = 1
    remedy: str = ""


def settings(small: bool, *larger: int) -> Iterator[Setting]:
    """Return all settings of an attack."""
    yield Setting("one record")
    if not small:
        for many in (MANY, *larger):
            yield Setting(f"mean of {many} (secure aggregation)", batch=many)
        yield Setting(f"{STEPS} local steps", steps=STEPS)
        yield Setting("clipped", remedy="clip")
        yield Setting("8 bits", remedy="bits")
        yield Setting("first layer not sent", remedy="layer")
    yield Setting("clipped, noise at ε = 8", remedy="noise")


def released(
    net: nn.Module, x: Tensor, y: Tensor, given: Setting
) -> tuple[nn.Module, sp.attacks.GradientReleases]:
    """Return the network, with what is not sent frozen, and what the server sees."""
    if given.steps > 1:
        training = sp.layers.LocalTraining(lr=0.05, epochs=given.steps)
        options = {"training": training, "batch_size": given.batch}
        return net, sp.attacks.release_updates(net, "cross_entropy", x, y, **options)
    if given.remedy == "layer":
        net = copy.deepcopy(net)
        next(each for each in net if any(True for _ in each.parameters())).requires_grad_(False)
    private = {"clip": CLIP} if given.remedy in ("clip", "noise") else {}
    private |= {"noise_multiplier": SIGMA} if given.remedy == "noise" else {}
    seen = sp.attacks.release_gradients(
        net, "cross_entropy", x, y, batch_size=given.batch, **private
    )
    if given.remedy == "bits":
        seen = replace(seen, gradients={k: in_8_bits(v) for k, v in seen.gradients.items()})
    return net, seen


def in_8_bits(values: Tensor) -> Tensor:
    """Round each release of a parameter's gradient to 255 steps of its largest entry."""
    flat = values.flatten(1)
    scale = flat.abs().amax(1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny) / 127
    return ((flat / scale).round() * scale).reshape(values.shape)


def clock(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result, and the processor seconds it took."""
    start = time.process_time()
    return work(), time.process_time() - start


# Images


def images(count: int) -> tuple[Tensor, Tensor, np.ndarray]:
    """Return images (n, 1, 28, 28) with labels, and the mean of a thousand others."""
    try:
        train = sp.data.load_mnist(download=False).train
        pixels, labels = train.pixels[:1100] / 255, train.labels[:1100]
    except sp.InputError:
        from sklearn.datasets import load_digits

        digits = load_digits()
        pixels = np.pad(
            np.kron(digits.images[:1100] / 16, np.ones((3, 3))), ((0, 0), (2, 2), (2, 2))
        )
        labels = digits.target[:1100]
    x = torch.tensor(pixels[:count]).float()[:, None]
    return x, torch.tensor(labels[:count]).long(), pixels[100:].mean(axis=0)


def relu_network(
    normed: bool = False, width: int = 24, colours: int = 1, side: int = 28
) -> nn.Module:
    """Return two strided convolutions and a full layer, with ReLU, and BatchNorm if wanted."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs in (colours, width):
        layers.append(nn.Conv2d(inputs, width, 5, stride=2, padding=2))
        layers += [nn.BatchNorm2d(width)] if normed else []
        layers.append(nn.ReLU())
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear((side // 4) ** 2 * width, 10)).eval()


def attack_images(small: bool) -> Iterator[Row]:
    """Attack images through ReLU, alone and with remedies."""
    x, y, mean = images(MANY)
    net = relu_network()
    for given in settings(small):
        count = given.batch if given.batch > 1 else 4 if given.steps == 1 else 2
        some, labels = x[:count], y[:count].reshape(-1, given.batch)
        own, seen = released(net, some, y[:count], given)
        adversary = sp.attacks.GradientInversion(
            own,
            shape=(1, 28, 28),
            total_variation=1e-3,
            steps=10 if small else 300 if given.steps == 1 else 150,
        )
        found, took = clock(lambda a=adversary, s=seen, g=labels: a.reconstruct(s, labels=g))
        yield image_row("images, ReLU", given, found.quality(some), some, mean, took)
    if not small:
        yield as_published()


def as_published() -> Row:
    """Attack four images of CIFAR-10 after four local steps on two each."""
    train = sp.data.load_cifar10(download=False).train
    x = torch.tensor(train.pixels[:1100]).float().permute(0, 3, 1, 2) / 255
    some, labels = x[:4], torch.tensor(train.labels[:4]).long()
    net = relu_network(colours=3, side=32)
    training = sp.layers.LocalTraining(lr=0.001, epochs=2, batch_size=2)
    seen = sp.attacks.release_updates(
        net, "cross_entropy", some, labels, training=training, batch_size=4
    )
    adversary = sp.attacks.GradientInversion(
        net, shape=(3, 32, 32), total_variation=1e-3, steps=1200
    )
    found, took = clock(lambda: adversary.reconstruct(seen, labels=labels.reshape(1, -1)))
    given = Setting("as published: CIFAR-10, 4 local steps of 2", 4, 4)
    mean = x[100:].mean(0).numpy()
    return image_row("images, ReLU", given, found.quality(some), some, mean, took)


def image_row(
    attack: str,
    given: Setting,
    quality: sp.attacks.ImageQuality,
    truth: Tensor,
    mean: np.ndarray,
    took: float,
) -> Row:
    """Return a line with the median similarity."""
    same = np.broadcast_to(mean, truth.shape)
    chance = sp.attacks.compare_images(same, truth)
    more = {"psnr": float(np.median(quality.psnr)), "images": len(truth)}
    more["chance psnr"] = float(np.median(chance.psnr))
    value, without = float(np.median(quality.ssim)), float(np.median(chance.ssim))
    return Row(attack, given.name, given.batch, given.steps, "SSIM", value, without, took, more)


def attack_statistics(small: bool) -> Iterator[Row]:
    """Attack a batch of images with and without knowledge of its BatchNorm statistics."""
    x, y, mean = images(1000)
    public, x, y = x[500:], x[:4], y[:4]
    net = relu_network(normed=True)
    for module in net:  # frozen at the statistics of public images, layer by layer
        if isinstance(module, nn.BatchNorm2d):
            name = next(name for name, each in net.named_modules() if each is module)
            mean_there, variance = statistics(net, public)[name]
            module.running_mean.copy_(mean_there)
            module.running_var.copy_(variance)
    own = statistics(net, x)
    seen, noisy = (
        released(net, x, y, Setting("", len(x), remedy=remedy))[1] for remedy in ("", "noise")
    )
    for name, releases, weight, known in (
        ("no statistics (FedBN)", seen, 0.0, None),
        ("running statistics", seen, NORM_WEIGHT, None),
        ("the batch's statistics", seen, NORM_WEIGHT, own),
        ("the same, noise at ε = 8", noisy, NORM_WEIGHT, own),
    ):
        if small and known is None:
            continue
        adversary = sp.attacks.GradientInversion(
            net,
            shape=(1, 28, 28),
            total_variation=1e-3,
            steps=10 if small else 300,
            batch_norm=weight,
            statistics=known,
        )
        found, took = clock(
            lambda a=adversary, s=releases: a.reconstruct(s, labels=y.reshape(1, -1))
        )
        yield image_row("images, BatchNorm", Setting(name, len(x)), found.quality(x), x, mean, took)


def statistics(net: nn.Module, x: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the mean and variance of a batch at every BatchNorm layer."""
    found = {}

    def hook(name: str) -> Callable[..., None]:
        def look(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            rows = inputs[0].transpose(0, 1).flatten(1)
            found[name] = (rows.mean(1), rows.var(1))

        return look

    layers = [(n, m) for n, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)]
    hooks = [module.register_forward_pre_hook(hook(name)) for name, module in layers]
    with torch.no_grad():
        net(x)
    for each in hooks:
        each.remove()
    return found


# Text


class Transformer(nn.Module):
    """One block of causal attention with learned positions, and a head of its own."""

    def __init__(self, tokens: int, d: int, length: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(tokens, d), nn.Embedding(length, d)
        self.norm = nn.LayerNorm(d)
        self.qkv, self.head = nn.Linear(d, 3 * d), nn.Linear(d, tokens)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the scores of the next token at every position."""
        z = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        q, k, v = self.qkv(self.norm(z)).chunk(3, -1)
        later = torch.full((ids.shape[1],) * 2, -torch.inf).triu(1)
        mixed = torch.softmax(q @ k.transpose(1, 2) / q.shape[2] ** 0.5 + later, -1) @ v
        return self.head(z + mixed)


def text_update(net: nn.Module, ids: Tensor, given: Setting) -> tuple[dict, float]:
    """Return a client's update divided by the learning rate, and the noise in it."""
    own = Transformer(
        net.head.out_features, net.norm.normalized_shape[0], net.places.num_embeddings
    )
    own.load_state_dict(net.state_dict())
    lr = 0.05
    for _ in range(given.steps):
        ahead = own(ids)[:, :-1].flatten(0, 1)
        loss = nn.functional.cross_entropy(ahead, ids[:, 1:].flatten())
        slopes = torch.autograd.grad(loss, list(own.parameters()))
        with torch.no_grad():
            for parameter, slope in zip(own.parameters(), slopes, strict=True):
                parameter -= lr * slope
    before = dict(net.named_parameters())
    moved = {n: ((before[n] - p) / lr).detach() for n, p in own.named_parameters()}
    noise = SIGMA if given.remedy == "noise" else 0.0
    if given.remedy in ("clip", "noise"):
        length = float(torch.stack([value.square().sum() for value in moved.values()]).sum().sqrt())
        shrink = min(1.0, 1 / length)
        moved = {n: shrink * v + noise * torch.randn(v.shape) for n, v in moved.items()}
    if given.remedy == "layer":
        moved = {n: v for n, v in moved.items() if n not in ("tokens.weight", "places.weight")}
    if given.remedy == "bits":
        moved = {n: in_8_bits(v[None])[0] for n, v in moved.items()}
    return {name: value[None] for name, value in moved.items()}, noise


def attack_text(small: bool) -> Iterator[Row]:
    """Recover tokens and their places."""
    length, tokens, d = 12, 200 if small else 2000, 128
    net = Transformer(tokens, d, length).double()
    draw = torch.Generator().manual_seed(1)
    for given in settings(small, 16):
        placed, present = [], []
        start = time.process_time()
        for _ in range(1 if small else 4):
            ids = torch.randint(0, tokens, (given.batch, length), generator=draw)
            gradients, noise = text_update(net, ids, given)
            seen = sp.attacks.GradientReleases(gradients, given.batch, noise=noise)
            found = sp.attacks.recover_tokens(
                net, seen, embedding="tokens", layer="qkv", length=length
            )
            truth = ids[:, :-1]  # the last token predicts nothing
            present.append(overlap(truth, found.present[0]))
            # Of one text, the nearest token at each place; of several, the candidates.
            nearest = found.sequences[0][:-1, None]
            said = nearest if given.batch == 1 else found.candidates[0][:-1]
            placed += [overlap(wanted, there) for wanted, there in zip(truth.T, said, strict=True)]
        took = time.process_time() - start
        more = {"set of tokens": float(np.mean(present))}
        value = float(np.mean(placed))
        yield Row("text", given.name, given.batch, given.steps, "placed", value, 0.0, took, more)


def overlap(truth: Tensor, said: Tensor) -> float:
    """Return the share of tokens in both sets among those in either."""
    a, b = set(truth.flatten().tolist()), set(said.tolist())
    return len(a & b) / len(a | b)


# Table


def people(count: int) -> tuple[Tensor, Tensor, list[tuple[int, ...]], np.ndarray]:
    """Return people, their labels, the columns of every category, and the most common person."""
    from sklearn.preprocessing import OneHotEncoder

    try:
        columns = dict(sp.data.load_adult(download=False).train.columns)
    except sp.InputError:
        columns = drawn_people()
    n = 2000
    target = columns.pop("income")
    numbers = [k for k, v in columns.items() if v.dtype.kind == "f"]
    names = [k for k in columns if k not in numbers]
    values = np.stack([columns[k][:n] for k in numbers], 1)
    scaled = ((values - values.mean(0)) / values.std(0)).clip(-3, 3)
    encoder = OneHotEncoder(sparse_output=False)
    hot = encoder.fit_transform(np.stack([columns[k][:n] for k in names], 1))
    groups, at = [], len(numbers)
    for kinds in encoder.categories_:
        groups.append(tuple(range(at, at + len(kinds))))
        at += len(kinds)
    x = np.concatenate([scaled, hot], 1)
    common = x.mean(axis=0)
    for group in groups:
        best = common[list(group)].argmax()
        common[list(group)] = np.eye(len(group))[best]
    y = np.unique(target[:n], return_inverse=True)[1]
    return torch.tensor(x[:count]).float(), torch.tensor(y[:count]).long(), groups, common


def drawn_people() -> dict[str, np.ndarray]:
    """Return made-up people, where Adult is not at hand."""
    draw = np.random.default_rng(0)
    kinds = {"work": 6, "education": 9, "marital": 5, "job": 10, "sex": 2}
    columns: dict[str, np.ndarray] = {
        k: draw.integers(0, m, 2000).astype(str) for k, m in kinds.items()
    }
    columns |= {k: draw.standard_normal(2000) for k in ("age", "gain", "hours")}
    return columns | {"income": draw.integers(0, 2, 2000)}


def cells_right(guess: np.ndarray, truth: np.ndarray, groups: list[tuple[int, ...]]) -> float:
    """Return the share of cells that are right."""
    numbers = groups[0][0]
    right = [np.abs(guess[:, :numbers] - truth[:, :numbers]) <= 0.319]
    right += [(guess[:, list(g)] == truth[:, list(g)]).all(1, keepdims=True) for g in groups]
    return float(np.concatenate(right, 1).mean())


def attack_table(small: bool) -> Iterator[Row]:
    """Reconstruct people."""
    x, y, groups, common = people(MANY)
    torch.manual_seed(0)
    d = x.shape[1]
    net = nn.Sequential(nn.Linear(d, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU())
    net.append(nn.Linear(100, 2))
    for given in settings(small):
        own, seen = released(net, x, y, given)
        adversary = sp.attacks.GradientInversion(
            own,
            shape=(d,),
            total_variation=0,
            bounds=(-3.0, 3.0),
            steps=10 if small else 500,
            restarts=1 if small else 3,
            step_size=0.06,
            categories=groups,
        )
        labels = y.reshape(-1, given.batch)
        found, took = clock(lambda a=adversary, s=seen, g=labels: a.reconstruct(s, labels=g))
        truth = x.numpy()
        value = cells_right(found.matched(x), truth, groups)
        chance = cells_right(np.broadcast_to(common, truth.shape), truth, groups)
        rest = ("cells", value, chance, took, {"columns": d})
        yield Row("table", given.name, given.batch, given.steps, *rest)


# A malicious server


def attack_imprint(small: bool) -> Iterator[Row]:
    """Read images off an imprint layer."""
    x, y, _ = images(1000)
    public, own = x[500:], x[:32]
    brightness = public.flatten(1).mean(1)
    bins = 400
    edges = torch.quantile(brightness, torch.linspace(0, 1, bins + 1)[:-1])
    layer = sp.attacks.ImprintLayer((1, 28, 28), edges)
    torch.manual_seed(0)
    net = nn.Sequential(layer, nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
    for given in settings(small, 32):
        if given.remedy == "layer":  # the attack reads nothing else
            found, took = [torch.zeros(0)] * len(own), 0.0
        else:
            _, seen = released(net, own, y[: len(own)], given)
            found, took = clock(lambda s=seen: layer.recover(s, "0"))
        exact = 0
        for k, each in enumerate(own):
            guesses = found[k // given.batch]
            errors = ((guesses - each) ** 2).flatten(1).mean(1) if len(guesses) else guesses
            exact += bool(len(errors) and float(errors.min()) < 1e-4)  # PSNR above 40 dB
        more = {"expected": (1 - 1 / bins) ** (given.batch - 1)}
        rest = ("exact", exact / len(own), 0, took, more)
        yield Row("malicious server", given.name, given.batch, given.steps, *rest)


ATTACKS = {
    "text": attack_text,
    "malicious server": attack_imprint,
    "table": attack_table,
    "images, ReLU": attack_images,
    "images, BatchNorm": attack_statistics,
}


def main() -> int:
    """Attack, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="few steps, in seconds")
    parser.add_argument("--only", choices=tuple(ATTACKS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of kinks
    show(
        "attack",
        "what the server sees",
        "batch",
        "steps",
        "measure",
        "value",
        "chance",
        widths=WIDTHS,
    )
    rows = []
    for name, attack in ATTACKS.items():
        if options.only in (None, name):
            for row in attack(options.small):
                rows.append(row)
                cells = (row.measure, f"{row.value:.3f}", f"{row.chance:.3f}")
                show(row.attack, row.setting, row.batch, row.steps, *cells, widths=WIDTHS)
                print(f"    {row.seconds:.0f} s, {row.more}", flush=True)
    if not options.small:
        kept = [vars(row) for row in rows]
        if options.only is not None:
            others = json.loads(RESULTS.read_text("utf-8"))["rows"]
            kept = [row for row in others if row["attack"] != options.only] + kept
        setting = {"noise multiplier": SIGMA, "clip": 1.0, "epsilon": 8.0, "delta": 1e-5}
        keep({"setting": setting, "published": PUBLISHED, "rows": kept}, RESULTS)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Networks composed at random, and an oracle that shares no code with the package.

A seed gives a network, its records and how it is to be measured: modules of three kinds (vectors,
sequences, images), losses and reductions, masks, frozen parts, ``no_grad``, ``.detach()``, tied
weights, precisions and clips. The oracle takes finite differences of the gradients of single
records, in float64, one unknown at a time.

Run as a program it draws new ones: ``python tests/nn/zoo.py 300 12345``.
"""

from __future__ import annotations

import copy
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import seepage as sp

REFUSALS = {
    # What may be refused, and the words that name it
    "an exact result is a mean over all": "too many unknowns for all directions of signs",
    "hides the gradient's dependence": "a dependence that no derivative sees",
    "cannot differentiate the gradients": "a function that torch does not differentiate twice",
    "no rule for per-record gradients": "a module that neither a rule nor vmap can take",
    "differ from those of single records": "a use of a parameter that cannot be followed",
    "used under torch.no_grad()": "trained parameters under no_grad",
    "records' axis could not be identified": "records that no axis tells apart",
    "mixes the records": "batch statistics",
    "drops values at random": "dropout in training mode",
    "draws random numbers": "other random numbers",
    "complex numbers": "complex parameters",
}
CAUSES = {
    # The trait of a network that must be there where it is refused in these words
    "a dependence that no derivative sees": {"detach", "focal, detached", "spectral norm"},
    "a function that torch does not differentiate twice": {"own function", "spectral norm"},
    "batch statistics": {"batch norm"},
    "dropout in training mode": {"dropout"},
}
RECORDS = 3


class Wrapped(nn.Module):
    """A module with something done to what it returns."""

    def __init__(self, inner: nn.Module, then: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.then = inner, then

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x)
        return self.then(out[0] if isinstance(out, tuple) else out)


class Beside(nn.Module):
    """A module beside its own input."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Silent(nn.Module):
    """A module without gradients, the usual frozen backbone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.inner(x)


class DetachedGate(nn.Module):
    """A gate whose opening counts as a constant."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(2 * x).detach()


class OwnWayBack(torch.autograd.Function):
    """A squashing function with a way back of its own, in the old style."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.atan(x)

    @staticmethod
    def backward(ctx, delta):
        (x,) = ctx.saved_tensors
        return delta / (1 + x * x)


class Own(nn.Module):
    """The function as a module."""

    def forward(self, x: Tensor) -> Tensor:
        return OwnWayBack.apply(x)


class Counting(nn.Module):
    """A module that counts its runs in a buffer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.register_buffer("runs", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return self.inner(x)


class Affine(nn.Module):
    """Parameters that are multiplied and added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = (nn.Parameter(torch.randn(width)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x + self.shift


class Masked(nn.Module):
    """Attention to the positions up to one's own, or with some keys left out."""

    def __init__(self, width: int, padded: bool) -> None:
        super().__init__()
        self.inner, self.padded = nn.MultiheadAttention(width, 2, batch_first=True), padded

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[1]
        if self.padded:
            left_out = (torch.arange(size) == size - 1).expand(len(x), size)
            return self.inner(x, x, x, key_padding_mask=left_out, need_weights=False)[0]
        mask = torch.ones(size, size, dtype=torch.bool).triu(1)
        return self.inner(x, x, x, attn_mask=mask, need_weights=False)[0]


SMOOTH = (nn.Tanh, nn.GELU, nn.SiLU, nn.Softplus, nn.ELU, nn.Sigmoid, nn.Mish)
KINKED = (nn.ReLU, nn.LeakyReLU, nn.Hardtanh)


def activation(rng: random.Random) -> nn.Module:
    return rng.choice(KINKED if rng.random() < 0.12 else SMOOTH)()


def vector(rng: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    width, size = rng.choice((3, 4)), rng.choice((3, 5))
    tied = nn.Linear(width, width)
    blocks: list[Callable[[], nn.Module]] = [
        lambda: nn.Linear(width, width, bias=rng.random() < 0.7),
        lambda: nn.LayerNorm(width, elementwise_affine=rng.random() < 0.7),
        lambda: nn.RMSNorm(width),
        lambda: nn.GroupNorm(1, width),
        lambda: nn.BatchNorm1d(width).eval(),
        lambda: Beside(nn.Sequential(nn.Linear(width, 3), activation(rng), nn.Linear(3, width))),
        lambda: tied,
        lambda: Affine(width),
        lambda: Counting(width),
        lambda: weight_norm(nn.Linear(width, width)),
    ]
    middle = []
    for _ in range(rng.randint(1, 3)):
        middle += [rng.choice(blocks)(), activation(rng)]
    return nn.Sequential(nn.Linear(size, width), activation(rng), *middle, tied), (size,)


def sequence(rng: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    width, length, size = 4, 3, 2
    cells = (nn.LSTM, nn.GRU, nn.RNN)

    def recurrent() -> nn.Module:
        try:
            from opacus.layers import DPGRU, DPLSTM
        except ImportError:
            choices: tuple[type, ...] = cells
        else:
            choices = (*cells, DPLSTM, DPGRU)
        return Wrapped(rng.choice(choices)(width, width, batch_first=True), lambda out: out)

    blocks: list[Callable[[], nn.Module]] = [
        lambda: nn.Linear(width, width),
        lambda: nn.LayerNorm(width),
        recurrent,
        recurrent,
        lambda: Masked(width, rng.random() < 0.5),
        lambda: nn.TransformerEncoderLayer(
            width, 2, 4, 0.0, rng.choice(("gelu", "relu")), batch_first=True
        ),
        lambda: Beside(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))),
        lambda: Affine(width),
    ]
    middle = []
    for _ in range(rng.randint(1, 2)):
        middle += [rng.choice(blocks)(), activation(rng)]
    pool = Wrapped(nn.Identity(), lambda out: out.mean(1))
    return nn.Sequential(nn.Linear(size, width), *middle, pool), (length, size)


def image(rng: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    channels = rng.choice((2, 4))
    blocks: list[Callable[[], nn.Module]] = [
        lambda: nn.Conv2d(channels, channels, 2, padding=1, bias=rng.random() < 0.7),
        lambda: nn.Conv2d(channels, channels, 3, padding=1, groups=2),
        lambda: nn.Conv2d(channels, channels, 2, padding="same", dilation=1),
        lambda: nn.ConvTranspose2d(channels, channels, 2),
        lambda: nn.GroupNorm(2, channels),
        lambda: nn.InstanceNorm2d(channels, affine=True),
        lambda: nn.AvgPool2d(2, 1),
        lambda: nn.MaxPool2d(2, 1) if rng.random() < 0.5 else nn.AvgPool2d(2, 1),
    ]
    middle = []
    for _ in range(rng.randint(1, 2)):
        middle += [rng.choice(blocks)(), activation(rng)]
    ending = (nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return nn.Sequential(nn.Conv2d(1, channels, 2, padding=1), *middle, *ending), (1, 3, 3)


@dataclass
class Drawn:
    """A network with its records, and the way to measure it."""

    net: nn.Module
    loss: object
    x: Tensor
    y: Tensor
    settings: dict[str, object]
    dtype: torch.dtype
    traits: list[str] = field(default_factory=list)


def draw(seed: int) -> Drawn:
    """Return the network of a seed."""
    rng = random.Random(seed)  # noqa: S311 - for networks
    torch.manual_seed(seed)
    body, shape = rng.choice((vector, vector, sequence, image))(rng)
    with torch.no_grad():
        width = body(torch.zeros(2, *shape)).shape[1]
    traits: list[str] = []
    if rng.random() < 0.12:
        body = Silent(body)
        traits.append("no_grad")
    elif rng.random() < 0.15:
        next(iter(body.children())).requires_grad_(False)
        traits.append("frozen")
    between: list[nn.Module] = [nn.Linear(width, 4), activation(rng)]
    odd = rng.random()
    if odd < 0.10:
        between.append(DetachedGate())
        traits.append("detach")
    elif odd < 0.14:
        between.append(Own())
        traits.append("own function")
    elif odd < 0.17:
        between.append(spectral_norm(nn.Linear(4, 4)))
        traits.append("spectral norm")
    elif odd < 0.19:
        between.append(nn.Dropout(0.3))
        traits.append("dropout")
    elif odd < 0.21:
        between.append(nn.BatchNorm1d(4))
        traits.append("batch norm")
    net = nn.Sequential(body, *between, nn.Linear(4, 3))
    # Only dropout and batch norms of the end stay in training mode: off, and refused.
    for module in body.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.2 * torch.randn_like(p))
    loss, y = losses(rng, traits)
    dtype = torch.float32 if rng.random() < 0.25 else torch.float64
    settings: dict[str, object] = {"noise_multiplier": 1.0}
    clip = rng.choice(("hard", "smooth", None))
    if clip is not None:
        settings |= {"clip": clip, "max_grad_norm": rng.choice((0.3, 1.0, 30.0))}
    hidden = bool({"detach", "own function", "spectral norm", "focal, detached"} & set(traits))
    if rng.random() < (0.8 if hidden else 0.1):
        settings |= {"method": "finite"}
    x = torch.randn(RECORDS, *shape)
    if rng.random() < 0.15:
        mask = torch.rand(shape) < 0.5
        mask.view(-1)[0] = True
        settings |= {"view": sp.nn.Input(mask)}
        traits.append("mask")
    y = y.to(dtype) if y.is_floating_point() else y
    return Drawn(net.to(dtype), loss, x.to(dtype), y, settings, dtype, traits)


def losses(rng: random.Random, traits: list[str]) -> tuple[object, Tensor]:
    """Return a loss and targets for it."""
    classes, numbers = torch.randint(0, 3, (RECORDS,)), torch.randn(RECORDS, 3)
    kind = rng.choice(
        ("ce", "ce", "torch ce", "smoothing", "mse", "torch mse", "sum", "focal", "bce")
    )
    traits.append(kind)
    if kind == "focal":
        hidden = rng.random() < 0.5
        traits.append("focal, detached" if hidden else "focal, whole")

        def focal(output: Tensor, target: Tensor) -> Tensor:
            entropy = nn.functional.cross_entropy(output, target, reduction="none")
            weight = (1 - torch.exp(-entropy)) ** 2
            return (weight.detach() if hidden else weight) * entropy

        return focal, classes
    return {
        "ce": ("cross_entropy", classes),
        "torch ce": (nn.CrossEntropyLoss(), classes),
        "smoothing": (nn.CrossEntropyLoss(label_smoothing=0.2, reduction="sum"), classes),
        "mse": ("mse", numbers),
        "torch mse": (nn.MSELoss(), numbers),
        "sum": (nn.SmoothL1Loss(reduction="sum"), numbers),
        "bce": (nn.BCEWithLogitsLoss(), numbers.sigmoid()),
    }[kind]


def loss_alone(drawn: Drawn) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss of one record, as people would write it."""
    loss = drawn.loss
    if loss == "cross_entropy":
        return nn.functional.cross_entropy
    if loss == "mse":
        return lambda output, target: (output - target).square().sum() / 2
    if isinstance(loss, nn.Module):
        return loss  # of one record alone, a mean is its own
    return lambda output, target: loss(output, target).sum()


def truth(drawn: Drawn, step: float, extrapolated: bool) -> Tensor:
    """Return the dFIL of every record by differences, extrapolated to no step, or of that step.

    Over a step it is ``√(E‖g̃(z + hv) − g̃(z)‖²/h²d)``, the mean over all directions of signs.
    """
    net = copy.deepcopy(drawn.net).double()
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.eval()  # as the result must state
    x = drawn.x.double()
    y = drawn.y.double() if drawn.y.is_floating_point() else drawn.y
    before = copy.deepcopy(net.state_dict())
    released = [p for p in net.parameters() if p.requires_grad]
    alone, clip = loss_alone(drawn), drawn.settings.get("clip")
    threshold = float(drawn.settings.get("max_grad_norm", 1.0))

    def gradient(record: Tensor, target: Tensor) -> Tensor:
        net.load_state_dict(before)
        loss = alone(net(record[None]), target[None])
        found = torch.autograd.grad(loss, released, allow_unused=True, materialize_grads=True)
        g = torch.cat([part.flatten() for part in found])
        n = g.norm()
        if clip == "hard":
            return g / torch.clamp(n / threshold, min=1.0)
        if clip == "smooth":
            return g / (nn.functional.gelu(n / threshold - 1) + 1)
        return g

    view = drawn.settings.get("view")
    shape = x.shape[1:]
    unknown = torch.ones(shape, dtype=torch.bool) if view is None else view.mask.expand(shape)
    noise = threshold if clip is not None else 1.0
    out = []
    places = unknown.flatten().nonzero().flatten()
    for record, target in zip(x, y, strict=True):
        total = torch.zeros((), dtype=torch.float64)
        if not extrapolated:
            own = gradient(record, target)
            for signs in product((-step, step), repeat=len(places)):
                move = torch.zeros(record.numel(), dtype=torch.float64)
                move[places] = torch.tensor(signs, dtype=torch.float64)
                total += (gradient(record + move.reshape(shape), target) - own).square().sum()
            out.append((total / 2 ** len(places) / step**2 / len(places)).sqrt() / noise)
            continue
        for j in unknown.flatten().nonzero().flatten().tolist():
            unit = torch.zeros(record.numel(), dtype=torch.float64)
            unit[j] = 1.0
            unit = unit.reshape(shape)

            def quotient(h: float, unit=unit, record=record, target=target) -> Tensor:
                ahead, behind = (
                    gradient(record + h * unit, target),
                    gradient(record - h * unit, target),
                )
                return (ahead - behind) / (2 * h)

            change = (4 * quotient(step / 2) - quotient(step)) / 3
            total += change.square().sum()
        out.append((total / int(unknown.sum())).sqrt() / noise)
    return torch.stack(out)


def verdict(seed: int) -> tuple[str, str]:
    """Return ``measured``, or ``refused`` and by which words; raise where a number is wrong."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return judged(seed, draw(seed))


def judged(seed: int, drawn: Drawn) -> tuple[str, str]:
    """Return the verdict on a network that was drawn."""
    try:
        leak = sp.nn.leakage(drawn.net, drawn.loss, drawn.x, drawn.y, **drawn.settings)
        found = leak.records("dfil", method="exact")
    except sp.InputError as error:
        reason = next((named for words, named in REFUSALS.items() if words in str(error)), "")
        if CAUSES.get(reason, set()) & set(drawn.traits):
            print(f"seed {seed} ({', '.join(drawn.traits)}): {error}", flush=True)
            return "refused", reason
        raise AssertionError(
            f"seed {seed} ({', '.join(drawn.traits)}): refused without its cause: {error}"
        ) from error
    said = any("Dropout is off" in condition for condition in found.conditions)
    if said != ("dropout" in drawn.traits):
        raise AssertionError(f"seed {seed}: {found.conditions}, with {', '.join(drawn.traits)}")
    finite = "over steps of" in found.about
    values = torch.as_tensor(found.values).double()
    # To a derivative, differences come as near as they can: ELU bends within 1e-3 of some records.
    for step in (leak.engine.step_size(drawn.x, drawn.y),) if finite else (1e-3, 1e-5):
        wanted = truth(drawn, step, extrapolated=not finite)
        if right(values, wanted, drawn.dtype):
            return "measured", "over finite steps" if finite else "as a derivative"
    raise AssertionError(
        f"seed {seed} ({', '.join(drawn.traits)}, {drawn.dtype}, {drawn.settings}): "
        f"{values.tolist()}, but differences say {wanted.tolist()}"
    )


def right(values: Tensor, wanted: Tensor, dtype: torch.dtype) -> bool:
    """Return whether numbers are right: to 1e-6 of each in float64, 1e-4 of the largest in float32.

    Where nothing leaks at all (a dead unit before everything that is trained), nothing but rounding
    may be told.
    """
    slack = 1e-6 * wanted if dtype == torch.float64 else 1e-4 * wanted.max().expand_as(wanted)
    return bool(((values - wanted).abs() <= slack + 1e-9).all())


def count(seeds: range) -> Counter[tuple[str, str]]:
    """Return how many were measured and refused, by way and reason."""
    return Counter(verdict(seed) for seed in seeds)


def share_measured(counts: Counter[tuple[str, str]]) -> float:
    """Return the part that was measured."""
    measured = sum(n for (what, _), n in counts.items() if what == "measured")
    return measured / max(1, sum(counts.values()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    start = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    wrong: list[str] = []
    counts: Counter[tuple[str, str]] = Counter()
    for seed in range(start, start + size):
        try:
            counts[verdict(seed)] += 1
        except Exception as error:
            wrong.append(f"seed {seed}: {type(error).__name__}: {error}")
            print(wrong[-1][:600], flush=True)
    for (what, how), number in sorted(counts.items()):
        print(f"{number:5d} {what} {how}")
    share = share_measured(counts)
    print(f"{size} networks from seed {start}: {share:.1%} measured, {len(wrong)} wrong")
    sys.exit(bool(wrong))

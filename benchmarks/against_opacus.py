"""A step of private training with Opacus, by hooks and by ghost clipping, and with seepage.

Claims, for an accelerator: with seepage's own update, without accounting, a step takes no longer
than the faster of Opacus's two methods, and within 1.1 times the memory of the leaner. With every
record's leakage accounted for (one probe, the clip's derivative bounded from above), it takes at
most 1.0 of Opacus's faster step for GPT-2's shape, with LoRA too, and 1.2 for the WideResNet. With
each record measured at every fourth of its steps, it takes at most 1.25 of seepage's own step
without accounting, 1.35 with LoRA. Some records are compared with float32 along the same
directions. Also printed: a plain step that protects nobody. All of them clip every record's
gradient exactly at norm 1, add noise and take a step of SGD, in one run; times are those of four
steps in a row, each with a batch of new tensors, as from a loader:

- WideResNet-16-4 with GroupNorm, about the pixels;
- GPT-2's shape, 124 million parameters, about the token embeddings (the output layer has its own
  weights, since Opacus does not support tied ones);
- the same with LoRA of rank 16 beside every layer of its blocks, the rest frozen;
- on a CPU, also the network of the README, and that of Guo et al. 2022 for MNIST.

On two cores, records are accounted for by derivatives, in float32 the default, and by steps of the
parameters. With the latter, a step takes at most 2.5 of Opacus's faster step for the README's
network, 1.5 for the one for MNIST and 2 with LoRA. A probe with LoRA takes as long as a plain step,
which has hardly any gradients of weights; so no accounted step there takes less than two plain
ones, which alone take longer than Opacus's step. Quarters are by steps of the parameters too.

On an accelerator (``--device cuda``) in TF32 with ``--precision high``; a CPU takes smaller
batches. Peak memory is what the accelerator's allocator gives out in the second step; recorded
passes, from the third on, reserve more, which the results contain too. On a CPU it is the most by
which the process grows. ``--small`` runs everything at toy sizes, on any device, as a smoke test.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
from torch import Tensor, nn

import seepage as sp
import seepage.nn as snn
from against_float32 import against_float32
from big_networks import GPT, wide_resnet, with_adapters
from network_runs import run, table
from private_steps import GIB, Stopwatch, plain_step, update
from reproduction.private_sgd.networks import mnist_cnn
from seepage.nn.problem.problem import cross_entropy

HOOKS, GHOST = "Opacus, hooks", "Opacus, ghost clipping"
OURS, ACCOUNTED = "seepage, without accounting", "seepage, every record accounted for"
PARAMETERS = "seepage, the same by steps of the parameters"
QUARTER = "seepage, every fourth step of a record accounted for"
PLAIN = "plain training step"
LEARNING_RATE = 1e-6
STEPS = 4  # in a row; a quarter measures each record once in as many

Step = Callable[[Tensor, Tensor], None]


class SharingGPT(GPT):
    """GPT-2's shape as Opacus accepts it: nothing tied, and every record looks up its positions."""

    def __init__(self, *shape: int) -> None:
        super().__init__(*shape)
        self.head = nn.Linear(self.head.in_features, self.head.out_features, bias=False)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of every next token."""
        places = torch.arange(x.shape[1], device=x.device).repeat(len(x), 1)
        return self.head(self.norm(self.blocks(self.tokens(x) + self.places(places))))


def with_hooks(net: nn.Module, size: int) -> tuple[Step, nn.Module]:
    """Return a step of Opacus with a gradient per record, and the wrapped network."""
    model = GradSampleModule(net, loss_reduction="mean")
    optimizer = DPOptimizer(
        torch.optim.SGD(_trained(net), lr=LEARNING_RATE),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=size,
    )

    def step(x: Tensor, y: Tensor) -> None:
        cross_entropy(model(x), y).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, model


def with_ghosts(net: nn.Module, size: int) -> tuple[Step, nn.Module]:
    """Return a step of Opacus with ghost clipping, two backward passes, and the wrapped network."""
    model = GradSampleModuleFastGradientClipping(net, max_grad_norm=1.0, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(_trained(net), lr=LEARNING_RATE),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=size,
    )

    def step(x: Tensor, y: Tensor) -> None:
        losses = cross_entropy(model(x), y)
        DPTensorFastGradientClipping(model, optimizer, losses).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step, model


def with_seepage(
    net: nn.Module, size: int, view: snn.View, accounted: bool, every: int = 1, method: str = "auto"
) -> Step:
    """Return a step of our own, with or without accounting for its leakage.

    With ``every``, each record is measured once in so many steps.
    """
    index = torch.arange(size)
    accountant = snn.FisherAccountant(
        net,
        "cross_entropy",
        n=50 * size,
        batch_size=size,
        noise_multiplier=1.0,
        view=view,
        probes=1,
        clip_derivative="conservative",
        measure_every=every,
        method=method,
        individual=accounted,
    )
    accountant.check.trust()  # the same records every time are not a random draw

    def step(x: Tensor, y: Tensor) -> None:
        if accounted:
            found = accountant.observe(index, x, y, update=True)
        else:
            found = accountant.engine.step(x, y, probes=0, update=True)
        assert found.gradient is not None
        update(net, found.gradient, size)

    return step


def compare(
    make: Callable[[], nn.Module], x: Tensor, y: Tensor, view: snn.View, repeats: int
) -> dict[str, dict[str, float]]:
    """Time every method on its own copy of the network, in turns, and measure its memory.

    On an accelerator, memory is measured with nothing else on it, by a copy made for this alone.
    """
    batches = [(x.clone(), y.clone()) for _ in range(STEPS)]
    wrappers: list[Any] = []

    def made(name: str) -> Step:
        torch.manual_seed(0)
        net = make().to(x.device)
        if name == PLAIN:
            step: Step = plain_step(net)
        elif name in (HOOKS, GHOST):
            step, wrapped = (with_hooks if name == HOOKS else with_ghosts)(net, len(y))
            wrappers.append(wrapped)
        else:
            every = STEPS if name == QUARTER else 1
            moved = name == PARAMETERS or (name == QUARTER and PARAMETERS in ours)
            method = "parameters" if moved else "auto"
            step = with_seepage(net, len(y), view, name != OURS, every, method)
        step(*batches[0])  # inspects a new network
        return step

    # On an accelerator in TF32, steps of the parameters are the default.
    ours = (OURS, ACCOUNTED, QUARTER) if x.is_cuda else (OURS, ACCOUNTED, PARAMETERS, QUARTER)
    memory: dict[str, dict[str, float]] = {}
    steps: dict[str, Step] = {}
    for name in (PLAIN, HOOKS, GHOST, *ours):
        before = _reserved(x.device)
        steps[name] = made(name)
        with weighed(x.device) as peak:
            steps[name](*batches[0])
        memory[name] = {"gib": peak[0]}
        if x.is_cuda:
            _each(steps[name], batches)  # launch-bound passes of these are recorded
            most = torch.cuda.max_memory_reserved(x.device) / GIB
            memory[name]["reserved gib"] = most - before
            _forget(wrappers, steps)
    # In turns: what disturbs the machine for a minute would favour or harm a method.
    steps = steps or {name: made(name) for name in memory}
    found = Stopwatch(x.device, repeats).compare(
        {name: partial(_each, step, batches) for name, step in steps.items()}
    )
    for name, one in found.items():
        one["seconds"] /= STEPS
        one |= memory[name]
    _forget(wrappers, steps)
    return found


def _forget(wrappers: list[Any], steps: dict[str, Step]) -> None:
    for wrapped in wrappers:
        wrapped.remove_hooks()
    wrappers.clear()
    steps.clear()
    gc.collect()


def _each(step: Step, batches: list[tuple[Tensor, Tensor]]) -> None:
    for x, y in batches:
        step(x, y)


def _reserved(device: torch.device) -> float:
    """Return the GiB that an accelerator's allocator holds; on a CPU, peaks are growth anyway."""
    if device.type != "cuda":
        return 0.0
    gc.collect()
    torch.cuda.empty_cache()
    return float(torch.cuda.memory_reserved(device) / GIB)


@contextmanager
def weighed(device: torch.device) -> Iterator[list[float]]:
    """Yield a function that returns the peak memory, in GiB, of the work done inside."""
    peak = [0.0]
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        yield peak
        torch.cuda.synchronize(device)
        peak[0] = torch.cuda.max_memory_allocated(device) / GIB
        return
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # returns free memory, so that new allocations show
    before, most, done = _resident(), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            most[0] = max(most[0], _resident() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()
    peak[0] = most[0]


def _resident() -> float:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096 / GIB


def _trained(net: nn.Module) -> list[nn.Parameter]:
    return [p for p in net.parameters() if p.requires_grad]


def readme(device: torch.device, small: bool, repeats: int) -> dict[str, Any]:
    """Compare on the network of the README, on digits."""
    digits, batch = sp.data.load_bundled("digits"), 20 if small else 200
    x = torch.tensor(digits.X[:batch] / 16, device=device).float()
    y = torch.tensor(digits.y[:batch], device=device)
    print(f"\n64-32-10 of tanh, batch {batch}")

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))

    return told(compare(make, x, y, snn.Input(), 5 * repeats), (2.5, 0.0), {"claims": {}})


def convolutional(device: torch.device, small: bool, repeats: int) -> dict[str, Any]:
    """Compare on the small convolutional network of Guo et al. 2022, on random images."""
    batch = 4 if small else 200
    x = torch.rand(batch, 1, 28, 28, device=device)
    y = torch.randint(0, 10, (batch,), device=device)
    print(f"\nMNIST network of Guo et al. 2022, batch {batch}")
    return told(compare(mnist_cnn, x, y, snn.Input(), repeats), (1.5, 0.0), {"claims": {}})


def wide(device: torch.device, small: bool, repeats: int) -> dict[str, Any]:
    """Compare on WideResNet-16-4."""
    batch, widen = (4, 1) if small else (1024, 4) if device.type == "cuda" else (32, 4)
    x = torch.rand(batch, 3, 32, 32, device=device)
    y = torch.randint(0, 10, (batch,), device=device)
    print(f"\nWideResNet-16-{widen}, GroupNorm, batch {batch}")
    make = partial(wide_resnet, 16, widen)
    times = compare(make, x, y, snn.Input(), turns(device, repeats))
    return told(times, (1.2, 1.2), apart(make().to(device), None, x[:8], y[:8]))


def text(device: torch.device, small: bool, repeats: int, adapters: bool) -> dict[str, Any]:
    """Compare on GPT-2's shape, with all parameters trained or only adapters."""
    shape = (2, 16, 2, 50, 8) if small else (12, 768, 12, 50257, 256)
    batch = 2 if small else 16
    if device.type != "cuda" and not small:
        batch, shape = 2 if adapters else 4, (12, 768, 12, 50257, 64)
    tokens, length = shape[3:]
    x, y = torch.randint(0, tokens, (2, batch, length), device=device)

    def make() -> nn.Module:
        with torch.device(device):
            net = SharingGPT(*shape)
            return with_adapters(net, ("qkv", "out", "up", "down"), rank=16) if adapters else net

    count = sum(p.numel() for p in make().parameters() if p.requires_grad)
    kind = "LoRA of rank 16" if adapters else "all"
    print(f"\nGPT-2's shape, {kind}, {count / 1e6:.1f} M trained, batch {batch}, sequence {length}")
    times = compare(make, x, y, snn.Embedding("tokens"), turns(device, repeats))
    limits = (1.0, 1.35) if adapters else (1.0, 1.25)
    if adapters and device.type != "cuda":
        limits = (2.0, 0.0)
    return told(times, limits, apart(make(), "tokens", x[:4], y[:4]))


def apart(net: nn.Module, module: str | None, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Compare some records' traces with float32, on an accelerator in TF32."""
    if x.device.type != "cuda" or torch.get_float32_matmul_precision() == "highest":
        return {"claims": {}}
    view = snn.Input() if module is None else snn.Embedding(module)
    engine = snn.Engine(net, "cross_entropy", clip=snn.NoClip(), view=view)
    return against_float32(engine, net, module, x, y, training=True)


def turns(device: torch.device, repeats: int) -> int:
    """Return the number of repeats: a CPU takes seconds for a step."""
    return repeats if device.type == "cuda" else min(repeats, 3)


def told(
    found: dict[str, dict[str, float]], limits: tuple[float, float], apart: dict[str, Any]
) -> dict[str, Any]:
    """Print the table, and judge the claims.

    ``limits`` are those of an accounted step over Opacus's and of a quarter over our own (0: none).
    """
    table(found, PLAIN)
    theirs = [found[name] for name in (HOOKS, GHOST)]
    claims = {}
    for name, unit, most in (("step time", "seconds", 1.0), ("memory", "gib", 1.1)):
        ratio = found[OURS][unit] / max(min(each[unit] for each in theirs), 1e-9)
        claims[f"{name} without accounting, over Opacus's better"] = [ratio, most, ratio <= most]
    fastest = min(found[name]["seconds"] for name in (ACCOUNTED, PARAMETERS) if name in found)
    ratio = fastest / min(each["seconds"] for each in theirs)
    claims["step time accounted for, over Opacus's better"] = [
        ratio,
        limits[0],
        ratio <= limits[0],
    ]
    if limits[1]:
        ratio = found[QUARTER]["seconds"] / found[OURS]["seconds"]
        claims["step time with a quarter, over our own"] = [ratio, limits[1], ratio <= limits[1]]
    return {"times": found, **apart, "claims": claims | apart["claims"]}


if __name__ == "__main__":
    warnings.filterwarnings("ignore", "Full backward hook is firing", UserWarning)
    parts = {
        "wide": wide,
        "124M": partial(text, adapters=False),
        "LoRA": partial(text, adapters=True),
        "README": readme,
        "CNN": convolutional,
    }
    sys.exit(run("against_opacus", __doc__.splitlines()[0], parts, everywhere=True))

"""The steps that the accountant's benchmark compares, and their clock."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

import seepage.nn as snn
from seepage.nn.problem.problem import cross_entropy

GIB = 2**30


class Stopwatch:
    """Times tasks in turns, so that all meet the same disturbances, and measures peak memory."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self.device, self.repeats = device, repeats

    def compare(self, tasks: dict[str, Callable[[], object]]) -> dict[str, dict[str, float]]:
        """Return the best seconds and, on a GPU, the peak GiB of every task.

        The first run of a task, which may inspect a network, has its own peak.
        """
        best = {}
        for name, work in tasks.items():
            first, later = self._peak(work), self._peak(work)
            best[name] = {"seconds": float("inf"), "gib": later, "gib at first": first}
        order, chance = list(tasks.items()), random.Random(0)  # noqa: S311 - of the turns
        for _ in range(self.repeats):
            chance.shuffle(order)  # heavy work slows down whatever comes after it
            for name, work in order:
                torch.clear_autocast_cache()  # as at the end of a step
                self._wait()
                start = self.now()
                work()
                self._wait()
                best[name]["seconds"] = min(best[name]["seconds"], self.now() - start)
        return best

    def _peak(self, work: Callable[[], object]) -> float:
        gc.collect()
        if self.device.type != "cuda":
            work()
            return 0.0
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        work()
        self._wait()
        return torch.cuda.max_memory_allocated(self.device) / GIB

    def now(self) -> float:
        """Return the time; for one thread its CPU time, which nothing else disturbs."""
        alone = self.device.type == "cpu" and torch.get_num_threads() == 1
        return time.process_time() if alone else time.perf_counter()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def most_gib(taken: dict[str, float]) -> float:
    """Return the peak memory of a task over its first and later runs."""
    return max(taken["gib"], taken["gib at first"])


def plain_step(net: nn.Module, compiled: bool = False) -> Callable[[Tensor, Tensor], None]:
    """Return a plain training step: losses, their gradient, and a change of the parameters.

    With ``compiled``, ``torch.compile`` compiles the losses and their backward pass.
    """
    parameters = [p for p in net.parameters() if p.requires_grad]

    def mean_loss(x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(net(x), y).mean()

    run = torch.compile(mean_loss) if compiled else mean_loss

    def step(x: Tensor, y: Tensor) -> None:
        loss = run(x, y)
        for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            p.data.add_(g, alpha=-1e-6)

    return step


def training_step(
    net: nn.Module, x: Tensor, y: Tensor, compiled: bool = False
) -> Callable[[], None]:
    """Return :func:`plain_step` with the same batch every time."""
    return partial(plain_step(net, compiled), x, y)


def clipped_alone(net: nn.Module, clip: Any) -> Callable[..., dict[str, Tensor]]:
    """Return a function, to be vmapped, that computes the clipped gradient of one record."""

    def loss(parameters: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        return cross_entropy(functional_call(net, parameters, (one[None],)), label[None])[0]

    def clipped(parameters: dict[str, Tensor], one: Tensor, label: Tensor) -> dict[str, Tensor]:
        g = grad(loss)(parameters, one, label)
        norm = torch.stack([part.square().sum() for part in g.values()]).sum().sqrt()
        return {name: part * clip.factor(norm) for name, part in g.items()}

    return clipped


def vmap_step(net: nn.Module, clip: Any, x: Tensor, y: Tensor) -> Callable[[], None]:
    """Return a DP-SGD step in which ``vmap`` computes every record's gradient."""
    one = clipped_alone(net, clip)

    def step() -> None:
        parameters = {name: p.detach() for name, p in net.named_parameters()}
        each = vmap(one, in_dims=(None, 0, 0))(parameters, x, y)
        update(net, {name: part.sum(0) for name, part in each.items()}, len(y))

    return step


def coordinate_products(net: nn.Module, clip: Any, x: Tensor, y: Tensor, count: int) -> Any:
    """Return paper 004's method: products with ``count`` unit vectors, by JVPs of ``vmap``."""
    one = clipped_alone(net, clip)

    def products() -> Tensor:
        parameters = {name: p.detach() for name, p in net.named_parameters()}
        total = torch.zeros(len(y), device=x.device)
        for j in torch.randint(0, x[0].numel(), (count,)).tolist():
            unit = torch.zeros(x[0].numel(), device=x.device)
            unit[j] = 1.0
            v = unit.reshape(x.shape[1:]).expand_as(x).contiguous()
            _, change = jvp(lambda z: vmap(one, in_dims=(None, 0, 0))(parameters, z, y), (x,), (v,))
            total += sum(part.flatten(1).square().sum(1) for part in change.values())
        return total

    return products


def update(net: nn.Module, gradient: dict[str, Tensor], batch: int) -> None:
    """Take a small private step: noise, then a change of the parameters."""
    for name, p in net.named_parameters():
        if p.requires_grad:
            noisy = gradient[name] + torch.randn_like(p)
            p.data.add_(noisy, alpha=-1e-6 / batch)


def accounted_step(
    engine: snn.Engine, x: Tensor, y: Tensor, probes: int, train: bool = True
) -> Callable[[], Tensor]:
    """Return a step of private training that also measures its leakage."""

    def step() -> Tensor:
        found = engine.step(x, y, probes=probes, update=train)
        if train:
            update(engine.net, found.gradient, len(y))
        return found.traces

    return step

"""Binds a network to its per-record loss and a view, and builds batches of records.

The losses ``ℓ_i(w, z_i)`` of a batch depend on the parameters ``w`` and on each record's unknowns
``z_i``. The gradients of the losses with respect to ``w`` are released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.loss import _Loss
from torch.nn.utils.stateless import _reparametrize_module
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from seepage.errors import InputError, nearest
from seepage.nn.problem.own_loss import OwnLoss, target_weights
from seepage.nn.problem.sharding import GatheredGradients, gathered, is_sharded, spread
from seepage.nn.problem.views import (
    Inputs,
    StaysInDouble,
    View,
    numbers_of,
    plain_run,
    rows_of,
    run,
    runs_in_double,
)

Loss = Callable[[Any, Tensor], Tensor]  # of output and target: one number per record
Value = TypeVar("Value")


@dataclass(frozen=True)
class Batch:
    """A batch of records, with the current value of the variable that the view selects."""

    x: Inputs
    y: Tensor
    z: Tensor

    def __len__(self) -> int:
        return int(self.z.shape[0])

    def of_type(self, dtype: torch.dtype) -> Batch:
        """Return the batch in another floating-point type; integers are unchanged."""

        def wide(value: Tensor) -> Tensor:
            return value.to(dtype) if value.is_floating_point() else value

        return Batch(tree_map_only(Tensor, wide, self.x), wide(self.y), wide(self.z))

    def on_both_sides(self, ahead: Tensor, behind: Tensor) -> Batch:
        """Return all records moved by ``ahead``, followed by all records moved by ``behind``."""
        x, y = tree_map_only(Tensor, lambda t: torch.cat((t, t)), (self.x, self.y))
        return Batch(x, y, torch.cat((self.z + ahead, self.z + behind)))

    def records(self, rows: Tensor) -> Batch:
        """Return the records at the given positions."""
        return Batch(rows_of(self.x, rows), self.y[rows.to(self.y.device)], self.z[rows])


@dataclass
class NetworkProblem:
    """The losses ``ℓ_i(w, z_i)`` of a batch, whose gradients with respect to ``w`` are released."""

    # The network, its loss per record, and the view
    net: nn.Module
    loss: Loss
    view: View
    # Whether images and kernels are laid out channels-last, for speed alone: torch's pooling and
    # convolutions are then up to twice as fast
    channels_last: bool = False
    # The buffers that a run of the network changes. Every run gets copies of them, so that runs are
    # repeatable and the network is not changed
    changing: tuple[str, ...] = ()
    # Whether derivatives pass through regions under ``torch.no_grad()``: correct if no released
    # parameter is used in them or before them (a frozen backbone), since the parameters' gradient
    # then never reaches them, while the record's does
    reopened: bool = False
    # The type that the network runs in, if not its own: a longer one, for differences
    wider: torch.dtype | None = None
    # Whether its parameters are sharded over processes (FSDP)
    sharded: bool = False

    def __post_init__(self) -> None:
        self.sharded = self.sharded or is_sharded(self.net)
        self._parts: tuple[tuple[nn.Module, ...], dict[str, nn.Parameter]] | None = None

    @contextmanager
    def listed(self) -> Iterator[None]:
        """Open a context in which the network's modules and released parameters are listed once.

        For a network of hundreds of modules, torch takes a millisecond to list its parameters, and
        a step asks for them a dozen times.
        """
        before = self._parts
        if before is None and not self.sharded:
            self._parts = self.modules(), self.released()
        try:
            yield
        finally:
            self._parts = before

    def modules(self) -> tuple[nn.Module, ...]:
        """Return all modules of the network, each once."""
        return tuple(self.net.modules()) if self._parts is None else self._parts[0]

    def released(self) -> dict[str, nn.Parameter]:
        """Return the trained parameters, whose gradients are released."""
        if self._parts is not None:
            return dict(self._parts[1])
        net = spread(self.net) if self.sharded else self.net
        return {name: p for name, p in net.named_parameters() if p.requires_grad}

    def device(self) -> torch.device:
        """Return the device of the released parameters."""
        return next(iter(self.released().values())).device

    def detached(self) -> dict[str, Tensor]:
        """Return the released parameters, detached from the autograd graph."""
        return {name: self._laid_out(self._wide(p.detach())) for name, p in self.released().items()}

    def batch(self, x: Inputs, y: Tensor) -> Batch:
        """Return a batch of these records, with the variable that the view selects."""
        x = self._laid_out(x) if isinstance(x, Tensor) else x
        if not y.is_floating_point() and class_axis(self.loss):
            y = y.long()  # the only type of class numbers that torch's losses accept
        made = Batch(x, y, self.view.variable(self.net, x, y))
        return made if self.wider is None else made.of_type(self.wider)

    def losses(self, parameters: Mapping[str, Tensor], batch: Batch, z: Tensor) -> Tensor:
        """Return one loss per record, for these parameters and this value of the variable."""
        with self.in_place(parameters, batch, z) as losses:
            return losses()

    @contextmanager
    def in_place(
        self,
        parameters: Mapping[str, Tensor],
        batch: Batch,
        z: Tensor,
        gradients: GatheredGradients | None = None,
    ) -> Iterator[Callable[[], Tensor]]:
        """Set the network's parameters and the variable; yield a function that runs the network.

        Parameters and variable remain set for the backward pass, in which gradient checkpointing
        runs the network again. ``gradients`` collects the gradients of parameters that are sharded
        across processes.
        """
        placed = self.view.placed(self.net, batch.x, batch.y, z)
        held = _reparametrize_module(self.net, self._held(parameters), tie_weights=False)

        def losses() -> Tensor:
            with ExitStack() as stack:
                if self.reopened:
                    stack.enter_context(_Reopened())
                if z.dtype == torch.float64 and (self.wider or runs_in_double(self.net)):
                    stack.enter_context(StaysInDouble())
                given = x
                if isinstance(self.loss, OwnLoss):
                    given = stack.enter_context(self.loss.by_record(x, batch.y, y))
                values = self.loss(run(self.net, given), y)
            if values.shape != (len(batch),):
                raise InputError(
                    f"The loss must return one number per record, shape ({len(batch)},), but it "
                    f"returned shape {tuple(values.shape)}; use reduction='none'."
                )
            return values

        whole = gathered(self.net, gradients) if self.sharded else nullcontext()
        with placed as (x, y), held, whole, plain_run(self.net):
            yield losses

    def _held(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return, by name, the tensors to use as the network's parameters and buffers in a run.

        A parameter may be shared by several modules, and a module may occur several times, but each
        module is named only once. Torch's own handling of tied parameters would alter a repeated
        module.
        """
        names = {id(p): name for name, p in self.net.named_parameters()}
        out: dict[str, Tensor] = {}
        for prefix, module in self.net.named_modules():
            for leaf, p in module._parameters.items():
                if p is None:
                    continue
                place = f"{prefix}.{leaf}" if prefix else leaf
                if names[id(p)] in parameters:
                    out[place] = parameters[names[id(p)]]
                elif self.wider is not None:
                    out[place] = self._wide(p.detach())
        buffers = dict(self.net.named_buffers())
        for name in self.changing if self.wider is None else buffers:
            out[name] = self._wide(buffers[name])
        for name in self.changing:
            out[name] = out[name].clone()
        return out

    def _wide(self, tensor: Tensor) -> Tensor:
        short = self.wider is not None and tensor.is_floating_point()
        return tensor.to(self.wider) if short else tensor

    def _laid_out(self, tensor: Tensor) -> Tensor:
        if not self.channels_last or tensor.dim() != 4:
            return tensor
        # A copy even if a single channel makes both layouts the same, since torch looks at the
        # strides.
        out = torch.empty_like(tensor, memory_format=torch.channels_last)
        return out.copy_(tensor)


class _Reopened(TorchFunctionMode):  # type: ignore[misc]
    """Keeps gradients enabled even if the network's code disables them."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if function is torch._C._set_grad_enabled and not args[0]:
            return None
        return function(*args, **(kwargs or {}))


def cross_entropy(output: Any, target: Tensor) -> Tensor:
    """Return the cross-entropy of each record; classes are along the last axis of ``output``.

    ``target`` contains class numbers, or probabilities in the shape of ``output`` (soft targets).
    For a sequence, the cross-entropy is the mean over its positions.
    """
    output = _one_tensor(output)
    if target.is_floating_point():
        if target.shape != output.shape:
            raise InputError(
                f"Soft targets must have the shape of the network's output, {tuple(output.shape)}, "
                f"not {tuple(target.shape)}."
            )
        entries = -(target * torch.log_softmax(output, -1)).sum(-1)
    else:
        if target.shape != output.shape[:-1]:
            raise InputError(
                f"Class numbers for outputs of shape {tuple(output.shape)} must have the shape "
                f"{tuple(output.shape[:-1])}, not {tuple(target.shape)}."
            )
        flat = functional.cross_entropy(
            output.reshape(-1, output.shape[-1]), target.reshape(-1), reduction="none"
        )
        entries = flat.reshape(target.shape)
    return entries.flatten(1).mean(1) if entries.dim() > 1 else entries


def mse(output: Any, target: Tensor) -> Tensor:
    """Return half the squared error of each record, summed over its outputs."""
    output = _one_tensor(output)
    if target.numel() != output.numel() or target.shape[:1] != output.shape[:1]:
        raise InputError(
            f"Targets for outputs of shape {tuple(output.shape)} need the same number of entries "
            f"per record, but their shape is {tuple(target.shape)}; reshape the targets."
        )
    wanted = target.to(output.dtype).reshape(output.shape)
    return (output - wanted).square().reshape(len(output), -1).sum(1) / 2


def _one_tensor(output: Any) -> Tensor:
    tensor = numbers_of(output)
    if not isinstance(tensor, Tensor):
        raise InputError(
            f"The network's output, of type {type(output).__name__}, is not a tensor and has no "
            "logits; pass a loss function of this output and the target."
        )
    return tensor


_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss)
_NAMED: dict[str, Loss] = {"cross_entropy": cross_entropy, "mse": mse, "own": OwnLoss()}


def per_record(loss: str | nn.Module | Loss) -> Loss:
    """Return a loss in any supported form as a function ``(output, target) → (batch,)``.

    The options of a torch loss module still apply; only the average over the batch is removed.
    """
    if isinstance(loss, str):
        if loss not in _NAMED:
            raise InputError(
                f"There is no loss {loss!r}{nearest(loss, _NAMED)}; name one of "
                f"{', '.join(_NAMED)}, or give a function."
            )
        return _NAMED[loss]
    if isinstance(loss, _Loss):
        return UnreducedLoss(loss)
    if not callable(loss):
        raise InputError(
            "loss must be 'cross_entropy', 'mse', 'own' (the model's own loss, from the labels in "
            "its inputs), a torch loss module, or a function of output and target that returns one "
            "loss per record."
        )
    return loss


class UnreducedLoss:
    """A torch loss module with its options, applied per record.

    With ``reduction="sum"`` or ``"batchmean"``, the entries of a record are summed. With other
    reductions, the entries are averaged as the module would average that record alone: positions
    with ``ignore_index`` are left out, and all other positions are weighted by class. If a record
    has a single entry, its loss keeps the class weight.
    """

    def __init__(self, module: _Loss) -> None:
        self.module = module
        self._add_up = module.reduction in ("sum", "batchmean")

    def __call__(self, output: Any, target: Tensor) -> Tensor:
        """Return the loss of each record."""
        before = self.module.reduction
        self.module.reduction = "none"
        try:
            entries = self.module(_one_tensor(output), target)
        finally:
            self.module.reduction = before
        if entries.dim() <= 1:
            return entries
        total = entries.flatten(1).sum(1)
        if self._add_up:
            return total
        if not isinstance(self.module, _CLASSES) or target.is_floating_point():
            return total / entries[0].numel()
        weight, ignored = self.module.weight, self.module.ignore_index
        shares = target_weights(target, weight, ignored, total.dtype).flatten(1).sum(1)
        tiny = torch.finfo(total.dtype).tiny  # a record with only ignored positions has loss 0
        return total / shares.clamp(min=tiny)


def class_axis(loss: Loss) -> int | None:
    """Return the class axis of the output, or ``None`` if there is none."""
    inner = getattr(loss, "loss", loss)  # inside a wrapper that only observes it
    if inner is cross_entropy:
        return -1
    classes = isinstance(inner, UnreducedLoss) and isinstance(inner.module, _CLASSES)
    return 1 if classes else None


def without_output(loss: Loss, target: Tensor, classes: int) -> Tensor:
    """Return which targets are neither valid class numbers nor ignored by the loss."""
    inner = getattr(loss, "loss", loss)
    outside = (target < 0) | (target >= classes)
    if isinstance(inner, UnreducedLoss) and isinstance(inner.module, _CLASSES):
        outside &= target != inner.module.ignore_index
    return outside


class Chunks:
    """Splits batches into chunks, and into smaller chunks when memory runs out."""

    def __init__(self, size: int | str = "auto") -> None:
        if size != "auto" and (not isinstance(size, int) or size < 1):
            raise InputError(f"chunk_size must be 'auto' or a positive integer, not {size!r}.")
        self.size = size if isinstance(size, int) else None
        self.found: int | None = None  # the size that fits, once a larger one has failed

    def step(self, count: int, held: int, device: torch.device) -> int:
        """Return how many of ``count`` records to process at once, each of ``held`` bytes."""
        if self.size is not None:
            return self.size
        # The bytes that a pass may hold; larger chunks gain nothing. Not those that are free now,
        # so that runs are repeatable.
        room = 1 << 30
        if device.type == "cuda":
            half = int(torch.cuda.get_device_properties(device).total_memory) // 2
            room = min(20 << 30, half)
        fits = max(1, room // max(1, held))
        largest = min(count, fits if self.found is None else min(fits, self.found))
        return -(-count // -(-count // largest))  # chunks of about the same size

    def run(
        self, work: Callable[[slice], Value], count: int, held: int, device: torch.device
    ) -> list[Value]:
        """Apply ``work`` to all chunks; if memory runs out, repeat with smaller chunks."""
        while True:
            step = self.step(count, held, device)
            try:
                return [
                    work(slice(start, min(start + step, count))) for start in range(0, count, step)
                ]
            except torch.OutOfMemoryError:
                if self.size is not None or step == 1:
                    raise
                self.found = (step + 1) // 2
            torch.cuda.empty_cache()

"""Runs networks whose parameters are sharded across processes, for example by FSDP2.

Each process stores a shard of every parameter (a ``DTensor``, from ``fully_shard``) and its own
records. A parameter is gathered for the call that uses it, and again in the backward pass, so no
process ever stores the whole network. FSDP's hooks are disabled during these passes, because they
would replace the traced tensors. All processes must run the same passes, because each process waits
for the shards of all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._pytree import tree_leaves, tree_map

from seepage.support.library_classes import library_of

# Functions that do not need a parameter's values; its descriptors (``shape``, ``dtype``) have
# ``__get__``
_NUMBERLESS = {
    *("__get__", "__len__", "detach", "dim", "element_size", "is_complex", "is_floating_point"),
    *("ndimension", "nelement", "numel", "requires_grad_", "size", "stride"),
}


def is_sharded(net: nn.Module) -> bool:
    """Return whether a network's parameters are sharded across processes."""
    return any(is_part(p) for p in net.parameters())


def is_part(value: Any) -> bool:
    """Return whether a value is a tensor that is sharded across processes."""
    return isinstance(value, Tensor) and hasattr(value, "full_tensor")


def spread(net: nn.Module) -> nn.Module:
    """Reshard the parameters that FSDP has left whole, and return the network.

    FSDP leaves the outermost module's parameters whole after a forward pass, because a backward
    pass may follow.
    """
    for module in net.modules():
        if any(
            kind.__name__ == "FSDPModule" and library_of(kind) == "torch"
            for kind in type(module).__mro__
        ):
            module.reshard()
    return net


def put_together(tensor: Tensor) -> Tensor:
    """Return the whole tensor, gathering its shards if needed; all processes must call this."""
    return _put_together(tensor) if is_part(tensor) else tensor


def spread_like(held: Any, whole: Tensor) -> Tensor:
    """Shard a whole tensor like ``held``, or return it unchanged if ``held`` is whole."""
    if not is_part(held):
        return whole
    from torch.distributed.tensor import distribute_tensor

    sharded: Tensor = distribute_tensor(whole.to(held.device), held.device_mesh, held.placements)
    return sharded


@contextmanager
def gathered(net: nn.Module, gradients: GatheredGradients | None = None) -> Iterator[None]:
    """Open a context that gathers each parameter when it is used; nesting has no further effect.

    A context that watches parameters must be entered inside this one to see the sharded parameters.
    """
    modes = _get_current_function_mode_stack()
    if not is_sharded(net) or any(isinstance(mode, _Gathering) for mode in modes):
        yield
        return
    with _Gathering(gradients):
        yield


class GatheredGradients:
    """Collects the gradients of whole parameters in the backward pass of a sharded network."""

    def __init__(self) -> None:
        self.anchor = torch.zeros((), requires_grad=True)
        self._found: dict[int, Tensor] = {}

    def add(self, part: Tensor, gradient: Tensor) -> None:
        """Add the gradient from one use of a parameter."""
        before = self._found.get(id(part))
        self._found[id(part)] = gradient if before is None else before + gradient

    def of(self, total: Tensor, parts: list[Tensor]) -> list[Tensor]:
        """Return the gradients of the scalar ``total`` with respect to the parameters ``parts``."""
        torch.autograd.grad(total, self.anchor, materialize_grads=True)
        return [
            self._found.get(id(part), torch.zeros(part.shape, dtype=part.dtype, device=part.device))
            for part in parts
        ]


class _Gathering(TorchFunctionMode):  # type: ignore[misc]
    """Calls every torch function with whole parameters instead of their shards."""

    def __init__(self, gradients: GatheredGradients | None) -> None:
        super().__init__()
        self.gradients = gradients

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        numberless = getattr(function, "__name__", "") in _NUMBERLESS
        if numberless or not any(is_part(leaf) for leaf in tree_leaves((args, kwargs))):
            return function(*args, **kwargs)
        parts: dict[int, Tensor] = {}  # by the memory address of the whole one

        def whole(value: Any) -> Any:
            if not is_part(value):
                return value
            if value.requires_grad and self.gradients is not None:
                full = _Whole.apply(self.gradients.anchor, value.detach(), value, self.gradients)
            else:
                full = _put_together(value)
            parts[full.untyped_storage().data_ptr()] = value.detach()
            return full

        def pack(saved: Tensor) -> Any:
            part = parts.get(saved.untyped_storage().data_ptr())
            if part is None:
                return saved
            return part, saved.shape, saved.stride(), saved.storage_offset()

        args, kwargs = tree_map(whole, (args, kwargs))
        with saved_tensors_hooks(pack, _unpack):
            return function(*args, **kwargs)


def _unpack(kept: Any) -> Tensor:
    if isinstance(kept, Tensor):
        return kept
    part, shape, stride, offset = kept
    return _put_together(part).as_strided(shape, stride, offset)


def _put_together(part: Any) -> Tensor:
    with torch._C.DisableTorchFunction(), torch.no_grad():
        full: Tensor = part.detach().full_tensor()
        return full.contiguous()


class _Whole(Function):  # type: ignore[misc]
    """A whole parameter whose gradient is collected, not passed on to its shard."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, numbers: Any, part: Any, gradients: Any) -> Tensor:
        ctx.part, ctx.gradients = part, gradients
        return _put_together(numbers)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> Any:
        ctx.gradients.add(ctx.part, delta.detach())
        return None, None, None, None

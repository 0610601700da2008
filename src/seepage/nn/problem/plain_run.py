"""Runs a network without what training adds to it for speed or memory alone.

None of it changes what a network computes, and all of it stands in the way of watching a network
or of differentiating its gradients: compiled modules hide their functions; a cache of keys and
values is of use for generating text only; a hook that has the output of an embedding require a
gradient (Hugging Face's ``enable_input_require_grads``) is there for a kind of checkpointing that
nobody needs any more; and checkpointing itself, which runs parts of a network once more on the way
back, cannot be differentiated a second time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_HOOKS = ("make_inputs_require_grads", "make_inputs_require_grad")  # Hugging Face's and PEFT's
_CASTS = {
    *(Tensor.to, Tensor.type, Tensor.softmax, Tensor.log_softmax, Tensor.sum, Tensor.mean),
    *(torch.softmax, torch.log_softmax, torch.sum, torch.mean),
    *(functional.softmax, functional.log_softmax),
}


@contextmanager
def plain_run(net: nn.Module) -> Iterator[None]:
    """Switch off, while inside, what a network has for speed or memory alone."""
    with ExitStack() as stack:
        for module in net.modules():
            _switch(stack, module, "_compiled_call_impl", None)  # of ``module.compile()``
            _switch(stack, module.__dict__.get("config"), "use_cache", False)
            _unhook(stack, module._forward_hooks)
        yield


@contextmanager
def twice_differentiable_run(net: nn.Module) -> Iterator[None]:
    """Switch off, while inside, what cannot be differentiated a second time.

    That is the checkpointing of Hugging Face's layers, and the autocast which accelerate puts
    around a model's forward pass, but not around the way back.
    """
    with ExitStack() as stack:
        for module in net.modules():
            _switch(stack, module, "gradient_checkpointing", False)
            if "_original_forward" in module.__dict__:
                _switch(stack, module, "forward", module.__dict__["_original_forward"])
        yield


def _switch(stack: ExitStack, owner: Any, name: str, off: Any) -> None:
    """Set what is on to off, until the stack is left."""
    value = getattr(owner, "__dict__", {}).get(name)
    if value:
        object.__setattr__(owner, name, off)
        stack.callback(object.__setattr__, owner, name, value)


def _unhook(stack: ExitStack, hooks: Any) -> None:
    """Take hooks away that ask for gradients, until the stack is left."""
    for key in [k for k, hook in hooks.items() if getattr(hook, "__name__", "") in _HOOKS]:
        stack.callback(hooks.move_to_end, key, last=False)
        stack.callback(hooks.__setitem__, key, hooks.pop(key))


def runs_in_double(net: nn.Module) -> bool:
    """Return whether all real numbers that a network holds are float64."""
    return all(p.dtype == torch.float64 for p in net.parameters() if p.is_floating_point())


class StaysInDouble(TorchFunctionMode):  # type: ignore[misc]
    """Has a network that runs in float64 stay there where it asks for float32.

    Networks cast to float32 so that numbers of 16 bits get longer for a while (Hugging Face's do
    for logits and norms); those of float64 would get shorter, and differences of gradients drown
    in that rounding.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function is Tensor.float:
            return args[0].double()
        if function in _CASTS:
            args = tuple(_whole(value) for value in args)
            kwargs = {name: _whole(value) for name, value in kwargs.items()}
        return function(*args, **kwargs)


def _whole(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value

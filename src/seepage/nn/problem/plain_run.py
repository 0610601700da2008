"""Runs a network without what training adds to it for speed or memory alone.

None of it changes what a network computes, and all of it stands in the way of watching a network
or of differentiating its gradients: compiled modules hide their functions; checkpointing runs parts
of a network once more on the way back; a cache of keys and values is of use for generating text
only; and a hook that has the output of an embedding require a gradient (Hugging Face's
``enable_input_require_grads``) is there to keep checkpointing alive.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_SWITCHES: tuple[tuple[str, Any], ...] = (
    ("_compiled_call_impl", None),  # of ``module.compile()``
    ("gradient_checkpointing", False),  # of Hugging Face's layers
)
_HOOKS = ("make_inputs_require_grads", "make_inputs_require_grad")  # Hugging Face's and PEFT's
_CASTS = {
    *(Tensor.to, Tensor.type, Tensor.softmax, Tensor.log_softmax, Tensor.sum, Tensor.mean),
    *(torch.softmax, torch.log_softmax, torch.sum, torch.mean),
    *(functional.softmax, functional.log_softmax),
}


@contextmanager
def plain_run(net: nn.Module) -> Iterator[None]:
    """Switch off, while inside, what a network has for speed or memory alone."""
    switched: list[tuple[Any, str, Any]] = []
    unhooked: list[tuple[Any, int, Any]] = []
    for module in net.modules():
        held = module.__dict__
        for name, off in _SWITCHES:
            if held.get(name):
                switched.append((module, name, held[name]))
                object.__setattr__(module, name, off)
        config = held.get("config")
        if getattr(config, "use_cache", False) is True:
            switched.append((config, "use_cache", True))
            object.__setattr__(config, "use_cache", False)
        hooks = module._forward_hooks
        for key in [k for k, hook in hooks.items() if getattr(hook, "__name__", "") in _HOOKS]:
            unhooked.append((hooks, key, hooks.pop(key)))
    try:
        yield
    finally:
        for owner, name, value in switched:
            object.__setattr__(owner, name, value)
        for hooks, key, hook in reversed(unhooked):
            hooks[key] = hook
            hooks.move_to_end(key, last=False)


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

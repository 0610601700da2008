"""A network without Opacus's hooks that shares every parameter with the one under training.

Opacus's hooks would take part in the accountant's own passes and store per-example gradients of
them. The shadow has modules of its own, but the same parameters and buffers.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import nn

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def innermost(net: nn.Module) -> nn.Module:
    """Return the user's network inside the wrappers of Opacus and of data parallelism."""
    while True:
        inner = getattr(net, "_module", None) or getattr(net, "module", None)
        if not isinstance(inner, nn.Module) or type(net).__module__.split(".")[0] not in (
            "opacus",
            "torch",
        ):
            return net
        net = inner


def without_opacus(net: nn.Module) -> nn.Module:
    """Return a shadow of the network inside, without the hooks that Opacus has put there."""
    inner = innermost(net)
    handles = getattr(inner, "autograd_grad_sample_hooks", ())
    theirs = {(id(handle.hooks_dict_ref()), handle.id) for handle in handles}
    return _shadow(inner, theirs, {})


def _shadow(
    module: nn.Module, dropped: set[tuple[int, int]], done: dict[int, nn.Module]
) -> nn.Module:
    if id(module) in done:  # a module used twice stays one module
        return done[id(module)]
    copy = module.__class__.__new__(module.__class__)
    copy.__dict__ = dict(module.__dict__)
    done[id(module)] = copy
    for name in _HOOKS:
        hooks: OrderedDict[int, Any] = module.__dict__.get(name, OrderedDict())
        kept = ((key, hook) for key, hook in hooks.items() if (id(hooks), key) not in dropped)
        copy.__dict__[name] = OrderedDict(kept)
    copy.__dict__["_modules"] = {
        name: None if child is None else _shadow(child, dropped, done)
        for name, child in module._modules.items()
    }
    return copy

"""Maps the names under which arrays are sent to the network's own names.

Clients send a ``state_dict`` with the network's own names, or with names changed by other tools.
Wrappers (Opacus, ``DataParallel``, ``torch.compile``) add a prefix. Flower's ``NumPyClient`` sends
a plain list, with arrays called ``"0"``, ``"1"``, …, and peft omits the adapter's name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

from torch import nn

_WRAPPERS = ("_module.", "module.", "_orig_mod.")
Value = TypeVar("Value")


def with_own_names(net: nn.Module, sent: Mapping[str, Value]) -> dict[str, Value]:
    """Return the sent arrays under the network's own names; unknown names are unchanged.

    Examples
    --------
    >>> from torch import nn
    >>> from seepage.layers.federated.sent_names import with_own_names
    >>> net = nn.Linear(3, 2)
    >>> with_own_names(net, {"_module.weight": 1, "_module.bias": 2})
    {'weight': 1, 'bias': 2}
    >>> with_own_names(net, {"0": 1, "1": 2})
    {'weight': 1, 'bias': 2}
    """
    state = list(net.state_dict())
    if not sent or any(name in state for name in sent):
        return _with_adapters(net, state, sent)
    if list(sent) == [str(k) for k in range(len(sent))]:
        trained = [name for name, _ in net.named_parameters()]
        for own in (state, trained):
            if len(own) == len(sent):
                return dict(zip(own, sent.values(), strict=True))
    for prefix in _WRAPPERS:
        if all(name.startswith(prefix) for name in sent):
            return with_own_names(net, {k.removeprefix(prefix): v for k, v in sent.items()})
    return _with_adapters(net, state, sent)


def _with_adapters(
    net: nn.Module, state: Collection[str], sent: Mapping[str, Value]
) -> dict[str, Value]:
    """Restore the parts of names that peft omits.

    The omitted parts are ``default`` in ``lora_A.default.weight``, and ``modules_to_save.default``
    for modules that are trained completely.
    """
    own: dict[str, str] = {}
    adapters = getattr(net, "peft_config", {})
    for adapter in adapters if isinstance(adapters, Mapping) else ():
        for name in state:
            parts = name.split(".")
            if adapter in parts:
                left_out = (adapter, "modules_to_save")
                own.setdefault(".".join(part for part in parts if part not in left_out), name)
    return {name if name in state else own.get(name, name): v for name, v in sent.items()}

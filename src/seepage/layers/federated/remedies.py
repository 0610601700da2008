"""Remedies that a client applies to layers: noise, freezing, less frequent sending, low rank.

Each remedy changes the network that is trained, or the part of the update that is sent; simulated
runs measure the remedy's benefit and cost (:func:`seepage.attacks.compare_remedies`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seepage.errors import InputError
from seepage.layers.layer_parameters import layer_parameters
from seepage.support.number_check import check_count, check_positive


@dataclass(frozen=True)
class UpdateRemedy:
    """A remedy for named layers, created by ``noise``, ``freeze``, ``rarely`` or ``low_rank``.

    Parameters
    ----------
    kind
        ``"noise"``, ``"freeze"``, ``"rarely"`` or ``"low rank"``.
    layers
        The names of modules, each of which includes its submodules.
    amount
        The standard deviation of the noise, the number of rounds between updates sent, or the rank.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> remedy = sp.layers.UpdateRemedy.low_rank("0", 2)
    >>> remedy.name
    'low rank (2) of 0'
    >>> net = remedy.network(torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.Tanh()))
    >>> sum(p.numel() for p in net.parameters() if p.requires_grad)
    100
    """

    kind: str
    layers: tuple[str, ...]
    amount: float = 0.0

    @classmethod
    def noise(cls, layers: str | Sequence[str], deviation: float) -> UpdateRemedy:
        """Add Gaussian noise with this standard deviation to every entry of the layers' parameters.

        No noise is added to other values that are sent, such as BatchNorm's running statistics.
        """
        check_positive(deviation, "deviation")
        return cls("noise", _names(layers), float(deviation))

    @classmethod
    def freeze(cls, layers: str | Sequence[str]) -> UpdateRemedy:
        """Freeze the layers, so that they are neither trained nor sent."""
        return cls("freeze", _names(layers))

    @classmethod
    def rarely(cls, layers: str | Sequence[str], every: int) -> UpdateRemedy:
        """Send the layers every ``every`` rounds; in other rounds, discard their changes."""
        check_count(every, "every", 2)
        return cls("rarely", _names(layers), float(every))

    @classmethod
    def low_rank(cls, layers: str | Sequence[str], rank: int) -> UpdateRemedy:
        """Freeze the layers, and train and send a change of this rank (LoRA, Hu et al. 2021)."""
        check_count(rank, "rank")
        return cls("low rank", _names(layers), float(rank))

    @property
    def name(self) -> str:
        """A short description of the remedy."""
        which = ", ".join(self.layers)
        return {
            "noise": f"noise {self.amount:.2g} on {which}",
            "freeze": f"{which} frozen",
            "rarely": f"{which} sent every {self.amount:g} rounds",
            "low rank": f"low rank ({self.amount:g}) of {which}",
        }[self.kind]

    def network(self, net: nn.Module) -> nn.Module:
        """Return a copy of the network in the form trained under this remedy."""
        layer_parameters(net, self.layers)  # refuses unknown names
        changed = copy.deepcopy(net)
        for layer in self.layers:
            if self.kind == "low rank":
                parent, _, own = layer.rpartition(".")
                module = LowRankChange(changed.get_submodule(layer), int(self.amount), layer)
                setattr(changed.get_submodule(parent), own, module)
            elif self.kind == "freeze":
                _below(changed, layer).requires_grad_(False)
        if not any(p.requires_grad for p in changed.parameters()):
            raise InputError(
                "With these layers frozen, there are no parameters to train and send; leave at "
                "least one layer unfrozen."
            )
        return changed

    def applied(
        self, update: Mapping[str, Tensor], turn: int, draw: torch.Generator
    ) -> dict[str, Tensor]:
        """Return an update as sent in a given round; parameters that are not sent are zero."""
        return {name: self._leaving(name, value, turn, draw) for name, value in update.items()}

    def sends(self, name: str, turn: int) -> bool:
        """Return whether changes of this parameter or buffer are sent in a given round."""
        held_back = self.kind == "freeze" or (self.kind == "rarely" and turn % int(self.amount))
        return not (held_back and self._covers(name))

    def _covers(self, name: str) -> bool:
        return any(name == layer or name.startswith(f"{layer}.") for layer in self.layers)

    def _leaving(self, name: str, value: Tensor, turn: int, draw: torch.Generator) -> Tensor:
        if not self.sends(name, turn):
            return torch.zeros_like(value)
        if self.kind != "noise" or not self._covers(name):
            return value
        noise = torch.randn(value.shape, generator=draw, dtype=value.dtype).to(value.device)
        return value + self.amount * noise


class LowRankChange(nn.Module):  # type: ignore[misc]
    """A frozen linear layer or convolution with a trained low-rank change.

    Parameters
    ----------
    base
        The layer, of type ``nn.Linear`` or ``nn.Conv2d``; it is frozen.
    rank
        The rank of the change; the change itself is zero initially.
    name
        The layer's name, for the error message.
    """

    def __init__(self, base: nn.Module, rank: int, name: str = "it") -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        options: dict[str, Any] = {"bias": False}
        if isinstance(base, nn.Linear):
            like = {"device": base.weight.device, "dtype": base.weight.dtype}
            self.down: nn.Module = nn.Linear(base.in_features, rank, **options, **like)
            self.up: nn.Module = nn.Linear(rank, base.out_features, **options, **like)
        elif isinstance(base, nn.Conv2d) and base.groups == 1:
            like = {"device": base.weight.device, "dtype": base.weight.dtype}
            for shape in ("stride", "padding", "dilation", "padding_mode"):
                options[shape] = getattr(base, shape)
            self.down = nn.Conv2d(base.in_channels, rank, base.kernel_size, **options, **like)
            self.up = nn.Conv2d(rank, base.out_channels, 1, bias=False, **like)
        else:
            raise InputError(
                "A low-rank change needs an nn.Linear, or an nn.Conv2d without groups, but "
                f"{name} is of type {type(base).__name__}; name another layer."
            )
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output plus the change."""
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


def _below(net: nn.Module, layer: str) -> Any:
    """Return the module with this name, or the network's own parameter with this name."""
    own = dict(net.named_parameters(recurse=False))
    return own[layer] if layer in own else net.get_submodule(layer)


def _names(layers: str | Sequence[str]) -> tuple[str, ...]:
    names = (layers,) if isinstance(layers, str) else tuple(layers)
    if not names:
        raise InputError("A remedy needs at least one layer; name a layer.")
    return names

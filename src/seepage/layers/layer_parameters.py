"""The parameters of each layer; a layer is a module under its name in the network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from seepage.errors import InputError, nearest

Layout = dict[str, tuple[str, ...]]


def layer_parameters(net: nn.Module, layers: Sequence[str] | None = None) -> Layout:
    """Return the trained parameters of every layer, in the order of the network.

    A layer is a module with its own parameters, under its name in ``net.named_modules()``. A
    parameter of the network itself is a layer under the parameter's name. Weights that several
    modules share belong to the first of these modules. If ``layers`` names modules
    (``"encoder.block1"``), each of them is a layer together with its submodules.

    Examples
    --------
    >>> from torch import nn
    >>> from seepage.layers.layer_parameters import layer_parameters
    >>> layer_parameters(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1, bias=False)))
    {'0': ('0.weight', '0.bias'), '2': ('2.weight',)}
    """
    trained = [name for name, p in net.named_parameters() if p.requires_grad]
    if not trained:
        raise InputError(
            "The network has no parameter with requires_grad, so nothing is sent; unfreeze some "
            "parameters."
        )
    names_by_layer: dict[str, list[str]] = {}
    asked = [layers] if isinstance(layers, str | int) else layers
    if asked is not None and not len(asked):
        raise InputError("layers is empty; omit the argument to use all layers.")
    if asked is None:
        for name in trained:
            names_by_layer.setdefault(name.rpartition(".")[0] or name, []).append(name)
    else:
        known = [name for name, _ in net.named_modules() if name]
        for layer in asked:
            if not isinstance(layer, str):
                raise InputError(
                    f"layers contains {layer!r} ({type(layer).__name__}), but module names must be "
                    f"strings; write {str(layer)!r}."
                )
            below = [name for name in trained if name == layer or name.startswith(f"{layer}.")]
            if not below:
                raise InputError(
                    f"There is no layer {layer!r} with trained parameters"
                    f"{nearest(layer, known)}; use names from net.named_modules()."
                )
            names_by_layer[layer] = below
        named = [name for names in names_by_layer.values() for name in names]
        twice = sorted({name for name in named if named.count(name) > 1})
        if twice:
            raise InputError(
                f"The parameter {twice[0]!r} belongs to two of the named layers; name layers that "
                "do not contain one another."
            )
    return {layer: tuple(names) for layer, names in names_by_layer.items()}


def layer_sizes(net: nn.Module, layout: Layout) -> dict[str, int]:
    """Return the number of entries in each layer's gradient."""
    sizes = {name: p.numel() for name, p in net.named_parameters()}
    return {layer: sum(sizes[name] for name in names) for layer, names in layout.items()}

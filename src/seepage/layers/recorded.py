"""Records what a client would send: gradients of batches, or updates that were seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seepage.chunks import progress
from seepage.errors import InputError
from seepage.layers.gradients import WIDTH, LayerGradients
from seepage.layers.naming import Layout, layer_parameters, layer_sizes
from seepage.layers.sketch import Sketch
from seepage.nn.losses import Loss, per_example
from seepage.nn.validation import unwrapped
from seepage.nn.views import call

_HELD = 64  # gradients gathered where the network lives before they are fetched


def record_gradients(
    net: nn.Module,
    loss: str | nn.Module | Loss,
    batches: Iterable[tuple[Any, Tensor]],
    *,
    layers: Sequence[str] | None = None,
    width: int = WIDTH,
    seed: int = 0,
) -> LayerGradients:
    """Return the mean gradient of every batch, layer by layer: what FedSGD would send.

    The network is used in its present mode and stays as it is.

    Parameters
    ----------
    net, loss
        The network, and its loss as for :class:`seepage.nn.Engine`.
    batches
        Pairs of inputs and targets.
    layers
        Names of modules; by default every module that has parameters of its own.
    width
        Layers with more numbers than this are projected to it at random.
    seed
        Of the projection: recordings to be compared need the same.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> batches = [(torch.randn(32, 4), torch.randint(0, 2, (32,))) for _ in range(6)]
    >>> sp.layers.record_gradients(net, "cross_entropy", batches)
    <6 gradients of 2 layers>
    """
    net = unwrapped(net)
    losses = per_example(loss)
    layout = layer_parameters(net, layers)
    keeper = _Keeper(layout, layer_sizes(net, layout), width, seed)
    trained = {name: p for name, p in net.named_parameters() if p.requires_grad}
    items = list(batches) if not isinstance(batches, Sequence) else batches
    for x, y in progress(items, "recording gradients"):
        with torch.enable_grad():
            total = losses(call(net, x), y).mean()
        found = torch.autograd.grad(total, list(trained.values()), materialize_grads=True)
        keeper.add(dict(zip(trained, found, strict=True)))
    return keeper.result()


def record_updates(
    net: nn.Module,
    updates: Iterable[Mapping[str, Tensor]],
    *,
    layers: Sequence[str] | None = None,
    width: int = WIDTH,
    seed: int = 0,
) -> LayerGradients:
    """Return updates that were seen, ``{parameter name: tensor}`` each, layer by layer.

    Parameters are those of :func:`record_gradients`; ``net`` gives the layers their names and
    sizes.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> net = torch.nn.Linear(3, 2)
    >>> seen = [{"weight": torch.ones(2, 3), "bias": torch.zeros(2)}]
    >>> sp.layers.record_updates(net, seen).norms.round(3)
    array([[2.449, 0.   ]])
    """
    net = unwrapped(net)
    layout = layer_parameters(net, layers)
    keeper = _Keeper(layout, layer_sizes(net, layout), width, seed)
    shapes = {name: p.shape for name, p in net.named_parameters()}
    for update in updates:
        for name in (name for names in layout.values() for name in names):
            if name not in update or update[name].shape != shapes[name]:
                raise InputError(
                    f"An update lacks the parameter {name!r} in the shape {tuple(shapes[name])}; "
                    "was it made by another network?"
                )
        keeper.add(update)
    return keeper.result()


class _Keeper:
    """Gathers projected gradients, and fetches them from the device now and then."""

    def __init__(self, layout: Layout, sizes: Mapping[str, int], width: int, seed: int) -> None:
        if width < 1:
            raise InputError(f"width must be at least 1, not {width}.")
        self._layout, self._sizes = layout, sizes
        self._sketches = {k: Sketch(size, width, seed, k) for k, size in sizes.items()}
        self._held: list[tuple[list[Tensor], Tensor]] = []
        self._blocks: dict[str, list[Any]] = {layer: [] for layer in layout}
        self._norms: list[Any] = []

    def add(self, gradients: Mapping[str, Tensor]) -> None:
        rows, norms = [], []
        for layer, names in self._layout.items():
            flat = torch.cat([gradients[name].detach().flatten() for name in names])[None]
            rows.append(self._sketches[layer].apply(flat))
            norms.append(flat.norm())
        self._held.append((rows, torch.stack(norms)))
        if len(self._held) == _HELD:
            self._fetch()

    def _fetch(self) -> None:
        for k, layer in enumerate(self._layout):
            together = torch.cat([rows[k] for rows, _ in self._held])
            self._blocks[layer].append(together.float().cpu())
        self._norms.append(torch.stack([norms for _, norms in self._held]).double().cpu())
        self._held = []

    def result(self) -> LayerGradients:
        if self._held:
            self._fetch()
        if not self._norms:
            raise InputError("There is nothing to record: give at least one batch or update.")
        blocks = {layer: torch.cat(parts).numpy() for layer, parts in self._blocks.items()}
        norms = torch.cat(self._norms).numpy()
        if not torch.isfinite(torch.from_numpy(norms)).all():
            raise InputError("A gradient is not finite; check the data and the parameters for NaN.")
        variances = {layer: sketch.counts() for layer, sketch in self._sketches.items()}
        return LayerGradients(blocks, dict(self._sizes), norms, variances)

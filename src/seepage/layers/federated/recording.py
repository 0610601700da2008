"""Records what a client would send: gradients of batches, or updates that were seen."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seepage.errors import InputError
from seepage.layers.federated.gradients import WIDTH, CountSketch, LayerGradients
from seepage.layers.federated.rounds import Update
from seepage.layers.inputs_and_targets import check_classes, read_pair
from seepage.layers.layer_parameters import layer_parameters, layer_sizes
from seepage.nn.gradients.network_checks import unwrapped
from seepage.nn.problem.problem import Loss, per_record
from seepage.nn.problem.views import call
from seepage.support.chunks import progress
from seepage.tables.source import as_numpy

_HELD = 64  # gradients gathered where the network lives before they are fetched


def record_gradients(
    net: nn.Module,
    loss: str | nn.Module | Loss,
    batches: Iterable[tuple[Any, Tensor]],
    *,
    layers: Sequence[str] | None = None,
    width: int = WIDTH,
    seed: int = 0,
    nodes: Any = None,
) -> LayerGradients:
    """Return the mean gradient of every batch, layer by layer: what FedSGD would send.

    The network is used in its present mode and stays as it is: buffers that change in a run
    (running statistics of BatchNorm in training mode) are put back after every batch.

    Parameters
    ----------
    net, loss
        The network, and its loss as for :class:`seepage.nn.Engine`.
    batches
        Pairs of inputs and targets, tensors or NumPy arrays.
    layers
        Names of modules; by default every module that has parameters of its own.
    width
        Layers with more numbers than this are projected to it at random.
    seed
        Of the projection: recordings to be compared need the same.
    nodes
        Which client each batch belongs to, by which V-information groups them.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> batches = [(torch.randn(32, 4), torch.randint(0, 2, (32,))) for _ in range(6)]
    >>> sp.layers.record_gradients(net, "cross_entropy", batches)
    <6 gradients of 2 layers>
    """
    net = unwrapped(net)
    losses = per_record(loss)
    keeper = _Keeper(net, layers, width, seed)
    trained = {name: p for name, p in net.named_parameters() if p.requires_grad}
    items = list(batches) if not isinstance(batches, Sequence) else batches
    for number, batch in enumerate(progress(items, "recording gradients")):
        x, y = read_pair(batch, net, loss, f"Batch {number}")
        if len(y) == 0:
            raise InputError(f"Batch {number} is empty; leave it out.")
        with torch.enable_grad(), _kept_buffers(net):
            output = call(net, x)
            check_classes(loss, output, y, f"Batch {number}")
            total = losses(output, y).mean()
            found = torch.autograd.grad(total, list(trained.values()), materialize_grads=True)
        keeper.add(dict(zip(trained, found, strict=True)))
    return replace(keeper.result(), nodes=None if nodes is None else as_numpy(nodes))


def record_updates(
    net: nn.Module,
    updates: Iterable[Mapping[str, Any] | Update],
    *,
    layers: Sequence[str] | None = None,
    width: int = WIDTH,
    seed: int = 0,
    nodes: Any = None,
) -> LayerGradients:
    """Return updates that were seen, layer by layer.

    Each is an :class:`Update` or ``{parameter name: tensor or array}``. The other parameters are
    those of :func:`record_gradients`; ``net`` gives the layers their names and sizes. An
    :class:`Update` knows its clients: unless ``nodes`` are given, they are its node.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> net = torch.nn.Linear(3, 2)
    >>> seen = [{"weight": torch.ones(2, 3), "bias": torch.zeros(2)}]
    >>> sp.layers.record_updates(net, seen).norms.round(3)
    array([[2.449, 0.   ]])
    """
    net = unwrapped(net)
    keeper = _Keeper(net, layers, width, seed)
    shapes = {name: p.shape for name, p in net.named_parameters()}
    senders = []
    for update in updates:
        if isinstance(update, Update):
            senders.append("+".join(str(client) for client in update.clients))
        values = update.values if isinstance(update, Update) else update
        if not isinstance(values, Mapping):
            raise InputError(
                "An update must be an Update or a mapping of parameter names to tensors, not "
                f"{type(values).__name__}."
            )
        found = {}
        for name in (name for names in keeper.layout.values() for name in names):
            if name not in values or tuple(values[name].shape) != tuple(shapes[name]):
                raise InputError(
                    f"An update lacks the parameter {name!r} in the shape {tuple(shapes[name])}; "
                    "was it made by another network?"
                )
            found[name] = torch.as_tensor(values[name])
        keeper.add(found)
    seen = keeper.result()
    if nodes is not None:
        return replace(seen, nodes=as_numpy(nodes))
    return replace(seen, nodes=np.array(senders)) if len(senders) == len(seen) else seen


def blank_recording(
    net: nn.Module, *, layers: Sequence[str] | None = None, width: int = WIDTH, seed: int = 0
) -> LayerGradients:
    """Return a recording without a gradient yet: the layers, their sizes and projections.

    Examples
    --------
    >>> import torch
    >>> from seepage.layers.federated.recording import blank_recording
    >>> blank_recording(torch.nn.Sequential(torch.nn.Linear(30, 10)), width=100)
    <0 gradients of 1 layers; 0 projected from 310 to 100 numbers>
    """
    return _Keeper(unwrapped(net), layers, width, seed).blank


class _Keeper:
    """Gathers projected gradients, and fetches them from the device now and then."""

    def __init__(self, net: nn.Module, layers: Sequence[str] | None, width: int, seed: int) -> None:
        if width < 1:
            raise InputError(f"width must be at least 1, not {width}.")
        self.layout = layer_parameters(net, layers)
        sizes = layer_sizes(net, self.layout)
        self._sketches = {k: CountSketch(size, width, seed, k) for k, size in sizes.items()}
        # Made before anything is recorded, so that names it refuses are refused at once.
        self.blank = LayerGradients(
            {k: np.empty((0, s.width), dtype=np.float32) for k, s in self._sketches.items()},
            sizes,
            np.empty((0, len(sizes))),
            {k: s.counts() for k, s in self._sketches.items()},
            {k: s.key for k, s in self._sketches.items() if s.projects},
        )
        self._held: list[tuple[list[Tensor], Tensor]] = []
        self._blocks: dict[str, list[Any]] = {layer: [] for layer in self.layout}
        self._norms: list[Any] = []

    def add(self, gradients: Mapping[str, Tensor]) -> None:
        rows, norms = [], []
        for layer, names in self.layout.items():
            flat = torch.cat([gradients[name].detach().flatten() for name in names])[None]
            rows.append(self._sketches[layer].apply(flat))
            norms.append(flat.norm())
        self._held.append((rows, torch.stack(norms)))
        if len(self._held) == _HELD:
            self._fetch()

    def _fetch(self) -> None:
        for k, layer in enumerate(self.layout):
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
        return replace(self.blank, blocks=blocks, norms=norms)


@contextmanager
def _kept_buffers(net: nn.Module) -> Iterator[None]:
    """Put the network's buffers back to what they were."""
    owned = [(module, name) for module in net.modules() for name in module._buffers]
    before = [(module, name, module._buffers[name]) for module, name in owned]
    values = [None if buffer is None else buffer.clone() for _, _, buffer in before]
    try:
        yield
    finally:
        with torch.no_grad():
            for (module, name, buffer), value in zip(before, values, strict=True):
                if buffer is not None and value is not None:
                    buffer.copy_(value)
                module._buffers[name] = buffer

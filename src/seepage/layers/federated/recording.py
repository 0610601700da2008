"""Records client updates: gradients of batches, or observed updates."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seepage.errors import InputError, accepts_other_names
from seepage.layers.federated.buffers import kept_buffers
from seepage.layers.federated.gradients import BUFFERS, WIDTH, CountSketch, LayerGradients
from seepage.layers.federated.rounds import Update, mean_gradient
from seepage.layers.federated.sent_names import with_own_names
from seepage.layers.inputs_and_targets import read_pair
from seepage.layers.layer_parameters import Layout, layer_parameters
from seepage.nn.gradients.network_checks import unwrapped
from seepage.nn.gradients.per_record_gradients import record_lengths
from seepage.nn.problem.problem import Loss
from seepage.support.chunks import progress
from seepage.support.number_check import check_count
from seepage.tables.source import as_numpy


@accepts_other_names
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
    """Return the mean gradient of every batch, layer by layer, as sent in FedSGD.

    The network is used in its current mode and is not changed: buffers that change in a forward
    pass (BatchNorm's running statistics in training mode) are restored after every batch.

    Parameters
    ----------
    net, loss
        The network, and its loss as for :class:`seepage.nn.Engine`.
    batches
        Pairs of inputs and targets, tensors or NumPy arrays.
    layers
        The names of modules; by default, every module that has its own parameters.
    width
        Layers with more than ``width`` entries are randomly projected to ``width`` entries.
    seed
        The seed of the projection; recordings can be compared only if they have the same seed.
    nodes
        The client to which each batch belongs; for V-information, gradients are grouped by client.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> batches = [(torch.randn(32, 4), torch.randint(0, 2, (32,))) for _ in range(6)]
    >>> sp.layers.record_gradients(net, "cross_entropy", batches)
    <6 gradients of 2 layers>
    """
    net = unwrapped(net)
    gradients = batch_gradients(net, loss, batches)
    return record_updates(net, gradients, layers=layers, width=width, seed=seed, nodes=nodes)


def batch_gradients(
    net: nn.Module, loss: str | nn.Module | Loss, batches: Iterable[tuple[Any, Tensor]]
) -> Iterator[dict[str, Tensor]]:
    """Yield the mean gradient of every batch by parameter name; the network is unchanged.

    Examples
    --------
    >>> import torch
    >>> from seepage.layers.federated.recording import batch_gradients
    >>> batches = [(torch.ones(4, 3), torch.zeros(4, 1))]
    >>> [list(found) for found in batch_gradients(torch.nn.Linear(3, 1), "mse", batches)]
    [['weight', 'bias']]
    """
    items = list(batches) if not isinstance(batches, Sequence) else batches
    for number, batch in enumerate(progress(items, "recording gradients")):
        x, y = read_pair(batch, net, loss, f"Batch {number}")
        with kept_buffers(net):
            gradient = mean_gradient(net, loss, x, y, f"Batch {number}")
        yield gradient


@accepts_other_names
def record_updates(
    net: nn.Module,
    updates: Iterable[Mapping[str, Any] | Update],
    *,
    layers: Sequence[str] | None = None,
    width: int = WIDTH,
    seed: int = 0,
    nodes: Any = None,
    like: LayerGradients | None = None,
) -> LayerGradients:
    """Return observed updates, layer by layer, including buffers and other arrays sent.

    Each update is an :class:`Update`, or a mapping ``{name: tensor or array}`` that includes every
    trained parameter. Buffers that were also sent (BatchNorm's running statistics) are stored as a
    separate entry of their layer, ``"bn1.buffers"`` in addition to ``"bn1"``. Any other array is an
    entry under its own name. All updates must contain the same entries. Names may be those of a
    wrapper (Opacus), of peft's adapters or of a plain list (see
    :mod:`seepage.layers.federated.sent_names`). The other parameters are those of
    :func:`record_gradients`; ``net`` determines the names and sizes of the layers. An
    :class:`Update` contains its clients and its round; unless ``nodes`` is given, the clients serve
    as the node. Integers (int8) in place of parameters raise an error unless their quantisation
    scale is sent too. With ``like``, layers are projected as in that recording, regardless of
    ``width`` and ``seed``.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> net = torch.nn.Linear(3, 2)
    >>> seen = [{"weight": torch.ones(2, 3), "bias": torch.zeros(2)}]
    >>> sp.layers.record_updates(net, seen).norms.round(3)
    array([[2.449, 0.   ]])
    """
    net = unwrapped(net)
    recorder: _Recorder | None = None
    senders, rounds = [], []
    for update in updates:
        if isinstance(update, Update):
            senders.append("+".join(str(client) for client in update.clients))
            rounds.append(update.round)
        values = update.values if isinstance(update, Update) else update
        if not isinstance(values, Mapping):
            raise InputError(
                "An update must be an Update or a mapping of parameter names to tensors, not "
                f"{type(values).__name__}."
            )
        values = with_scales(with_own_names(net, values), real_names(net))
        recorder = recorder or _Recorder(net, values, layers, width, seed, like)
        recorder.add(values)
    if recorder is None:
        raise InputError("There is nothing to record; give at least one batch or update.")
    seen = recorder.result()
    if len(rounds) == len(seen):
        seen = replace(seen, nodes=np.array(senders), rounds=np.array(rounds))
    return seen if nodes is None else replace(seen, nodes=as_numpy(nodes))


def blank_recording(
    net: nn.Module,
    sent: Mapping[str, Any],
    *,
    layers: Sequence[str] | None = None,
    width: int = WIDTH,
    seed: int = 0,
) -> LayerGradients:
    """Return an empty recording for these updates, with layers, sizes and projections.

    Examples
    --------
    >>> import torch
    >>> from seepage.layers.federated.recording import blank_recording
    >>> net = torch.nn.Sequential(torch.nn.Linear(30, 10), torch.nn.BatchNorm1d(10))
    >>> blank_recording(net, net.state_dict(), width=100)
    <0 gradients of 3 layers; 0 projected from 310 to 100 numbers>
    """
    return _Recorder(unwrapped(net), sent, layers, width, seed).blank


def sent_layers(
    net: nn.Module, names: Collection[str], layers: Sequence[str] | None = None
) -> Layout:
    """Return the names of the sent arrays by layer, in the order of the network.

    Trained parameters belong to their layer; buffers belong to an entry ``"<layer>.buffers"``, a
    name that no module can have. Any other sent array is an entry under its own name: buffers of
    the network itself, frozen parameters, and arrays unknown to the network. With ``layers``, only
    these modules and their submodules are included.

    Examples
    --------
    >>> from torch import nn
    >>> from seepage.layers.federated.recording import sent_layers
    >>> net = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, affine=False))
    >>> sent_layers(net, ["1.running_mean", "0.weight", "0.bias", "control"])
    {'0': ('0.weight', '0.bias'), '1.buffers': ('1.running_mean',), 'control': ('control',)}
    """
    trained = layer_parameters(net, layers)
    home = {name: layer for layer, own in trained.items() for name in own}
    first = {name for name, _ in net.named_parameters()}
    shared = {name for name, _ in net.named_parameters(remove_duplicate=False)} - first
    buffers = {name for name, _ in net.named_buffers(remove_duplicate=False)}
    names_by_entry: dict[str, list[str]] = {}
    for name in dict.fromkeys([*net.state_dict(), *home, *names]):
        wanted = name in home or name in names
        above = [layer for layer in trained if name.startswith(f"{layer}.")]
        if not wanted or name in shared or (layers is not None and name not in home and not above):
            continue
        entry = home.get(name, name)
        if name in buffers and "." in name:
            entry = f"{name.rpartition('.')[0] if layers is None else above[0]}{BUFFERS}"
        names_by_entry.setdefault(entry, []).append(name)
    return {entry: tuple(held) for entry, held in names_by_entry.items()}


def real_names(net: nn.Module) -> set[str]:
    """Return the names of the network's real-valued parameters and buffers, without its counters.

    The types of the sent values do not show which ones are counters: FedAvg averages counters too,
    and sends them as real numbers.
    """
    own = chain(net.named_parameters(), net.named_buffers())
    return {name for name, value in own if value.is_floating_point()}


def dequantised(values: Any, name: str, *, real: bool) -> Tensor:
    """Return sent values as a tensor; raise an error if real values were sent as integers.

    A quantised torch tensor contains its scale; plain integers (int8) do not.

    Examples
    --------
    >>> import torch
    >>> from seepage.layers.federated.recording import dequantised
    >>> dequantised(torch.tensor([3], dtype=torch.int8), "weight", real=True)
    Traceback (most recent call last):
    ...
    seepage.errors.InputError: 'weight' was sent as whole numbers (int8): a quantised update ...
    """
    value = torch.as_tensor(values)
    if getattr(value, "is_quantized", False):  # torch is going to give such tensors up
        return value.dequantize()
    if real and not (value.is_floating_point() or value.is_complex()):
        raise InputError(
            f"{name!r} was sent as whole numbers ({str(value.dtype).removeprefix('torch.')}): a "
            f"quantised update cannot be measured without its scale; send {name + '.scale'!r} too, "
            "or record scale × (value − zero point)."
        )
    return value


def with_scales(values: Mapping[str, Any], real: Collection[str]) -> dict[str, Any]:
    """Return an update in which integers sent with their scale are real numbers again.

    ``weight`` becomes ``weight.scale × (weight − weight.zero_point)``. The scale and the zero point
    are one number each, or one for each position along the first axis. A zero point that was not
    sent is 0.

    Examples
    --------
    >>> import torch
    >>> from seepage.layers.federated.recording import with_scales
    >>> sent = {"weight": torch.tensor([3, 1], dtype=torch.int8), "weight.scale": 0.5}
    >>> with_scales(sent, {"weight"})
    {'weight': tensor([1.5000, 0.5000])}
    """
    kept = dict(values)
    for name in [name for name in real if name in kept and f"{name}.scale" in kept]:
        whole = torch.as_tensor(kept[name])
        if whole.is_floating_point():
            continue  # the scale is an array of its own
        parts = [kept.pop(f"{name}.scale"), kept.pop(f"{name}.zero_point", 0.0)]
        scale, zero = (torch.as_tensor(part).double().flatten() for part in parts)
        fits = all(len(part) in (1, *whole.shape[:1]) for part in (scale, zero))
        if not (fits and bool((scale > 0).all()) and bool(torch.isfinite(scale).all())):
            raise InputError(
                f"The scale of {name!r} must be one positive number, or one for each position "
                "along its first axis; send the scale with which it was quantised."
            )
        shape = (-1, *[1] * (whole.dim() - 1))
        kept[name] = (scale.view(shape) * (whole.double() - zero.view(shape))).float()
    return kept


class _Recorder:
    """Stores projected updates, all of which must contain the same entries as the first."""

    def __init__(
        self,
        net: nn.Module,
        first: Mapping[str, Any],
        layers: Sequence[str] | None,
        width: int,
        seed: int,
        like: LayerGradients | None = None,
    ) -> None:
        check_count(width, "width")
        self._net, self._layers, self._names = net, layers, set(first)
        self._real = real_names(net)
        self._layout = sent_layers(net, first, layers)
        known = dict(chain(net.named_parameters(), net.named_buffers()))
        self._shapes = {
            name: tuple((known[name] if name in known else first[name]).shape)
            for names in self._layout.values()
            for name in names
        }
        sizes = {
            layer: sum(math.prod(self._shapes[name]) for name in names)
            for layer, names in self._layout.items()
        }
        self._sketches = {k: CountSketch(size, width, seed, k) for k, size in sizes.items()}
        if like is not None:
            for layer in [each for each in self._sketches if each in like.layers]:
                width, key = like[layer].shape[1], like.projections.get(layer)
                self._sketches[layer] = CountSketch.again(sizes[layer], width, key)
        trained = layer_parameters(net, layers)
        # Made before anything is recorded, so that bad names are refused at once.
        self.blank = LayerGradients(
            {k: np.empty((0, s.width), dtype=np.float32) for k, s in self._sketches.items()},
            sizes,
            np.empty((0, len(sizes))),
            {k: s.counts() for k, s in self._sketches.items()},
            {k: s.key for k, s in self._sketches.items() if s.projects},
            beside=tuple(entry for entry in self._layout if entry not in trained),
        )
        self._rows: list[list[Tensor]] = []  # of every update, one for each layer
        self._norms: list[Tensor] = []

    def add(self, values: Mapping[str, Any]) -> None:
        sent = {}
        for name, shape in self._shapes.items():
            if name not in values or tuple(values[name].shape) != shape:
                raise InputError(
                    f"An update lacks the entry {name!r} of shape {shape}; record only updates "
                    "of this network, with the same entries as the first update."
                )
            value = dequantised(values[name], name, real=name in self._real).detach()
            sent[name] = value if value.is_floating_point() else value.float()
        if set(values) != self._names:
            more = sent_layers(self._net, values, self._layers)
            beyond = [n for names in more.values() for n in names if n not in self._shapes]
            if beyond:
                raise InputError(
                    f"An update also contains {beyond[0]!r}, which the first update lacks; record "
                    "updates with different entries separately."
                )
        flat = {k: torch.cat([sent[n].flatten() for n in ns]) for k, ns in self._layout.items()}
        rows = [self._sketches[k].apply(values[None]) for k, values in flat.items()]
        self._rows.append([row.float().cpu() for row in rows])
        self._norms.append(
            torch.cat([record_lengths(values[None]) for values in flat.values()]).double().cpu()
        )

    def result(self) -> LayerGradients:
        norms = torch.stack(self._norms).numpy()
        if not np.isfinite(norms).all():
            raise InputError("A gradient is not finite; check the data and the parameters for NaN.")
        columns = (torch.cat(parts).numpy() for parts in zip(*self._rows, strict=True))
        return replace(
            self.blank, blocks=dict(zip(self._layout, columns, strict=True)), norms=norms
        )

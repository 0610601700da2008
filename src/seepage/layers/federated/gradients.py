"""Recorded gradients of federated rounds, layer by layer.

Gradients too wide for memory are projected at random: every entry is added to a random bucket with
a random sign. This projection is the count sketch (Charikar, Chen and Farach-Colton 2002; "feature
hashing"). The count sketch needs one addition per entry and preserves inner products in
expectation. Independent noise remains independent, so noise may be added before or after the
projection.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seepage.errors import InputError, accepts_other_names, nearest
from seepage.nn.jacobian.random_directions import key_of
from seepage.support.chunks import row_slices
from seepage.support.number_check import check_count, check_not_negative, check_positive
from seepage.tables.names import counted
from seepage.tables.source import as_numpy

WIDTH = 4096  # most numbers kept of a layer's gradient
JOINED = "all layers"
METRICS = "client metrics"
BUFFERS = ".buffers"  # ends the name of an entry that holds a layer's buffers; no module has it


@dataclass(frozen=True, eq=False, repr=False)
class LayerGradients:
    """Recorded gradients: one row per gradient and one block of columns per layer.

    Parameters
    ----------
    blocks
        The columns of every layer, ``(n, width)``.
    sizes
        The number of entries of each layer's gradient before any projection.
    norms
        The Euclidean norms of the layers' gradients before any projection, ``(n, layers)``.
    variances
        The variance in each column of a layer due to unit noise on the gradient.
    projections
        The number that identifies the projection of each projected layer.
    nodes
        The client that sent each gradient, ``(n,)``, if known. Gradients from one client are
        similar, so V-information and the attacks group gradients by client by default.
    rounds
        The round in which each gradient was sent, ``(n,)``, if known.
    metrics
        Other numbers that were sent (number of records, loss), by name, each ``(n,)``; NaN if
        missing. These metrics are not part of the gradient, so clipping and noise do not apply to
        them.
    beside
        The entries sent in addition to the trained parameters: buffers (running statistics,
        counters), frozen parameters and other arrays. Clipping and noise do not apply to these
        entries either.
    runs
        The number of the run in which each gradient was sent, ``(n,)``, if known.
    clients
        A key of each gradient's client that is the same in all runs, ``(n,)``; empty if unknown.
        Nodes may change from run to run (:mod:`seepage.layers.federated.client_identity`).

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.layers import LayerGradients
    >>> found = LayerGradients.of({"fc1": np.ones((5, 3)), "fc2": np.zeros((5, 9000))})
    >>> found
    <5 gradients of 2 layers; fc2 projected from 9,000 to 4,096 numbers>
    >>> found.without("fc2").layers
    ('fc1',)
    """

    blocks: Mapping[str, np.ndarray]
    sizes: Mapping[str, int]
    norms: np.ndarray
    variances: Mapping[str, np.ndarray]
    projections: Mapping[str, int] = field(default_factory=dict)
    nodes: np.ndarray | None = None
    rounds: np.ndarray | None = None
    metrics: Mapping[str, np.ndarray] = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    runs: np.ndarray | None = None
    clients: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name, known in (*self.origins().items(), *self.metrics.items()):
            if known is not None and np.shape(known) != (len(self.norms),):
                raise InputError(
                    f"The recording has {counted(len(self.norms), 'gradient')}, but {name} has the "
                    f"shape {np.shape(known)}; give one entry for each gradient."
                )
        if JOINED in self.blocks:
            raise InputError(
                f"A layer is named {JOINED!r}, which is reserved for all layers together; rename "
                "this layer."
            )
        if METRICS in self.blocks and self.metrics:
            raise InputError(
                f"A layer is named {METRICS!r}, which is reserved for metrics sent with the "
                "layers; rename this layer."
            )
        for layer, block in self.blocks.items():
            if not isinstance(layer, str):
                raise InputError(
                    f"A layer is named {layer!r} ({type(layer).__name__}), but layer names must be "
                    f"strings; use {str(layer)!r}."
                )
            if block.ndim != 2 or len(block) != len(self.norms) or block.dtype.kind != "f":
                raise InputError(
                    f"Layer {layer!r} must be a floating-point array with one row per gradient, "
                    f"{len(self.norms)} in all, but it has the shape {block.shape} and the type "
                    f"{block.dtype}."
                )
            # Metrics have further columns that say whether they were sent.
            wide = block.shape[1] > self.sizes[layer] and layer != METRICS
            if wide or self.variances[layer].shape != block.shape[1:]:
                raise InputError(
                    f"Layer {layer!r} has {block.shape[1]:,} columns and "
                    f"{self.variances[layer].size:,} variances, but its gradient has "
                    f"{counted(self.sizes[layer], 'entry', 'entries')}; record the layer again."
                )
            if not np.isfinite(block).all():
                raise InputError(
                    f"The gradients of layer {layer!r} are not finite; drop gradients with NaN or "
                    "infinity."
                )
        if self.norms.shape[1:] != (len(self.blocks),) or not np.isfinite(self.norms).all():
            raise InputError("The norms must contain one finite number per gradient and layer.")

    @staticmethod
    @accepts_other_names
    def of(
        blocks: Mapping[str, Any] | LayerGradients, *, width: int = WIDTH, seed: int = 0
    ) -> LayerGradients:
        """Record gradients ``{layer: (n, size)}``; layers wider than ``width`` are projected.

        Arrays are read in chunks, so they may be memory-mapped.
        """
        if isinstance(blocks, LayerGradients):
            return blocks
        check_count(width, "width")
        if not blocks:
            raise InputError("There are no layers; give a mapping of names to arrays.")
        kept, norms, sizes, variances, projections = {}, [], {}, {}, {}
        for layer, given in blocks.items():
            values = given if hasattr(given, "shape") else _array(given, layer)
            if len(values.shape) != 2 or values.shape[0] == 0 or values.shape[1] == 0:
                raise InputError(
                    f"The gradients of layer {layer!r} must have one row per gradient, but their "
                    f"shape is {tuple(values.shape)}."
                )
            sketch = CountSketch(values.shape[1], width, seed, layer)
            rows, squares = [], []
            for piece in row_slices(*values.shape):
                part = torch.as_tensor(_array(as_numpy(values[piece]), layer))
                rows.append(sketch.apply(part).numpy())
                squares.append(part.double().square().sum(1).numpy())
            kept[layer] = np.concatenate(rows)
            norms.append(np.sqrt(np.concatenate(squares)))
            sizes[layer], variances[layer] = values.shape[1], sketch.counts()
            if sketch.projects:
                projections[layer] = sketch.key
        counts = {len(rows) for rows in kept.values()}
        if len(counts) > 1:
            raise InputError(
                f"The layers have different numbers of gradients ({sorted(counts)}); give each "
                "layer one row per gradient."
            )
        gradients = LayerGradients(kept, sizes, np.stack(norms, 1), variances, projections)
        return replace(gradients, beside=entries_of_buffers(gradients.layers))

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers, in the order of the network."""
        return tuple(self.blocks)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The layers of trained parameters, without buffers and other additional entries."""
        return tuple(k for k in self.blocks if k not in self.beside)

    @property
    def projected(self) -> tuple[str, ...]:
        """The layers whose gradients were projected."""
        return tuple(k for k, block in self.blocks.items() if block.shape[1] < self.sizes[k])

    def __len__(self) -> int:
        return len(self.norms)

    def __getitem__(self, layer: str) -> np.ndarray:
        if layer == JOINED and layer not in self.blocks:
            return np.concatenate(list(self.blocks.values()), axis=1)
        if layer not in self.blocks:
            raise InputError(
                f"There is no layer {layer!r}{nearest(layer, self.layers)}; the layers are "
                f"{', '.join(self.layers)}, and {JOINED!r}."
            )
        return self.blocks[layer]

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def projection_notes(self) -> tuple[str, ...]:
        """Return one sentence for each layer whose gradients were projected."""
        return tuple(
            f"The gradients of {layer} were projected at random from {self.sizes[layer]:,} to "
            f"{self[layer].shape[1]:,} numbers."
            for layer in self.projected
        )

    def rows(self, which: Any) -> LayerGradients:
        """Return the selected gradients."""
        blocks = {layer: block[which] for layer, block in self.blocks.items()}
        metrics = {name: values[which] for name, values in self.metrics.items()}
        origins: dict[str, Any] = {
            name: None if values is None else values[which]
            for name, values in self.origins().items()
        }
        return replace(self, blocks=blocks, norms=self.norms[which], metrics=metrics, **origins)

    def origins(self) -> dict[str, np.ndarray | None]:
        """Return clients, nodes, rounds and runs by name."""
        names = ("clients", "nodes", "rounds", "runs")
        return {name: getattr(self, name) for name in names}

    def without(self, *layers: str) -> LayerGradients:
        """Return the recording without these layers (or ``"client metrics"``)."""
        if METRICS in layers and self.metrics:
            fewer = replace(self, metrics={})
            others = [layer for layer in layers if layer != METRICS]
            return fewer.without(*others) if others else fewer
        for layer in layers:
            self[layer]  # raises for an unknown name
        left = [k for k in self.layers if k not in layers]
        if not left:
            raise InputError("At least one layer must remain; drop fewer layers.")
        return self.only(*left)

    def only(self, *layers: str) -> LayerGradients:
        """Return the recording of these layers only, in the order of the network."""
        for layer in layers:
            self[layer]  # raises for an unknown name
        kept = [k for k in self.layers if k in layers]
        places = [self.layers.index(k) for k in kept]
        return replace(
            self,
            blocks={k: self.blocks[k] for k in kept},
            sizes={k: self.sizes[k] for k in kept},
            norms=self.norms[:, places],
            variances={k: self.variances[k] for k in kept},
            projections={k: key for k, key in self.projections.items() if k in kept},
            beside=tuple(k for k in self.beside if k in kept),
        )

    def with_metrics(self) -> LayerGradients:
        """Return the recording with its metrics as the last entry, ``"client metrics"``.

        The entry has one column per metric (zero if it was not sent). A metric that was not always
        sent has a second column, which indicates whether it was. Without metrics, the recording is
        unchanged.
        """
        if not self.metrics:
            return self
        columns = []
        for values in self.metrics.values():
            there = np.isfinite(values)
            columns.append(np.where(there, values, 0.0))
            if not there.all():
                columns.append(there.astype(float))
        block = np.stack(columns, axis=1).astype(np.float32)
        return replace(
            self,
            blocks={**self.blocks, METRICS: block},
            sizes={**self.sizes, METRICS: len(self.metrics)},
            norms=np.column_stack([self.norms, np.linalg.norm(block, axis=1)]),
            variances={**self.variances, METRICS: np.ones(block.shape[1])},
            metrics={},
            beside=(*self.beside, METRICS),
        )

    def check_same_projection(self, other: LayerGradients) -> None:
        """Raise an error unless the other recording has the same layers and projections.

        Storing ``gradients.rows(slice(0))`` of a recording is enough for a later check.
        """
        alone = sorted(set(self.layers) ^ set(other.layers))
        if alone:
            raise InputError(
                f"The recordings have different layers: only one of them contains {alone[0]!r}; "
                f"leave this layer out with .without({alone[0]!r})."
            )
        if self.layers != other.layers or dict(self.sizes) != dict(other.sizes):
            raise InputError(
                "The layers of the recordings differ in size or order; record the same layers of "
                "the same network in both."
            )
        for layer in self.layers:
            alike = self.blocks[layer].shape[1] == other.blocks[layer].shape[1]
            if not alike or self.projections.get(layer) != other.projections.get(layer):
                raise InputError(
                    f"The recordings of layer {layer!r} were projected differently and cannot be "
                    "compared; use the same width and seed for both recordings."
                )

    def clipped(self, max_norm: float) -> LayerGradients:
        """Return the gradients, clipped to this norm over the trained parameters.

        Entries sent in addition are unchanged and excluded from the norm, because a batch counter
        may be larger than all parameters together.
        """
        check_positive(max_norm, "max_norm")
        factor = np.minimum(1.0, max_norm / np.maximum(self.parameter_norms(), 1e-300))[:, None]
        blocks, norms = dict(self.blocks), self.norms.copy()
        for place, layer in enumerate(self.layers):
            if layer not in self.beside:
                blocks[layer] = (blocks[layer] * factor).astype(blocks[layer].dtype)
                norms[:, place] *= factor[:, 0]
        return replace(self, blocks=blocks, norms=norms)

    @accepts_other_names
    def noised(self, scale: float, *, seed: int = 0) -> LayerGradients:
        """Return the gradients with Gaussian noise of this standard deviation on every parameter.

        For projected layers, noise is drawn after the projection, with the variance of projected
        noise. The norms remain those of the gradients without noise.
        """
        check_not_negative(scale, "scale")
        draw = np.random.default_rng(seed)
        blocks = dict(self.blocks)
        for layer in self.parameters:
            block = blocks[layer]
            noise = draw.standard_normal(block.shape) * (scale * np.sqrt(self.variances[layer]))
            blocks[layer] = (block + noise).astype(block.dtype)
        return replace(self, blocks=blocks)

    def total_norms(self) -> np.ndarray:
        """Return the norm of every gradient over all layers, ``(n,)``."""
        return np.asarray(np.sqrt(np.sum(self.norms**2, axis=1)))

    def parameter_norms(self) -> np.ndarray:
        """Return the norm of every gradient over the trained parameters, ``(n,)``."""
        own = [k not in self.beside for k in self.layers]
        return np.asarray(np.sqrt(np.sum(self.norms[:, own] ** 2, axis=1)))

    def __repr__(self) -> str:
        text = ", ".join(
            f"{k} projected from {self.sizes[k]:,} to {self.blocks[k].shape[1]:,} numbers"
            for k in self.projected
        )
        return (
            f"<{counted(len(self), 'gradient')} of {counted(len(self.blocks), 'layer')}"
            f"{'; ' + text if text else ''}>"
        )


def joined(parts: Sequence[LayerGradients]) -> LayerGradients:
    """Join several recordings that have the same layers and projections.

    The result has clients, nodes, rounds or runs only if all recordings have them. A metric is NaN
    in the rows of recordings that lack it.
    """
    first = parts[0]
    for part in parts[1:]:
        first.check_same_projection(part)
    blocks = {k: np.concatenate([part.blocks[k] for part in parts]) for k in first.layers}
    norms = np.concatenate([part.norms for part in parts])
    origins: dict[str, Any] = {}
    for name, *known in zip(first.origins(), *(p.origins().values() for p in parts), strict=True):
        there = [values for values in known if values is not None]
        origins[name] = np.concatenate(there) if len(there) == len(parts) else None
    named = dict.fromkeys(name for part in parts for name in part.metrics)
    metrics = {
        name: np.concatenate([part.metrics.get(name, np.full(len(part), np.nan)) for part in parts])
        for name in named
    }
    return replace(
        first,
        blocks=blocks,
        norms=norms,
        metrics=metrics,
        beside=tuple(dict.fromkeys(name for part in parts for name in part.beside)),
        **origins,
    )


def entries_of_buffers(layers: Sequence[str]) -> tuple[str, ...]:
    """Return the entries that hold buffers, identified by their names."""
    return tuple(layer for layer in layers if layer.endswith(BUFFERS))


class CountSketch:
    """Projects vectors of ``size`` numbers to ``width`` numbers, if ``size`` is larger.

    The same key, size and width produce the same projection.

    Examples
    --------
    >>> import torch
    >>> from seepage.layers.federated.gradients import CountSketch
    >>> CountSketch(1000, 10, "a").apply(torch.ones(3, 1000)).shape
    torch.Size([3, 10])
    >>> CountSketch(5, 10, "a").apply(torch.ones(3, 5)).sum()
    tensor(15.)
    """

    def __init__(self, size: int, width: int, *key: object) -> None:
        self.size, self.width = size, min(size, width)
        self.projects = size > width
        self.key = key_of(*key, size, width)
        self._places: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def again(size: int, width: int, key: int | None) -> CountSketch:
        """Return the projection that the key identifies; without a key, nothing is projected."""
        sketch = CountSketch(size, size if key is None else width)
        sketch.key = sketch.key if key is None else key
        return sketch

    def apply(self, vectors: Tensor) -> Tensor:
        """Return the projections of vectors, ``(n, size)``, on their device."""
        if not self.projects:
            return vectors
        bucket, sign = self._table(vectors)
        out = torch.zeros(len(vectors), self.width, dtype=vectors.dtype, device=vectors.device)
        return out.index_add_(1, bucket, vectors * sign)

    def counts(self) -> np.ndarray:
        """Return the size of each bucket, which is the variance of projected unit noise."""
        if not self.projects:
            return np.ones(self.width)
        bucket, _ = self._table(torch.zeros(1))
        return np.bincount(bucket.cpu().numpy(), minlength=self.width).astype(float)

    def _table(self, like: Tensor) -> tuple[Tensor, Tensor]:
        if self._places is None or self._places[0].device != like.device:
            draw = torch.Generator().manual_seed(self.key % (1 << 63))
            bucket = torch.randint(self.width, (self.size,), generator=draw)
            sign = torch.randint(2, (self.size,), generator=draw) * 2 - 1
            self._places = bucket.to(like.device), sign.to(like.device)
        bucket, sign = self._places
        return bucket, sign.to(like.dtype)


def _array(values: Any, layer: object) -> np.ndarray:
    kind = getattr(values, "dtype", None)
    if isinstance(kind, np.dtype) and kind.kind in "iu" and kind.itemsize == 1:
        raise InputError(
            f"The gradients of layer {layer!r} are quantised ({kind}), and cannot be interpreted "
            "without the scale; give scale × (value − zero point)."
        )
    try:
        return np.array(values, dtype=np.float32)
    except (TypeError, ValueError):
        raise InputError(
            f"The gradients of layer {layer!r} are not a table of numbers; give an array with one "
            "row per gradient."
        ) from None

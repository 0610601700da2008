"""Norms of every layer's Jacobian, exact or estimated, and extreme entries of the gradient.

The gradient of a fully connected layer is ``δ tᵀ``, from the gradient ``δ`` at its output and its
input ``t``. The norms of ``δ tᵀ`` are products of norms, and its extreme entries are products of
extreme entries, so the gradient is never formed. Gradients that must be formed (convolutions,
sequences) are computed for a few records at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from seepage.errors import InputError
from seepage.layers.measures.jacobian_columns import InputColumns, Multiples, TargetColumns
from seepage.nn.gradients.per_record_gradients import (
    GramMatrices,
    OneHot,
    OuterProducts,
    ParameterGradient,
)
from seepage.nn.gradients.watching import WatchedNetwork
from seepage.nn.jacobian.random_directions import key_of, row_signs
from seepage.nn.problem.problem import Batch
from seepage.support.chunks import progress, row_slices

Source = TargetColumns | InputColumns
NORMS: dict[object, str] = {"fro": "F", 1: "1", "inf": "∞"}  # as people write them


@dataclass
class NormTally:
    """Each layer's Jacobian norm, the norm's error variance, and the gradient's extreme entries."""

    norm: dict[str, Tensor] = field(default_factory=dict)
    variance: dict[str, Tensor] = field(default_factory=dict)
    low: dict[str, Tensor] = field(default_factory=dict)
    high: dict[str, Tensor] = field(default_factory=dict)

    def widen(self, layer: str, low: Tensor, high: Tensor) -> None:
        """Update a layer's extremes with those of one more parameter."""
        self.low[layer] = torch.minimum(self.low.get(layer, low), low)
        self.high[layer] = torch.maximum(self.high.get(layer, high), high)


@dataclass(frozen=True)
class JacobianNorms:
    """Computes the norms of the layers' Jacobians with respect to the target or the input."""

    # As for :func:`seepage.layers.sensitivity`
    wrt: str
    norm: str | int
    sizes: dict[str, int]  # the layers, with the number of entries of their gradients
    home: dict[str, str]  # the layer that each parameter belongs to
    # As for :func:`seepage.layers.sensitivity`
    exact: int
    directions: int
    seed: int

    def of(self, network: WatchedNetwork, batch: Batch, places: Tensor) -> NormTally:
        """Return norms and extremes for a batch; ``places`` are the positions of its records."""
        source = (TargetColumns if self.wrt == "target" else InputColumns)(network, batch)
        exact = batch.z[0].numel() <= self.exact
        one = source.multiples() if exact and isinstance(source, TargetColumns) else None
        if one is not None:
            tally = self._multiples(one)
        else:
            tally = NormTally()
            for (name, _), gradient in source.gradients():
                if name in self.home:
                    tally.widen(self.home[name], *extremes(gradient))
            if exact:
                tally.norm = self._whole(source, batch.z)
            else:
                self._mixed(source, batch.z, places, tally)
        zero = torch.zeros(len(batch), dtype=batch.z.dtype, device=batch.z.device)
        for layer in self.sizes:
            for part in (tally.norm, tally.variance, tally.low, tally.high):
                part.setdefault(layer, zero)  # the loss does not depend on this layer
        return tally

    def _multiples(self, one: Multiples) -> NormTally:
        """Return norms and extremes when all columns are multiples of one gradient."""
        tally = NormTally()
        for (name, _), gradient in one.gradients:
            if name in self.home:
                layer = self.home[name]
                norm = measure_norm(gradient, self.norm)
                tally.norm[layer] = _join(self.norm, tally.norm.get(layer), norm)
                low, high = (end * one.own for end in extremes(gradient))
                tally.widen(layer, torch.minimum(low, high), torch.maximum(low, high))
        if self.norm == "fro":
            tally.norm = {layer: value.sqrt() for layer, value in tally.norm.items()}
        factor = _row_norm(one.columns, self.norm)
        tally.norm = {layer: value * factor for layer, value in tally.norm.items()}
        return tally

    def _whole(self, source: Source, z: Tensor) -> dict[str, Tensor]:
        """Return the norm of every layer's Jacobian from all of its columns."""
        totals: dict[str, Tensor] = {}
        for some in _few_at_a_time(z[0].numel()):
            places = [torch.full((len(z),), k, device=z.device) for k in some]
            directions = torch.stack([_unit_vectors(z, place) for place in places])
            for column in self._columns(source, directions):
                for layer, part in column.items():
                    totals[layer] = _join(self.norm, totals.get(layer), part)
        return {k: v.sqrt() for k, v in totals.items()} if self.norm == "fro" else totals

    def _mixed(self, source: Source, z: Tensor, places: Tensor, tally: NormTally) -> None:
        """Estimate the norms; with respect to the input, compute those of small layers exactly."""
        done: set[str] = set()
        if isinstance(source, InputColumns):
            small = {n: layer for n, layer in self.home.items() if self.sizes[layer] <= self.exact}
            for layer, rows in source.rows(small):
                tally.norm[layer] = _row_norm(rows.flatten(1), self.norm)
            done = set(small.values())
        if len(done) == len(self.sizes):
            return
        columns = z[0].numel()
        if self.norm == "inf":
            raise InputError(
                f"The largest entry of a Jacobian with {columns:,} columns cannot be estimated "
                f"from a few columns; use norm='fro' or 1, or exact={columns} to compute all "
                "columns."
            )
        norms_by_direction: dict[str, list[Tensor]] = {}
        scale = 1.0 if self.norm == "fro" else float(columns)
        for some in progress(_few_at_a_time(self.directions), "sensitivity"):
            directions = torch.stack([self._direction(k, places, z) for k in some])
            for column in self._columns(source, directions):
                for layer, part in column.items():
                    norms_by_direction.setdefault(layer, []).append(scale * part)
        for layer, parts in norms_by_direction.items():
            if layer in done:
                continue
            each = torch.stack(parts)
            mean, variance = each.mean(0), each.var(0) / len(parts)
            if self.norm == "fro":  # the unbiased estimate is that of the squared norm
                variance = torch.where(mean > 0, variance / (4 * mean), torch.zeros_like(mean))
                mean = mean.sqrt()
            tally.norm[layer], tally.variance[layer] = mean, variance

    def _direction(self, number: int, places: Tensor, z: Tensor) -> Tensor:
        key = key_of(self.seed, "sensitivity", number)
        if self.norm == "fro":
            return row_signs(key, places, tuple(z.shape[1:]), z)
        return _drawn_columns(key, places, z)

    def _columns(self, source: Source, directions: Tensor) -> list[dict[str, Tensor]]:
        """Return the contribution of the change along each direction to every layer's norm."""
        out: list[dict[str, Tensor]] = [{} for _ in directions]
        for k, (name, _), gradient in source.along(directions):
            if name in self.home:
                layer, part = self.home[name], measure_norm(gradient, self.norm)
                out[k][layer] = _join(self.norm, out[k].get(layer), part)
        return out


def _few_at_a_time(count: int) -> list[range]:
    """Return the numbers below ``count`` in small ranges."""
    return [range(k, min(k + 4, count)) for k in range(0, count, 4)]  # more gain nothing


def _join(norm: object, total: Tensor | None, part: Tensor) -> Tensor:
    if total is None:
        return part
    return torch.maximum(total, part) if norm == "inf" else total + part


def _row_norm(entries: Tensor, norm: object) -> Tensor:
    if norm == "fro":
        return entries.square().sum(1).sqrt()
    return entries.abs().sum(1) if norm == 1 else entries.abs().amax(1)


def _drawn_columns(key: int, places: Tensor, z: Tensor) -> Tensor:
    """Return a random standard basis vector per record, determined by the key and its position."""
    bits = row_signs(key, places, (48,), z.double().flatten(1)[:, :1])
    powers = 0.5 ** torch.arange(1, 49, dtype=torch.float64, device=z.device)
    uniform = ((bits + 1) / 2 * powers).sum(1)
    column = (uniform * z[0].numel()).long().clamp(max=z[0].numel() - 1)
    return _unit_vectors(z, column)


def _unit_vectors(z: Tensor, places: Tensor) -> Tensor:
    """Return, for every record, the unit vector of the entry given by ``places``."""
    flat = torch.zeros(len(z), z[0].numel(), dtype=z.dtype, device=z.device)
    return flat.scatter(1, places[:, None], 1.0).reshape(z.shape)


def measure_norm(gradient: ParameterGradient, norm: object) -> Tensor:
    """Return each record's ``Σ|g_j|²`` for "fro", ``Σ|g_j|`` for 1, or ``max|g_j|`` for "inf"."""
    if norm == "fro":
        return gradient.dot(gradient, GramMatrices())
    single = _single(gradient)
    if single is not None:
        left, right = (side.abs().flatten(2) for side in single)
        if norm == 1:
            return (left.sum(2) * right.sum(2)).sum(1)
        return (left.amax(2) * right.amax(2)).amax(1)
    if norm == 1:
        return _in_pieces(gradient, lambda dense: dense.abs().sum(1))
    return _in_pieces(gradient, lambda dense: dense.abs().amax(1))


def extremes(gradient: ParameterGradient) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest entry of every record's gradient."""
    single = _single(gradient)
    if single is not None:
        left, right = (side.flatten(2) for side in single)
        corners = torch.stack(
            [a * b for a in (left.amin(2), left.amax(2)) for b in (right.amin(2), right.amax(2))]
        )
        return corners.amin(dim=(0, 2)), corners.amax(dim=(0, 2))
    low = _in_pieces(gradient, lambda dense: dense.amin(1))
    return low, _in_pieces(gradient, lambda dense: dense.amax(1))


def _single(gradient: ParameterGradient) -> tuple[Tensor, Tensor] | None:
    """Return both factors if the gradient is a single outer product, otherwise ``None``."""
    if gradient.plain is not None or len(gradient.outers) != 1:
        return None
    outer = gradient.outers[0]
    if isinstance(outer.left, OneHot) or outer.right.shape[2] != 1:
        return None
    return outer.left, outer.right


def _in_pieces(gradient: ParameterGradient, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.cat([reduce(dense) for dense in _written_out(gradient)])


def _written_out(gradient: ParameterGradient) -> Iterator[Tensor]:
    """Yield the gradients of a few records at a time, ``(b, size)``."""
    if not gradient.outers:
        if gradient.plain is not None:
            yield gradient.plain
        return
    records = len(gradient.outers[0].right)
    width = max(1, _outer_size(gradient.outers[0]))
    for rows in row_slices(records, width, chunk=1 << 24):
        dense = sum(_rows(outer, rows).written_out() for outer in gradient.outers)
        yield dense if gradient.plain is None else dense + gradient.plain[rows]


def _outer_size(outer: OuterProducts) -> int:
    left = outer.left.size if isinstance(outer.left, OneHot) else outer.left.shape[3]
    return int(outer.right.shape[1] * left * outer.right.shape[3])


def _rows(outer: OuterProducts, rows: slice) -> OuterProducts:
    left = outer.left
    if isinstance(left, OneHot):
        keep = None if left.keep is None else left.keep[rows]
        return OuterProducts(OneHot(left.index[rows], left.size, keep), outer.right[rows])
    return OuterProducts(left[rows], outer.right[rows])

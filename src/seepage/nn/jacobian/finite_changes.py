"""Finite changes: how far clipped gradients change over a step of a stated size.

Leakage over finite steps, for records, cells, tokens and runs alike, is **defined** by replacing
``‖J̃‖_F²``, the squared derivative summed over the unknowns ``z`` in question, by

    D(h) = E‖g̃(z + hv) − g̃(z)‖²/h²,      v independent random signs, one for each unknown

These d unknowns all move at once, each by ``+h`` or ``−h``, and everything else is fixed. ``D(h) =
‖J̃‖_F² + O(h²)`` where the gradient is smooth. A probe is one ``v``, and an *exact* result is the
mean over all ``2^d`` sign vectors. The dFIL is ``√(D(h)/d)`` divided by the standard deviation of
the noise. If ``Δ`` denotes the difference between two points, and a bar their mean, then

    δ₊t₊ᵀ − δ₋t₋ᵀ = Δδ t̄ᵀ + δ̄ Δtᵀ

exactly, without cancellation, for every term ``δtᵀ`` of a gradient (a term is linear in each of at
most two tensors). The gradient at each point is clipped by its own factor, which scales its ``δ``.
Only plain training passes are needed. ``D(h)`` is therefore correct even where there is no
derivative (ReLU, max pooling), or where torch cannot see it (``torch.no_grad()``, ``.detach()``,
functions with a custom backward pass).

*Thin* finite tangents estimate ``‖J̃‖_F²`` of smooth networks by ``‖g₊ − g₋‖²/4h²``, from ``z +
hv`` and ``z − hv``. They take one plain pass at training precision, in which gradients are randomly
narrowed. They work with fused attention, gradient checkpointing, compiled or quantised parts, TF32
and 16-bit numbers. The change ``Δg`` for a wide weight is not formed. Instead, ``ΔgQ`` is computed,
where ``Q`` has :data:`THIN` columns of random signs, so that ``E‖ΔgQ‖² = THIN·‖Δg‖²``. This takes a
small fraction of a training step's products. To save memory, inputs are narrowed to ``tQ`` in the
forward pass, and layers are freed one by one in the backward pass. Narrowing adds a little
variance, which the standard errors include, together with the variance due to the directions ``v``.

Two errors remain. First, the distance between two gradients is limited, so the squared quotient
falls as the step grows. Second, the rounding errors of the two sides are independent of the step
and of the change, so they *add* to the squared quotient of record i:

    s_i(h) = A_i/(1 + c h²) + r ‖g_i‖²/h²

because a gradient's rounding error is proportional to its norm. ``A_i`` is the limit for small
steps without rounding errors. Steps of several sizes (:class:`StepLadder`) give ``c`` and ``r``,
and :class:`StepErrors` removes both from every record. ``h`` is chosen so that the result changes
little when the step is halved or doubled, and the corrections are small. In networks of 0.1 to 7
billion parameters, the squared quotient in float32, divided by that of a small step, is within 0.01
of ``1/(1 + c h²)`` as long as it is above a sixth (``benchmarks/step_ladders.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn

from seepage.nn.gradients.norms import layer_by_layer, record_gradients, squared_norms
from seepage.nn.gradients.per_record_gradients import (
    GradientTerm,
    GramMatrices,
    Key,
    ParameterGradient,
    RecordGradients,
    at_least_single,
    between,
    grouped,
    record_lengths,
    sum_of,
)
from seepage.nn.gradients.watching import WatchedNetwork
from seepage.nn.jacobian.random_directions import signs
from seepage.nn.problem.clipping import Clip
from seepage.nn.problem.problem import Batch, NetworkProblem
from seepage.nn.problem.sharding import is_sharded

_CONDITION = (
    "The squared derivative is replaced by the mean square of the clipped gradient's change per "
    "unit of the step, over steps of {0:g} along random signs of the unknowns. The leakage over "
    "smaller or larger steps may differ."
)
_BALANCED = (
    "The gradient's derivative is approximated by its change over a step of {0:g} of the unknowns "
    "in either direction, with the effects of curvature and rounding removed. Besides its standard "
    "error, the squared change is uncertain by {1:.2g} % for the few records tested; other records "
    "may differ more."
)
_OF_PARAMETERS = (
    "The gradient's derivative is approximated by the change of the losses' slopes over a small "
    "step of the parameters, with the effects of curvature and rounding removed. Besides its "
    "standard error, the squared change is uncertain by {0:.2g} % for the few records tested; "
    "other records may differ more."
)
THIN = 32  # columns that gradients of wide weights are narrowed to
_LARGEST_IN_DOUBLE = 50_000_000  # most parameters of a network copied to float64
_LARGEST_IN_SINGLE = 2_000_000_000  # and, from shorter types, to float32


def finite_change(
    problem: NetworkProblem,
    network: WatchedNetwork | None,
    batch: Batch,
    v: Tensor,
    h: float,
    clip: Clip,
    types: Sequence[torch.dtype] = (),
) -> Tensor:
    """Return ``‖g̃(z + hv) − g̃(z)‖²/h²`` along directions ``v (B, …)``, ``(B,)``.

    The change is measured in the first of the longer ``types`` that the network accepts, because a
    gradient's rounding error is multiplied by ``1/h``. If the network accepts none of them, its own
    type is used. Without a ``network`` that can be traced, the records are run one by one.
    """
    for dtype in types:
        longer = None if network is None else network.of_type(dtype)
        wide = replace(problem, wider=dtype)
        try:
            change = finite_change(wide, longer, batch.of_type(dtype), v.to(dtype), h, clip)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # it holds numbers of a type that is not visible from here
            continue
        return change.to(at_least_single(batch.z))
    both = batch.on_both_sides(h * v, torch.zeros_like(v))
    if network is not None:
        return squared_distances(network, both, clip)[0] / h**2
    gradients = record_gradients(problem, both)
    ahead, behind = (gradients * clip.factor(record_lengths(gradients))[:, None]).chunk(2)
    return (ahead - behind).square().sum(1) / h**2


def longer_types(problem: NetworkProblem, batch: Batch) -> list[torch.dtype]:
    """Return the affordable floating-point types longer than the network's own, longest first."""
    if problem.sharded:  # whose shards are gathered in their own type
        return []
    held, own = _count(problem.net), batch.z.dtype
    has_double = batch.z.device.type != "mps"
    types = []
    if own != torch.float64 and held <= _LARGEST_IN_DOUBLE and has_double:
        types.append(torch.float64)
    if own.itemsize < 4 and held <= _LARGEST_IN_SINGLE:
        types.append(torch.float32)
    return types


def measured_type(net: nn.Module) -> torch.dtype | None:
    """Return float32 for a 16-bit network that is small enough, or ``None``.

    The release consists of the gradients that the network computes in its own type. Rounding in
    that type does not affect the leakage of these gradients, but would change second derivatives by
    several per cent. Larger networks run in their own type.
    """
    if is_sharded(net):
        return None
    numbers = [p for p in net.parameters() if p.is_floating_point()]
    short = any(p.dtype.itemsize < 4 for p in numbers)
    on_processor = all(p.device.type == "cpu" for p in numbers)
    largest = _LARGEST_IN_SINGLE if on_processor else _LARGEST_IN_DOUBLE
    return torch.float32 if short and _count(net) <= largest else None


def _count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


def over_steps(about: str, h: float) -> str:
    """Return the description of a result's unknowns with the size of the finite step added."""
    return f"{about}, over steps of {h:g}"


def condition_of_steps(h: float, doubt: float) -> str:
    """Return a sentence that states the assumption behind a result from finite steps.

    ``doubt`` is the relative uncertainty of the tested records' squared changes
    (:meth:`StepLadder.doubt`); it is zero if no record was tested. Without a size ``h``, the
    parameters were moved instead of the record.
    """
    if not h:
        return _OF_PARAMETERS.format(100 * doubt)
    return _BALANCED.format(h, 100 * doubt) if doubt else _CONDITION.format(h)


def squared_distances(network: WatchedNetwork, both: Batch, clip: Clip) -> tuple[Tensor, Tensor]:
    """Return the squared distance between the clipped gradients at each record's two points.

    The second result is the norms of the gradients before clipping, ``(2B,)``.
    """
    terms = network.terms(both)[1]
    with torch.no_grad():
        norms = squared_norms(terms).sqrt()
        factor = clip.factor(norms)
        squares = []
        for members in grouped(terms).values():
            parts: list[RecordGradients] = []
            for k in members:
                parts += between(*_scaled(terms[k], factor).sides())[1]
            change = ParameterGradient.of(parts)
            squares.append(change.dot(change, GramMatrices()))
    return sum_of(squares), norms


def _scaled(term: GradientTerm, factor: Tensor) -> GradientTerm:
    """Return a term whose gradients are multiplied by ``factor``, through its first tensor."""
    first, *others = term.tensors
    each = factor.repeat_interleave(len(first) // len(factor))  # a record may hold several images
    scaled = first * each.to(first.dtype).reshape(-1, *[1] * (first.dim() - 1))
    return replace(term, tensors=(scaled, *others))


@dataclass(frozen=True)
class StepErrors:
    """The errors ``r`` (rounding) and ``c`` (curvature) of finite steps; zero without errors."""

    rounding: float = 0.0
    curvature: float = 0.0

    def removed(self, squared: Tensor, norms: Tensor, h: float) -> Tensor:
        """Return ``(s − r‖g‖²/h²)(1 + c h²)``, an estimate of ``A``, from squared quotients.

        ``norms`` contains ``‖g‖²``. The result may be negative: truncating it at zero would bias
        sums over steps upwards.
        """
        if self.rounding:
            squared = squared - self.rounding / h**2 * norms
        return squared * (1 + self.curvature * h**2)

    def removed_share(self, squared: Tensor, norms: Tensor, h: float) -> float:
        """Return the relative change of the squared quotients when their errors are removed."""
        rest = squared.mean() - self.rounding / h**2 * norms.mean()
        added = self.rounding / h**2 * float(norms.mean() / rest.clamp(min=1e-300))
        return self.curvature * h**2 + added


@dataclass(frozen=True)
class ThinChange:
    """The change of every record's gradient over a step, per unit of the step.

    All tensors have shape ``(B,)``, or ``(K, B)`` for K directions.
    """

    squared: Tensor  # estimates ``‖Δg‖²/4h²``, with what rounding adds to it
    along: Tensor  # estimates ``g·Δg/2h``
    again: Tensor  # the same from other random numbers
    size: Tensor  # estimates ``‖g‖²``; zero if it was not asked for
    losses: Tensor  # the means of both sides

    def without(self, errors: StepErrors, h: float) -> ThinChange:
        """Return the change without the errors of a step of size ``h``."""
        return replace(self, squared=errors.removed(self.squared, self.size, h))

    def clipped(self, clip: Clip, norms: Tensor) -> Tensor:
        """Return an estimate of the clipped gradient's squared change, given unclipped norms."""
        along, again = self.along.to(norms.dtype), self.again.to(norms.dtype)
        return clip.squared(norms, norms**2, along, self.squared.to(norms.dtype), again)


def thin_change(
    network: WatchedNetwork,
    batch: Batch,
    v: Tensor,
    h: float,
    drawn: Tensor,
    along: bool = True,
    sized: bool = False,
) -> ThinChange:
    """Return the change of every record's gradient along its direction ``v (B, …)``.

    ``drawn`` contains the :func:`random_rows` of the matrices. ``along`` states whether to compute
    the change's component along the gradient, which clipping needs. ``sized`` states whether to
    compute the gradient's squared norm, which the rounding term needs.
    """
    total = _Totals(network, batch, drawn, along, sized)
    both = replace(batch, z=batch.z.to(at_least_single(batch.z))).on_both_sides(h * v, -h * v)
    with in_short_numbers(batch.z.device.type, batch.z.dtype):
        losses = layer_by_layer(network, both, total.take, total.thin)
    squared, first, second, size = total.sums
    parts = (squared / (2 * h) ** 2, first / (2 * h), second / (2 * h), size)
    return ThinChange(*parts, losses.reshape(2, -1).mean(0))


@contextmanager
def in_short_numbers(device: str, own: torch.dtype) -> Iterator[None]:
    """Allow a 16-bit network to accept records in float32.

    The spacing of 16-bit numbers may exceed the step size, so a 16-bit record shifted by ``hv``
    would not move at all or would move too far. Matrix products remain in the 16-bit type, at the
    same cost.
    """
    if own.itemsize > 2 or torch.is_autocast_enabled(device):
        yield
    else:
        with torch.autocast(device, own, cache_enabled=False):
            yield


class _Totals:
    """Sums ``‖Δg‖²``, ``g·Δg`` (from each half of the columns) and ``‖g‖²`` over the parameters."""

    def __init__(
        self, network: WatchedNetwork, batch: Batch, drawn: Tensor, along: bool, sized: bool
    ) -> None:
        self.network, self.along, self.sized = network, along, sized
        rows = _rows(network)
        self.thin = dict(zip(rows, drawn.split(list(rows.values())), strict=True))
        self.sums = torch.zeros(
            4, len(batch), dtype=at_least_single(batch.z), device=batch.z.device
        )

    def take(self, key: Key, terms: list[GradientTerm]) -> None:
        """Add the contribution of one parameter's terms, which contain every record twice."""
        means: list[RecordGradients] = []
        parts: list[RecordGradients] = []
        for term in terms:
            mean, changes = between(*term.sides())
            parts += changes
            if self.along or self.sized:
                means.append(mean.value())
        change = ParameterGradient.of(parts)
        value = ParameterGradient.of(means)
        if key[0] in self.thin:
            self._narrow(key[0], change, value)
            return
        grams = GramMatrices()
        self.sums[0] += change.dot(change, grams)
        if self.along:
            self.sums[1:3] += value.dot(change, grams)
        if self.sized:
            self.sums[3] += value.dot(value, grams)

    def _narrow(self, name: str, change: ParameterGradient, value: ParameterGradient) -> None:
        moved = change.dense()
        lengths = torch.linalg.vector_norm(moved, dim=1, dtype=self.sums.dtype)
        self.sums[0] += lengths.square() / THIN
        if not self.along and not self.sized:
            return
        mean = value.dense()
        if self.sized:
            lengths = torch.linalg.vector_norm(mean, dim=1, dtype=self.sums.dtype)
            self.sums[3] += lengths.square() / THIN
        if not self.along:
            return
        products = (mean * moved).to(self.sums.dtype)
        if self.network.narrow[name][0] == 0:
            columns = products.unflatten(1, (THIN, -1)).sum(2)
        else:
            columns = products.unflatten(1, (-1, THIN)).sum(1)
        self.sums[1:3] += columns.unflatten(1, (2, -1)).mean(2).T


def random_rows(network: WatchedNetwork, key: int) -> Tensor:
    """Return the rows of all matrices of random signs in one tensor, ``(…, THIN)``."""
    like = next(iter(network.problem.detached().values()))
    return signs(key, (sum(_rows(network).values()), THIN), like)


def narrowed(network: WatchedNetwork) -> list[str]:
    """Return the weights with narrowed gradients: wide weights used at many positions."""
    return list(_rows(network))


def _rows(network: WatchedNetwork) -> dict[str, int]:
    """Return the number of rows of each narrowed weight's matrix."""
    released, rows = network.problem.released(), {}
    for name, (axis, positions) in network.narrow.items():
        size = released[name].flatten(1).shape[axis]
        if positions > THIN and size > 2 * THIN:
            rows[name] = size
    return rows


def rounding_of_products() -> str:
    """Return torch's precision setting for float32 products."""
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:  # the caller has set the precision of each kind of product
        return str(torch.backends.cuda.matmul.fp32_precision)


@dataclass(frozen=True)
class StepLadder:
    """Squared changes of records' gradients per unit of the step, for several step sizes.

    Steps are numbered by octaves: step ``o`` is ``2⁻ᵒ`` times a scale. ``squared`` contains
    ``s_i(h)`` for every step, ``(B,)``, including rounding errors, and ``norms`` the squared norms
    of the records' gradients, ``(B,)``.
    """

    sizes: dict[float, float]
    squared: dict[float, Tensor]
    norms: Tensor

    @classmethod
    def over(
        cls, scale: float, octaves: Sequence[float], change: Callable[[float], ThinChange]
    ) -> StepLadder:
        """Return the ladder of a change that is given as a function of the step size."""
        sizes = {o: float(f"{scale * 2.0**-o:.1e}") if o else scale for o in octaves}
        changes = {o: change(h) for o, h in sizes.items()}
        norms = torch.stack([each.size for each in changes.values()]).double().mean(0)
        return cls(sizes, {o: each.squared.double() for o, each in changes.items()}, norms)

    def errors(self, o: float) -> StepErrors:
        """Return the errors near step ``o``, fitted to steps from twice to a quarter of its size.

        ``s = A' − c h²s + r‖g‖²/h²`` with ``A' = A + c r‖g‖²`` is linear in its unknowns: ``A'`` of
        every record, ``c`` and ``r``, none of them negative. Relative residuals are minimised. Much
        smaller steps would not fit this model, because nearly equal numbers have correlated
        rounding errors.
        """
        near = [k for k in self.sizes if o - 1 <= k <= o + 2]
        squares = torch.stack([self.squared[k] for k in near], 1).cpu().numpy()
        norms = self.norms.cpu().numpy()
        used = np.all((squares > 0) & np.isfinite(squares), axis=1) & np.isfinite(norms)
        squares, norms = squares[used], norms[used]
        if not len(norms):
            return StepErrors()
        ratios = np.array([self.sizes[k] / self.sizes[o] for k in near]) ** 2
        own = np.repeat(np.eye(len(norms)), len(near), axis=0) / squares.reshape(-1, 1)
        curved = np.tile(-ratios, len(norms))[:, None]
        rounded = (norms[:, None] / ratios / squares).reshape(-1, 1)
        columns = np.hstack((own, curved, rounded))
        size = np.abs(columns).max(axis=0).clip(min=1e-300)
        curvature, rounding = (nnls(columns / size, np.ones(len(columns)))[0] / size)[-2:]
        return StepErrors(
            float(rounding) * self.sizes[o] ** 2, float(curvature) / self.sizes[o] ** 2
        )

    def doubt(self, o: float) -> float:
        """Return the relative uncertainty of a step's squared change after its errors are removed.

        The uncertainty is the largest relative difference in a record's squared change when the
        step is halved or doubled. It does not include the random errors of directions and
        narrowing, which the probes' standard errors contain. A tenth of the removed errors is
        added, because the errors of other records may be larger or smaller. The difference is
        relative to the record's squared change or to a tenth of the mean over the records,
        whichever is larger.
        """
        errors = self.errors(o)
        twice, own, half = (
            errors.removed(self.squared[k], self.norms, self.sizes[k]) for k in (o - 1, o, o + 1)
        )
        apart = torch.maximum((twice - own).abs(), (half - own).abs())
        size = torch.maximum(own, 0.1 * own.mean()).clamp(min=1e-300)
        removed = errors.removed_share(self.squared[o], self.norms, self.sizes[o])
        return float((apart / size).max()) + 0.1 * removed

    def balanced(self) -> float:
        """Return the number of the step with the smallest uncertainty."""
        inner = [o for o in self.sizes if o - 1 in self.sizes and o + 2 in self.sizes]
        return min(inner, key=self.doubt)

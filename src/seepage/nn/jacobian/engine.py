"""What a step of private training leaks about its records: the Jacobian of clipped gradients.

A step releases ``Σ_i g̃_i + N(0, (σC)² I)`` with ``g̃ = g/φ(‖g‖)`` the clipped gradient of a
record's loss. The information about the variable ``z`` that a view names is ``J̃ᵀJ̃/(σC)²`` with
``J̃ = ∂g̃/∂z`` (paper 004, section 6). An :class:`Engine` computes products with ``J̃``, and
chooses between:

* *probes of the release* (``probes.py``): any module, no rules per layer, and every entry of the
  diagonal at once; clipped exactly with ``Jᵀg``, or safely bounded without it;
* *tangents of the record* (``tangents.py``): exact clipped norms from three scalars;
* *finite tangents* (``finite_changes.py``): changes of clipped gradients over a step of a stated
  size, for networks with kinks and anything else without a derivative;
* *thin finite tangents* (``thin_changes.py``): the same in one plain pass, at training precision,
  where derivatives cost several training steps.

Derivatives are checked against differences now and then (``derivative_check.py``), and the first
batch shows whether the network has kinks that its functions' names do not (``kink_search.py``).
The engine owns the clip, and every pass uses the current one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from seepage.errors import InputError, nearest
from seepage.nn.accounting.processes import check_agreement, largest_of_all, of_the_first
from seepage.nn.gradients.network_checks import Validator, unwrapped
from seepage.nn.gradients.norms import ClippedSum, clipped_gradient, norms, weighted_gradient
from seepage.nn.gradients.per_record_gradients import weighted_sums
from seepage.nn.gradients.watching import WatchedNetwork
from seepage.nn.jacobian.derivative_check import check_derivative, spread_over_classes
from seepage.nn.jacobian.finite_changes import (
    FiniteChange,
    FiniteStep,
    measured_type,
    record_gradients,
)
from seepage.nn.jacobian.kink_search import has_kinks, line_count
from seepage.nn.jacobian.probes import dense_probe, thin_probe
from seepage.nn.jacobian.pullbacks import RadialPull, information_product, radial_pull
from seepage.nn.jacobian.random_directions import (
    Direction,
    Directions,
    Draw,
    is_wide,
    key_of,
    random_direction,
    row_signs,
)
from seepage.nn.jacobian.replays import Replays
from seepage.nn.jacobian.tangents import inner_products, summed_change
from seepage.nn.jacobian.thin_changes import (
    ThinChange,
    balanced_step,
    narrowed,
    random_rows,
    rounding_of_products,
    thin_change,
)
from seepage.nn.problem.clipping import Clip, HardClip, NoClip
from seepage.nn.problem.model_input import ModelInput
from seepage.nn.problem.own_loss import OwnLoss
from seepage.nn.problem.problem import Batch, Chunks, Loss, NetworkProblem, per_record
from seepage.nn.problem.sharding import spread
from seepage.nn.problem.views import (
    Input,
    Inputs,
    View,
    batch_size,
    leaves,
    rows_of,
)
from seepage.support.number_check import check_positive

Value = TypeVar("Value")

_METHODS = ("auto", "derivative", "finite", "thin")
_STEP = 0.01  # of a finite change, relative to the unknowns' scale

# All records of the first batch are checked against differences (by probes, some of them one by
# one), which takes as long as two or three steps. Later checks sample some records now and then:
# something hidden in a few records of one class, and not in the first batch, may be found late.
_SOME = {"tangents": 16, "pulls": 16, "probes": 6}
_KINDS = 8  # most kinds of shapes and modes that are checked when new
_TRIED = 4  # records on which the step size is chosen


@dataclass(frozen=True)
class Step:
    """The results of one step of private training, before noise.

    Parameters
    ----------
    losses
        The loss of every record, ``(B,)``.
    norms
        ``‖g‖`` before clipping, ``(B,)``; nan without clipping, which does not need them.
    traces
        ``(B, probes)``: each column estimates ``‖∂g̃/∂z‖_F²`` without bias (or, with a conservative
        derivative of the clip, a bound above it). Not yet divided by the noise or the number of
        unknowns.
    gradient
        ``Σ_i g̃_i`` by parameter name, or ``None``.
    pulls
        ``J̃ᵀu``, ``(B, probes, …)``, or ``None``.
    """

    losses: Tensor
    norms: Tensor
    traces: Tensor
    gradient: dict[str, Tensor] | None = None
    pulls: Tensor | None = None


class Engine:
    """Measures the Jacobian of clipped per-record gradients with respect to a view of the records.

    Parameters
    ----------
    net
        The network. Its parameters with ``requires_grad`` are released; they are read at every
        call, so it can be trained in between.
    loss
        ``"cross_entropy"``, ``"mse"``, a loss module of torch, or a function of output and target
        that returns one loss per record.
    clip
        :class:`~seepage.nn.problem.clipping.HardClip` (by default with threshold 1), ``SmoothClip``
        or ``NoClip``; it may be changed between steps.
    view
        What is unknown of the records: :class:`~seepage.nn.problem.views.Input`, ``Label`` or
        ``Embedding``.
    clip_derivative
        ``"exact"``, or ``"conservative"`` for the bound ``max(1, ρ²)‖J‖_F²/φ²``, which needs no
        derivative of the norms.
    method
        How changes of the gradients are measured: as a ``"derivative"``; over a ``"finite"`` step,
        which works for any network that can be trained; or ``"thin"``, over a finite step in one
        plain pass, with the gradients of wide weights narrowed by random matrices. ``"auto"`` takes
        finite steps if the network has kinks (ReLU, max pooling), thin ones if it is wide and runs
        on an accelerator in TF32 or 16 bits, and derivatives otherwise. Finite steps give traces
        and squared changes; pullbacks to the record are always derivatives.
    scale
        The size ``h`` of a finite step, in the units of the unknowns. By default it is set by the
        first batch: a hundredth of its root mean square, to one digit, or for thin steps the size
        whose half and double agree best with it.
    chunk_size
        How many records to process at a time; ``"auto"`` finds what fits.
    seed
        The seed of the probes: the same seed and key give the same probes, whatever the chunks.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> engine = sp.nn.Engine(net, "cross_entropy", clip=sp.nn.SmoothClip(1.0))
    >>> x, y = torch.randn(10, 4), torch.randint(0, 2, (10,))
    >>> step = engine.step(x, y, probes=3)
    >>> step.traces.shape, step.norms.shape
    (torch.Size([10, 3]), torch.Size([10]))
    """

    def __init__(
        self,
        net: nn.Module,
        loss: str | nn.Module | Loss,
        *,
        clip: Clip | None = None,
        view: View | None = None,
        clip_derivative: str = "exact",
        method: str = "auto",
        scale: float | None = None,
        chunk_size: int | str = "auto",
        seed: int = 0,
    ) -> None:
        if clip_derivative not in ("exact", "conservative"):
            raise InputError(
                f"clip_derivative must be 'exact' or 'conservative', not {clip_derivative!r}."
            )
        if method not in _METHODS:
            raise InputError(
                f"method must be one of {', '.join(_METHODS)}, not {method!r}"
                f"{nearest(method, _METHODS)}."
            )
        if scale is not None:
            check_positive(scale, "scale")
        self.clip = HardClip(1.0) if clip is None else clip
        self.clip_derivative, self.seed = clip_derivative, seed
        self.method, self.scale = method, scale
        self.doubt = 0.0  # how much thin steps of half and twice the size differ
        losses = per_record(loss)
        found = ModelInput() if isinstance(losses, OwnLoss) else Input()
        self.problem = NetworkProblem(
            spread(unwrapped(net)), losses, found if view is None else view
        )
        self.problem.wider = measured_type(self.problem.net)
        self.chunks = Chunks(chunk_size)
        self._validator = Validator(self.problem)
        self._checked: set[tuple[Any, str]] = set()
        self._passes = 0  # with derivatives
        self.measured_kinks: bool | None = None  # without a name, seen in the first batch
        self._replays = Replays()

    @property
    def net(self) -> nn.Module:
        """The network."""
        return self.problem.net

    @property
    def view(self) -> View:
        """The view of the records: what is unknown."""
        return self.problem.view

    def step(
        self,
        x: Inputs,
        y: Tensor,
        *,
        probes: int = 1,
        key: object = 0,
        index: Tensor | None = None,
        update: bool = False,
        pulls: bool = False,
    ) -> Step:
        """Return the norms, estimates of the trace, and the clipped sum of one batch.

        Parameters
        ----------
        x, y
            The batch, records along the first axis.
        probes
            The number of independent estimates of the trace, perhaps 0.
        key
            The step's number, which makes its probes different from those of others.
        index
            The records' own numbers, ``(B,)``; by default their positions in the batch.
        update
            Whether to return the sum of the clipped gradients as well.
        pulls
            Whether to return ``J̃ᵀu``; this requires probes of the release.
        """
        count = batch_size(x)
        own = torch.arange(count) if index is None else torch.as_tensor(index)
        if own.shape != (count,):
            raise InputError(f"index must hold one number for each of the {count} records.")
        if count == 0:
            if self.problem.sharded:  # the others wait for this process's shards
                company = self.in_company(x, y)
                self.step(*company, probes=probes, key=key, update=update, pulls=pulls)
            return self._empty(x, probes, update, pulls)
        if self.problem.sharded:
            self._keep_together(x, y)
        if probes > 0 and not pulls and self.takes_finite_steps(x, y):
            keys = [key_of(self.seed, key, k) for k in range(probes)]
            step = self._thin_step if self._way(x, y) == "thin" else self._finite_step
            return step(x, y, keys, own, update)
        thin = probes > 0 and self._thin(x, y)
        if not thin:
            self._prepare(x, y, rules=not isinstance(self.clip, NoClip))
        if probes > 0:
            unruled = isinstance(self.clip, NoClip) and not thin
            self._differentiate(x, y, "pulls" if thin else "probes" if unruled else "tangents")
        bounded = self.clip_derivative == "conservative" or isinstance(self.clip, NoClip)
        released = probes > 0 and (thin or pulls or bounded)

        @cache
        def draw() -> list[Directions]:  # drawn when needed, while the device is busy
            keys = ((self.seed, key, k) for k in range(probes))
            return [random_direction(self.problem, *each, thin=thin) for each in keys]

        def work(batch: Batch, rows: slice) -> Step:
            if not probes:
                return self._unprobed(batch, update)
            if released:
                return self._from_probes(batch, draw, thin, update, pulls)
            shape = tuple(batch.z.shape[1:])
            keys = [key_of(self.seed, key, k) for k in range(probes)]
            v = torch.stack([row_signs(k, own[rows], shape, batch.z) for k in keys])
            return self._from_tangents(batch, self.masked(v, 2), update)

        copies = (4 if thin else 8 if released else 5) + 3 * max(0, probes - 1)
        return _joined(self._in_chunks(x, y, copies if probes else 3, work, self._network))

    def norms(self, x: Inputs, y: Tensor) -> Tensor:
        """Return the norm of every record's gradient, before clipping."""
        self._prepare(x, y)

        def work(batch: Batch, rows: slice) -> Tensor:
            return norms(self._network, batch)[0]

        return torch.cat(self._in_chunks(x, y, 3, work, self._network))

    def clipped_gradient(self, x: Inputs, y: Tensor) -> ClippedSum:
        """Return the sum of the clipped gradients, with norms and losses."""
        step = self.step(x, y, probes=0, update=True)
        assert step.gradient is not None  # noqa: S101 - it was asked for
        return ClippedSum(step.gradient, step.norms, step.losses)

    def squared_changes(
        self, x: Inputs, y: Tensor, v: Tensor, *, derivative: bool = False
    ) -> Tensor:
        """Return ``‖J̃v‖²`` for directions ``v (K, B, …)`` of the records, ``(B, K)``.

        Over finite steps if the engine uses them, unless a ``derivative`` is asked for.
        """
        if not derivative and self.takes_finite_steps(x, y):
            return self._finite_changes(x, y, lambda rows: v[:, rows], FiniteStep.precise_change)
        self._prepare(x, y)
        self._differentiate(x, y, "tangents")

        def work(batch: Batch, rows: slice) -> Tensor:
            along = self.masked(v[:, rows].to(batch.z.dtype), 2)
            found = inner_products(self._network, batch, along)
            return found.clipped(self.clip).T

        return torch.cat(self._in_chunks(x, y, 2 + 3 * len(v), work, self._network))

    def information_product(self, x: Inputs, y: Tensor, v: Tensor) -> Tensor:
        """Return ``J̃ᵀJ̃v`` for one direction ``v (B, …)`` of every record."""
        self._prepare(x, y)
        self._differentiate(x, y, "tangents")

        def work(batch: Batch, rows: slice) -> Tensor:
            along = self.masked(v[rows].to(batch.z.dtype))
            return self.masked(information_product(self._network, batch, along, self.clip))

        return torch.cat(self._in_chunks(x, y, 8, work, self._network))

    def summed_changes(self, x: Inputs, y: Tensor, v: Tensor) -> dict[str, Tensor]:
        """Return ``Σ_i J̃_i v_i`` by parameter, for one direction ``v (B, …)`` of every record."""
        self._prepare(x, y)
        self._differentiate(x, y, "tangents")

        def work(batch: Batch, rows: slice) -> dict[str, Tensor]:
            along = self.masked(v[rows].to(batch.z.dtype))
            return summed_change(self._network, batch, along, self.clip)

        parts = self._in_chunks(x, y, 5, work, self._network)
        return {name: torch.stack([part[name] for part in parts]).sum(0) for name in parts[0]}

    def pulls_along(self, x: Inputs, y: Tensor, u: Mapping[str, Tensor]) -> Tensor:
        """Return ``J̃_iᵀu_k``, ``(K, B, …)``, for K directions of every parameter, ``(K, …)``."""
        self._prepare(x, y, rules=not isinstance(self.clip, NoClip))
        self._differentiate(x, y, "probes" if isinstance(self.clip, NoClip) else "tangents")
        count = len(next(iter(u.values())))
        like = self.problem.detached()
        given = [
            {name: Direction(values[k].to(like[name].dtype)) for name, values in u.items()}
            for k in range(count)
        ]

        def work(batch: Batch, rows: slice) -> Tensor:
            found = dense_probe(self._network, batch, lambda: given, self.clip)
            return self.masked(found.pulls, 2)

        return torch.cat(self._in_chunks(x, y, 8 + 3 * (count - 1), work, self._network), 1)

    def radial_pull(self, x: Inputs, y: Tensor) -> RadialPull:
        """Return ``Jᵀg = ½∇‖g‖²`` of every record, before clipping, with norms and losses."""
        self._prepare(x, y)
        self._differentiate(x, y, "pulls")

        def work(batch: Batch, rows: slice) -> RadialPull:
            return radial_pull(self._network, batch)

        pulls, sizes, losses = zip(*self._in_chunks(x, y, 6, work, self._network), strict=True)
        return self.masked(torch.cat(pulls)), torch.cat(sizes), torch.cat(losses)

    def unknowns(self, x: Inputs, y: Tensor) -> int:
        """Return the number of unknowns of one record."""
        return self.view.unknowns(self.variable(x, y))

    def unknowns_each(self, x: Inputs, y: Tensor) -> Tensor:
        """Return the number of unknowns of each record, ``(B,)``."""
        return self.view.unknowns_each(self.net, x, y)

    def variable(self, x: Inputs, y: Tensor) -> Tensor:
        """Return the present value of the view's variable for the first record."""
        return self.view.variable(self.net, rows_of(x, slice(0, 1)), y[:1])

    def _prepare(self, x: Inputs, y: Tensor, rules: bool = True) -> None:
        """Inspect the network if that has not been done."""
        self._network: WatchedNetwork = self._validator.watched(x, y, rules)

    def takes_finite_steps(self, x: Inputs, y: Tensor) -> bool:
        """Return whether traces and squared changes of such a batch are over finite steps."""
        return self._way(x, y) != "derivative"

    def _way(self, x: Inputs, y: Tensor) -> str:
        """Return how traces are measured: by a ``"derivative"``, ``"finite"`` or ``"thin"``."""
        if self.method != "auto":
            return self.method
        network = self._validator.watched(x, y, rules=False)
        if self._kinked(x, y):
            return "finite"
        short = has_short_numbers(self.net, self.problem.device())
        otherwise = "finite" if self.problem.sharded else "derivative"
        return "thin" if short and narrowed(network) else otherwise

    def _kinked(self, x: Inputs, y: Tensor) -> bool:
        """Return whether the network has kinks, by the names of its functions or as measured.

        The first batch decides for all: a run must not change its method on the way.
        """
        network = self._validator.watched(x, y, rules=False)
        if network.plan.kinks or self.problem.sharded:
            return bool(network.plan.kinks)
        if self.measured_kinks is None:
            self.measured_kinks = self._look_for_kinks(network, x, y)
            if self.measured_kinks:
                self._validator.tell_of_measured_kinks()
        return self.measured_kinks

    def _look_for_kinks(self, network: WatchedNetwork, x: Inputs, y: Tensor) -> bool:
        """Return whether losses jump, or their slopes do, on lines between some of the records."""
        count = line_count(network.bytes_per_record)
        scale, some = self.view.scale(self.net, x, y), spread_over_classes(y, count, 0)
        batch = self.problem.batch(rows_of(x, some), y[some])
        held = 6 * network.bytes_per_record  # twice as long numbers, and what lies in between

        def in_chunks(work: Callable[[slice], Tensor], rows: int) -> list[Tensor]:
            return self.chunks.run(work, rows, held, self.problem.device())

        return has_kinks(self.problem, batch, scale, count, in_chunks)

    def step_size(self, x: Inputs, y: Tensor) -> float:
        """Return the size of a finite step; by default set by the first batch."""
        if self.scale is None:
            size = self.view.scale(self.net, x, y)
            if self._way(x, y) == "thin":
                self.scale, self.doubt = balanced_step(self._tried(x, y), size)
            else:
                self.scale = float(f"{_STEP * size:.0e}")
            if self.problem.sharded:
                told = torch.tensor([self.scale, self.doubt], dtype=torch.float64)
                self.scale, self.doubt = of_the_first(told).tolist()
        return self.scale

    def _tried(self, x: Inputs, y: Tensor) -> Callable[[float], Tensor]:
        """Return the squared changes of a few records as a function of the size of the step."""
        some = slice(min(_TRIED, len(y)))
        x, y = rows_of(x, some), y[some]
        network, batch = self._validator.watched(x, y), self.problem.batch(x, y)
        key = key_of(self.seed, "size of steps")
        shape = tuple(batch.z.shape[1:])
        v = self.masked(row_signs(key, torch.arange(len(batch)), shape, batch.z))
        drawn = random_rows(network, key)
        return lambda h: thin_change(network, batch, v, h, drawn, along=False).squared

    def _thin_step(self, x: Inputs, y: Tensor, keys: list[int], own: Tensor, update: bool) -> Step:
        """Return a step whose traces are changes over finite steps, narrowed by thin matrices."""
        h = self.step_size(x, y)
        self._prepare(x, y)
        exact = self.clip_derivative == "exact" and not isinstance(self.clip, NoClip)

        network = self._network

        def pass_over(batch: Batch, v: Tensor, drawn: Tensor) -> tuple[Tensor, ...]:
            return tuple(vars(thin_change(network, batch, v, h, drawn, along=exact)).values())

        def probed(batch: Batch, rows: slice) -> list[ThinChange]:
            found = []
            for k in keys:
                v = self.masked(row_signs(k, own[rows], tuple(batch.z.shape[1:]), batch.z))
                more = v, random_rows(network, k)
                found.append(
                    ThinChange(*self._replayed(("thin", h, exact), pass_over, batch, more))
                )
            return found

        chunks = self._in_chunks(x, y, 6, probed, network)
        found = [
            ThinChange(
                *(torch.cat(part) for part in zip(*(vars(c).values() for c in each), strict=True))
            )
            for each in zip(*chunks, strict=True)
        ]
        if isinstance(self.clip, NoClip) and not update:  # which needs nothing beyond these passes
            traces = torch.stack([each.squared for each in found], 1)
            losses = found[0].losses
            return Step(losses, torch.full_like(losses, torch.nan), traces)
        plain = _joined(
            self._in_chunks(x, y, 3, lambda b, _: self._unprobed(b, update), self._network)
        )
        if exact:
            changes = [each.clipped(self.clip, plain.norms) for each in found]
        elif isinstance(self.clip, NoClip):
            changes = [each.squared for each in found]
        else:
            changes = [each.squared * self.clip.conservative(plain.norms) for each in found]
        return replace(plain, traces=torch.stack(changes, 1))

    def _finite_step(
        self, x: Inputs, y: Tensor, keys: list[int], own: Tensor, update: bool
    ) -> Step:
        """Return a step whose traces are changes over finite steps along random signs."""
        like = self.variable(x, y)

        def drawn(rows: slice) -> Tensor:
            return torch.stack([row_signs(k, own[rows], tuple(like.shape[1:]), like) for k in keys])

        traces = self._finite_changes(x, y, drawn, FiniteStep.quick_change)
        watched = self._validator.watched_if_possible(x, y)
        if watched is not None:
            self._network = watched

        def work(batch: Batch, rows: slice) -> Step:
            if watched is None and not isinstance(self.clip, NoClip):
                return self._alone(batch, update)
            return self._unprobed(batch, update)

        plain = _joined(self._in_chunks(x, y, 3, work, watched))
        return replace(plain, traces=traces)

    def _finite_changes(
        self,
        x: Inputs,
        y: Tensor,
        v: Callable[[slice], Tensor],
        change: Callable[[FiniteStep], FiniteChange],
    ) -> Tensor:
        """Return ``‖g̃₊ − g̃₋‖²/4h²`` along directions ``(K, B, …)`` of some rows, ``(B, K)``."""
        watched, h = self._validator.watched_if_possible(x, y), self.step_size(x, y)

        def work(batch: Batch, rows: slice) -> Tensor:
            every = self.masked(v(rows).to(batch.z.dtype), 2)
            steps = [FiniteStep(self.problem, watched, batch, a, h, self.clip) for a in every]
            return torch.stack([change(step).squared for step in steps], 1)

        return torch.cat(self._in_chunks(x, y, 6, work, watched))

    def _differentiate(self, x: Inputs, y: Tensor, way: str) -> None:
        """Check derivatives against differences: for new shapes or modes, and now and then.

        Now and then means at passes 10, 100, 1,000 and so on.
        """
        if self.problem.sharded:
            raise InputError(
                "A network that is sharded over processes is measured over finite steps, which "
                "give dFIL (by random signs or 'exact') and cells; FIL, sketches, parts, PLIS "
                "and the like need derivatives, and so the whole network on one device."
            )
        if self.method in ("finite", "thin"):
            raise InputError(
                "Finite steps measure how far gradients move, which gives dFIL (by random signs "
                "or 'exact') and cells; FIL, sketches, parts, PLIS and the like need "
                f"derivatives, so leave out method={self.method!r} for them."
            )
        self._passes += 1
        kind = self._validator.key(x, y), way
        new = kind not in self._checked and len(self._checked) < _KINDS
        if not new and self._passes != 10 ** round(math.log10(self._passes)):
            return
        first = not any(each == way for _, each in self._checked)
        kinked, scale = self._kinked(x, y), self.view.scale(self.net, x, y)
        if not first or way == "probes":
            some = spread_over_classes(y, _SOME[way], self._passes)
            x, y = rows_of(x, some), y[some]

        def work(batch: Batch, rows: slice) -> None:
            check_derivative(self._network, batch, scale=scale, way=way, kinked=kinked)

        self._in_chunks(x, y, 8, work, self._network)
        self._checked.add(kind)

    def _in_chunks(
        self,
        x: Inputs,
        y: Tensor,
        copies: int,
        work: Callable[[Batch, slice], Value],
        watched: WatchedNetwork | None,
    ) -> list[Value]:
        """Apply work to chunks; each record holds ``copies`` of its layers' outputs.

        These are primal values, tangents, gradients of both, and what torch keeps for the backward
        pass.
        """

        def of(rows: slice) -> Value:
            return work(self.problem.batch(rows_of(x, rows), y[rows]), rows)

        held = 0 if watched is None else copies * watched.bytes_per_record
        count, device = batch_size(x), self.problem.device()
        if not self.problem.sharded:
            return self.chunks.run(of, count, held, device)
        size = self.chunks.step(count, held, device)
        own = [slice(start, min(start + size, count)) for start in range(0, count, size)]
        more = largest_of_all(len(own)) - len(own)
        found = [of(rows) for rows in own]
        for _ in range(more):  # passes in which others wait for this process's shards
            of(slice(0, 1))
        return found

    def _keep_together(self, x: Inputs, y: Tensor) -> None:
        """Raise in all processes if one of them would make different passes from the rest."""
        kinds = [(name, tuple(t.shape[1:]), str(t.dtype)) for name, t in _named(x)]
        modes = tuple(module.training for module in self.net.modules())
        check_agreement((kinds, tuple(y.shape[1:]), str(y.dtype), modes))

    def in_company(self, x: Inputs, y: Tensor) -> tuple[Inputs, Tensor]:
        """Return a batch of one made-up record if a sharded network gets an empty one.

        All processes must make the same passes; the result of the made-up record is discarded.
        """
        if not self.problem.sharded or batch_size(x):
            return x, y

        def made_up(like: Tensor) -> Tensor:
            return like.new_full((1, *like.shape[1:]), 0 if like.is_floating_point() else 1)

        return tree_map_only(Tensor, made_up, x), y.new_zeros(1, *y.shape[1:])

    def _thin(self, x: Inputs, y: Tensor) -> bool:
        """Return whether wide layers make thin directions worthwhile, and rules allow them."""
        if not any(p.requires_grad and is_wide(p.shape) for p in self.net.parameters()):
            return False
        try:
            self._prepare(x, y)
        except InputError:
            if isinstance(self.clip, NoClip):  # which needs no rules
                return False
            raise
        return True

    def masked(self, values: Tensor, lead: int = 1) -> Tensor:
        """Return values with zeros at entries that the view takes to be known.

        ``lead`` axes come before those of a record's variable.
        """
        mask = self.view.mask_for(values.flatten(0, lead - 1))
        return values if mask is None else values * mask

    def _alone(self, batch: Batch, update: bool) -> Step:
        """Return norms, losses and the clipped sum, every record run on its own."""
        each = record_gradients(self.problem, batch)
        size = each.norm(dim=1)
        gradient = None
        if update:
            like = self.problem.detached()
            pieces = (self.clip.factor(size) @ each).split([p.numel() for p in like.values()])
            gradient = {n: g.reshape(like[n].shape) for n, g in zip(like, pieces, strict=True)}
        with torch.no_grad():
            losses = self.problem.losses(self.problem.detached(), batch, batch.z)
        return Step(losses, size, torch.zeros(len(batch), 0).to(size), gradient)

    def _unprobed(self, batch: Batch, update: bool) -> Step:
        """Return norms and losses, and the clipped sum if asked for."""
        none = torch.zeros(len(batch), 0, dtype=batch.z.dtype, device=batch.z.device)
        if isinstance(self.clip, NoClip):
            unknown = torch.full_like(none.sum(1), torch.nan)
            weights = self.clip.factor(unknown)
            losses, gradient = weighted_gradient(self.problem, batch, weights)
            return Step(losses, unknown, none, gradient if update else None)
        network, clip = self._network, self.clip
        if update:
            clipped = self._replayed(
                ("update", clip), lambda b: vars(clipped_gradient(network, b, clip)), batch
            )
            return Step(clipped["losses"], clipped["norms"], none, clipped["gradient"])
        size, losses = self._replayed("norms", lambda b: norms(network, b), batch)
        return Step(losses, size, none)

    def _replayed(
        self,
        what: Hashable,
        function: Callable[..., Any],
        batch: Batch,
        more: tuple[Tensor, ...] = (),
    ) -> Any:
        """Return a function of a batch and more tensors, replayed if it is launch-bound."""
        if not batch.z.is_cuda or self.problem.sharded:
            return function(batch, *more)
        leaves, structure = tree_flatten((batch.x, batch.y, batch.z))

        def of(*tensors: Tensor) -> Any:
            given = tree_unflatten(list(tensors[: len(leaves)]), structure)
            return function(Batch(*given), *tensors[len(leaves) :])

        memory = tuple(t.data_ptr() for t in (*self.net.parameters(), *self.net.buffers()))
        numbers = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        modes = self._validator.key(batch.x, batch.y), rounding_of_products(), numbers
        return self._replays.run((what, memory, modes), of, [*leaves, *more])

    def _from_tangents(self, batch: Batch, v: Tensor, update: bool) -> Step:
        """Return a step from tangents of the records, clipped exactly."""
        found = inner_products(self._network, batch, v, keep=update)
        gradient = None
        if update:
            weights = self.clip.factor(found.norms)
            gradient = weighted_sums(found.gradients, weights, self.problem.detached())
        return Step(found.losses, found.norms, found.clipped(self.clip).T, gradient)

    def _from_probes(self, batch: Batch, draw: Draw, thin: bool, update: bool, pulls: bool) -> Step:
        """Return a step from probes of the release, clipped exactly or bounded."""
        bounded = self.clip_derivative == "conservative" and not isinstance(self.clip, NoClip)
        clip = NoClip() if bounded else self.clip
        probe = thin_probe if thin else dense_probe
        found = probe(self._network, batch, draw, clip, keep=update and not bounded)
        back, size, gradient = self.masked(found.pulls, 2), found.norms, found.gradient
        if bounded:
            plain = self._unprobed(batch, update)
            size, gradient = plain.norms, plain.gradient
            scale = self.clip.conservative(size).sqrt()
            back = back * scale.reshape(-1, *[1] * (back.dim() - 2))
        traces = back.flatten(2).square().sum(2).T
        return Step(found.losses, size, traces, gradient, back.transpose(0, 1) if pulls else None)

    def _empty(self, x: Inputs, probes: int, update: bool, pulls: bool) -> Step:
        like = next(iter(self.problem.released().values()))
        none = torch.zeros(0, dtype=like.dtype, device=like.device)
        gradient = {
            name: torch.zeros(p.shape, dtype=p.dtype, device=p.device)
            for name, p in self.problem.detached().items()
        }
        kept = None
        if pulls:
            if not isinstance(x, Tensor) or not isinstance(self.view, Input):
                raise InputError("An empty batch has no pullbacks for this view; skip it.")
            kept = torch.zeros(0, probes, *x.shape[1:], dtype=like.dtype, device=like.device)
        return Step(none, none, none.reshape(0, probes), gradient if update else None, kept)


def _named(x: Inputs) -> list[tuple[str, Tensor]]:
    """Return the tensors of the inputs, with their names or else numbers."""
    names = x if isinstance(x, Mapping) else map(str, range(len(leaves(x))))
    return list(zip(names, leaves(x), strict=True))


def _joined(steps: list[Step]) -> Step:
    """Join the steps of a batch's chunks."""
    if len(steps) == 1:
        return steps[0]
    gradients = [s.gradient for s in steps if s.gradient is not None]
    pulls = [s.pulls for s in steps if s.pulls is not None]
    return Step(
        torch.cat([s.losses for s in steps]),
        torch.cat([s.norms for s in steps]),
        torch.cat([s.traces for s in steps]),
        {n: torch.stack([g[n] for g in gradients]).sum(0) for n in gradients[0]}
        if gradients
        else None,
        torch.cat(pulls) if pulls else None,
    )


def has_short_numbers(net: nn.Module, device: torch.device) -> bool:
    """Return whether a network on an accelerator runs in TF32, in 16 bits or under autocast."""
    if device.type != "cuda":
        return False
    whole = rounding_of_products() in ("highest", "ieee")
    floating = (p.dtype for p in net.parameters() if p.is_floating_point())
    return not whole or torch.is_autocast_enabled("cuda") or any(t.itemsize < 4 for t in floating)

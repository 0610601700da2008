"""The Jacobian of clipped gradients, which determines a training step's leakage about its records.

A step releases ``Σ_i g̃_i + N(0, (σC)² I)`` where ``g̃ = g/φ(‖g‖)`` is the clipped gradient of a
record's loss. The information about the view's variable ``z`` is ``J̃ᵀJ̃/(σC)²`` with
``J̃ = ∂g̃/∂z`` (Guo et al. 2022, section 6). An :class:`Engine` computes products with ``J̃`` in
one of four ways:

* *probes of the release* (``probes.py``) give every entry of the diagonal of ``J̃ᵀJ̃`` at once. They
  need per-layer rules only for clipping. With ``Jᵀg``, the effect of the clip is exact; without
  ``Jᵀg``, it is bounded from above;
* *tangents of the record* (``tangents.py``) give exact norms of the clipped tangents from three
  scalars;
* *steps of the parameters* (``parameter_steps.py``) are probes of the release. Each costs two
  thirds of a training step, because it shares a pass with the update;
* *finite changes* (``finite_changes.py``, which defines them) are changes of clipped gradients over
  a step of a stated size, for networks with kinks or without derivatives. *Thin* finite tangents
  take one plain pass at training precision, whereas derivatives cost several training steps.

Derivatives are checked repeatedly against differences (``derivative_check.py``). The first batch is
searched for kinks (``kink_search.py``), and so are the records of later checks until a kink is
found. The engine stores the clip, and every pass uses the current clip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from seepage.errors import InputError, accepts_other_names
from seepage.nn.accounting.processes import (
    check_agreement,
    largest_of_all,
    of_the_first,
    world_size,
)
from seepage.nn.gradients.network_checks import Validator, unwrapped
from seepage.nn.gradients.norms import (
    clipped_gradient,
    layer_by_layer,
    norms,
    record_gradients,
    weighted_gradient,
)
from seepage.nn.gradients.per_record_gradients import (
    Key,
    at_least_single,
    record_lengths,
    value_of,
    weighted_sums,
)
from seepage.nn.gradients.watching import OnRecord, WatchedNetwork
from seepage.nn.jacobian.derivative_check import (
    UndifferentiableError,
    check_derivative,
    spread_over_classes,
)
from seepage.nn.jacobian.finite_changes import (
    StepErrors,
    StepLadder,
    ThinChange,
    finite_change,
    longer_types,
    measured_type,
    narrowed,
    random_rows,
    rounding_of_products,
    thin_change,
)
from seepage.nn.jacobian.kink_search import kinks_beside, kinks_between, line_count
from seepage.nn.jacobian.parameter_steps import (
    ParameterStep,
    check_parameter_steps,
    octaves_for,
    packed_direction,
    pull,
    size_of_parameters,
    slopes_at,
)
from seepage.nn.jacobian.probes import ClippedProbes, dense_probe, thin_probe
from seepage.nn.jacobian.random_directions import (
    Direction,
    Directions,
    is_wide,
    key_of,
    random_direction,
    row_coordinates,
    row_signs,
)
from seepage.nn.jacobian.replays import Replays
from seepage.nn.jacobian.tangents import (
    RadialPull,
    information_product,
    inner_products,
    radial_pull,
    summed_change,
)
from seepage.nn.problem.clipping import Clip, HardClip, NoClip
from seepage.nn.problem.own_loss import OwnLoss
from seepage.nn.problem.problem import Batch, Chunks, Loss, NetworkProblem, per_record
from seepage.nn.problem.sharding import spread
from seepage.nn.problem.views import (
    Input,
    Inputs,
    ModelInput,
    View,
    batch_size,
    leaves,
    rows_of,
    sent_to,
)
from seepage.support.number_check import check_choice, check_positive

Value = TypeVar("Value")
Work = Callable[[Batch, slice], Value]  # of a chunk, and of its place in the batch

_METHODS = ("auto", "derivative", "finite", "thin", "parameters")


@dataclass(frozen=True)
class Step:
    """The results of one step of private training before noise is added.

    Parameters
    ----------
    losses
        The loss of every record, ``(B,)``.
    norms
        ``‖g‖`` before clipping, ``(B,)``; NaN without clipping, because norms are then not needed.
    traces
        Unbiased estimates of ``‖∂g̃/∂z‖_F²`` or, with finite steps, of ``D(h)``, one column per
        probe, ``(B, probes)``. With a conservative derivative of the clip, they estimate an upper
        bound. The estimates are not yet divided by the noise variance or by the number of unknowns.
    gradient
        ``Σ_i g̃_i`` by parameter name; empty if not requested.
    pulls
        ``J̃ᵀu``, ``(B, probes, …)``, or ``None``.
    """

    losses: Tensor
    norms: Tensor
    traces: Tensor
    gradient: dict[str, Tensor] = field(default_factory=dict)
    pulls: Tensor | None = None


@accepts_other_names
class Engine:
    """Measures the Jacobian of clipped per-record gradients with respect to the view's unknowns.

    Parameters
    ----------
    net
        The network. The gradients of its parameters with ``requires_grad`` are released. Parameters
        are read at every call, so the network can be trained between calls.
    loss
        ``"cross_entropy"``, ``"mse"``, a torch loss module, or a function of output and target that
        returns one loss per record.
    clip
        :class:`~seepage.nn.problem.clipping.HardClip` (by default with threshold 1), ``SmoothClip``
        or ``NoClip``. The clip may be changed between steps.
    view
        The unknowns of the records: :class:`~seepage.nn.problem.views.Input`, ``Label`` or
        ``Embedding``.
    clip_derivative
        ``"exact"``, or ``"conservative"`` for the bound ``max(1, ρ²)‖J‖_F²/φ²``, which needs no
        derivative of the norms.
    method
        How changes of the gradients are measured. ``"derivative"`` uses derivatives. ``"finite"``
        uses finite steps, which work for any network that can be trained. ``"thin"`` takes a finite
        step in one plain pass, in which the gradients of wide weights are projected by random
        matrices. ``"parameters"`` perturbs the parameters of a smooth network along random signs
        and shares a pass with the update. ``"auto"`` uses finite steps if the network has kinks
        (ReLU, max pooling), cannot be differentiated twice or detaches part of the computation
        (``.detach()``). A wide network on an accelerator in TF32 or 16 bits uses thin steps or, in
        training without the clip's exact derivative, steps of the parameters. All other networks
        use derivatives. Finite steps give traces and squared changes; pullbacks to the record
        always use derivatives.
    scale
        The size ``h`` of a finite step, in the units of the unknowns. The default is a hundredth of
        the root mean square of the unknowns in the first batch, rounded to one digit. For thin
        steps, the default is the size whose results change least when it is halved or doubled.
    directions
        How probes perturb a record: all unknowns at once along random ``"signs"``, or one of the
        ``"coordinates"`` drawn at random, as in algorithm 1 of Guo et al. 2022. Estimates from
        coordinates usually have a larger variance than estimates from signs.
    chunk_size
        The number of records to process at once; ``"auto"`` chooses a number that fits in memory.
    seed
        The seed for the probes. The same seed and key give the same probes for any chunk size.

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
        directions: str = "signs",
        chunk_size: int | str = "auto",
        seed: int = 0,
    ) -> None:
        check_choice(directions, "directions", ("signs", "coordinates"))
        check_choice(clip_derivative, "clip_derivative", ("exact", "conservative"))
        check_choice(method, "method", _METHODS)
        if scale is not None:
            check_positive(scale, "scale")
        self.clip = HardClip(1.0) if clip is None else clip
        self.clip_derivative, self.seed = clip_derivative, seed
        self.method, self.scale, self.directions = method, scale, directions
        self.doubt = 0.0  # the relative uncertainty of thin steps
        self.errors: StepErrors | None = None  # of thin steps, once they have been measured
        self.parameter_step: ParameterStep | None = None  # once its size has been chosen
        self._moves: bool | None = None  # whether steps of the parameters see the whole derivative
        losses = per_record(loss)
        if view is None:
            view = ModelInput() if isinstance(losses, OwnLoss) else Input()
        self.net, self.view = spread(unwrapped(net)), view
        self.problem = NetworkProblem(self.net, losses, view, wider=measured_type(self.net))
        self.chunks = Chunks(chunk_size)
        self._validator = Validator(self.problem)
        self._checked: set[tuple[Any, str]] = set()
        self.passes = 0  # with derivatives, or over thin steps
        self.measured_kinks: bool | None = None  # in the first batch, or later
        self._differentiable: bool | None = None  # whether the first records' gradients are
        self._pullable = True  # until a pull to the record has failed
        self._replays = Replays()

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
        measured: Tensor | None = None,
    ) -> Step:
        """Return a batch's gradient norms, trace estimates and sum of clipped gradients.

        Parameters
        ----------
        x, y
            The batch, with records along the first axis.
        probes
            The number of independent estimates of each trace; may be 0.
        key
            The number of the step, so that each step has different probes.
        index
            The numbers that identify the records, ``(B,)``; by default their positions in the
            batch.
        update
            Whether to return the sum of the clipped gradients too.
        pulls
            Whether to return ``J̃ᵀu``, which requires probes along parameter directions.
        measured
            Which records to probe, ``(B,)``; the traces of all other records are NaN. The default
            is all records.
        """
        with self.problem.listed():
            count = batch_size(x)
            own = torch.arange(count) if index is None else torch.as_tensor(index)
            if own.shape != (count,):
                raise InputError(
                    f"index must contain one number for each record of the batch ({count} in all)."
                )
            if count == 0:
                if self.problem.sharded:  # the others wait for this process's shards
                    company = self.in_company(x, y)
                    self.step(*company, probes=probes, key=key, update=update, pulls=pulls)
                return self._empty(x, probes, update, pulls)
            if self.problem.sharded:
                if measured is not None:
                    raise InputError(
                        "A network sharded across processes is measured at every step; leave out "
                        "measure_every."
                    )
                self._keep_together(x, y)
            keys = [key_of(self.seed, key, k) for k in range(probes)]
            way = self.way(x, y) if probes > 0 and not pulls else "derivative"
            if probes and self.directions == "coordinates":
                self._refuse_coordinates(way, pulls)
                return self._coordinate_step(x, y, keys, own, update)
            training = update or index is not None
            if probes and not pulls and self.moves_parameters(x, y, training):
                return self._parameter_step(x, y, keys, update, measured)
            if measured is not None and probes and not bool(measured.all()):
                part = {"probes": probes, "key": key, "index": own[measured], "pulls": pulls}
                whole = self.step(x, y, probes=0, index=own, update=update)
                some = self.step(rows_of(x, measured), y[measured.to(y.device)], **part)
                return replace(whole, traces=_spread(some.traces, measured))
            if way != "derivative":
                step = self._thin_step if way == "thin" else self._finite_step
                return step(x, y, keys, own, update)
            clipped = not isinstance(self.clip, NoClip)
            if not probes:
                network = self._validator.watched(x, y, rules=clipped)
                work = partial(self._unprobed, network, update)
                return _joined(self._in_chunks(x, y, 3, work, network))
            kind, network = self._derivative_of_probes(x, y)
            thin = kind == "pulls"
            self._check(network, x, y, kind)
            if thin or pulls or not clipped:

                @cache
                def draw() -> list[Directions]:  # drawn when needed, while the device is busy
                    drawn = ((self.seed, key, k) for k in range(probes))
                    return [random_direction(self.problem, *each, thin=thin) for each in drawn]

                probe = partial(thin_probe if thin else dense_probe, network, draw=draw)
                copies = (4 if thin else 8) + 3 * (probes - 1)
                from_probes = partial(self._from_probes, network, probe, update, pulls)
                return _joined(self._in_chunks(x, y, copies, from_probes, network))

            def from_tangents(batch: Batch, rows: slice) -> Step:
                shape = tuple(batch.z.shape[1:])
                v = torch.stack([row_signs(k, own[rows], shape, batch.z) for k in keys])
                products = inner_products(network, batch, self.masked(v, 2), keep=update)
                gradient = {}
                if update:
                    weights = self.clip.factor(products.norms)
                    gradient = weighted_sums(products.gradients, weights, self.problem.detached())
                if self.clip_derivative == "exact":
                    traces = products.clipped(self.clip).T
                else:
                    traces = (products.dd * self.clip.conservative(products.norms)).T
                return Step(products.losses, products.norms, traces, gradient)

            return _joined(self._in_chunks(x, y, 5 + 3 * (probes - 1), from_tangents, network))

    def norms(self, x: Inputs, y: Tensor) -> Tensor:
        """Return the norm of every record's gradient, before clipping."""
        network = self._validator.watched(x, y)
        return torch.cat(self._in_chunks(x, y, 3, lambda b, _: norms(network, b)[0], network))

    def over_parameters(
        self, x: Inputs, y: Tensor, take: Callable[[slice, Key, Tensor], None]
    ) -> Tensor:
        """Call ``take`` with each parameter's gradients, ``(B, size)``; return the losses.

        The arguments of ``take`` are the rows of the batch, the parameter, and these rows'
        gradients.
        """
        network = self._validator.watched(x, y)

        def work(batch: Batch, rows: slice) -> Tensor:
            return layer_by_layer(
                network, batch, lambda key, terms: take(rows, key, value_of(terms).dense())
            )

        return torch.cat(self._in_chunks(x, y, 3, work, network))

    def clipped_gradient(self, x: Inputs, y: Tensor) -> Step:
        """Return the sum of the clipped gradients, with norms and losses."""
        return self.step(x, y, probes=0, update=True)

    def flat_gradient(self, x: Inputs, y: Tensor) -> Tensor:
        """Return the sum of the clipped gradients as one vector, ``(P,)``."""
        gradient = self.clipped_gradient(x, y).gradient
        return torch.cat([part.flatten() for part in gradient.values()])

    def squared_changes(
        self, x: Inputs, y: Tensor, v: Tensor, *, derivative: bool = False
    ) -> Tensor:
        """Return ``‖J̃v‖²``, ``(B, K)``, for record directions ``v (K, B, …)``.

        If the engine uses finite steps and ``derivative`` is false, the result is
        ``‖g̃(z + hv) − g̃(z)‖²/h²``.
        """
        if not derivative and self.takes_finite_steps(x, y):
            return self._finite_changes(x, y, lambda rows: v[:, rows], precise=True)

        def work(network: WatchedNetwork, batch: Batch, rows: slice) -> Tensor:
            along = self.masked(v[:, rows].to(batch.z.dtype), 2)
            return inner_products(network, batch, along).clipped(self.clip).T

        return torch.cat(self._derivatives(x, y, 2 + 3 * len(v), work))

    def information_product(self, x: Inputs, y: Tensor, v: Tensor) -> Tensor:
        """Return ``J̃ᵀJ̃v`` for one direction ``v (B, …)`` of every record."""

        def work(network: WatchedNetwork, batch: Batch, rows: slice) -> Tensor:
            along = self.masked(v[rows].to(batch.z.dtype))
            return self.masked(information_product(network, batch, along, self.clip))

        return torch.cat(self._derivatives(x, y, 8, work))

    def summed_changes(self, x: Inputs, y: Tensor, v: Tensor) -> dict[str, Tensor]:
        """Return ``Σ_i J̃_i v_i`` by parameter, for one direction ``v (B, …)`` of every record."""

        def work(network: WatchedNetwork, batch: Batch, rows: slice) -> dict[str, Tensor]:
            along = self.masked(v[rows].to(batch.z.dtype))
            return summed_change(network, batch, along, self.clip)

        return _summed(self._derivatives(x, y, 5, work))

    def pulls_along(self, x: Inputs, y: Tensor, u: Mapping[str, Tensor]) -> Tensor:
        """Return ``J̃_iᵀu_k``, ``(K, B, …)``, for K directions of every parameter, ``(K, …)``."""
        count, like = len(next(iter(u.values()))), self.problem.detached()
        directions = [
            {name: Direction(values[k].to(like[name].dtype)) for name, values in u.items()}
            for k in range(count)
        ]

        def work(network: WatchedNetwork, batch: Batch, rows: slice) -> Tensor:
            probes = dense_probe(network, batch, self.clip, lambda: directions)
            return self.masked(probes.pulls, 2)

        way = "probes" if isinstance(self.clip, NoClip) else "tangents"
        return torch.cat(self._derivatives(x, y, 8 + 3 * (count - 1), work, way), 1)

    def radial_pull(self, x: Inputs, y: Tensor) -> RadialPull:
        """Return ``Jᵀg = ½∇‖g‖²`` of every record, before clipping, with norms and losses."""

        def work(network: WatchedNetwork, batch: Batch, rows: slice) -> RadialPull:
            return self._replayed("radial pull", partial(radial_pull, network), batch)  # type: ignore[no-any-return]

        pulls, sizes, losses = zip(*self._derivatives(x, y, 6, work, "pulls"), strict=True)
        return self.masked(torch.cat(pulls)), torch.cat(sizes), torch.cat(losses)

    def radial_pull_if_possible(self, x: Inputs, y: Tensor) -> RadialPull | None:
        """Return :meth:`radial_pull`; if derivatives cannot be used, warn and return ``None``."""
        if self._pullable:
            try:
                return self.radial_pull(x, y)
            except (InputError, RuntimeError) as refusal:
                # Several processes must not change to finite steps one by one.
                if isinstance(refusal, torch.OutOfMemoryError) or world_size() > 1:
                    raise
                if self.method != "auto":
                    raise
                self._validator.watched_if_possible(x, y)  # raises what every method refuses
                self.over_steps_of(self.scale).step_size(x, y)  # likewise
                self._validator.tell_of_finite_steps(refusal)
                self._pullable = False
        return None

    def norms_beside(self, x: Inputs, y: Tensor) -> RadialPull:
        """Return the norms of the gradients at ``z + h e_j`` and ``z − h e_j`` for each unknown j.

        The norms have the shape ``(B, 2, …)``, with zeros at known entries. They are followed by
        the norms of the gradients at ``z`` itself, and by the losses.
        """
        network, h = self._validator.watched_if_possible(x, y), self.step_size(x, y)

        def sizes(batch: Batch) -> Tensor:
            if network is None:
                return record_lengths(record_gradients(self.problem, batch))
            return norms(network, batch)[0]

        def work(batch: Batch, rows: slice) -> RadialPull:
            z, own = batch.z, sizes(batch)
            beside = own.new_zeros(len(batch), 2, z[0].numel())
            for j in self.view.entries(z).tolist():
                move = torch.zeros_like(z)
                move.flatten(1)[:, j] = h
                beside[:, :, j] = sizes(batch.on_both_sides(move, -move)).reshape(2, -1).T
            losses = self.problem.losses(self.problem.detached(), batch, z).detach()
            return beside.reshape(len(batch), 2, *z.shape[1:]), own, losses

        beside, own, losses = zip(*self._in_chunks(x, y, 6, work, network), strict=True)
        return torch.cat(beside), torch.cat(own), torch.cat(losses)

    def unknowns(self, x: Inputs, y: Tensor) -> int:
        """Return the number of unknowns of one record."""
        return self.view.unknowns(self.variable(x, y))

    def unknowns_each(self, x: Inputs, y: Tensor) -> Tensor:
        """Return the number of unknowns of each record, ``(B,)``."""
        return self.view.unknowns_each(self.net, x, y)

    def variable(self, x: Inputs, y: Tensor) -> Tensor:
        """Return the current value of the view's variable for the first record."""
        return self.view.variable(self.net, rows_of(x, slice(0, 1)), y[:1])

    def takes_finite_steps(self, x: Inputs, y: Tensor) -> bool:
        """Return whether traces and squared changes of this batch use finite steps."""
        return self.way(x, y) != "derivative"

    def way(self, x: Inputs, y: Tensor) -> str:
        """Return how traces are measured: ``"derivative"``, ``"finite"`` or ``"thin"``."""
        if self.method not in ("auto", "parameters"):
            return self.method
        network = self._validator.watched_if_possible(x, y, rules=False)
        if network is None or self._kinked(network, x, y):
            return "finite"
        if has_short_numbers(self.net, self.problem.device()) and narrowed(network):
            return "thin"
        whole = not self.problem.sharded
        return "derivative" if whole and self.has_derivatives(x, y) else "finite"

    def moves_parameters(self, x: Inputs, y: Tensor, training: bool = True) -> bool:
        """Return whether traces of this batch are measured by steps of the parameters.

        ``training`` states whether the records are those of a training step.
        """
        if self.method == "parameters":
            self._refuse_steps_of_parameters(x, y)
        else:
            exact = self.clip_derivative == "exact" and not isinstance(self.clip, NoClip)
            if exact or not training or self.method != "auto" or self.way(x, y) != "thin":
                return False
            if self.problem.sharded or _shortest(self.problem) < 4:
                return False
        if self._moves is None:
            try:
                self._check_parameter_steps(x, y)
            except InputError as refusal:
                if self.method != "auto" or world_size() > 1:
                    raise
                self._moves = False
                self._validator.tell_of_finite_steps(refusal)
            else:
                self._moves = True
        return self._moves

    def _refuse_steps_of_parameters(self, x: Inputs, y: Tensor) -> None:
        """Raise an error if a step of the parameters cannot measure the network."""
        if self.problem.sharded:
            reason = "its parameters are sharded across processes"
        elif _shortest(self.problem) < 4:
            reason = "its released parameters have 16 bits, which round such a step away"
        elif self.way(x, y) == "finite":
            reason = "the network has kinks, or no derivatives"
        else:
            return
        raise InputError(
            f"method='parameters' cannot measure this network: {reason}. Leave out method."
        )

    def _check_parameter_steps(self, x: Inputs, y: Tensor) -> None:
        """Compare steps of the parameters with steps of a few records."""
        some = spread_over_classes(y, 4, self.passes)
        network, scale = self._validator.watched(x, y, rules=False), self.view.scale(self.net, x, y)
        batch = self.problem.batch(rows_of(x, some), y[some.to(y.device)])
        check_parameter_steps(network, batch, scale)

    def has_derivatives(self, x: Inputs, y: Tensor) -> bool:
        """Return whether derivatives of the gradients exist and agree with differences.

        Two records are checked first and then, if the method is ``"auto"``, the first batch. If
        there are no derivatives, or the code detaches part of the computation, a warning gives the
        reason.
        """
        if self._differentiable is None:
            some = slice(min(2, batch_size(x)))
            first = rows_of(x, some), y[some]
            try:
                kind, network = self._derivative_of_probes(*first)
            except InputError as refusal:  # what every method refuses has been refused before
                return self._without_derivatives(refusal)
            batch, scale = self.problem.batch(*first), self.view.scale(self.net, x, y)
            # Several processes must not change to finite steps one by one.
            alone = self.method == "auto" and world_size() == 1
            try:
                check_derivative(network, batch, scale=scale, way=kind, kinked=False)
            except UndifferentiableError as refusal:
                return self._without_derivatives(refusal)
            except InputError as refusal:
                # Two confident records may differ by rounding: the check of more records decides.
                if alone and batch_size(x) <= 2:
                    return self._without_derivatives(refusal)
            if self.method == "auto":
                try:
                    self._check(network, x, y, kind)
                    self.passes -= 1  # the pass itself follows, and needs no other check
                except InputError as refusal:
                    if alone or isinstance(refusal, UndifferentiableError):
                        return self._without_derivatives(refusal)
            self._differentiable = True
        return self._differentiable

    def _without_derivatives(self, reason: InputError) -> bool:
        self._differentiable = False
        self._validator.tell_of_finite_steps(reason)
        return False

    def _derivative_of_probes(self, x: Inputs, y: Tensor) -> tuple[str, WatchedNetwork]:
        """Return how probes compute derivatives (``way`` of ``check_derivative``), and the plan."""
        clipped = not isinstance(self.clip, NoClip)
        wide = any(p.requires_grad and is_wide(p.shape) for p in self.net.parameters())
        thin = wide and self._rules_hold(x, y)
        network = self._validator.watched(x, y, rules=clipped or thin)
        return "pulls" if thin else "tangents" if clipped else "probes", network

    def _kinked(self, network: WatchedNetwork, x: Inputs, y: Tensor) -> bool:
        """Return whether the network has kinks, as measured on the first batch.

        If kinks cannot be measured, the result depends on the names of the network's functions.
        """
        if self.measured_kinks is None:
            self.measured_kinks = self._look_for_kinks(network, x, y)
        if self.measured_kinks:
            self._validator.tell_of_kinks(network)
        return self.measured_kinks

    def _look_for_kinks(self, network: WatchedNetwork, x: Inputs, y: Tensor) -> bool:
        """Return whether there are kinks between some of the records, or near any record."""
        if self.problem.sharded:
            return bool(network.kinks)
        count = line_count(network.bytes_per_record)
        scale, some = self.view.scale(self.net, x, y), spread_over_classes(y, count, 0)
        batch = self.problem.batch(rows_of(x, some), y[some])
        held = 6 * network.bytes_per_record  # twice as long numbers, and what lies in between

        def in_chunks(work: Callable[[slice], Tensor], rows: int) -> list[Tensor]:
            return self.chunks.run(work, rows, held, self.problem.device())

        found = [kinks_between(self.problem, batch, scale, count, in_chunks)]
        if not found[0] and not network.unruled:  # for whose modules derivatives are slow
            h = self.scale or _hundredth(scale)
            directions = min(8, -(-64 // batch_size(x)))  # some for a single record, one for many

            def beside(batch: Batch, rows: slice) -> bool | None:
                return kinks_beside(network, batch, h, directions, in_chunks)

            found += self._in_chunks(x, y, 8 + 6 * directions, beside, network)
        measured = [each for each in found if each is not None]
        return any(measured) if measured else bool(network.kinks)

    def step_size(self, x: Inputs, y: Tensor) -> float:
        """Return the size of a finite step; unless it was given, the first batch determines it."""
        if self.errors is None and self.way(x, y) == "thin":
            if self.scale is None:
                octaves = [1 + k / 2 for k in range(20)]
                ladder = self.ladder(x, y, self.view.scale(self.net, x, y), octaves)
                best = ladder.balanced()
            else:
                ladder, best = self.ladder(x, y, self.scale, range(-1, 3)), 0
            errors = ladder.errors(best)
            known = ladder.sizes[best], ladder.doubt(best), errors.rounding, errors.curvature
            self.scale, self.doubt, *agreed = self._agreed(*known)
            self.errors = StepErrors(*agreed)
        elif self.scale is None:
            (self.scale,) = self._agreed(_hundredth(self.view.scale(self.net, x, y)))
        return self.scale

    def over_steps_of(self, scale: float | None) -> Engine:
        """Return an engine for the same problem with finite steps of the given or default size."""
        if scale is not None:
            check_positive(scale, "scale")
        other = copy(self)
        other.method, other.scale, other.errors, other.doubt = "finite", scale, None, 0.0
        return other

    def _agreed(self, *known: float) -> tuple[float, ...]:
        """Return the first process's numbers if the network is sharded, otherwise ``known``."""
        if not self.problem.sharded:
            return known
        return tuple(of_the_first(torch.tensor(known, dtype=torch.float64)).tolist())

    def _step_errors(self, x: Inputs, y: Tensor) -> StepErrors:
        """Return the errors of thin steps.

        The errors are measured at the first pass and again at passes 10, 100, 1,000 and so on,
        because training changes the network.
        """
        h = self.step_size(x, y)
        self.passes += 1
        if self.passes > 1 and self.passes == 10 ** round(math.log10(self.passes)):
            errors = self.ladder(x, y, h, range(-1, 3)).errors(0)
            self.errors = StepErrors(*self._agreed(errors.rounding, errors.curvature))
        return self.errors or StepErrors()

    def ladder(self, x: Inputs, y: Tensor, scale: float, octaves: Sequence[float]) -> StepLadder:
        """Return the changes of four records over steps of several sizes."""
        some = slice(min(4, len(y)))
        x, y = rows_of(x, some), y[some]
        network, batch = self._validator.watched(x, y), self.problem.batch(x, y)
        key = key_of(self.seed, "size of steps")
        shape = tuple(batch.z.shape[1:])
        v = self.masked(row_signs(key, torch.arange(len(batch)), shape, batch.z))
        drawn = random_rows(network, key)
        change = partial(thin_change, network, batch, v, drawn=drawn, along=False, sized=True)
        return StepLadder.over(scale, octaves, change)

    def step_of_parameters(self, x: Inputs, y: Tensor) -> ParameterStep:
        """Return the size and the errors of steps of the parameters, from the first batch."""
        if self.parameter_step is None:
            size, problem = size_of_parameters(self.problem), self.problem
            device = problem.device()
            short = has_short_numbers(self.net, device) or _mixed(self.net, device)
            kind = next(iter(problem.detached().values())).dtype
            ladder = self.parameter_ladder(x, y, size, octaves_for(kind, short))
            best = ladder.balanced()
            errors = ladder.errors(best)
            self.parameter_step = ParameterStep(ladder.sizes[best], ladder.doubt(best), errors)
        return self.parameter_step

    def parameter_ladder(
        self, x: Inputs, y: Tensor, scale: float, octaves: Sequence[float]
    ) -> StepLadder:
        """Return four records' changes over steps of the parameters, averaged over ``±u``."""
        some = slice(min(4, len(y)))
        x, y = rows_of(x, some), y[some]
        network, batch = self._validator.watched_if_possible(x, y), self.problem.batch(x, y)
        words = packed_direction(self.problem, key_of(self.seed, "size of steps"))
        own: list[Tensor] = []
        self._unprobed(network, True, batch, on_record=own.append)
        norms = self.masked(own[0]).flatten(1).double().square().sum(1)

        def change(h: float) -> ThinChange:
            pulls = [pull(self.problem, batch, words, e, own[0]) for e in (h, -h)]
            each = [self.masked(p).flatten(1).double().square().sum(1) for p in pulls]
            none = torch.zeros_like(norms)
            return ThinChange((each[0] + each[1]) / 2, none, none, norms, none)

        return StepLadder.over(scale, octaves, change)

    def _parameter_step(
        self,
        x: Inputs,
        y: Tensor,
        keys: list[int],
        update: bool,
        measured: Tensor | None,
    ) -> Step:
        """Return a training step's results, with traces from finite steps of the parameters.

        These finite steps reuse the backward pass of the update.
        """
        clipped = not isinstance(self.clip, NoClip)
        network = self._validator.watched_if_possible(x, y, rules=clipped)
        step = self.step_of_parameters(x, y)
        self.passes += 1
        if self.passes > 1 and self.passes == 10 ** round(math.log10(self.passes)):
            self._check_parameter_steps(x, y)
            errors = self.parameter_ladder(x, y, step.size, range(-1, 3)).errors(0)
            self.parameter_step = step = replace(step, errors=errors)

        @cache
        def directions() -> list[Tensor]:
            return [packed_direction(self.problem, key) for key in keys]

        def moved(batch: Batch, words: Tensor, slopes: Tensor) -> Tensor:
            return pull(self.problem, batch, words, step.size, slopes)

        def work(batch: Batch, rows: slice) -> Step:
            own: list[Tensor] = []
            if clipped or update:
                plain = self._unprobed(network, update, batch, on_record=own.append)
            else:
                slopes, losses = slopes_at(self.problem, batch)
                own.append(slopes)
                plain = Step(losses, torch.full_like(losses, torch.nan), losses[:, None][:, :0])
            slopes, due = own[0], None if measured is None else measured[rows].cpu()
            if due is not None and not bool(due.any()):
                return replace(plain, traces=_spread(slopes.new_zeros(0, len(keys)), due))
            if due is not None and not bool(due.all()):
                places = sent_to(torch.nonzero(due).flatten(), slopes.device)
                batch, slopes = batch.records(places), slopes[places]
            size = self._squares(slopes)
            squares = []
            for words in directions():
                back = self._replayed(("parameters", step.size), moved, batch, (words, slopes))
                squares.append(step.errors.removed(self._squares(back), size, step.size))
            traces = torch.stack(squares, 1)
            return replace(plain, traces=traces if due is None else _spread(traces, due))

        whole = _joined(self._in_chunks(x, y, 3, work, network))
        if not clipped:
            return whole
        norms, traces = whole.norms, whole.traces
        if self.clip_derivative == "conservative":
            factor = self.clip.conservative(norms)
            return replace(whole, traces=traces * factor[:, None].to(traces.dtype))
        radial = self._squares(self.radial_pull(x, y)[0]) / norms.clamp(min=1e-300) ** 2
        lost = (1 - self.clip.radial(norms) ** 2) * radial
        inside = 1 / self.clip.phi(norms) ** 2
        return replace(whole, traces=(traces - lost[:, None]) * inside[:, None])

    def _squares(self, values: Tensor) -> Tensor:
        """Return each record's sum of squares over the unknowns."""
        flat = self.masked(values).flatten(1)
        return torch.linalg.vector_norm(flat, dim=1, dtype=at_least_single(flat)).square()

    def _thin_step(self, x: Inputs, y: Tensor, keys: list[int], own: Tensor, update: bool) -> Step:
        """Return a step with traces from finite changes that are narrowed by thin matrices."""
        h, network = self.step_size(x, y), self._validator.watched(x, y)
        clipped = not isinstance(self.clip, NoClip)
        exact = clipped and self.clip_derivative == "exact"
        errors = self._step_errors(x, y)
        wanted = {"along": exact, "sized": errors.rounding > 0}

        def pass_over(batch: Batch, v: Tensor, drawn: Tensor) -> tuple[Tensor, ...]:
            return tuple(vars(thin_change(network, batch, v, h, drawn, **wanted)).values())

        def probed(batch: Batch, rows: slice) -> list[Tensor]:
            passes = []
            for k in keys:
                v = self.masked(row_signs(k, own[rows], tuple(batch.z.shape[1:]), batch.z))
                more = v, random_rows(network, k)
                passes.append(self._replayed(("thin", h, *wanted.values()), pass_over, batch, more))
            return [torch.stack(part) for part in zip(*passes, strict=True)]

        chunks = self._in_chunks(x, y, 6, probed, network)
        change = ThinChange(*(torch.cat(part, 1) for part in zip(*chunks, strict=True)))
        change = change.without(errors, h)
        if not clipped and not update:  # which needs nothing beyond these passes
            losses = change.losses[0]
            return Step(losses, torch.full_like(losses, torch.nan), change.squared.T)
        work = partial(self._unprobed, network, update)
        plain = _joined(self._in_chunks(x, y, 3, work, network))
        squared = change.clipped(self.clip, plain.norms) if exact else change.squared
        if clipped and not exact:
            squared = squared * self.clip.conservative(plain.norms)
        return replace(plain, traces=squared.T)

    def _refuse_coordinates(self, way: str, pulls: bool) -> None:
        """Raise an error for a sketch or finite steps, which single coordinates cannot measure."""
        if pulls:
            raise InputError(
                "A sketch needs probes along the parameters; give directions='signs', or leave out "
                "sketch."
            )
        if way != "derivative":
            raise InputError(
                "Leakage over finite steps is defined for changes of all unknowns at once, so "
                "single coordinates cannot measure it; give directions='signs', or "
                "method='derivative' for a smooth network."
            )

    def _coordinate_step(
        self, x: Inputs, y: Tensor, keys: list[int], own: Tensor, update: bool
    ) -> Step:
        """Return a step with traces from single coordinates, ``d ‖J̃e_j‖²``."""

        def work(network: WatchedNetwork, batch: Batch, rows: slice) -> Step:
            unknown = self.masked(torch.ones_like(batch.z)) > 0
            v = torch.stack([row_coordinates(k, own[rows], unknown) for k in keys])
            traces = inner_products(network, batch, v.to(batch.z.dtype)).clipped(self.clip).T
            return replace(self._unprobed(network, update, batch), traces=traces)

        return _joined(self._derivatives(x, y, 5 + 3 * len(keys), work))

    def _finite_step(
        self, x: Inputs, y: Tensor, keys: list[int], own: Tensor, update: bool
    ) -> Step:
        """Return a step with traces from finite changes along random signs."""
        like = self.variable(x, y)

        def drawn(rows: slice) -> Tensor:
            return torch.stack([row_signs(k, own[rows], tuple(like.shape[1:]), like) for k in keys])

        traces = self._finite_changes(x, y, drawn, precise=False)
        network = self._validator.watched_if_possible(x, y)
        work = partial(self._unprobed, network, update)
        return replace(_joined(self._in_chunks(x, y, 3, work, network)), traces=traces)

    def _finite_changes(
        self, x: Inputs, y: Tensor, v: Callable[[slice], Tensor], *, precise: bool
    ) -> Tensor:
        """Return squared changes, ``(B, K)``; ``v`` maps rows to directions ``(K, rows, …)``.

        ``precise`` uses float64 if the network is small and accepts it. Otherwise only 16-bit
        numbers are converted to a longer type, because rounding would dominate their differences.
        """
        network, h = self._validator.watched_if_possible(x, y), self.step_size(x, y)

        def work(batch: Batch, rows: slice) -> Tensor:
            every = self.masked(v(rows).to(batch.z.dtype), 2)
            types = [t for t in longer_types(self.problem, batch) if precise or t == torch.float32]
            change = partial(finite_change, self.problem, network, batch, clip=self.clip, h=h)
            return torch.stack([change(along, types=types) for along in every], 1)

        return torch.cat(self._in_chunks(x, y, 6, work, network))

    def _derivatives(
        self,
        x: Inputs,
        y: Tensor,
        copies: int,
        work: Callable[[WatchedNetwork, Batch, slice], Value],
        way: str = "tangents",
    ) -> list[Value]:
        """Check the derivatives, then apply work that needs derivatives to all chunks."""
        network = self._validator.watched(x, y, rules=way != "probes")
        self._check(network, x, y, way)
        return self._in_chunks(x, y, copies, partial(work, network), network)

    def _check(self, network: WatchedNetwork, x: Inputs, y: Tensor, way: str) -> None:
        """Check derivatives against differences, for new shapes or modes and at later passes.

        Checks are repeated at passes 10, 100, 1,000 and so on. The check of the first batch takes
        as long as two or three steps. It tests all records or, with probes, a few records one by
        one. Later checks sample some records, so a hidden dependence that occurs only in a few
        records outside the first batch may be detected late.
        """
        if self.problem.sharded:
            raise InputError(
                "A network sharded across processes is measured with finite steps, which give only "
                "dFIL (by random signs or 'exact') and cells. FIL, sketches, parts and PLIS need "
                "derivatives; put the whole network on one device to measure them."
            )
        if self.method in ("finite", "thin"):
            raise InputError(
                "Finite steps give only dFIL (by random signs or 'exact') and cells. FIL, sketches "
                f"and parts need derivatives; leave out method={self.method!r} to measure them."
            )
        self.passes += 1
        kind = self._validator.key(x, y), way
        # Batches of ever new shapes (texts) must not be checked every time.
        new = kind not in self._checked and len(self._checked) < 8
        later = self.passes > 1 and self.passes == 10 ** round(math.log10(self.passes))
        if not (new or later):
            return
        first = not any(each == way for _, each in self._checked)
        kinked, scale = self._kinked(network, x, y), self.view.scale(self.net, x, y)
        if not first or way == "probes":
            some = spread_over_classes(y, 6 if way == "probes" else 16, self.passes)
            x, y = rows_of(x, some), y[some]
        # Several processes must not change to finite steps one by one.
        if not (first or kinked) and self.method == "auto" and world_size() == 1:
            self.measured_kinks = None
            kinked = self._kinked(network, x, y)

        def work(batch: Batch, rows: slice) -> None:
            check_derivative(network, batch, scale=scale, way=way, kinked=kinked)

        self._in_chunks(x, y, 8, work, network)
        self._checked.add(kind)

    def _in_chunks(
        self,
        x: Inputs,
        y: Tensor,
        copies: int,
        work: Work[Value],
        network: WatchedNetwork | None,
    ) -> list[Value]:
        """Apply work to chunks that fit in memory with ``copies`` of each record's layer outputs.

        The copies are primal values, tangents, gradients of both, and the tensors that torch stores
        for the backward pass.
        """

        def of(rows: slice) -> Value:
            return work(self.problem.batch(rows_of(x, rows), y[rows]), rows)

        held = 0 if network is None else copies * network.bytes_per_record
        count, device = batch_size(x), self.problem.device()
        if not self.problem.sharded:
            return self.chunks.run(of, count, held, device)
        size = self.chunks.step(count, held, device)
        own = [slice(start, min(start + size, count)) for start in range(0, count, size)]
        more = largest_of_all(len(own)) - len(own)
        values = [of(rows) for rows in own]
        for _ in range(more):  # passes in which others wait for this process's shards
            of(slice(0, 1))
        return values

    def _keep_together(self, x: Inputs, y: Tensor) -> None:
        """Raise an error in all processes if any process would run different passes."""
        names = x if isinstance(x, Mapping) else map(str, range(len(leaves(x))))
        kinds = [
            (name, tuple(t.shape[1:]), str(t.dtype))
            for name, t in zip(names, leaves(x), strict=True)
        ]
        modes = tuple(module.training for module in self.net.modules())
        check_agreement((kinds, tuple(y.shape[1:]), str(y.dtype), modes))

    def in_company(self, x: Inputs, y: Tensor) -> tuple[Inputs, Tensor]:
        """Return the batch; for a sharded network, one made-up record replaces an empty batch.

        All processes must run the same passes; the result for the made-up record is discarded.
        """
        if not self.problem.sharded or batch_size(x):
            return x, y

        def made_up(like: Tensor) -> Tensor:
            return like.new_full((1, *like.shape[1:]), 0 if like.is_floating_point() else 1)

        return tree_map_only(Tensor, made_up, x), y.new_zeros(1, *y.shape[1:])

    def _rules_hold(self, x: Inputs, y: Tensor) -> bool:
        """Return whether rules hold for the network, or raise an error if clipping needs them."""
        try:
            self._validator.watched(x, y)
        except InputError:
            if isinstance(self.clip, NoClip):  # which needs no rules
                return False
            raise
        return True

    def masked(self, values: Tensor, lead: int = 1) -> Tensor:
        """Return values with zeros at the entries that are known in the view.

        ``lead`` is the number of axes before those of a record's variable.
        """
        mask = self.view.mask_for(values.flatten(0, lead - 1))
        return values if mask is None else values * mask

    def _unprobed(
        self,
        network: WatchedNetwork | None,
        update: bool,
        batch: Batch,
        _: slice | None = None,
        on_record: OnRecord | None = None,
    ) -> Step:
        """Return norms and losses, and the sum of clipped gradients if requested.

        If the network cannot be traced, the records are run one by one. ``on_record`` receives
        ``∇_z Σ_i ℓ_i``, from the same pass if the network can be traced.
        """
        none = torch.zeros(len(batch), 0, dtype=batch.z.dtype, device=batch.z.device)
        clip = self.clip
        if isinstance(clip, NoClip):
            unknown = torch.full_like(none.sum(1), torch.nan)
            weights = clip.factor(unknown)
            losses, gradient = weighted_gradient(self.problem, batch, weights, on_record)
            return Step(losses, unknown, none, gradient if update else {})
        if network is None:
            each = record_gradients(self.problem, batch)
            size, like = record_lengths(each), self.problem.detached()
            pieces = (clip.factor(size) @ each).split([p.numel() for p in like.values()])
            parts = {n: g.reshape(like[n].shape) for n, g in zip(like, pieces, strict=True)}
            with torch.no_grad():
                losses = self.problem.losses(like, batch, batch.z)
            if on_record is not None:
                on_record(slopes_at(self.problem, batch)[0])
            return Step(losses, size, none.to(size), parts if update else {})

        def pass_over(batch: Batch) -> tuple[Any, ...]:
            slopes: list[Tensor] = []
            keep = None if on_record is None else slopes.append
            if update:
                total, size, losses = clipped_gradient(network, batch, clip, keep)
                return total, size, losses, *slopes
            return {}, *norms(network, batch, keep), *slopes

        what = ("update", clip) if update else "norms"
        passed = self._replayed((what, on_record is not None), pass_over, batch)
        total, size, losses, *slopes = passed
        if on_record is not None:
            on_record(slopes[0])
        return Step(losses, size, none, total)

    def _replayed(
        self,
        what: Hashable,
        function: Callable[..., Any],
        batch: Batch,
        more: tuple[Tensor, ...] = (),
    ) -> Any:
        """Return a function's result for a batch and ``more``; replay the call if launch-bound."""
        if not batch.z.is_cuda or self.problem.sharded:
            return function(batch, *more)
        leaves, structure = tree_flatten((batch.x, batch.y, batch.z))

        def of(*tensors: Tensor) -> Any:
            given = tree_unflatten(list(tensors[: len(leaves)]), structure)
            return function(Batch(*given), *tensors[len(leaves) :])

        memory = tuple(
            tensor.data_ptr()
            for module in self.problem.modules()
            for tensor in (*module._parameters.values(), *module._buffers.values())
            if tensor is not None
        )
        numbers = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        modes = self._validator.key(batch.x, batch.y), rounding_of_products(), numbers
        return self._replays.run((what, memory, modes), of, [*leaves, *more])

    def _from_probes(
        self,
        network: WatchedNetwork,
        probe: Callable[..., ClippedProbes],
        update: bool,
        pulls: bool,
        batch: Batch,
        _: slice,
    ) -> Step:
        """Return a step from probes, with the clip's derivative exact or bounded from above."""
        bounded = self.clip_derivative == "conservative" and not isinstance(self.clip, NoClip)
        clip = NoClip() if bounded else self.clip
        probes = probe(batch, clip, keep=update and not bounded)
        back, size, gradient = self.masked(probes.pulls, 2), probes.norms, probes.gradient
        if bounded:
            plain = self._unprobed(network, update, batch)
            size, gradient = plain.norms, plain.gradient
            scale = self.clip.conservative(size).sqrt()
            back = back * scale.reshape(-1, *[1] * (back.dim() - 2))
        traces = back.flatten(2).square().sum(2).T
        return Step(probes.losses, size, traces, gradient, back.transpose(0, 1) if pulls else None)

    def _empty(self, x: Inputs, probes: int, update: bool, pulls: bool) -> Step:
        like = next(iter(self.problem.released().values()))
        none = torch.zeros(0, dtype=like.dtype, device=like.device)
        gradient = {  # whole, even if the parameters are sharded
            name: torch.zeros(p.shape, dtype=p.dtype, device=p.device)
            for name, p in self.problem.detached().items()
        }
        kept = None
        if pulls:
            if not isinstance(x, Tensor) or not isinstance(self.view, Input):
                raise InputError(
                    "Pullbacks of an empty batch are not available for this view; skip the batch."
                )
            kept = torch.zeros(0, probes, *x.shape[1:], dtype=like.dtype, device=like.device)
        return Step(none, none, none.reshape(0, probes), gradient if update else {}, kept)


def _joined(steps: list[Step]) -> Step:
    """Join the results of a batch's chunks into one step."""
    if len(steps) == 1:
        return steps[0]
    gradients = [s.gradient for s in steps if s.gradient]
    pulls = [s.pulls for s in steps if s.pulls is not None]
    return Step(
        torch.cat([s.losses for s in steps]),
        torch.cat([s.norms for s in steps]),
        torch.cat([s.traces for s in steps]),
        _summed(gradients) if gradients else {},
        torch.cat(pulls) if pulls else None,
    )


def _spread(traces: Tensor, measured: Tensor) -> Tensor:
    """Return the traces of the measured records at their places, and nan everywhere else."""
    if bool(measured.all()):
        return traces
    places = sent_to(torch.nonzero(measured).flatten(), traces.device)
    out = traces.new_full((len(measured), traces.shape[1]), torch.nan)
    return out.index_copy_(0, places, traces)


def _summed(gradients: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the sum of the chunks' gradients by parameter."""
    return {name: torch.stack([g[name] for g in gradients]).sum(0) for name in gradients[0]}


def _shortest(problem: NetworkProblem) -> int:
    """Return the fewest bytes per entry of any released parameter, in the type that it runs in."""
    return min(int(p.dtype.itemsize) for p in problem.detached().values())


def _hundredth(size: float) -> float:
    """Return a hundredth of the unknowns' size, rounded to one digit: the default finite step."""
    return float(f"{size / 100:.0e}")


def has_short_numbers(net: nn.Module, device: torch.device) -> bool:
    """Return whether a network on an accelerator runs in TF32, in 16 bits or under autocast."""
    if device.type != "cuda":
        return False
    return rounding_of_products() not in ("highest", "ieee") or _mixed(net, device)


def _mixed(net: nn.Module, device: torch.device) -> bool:
    """Return whether a network runs in 16 bits or under autocast."""
    floating = (p.dtype for p in net.parameters() if p.is_floating_point())
    return torch.is_autocast_enabled(device.type) or any(t.itemsize < 4 for t in floating)

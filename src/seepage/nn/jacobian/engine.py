"""One door to both gradient engines: what a step of private training leaks about its records.

A step releases ``Σ_i g̃_i + N(0, (σC)² I)`` with ``g̃ = g/φ(‖g‖)`` the clipped gradient of an
example's loss. The information about the variable ``z`` that a view names is ``J̃ᵀJ̃/(σC)²`` with
``J̃ = ∂g̃/∂z`` (paper 004, section 6). An :class:`Engine` gives what is asked of ``J̃``, and chooses:

* *probes of the release* (``probes.py``): any module, no rules per layer, and every entry of the
  diagonal at once; clipped exactly with the help of ``Jᵀg``, or safely bounded without it;
* *tangents of the record* (``tangents.py``): exact clipped norms from three scalars.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor, nn

from seepage.errors import InputError
from seepage.nn.gradients.network_checks import Validator, unwrapped
from seepage.nn.gradients.norms import Clipped, norms
from seepage.nn.gradients.recording import Layers
from seepage.nn.jacobian.directions import Directions, directions, is_wide
from seepage.nn.jacobian.passes import Passes, masked
from seepage.nn.jacobian.pullbacks import RadialPull, information_product, radial_pull
from seepage.nn.jacobian.random_signs import key_of, row_signs
from seepage.nn.jacobian.steps import Step, joined
from seepage.nn.jacobian.tangents import scalars
from seepage.nn.problem.chunking import Chunks
from seepage.nn.problem.clipping import Clip, NoClip, SmoothClip
from seepage.nn.problem.losses import Loss, per_example
from seepage.nn.problem.problem import Problem
from seepage.nn.problem.views import Input, Inputs, View, batch_size, rows_of

__all__ = ["Engine", "Step"]

Value = TypeVar("Value")


class Engine:
    """Measures the Jacobian of clipped per-example gradients about a view of the records.

    Parameters
    ----------
    net
        The network. Its parameters with ``requires_grad`` are what is released; they are read
        anew at every call, so it can be trained in between.
    loss
        ``"cross_entropy"``, ``"mse"``, a loss module of torch, or a function of output and target
        that returns one loss per example.
    clip
        :class:`~seepage.nn.problem.clipping.SmoothClip`, ``HardClip`` or ``NoClip``.
    view
        What is unknown of the records: :class:`~seepage.nn.problem.views.Input`, ``Label``, ``Embedding``.
    clipping
        ``"exact"``, or ``"conservative"`` for the bound ``max(1, ρ²)‖J‖_F²/φ²``, which needs no
        derivative of the clip.
    chunk_size
        How many examples are worked on at a time; ``"auto"`` finds what fits.
    seed
        Of the probes: the same seed and key give the same probes, whatever the chunks.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...>
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
        clipping: str = "exact",
        chunk_size: int | str = "auto",
        seed: int = 0,
    ) -> None:
        if clipping not in ("exact", "conservative"):
            raise InputError(f"clipping must be 'exact' or 'conservative', not {clipping!r}.")
        self.net = unwrapped(net)
        self.clip = SmoothClip(1.0) if clip is None else clip
        self.view = Input() if view is None else view
        self.clipping, self.seed = clipping, seed
        self.problem = Problem(self.net, per_example(loss), self.view)
        self.chunks = Chunks(chunk_size)
        self._passes = Passes(self.problem, self.clip, clipping == "conservative")
        self._validator = Validator(self.problem)

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
            The batch, examples along the first axis.
        probes
            How many independent estimates of the trace; none for 0.
        key
            What makes the probes of this step different from those of others: its number.
        index
            The records' own numbers, ``(B,)``; their positions in the batch otherwise.
        update
            Whether to return the sum of the clipped gradients as well.
        pulls
            Whether to return ``J̃ᵀu``; this calls for probes of the release.
        """
        count = batch_size(x)
        own = torch.arange(count) if index is None else torch.as_tensor(index)
        if own.shape != (count,):
            raise InputError(f"index must hold one number for each of the {count} examples.")
        if count == 0:
            return self._empty(x, probes, update, pulls)
        thin = probes > 0 and self._thin(x, y)
        if not thin:
            self._prepare(x, y, rules=not isinstance(self.clip, NoClip))
        bounded = self.clipping == "conservative" or isinstance(self.clip, NoClip)
        released = probes > 0 and (thin or pulls or bounded)

        @cache
        def us() -> list[Directions]:  # drawn when they are needed, while the device is at work
            return [directions(self.problem, self.seed, key, k, thin=thin) for k in range(probes)]

        def work(rows: slice) -> Step:
            batch = self.problem.batch(rows_of(x, rows), y[rows])
            if not probes:
                return self._passes.plain(self._layers, batch, update)
            if thin:
                return self._passes.thinly_probed(self._layers, batch, us, update, pulls)
            if released:
                return self._passes.probed(self._layers, batch, us, update, pulls)
            shape = tuple(batch.z.shape[1:])
            keys = [key_of(self.seed, key, k) for k in range(probes)]
            v = torch.stack([row_signs(k, own[rows], shape, batch.z) for k in keys])
            return self._passes.tangent(self._layers, batch, self.masked(v, 2), update)

        copies = (4 if thin else 8 if released else 5) + 3 * max(0, probes - 1)
        return joined(self._chunked(work, count, copies if probes else 3))

    def norms(self, x: Inputs, y: Tensor) -> Tensor:
        """Return the norm of every example's gradient, before clipping."""
        self._prepare(x, y)

        def work(rows: slice) -> Tensor:
            return norms(self._layers, self.problem.batch(rows_of(x, rows), y[rows]))[0]

        return torch.cat(self._chunked(work, batch_size(x), 3))

    def clipped_gradient(self, x: Inputs, y: Tensor) -> Clipped:
        """Return the sum of the clipped gradients, with norms and losses."""
        step = self.step(x, y, probes=0, update=True)
        assert step.gradient is not None  # noqa: S101 - it was asked for
        return Clipped(step.gradient, step.norms, step.losses)

    def squared_changes(self, x: Inputs, y: Tensor, v: Tensor) -> Tensor:
        """Return ``‖J̃v‖²`` for directions ``v (K, B, …)`` of the records, ``(B, K)``."""
        self._prepare(x, y)

        def work(rows: slice) -> Tensor:
            batch = self.problem.batch(rows_of(x, rows), y[rows])
            found = scalars(self._layers, batch, self.masked(v[:, rows], 2))
            return found.clipped(self.clip).T

        return torch.cat(self._chunked(work, batch_size(x), 2 + 3 * len(v)))

    def information_product(self, x: Inputs, y: Tensor, v: Tensor) -> Tensor:
        """Return ``J̃ᵀJ̃v`` for one direction ``v (B, …)`` of every record."""
        self._prepare(x, y)

        def work(rows: slice) -> Tensor:
            batch = self.problem.batch(rows_of(x, rows), y[rows])
            pull = information_product(self._layers, batch, self.masked(v[rows]), self.clip)
            return self.masked(pull)

        return torch.cat(self._chunked(work, batch_size(x), 8))

    def radial_pull(self, x: Inputs, y: Tensor) -> RadialPull:
        """Return ``Jᵀg = ½∇‖g‖²`` of every example, before clipping, with norms and losses."""
        self._prepare(x, y)

        def work(rows: slice) -> RadialPull:
            return radial_pull(self._layers, self.problem.batch(rows_of(x, rows), y[rows]))

        pulls, sizes, losses = zip(*self._chunked(work, batch_size(x), 6), strict=True)
        return self.masked(torch.cat(pulls)), torch.cat(sizes), torch.cat(losses)

    def unknowns(self, x: Inputs, y: Tensor) -> int:
        """Return how many numbers of one record the view leaves unknown."""
        return self.view.unknowns(self.variable(x, y))

    def variable(self, x: Inputs, y: Tensor) -> Tensor:
        """Return the present value of what the view is about, for the first example."""
        return self.view.variable(self.net, rows_of(x, slice(0, 1)), y[:1])

    def _prepare(self, x: Inputs, y: Tensor, rules: bool = True) -> None:
        """Look at the network where that is new."""
        self._layers: Layers = self._validator.layers(x, y, rules)

    def _chunked(self, work: Callable[[slice], Value], count: int, copies: int) -> list[Value]:
        """Apply work to chunks, each example of which holds so many copies of its layers' outputs.

        Primal values, tangents, gradients of both, and what torch keeps for the way back.
        """
        held = copies * self._layers.bytes_per_example()
        return self.chunks.run(work, count, held, self.problem.device())

    def _thin(self, x: Inputs, y: Tensor) -> bool:
        """Return whether wide layers make thin directions worth while, and rules allow them."""
        if not any(p.requires_grad and is_wide(p.shape) for p in self.net.parameters()):
            return False
        try:
            self._prepare(x, y)
        except InputError:
            if isinstance(self.clip, NoClip):  # which can do without rules
                return False
            raise
        return True

    def masked(self, values: Tensor, lead: int = 1) -> Tensor:
        """Return values with zeros where the view holds a record's entry as known.

        ``lead`` axes come before those of a record's variable.
        """
        return masked(self.view, values, lead)

    def _empty(self, x: Inputs, probes: int, update: bool, pulls: bool) -> Step:
        like = next(iter(self.problem.released().values()))
        none = torch.zeros(0, dtype=like.dtype, device=like.device)
        gradient = {n: torch.zeros_like(p) for n, p in self.problem.detached().items()}
        kept = None
        if pulls:
            if not isinstance(x, Tensor) or not isinstance(self.view, Input):
                raise InputError("An empty batch has no pulls for this view; skip it.")
            kept = torch.zeros(0, probes, *x.shape[1:], dtype=like.dtype, device=like.device)
        return Step(none, none, none.reshape(0, probes), gradient if update else None, kept)

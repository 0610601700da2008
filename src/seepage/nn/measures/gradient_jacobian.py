"""The Jacobian of one noisy gradient with respect to its batch, in the interface of ``core``.

The release is ``Σ_i g̃_i + N(0, s² I)``, a sum of clipped gradients in which record i affects only
its own term. Therefore ``J = (J̃_1 … J̃_B)/s`` with ``J̃_i = ∂g̃_i/∂z_i``. The engine computes
products with ``J`` without forming it. A finite change of a record changes the release by
``g̃(z′) − g̃(z)``, so no refit is needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seepage.core.jacobian import MeasuredRelease, ReleaseJacobian, Unknowns
from seepage.errors import InputError
from seepage.nn.jacobian.engine import Engine
from seepage.nn.measures.information_matrices import Directions, exact_squares, exact_trace
from seepage.nn.problem.views import Input, Inputs, Label, View, rows_of
from seepage.tables.source import Chunk, as_numpy


class GradientJacobian(ReleaseJacobian):
    """The Jacobian ``∂(Σ g̃)/∂z`` of a batch, in units of the noise's standard deviation.

    The columns of a record are the unknown entries of the view's variable, in order. If the view is
    the input, the label may be added as an unknown: the value of a numeric target, or the
    probability of each class.

    Parameters
    ----------
    engine
        The engine with the network, its loss, the clip and the view.
    x, y
        The batch, with records along the first axis.
    noise
        The standard deviation of the noise on the sum of the clipped gradients.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> from seepage.core.jacobian import Unknowns
    >>> from seepage.nn.measures.gradient_jacobian import GradientJacobian
    >>> net = torch.nn.Linear(3, 1, bias=False)
    >>> engine = sp.nn.Engine(net, "mse", clip=sp.nn.NoClip())
    >>> jacobian = GradientJacobian(engine, torch.randn(5, 3), torch.randn(5, 1), noise=2.0)
    >>> jacobian.rows, jacobian.features, jacobian.size
    (5, 3, 3)
    >>> jacobian.row_information(Unknowns(None, False))(slice(0, 2)).shape
    torch.Size([2, 3, 3])
    """

    def __init__(self, engine: Engine, x: Inputs, y: Tensor, noise: float) -> None:
        self.engine, self.inputs, self.target, self.noise = engine, x, y, noise
        z = engine.view.variable(engine.net, x, y)
        self._shape = tuple(z.shape[1:])
        self.entries = engine.view.entries(z)
        flat = z.reshape(len(z), -1)
        self.variable_size = flat.shape[1]
        self.X = flat if len(self.entries) == flat.shape[1] else flat[:, self.entries]
        self.rows, self.features = self.X.shape
        self.size = sum(p.numel() for p in engine.problem.released().values())

    @property
    def label_size(self) -> int:  # type: ignore[override]
        """The number of unknowns in one label, if the label can be added to the input."""
        return math.prod(self._with_label[1])

    @cached_property
    def _with_label(self) -> tuple[Engine, tuple[int, ...]]:
        """Return the engine for input and label together, and the shape of one label."""
        engine = self.engine
        if not isinstance(engine.view, Input):
            raise InputError(
                f"This leakage covers {engine.view.describe()} alone; use view=sp.nn.Input() for "
                "input and label together, or view=sp.nn.Label() for the label alone."
            )
        shape = tuple(Label().variable(engine.net, *self._batch(slice(0, 1))).shape[1:])
        both = Engine(
            engine.net,
            engine.problem.loss,
            view=_InputAndLabel(shape),
            method=engine.method,
            scale=engine.scale,
            chunk_size=engine.chunks.size or "auto",
        )
        return both, shape

    def _asked(self, unknowns: Unknowns) -> Engine:
        if not unknowns.label:
            return self.engine
        engine = self._with_label[0]
        engine.clip = self.engine.clip  # which owns it
        return engine

    def forward(self, z: Any, unknowns: Unknowns, rows: Any) -> Tensor:
        """Return ``J z`` over the P parameters, ``(P,)``, for changes ``z (len(rows), q)``."""
        total = self._asked(unknowns).summed_changes(*self._batch(rows), self._placed(z, unknowns))
        return torch.cat([part.flatten() for part in total.values()]) / self.noise

    def adjoint(self, v: Any, unknowns: Unknowns, rows: Any) -> Tensor:
        """Return ``Jᵀv``, ``(len(rows), q)``, for a vector ``v (P,)`` of the whitened release."""
        return self._pulled(v[None, :], unknowns, rows)[0]

    def row_information(self, unknowns: Unknowns) -> Callable[[slice], Tensor]:
        """Return a function that computes each row's information matrix, ``(m, q, q)``.

        The function needs one product per unknown, for any number of parameters.
        """
        operator = self.row_operator(unknowns)
        count = unknowns.count(self)

        def matrices(rows: slice) -> Tensor:
            apply, held = operator(rows), len(range(self.rows)[rows])
            units = torch.eye(count, dtype=self.X.dtype, device=self.X.device)
            products = torch.stack([apply(unit.expand(held, count)) for unit in units], 2)
            return (products + products.transpose(1, 2)) / 2

        return matrices

    def row_operator(self, unknowns: Unknowns) -> Callable[[slice], Callable[[Tensor], Tensor]]:
        """Return a function that multiplies one vector per row by the row's information matrix."""

        def operator(rows: slice) -> Callable[[Tensor], Tensor]:
            engine, (x, y) = self._asked(unknowns), self._batch(rows)

            def apply(v: Tensor) -> Tensor:
                product = engine.information_product(x, y, self._placed(v, unknowns))
                return self._taken(product, unknowns) / self.noise**2

            return apply

        return operator

    def row_traces(self, unknowns: Unknowns) -> Tensor:
        """Return the trace of the information about each row, ``(n,)``."""
        return self._squared(unknowns, exact_trace)

    def cell_information(self, unknowns: Unknowns) -> Tensor:
        """Return the information about each of the t unknown features alone, ``(n, t)``."""
        return self._squared(Unknowns(unknowns.columns, False, unknowns.basis), exact_squares)

    def _squared(self, unknowns: Unknowns, measured: Callable[..., Tensor]) -> Tensor:
        """Return ``‖J e_j‖²`` of each record, for each unknown j or their sum, as ``measured``."""
        engine, count = self._asked(unknowns), unknowns.count(self)

        def unit(k: int) -> Tensor:
            one = self.X.new_zeros(1, count)
            one[0, k] = 1.0
            return self._placed(one, unknowns)[0]

        # Derivatives, like the products it is used with, unless finite steps were asked for.
        exactly = engine.method != "finite"
        units = Directions(unit, count)
        squares = measured(engine, self.inputs, self.target, units, derivative=exactly)
        return squares / self.noise**2

    def replaced(self, row: int, features: Any) -> tuple[Inputs, Tensor]:
        """Return K records that replace a row, as a batch; their features are ``(K, d)``."""
        own_x, own_y = self._batch(slice(row, row + 1))
        z = self.engine.view.variable(self.engine.net, own_x, own_y)
        z = z.reshape(1, -1).repeat(len(features), 1)
        z[:, self.entries] = torch.as_tensor(features).to(z)
        z = z.reshape(-1, *self._shape)
        again = torch.zeros(len(z), dtype=torch.int64, device=z.device)
        if isinstance(self.engine.view, Label):
            return rows_of(own_x, again), z
        return z, own_y[again]

    def row_jacobians(self, unknowns: Unknowns, rows: Any) -> Tensor:
        """Return the full whitened Jacobians of some rows, ``(m, P, q)``."""
        if self.size > len(rows) * unknowns.count(self):
            return super().row_jacobians(unknowns, rows)
        units = torch.eye(self.size, dtype=self.X.dtype, device=self.X.device)
        pulls = [self._pulled(some, unknowns, rows) for some in units.split(8)]
        return torch.cat(pulls).transpose(0, 1)

    def _pulled(self, v: Tensor, unknowns: Unknowns, rows: Any) -> Tensor:
        """Return ``Jᵀv``, ``(K, len(rows), q)``, for vectors ``v (K, P)`` of the release."""
        released = self.engine.problem.released()
        pieces = v.split([p.numel() for p in released.values()], 1)
        directions = {
            name: piece.reshape(-1, *p.shape)
            for (name, p), piece in zip(released.items(), pieces, strict=True)
        }
        pulls = self._asked(unknowns).pulls_along(*self._batch(rows), directions)
        return torch.stack([self._taken(pull, unknowns) for pull in pulls]) / self.noise

    def _batch(self, rows: Any) -> tuple[Inputs, Tensor]:
        return rows_of(self.inputs, rows), self.target[rows]

    def _placed(self, z: Tensor, unknowns: Unknowns) -> Tensor:
        """Expand changes ``(m, q)`` of the unknowns to changes of the variable, ``(m, …)``."""
        features = unknowns.features(self.features)
        out = self.X.new_zeros(len(z), math.prod(self._shape))
        if features:
            out[:, self.entries] = unknowns.back(z[:, :features].T, self.features).T
        if unknowns.label:
            return torch.cat((out, z[:, features:]), 1)
        return out.reshape(len(z), *self._shape)

    def _taken(self, values: Tensor, unknowns: Unknowns) -> Tensor:
        """Restrict values ``(m, …)`` of the variable to the unknowns, ``(m, q)``."""
        flat = values.reshape(len(values), -1)
        features = unknowns.of(flat[:, self.entries], axis=1)
        if not unknowns.label:
            return features
        return torch.cat((features, flat[:, math.prod(self._shape) :]), 1)


class _InputAndLabel(View):
    """The input and the label of a record, flattened and concatenated."""

    mask = None

    def __init__(self, label_shape: tuple[int, ...]) -> None:
        self.label_shape = label_shape

    def variable(self, net: nn.Module, x: Inputs, y: Tensor) -> Tensor:
        """Return the current input and label, ``(B, d + L)``."""
        both = Input().variable(net, x, y), Label().variable(net, x, y).to(x)
        return torch.cat([part.reshape(len(part), -1) for part in both], 1)

    @contextmanager
    def placed(
        self, net: nn.Module, x: Inputs, y: Tensor, z: Tensor
    ) -> Iterator[tuple[Inputs, Tensor]]:
        """Use the first part of ``z`` as the network's input, and the second as the target."""
        size = x[0].numel()
        yield z[:, :size].reshape(-1, *x.shape[1:]), z[:, size:].reshape(-1, *self.label_shape)

    def describe(self) -> str:
        """Return a description of the view's unknowns."""
        return "the input and the label"


class GradientRelease(MeasuredRelease):
    """One noisy gradient of a batch whose records are all in memory."""

    template: GradientJacobian

    def __init__(self, template: GradientJacobian) -> None:
        self.template = template

    @property
    def sensitivity(self) -> float | None:
        """The sensitivity to replacing one record: twice the largest norm of a clipped gradient."""
        reach = 2 * self.template.engine.clip.sensitivity
        return reach if math.isfinite(reach) else None

    def jacobian(self, chunk: Chunk) -> ReleaseJacobian:
        """Return the Jacobian with respect to all records; there is only one chunk."""
        return self.template

    def refits(self) -> GradientMoves:
        """Return an object that computes the release's change for finite changes of a record."""
        if not isinstance(self.template.engine.view, Input | Label):
            raise InputError(
                "Finite changes of an embedding are not supported; use view=sp.nn.Input() or "
                "sp.nn.Label()."
            )
        return GradientMoves(self.template)


def refuse_labels(labels: Any) -> None:
    """Raise an error if labels are passed beside the unknowns that replace a record's own."""
    if labels is not None:
        raise InputError(
            "Labels cannot be passed here; to replace a record's label, use view=sp.nn.Label() "
            "and pass the label as features."
        )


class GradientMoves:
    """Computes the gradient of a batch with one record replaced, for finite changes."""

    def __init__(self, jacobian: GradientJacobian) -> None:
        self._at = jacobian
        self.rounding = 64 * float(torch.finfo(jacobian.X.dtype).eps)
        self.X = as_numpy(jacobian.X).astype(float)
        self.target = as_numpy(jacobian.target)
        self.theta = self._flat(jacobian.inputs, jacobian.target)

    def parameters(self, row: int, features: Any, labels: Any = None) -> np.ndarray:
        """Return the sum of clipped gradients for each replacement of a row, ``(K, P)``."""
        return np.asarray(self.theta + self.moves(row, features, labels))

    def moves(self, row: int, features: Any, labels: Any = None) -> np.ndarray:
        """Return ``g̃(z′) − g̃(z)`` for each replacement of a row, ``(K, P)``."""
        refuse_labels(labels)
        x, y = self._at.replaced(row, features)
        own = self._at.replaced(row, self.X[row][None, :])
        each = [self._flat(rows_of(x, slice(k, k + 1)), y[k : k + 1]) for k in range(len(y))]
        return np.asarray(np.stack(each) - self._flat(*own))

    def jacobian(
        self, row: int, features: np.ndarray, label: Any, theta: np.ndarray, noise: Any
    ) -> ReleaseJacobian:
        """Return the Jacobian with respect to the record that replaces a row."""
        x, y = self._at.replaced(row, np.asarray(features)[None, :])
        return GradientJacobian(self._at.engine, x, y, float(noise.sigma))

    def _flat(self, x: Inputs, y: Tensor) -> np.ndarray:
        return np.asarray(as_numpy(self._at.engine.flat_gradient(x, y)), dtype=float)

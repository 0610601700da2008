"""Local training as a map from a client's records to its update, and the map's Jacobian.

Let ``u(z) = θ_sent − θ_returned`` be the update after all local steps, with ``z`` the unknowns of
the client's records and ``s`` the factor ``share``. The Jacobian of the sent update ``s u``, ``J =
s ∂u/∂z``, has no closed form, because a record's effect on an early step propagates through all
later steps. Small runs are differentiated exactly through all steps, in float64. For larger runs, a
product with one direction needs two plain runs: ``Jv ≈ s (u(z + hv) − u(z − hv))/2h``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seepage.core.jacobian import MeasuredRelease, ReleaseJacobian, Unknowns
from seepage.core.noise import Noise
from seepage.errors import InputError
from seepage.layers.federated.local_training import LocalTraining, Parameters
from seepage.nn.gradients.watching import differentiable_backends
from seepage.nn.jacobian.random_directions import key_of, signs
from seepage.nn.measures.gradient_jacobian import refuse_labels
from seepage.nn.problem.problem import Batch, NetworkProblem
from seepage.support.chunks import row_slices
from seepage.tables.source import Chunk, as_numpy

LARGEST = 1 << 27  # most entries of a Jacobian that is formed: a gigabyte


@dataclass
class LocalRun:
    """A client's update as a function of the unknowns in its records.

    Parameters
    ----------
    problem
        The network that was sent, its loss, and the view that selects the unknowns.
    batch
        All records of the client.
    training
        How the client trains.
    share
        The factor by which the update is multiplied before noise is added.
    max_norm
        The norm to which a longer update is scaled down before noise is added, or ``None``.
    """

    problem: NetworkProblem
    batch: Batch
    training: LocalTraining
    share: float = 1.0
    max_norm: float | None = None

    def __post_init__(self) -> None:
        self._start = self.problem.detached()
        self._steps = [
            rows.to(self.batch.z.device) for rows in self.training.rows_of_steps(len(self.batch))
        ]

    def scale(self) -> float:
        """Return the root mean square of the unknowns."""
        return self.problem.view.scale(self.problem.net, self.batch.x, self.batch.y)

    def double(self) -> LocalRun:
        """Return the same run in float64."""
        wide = replace(self.problem, wider=torch.float64)
        return replace(self, problem=wide, batch=self.batch.of_type(torch.float64))

    def sent(self, z: Tensor, differentiable: bool = False) -> Tensor:
        """Return the update for these records, ``(P,)``; differentiable in ``z`` if requested."""

        def gradient(parameters: Parameters, rows: Tensor) -> Parameters:
            names = list(parameters)
            if not differentiable:
                parameters = {k: v.detach() for k, v in parameters.items()}
            free = {k: v if v.requires_grad else v.requires_grad_() for k, v in parameters.items()}
            mean = self.problem.losses(free, self.batch.records(rows), z[rows]).mean()
            slopes = torch.autograd.grad(
                mean, list(free.values()), create_graph=differentiable, materialize_grads=True
            )
            return dict(zip(names, slopes, strict=True))

        start = {name: value.clone() for name, value in self._start.items()}
        with differentiable_backends(self.problem.net):
            update = self.share * self.training.update(start, gradient, self._steps)
            if self.max_norm is not None:
                norm = torch.linalg.vector_norm(update)
                update = update * (self.max_norm / norm if norm > self.max_norm else 1.0)
        if not bool(torch.isfinite(update).all()):
            raise InputError(
                "The local training diverges, so its update is not finite; use a smaller lr."
            )
        return update

    def change(self, v: Tensor, h: float) -> Tensor:
        """Return ``(sent(z + hv) − sent(z − hv))/2h`` from two plain runs."""
        z = self.batch.z
        return ((self.sent(z + h * v) - self.sent(z - h * v)) / (2 * h)).detach()


class UpdateJacobian(ReleaseJacobian):
    """``∂update/∂records`` through all local steps, in units of the noise, computed in float64.

    Parameters
    ----------
    run
        The client's local training.
    noise
        The noise on the update.
    only
        The records for which the Jacobian is computed; by default, all records.
    scale
        The root mean square of the unknowns, if already computed.
    """

    def __init__(
        self, run: LocalRun, noise: Noise, only: slice = slice(None), scale: float | None = None
    ) -> None:
        self.run, self.only = run.double(), only
        self.scale = run.scale() if scale is None else scale
        problem, z = self.run.problem, self.run.batch.z
        mask = problem.view.mask_for(z)
        unknown = torch.ones(z.shape[1:], dtype=torch.bool) if mask is None else mask
        self.entries = torch.nonzero(unknown.flatten()).flatten().to(z.device)
        self.X, self.target = z.flatten(1)[only][:, self.entries], self.run.batch.y[only]
        self.rows, self.features = self.X.shape
        self.label_size = 0
        self.size = sum(p.numel() for p in problem.released().values())
        self.root = torch.as_tensor(noise.root(self.size), dtype=z.dtype, device=z.device)

    def whitened(self, changes: Tensor) -> Tensor:
        """Return changes of the update, ``(P, …)``, in units of the noise."""
        if self.root.dim() == 2:
            return torch.tensordot(self.root, changes, 1)
        return changes * (self.root if self.root.dim() == 0 else _along_first(self.root, changes))

    @cached_property
    def dense(self) -> Tensor:
        """The whitened Jacobian with respect to all unknowns, ``(P, n, q)``."""
        if self.size * self.rows * self.features > LARGEST:
            raise InputError(
                f"The Jacobian of {self.size:,} parameters with respect to {self.rows:,} records "
                f"of {self.features:,} unknowns is too large for memory. Use method='finite', a "
                "smaller network, or a part of the input (view=sp.nn.Input(mask))."
            )
        z = self.run.batch.z.clone().requires_grad_()
        sent = self.run.sent(z, differentiable=True)
        if torch.autograd.grad(sent.sum(), z, retain_graph=True, allow_unused=True)[0] is None:
            raise InputError(_HIDDEN)
        lines = []
        # Sixteen rows share a backward pass through all steps.
        for rows in row_slices(self.size, 1, chunk=16, what="rows of the Jacobian"):
            units = torch.zeros(rows.stop - rows.start, self.size).to(z)
            units.diagonal(rows.start).fill_(1.0)
            (slopes,) = torch.autograd.grad(
                sent, z, units, retain_graph=True, is_grads_batched=True
            )
            lines.append(slopes.flatten(2)[:, self.only, self.entries])
        plain = torch.cat(lines)
        self._compare(plain)
        return self.whitened(plain)

    def _compare(self, plain: Tensor) -> None:
        """Raise an error if the derivative disagrees with the update's change over a small step."""
        if self.run.training.optimizer != "sgd":
            return  # Adam's first step is almost a sign, so no difference step is small enough
        batch = self.run.batch
        few = signs(key_of("derivative", "update"), tuple(self.X.shape), self.X)
        v = torch.zeros_like(batch.z).flatten(1)
        v[self.only, self.entries] = few
        over = self.run.change(v.reshape(batch.z.shape), 1e-5 * self.scale)
        derivative = torch.tensordot(plain, few, 2)
        gap = torch.linalg.vector_norm(over - derivative)
        # Curvature over so small a step stays far below this share; a hidden record does not.
        if gap > 0.05 * torch.maximum(over.norm(), derivative.norm()) and over.norm() > 0:
            raise InputError(_HIDDEN)

    def forward(self, z: Any, unknowns: Unknowns, rows: Any) -> Tensor:
        """Return ``J z``, ``(P,)``, for a change ``z`` of the given records, ``(len(rows), q)``."""
        return torch.tensordot(self._block(unknowns, rows), z, 2)

    def adjoint(self, v: Any, unknowns: Unknowns, rows: Any) -> Tensor:
        """Return ``Jᵀv``, ``(len(rows), q)``, for a vector ``v`` of the whitened release."""
        return torch.tensordot(v, self._block(unknowns, rows), 1)

    def row_jacobians(self, unknowns: Unknowns, rows: Any) -> Tensor:
        """Return the whitened Jacobians of the given rows in full, ``(m, P, q)``."""
        return self._block(unknowns, rows).transpose(0, 1)

    def _block(self, unknowns: Unknowns, rows: Any) -> Tensor:
        if unknowns.label:
            raise InputError(
                f"This leakage is defined only for {self.run.problem.view.describe()}; for the "
                "label, use view=sp.nn.Label()."
            )
        block: Tensor = unknowns.of(self.dense[:, rows], axis=2)
        return block


class UpdateMoves:
    """A client's updates if one record is replaced; training is rerun for each replacement.

    Parameters
    ----------
    jacobian
        The Jacobian at the actual records.
    """

    def __init__(self, jacobian: UpdateJacobian) -> None:
        self._at = jacobian
        self.rounding = 64 * float(torch.finfo(jacobian.X.dtype).eps)
        self.X, self.target = as_numpy(jacobian.X), as_numpy(jacobian.target)
        self.theta = self._sent(jacobian.run.batch.z)

    def parameters(self, row: int, features: Any, labels: Any = None) -> np.ndarray:
        """Return the updates for the given replacements of a row, ``(K, P)``."""
        refuse_labels(labels)
        return np.stack([self._sent(self._replaced(row, one)) for one in np.asarray(features)])

    def moves(self, row: int, features: Any, labels: Any = None) -> np.ndarray:
        """Return the updates for these replacements minus the actual update, ``(K, P)``."""
        return np.asarray(self.parameters(row, features, labels) - self.theta)

    def jacobian(
        self, row: int, features: np.ndarray, label: Any, theta: np.ndarray, noise: Any
    ) -> ReleaseJacobian:
        """Return the Jacobian with respect to the replaced row."""
        run = self._at.run
        there = replace(run, batch=replace(run.batch, z=self._replaced(row, features)))
        return UpdateJacobian(there, noise, slice(row, row + 1), self._at.scale)

    def _replaced(self, row: int, features: Any) -> Tensor:
        z = self._at.run.batch.z.flatten(1).clone()
        z[row, self._at.entries] = torch.as_tensor(np.asarray(features)).to(z)
        return z.reshape(self._at.run.batch.z.shape)

    def _sent(self, z: Tensor) -> np.ndarray:
        return np.asarray(as_numpy(self._at.run.sent(z).detach()))


class UpdateRelease(MeasuredRelease):
    """One noisy update of a client whose records are all in memory.

    Parameters
    ----------
    template
        The Jacobian with respect to all records.
    """

    template: UpdateJacobian

    def __init__(self, template: UpdateJacobian) -> None:
        self.template = template

    @property
    def sensitivity(self) -> float | None:
        """The largest distance between two updates: twice ``max_norm``, if clipped."""
        reach = self.template.run.max_norm
        return None if reach is None else 2 * reach

    def jacobian(self, chunk: Chunk) -> ReleaseJacobian:
        """Return the Jacobian with respect to the records of the only chunk."""
        return self.template

    def refits(self) -> UpdateMoves:
        """Return the finite changes of the update when a record is replaced."""
        return UpdateMoves(self.template)


_HIDDEN = (
    "The derivative of the update disagrees with its change over a small step. Either the network "
    "hides the records from differentiation (torch.no_grad(), .detach()), or the records are at a "
    "kink; use method='finite'."
)


def _along_first(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (like.dim() - 1))

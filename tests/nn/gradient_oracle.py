"""The naive truth about clipped gradients: one record at a time, dense, in float64.

Only plain backward passes are used (a column of the Jacobian is a double backward pass), since
combinations of torch's transformations are what is under test.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from seepage.nn.gradients.watching import differentiable_backends
from seepage.nn.problem.clipping import Clip
from seepage.nn.problem.problem import NetworkProblem, per_record
from seepage.nn.problem.views import View


@dataclass(frozen=True)
class Dense:
    """Gradients (B, p) and Jacobians (B, p, d) of every record, unclipped."""

    g: Tensor
    J: Tensor

    def clipped(self, clip: Clip) -> tuple[Tensor, Tensor]:
        """Return g̃ and J̃ from the quotient rule, φ and φ′ taken by autograd."""
        n = self.g.norm(dim=1).requires_grad_()
        phi = clip.phi(n)
        slope = torch.autograd.grad((phi + 0 * n).sum(), n)[0]
        phi, n = phi.detach(), n.detach()
        dn = torch.einsum("bp,bpd->bd", self.g, self.J) / n[:, None]
        J = self.J / phi[:, None, None]
        J = J - (slope / phi**2)[:, None, None] * self.g[:, :, None] * dn[:, None, :]
        return self.g / phi[:, None], J


def gradient_of(net: nn.Module, loss: object, view: View, x: Tensor, y: Tensor) -> object:
    """Return the function that maps one record's variable to its flat gradient."""
    problem = NetworkProblem(net, per_record(loss), view)
    batch = problem.batch(x, y)
    parameters = {n: p.detach().requires_grad_() for n, p in problem.released().items()}

    def gradient(z: Tensor) -> Tensor:
        losses = problem.losses(parameters, batch, z[None])
        parts = torch.autograd.grad(
            losses.sum(), list(parameters.values()), create_graph=True, materialize_grads=True
        )
        return torch.cat([part.flatten() for part in parts])

    return gradient, batch.z[0]


def dense(net: nn.Module, loss: object, view: View, x: Tensor, y: Tensor) -> Dense:
    """Return all gradients and Jacobians, looped over records and parameters."""
    rows, jacobians = [], []
    for i in range(len(y)):
        one_x = {k: v[i : i + 1] for k, v in x.items()} if isinstance(x, dict) else x[i : i + 1]
        gradient, z = gradient_of(net, loss, view, one_x, y[i : i + 1])
        with differentiable_backends(net):
            value, columns = _columns(gradient, z)
        mask = view.mask_for(z[None])
        if mask is not None:
            columns = columns[:, mask.flatten()]
        rows.append(value)
        jacobians.append(columns)
    return Dense(torch.stack(rows), torch.stack(jacobians))


def _columns(gradient: object, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return g and ∂g/∂z, each column from the derivative of a pull with respect to its weights."""
    z = z.detach().clone().requires_grad_()
    g = gradient(z)
    weights = torch.zeros_like(g, requires_grad=True)
    pull = torch.autograd.grad(g, z, weights, create_graph=True, materialize_grads=True)[0]
    columns = [
        torch.autograd.grad(entry, weights, retain_graph=True, materialize_grads=True)[0]
        if entry.requires_grad
        else torch.zeros_like(g)
        for entry in pull.flatten()
    ]
    return g.detach(), torch.stack(columns, 1).detach()


def finite_differences(
    net: nn.Module, loss: object, view: View, x: Tensor, y: Tensor, v: Tensor, step: float = 1e-5
) -> Tensor:
    """Return (∂g/∂z)v of one record by central differences."""
    gradient, z = gradient_of(net, loss, view, x, y)
    with differentiable_backends(net):
        ahead = gradient((z + step * v).detach()).detach()
        behind = gradient((z - step * v).detach()).detach()
    return (ahead - behind) / (2 * step)

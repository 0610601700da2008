"""The passes of one step over one chunk of a batch, one method for each way to measure it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.nn.gradients.contributions import weighted_sums
from seepage.nn.gradients.norms import clipped_gradient, norms
from seepage.nn.gradients.recording import Layers
from seepage.nn.jacobian.directions import Draw
from seepage.nn.jacobian.probes import Probes, probe
from seepage.nn.jacobian.pullbacks import radial_pull
from seepage.nn.jacobian.steps import Step
from seepage.nn.jacobian.tangents import scalars
from seepage.nn.jacobian.thin_probes import thin_probe
from seepage.nn.problem.clipping import Clip, NoClip
from seepage.nn.problem.problem import Batch, Problem
from seepage.nn.problem.views import View


@dataclass(frozen=True)
class Passes:
    """A problem and how its gradients are clipped.

    Parameters
    ----------
    problem
        The network, its loss and the view.
    clip
        What divides the gradients.
    conservative
        Whether probes of the release are bounded rather than clipped exactly.
    """

    problem: Problem
    clip: Clip
    conservative: bool

    def plain(self, layers: Layers, batch: Batch, update: bool) -> Step:
        """Return norms and losses, and the clipped sum where it is wanted."""
        none = torch.zeros(len(batch), 0, dtype=batch.z.dtype, device=batch.z.device)
        if isinstance(self.clip, NoClip):
            unknown = torch.full_like(none.sum(1), torch.nan)
            losses, gradient = self._weighted(batch, torch.zeros_like(unknown))
            return Step(losses, unknown, none, gradient if update else None)
        if update:
            done = clipped_gradient(layers, batch, self.clip)
            return Step(done.losses, done.norms, none, done.gradient)
        size, losses = norms(layers, batch)
        return Step(losses, size, none)

    def tangent(self, layers: Layers, batch: Batch, v: Tensor, update: bool) -> Step:
        """Return a step from tangents of the records, exactly clipped."""
        found = scalars(layers, batch, v, keep=update)
        gradient = None
        if update:
            weights = self.clip.factor(found.norms)
            gradient = weighted_sums(found.gradients, weights, self.problem.detached())
        return Step(found.losses, found.norms, found.clipped(self.clip).T, gradient)

    def thinly_probed(
        self, layers: Layers, batch: Batch, us: Draw, update: bool, pulls: bool
    ) -> Step:
        """Return a step from probes with thin directions, clipped in the same pass."""
        safe = self.conservative and not isinstance(self.clip, NoClip)
        used = NoClip() if safe else self.clip
        found = thin_probe(layers, batch, us, used, keep=update and not safe)
        back = masked(self.problem.view, found.pulls, 2)
        size, gradient = found.norms, found.gradient
        if safe:
            plain = self.plain(layers, batch, update)
            size, gradient = plain.norms, plain.gradient
            back = back * _as(self.clip.conservative(size).sqrt(), back)
        traces = back.flatten(2).square().sum(2).T
        return Step(found.losses, size, traces, gradient, back.transpose(0, 1) if pulls else None)

    def probed(self, layers: Layers, batch: Batch, us: Draw, update: bool, pulls: bool) -> Step:
        """Return a step from probes of the release, which take no rule themselves."""
        found = probe(self.problem, batch, us())
        raw = masked(self.problem.view, found.pulls, 2)
        gradient = None
        if isinstance(self.clip, NoClip) and not update:
            back, size = raw, torch.full_like(found.losses, torch.nan)
        elif isinstance(self.clip, NoClip) or self.conservative:
            plain = self.plain(layers, batch, update)
            size, gradient = plain.norms, plain.gradient
            back = raw
            if not isinstance(self.clip, NoClip):
                back = raw * _as(self.clip.conservative(size).sqrt(), raw)
        else:
            back, size = self._clipped_pulls(layers, batch, found, raw)
            gradient = self._weighted(batch, size)[1] if update else None
        traces = back.flatten(2).square().sum(2).T
        return Step(found.losses, size, traces, gradient, back.transpose(0, 1) if pulls else None)

    def _clipped_pulls(
        self, layers: Layers, batch: Batch, found: Probes, raw: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return ``J̃ᵀu = Jᵀu/φ − (φ′/(φ²n))(g·u) Jᵀg`` and the norms."""
        radial, size, _ = radial_pull(layers, batch)
        radial = masked(self.problem.view, radial)
        phi = self.clip.phi(size)
        steepness = self.clip.slope(size) / (phi**2 * torch.where(size > 0, size, 1.0))
        along = (steepness * found.along).reshape(*found.along.shape, *[1] * (raw.dim() - 2))
        return raw / _as(phi, raw) - along * radial, size

    def _weighted(self, batch: Batch, size: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return losses and the clipped sum by one plain training pass, the norms being known."""
        parameters = {n: p.requires_grad_() for n, p in self.problem.detached().items()}
        with torch.enable_grad():
            losses = self.problem.losses(parameters, batch, batch.z)
            total = (losses * self.clip.factor(size)).sum()
            found = torch.autograd.grad(total, list(parameters.values()), materialize_grads=True)
        return losses.detach(), dict(zip(parameters, found, strict=True))


def masked(view: View, values: Tensor, lead: int = 1) -> Tensor:
    """Return values with zeros where a view holds a record's entry as known.

    ``lead`` axes come before those of a record's variable.
    """
    mask = view.mask_for(values.flatten(0, lead - 1))
    return values if mask is None else values * mask


def _as(factor: Tensor, like: Tensor) -> Tensor:
    """Return one number per example so that it multiplies ``(K, B, …)``."""
    return factor.reshape(1, -1, *[1] * (like.dim() - 2))

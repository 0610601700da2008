"""A network, its loss and a view bound together: losses as a function of parameters and data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from seepage.errors import InputError
from seepage.nn.problem.losses import Loss, class_axis
from seepage.nn.problem.views import Inputs, View


@dataclass(frozen=True)
class Batch:
    """Some examples, with the present value of the variable that the view names."""

    x: Inputs
    y: Tensor
    z: Tensor

    def __len__(self) -> int:
        return int(self.z.shape[0])


@dataclass
class Problem:
    """The losses of a batch, ``ℓ_i(w, z_i)``, whose gradients over ``w`` are released.

    Parameters
    ----------
    net, loss, view
        The network, its loss per example, and what is asked about.
    channels_last
        Whether images and kernels are laid out with the channels last, for speed alone: torch's
        pooling and convolutions are then up to twice as fast.
    """

    net: nn.Module
    loss: Loss
    view: View
    channels_last: bool = False

    def released(self) -> dict[str, nn.Parameter]:
        """Return the parameters whose gradients leave: those that are trained."""
        return {name: p for name, p in self.net.named_parameters() if p.requires_grad}

    def device(self) -> torch.device:
        """Return where the released parameters are."""
        return next(p.device for p in self.net.parameters() if p.requires_grad)

    def detached(self) -> dict[str, Tensor]:
        """Return the released parameters as constants."""
        return {name: self._laid_out(p.detach()) for name, p in self.released().items()}

    def batch(self, x: Inputs, y: Tensor) -> Batch:
        """Return the batch with the variable of the view."""
        x = self._laid_out(x) if isinstance(x, Tensor) else x
        if not y.is_floating_point() and class_axis(self.loss):
            y = y.long()  # torch's losses take no other class numbers
        return Batch(x, y, self.view.variable(self.net, x, y))

    def losses(self, parameters: Mapping[str, Tensor], batch: Batch, z: Tensor) -> Tensor:
        """Return one loss per example, with these parameters and this value of the variable."""
        with self.view.placed(self.net, batch.x, batch.y, z) as (x, y):
            args, kwargs = _arguments(x)
            output = functional_call(self.net, dict(parameters), args, kwargs)
            losses = self.loss(output, y)
        if losses.shape != (len(batch),):
            raise InputError(
                f"The loss must give one number per example, shape ({len(batch)},), but it gave "
                f"shape {tuple(losses.shape)}; use reduction='none'."
            )
        return losses

    def _laid_out(self, tensor: Tensor) -> Tensor:
        if not self.channels_last or tensor.dim() != 4:
            return tensor
        # A copy even where one channel makes both layouts the same: torch looks at the strides.
        out = torch.empty_like(tensor, memory_format=torch.channels_last)
        return out.copy_(tensor)


def _arguments(x: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(x, Mapping):
        return (), dict(x)
    return (tuple(x), {}) if isinstance(x, tuple | list) else ((x,), {})

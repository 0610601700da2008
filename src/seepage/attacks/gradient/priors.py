"""Knowledge of the data that helps gradient inversion: BatchNorm statistics, and one-hot columns.

A server knows the running statistics of BatchNorm layers, and often those of a client's batch. The
server also knows which columns of a table encode one category: exactly one of these columns is 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seepage.errors import InputError
from seepage.nn.gradients.network_checks import unwrapped

Statistics = Mapping[str, tuple[Any, Any]]


class BatchNormPrior:
    """The distance of a batch's statistics from known ones (Yin et al. 2021, "GradInversion").

    For the inputs of every BatchNorm layer ``l``, with mean ``μ_l`` and variance ``s_l`` of every
    channel over a batch, the distance is ``Σ_l (‖μ_l − m_l‖ + ‖s_l − v_l‖)``, where ``m_l`` and
    ``v_l`` are the layer's running statistics, or the given ones.

    Parameters
    ----------
    net
        The network, whose BatchNorm layers use their running statistics (``eval``).
    statistics
        The mean and variance of every channel, by the name of the layer; by default, the running
        statistics.

    Examples
    --------
    >>> import torch
    >>> from seepage.attacks.gradient.priors import BatchNormPrior
    >>> x = torch.randn(8, 3)
    >>> net = torch.nn.Sequential(torch.nn.BatchNorm1d(3)).eval()
    >>> prior = BatchNormPrior(net, {"0": (x.mean(0), x.var(0))})
    >>> bool(prior.distance(x, 8) < 1e-6), bool(prior.distance(x + 1, 8) > 1)
    (True, True)
    """

    def __init__(self, net: nn.Module, statistics: Statistics | None = None) -> None:
        self.net = unwrapped(net)
        layers = {
            name: module
            for name, module in self.net.named_modules()
            if isinstance(module, nn.modules.batchnorm._BatchNorm)
            and module.running_mean is not None
            and module.running_var is not None
        }
        unknown = [name for name in statistics or {} if name not in layers]
        if not layers or unknown:
            there = f"it has {', '.join(map(repr, layers))}" if layers else "it has none"
            raise InputError(
                f"The network has no BatchNorm layer {unknown[0]!r} with running statistics: "
                f"{there}; correct the name in statistics=."
                if unknown
                else "The network has no BatchNorm layer with running statistics; set batch_norm=0."
            )
        self._known = {
            layers[name]: tuple(torch.as_tensor(side) for side in pair)
            for name, pair in (statistics or _running(layers)).items()
        }

    def distance(self, x: Tensor, batch_size: int) -> Tensor:
        """Return the distance for each batch of records, differentiable in the records."""
        found: list[Tensor] = []

        def compare(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            mean, variance = (side.to(inputs[0]) for side in self._known[module])
            channels = inputs[0].reshape(-1, batch_size, len(mean), inputs[0][0, 0].numel())
            values = channels.transpose(1, 2).flatten(2)  # (batches, channels, values)
            found.append(_length(values.mean(2) - mean))
            if values.shape[2] > 1:
                found.append(_length(values.var(2) - variance))

        hooks = [module.register_forward_pre_hook(compare) for module in self._known]
        try:
            self.net(x)
        finally:
            for hook in hooks:
                hook.remove()
        return torch.stack(found).sum(0)


def _running(layers: Mapping[str, nn.Module]) -> Statistics:
    return {name: (module.running_mean, module.running_var) for name, module in layers.items()}


def _length(rows: Tensor) -> Tensor:
    """Return the Euclidean norm of every row, with a slope of zero at zero."""
    squared = rows.square().sum(1)
    return squared.clamp(min=torch.finfo(squared.dtype).tiny).sqrt()


class OneHotColumns:
    """Categories of a table as softmax-relaxed columns (Vero et al. 2023, "TabLeak").

    A group of columns encodes one category: exactly one of them is 1. The search varies real
    numbers ``u``; the record has ``softmax(20 u/span)`` in the group's columns. At the end, the
    largest of the group's columns becomes 1 and the others 0.

    Parameters
    ----------
    groups
        The positions of the columns of every category.
    columns
        The number of columns of a record.
    span
        The width of the range of the numbers ``u``.

    Examples
    --------
    >>> import torch
    >>> from seepage.attacks.gradient.priors import OneHotColumns
    >>> hot = OneHotColumns([(1, 2, 3)], 4, 1.0)
    >>> hot.rounded(torch.tensor([[0.7, 0.1, 0.9, 0.2]])).tolist()
    [[0.699999988079071, 0.0, 1.0, 0.0]]
    """

    def __init__(self, groups: Sequence[Sequence[int]], columns: int, span: float) -> None:
        self.groups = [tuple(int(k) for k in group) for group in groups]
        every = [k for group in self.groups for k in group]
        if (
            any(len(group) < 2 for group in self.groups)
            or len(set(every)) != len(every)
            or not all(0 <= k < columns for k in every)
        ):
            raise InputError(
                f"categories must list, for each category, the positions (0 to {columns - 1}) of "
                "its two or more columns, each column once."
            )
        self.span = span

    def relaxed(self, points: Tensor) -> Tensor:
        """Return records (n, columns) whose categories are probabilities."""
        parts = list(points.unbind(-1))
        for group in self.groups:
            # Over the whole range, the odds of two categories change by e²⁰: from certain to
            # impossible, with slopes that do not vanish halfway.
            logits = points[..., list(group)] * (20 / self.span)
            for k, share in zip(group, torch.softmax(logits, -1).unbind(-1), strict=True):
                parts[k] = share
        return torch.stack(parts, -1)

    def slopes(self, points: Tensor, slopes: Tensor) -> Tensor:
        """Return the gradient with respect to the points, given that of the relaxed records."""
        with torch.enable_grad():
            leaf = points.detach().requires_grad_()
            (found,) = torch.autograd.grad(self.relaxed(leaf), leaf, slopes)
        return found

    def rounded(self, points: Tensor) -> Tensor:
        """Return records whose categories are 1 in one column and 0 in the others."""
        out = points.clone()
        for group in self.groups:
            chosen = points[..., list(group)].argmax(-1)
            hot = nn.functional.one_hot(chosen, len(group)).to(points.dtype)
            out[..., list(group)] = hot
        return out

"""A layer that a malicious server inserts to read records from its gradient without a search.

The server that sends the network may change it. Fowl, Geiping, Czaja, Goldblum and Goldstein (2022,
"Robbing the Fed") insert one layer whose rows all measure the same quantity of a record (here the
mean of its entries), each with its own threshold. The difference between the gradients of two
neighbouring rows is then proportional to the record whose quantity lies between the two thresholds.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from scipy.stats import norm
from torch import Tensor, nn

from seepage.attacks.gradient.releases import GradientReleases
from seepage.errors import InputError


class ImprintLayer(nn.Module):  # type: ignore[misc]
    """A first layer for a network; it adds ``Σ_i relu(h(x) − c_i)/k`` to each entry of a record.

    ``h(x)`` is the mean of the record's entries and ``c_1 < … < c_k`` are the thresholds. Let ``δ``
    be the derivative of the loss with respect to each of a record's ``relu`` terms. The record adds
    ``δ`` to entry ``b_i`` of the bias's gradient, and ``δ x`` to row ``w_i`` of the weight's
    gradient, for every ``c_i < h(x)``. If exactly one record of the batch has ``c_i < h(x) ≤
    c_{i+1}``, that record is recovered exactly: ``x = (w_i − w_{i+1})/(b_i − b_{i+1})``. For
    several such records, the result is a weighted mean of the records. Of ``n`` records in ``k``
    equally likely bins, ``n (1 − 1/k)^(n−1)`` are expected to be alone in their bin.

    Secure aggregation does not prevent this attack: a sum over clients is a larger batch, for which
    the server chooses more thresholds.

    Parameters
    ----------
    shape
        The shape of one record, such as (1, 28, 28).
    thresholds
        The thresholds in ascending order; quantiles of ``h`` over public records work best.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> _ = torch.manual_seed(0)
    >>> x, y = torch.rand(4, 6), torch.tensor([0, 1, 1, 0])
    >>> imprint = sp.attacks.ImprintLayer((6,), torch.linspace(0, 1, 200))
    >>> net = torch.nn.Sequential(imprint, torch.nn.Linear(6, 2)).double()
    >>> sums = torch.nn.functional.cross_entropy(net(x.double()), y)
    >>> slopes = torch.autograd.grad(sums, list(net.parameters()))
    >>> names = [name for name, _ in net.named_parameters()]
    >>> seen = {name: slope[None] for name, slope in zip(names, slopes)}
    >>> (found,) = imprint.recover(sp.attacks.GradientReleases(seen, batch_size=4), "0")
    >>> order = x.mean(1).argsort()
    >>> bool(torch.allclose(found.float(), x[order], atol=1e-5))
    True
    """

    def __init__(self, shape: tuple[int, ...], thresholds: Any) -> None:
        super().__init__()
        edges = torch.as_tensor(thresholds, dtype=torch.get_default_dtype())
        if edges.dim() != 1 or len(edges) < 2 or not bool((edges.diff() > 0).all()):
            raise InputError("thresholds must be at least two numbers in ascending order.")
        self.shape = tuple(shape)
        d, k = math.prod(self.shape), len(edges)
        self.entry, self.exit = nn.Linear(d, k), nn.Linear(k, d, bias=False)
        with torch.no_grad():
            self.entry.weight.fill_(1 / d)
            self.entry.bias.copy_(-edges)
            self.exit.weight.fill_(1 / k)

    def forward(self, x: Tensor) -> Tensor:
        """Return the records, with the sum over thresholds added to every entry."""
        flat = x.flatten(1)
        out: Tensor = flat + self.exit(torch.relu(self.entry(flat)))
        return out.reshape(x.shape)

    def recover(self, releases: GradientReleases, name: str) -> list[Tensor]:
        """Return one tensor for each release: the contents of its non-empty bins, (bins, …).

        Parameters
        ----------
        releases
            The gradients, or updates, of the network with this layer.
        name
            The name of this layer in the network, such as ``"0"`` or ``"imprint"``.
        """
        try:
            weights, biases = (releases.gradients[f"{name}.entry.{w}"] for w in ("weight", "bias"))
        except KeyError:
            raise InputError(
                f"The release has no gradients of {name + '.entry'!r}; give the name of the "
                "imprint layer within the network."
            ) from None
        last = torch.zeros_like(biases[:, :1])
        each = biases - torch.cat([biases[:, 1:], last], 1)
        rows = weights - torch.cat([weights[:, 1:], last[..., None].expand_as(weights[:, :1])], 1)
        # What an empty bin can hold: rounding, and noise in one of k bins at the 5 % level.
        rounding = 64 * torch.finfo(biases.dtype).eps * biases.abs().amax(1, keepdim=True)
        noise = releases.noise * 2**0.5 * float(norm.isf(0.05 / (2 * each.shape[1])))
        there = each.abs() > rounding + noise
        return [
            (row[kept] / size[kept, None]).reshape(-1, *self.shape)
            for row, size, kept in zip(rows, each, there, strict=True)
        ]

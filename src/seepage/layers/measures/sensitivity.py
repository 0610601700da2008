"""Sensitivity: how strongly each layer's gradient answers to a change of the target or the input.

For a record k and layer l (paper 003, equation 2)::

    s_kl = ‖∂g_l/∂ŷ‖_p / range(g_l) / ψ_l,     ψ_l = √size, size, 1  for p = F, 1, ∞

with ``range`` the largest less the smallest entry of the layer's gradient ``g_l``, ``size`` the
number of its entries, and the norms 1 and ∞ those of the Jacobian's entries in one row.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seepage.errors import InputError
from seepage.layers.layer_parameters import layer_parameters, layer_sizes
from seepage.layers.measures.jacobian_columns import OutputKeeper
from seepage.layers.measures.jacobian_norms import NORMS, JacobianNorms, NormTally
from seepage.layers.measures.per_layer import PerLayer, mean_interval
from seepage.nn.gradients.network_checks import KinkWarning, Validator, unwrapped
from seepage.nn.problem.chunking import Chunks
from seepage.nn.problem.losses import Loss, per_example
from seepage.nn.problem.problem import Problem
from seepage.nn.problem.views import Input, Inputs, Label, View, batch_size, rows_of

# What a pass holds per number that the layers put out: values, gradients, tangents of both, and the
# patches of convolutions, which hold an input nine times and more.
_COPIES = 32
_VIEWS: dict[str, type[Input] | type[Label]] = {"target": Label, "input": Input}
_ESTIMATED = (
    "Per-sample norms are estimated from random directions; their standard errors are in `errors`, "
    "and the intervals over samples contain that uncertainty."
)
_NO_RANGE = (
    "Samples for which a layer's gradient is constant but its Jacobian is not have no range to "
    "divide by; they are left out of that layer's mean."
)


def sensitivity(
    net: nn.Module,
    loss: str | nn.Module | Loss,
    x: Inputs,
    y: Any,
    *,
    wrt: str = "target",
    norm: str | int = "fro",
    layers: Sequence[str] | None = None,
    exact: int = 64,
    directions: int = 8,
    chunk_size: int | str = "auto",
    seed: int = 0,
) -> PerLayer:
    """Return how sensitive each layer's gradient is, with intervals over the samples.

    Parameters
    ----------
    net, loss
        The network, and its loss as for :class:`seepage.nn.Engine`.
    x, y
        The samples.
    wrt
        ``"target"``: the soft target ``ŷ`` (class numbers become one-hot); ``"input"``.
    norm
        ``"fro"``, 1 or ``"inf"``.
    layers
        Names of modules, each with all that is below it; by default every module that has
        parameters of its own.
    exact
        Jacobians with at most so many columns (entries of the target or input), or for the input so
        many rows (entries of the layer's gradient), are taken whole. Others are estimated: "fro"
        from random signs, 1 from columns drawn at random; "inf" cannot be.
    directions
        Random directions per sample for the estimates.
    chunk_size
        Samples worked on at a time; ``"auto"`` finds what fits.
    seed
        Of the random directions.

    Examples
    --------
    >>> import torch, seepage.layers as layers
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    >>> x, y = torch.randn(10, 4), torch.randint(0, 3, (10,))
    >>> found = layers.sensitivity(net, "cross_entropy", x, y)
    >>> found.layers, found.kind
    (('0', '2'), 'exact')
    """
    if wrt not in _VIEWS:
        raise InputError(f"wrt must be 'target' or 'input', not {wrt!r}.")
    if norm not in NORMS:
        raise InputError(f"norm must be 'fro', 1 or 'inf', not {norm!r}.")
    if exact < 1 or directions < 2:
        raise InputError("exact must be at least 1, and directions at least 2.")
    y = torch.as_tensor(y)
    count = batch_size(x)
    if count == 0 or len(y) != count:
        raise InputError(f"There are {count} samples and {len(y)} targets; give one for each.")
    work = _Work(unwrapped(net), per_example(loss), wrt, norm, layers, exact, directions, seed)
    values, errors = work.all_samples(x, y, Chunks(chunk_size))
    return work.result(values, errors)


class _Work:
    """One call of :func:`sensitivity`."""

    def __init__(
        self,
        net: nn.Module,
        loss: Loss,
        wrt: str,
        norm: str | int,
        layers: Sequence[str] | None,
        exact: int,
        directions: int,
        seed: int,
    ) -> None:
        self.net, self.wrt, self.norm = net, wrt, norm
        layout = layer_parameters(net, layers)
        self.sizes = layer_sizes(net, layout)
        home = {name: layer for layer, names in layout.items() for name in names}
        self.norms = JacobianNorms(wrt, norm, self.sizes, home, exact, directions, seed)
        view: View = _VIEWS[wrt]()
        self.problem = Problem(net, OutputKeeper(loss), view)

    def all_samples(self, x: Inputs, y: Tensor, chunks: Chunks) -> tuple[np.ndarray, np.ndarray]:
        """Return the sensitivities and their standard errors, ``(n, layers)``."""
        with warnings.catch_warnings():
            if self.wrt == "target":  # nothing is differentiated twice, so kinks do no harm
                warnings.simplefilter("ignore", KinkWarning)
            plan = Validator(self.problem).layers(x, y)

        def work(rows: slice) -> tuple[np.ndarray, np.ndarray]:
            batch = self.problem.batch(rows_of(x, rows), y[rows])
            places = torch.arange(rows.start, rows.start + len(batch))
            return self._ratios(self.norms.of(plan, batch, places))

        held = _COPIES * plan.bytes_per_example()
        parts = chunks.run(work, len(y), held, next(self.net.parameters()).device)
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    def result(self, values: np.ndarray, errors: np.ndarray) -> PerLayer:
        """Return the mean over the samples."""
        mean, low, high = mean_interval(values)
        estimated = bool(np.any(errors > 0))
        notes = [_ESTIMATED] if estimated else []
        if np.any(np.isnan(values)):
            notes.append(_NO_RANGE)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a layer without any number
            median = np.nanmedian(values, axis=0)
        name = {"fro": "F", 1: "1", "inf": "∞"}[self.norm]
        return PerLayer(
            f"sensitivity to the {self.wrt}, {name}-norm",
            tuple(self.sizes),
            mean,
            low,
            high,
            tuple(self.sizes.values()),
            "estimate" if estimated else "exact",
            columns={"median": median},
            notes=tuple(notes),
            samples=values,
            errors=errors,
        )

    def _ratios(self, tally: NormTally) -> tuple[np.ndarray, np.ndarray]:
        values, errors = [], []
        for layer, size in self.sizes.items():
            psi = {"fro": math.sqrt(size), 1: float(size), "inf": 1.0}[self.norm]
            norm, spread = (
                tally.norm[layer].double(),
                (tally.high[layer] - tally.low[layer]).double(),
            )
            if not bool((norm.isfinite() & spread.isfinite()).all()):
                raise InputError(
                    f"The gradient of layer {layer!r} is not finite for some samples; check the "
                    "data and the parameters for NaN."
                )
            ratio = norm / spread / psi
            # Nothing moves and nothing is there: a sample that a layer does not see at all.
            ratio = torch.where((spread == 0) & (norm == 0), torch.zeros_like(ratio), ratio)
            ratio = torch.where(
                (spread == 0) & (norm != 0), torch.full_like(ratio, math.nan), ratio
            )
            error = torch.nan_to_num(tally.variance[layer].double().sqrt() / spread / psi, 0.0, 0.0)
            values.append(ratio.cpu().numpy())
            errors.append(error.cpu().numpy())
        return np.stack(values, 1), np.stack(errors, 1)

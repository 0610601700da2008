"""Sensitivity: how strongly each layer's gradient responds to changes in the target or the input.

For a record k and layer l (Mo et al. 2021, equation 2)::

    s_kl = ‖∂g_l/∂ŷ‖_p / range(g_l) / ψ_l,     ψ_l = √size, size, 1  for p = F, 1, ∞

Here ``ŷ`` is the record's soft target (or input), ``range`` is the largest minus the smallest entry
of the layer's gradient ``g_l``, and ``size`` is the number of its entries. The norms 1 and ∞ treat
the Jacobian's entries as one vector: they are the sum and the maximum of absolute values.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from seepage.errors import InputError, accepts_other_names
from seepage.layers.layer_parameters import layer_parameters, layer_sizes
from seepage.layers.measures.jacobian_columns import OutputKeeper
from seepage.layers.measures.jacobian_norms import NORMS, JacobianNorms, NormTally
from seepage.layers.measures.per_layer import PerLayer, mean_interval
from seepage.nn.gradients.network_checks import Validator, unwrapped
from seepage.nn.problem.problem import Chunks, Loss, NetworkProblem, per_record
from seepage.nn.problem.views import Input, Inputs, Label, View, rows_of
from seepage.support.number_check import check_choice, check_count

_VIEWS: dict[str, type[View]] = {"target": Label, "input": Input}
_ESTIMATED = (
    "The norms of single records are estimated from random directions; `errors` contains their "
    "standard errors, and the intervals over the records include this uncertainty."
)
_NO_RANGE = (
    "For some records, all entries of a layer's gradient are equal but its Jacobian is not zero, "
    "so there is no range to divide by. These records are left out of that layer's mean."
)


@accepts_other_names
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
    """Return the sensitivity of each layer's gradient, with intervals over the records.

    Parameters
    ----------
    net, loss
        The network, and its loss as for :class:`seepage.nn.Engine`.
    x, y
        The records.
    wrt
        ``"target"``, the soft target ``ŷ`` (class numbers become one-hot), or ``"input"``.
    norm
        ``"fro"``, 1 or ``"inf"``.
    layers
        The names of modules, each of which includes its submodules; by default, every module that
        has its own parameters.
    exact
        A Jacobian is computed in full if it has at most this number of columns (entries of the
        target or input). For the input, it is also computed in full if it has at most this number
        of rows (entries of the layer's gradient). Larger Jacobians are estimated: "fro" from random
        signs, and 1 from randomly drawn columns; "inf" cannot be estimated.
    directions
        The number of random directions per record for the estimates.
    chunk_size
        The number of records processed at a time; ``"auto"`` chooses a number that fits in memory.
    seed
        The seed of the random directions.

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
    check_choice(wrt, "wrt", _VIEWS)
    check_choice(norm, "norm", NORMS)
    check_count(exact, "exact")
    check_count(directions, "directions", 2)
    net = unwrapped(net)
    y = torch.as_tensor(y)
    layout = layer_parameters(net, layers)
    sizes = layer_sizes(net, layout)
    home = {name: layer for layer, names in layout.items() for name in names}
    norms = JacobianNorms(wrt, norm, sizes, home, exact, directions, seed)
    problem = NetworkProblem(net, OutputKeeper(per_record(loss)), _VIEWS[wrt]())
    validator = Validator(problem)
    watched = validator.watched(x, y)
    if watched.kinks and wrt != "target":  # without a double-backward pass, kinks do no harm
        validator.tell_of_kinks(watched)

    def work(rows: slice) -> tuple[np.ndarray, np.ndarray]:
        batch = problem.batch(rows_of(x, rows), y[rows])
        places = torch.arange(rows.start, rows.start + len(batch))
        return _ratios(norms.of(watched, batch, places), sizes, norm)

    # A pass holds, per output of the layers: values, gradients, tangents of both, and the patches
    # of convolutions, which repeat an input nine times and more.
    held = 32 * watched.bytes_per_record
    parts = Chunks(chunk_size).run(work, len(y), held, next(net.parameters()).device)
    values, errors = (np.concatenate(part) for part in zip(*parts, strict=True))
    estimated = bool(np.any(errors > 0))
    notes = [_ESTIMATED] if estimated else []
    if np.any(np.isnan(values)):
        notes.append(_NO_RANGE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the mean of a layer without numbers
        median = np.nanmedian(values, axis=0)
    return PerLayer.of(
        f"sensitivity to the {wrt}, {NORMS[norm]}-norm",
        tuple(sizes),
        mean_interval(values),
        tuple(sizes.values()),
        kind="estimate" if estimated else "exact",
        columns={"median": median},
        notes=tuple(notes),
        by_record=values,
        errors=errors,
    )


def _ratios(
    tally: NormTally, sizes: Mapping[str, int], norm: str | int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sensitivities of a batch and their standard errors, ``(B, layers)``."""
    values, errors = [], []
    for layer, size in sizes.items():
        psi = {"fro": math.sqrt(size), 1: float(size), "inf": 1.0}[norm]
        length = tally.norm[layer].double()
        spread = (tally.high[layer] - tally.low[layer]).double()
        if not bool((length.isfinite() & spread.isfinite()).all()):
            raise InputError(
                f"The gradient of layer {layer!r} is not finite for some records; check the data "
                "and the parameters for NaN."
            )
        # Where Jacobian and range are both zero, the layer does not see the record at all.
        without = torch.where(length == 0, 0.0, math.nan)
        ratio = torch.where(spread == 0, without, length / spread / psi)
        error = torch.nan_to_num(tally.variance[layer].double().sqrt() / spread / psi, 0.0, 0.0)
        values.append(ratio.cpu().numpy())
        errors.append(error.cpu().numpy())
    return np.stack(values, 1), np.stack(errors, 1)

"""The audit of a network's layers: both measures, which layers to protect, what remedies change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seepage.errors import InputError
from seepage.layers.federated.gradients import JOINED, WIDTH, LayerGradients
from seepage.layers.federated.recording import record_gradients
from seepage.layers.inputs_and_targets import check_classes, read_inputs, read_targets
from seepage.layers.measures.per_layer import NOTICE, PerLayer, draw_layers
from seepage.layers.measures.property_batches import property_batches
from seepage.layers.measures.sensitivity import sensitivity
from seepage.layers.measures.v_information import v_information
from seepage.nn.gradients.network_checks import refuse_modes, unwrapped
from seepage.nn.problem.problem import Loss
from seepage.nn.problem.views import Inputs, call, rows_of
from seepage.nn.problem.views import batch_size as size_of
from seepage.tables.frames import as_numpy, build_frame

_SIGNIFICANT = 0.05
_SINGLE = 8  # named layers up to which each is also dropped alone


@dataclass(frozen=True)
class LayerRemedy:
    """What is left to read off a whole update once something is done about it."""

    name: str  # what is done
    # The V-information of the whole update about the property, and its 95 % interval
    value: float
    low: float
    high: float
    p_value: float  # of the test that nothing is left


@dataclass(frozen=True, eq=False, repr=False)
class LayerAudit:
    """What each layer gives away, and what would change it.

    Parameters
    ----------
    sensitivity, v_information
        The two measures, layer by layer.
    protect
        The layers whose V-information is above zero beyond doubt (by its interval and its test) and
        whose interval reaches that of the highest. That none is named does not say that none gives
        anything away: with few folds the intervals are wide.
    remedies
        The V-information of the whole update as it is, and after each remedy.
    mix
        How the batches were drawn: ``"matched"`` or ``"confounded"``.
    notes
        Which remedies could not be tried, and why.
    """

    sensitivity: PerLayer
    v_information: PerLayer
    protect: tuple[str, ...]
    remedies: tuple[LayerRemedy, ...]
    mix: str
    notes: tuple[str, ...] = ()

    def table(self, library: str = "pyarrow") -> Any:
        """Return a data frame with one row per layer and both measures."""
        information = self.v_information
        columns = {
            "layer": list(information.layers),
            "size": list(information.sizes),
            "sensitivity": self.sensitivity.values,
            "v_information": information.values,
            "low": information.low,
            "high": information.high,
            "p_value": information.columns["p_value"],
            "protect": [name in self.protect for name in information.layers],
        }
        return build_frame(columns, library)

    def figure(self) -> Any:
        """Return a matplotlib figure of both measures."""
        return draw_layers([self.v_information, self.sensitivity])

    def __str__(self) -> str:
        unit = self.v_information.unit
        width = max(len(name) for name in (*self.v_information.layers, "layer"))
        lines = [f"{'layer':<{width}}  sensitivity  V-information ({unit})        p"]
        for k, name in enumerate(self.v_information.layers):
            found = self.v_information
            span = f"{found.values[k]:.3f} ({found.low[k]:.3f} to {found.high[k]:.3f})"
            lines.append(
                f"{name:<{width}}  {self.sensitivity.values[k]:>11.4g}  {span:<22}  "
                f"{found.columns['p_value'][k]:.3f}{'  protect' if name in self.protect else ''}"
            )
        lines += ["", f"What a whole update tells ({unit}):"]
        longest = max(len(remedy.name) for remedy in self.remedies)
        lines += [
            f"  {r.name:<{longest}}  {r.value:.3f} ({r.low:.3f} to {r.high:.3f})"
            for r in self.remedies
        ]
        return "\n".join([*lines, "", *self.notes, NOTICE])

    def __repr__(self) -> str:
        named = ", ".join(self.protect) if self.protect else "none"
        return f"<audit of {len(self.v_information)} layers, {self.mix} batches: protect {named}>"


def audit(
    net: nn.Module,
    loss: str | nn.Module | Loss,
    x: Inputs,
    y: Any,
    property: Any,
    *,
    batch_size: int = 32,
    batches: int = 100,
    mix: str = "matched",
    people: Any = None,
    family: Any = "random_forest",
    layers: Sequence[str] | None = None,
    records: int = 64,
    noise: float = 1.0,
    folds: int = 5,
    unit: str = "nats",
    width: int = WIDTH,
    seed: int = 0,
) -> LayerAudit:
    """Measure every layer both ways, name those to protect, and try the remedies.

    Batches with and without the property are drawn from the records with the same mix of labels
    (unless told otherwise), from pools that share no record, one pool to a fold. Remedies are tried
    on the recorded gradients: dropping each of the named layers alone (if they are no more than 8),
    and all of them together, where something is left to send; clipping to the median norm; and
    Gaussian noise of ``noise`` times that norm on top.

    Parameters
    ----------
    net, loss
        The network, and its loss as for :class:`seepage.nn.Engine`.
    x, y, property
        Records, their main-task classes, and the property of each; tensors or NumPy arrays.
    batch_size, batches
        Records in a batch, and batches for each class of the property.
    mix, people
        As for :func:`property_batches`.
    family, folds, unit, width
        As for :func:`v_information`.
    layers
        Names of modules; by default every module that has parameters of its own.
    records
        Records for the sensitivity.
    noise
        The noise multiplier of the last remedy.
    seed
        Of all draws.

    Examples
    --------
    >>> import torch, seepage.layers as layers
    >>> _ = torch.manual_seed(0)
    >>> property = torch.arange(400) % 4 < 2
    >>> x = torch.randn(400, 6) + 2 * property[:, None]
    >>> y = torch.arange(400) % 2
    >>> net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> found = layers.audit(net, "cross_entropy", x, y, property, batches=20, family="logistic")
    >>> "0" in found.protect
    True
    """
    if records < 1:
        raise InputError(f"records must be at least 1, but is {records}.")
    if not 0 <= noise < np.inf:
        raise InputError(f"noise must be a number from zero up, not {noise!r}.")
    x, y = _read_records(unwrapped(net), loss, x, y)
    drawn = property_batches(
        as_numpy(y),
        property,
        batch_size=batch_size,
        count=batches,
        mix=mix,
        pools=folds,
        people=people,
        seed=seed,
    )
    recorded = record_gradients(net, loss, drawn.of(x, y), layers=layers, width=width, seed=seed)
    options = {"family": family, "groups": drawn.pool, "folds": folds, "unit": unit, "seed": seed}
    information = v_information(recorded, drawn.property, **options)
    few = np.random.default_rng((seed, 3)).permutation(size_of(x))[:records]
    sensitive = sensitivity(net, loss, rows_of(x, few), y[few], layers=layers, seed=seed)
    protect = layers_to_protect(information)

    def whole(name: str, gradients: LayerGradients) -> LayerRemedy:
        found = v_information(gradients[JOINED], drawn.property, **options, width=1 << 30)
        ends = float(found.low[0]), float(found.high[0])
        return LayerRemedy(name, float(found.values[0]), *ends, float(found.columns["p_value"][0]))

    norm = float(np.median(recorded.total_norms()))
    clipped = recorded.clipped(norm)
    drops, notes = _drops(protect, len(recorded.layers))
    remedies = [
        whole("as it is", recorded),
        *(whole(f"without {', '.join(drop)}", recorded.without(*drop)) for drop in drops),
        whole(f"clipped to {norm:.3g}", clipped),
        whole(
            f"clipped to {norm:.3g}, noise {noise:g} × that",
            clipped.noised(noise * norm, seed=seed),
        ),
    ]
    return LayerAudit(sensitive, information, tuple(protect), tuple(remedies), mix, tuple(notes))


def _read_records(
    net: nn.Module, loss: str | nn.Module | Loss, x: Any, y: Any
) -> tuple[Inputs, Tensor]:
    """Return the records as tensors, refusing early what would fail after most of the work."""
    refuse_modes(net)  # the sensitivity would, and it comes last
    x, y = read_inputs(x, net), read_targets(y, net, loss)
    if len(y) == 0 or size_of(x) != len(y):
        raise InputError(f"There are {size_of(x)} records and {len(y)} labels; give one for each.")
    with torch.no_grad():
        output = call(net, rows_of(x, slice(0, 1)))
    check_classes(loss, output, y, "y")
    return x, y


def _drops(protect: Sequence[str], count: int) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return which layers to drop, each choice a remedy, and what there is to say about it."""
    named, notes = tuple(protect), []
    if named and count == 1:
        return [], [f"{named[0]} is the only layer: without it nothing is left to send."]
    single: list[tuple[str, ...]] = []
    if len(named) <= _SINGLE:
        single = [(name,) for name in named]
    if not single and named:
        notes.append(f"The {len(named)} layers to protect were not dropped one by one: too many.")
    if named and len(named) == count:
        notes.append(
            "Every layer is to be protected, but without all of them nothing is left to send"
            f"{': each was dropped alone' if single else ''}."
        )
        return single, notes
    return single + ([named] if len(named) > 1 else []), notes


def layers_to_protect(information: PerLayer) -> list[str]:
    """Return the layers that give something away, and no clearly less than the highest does."""
    sure = {
        name
        for k, name in enumerate(information.layers)
        if information.low[k] > 0 and information.columns["p_value"][k] < _SIGNIFICANT
    }
    return [name for name in information.foremost() if name in sure]

"""Fisher information of a noisy FedAvg update about the client's records, in total and by layer.

The release is ``s(θ_sent − θ_returned) + noise``, where ``s`` scales the update, after all local
steps (several epochs, momentum, Adam, weight decay). If ``J`` is the Jacobian of the release with
respect to a record's unknowns, in units of the noise, the Fisher information is ``I = JᵀJ``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seepage.core.jacobian import (
    Attributes,
    Unknowns,
)
from seepage.core.leakage import Columns, Leakage, row_positions
from seepage.core.noise import Noise
from seepage.core.result import Result
from seepage.errors import InputError, accepts_other_names
from seepage.layers.federated.buffers import kept_buffers, sent_buffers
from seepage.layers.federated.local_training import LocalTraining, check_training
from seepage.layers.inputs_and_targets import check_labels, read_pair
from seepage.layers.layer_parameters import layer_parameters, layer_sizes
from seepage.layers.measures.per_layer import PerLayer
from seepage.layers.measures.update_jacobian import LocalRun, UpdateJacobian, UpdateRelease
from seepage.nn.gradients.network_checks import refuse_modes, unwrapped
from seepage.nn.gradients.per_record_gradients import sum_of
from seepage.nn.jacobian.random_directions import key_of, row_signs
from seepage.nn.measures.estimate import Estimate
from seepage.nn.measures.gradient_leakage import check_view
from seepage.nn.measures.information_matrices import check_probes
from seepage.nn.problem.problem import Loss, NetworkProblem, per_record
from seepage.nn.problem.views import Input, Inputs, View, call, rows_of
from seepage.support.chunks import progress
from seepage.support.number_check import check_choice, check_positive
from seepage.tables.source import MemorySource, Table


@accepts_other_names
def update_leakage(
    net: nn.Module,
    loss: str | nn.Module | Loss,
    x: Inputs,
    y: Any,
    *,
    training: LocalTraining,
    noise: Noise,
    share: float = 1.0,
    max_norm: float | None = None,
    view: View | None = None,
    attributes: Mapping[str, Sequence[str | int]] | None = None,
    seed: int = 0,
) -> UpdateLeakage:
    """Measure the leakage of a client's noisy update about its records, through local training.

    Parameters
    ----------
    net, loss
        The network that the client receives, and its loss, as for :class:`seepage.nn.Engine`.
    x, y
        All records of the client; tensors or NumPy arrays.
    training
        How the client trains.
    noise
        The noise added to every entry of the update, ``sp.Gaussian(σ)``, in the units of the
        parameters.
    share
        The factor by which the update is multiplied before noise is added: the client's share of
        all records, if noise is added to a mean weighted by record counts.
    max_norm
        The norm to which longer updates are scaled down before noise is added.
    view
        The unknowns of a record, as for :func:`seepage.nn.leakage`; by default, the input.
    attributes
        Columns that belong together, as for :func:`seepage.nn.leakage`.
    seed
        The seed of the random directions for estimates.

    Examples
    --------
    >>> import torch, seepage as sp
    >>> _ = torch.manual_seed(0)
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    >>> x, y = torch.randn(12, 4), torch.arange(12) % 2
    >>> leak = sp.layers.update_leakage(
    ...     net,
    ...     "cross_entropy",
    ...     x,
    ...     y,
    ...     training=sp.layers.LocalTraining(lr=0.1, epochs=5, batch_size=4, momentum=0.9),
    ...     noise=sp.Gaussian(0.01),
    ... )
    >>> leak.records().kind, leak.records(measure="dfil", method="finite", probes=4).kind
    ('exact', 'estimate')
    >>> leak.layers().layers
    ('0', '2')
    """
    if not isinstance(noise, Noise):
        raise InputError(
            f"noise must be a noise object such as sp.Gaussian(0.01), not {noise!r}. The Fisher "
            "information of an update sent without noise is infinite: an observer could solve for "
            "the records."
        )
    check_training(training)
    check_view(view)
    check_positive(share, "share")
    if max_norm is not None:
        check_positive(max_norm, "max_norm")
    net = unwrapped(net)
    x, y = read_pair((x, y), net, loss, "The client's table")
    mixed = _looked_over(net, loss, x, y)
    problem = NetworkProblem(net, per_record(loss), view or Input())
    layer_parameters(net)  # refuses a network without trained parameters
    run = LocalRun(problem, problem.batch(x, y), training, share, max_norm)
    return UpdateLeakage(run, noise, attributes, mixed, seed)


def _looked_over(net: nn.Module, loss: str | nn.Module | Loss, x: Inputs, y: Tensor) -> bool:
    """Return whether records of a batch interact; raise an error if they cannot be measured."""
    mixed = False
    for module in net.modules():
        meeting = any(_meets(inner) for inner in module.modules())
        mixed |= meeting
        if not meeting:  # interacting records are no obstacle here, but randomness is
            refuse_modes(module)
    check_labels(net, loss, x, y, "y")
    before = {name: buffer.clone() for name, buffer in sent_buffers(net).items()}
    with torch.no_grad(), kept_buffers(net):
        call(net, rows_of(x, slice(0, 2)))
        changed = [k for k, v in sent_buffers(net).items() if not torch.equal(v, before[k])]
    if changed:
        raise InputError(
            f"The buffer {changed[0]!r} changes with the records in training mode and is sent "
            "without noise, so the Fisher information about the records is infinite. Use "
            "GroupNorm or LayerNorm instead of BatchNorm, or disable running statistics "
            "(track_running_stats=False). If the statistics are frozen, call .eval(). Otherwise "
            "audit recorded updates (sp.layers.audit_updates)."
        )
    return mixed


def _meets(module: nn.Module) -> bool:
    """Return whether a module, without its submodules, lets records of a batch interact."""
    if not isinstance(module, nn.modules.batchnorm._BatchNorm):
        return False
    return bool(module.training or module.running_mean is None)


@accepts_other_names
class UpdateLeakage(Leakage):
    """The leakage of one noisy update about the client's records.

    The class has :meth:`layers` and all methods of the leakage of a table (``records``, ``cells``,
    ``columns``, ``groups``, ``subset``, ``information``, …). Results are exact and computed in
    float64, through all local steps. Bounds and calibration therefore work as for any other
    leakage. For networks with kinks, and runs too large for exact computation, pass
    ``method="finite"`` to :meth:`records`, :meth:`layers` or :meth:`dataset`. ``"finite"`` measures
    the change of the update over steps of a stated size.

    Parameters
    ----------
    run
        The client's local training.
    noise
        The noise on the update.
    attributes
        Columns that belong together, by name.
    mixed
        Whether records of a batch interact in the network.
    seed
        The seed of the random directions for estimates.
    """

    jacobian: UpdateJacobian

    def __init__(
        self,
        run: LocalRun,
        noise: Noise,
        attributes: Mapping[str, Sequence[str | int]] | None = None,
        mixed: bool = False,
        seed: int = 0,
    ) -> None:
        self.run, self.mixed, self.seed = run, mixed, seed
        jacobian = UpdateJacobian(run, noise)
        names = tuple(f"x{j}" for j in jacobian.entries.tolist())
        source = MemorySource(Table(jacobian.X, names, None, "torch"), jacobian.target)
        super().__init__(UpdateRelease(jacobian), source, (noise,), Attributes(source, attributes))

    @property
    def conditions(self) -> tuple[str, ...]:
        """The assumptions under which the results are valid, as sentences."""
        known = (
            "Only one update is released, after all local steps, with the stated noise.",
            "The adversary knows the model that was sent, how the client trains, and the order "
            "in which the client uses its records.",
        )
        if not self.mixed:
            return known
        together = (
            "Records interact in the network's BatchNorm, so a record also leaks through the "
            "other records in its batches, which are held fixed."
        )
        return (*known, together)

    def unknowns(
        self, columns: Columns, label: bool | None = None, simplex: bool = False
    ) -> tuple[Unknowns, str]:
        """Return the unknowns (by default, the whole view) and their description."""
        unknowns, about = super().unknowns(columns, bool(label), simplex)
        return unknowns, self.run.problem.view.describe() if columns is None else about

    def records(
        self,
        columns: Columns = None,
        label: bool | None = None,
        measure: str = "fil",
        simplex: bool = False,
        *,
        method: str = "exact",
        rows: Any = None,
        probes: int = 16,
        scale: float | None = None,
    ) -> Result:
        """Return the leakage about each record.

        Parameters
        ----------
        columns, label, measure, simplex
            As for the leakage of a table.
        method
            ``"exact"``; or ``"finite"``, for the dFIL about whole records, which needs two plain
            runs of the local training per record and probe.
        rows
            With ``"finite"``, the positions of the records to measure; by default, all records.
        probes
            The number of random directions per record, at least 2.
        scale
            The size ``h`` of a finite step: every unknown changes by ``±h``. The default is a
            hundredth of the unknowns' root mean square, rounded to one digit.
        """
        check_choice(method, "method", ("exact", "finite"))
        if method == "exact":
            if rows is not None:
                raise InputError(
                    "rows is supported only with method='finite'; 'exact' returns all records at "
                    "once."
                )
            return super().records(columns, label, measure, simplex)
        if columns is not None or label or simplex:
            raise InputError(
                "Finite steps change whole records; for a part of a record, give a view "
                "(view=sp.nn.Input(mask)) or use method='exact'."
            )
        which = row_positions(rows, len(self.source), self.source)
        moved = [
            self._squares(np.array([row]), measure, probes, scale).sum(1)
            for row in progress(which, "records")
        ]
        mean, error = _mean_of_probes(torch.stack(moved) / self.jacobian.features)
        return self._estimate(mean, error, "rows", probes, scale, which)

    rows = records

    def dataset(
        self,
        measure: str = "fil",
        *,
        method: str = "exact",
        probes: int = 16,
        scale: float | None = None,
    ) -> Result:
        """Return the leakage about all of the client's records as one value.

        With ``method="finite"``, all records change at once, so a probe needs only two runs; the
        parameters are those of :meth:`records`.
        """
        check_choice(method, "method", ("exact", "finite"))
        if method == "exact":
            unknowns, about = self.unknowns(None)
            return self._one_block(unknowns, None, measure, "dataset", f"{about} of all records")
        squares = self._squares(None, measure, probes, scale).sum(1)
        mean, error = _mean_of_probes(squares / self.jacobian.X.numel())
        return self._estimate(mean, error, "dataset", probes, scale)

    def layers(
        self,
        layers: Sequence[str] | None = None,
        *,
        method: str = "exact",
        probes: int = 16,
        scale: float | None = None,
    ) -> PerLayer:
        """Return the dFIL of each layer's part of the update about the client's records.

        The layers' squared dFILs sum to the squared dFIL of the whole update. The exact method also
        returns each record's value (``by_record``). With ``method="finite"``, all records change at
        once, and the 95 % interval accounts for the random directions.

        Parameters
        ----------
        layers
            The names of modules; by default, every module that has its own parameters.
        method, probes, scale
            As for :meth:`records`.
        """
        net = self.run.problem.net
        layout = layer_parameters(net, layers)
        released = self.run.problem.released()
        by_record, notes = None, self.conditions
        if self.jacobian.root.dim() == 2:
            raise InputError(
                "The leakage of one layer is not defined under noise that is correlated between "
                "layers; give one standard deviation, or one per entry."
            )
        check_choice(method, "method", ("exact", "finite"))
        if method == "exact":
            squares = self.jacobian.dense.square().sum(2)
            each = _by_layer(squares, layout, released) / self.jacobian.features  # (layers, n)
            by_record = each.sqrt().T.cpu().numpy()
            values = low = high = each.mean(1).sqrt().cpu().numpy()
        else:
            moved = self._squares(None, "dfil", probes, scale)
            each = _by_layer(moved.T, layout, released) / self.jacobian.X.numel()
            estimate = self._estimate(*_mean_of_probes(each), "rows", probes, scale)
            values, (low, high) = np.asarray(estimate), estimate.interval()
            notes = estimate.conditions
        return PerLayer.of(
            f"dFIL η̄ about {self.run.problem.view.describe()}",
            tuple(layout),
            (values, low, high),
            tuple(layer_sizes(net, layout).values()),
            kind="exact" if method == "exact" else "estimate",
            notes=notes,
            by_record=by_record,
        )

    def _squares(
        self, rows: np.ndarray | None, measure: str, probes: int, scale: float | None
    ) -> Tensor:
        """Return ``(Jv)²`` for random sign vectors ``v`` on the given records, ``(probes, P)``."""
        if measure != "dfil":
            raise InputError(
                "Finite steps estimate only the average over directions (measure='dfil'); for the "
                "largest value over directions, use method='exact'."
            )
        check_probes(probes)
        jacobian, h = self.jacobian, self._step(scale)
        z = jacobian.run.batch.z
        which = torch.arange(len(z)) if rows is None else torch.from_numpy(rows)
        squares = []
        for probe in range(probes):
            drawn = row_signs(key_of(self.seed, "update", probe), which, (jacobian.features,), z)
            v = torch.zeros_like(z).flatten(1)
            v[which.to(z.device)[:, None], jacobian.entries] = drawn
            squares.append(jacobian.whitened(jacobian.run.change(v.reshape(z.shape), h)).square())
        return torch.stack(squares)

    def _step(self, scale: float | None) -> float:
        if scale is not None:
            check_positive(scale, "scale")
            return float(scale)
        return float(f"{0.01 * self.jacobian.scale:.0e}")

    def _estimate(
        self,
        information: Tensor,
        errors: Tensor,
        view: str,
        probes: int,
        scale: float | None,
        index: np.ndarray | None = None,
    ) -> Estimate:
        """Return the square roots of the information, with first-order standard errors."""
        values, h = information.sqrt(), self._step(scale)
        spread = torch.where(values > 0, errors / (2 * torch.where(values > 0, values, 1.0)), 0.0)
        of = " of all records" if view == "dataset" else ""
        over = (
            f"The derivative of the update is approximated by its change over a step of {h:g} in "
            "either direction of the unknowns; smaller or larger changes may leak differently."
        )
        return Estimate(
            values,
            view,
            "dfil",
            kind="estimate",
            about=f"{self.run.problem.view.describe()}{of}, over steps of {h:g}",
            index=index,
            library="torch",
            noise=self.noise,
            standard_errors=spread,
            conditions=(*self.conditions, over),
            degrees=probes - 1,
        )


def _mean_of_probes(squares: Tensor) -> tuple[Tensor, Tensor]:
    """Return means over the last axis, and their standard errors."""
    return squares.mean(-1), squares.std(-1, correction=1) / math.sqrt(squares.shape[-1])


def _by_layer(
    squares: Tensor, layout: Mapping[str, Sequence[str]], released: Mapping[str, Tensor]
) -> Tensor:
    """Return sums of ``squares (P, …)`` over each layer's part of the update, ``(layers, …)``."""
    parts = squares.split([parameter.numel() for parameter in released.values()])
    sums = {name: part.sum(0) for name, part in zip(released, parts, strict=True)}
    return torch.stack([sum_of([sums[name] for name in names]) for names in layout.values()])

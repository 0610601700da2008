"""Simulated gradients and updates of candidate records, compared with the observed values.

The simulated gradients are differentiable in the records, and are computed from the layers' inputs
and the gradients at the layers' outputs (see :mod:`seepage.nn.gradients.watching`), for all
candidates in one pass. Two costs compare simulated gradients ``g`` with observed gradients ``t``;
without noise, both costs are zero for the true record. One is the cosine distance of Geiping et al.
2020 ("Inverting gradients"), ``1 − ⟨g, t⟩/(‖g‖‖t‖)``. The other is the squared distance of Zhu, Liu
and Han 2019 ("Deep leakage from gradients"), divided by the observed squared norm: ``‖g −
t‖²/‖t‖²``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from seepage.attacks.gradient.priors import BatchNormPrior, OneHotColumns
from seepage.errors import InputError
from seepage.layers.federated.local_training import LocalTraining, Parameters
from seepage.nn.gradients.network_checks import Validator, unwrapped
from seepage.nn.gradients.norms import squared_norms
from seepage.nn.gradients.per_record_gradients import (
    GradientTerm,
    Key,
    OuterProducts,
    grouped,
    sum_of,
)
from seepage.nn.gradients.watching import WatchedNetwork, differentiable_backends
from seepage.nn.problem.clipping import Clip, NoClip
from seepage.nn.problem.problem import Batch, Loss, NetworkProblem, per_record
from seepage.nn.problem.views import Input

Piece = tuple[int, Tensor]  # the start of a part of the gradient, and its values (N, size)
COSTS = ("cosine", "euclidean")


class SimulatedGradients:
    """The mean of the clipped gradients in each batch of ``batch_size`` records.

    The network's parameters with ``requires_grad`` are released.
    """

    def __init__(
        self, net: nn.Module, loss: str | nn.Module | Loss, clip: Clip, batch_size: int
    ) -> None:
        self.problem = NetworkProblem(unwrapped(net), per_record(loss), Input())
        self.clip, self.batch_size = clip, batch_size
        self._validator = Validator(self.problem)
        self._starts: dict[str, int] = {}
        self.size = 0
        for name, parameter in self.problem.released().items():
            self._starts[name] = self.size
            self.size += parameter.numel()

    def parameters(self) -> dict[str, Tensor]:
        """Return the released parameters in the order of the gradient's entries."""
        return self.problem.detached()

    def prepare(self, x: Tensor, y: Tensor) -> None:
        """Trace the network on example records."""
        self._network: WatchedNetwork = self._validator.watched(x, y)
        if self._network.kinks:
            self._validator.tell_of_kinks(self._network)

    def held(self) -> int:
        """Return the approximate number of values in memory to simulate one release."""
        outputs = int(self._network.bytes_per_record) // 4
        return 6 * self.size + 8 * self.batch_size * outputs

    def variable(self, x: Tensor, y: Tensor) -> Tensor:
        """Return candidate records in the network's layout, with gradients enabled."""
        return self.problem.batch(x.detach(), y).z.requires_grad_()

    def pieces(self, z: Tensor, y: Tensor) -> list[Piece]:
        """Return the gradients of the releases by parameter, differentiable in ``z``."""
        _, terms = self._network.differentiable_terms(self.problem.batch(z.detach(), y), z)
        with torch.enable_grad():
            return self._joined(terms)

    def flat(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the gradients without their computation graph, (releases, size)."""
        _, terms = self._network.terms(self.problem.batch(x, y))
        with torch.no_grad():
            pieces = self._joined(terms)
            out = pieces[0][1].new_zeros(len(x) // self.batch_size, self.size)
            for start, values in pieces:
                out[:, start : start + values.shape[1]] += values
        return out

    def _joined(self, terms: list[GradientTerm]) -> list[Piece]:
        weights = None
        if not isinstance(self.clip, NoClip):
            squared = squared_norms(terms)
            # The root has no slope at zero; a record with zero gradient is left unclipped.
            tiny = torch.finfo(squared.dtype).tiny
            weights = self.clip.factor(squared.clamp(min=tiny).sqrt())
        pieces = []
        for key, members in grouped(terms).items():
            parts = [self._released(terms[k], weights) for k in members]
            pieces.append((self._start(key), sum_of(parts)))
        return pieces

    def _start(self, key: Key) -> int:
        name, row = key
        parameter = self.problem.released()[name]
        return int(self._starts[name] + row * (parameter.numel() // max(1, len(parameter))))

    def _released(self, term: GradientTerm, weights: Tensor | None) -> Tensor:
        """Return one layer call's contribution to a parameter's gradient, (N, size)."""
        b = self.batch_size
        part = term.value()
        if not isinstance(part, OuterProducts):
            each = part.flatten(1)
            if weights is not None:
                each = each * weights[:, None]
            return each if b == 1 else each.unflatten(0, (-1, b)).mean(1)
        left, right = part.left, part.right
        if not isinstance(left, Tensor):
            raise InputError(
                "The network looks up token embeddings, which cannot be varied continuously; "
                "attack a network with real-valued inputs."
            )
        if weights is not None:
            right = right * weights[:, None, None, None]
        if b > 1:  # the records of a batch count as positions of the same sum
            left, right = (
                side.unflatten(0, (-1, b)).transpose(1, 2).flatten(2, 3) for side in (left, right)
            )
            right = right / b
        return OuterProducts(left, right).written_out()


class SimulatedUpdates(SimulatedGradients):
    """The updates of clients with ``batch_size`` records each after their local steps.

    The steps are differentiable and are computed for all candidates at once. After the first step,
    each candidate has its own parameters.

    Parameters
    ----------
    net, loss
        The network that clients receive, and its loss.
    training
        How clients train, including the order of their records.
    batch_size
        The number of records per client.
    """

    def __init__(
        self, net: nn.Module, loss: str | nn.Module | Loss, training: LocalTraining, batch_size: int
    ) -> None:
        super().__init__(net, loss, NoClip(), batch_size)
        self.training, self._steps = training, training.rows_of_steps(batch_size)

    def held(self) -> int:
        """Return the approximate number of values in memory to simulate one release."""
        return len(self._steps) * super().held()

    def pieces(self, z: Tensor, y: Tensor) -> list[Piece]:
        """Return the updates of all parameters as a single piece, differentiable in ``z``."""
        y = self.problem.batch(z.detach(), y).y
        parameters = self.parameters()

        def sent(records: Tensor, labels: Tensor) -> Tensor:
            def gradient(at: Parameters, rows: Tensor) -> Parameters:
                some, target = records[rows], labels[rows]

                def mean(w: Parameters) -> Tensor:
                    return self.problem.losses(w, Batch(some, target, some), some).mean()

                slopes: Parameters = grad(mean)(at)
                return slopes

            return self.training.update(parameters, gradient, self._steps)

        clients = (-1, self.batch_size)
        with torch.enable_grad(), differentiable_backends(self.problem.net):
            return [(0, vmap(sent)(z.unflatten(0, clients), y.unflatten(0, clients)))]

    def flat(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the updates without their computation graph, (releases, size)."""
        ((_, updates),) = self.pieces(self.problem.batch(x.detach(), y).z, y)
        return updates.detach()


class Evaluation(NamedTuple):
    """The costs, (G, R), their mismatch terms, and the gradients of the costs, (G, R, d)."""

    total: Tensor
    match: Tensor
    slopes: Tensor


@dataclass
class GradientCost:
    """The cost of candidates for the given releases: ``"cosine"`` or ``"euclidean"``.

    ``targets`` contains the observed gradients, (G, size), and ``labels`` the records' labels, (G,
    b, …). ``shape`` is the shape of one record. ``total_variation`` is the weight of the
    candidates' total variation, and ``batch_norm`` the weight of the distance that ``prior``
    computes. With ``hot``, candidates are points that ``hot.relaxed`` converts to records.
    """

    simulated: SimulatedGradients
    targets: Tensor
    labels: Tensor
    shape: tuple[int, ...]
    cost: str
    total_variation: float
    batch_norm: float = 0.0
    prior: BatchNormPrior | None = None
    hot: OneHotColumns | None = None

    def keep(self, which: Tensor) -> None:
        """Keep only the selected releases."""
        self.targets, self.labels = self.targets[which], self.labels[which]

    def evaluate(self, candidates: Tensor) -> Evaluation:
        """Return the costs of candidates, (G, R, d), with their gradients."""
        G, R = candidates.shape[:2]
        labels = self.labels[:, None].expand(G, R, *self.labels.shape[1:]).flatten(0, 2)
        points = candidates.reshape(-1, *self.shape)
        records = points if self.hot is None else self.hot.relaxed(points)
        z = self.simulated.variable(records, labels)
        pieces = self.simulated.pieces(z, labels)
        with torch.enable_grad():
            match = self._match(pieces, G, R)
            total = match
            if self.total_variation:
                total = total + self.total_variation * roughness(z).reshape(G, R, -1).mean(2)
            if self.prior is not None:
                apart = self.prior.distance(z, self.simulated.batch_size)
                total = total + self.batch_norm * apart.reshape(G, R)
            (slopes,) = torch.autograd.grad(total.sum(), z)
        if self.hot is not None:
            slopes = self.hot.slopes(points, slopes)
        return Evaluation(total.detach(), match.detach(), slopes.reshape(candidates.shape))

    def _match(self, pieces: list[Piece], G: int, R: int) -> Tensor:
        by_release = [(start, values.reshape(G, R, -1)) for start, values in pieces]
        length = torch.linalg.vector_norm(self.targets, dim=1)[:, None, None]
        own = length
        if self.cost == "cosine":
            squared = torch.stack([values.square().sum(2) for _, values in by_release]).sum(0)
            own = squared.clamp(min=torch.finfo(squared.dtype).tiny).sqrt()[..., None]
        # Half the squared distance of unit vectors is one minus their cosine, and stays precise
        # near zero.
        total = self.targets.new_zeros(G, R)
        for start, values in by_release:
            seen = self.targets[:, None, start : start + values.shape[2]]
            total = total + (values / own - seen / length).square().sum(2)
        return total if self.cost == "euclidean" else total / 2


def roughness(images: Tensor) -> Tensor:
    """Return the total variation of each image, (n,), given images (n, …, height, width).

    The total variation is the mean absolute difference of neighbouring pixels, summed over both
    axes.
    """
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().flatten(1).mean(1)
    across = (images[..., :, 1:] - images[..., :, :-1]).abs().flatten(1).mean(1)
    return down + across

"""How far a candidate's gradient is from the one that was seen, and how rough the candidate is.

Two costs, both zero for the record itself where nothing was added: the angle of Geiping et al. 2020
("Inverting gradients"), ``1 − ⟨g, t⟩/(‖g‖‖t‖)``, and the distance of Zhu, Liu and Han 2019 ("Deep
leakage from gradients"), here over the length of what was seen, ``‖g − t‖²/‖t‖²``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from seepage.attacks.gradient.simulated_gradients import Piece, SimulatedGradients

COSTS = ("cosine", "euclidean")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Costs of candidates, (G, R), those of the gradients alone, and slopes, (G, R, d)."""

    total: Tensor
    match: Tensor
    slopes: Tensor


class GradientCost:
    """The cost of candidates for some releases.

    Parameters
    ----------
    simulated
        Gives the candidates' gradients.
    targets
        The gradients that were seen, (G, size).
    labels
        The labels of the records, (G, b, …).
    shape
        Of one record.
    cost
        ``"cosine"`` or ``"euclidean"``.
    total_variation
        The weight of the candidates' roughness.
    """

    def __init__(
        self,
        simulated: SimulatedGradients,
        targets: Tensor,
        labels: Tensor,
        shape: tuple[int, ...],
        cost: str,
        total_variation: float,
    ) -> None:
        self.simulated, self.targets, self.labels, self.shape = simulated, targets, labels, shape
        self.cost, self.total_variation = cost, total_variation

    def keep(self, which: Tensor) -> None:
        """Go on with some of the releases only."""
        self.targets, self.labels = self.targets[which], self.labels[which]

    def evaluate(self, candidates: Tensor) -> Evaluation:
        """Return the costs of candidates, (G, R, d), with their slopes."""
        G, R = candidates.shape[:2]
        labels = self.labels[:, None].expand(G, R, *self.labels.shape[1:]).flatten(0, 2)
        z = self.simulated.variable(candidates.reshape(-1, *self.shape), labels)
        pieces = self.simulated.pieces(z, labels)
        with torch.enable_grad():
            match = self._match(pieces, G, R)
            total = match
            if self.total_variation:
                total = total + self.total_variation * roughness(z).reshape(G, R, -1).mean(2)
            (slopes,) = torch.autograd.grad(total.sum(), z)
        return Evaluation(total.detach(), match.detach(), slopes.reshape(candidates.shape))

    def _match(self, pieces: list[Piece], G: int, R: int) -> Tensor:
        by_release = [(start, values.reshape(G, R, -1)) for start, values in pieces]
        length = torch.linalg.vector_norm(self.targets, dim=1)[:, None, None]
        own = length
        if self.cost == "cosine":
            squared = torch.stack([values.square().sum(2) for _, values in by_release]).sum(0)
            own = squared.clamp(min=torch.finfo(squared.dtype).tiny).sqrt()[..., None]
        # Half the squared distance of unit vectors is one minus their cosine, and keeps its digits
        # near zero.
        total = self.targets.new_zeros(G, R)
        for start, values in by_release:
            seen = self.targets[:, None, start : start + values.shape[2]]
            total = total + (values / own - seen / length).square().sum(2)
        return total if self.cost == "euclidean" else total / 2


def roughness(images: Tensor) -> Tensor:
    """Return the total variation of images (n, …, height, width): mean steps down and across."""
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().flatten(1).mean(1)
    across = (images[..., :, 1:] - images[..., :, :-1]).abs().flatten(1).mean(1)
    return down + across

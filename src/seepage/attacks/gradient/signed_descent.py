"""Adam, and Adam on the signs of the slopes, for many independent problems at once."""

from __future__ import annotations

import torch
from torch import Tensor

_FIRST, _SECOND, _TINY = 0.9, 0.999, 1e-8
_DECAYS = (3 / 8, 5 / 8, 7 / 8)  # of all steps: where the step size falls to a tenth


class Descent:
    """Adam (Kingma and Ba 2015) with the step decay and the box of Geiping et al. 2020.

    Parameters
    ----------
    start
        Where to begin, (G, R, d): R tries for each of G releases.
    step_size
        The first step size; a tenth of it after 3/8, 5/8 and 7/8 of all steps each.
    steps
        How many steps there will be at most.
    bounds
        Between which the unknowns lie.
    signed
        Whether Adam sees only the signs of the slopes, so that all releases move alike, however
        steep their costs are.
    """

    def __init__(
        self,
        start: Tensor,
        step_size: float,
        steps: int,
        bounds: tuple[float, float],
        *,
        signed: bool,
    ) -> None:
        self.point, self.step_size, self.bounds, self.signed = start, step_size, bounds, signed
        self._decays = [round(share * steps) for share in _DECAYS]
        self._mean, self._square = torch.zeros_like(start), torch.zeros_like(start)
        self._done = 0
        self.stuck = torch.zeros(start.shape[:2], dtype=torch.bool, device=start.device)

    def tell(self, costs: Tensor, slopes: Tensor) -> None:
        """Take a step, given costs (G, R) and slopes (G, R, d) at ``point``."""
        seen = slopes.sign() if self.signed else slopes
        self._done += 1
        self._mean.mul_(_FIRST).add_(seen, alpha=1 - _FIRST)
        self._square.mul_(_SECOND).addcmul_(seen, seen, value=1 - _SECOND)
        mean = self._mean / (1 - _FIRST**self._done)
        spread = (self._square / (1 - _SECOND**self._done)).sqrt_().add_(_TINY)
        size = self.step_size * 0.1 ** sum(self._done >= decay for decay in self._decays)
        self.point = (self.point - size * mean / spread).clamp_(*self.bounds)

    def keep(self, which: Tensor) -> None:
        """Go on with some of the releases only."""
        self.point, self.stuck = self.point[which], self.stuck[which]
        self._mean, self._square = self._mean[which], self._square[which]

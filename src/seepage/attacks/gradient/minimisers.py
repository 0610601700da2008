"""L-BFGS and Adam for many independent problems at once, each with its own progress.

``point`` (G, R, d) is where costs and gradients are evaluated next, ``tell`` receives the results,
and ``keep`` drops solved problems.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MEMORY = 20  # past steps that curvature is estimated from


class QuasiNewton:
    """Limited-memory BFGS (Liu and Nocedal 1989) with backtracking, from many starting points.

    There are R starting points with d entries for each of G releases, (G, R, d). Each evaluation is
    one trial step for every problem. If a step lowers the cost enough, it is accepted and a new
    direction is chosen; otherwise the next trial step is shorter. Each problem has its own line
    search.
    """

    def __init__(self, start: Tensor) -> None:
        self.point = start  # where costs are needed next
        groups, tries, d = start.shape
        self._at = start
        self._cost = start.new_full((groups, tries), torch.inf)
        self._slopes = torch.zeros_like(start)
        self._direction = torch.zeros_like(start)
        self._length = start.new_zeros(groups, tries)
        self._steps = start.new_zeros(groups, tries, _MEMORY, d)
        self._changes = torch.zeros_like(self._steps)
        self._inverse = start.new_zeros(groups, tries, _MEMORY)  # 1/yᵀs; 0 in empty slots
        self._next = torch.zeros(groups, tries, dtype=torch.long, device=start.device)
        self.stuck = torch.zeros(groups, tries, dtype=torch.bool, device=start.device)

    def tell(self, costs: Tensor, slopes: Tensor) -> None:
        """Accept or shorten the trial step, given its costs (G, R) and gradients (G, R, d)."""
        begun = torch.isfinite(self._cost)
        promised = (self._slopes * self._direction).sum(2)
        sound = torch.isfinite(costs) & torch.isfinite(slopes).all(2)
        # Armijo's rule: at least 1e-4 of the decrease that the slope promises.
        enough = self._cost + 1e-4 * self._length * promised
        taken = sound & (~begun | (costs < enough))
        self._remember(taken & begun, slopes)
        moved = taken[..., None]
        self._at = torch.where(moved, self.point, self._at)
        self._slopes = torch.where(moved, slopes, self._slopes)
        self._cost = torch.where(taken, costs, self._cost)
        # No step along this direction helps: reset the memory and try steepest descent, once.
        hopeless = ~taken & (self._length < 1e-6)
        known = (self._inverse > 0).any(2)
        self.stuck |= hopeless & ~known
        self._inverse = torch.where(hopeless[..., None], 0.0, self._inverse)
        renewed = taken | hopeless
        self._direction = torch.where(renewed[..., None], self._downhill(), self._direction)
        self._length = torch.where(renewed, 1.0, 0.4 * self._length)
        self.point = self._at + self._length[..., None] * self._direction

    def keep(self, which: Tensor) -> None:
        """Keep only the selected releases."""
        for name, values in vars(self).items():  # all tensors, with releases along the first axis
            setattr(self, name, values[which])

    def _remember(self, taken: Tensor, slopes: Tensor) -> None:
        step, change = self.point - self._at, slopes - self._slopes
        along = (step * change).sum(2)
        # A step with hardly any curvature along it is not worth remembering.
        g, r = torch.nonzero(taken & (along > 1e-10 * change.square().sum(2)), as_tuple=True)
        place = self._next[g, r]
        self._steps[g, r, place] = step[g, r]
        self._changes[g, r, place] = change[g, r]
        self._inverse[g, r, place] = 1 / along[g, r]
        self._next[g, r] = (place + 1) % _MEMORY

    def _downhill(self) -> Tensor:
        """Return the quasi-Newton direction from the two-loop recursion over the stored steps."""
        q = self._slopes.clone()
        shares = []
        for age in range(_MEMORY):
            step, change, inverse = self._recalled(age)
            share = inverse * (step * q).sum(2)
            q -= share[..., None] * change
            shares.append(share)
        q *= self._scale()[..., None]
        for age in reversed(range(_MEMORY)):
            step, change, inverse = self._recalled(age)
            q += (shares[age] - inverse * (change * q).sum(2))[..., None] * step
        return -q

    def _scale(self) -> Tensor:
        """Return the inverse curvature along the latest step, or at first 1/‖gradient‖."""
        _, change, inverse = self._recalled(0)
        known = inverse > 0
        squared = torch.where(known, inverse * change.square().sum(2), 1.0)
        length = torch.linalg.vector_norm(self._slopes, dim=2)
        return torch.where(known, 1 / squared, 1 / torch.where(length > 0, length, 1.0))

    def _recalled(self, age: int) -> tuple[Tensor, Tensor, Tensor]:
        place = (self._next - 1 - age) % _MEMORY
        row = place[..., None, None].expand(*place.shape, 1, self._steps.shape[3])
        return (
            self._steps.gather(2, row)[:, :, 0],
            self._changes.gather(2, row)[:, :, 0],
            self._inverse.gather(2, place[..., None])[..., 0],
        )


class Descent:
    """Adam (Kingma and Ba 2015) with the step decay and the bounds of Geiping et al. 2020.

    Adam runs from R starting points for each of G releases, (G, R, d), and divides the step size by
    ten after 3/8, 5/8 and 7/8 of all ``steps``. With ``signed``, only the signs of the gradients
    are passed to Adam, so that step lengths do not depend on the steepness of the cost.
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
        self.point, self.bounds, self.signed = start.clone(), bounds, signed
        self._adam = torch.optim.Adam([self.point], lr=step_size)
        decays = [max(1, round(share * steps) - 1) for share in (3 / 8, 5 / 8, 7 / 8)]
        self._rate = torch.optim.lr_scheduler.MultiStepLR(self._adam, decays)
        self.stuck = torch.zeros(start.shape[:2], dtype=torch.bool, device=start.device)

    def tell(self, costs: Tensor, slopes: Tensor) -> None:
        """Take a step, given costs (G, R) and gradients (G, R, d) at ``point``."""
        self.point.grad = slopes.sign() if self.signed else slopes
        self._adam.step()
        self._rate.step()
        self.point.clamp_(*self.bounds)

    def keep(self, which: Tensor) -> None:
        """Keep only the selected releases."""
        moments = self._adam.state.pop(self.point)
        for name in ("exp_avg", "exp_avg_sq"):
            moments[name] = moments[name][which]
        self.point, self.stuck = self.point[which], self.stuck[which]
        self._adam.param_groups[0]["params"] = [self.point]
        self._adam.state[self.point] = moments

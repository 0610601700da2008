"""The third derivatives of a GLM's objective, applied twice to one vector after another.

``½ Σ_j ω_j (∂a_j/∂m) (x_jᵀΔ)² x_j`` is what Newton's method leaves of the gradient after a step Δ.
For many steps and few columns the sum over the rows is taken once and for all, as a P×P×P tensor;
otherwise two matrix products with the rows give the same.
"""

from __future__ import annotations

import numpy as np

from seepage.attacks.attribute.candidate_models import design
from seepage.glm.fitting.objective import Objective
from seepage.glm.losses.families import Family
from seepage.support.chunks import CHUNK, row_slices

_DIFFERENCE = 1e-4  # between margins, for ∂a/∂m: its error is far below what two steps leave
_LARGEST_TENSOR = 1 << 26  # numbers
_CHUNK = 4 * CHUNK


class ThirdDerivatives:
    """What the third derivatives at the minimiser make of steps away from it.

    Parameters
    ----------
    objective, family
        The objective on the known table, and its family.
    margins
        The margins at the minimiser, (n,).
    steps
        How many steps it will be applied to.
    """

    def __init__(
        self, objective: Objective, family: Family, margins: np.ndarray, steps: int
    ) -> None:
        self._objective = objective
        self.weights = _curvature_slope(family, margins, objective.target)
        """``ω_j ∂a_j/∂m``, (n,)."""
        if objective.sample_weight is not None:
            self.weights = self.weights * objective.sample_weight
        n, P = len(margins), objective.shape[0]
        cheaper = P**2 * (n + steps) < 4 * n * steps
        self._tensor = self._sum_of_rows() if cheaper and P**3 < _LARGEST_TENSOR else None

    def apply(self, steps: np.ndarray) -> np.ndarray:
        """Return ``½ Σ_j ω_j (∂a_j/∂m) (x_jᵀΔ)² x_j`` for each Δ of an array, (…, P)."""
        flat = steps.reshape(-1, steps.shape[-1])
        out = np.zeros_like(flat)
        width = flat.shape[1] if self._tensor is not None else len(self.weights)
        for some in row_slices(len(flat), width, chunk=_CHUNK):
            if self._tensor is None:
                self._add_by_rows(flat[some], out[some])
                continue
            for p, part in enumerate(self._tensor):
                out[some] += (flat[some, p:] * flat[some, p : p + 1]) @ part
        return out.reshape(steps.shape)

    def _sum_of_rows(self) -> list[np.ndarray]:
        """Return for each p ``½ Σ_j weight_j x_jp x_jq x_j``, q ≥ p, with both orders counted."""
        P = self._objective.shape[0]
        tensor = [np.zeros((P - p, P)) for p in range(P)]
        for rows in row_slices(len(self.weights), P, chunk=_CHUNK):
            x = design(self._objective, rows)
            for p, part in enumerate(tensor):
                part += x[:, p:].T @ ((self.weights[rows] * x[:, p])[:, None] * x)
        for part in tensor:
            part[0] /= 2
        return tensor

    def _add_by_rows(self, steps: np.ndarray, out: np.ndarray) -> None:
        for rows in row_slices(len(self.weights), sum(steps.shape), chunk=_CHUNK):
            x = design(self._objective, rows)
            along = x @ steps.T
            out += (0.5 * self.weights[rows, None] * along * along).T @ x


def _curvature_slope(family: Family, margins: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return ``∂a/∂m``, (n,); a family that does not state it is asked for its curvature twice."""
    if family.curvature_slope is not None:
        return np.asarray(family.curvature_slope(margins, y))
    up, down = (family.curvature(margins + h, y) for h in (_DIFFERENCE, -_DIFFERENCE))
    return np.asarray(up - down) / (2 * _DIFFERENCE)

"""The joint variance of several releases about the people of one table.

The unknown records affect all releases, so the fits are correlated, and their Fisher information is
not additive. The parameters of all releases are stacked, with::

    H = diag(H₁, H₂, …),     g = (g₁, g₂, …),     Σ = diag(Σ₁, Σ₂, …),     YYᵀ = diag(Y₁Y₁ᵀ, …)

:mod:`~seepage.glm.outsider.worlds` then applies unchanged. If predictions are released, ``Aθ`` with
``A = diag(A₁, …)`` is visible; for a release of parameters, the block of A is the identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.linalg import block_diag

from seepage.glm.outsider.others import OtherPeople
from seepage.glm.outsider.worlds import Worlds


class StackedPeople(OtherPeople):
    """The people of a table, with their gradients and curvatures in all fits."""

    def __init__(self, parts: Sequence[OtherPeople]) -> None:
        # Who they are, and which of them she knows, is the same for all.
        vars(self).update(vars(parts[0]))
        for whole in ("mean", "scatter", "noise_spread"):
            vars(self).pop(whole, None)
        self.parts = tuple(parts)
        self.size = sum(part.size for part in parts)
        self.model: Any = SimpleNamespace(inverse=block_diag(*(p.model.inverse for p in parts)))
        self.leverage = np.max([part.leverage for part in parts], axis=0)
        self.alone = np.any([part.alone for part in parts], axis=0)
        self.noise_spread = np.asarray(block_diag(*(part.noise_spread for part in parts)))

    @property
    def parameters(self) -> np.ndarray:
        """``θ̂`` of all fits, concatenated."""
        return np.concatenate([part.parameters for part in self.parts])

    def _gradients(self, rows: np.ndarray) -> np.ndarray:
        return np.hstack([part._gradients(rows) for part in self.parts])

    def curvature_root(self, rows: np.ndarray) -> np.ndarray:
        """Return ``diag(Y₁, Y₂, …)`` of these records."""
        return np.asarray(block_diag(*(part.curvature_root(rows) for part in self.parts)))


def stacked(parts: Sequence[Worlds]) -> Worlds:
    """Combine the distributions of several releases into one object."""
    queries = None
    if any(part.queries is not None for part in parts):
        maps = [np.eye(p.others.size) if p.queries is None else p.queries for p in parts]
        queries = np.asarray(block_diag(*maps))
    return replace(parts[0], others=StackedPeople([p.others for p in parts]), queries=queries)

"""The loss of softmax regression: a categorical label over K classes, one margin per class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from seepage.core.unknowns import simplex_basis
from seepage.errors import InputError
from seepage.glm.losses.families import Family

Array = Any  # any array of the array API standard


@dataclass(frozen=True)
class Categorical:
    """``ℓ(m, y) = log Σ_k exp(m_k) − Σ_k y_k m_k``, margins m = Wᵀx, label y on the simplex.

    With ``π = softmax(m)``: the slope is ``π − y``, the curvature ``diag π − ππᵀ``, and the mixed
    derivative by margins and label ``−I``. The label is a point of the simplex (one-hot, or soft),
    which has K − 1 directions to move in, so its slope is taken along an orthonormal basis of them.

    Parameters
    ----------
    outputs
        The number of classes K, at least 2.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.glm.losses.categorical import Categorical
    >>> Categorical(3).slope(np.zeros((1, 3)), np.asarray([[0.0, 0.0, 1.0]])).round(2)
    array([[ 0.33,  0.33, -0.67]])
    """

    outputs: int
    name: str = "categorical"

    def __post_init__(self) -> None:
        if self.outputs < 2:
            raise InputError(f"A categorical label needs at least 2 classes, not {self.outputs}.")

    def loss(self, M: Array, Y: Array) -> Array:
        """Return ``log Σ_k exp(m_k) − Σ_k y_k m_k`` of every row, (n,)."""
        xp = array_namespace(M)
        top = xp.max(M, axis=1, keepdims=True)
        log_sum = top[:, 0] + xp.log(xp.sum(xp.exp(M - top), axis=1))
        return log_sum - xp.sum(Y * M, axis=1)

    def mean(self, M: Array) -> Array:
        """Return the probabilities ``π = softmax(m)`` of every row, (n, K)."""
        xp = array_namespace(M)
        powers = xp.exp(M - xp.max(M, axis=1, keepdims=True))
        return powers / xp.sum(powers, axis=1, keepdims=True)

    def slope(self, M: Array, Y: Array) -> Array:
        """Return ``∂ℓ/∂m = π − y`` of every row, (n, K)."""
        P = self.mean(M)
        # π (1 − y) − y (1 − π): it keeps its digits where a row is fitted well.
        return P * (1 - Y) - Y * _others(P)

    def curvature(self, M: Array, Y: Array) -> Array:
        """Return ``∂²ℓ/∂m² = diag π − ππᵀ`` of every row, (n, K, K)."""
        P = self.mean(M)
        A = -P[:, :, None] * P[:, None, :]
        on_diagonal = P * _others(P)
        for k in range(self.outputs):
            A[:, k, k] = on_diagonal[:, k]
        return A

    def label_slope(self, M: Array, Y: Array) -> Array:
        """Return ``∂²ℓ/∂m∂y`` along the simplex, ``−T``, of every row, (n, K, K−1)."""
        xp = array_namespace(M)
        T = xp.asarray(simplex_basis(self.outputs), dtype=M.dtype, device=device(M))
        return xp.broadcast_to(-T, (M.shape[0], self.outputs, self.outputs - 1))


def class_positions(labels: np.ndarray, classes: np.ndarray, start: int = 0) -> np.ndarray:
    """Return the position of every label among the sorted classes, (m,).

    ``start`` is the row of the first label in the whole table.
    """
    if labels.dtype.kind in "biuf" and classes.dtype.kind in "biuf":
        positions = np.searchsorted(classes, labels)
        positions = np.minimum(positions, classes.shape[0] - 1)
        unknown = classes[positions] != labels
    else:
        places = {label: position for position, label in enumerate(classes.tolist())}
        positions = np.asarray([places.get(label, -1) for label in labels.tolist()])
        unknown = positions < 0
    if unknown.any():
        row = int(np.argmax(unknown))
        raise InputError(
            f"Row {start + row:,} has the label {labels[row : row + 1].tolist()[0]!r}, which is "
            "none of the classes the model was fitted on: "
            f"{', '.join(map(repr, classes.tolist()[:10]))}."
        )
    return positions


def class_targets(positions: np.ndarray, family: Family | Categorical) -> np.ndarray:
    """Return positions among classes as labels of a family: numbers, or one-hot, (m, K)."""
    if isinstance(family, Categorical):
        return np.asarray(np.eye(family.outputs)[positions])
    return positions.astype(float)


def _others(P: Array) -> Array:
    """Return ``1 − π_k`` as the sum of the other probabilities: nothing cancels near one."""
    xp = array_namespace(P)
    K = P.shape[1]
    return P @ (1 - xp.eye(K, dtype=P.dtype, device=device(P)))

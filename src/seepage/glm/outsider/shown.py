"""The form in which the numbers ``Aθ`` are published: exact, with noise, or rounded.

**Softmax** models return K probabilities, or K margins of which only differences matter. Noise is
added to each of the K margins, and all K are visible. If all K margins have noise of equal
variance, their common part reveals nothing; otherwise, it reveals some of the noise on each margin.
For a printed probability ``π_k``, the visible number is ``logit π_k``, whose derivative with
respect to the margins is ``e_k`` minus the relative probabilities of the other classes.

**Rounding** to a step r adds a variance of ``r²/12`` if the number varies by more than one step. If
the step is coarser, rounding is ignored, so the risk is overstated. For an attacker who knows all
other records, the printed digits with and without the person are compared (:func:`changed_digits`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from seepage.core.noise import Gaussian
from seepage.glm.changes.batched_refits import BatchedRefits, Change
from seepage.glm.changes.local_model import LocalModel
from seepage.glm.changes.outputs import Outputs


@dataclass(frozen=True)
class Shown:
    """How ``Aθ`` is published.

    Parameters
    ----------
    outputs
        The outputs of the model, if answers to queries are published; the rows of A are then
        margins in the free coordinates.
    noise
        The noise added to the answers.
    digits
        The number of printed decimals of the parameters, or of the predicted means.
    """

    outputs: Outputs | None = None
    noise: Gaussian | None = None
    digits: int | None = None

    @property
    def numbers_are_rows(self) -> bool:
        """Whether each row of A has one visible number; softmax has K numbers for K − 1 rows."""
        return self.outputs is None or self.outputs.basis is None

    def seen(
        self, A: np.ndarray, S: np.ndarray, theta: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the map to the visible numbers, (k, P), and their covariance, (k, k)."""
        rows = self._every(A)
        varies = rows @ S @ rows.T
        if self.noise is not None:
            root = self.noise.root(len(rows))
            whiten = root if np.ndim(root) == 2 else np.eye(len(rows)) * root
            varies = varies + np.linalg.inv(whiten.T @ whiten)
        if self.digits is None:
            return rows, varies
        steps = np.full(len(rows), 10.0**-self.digits)
        if self.outputs is not None:
            turned, slopes = self._slopes(A @ theta)
            rows, varies = turned @ rows, turned @ varies @ turned.T
            with np.errstate(divide="ignore", over="ignore"):  # a flat mean: any step is long
                steps = steps / slopes
        fine = steps < np.sqrt(np.diagonal(varies))
        return rows, np.asarray(varies + np.diag(np.where(fine, steps, 0.0) ** 2 / 12))

    def same(self, before: np.ndarray, after: np.ndarray, off: np.ndarray) -> bool:
        """Return whether ``before`` and ``after``, known to within ``off``, are printed alike."""
        ends = [*self._ends(after, off)]
        return all(np.array_equal(self._ends(before, 0 * off)[0], end) for end in ends)

    def _every(self, A: np.ndarray) -> np.ndarray:
        """Return the map to all K margins of every answer from the map to the free margins."""
        if self.outputs is None or self.outputs.basis is None:
            return A
        by_answer = A.reshape(-1, self.outputs.count, *A.shape[1:])
        every = np.einsum("kl,ml...->mk...", self.outputs.basis, by_answer)
        return np.asarray(every.reshape(-1, *A.shape[1:]))

    def _slopes(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the map from margins to printed numbers, and the slopes of the means.

        Each number is expressed in units of a margin, so that it does not vanish where the mean is
        flat.
        """
        assert self.outputs is not None  # noqa: S101 - told to the type checker
        family, basis = self.outputs.family, self.outputs.basis
        if basis is None:
            near = 1e-5
            rise = np.asarray(family.mean(values + near) - family.mean(values - near))
            return np.eye(len(values)), rise / (2 * near)
        margins = self._every(values).reshape(-1, len(basis))
        K = len(basis)
        # Row k: the margins of all other classes
        rest = np.where(np.eye(K, dtype=bool), -np.inf, margins[:, None, :])
        powers = np.exp(rest - rest.max(axis=2, keepdims=True))
        turned = np.eye(K) - powers / powers.sum(axis=2, keepdims=True)
        slopes = np.einsum("mkk->mk", np.asarray(family.curvature(margins, 0 * margins)))
        whole = np.zeros((len(margins), K, len(margins), K))
        whole[np.arange(len(margins)), :, np.arange(len(margins)), :] = turned
        return whole.reshape(margins.size, -1), slopes.reshape(-1)

    def _ends(self, values: np.ndarray, off: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the printed digits of the smallest and largest possible numbers."""
        if self.outputs is not None and self.outputs.basis is not None:
            basis = self.outputs.basis
            margins = self._every(values).reshape(-1, len(basis))
            # No log π moves by more than the largest difference of two margins' moves.
            span = 2 * (off.reshape(-1, self.outputs.count) @ np.abs(basis).T).max(axis=1)
            powers = np.asarray(self.outputs.family.mean(margins))
            low, high = (powers * np.exp(side * span[:, None]) for side in (-1, 1))
        else:
            low, high = values - off, values + off
            if self.outputs is not None:
                low, high = (np.asarray(self.outputs.family.mean(end)) for end in (low, high))
        assert self.digits is not None  # noqa: S101 - told to the type checker
        return np.round(low * 10.0**self.digits), np.round(high * 10.0**self.digits)


def changed_digits(
    model: LocalModel,
    sets: list[np.ndarray],
    asked: Callable[[np.ndarray], np.ndarray],
    shown: Shown,
) -> np.ndarray:
    """Return which people's removal changes a printed digit, as shown by refits, (n,).

    ``asked`` returns the matrix A for a person's records. A failed refit, or a number too close to
    a rounding boundary to decide, counts as a change.
    """
    here = np.asarray(model.outputs.within(model.theta)).reshape(-1)
    steps, errors = BatchedRefits(model).moves([Change(rows) for rows in sets], None)
    changed = np.zeros(len(sets), dtype=bool)
    for k, rows in enumerate(sets):
        A = asked(rows)
        before, after = A @ here, A @ (here + steps[k])
        off = np.abs(A) @ np.abs(errors[k]) + 1e-12 * (1 + np.abs(before))
        changed[k] = not (np.isfinite(after).all() and shown.same(before, after, off))
    return changed

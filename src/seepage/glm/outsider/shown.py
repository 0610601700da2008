"""What leaves of the numbers ``Aθ``: as they are, with noise on them, or to printed digits.

**Softmax** answers with K margins, of which only differences matter, or with K probabilities. Noise
is on each of the K margins, and all K count as seen: of equal noise what they have in common tells
nothing, of unequal noise it tells about the noise on the rest. A probability ``π_k`` is printed, so
that the number seen is ``logit π_k``, whose derivative by the margins is ``e_k`` less the
probabilities of the other classes among themselves.

**Rounding** to a step r is a variance of ``r²/12`` where a number varies by more than a step; a
coarser step counts as none, which errs on the side of the person. Who knows all the rest compares
digits.
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
    """What leaves of ``Aθ``.

    Parameters
    ----------
    outputs
        Whose answers these are, if they are answers: the rows of A are then margins, in the
        coordinates that matter.
    noise
        What is added to the answers.
    digits
        To how many decimals numbers, or the means of answers, are printed.
    """

    outputs: Outputs | None = None
    noise: Gaussian | None = None
    digits: int | None = None

    @property
    def numbers_are_rows(self) -> bool:
        """Whether a number is seen for each row of A; of softmax there are K for K − 1 rows."""
        return self.outputs is None or self.outputs.basis is None

    def seen(
        self, A: np.ndarray, S: np.ndarray, theta: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the map to the numbers seen, (k, P), and how they vary if θ does by S, (k, k)."""
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
        """Return whether numbers are printed alike before and after a move known up to ``off``."""
        ends = [*self._ends(after, off)]
        return all(np.array_equal(self._ends(before, 0 * off)[0], end) for end in ends)

    def _every(self, A: np.ndarray) -> np.ndarray:
        """Return the map to all K margins of every answer, from that to those that matter."""
        if self.outputs is None or self.outputs.basis is None:
            return A
        by_answer = A.reshape(-1, self.outputs.count, *A.shape[1:])
        every = np.einsum("kl,ml...->mk...", self.outputs.basis, by_answer)
        return np.asarray(every.reshape(-1, *A.shape[1:]))

    def _slopes(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the map from margins to what is printed of them, and the slopes of the means.

        Each number is in units of a margin, so that where a mean is flat it is still seen.
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
        """Return the digits of the least and the largest that numbers can be."""
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
    """Return whose absence changes a printed digit, by refits without each, (n,).

    ``asked`` gives A for the records of a person. A refit that fails, or a number too close to a
    step's edge to tell, counts as changed.
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

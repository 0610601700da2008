"""Unknown people as noise: the variance of a minimiser over people the attacker does not know.

To first order, the minimiser for people drawn from a population varies in proportion to the mean of
their gradients. Let ``u`` be the share of that variance due to people unknown to the attacker, and
Σ the covariance of the noise::

    S = u H⁻¹GH⁻¹ + Σ,     G = Σ_j (g_j − ḡ)(g_j − ḡ)ᵀ

Here H is the Hessian, and g_j the gradient of person j's loss. Without Σ, this is the sandwich
covariance (Huber 1967). For people with several records it is the cluster-robust covariance, where
g_j is the sum of the gradients of person j's records. If the attacker knows listed people, the sum
and the mean exclude these people, and ``u`` is 1. A person's gradient is computed at the minimiser
without that person, one Newton step away: ``g = H H₋ⱼ⁻¹ g(θ̂)``. At θ̂, the fit has shrunk the
residuals of a person of leverage ℓ by a factor of ``1 − ℓ`` (MacKinnon and White 1985, HC3).
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from functools import cached_property

import numpy as np

from seepage.errors import InputError
from seepage.glm.changes.local_model import LocalModel
from seepage.glm.changes.outputs import symmetric_root
from seepage.glm.changes.solver import others_decide
from seepage.support.chunks import row_slices


class OtherPeople:
    """The people in a table, and the variance of the release that they cause.

    Parameters
    ----------
    model
        The second-order fit; its noise is included only if ``noisy``.
    sets
        The records of each person; by default, every record is a person.
    noisy
        Whether noise is added to the parameters.
    known
        The records that the attacker knows, as a mask, or ``None`` if the attacker knows a share of
        the records. People whom the attacker knows do not contribute to the variance: G and ḡ
        include only the people whom the attacker does not know.
    """

    def __init__(
        self,
        model: LocalModel,
        sets: list[np.ndarray] | None,
        noisy: bool,
        known: np.ndarray | None = None,
    ) -> None:
        self.model, self.noisy = model, noisy
        every = np.arange(len(model.X))
        self.sets = list(every[:, None]) if sets is None else sets
        self.single = all(len(rows) == 1 for rows in self.sets)
        taken = [bool(np.any(model.weight[rows] > 0)) for rows in self.sets]
        self.present = np.array(taken)  # a record of weight zero is not in the data
        self.known = self._are_known(known)
        self.varies = self.present & ~self.known
        self.count = int(self.varies.sum())
        self.size = len(model.inverse)
        # How strongly every record pulls on the fit without its person, ω ℓ', (n, c); each person's
        # largest share in the curvature; and whether the others have no minimiser of their own.
        self.pull = model.weight[:, None] * model.slopes
        self.leverage = np.zeros(len(self.sets))
        self.alone = np.zeros(len(self.sets), dtype=bool)
        if self.single and model.outputs.count == 1:
            self._leave_each_out(np.concatenate(self.sets))
        else:
            for k, rows in enumerate(self.sets):
                self._leave_out(k, rows)

    @property
    def present_count(self) -> int:
        """The number of people in the data, whether or not the attacker knows them."""
        return int(self.present.sum())

    def _are_known(self, known: np.ndarray | None) -> np.ndarray:
        """Return which people the attacker knows, of shape (people,)."""
        if known is None:
            return np.zeros(len(self.sets), dtype=bool)
        shares = np.array([np.mean(known[rows]) for rows in self.sets])
        if np.any((shares > 0) & (shares < 1)):
            raise InputError(
                "knows= lists some but not all records of a person; list all of the person's "
                "records, or none."
            )
        return np.asarray(shares == 1)

    def knowing(self, people: list[int]) -> OtherPeople:
        """Return a copy for an attacker who also knows these people."""
        others = copy(self)
        for whole in ("mean", "scatter"):  # of those who vary
            vars(others).pop(whole, None)
        others.known = self.known.copy()
        others.known[people] = True
        others.varies = self.varies & ~others.known
        others.count = int(others.varies.sum())
        return others

    def _leave_each_out(self, rows: np.ndarray) -> None:
        solver = self.model.solver
        lengths = solver.own_products[0][rows, None, None]
        _, shares, left, error = solver.share_left(rows[:, None], solver.curvature[rows], lengths)
        self.leverage, self.alone = shares[:, 0], ~others_decide(error)
        self.pull[rows] /= np.where(self.alone[:, None], np.inf, left)

    def _leave_out(self, person: int, rows: np.ndarray) -> None:
        """Store the slopes of ``g = H H₋⁻¹ g(θ̂)``: ``(I − BQ)⁻¹ω r``, B = ωa, ``Q = X̃H⁻¹X̃ᵀ``."""
        Y = self.curvature_root(rows)
        if not Y.shape[1]:
            return
        inner = Y.T @ self.model.inverse @ Y
        values = np.linalg.eigvalsh((inner + inner.T) / 2)
        self.leverage[person] = max(float(values[-1]), 0.0)
        if not 1 - values[-1] > 1e-9:  # the others have no minimiser of their own
            self.alone[person] = True
            self.pull[rows] = 0.0
            return
        # The margins move by ``X̃H₋⁻¹g``, and the slopes with them.
        gradient = self._gradients(rows).sum(axis=0)
        move = self.model.inverse @ gradient
        move = move + self.model.inverse @ Y @ np.linalg.solve(
            np.eye(len(inner)) - inner, Y.T @ move
        )
        x, c = self.model.gram_solver.design(self.model.X[rows]), self.model.outputs.count
        shift = x @ move.reshape(-1, c)
        curvature = self.model.gram_solver.curvature[rows]
        self.pull[rows] += np.einsum("mkl,ml->mk", curvature, shift)

    def _gradients(self, rows: np.ndarray) -> np.ndarray:
        """Return the gradients of these records, of shape (m, P)."""
        x = self.model.gram_solver.design(self.model.X[rows])
        return np.asarray(x[:, :, None] * self.pull[rows, None, :]).reshape(len(rows), -1)

    def gradient(self, rows: np.ndarray) -> np.ndarray:
        """Return the sum of the gradients of a person's records, (P,)."""
        return np.asarray(self._gradients(rows).sum(axis=0))

    def directions(self, rows: np.ndarray) -> np.ndarray:
        """Return ``X̃ᵀ`` for these records, with one column per record and output, (P, m·c)."""
        x, c = self.model.gram_solver.design(self.model.X[rows]), self.model.outputs.count
        return np.asarray(np.einsum("mp,kl->pkml", x, np.eye(c))).reshape(self.size, -1)

    def curvature_root(self, rows: np.ndarray) -> np.ndarray:
        """Return a Y such that ``YYᵀ = Σ ω a x̃x̃ᵀ`` over these records, (P, at most P)."""
        root = symmetric_root(self.model.gram_solver.curvature[rows])
        x = self.model.gram_solver.design(self.model.X[rows])
        Y = np.einsum("mp,mkl->pkml", x, root).reshape(self.size, -1)
        if Y.shape[1] <= self.size:
            return np.asarray(Y)
        values, vectors = np.linalg.eigh(Y @ Y.T)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))

    @property
    def parameters(self) -> np.ndarray:
        """``θ̂``, the free parameters, of shape (P,)."""
        return np.asarray(self.model.outputs.within(self.model.theta)).reshape(-1)

    # The people together ------------------------------------------------------------------------

    def gradients(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the gradients g for a few people at a time, (m, P)."""
        longest = max(map(len, self.sets))
        for piece in row_slices(len(self.sets), self.size * longest):
            here = self.sets[piece]
            of_rows = self._gradients(np.concatenate(here))
            starts = np.cumsum([0, *map(len, here[:-1])])
            yield piece, of_rows if self.single else np.add.reduceat(of_rows, starts, axis=0)

    @cached_property
    def mean(self) -> np.ndarray:
        """``ḡ``, (P,)."""
        total = sum(g[self.varies[piece]].sum(axis=0) for piece, g in self.gradients())
        return np.asarray(total / self.count)

    def centred(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield ``c = g − ḡ`` for a few people at a time; zero for people who add no variance."""
        for piece, g in self.gradients():
            yield piece, np.where(self.varies[piece, None], g - self.mean, 0.0)

    @cached_property
    def scatter(self) -> np.ndarray:
        """``G``, (P, P), summed over the unknown people with a finite gradient."""
        total = np.zeros((self.size, self.size))
        for piece, c in self.centred():
            known = c[~self.alone[piece]]
            total += known.T @ known
        return total

    @cached_property
    def noise_spread(self) -> np.ndarray:
        """``Σ`` for the free parameters, of shape (P, P); zero without noise."""
        if not self.noisy:
            return np.zeros((self.size, self.size))
        seen = self.model.seen(np.eye(self.size))
        return np.asarray(np.linalg.inv(seen @ seen.T))

    def spread(self, unknown: float) -> np.ndarray:
        """Return ``S = u H⁻¹GH⁻¹ + Σ``, of shape (P, P)."""
        inverse = self.model.inverse
        total = unknown * inverse @ self.scatter @ inverse + self.noise_spread
        return np.asarray((total + total.T) / 2)

"""Check the normal approximation by refits on randomly reweighted people.

The other people get random weights of mean 1 and variance ``u``, scaled to sum to their number.
This is the Bayesian bootstrap (Rubin 1981), with gamma weights if the attacker knows a share of
these people. People known to the attacker have weight 1. The model is fitted with the person, and
with another person instead. A likelihood-ratio test is trained on half of the refits of each kind.
It estimates one normal distribution per kind, in the coordinates that separate the two kinds
(:meth:`~seepage.glm.outsider.worlds.Worlds.coordinates`). The test is evaluated on the other half;
then the halves are swapped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from seepage.glm.outsider.worlds import Worlds
from seepage.support.chunks import progress, row_slices

DRAWS = 500  # fits of either kind: a point or two in 100 is chance


@dataclass(frozen=True)
class Resampled:
    """The success rate of a test trained and evaluated on refits, for each checked person."""

    people: np.ndarray  # their positions
    right: np.ndarray  # NaN where too many refits had no minimiser
    error: np.ndarray  # standard errors
    predicted: np.ndarray  # by the normal approximation

    def largest_difference(self) -> str:
        """Return a phrase with the number of checked people and the largest difference."""
        known = ~np.isnan(self.right)
        apart = self.right[known] - self.predicted[known]
        worst = float(apart[np.argmax(np.abs(apart))])
        return (
            f"{int(known.sum()):,} of the most exposed: at the largest difference, the attacker's "
            f"success rate was {100 * abs(worst):.1f} percentage points "
            f"{'above' if worst > 0 else 'below'} the approximation (standard error "
            f"{100 * float(self.error[known].max()):.1f})"
        )

    def of(self, which: np.ndarray, places: dict[int, int]) -> Resampled:
        """Return the results of some people, with new positions."""
        people = np.array([places[int(k)] for k in self.people[which]], dtype=int)
        return Resampled(people, self.right[which], self.error[which], self.predicted[which])


def resampled(worlds: Worlds, people: np.ndarray, predicted: np.ndarray) -> Resampled:
    """Return the success rate of a test based on refits for these people."""
    fits = cache(lambda: ResampledFits(worlds, 0))  # made only if somebody is asked about

    def draws(person: int) -> list[np.ndarray]:
        coordinates = worlds.coordinates(person)
        return [fits().moves(person, inside) @ coordinates for inside in (True, False)]

    return judged(people, predicted, draws)


def judged(
    people: np.ndarray,
    predicted: np.ndarray,
    draws: Callable[[int], list[np.ndarray]],
    seen: Callable[..., Iterable[np.ndarray]] = lambda *both: both,
) -> Resampled:
    """Return the success rate of a test between two sets of draws, with and without each person.

    Draws with a NaN are left out; ``seen`` maps the other draws to the input of the test.
    """
    right, error = np.full((2, len(people)), np.nan)
    for k, person in enumerate(progress(people, "resampled refits")):
        both = draws(person)
        arrived = np.isfinite(np.hstack(both)).all(axis=1)
        if np.mean(arrived) < 0.99:  # the rest may be unlike these
            continue
        hits = cross_judged(*seen(*(one[arrived] for one in both)))
        # Of 1,000 tests without an error not all would be right.
        right[k] = (2 * hits.sum() + 0.5) / (2 * len(hits) + 1)
        error[k] = max(np.std(hits), 0.5 / len(hits)) / np.sqrt(len(hits))
    return Resampled(people, right, error, predicted)


def cross_judged(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """Return each draw's share of correct decisions, cross-validated between two halves.

    The draws with and without the person include the same other people. So the sampling errors of
    the two fitted distributions, which would obscure small differences, largely cancel.
    """
    hits = np.zeros(len(inside))
    for side in (0, 1):
        taught = [_normal(one[side::2]) for one in (inside, outside)]
        for own, draws in ((0, inside), (1, outside)):
            likely = [_log_density(draws[1 - side :: 2], *one) for one in taught]
            hits[1 - side :: 2] += (likely[own] > likely[1 - own]) / 2
    return hits


def _normal(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of the draws and the inverse root of their covariance."""
    covariance = np.atleast_2d(np.cov(draws.T))
    return draws.mean(axis=0), np.linalg.inv(np.linalg.cholesky(covariance))


def _log_density(draws: np.ndarray, mean: np.ndarray, root: np.ndarray) -> np.ndarray:
    white = (draws - mean) @ root.T
    return np.asarray(np.log(np.abs(np.diagonal(root))).sum() - np.sum(white**2, axis=1) / 2)


class ResampledFits:
    """Randomly weighted fits on all people: the starting points of fits with one person changed.

    Each step uses the inverse Hessian of the starting fit, corrected for the person's own
    curvature, and requires two products with the table. Newton's method is used for the few fits
    that do not converge.
    """

    def __init__(self, worlds: Worlds, seed: int) -> None:
        self.others, self.rng = worlds.others, np.random.default_rng(seed)
        self.model = worlds.others.model
        u = worlds.unknown
        self.weights = self.rng.gamma(1 / u, u, size=(DRAWS, len(self.others.sets)))
        varies = self.others.varies
        self.weights *= varies
        self.weights *= self.others.count / self.weights.sum(axis=1, keepdims=True)
        self.weights += self.others.present & ~varies  # whom she knows is always there, once
        self.of_records = np.zeros(len(self.model.X), dtype=int)
        for k, records in enumerate(self.others.sets):
            self.of_records[records] = k
        self.x = self.model.gram_solver.design(self.model.X)
        c, d = self.model.outputs.count, self.model.X.shape[1]
        self.start = self.model.outputs.within(self.model.theta).reshape(-1, c)
        ridges = np.where(np.arange(self.x.shape[1]) < d, self.model.fit.ridge, 0.0)
        self.penalty = np.repeat(ridges, c)
        size = len(self.penalty)
        self.base, self.inverses = np.zeros((DRAWS, size)), np.zeros((DRAWS, size, size))
        for piece in self._pieces(DRAWS, "fits on other people"):
            weights = self._of_records(self.weights[piece])
            self.base[piece] = self._newton(weights, self.base[piece])
            H = self._hessians(weights, np.nan_to_num(self.base[piece]))
            self.inverses[piece] = np.linalg.pinv(H, hermitian=True)

    def moves(self, person: int, inside: bool) -> np.ndarray:
        """Return the parameter changes with a person or with another person instead, (draws, P).

        Fits that did not converge are NaN. The changes include the noise of the release.
        """
        weights, rows = self.weights.copy(), self.others.sets[person]
        change = float(inside) - weights[:, person]
        weights[:, person] = 0.0
        varying = weights[:, self.others.varies]
        scale = (self.others.count - inside) / varying.sum(axis=1, keepdims=True)
        weights[:, self.others.varies] = scale * varying
        weights[:, person] = float(inside)
        moves = np.empty_like(self.base)
        for piece in self._pieces(DRAWS):
            some = self._of_records(weights[piece])
            moves[piece] = self._chord(some, piece, change[piece], rows)
            late = piece.start + np.flatnonzero(np.isnan(moves[piece]).any(axis=1))
            if len(late):
                again = self._of_records(weights[late])
                moves[late] = self._newton(again, np.nan_to_num(self.base[late]))
        if self.others.noisy:
            root = np.linalg.cholesky(self.others.noise_spread).T
            moves += self.rng.standard_normal(moves.shape) @ root
        return moves

    def _pieces(self, count: int, what: str = "") -> Iterator[slice]:
        return row_slices(count, self.x.size * self.model.outputs.count, what=what)

    def _of_records(self, weights: np.ndarray) -> np.ndarray:
        return np.asarray(weights[:, self.of_records] * self.model.weight)

    def _chord(
        self, weights: np.ndarray, piece: slice, change: np.ndarray, rows: np.ndarray
    ) -> np.ndarray:
        """Return the changes by steps with stored Hessians, or NaN where they do not converge."""
        Y, inverses, moves = (
            self.others.curvature_root(rows),
            self.inverses[piece],
            self.base[piece],
        )
        solved = inverses @ Y
        inner = np.eye(Y.shape[1]) + change[:, None, None] * (Y.T @ solved)
        inner = np.linalg.pinv(inner)
        settled = np.zeros(len(moves), dtype=bool)
        for _ in range(10):
            gradient, margins = self._gradients(weights, moves)
            step = (inverses @ gradient[:, :, None])[:, :, 0]
            own = inner @ (Y.T @ step[:, :, None])
            step -= change[:, None] * (solved @ own)[:, :, 0]
            moves, settled = self._stepped(moves, step, margins)
            if settled.all():
                break
        return np.where(settled[:, None], moves, np.nan)

    def _newton(self, weights: np.ndarray, moves: np.ndarray) -> np.ndarray:
        """Return the changes by Newton's method, or NaN where it does not converge."""
        settled = np.zeros(len(moves), dtype=bool)
        for _ in range(40):  # from the fit as it is, fewer than ten are usual
            gradient, margins = self._gradients(weights, moves)
            try:
                step = np.linalg.solve(self._hessians(weights, moves), gradient[:, :, None])
            except np.linalg.LinAlgError:  # some people left no curvature along some direction
                break
            moves, settled = self._stepped(moves, step[:, :, 0], margins)
            if settled.all():
                break
        return np.where(settled[:, None], moves, np.nan)

    def _stepped(
        self, moves: np.ndarray, step: np.ndarray, margins: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the changes after a step of limited size, and whether each has converged."""
        shifts = np.abs(self._margins(step)).max(axis=(1, 2))
        shorter = 1.0  # beyond a shift of 2, curvatures say little
        if self.model.fit.family.name != "gaussian":
            shorter = np.minimum(1, 2 / np.maximum(shifts, 2))[:, None]
        with np.errstate(invalid="ignore"):
            # Far below the spread of the fits
            settled = shifts < 1e-4 * np.maximum(np.abs(margins).max(axis=(1, 2)), 1.0)
        return moves - shorter * step, settled

    def _gradients(self, weights: np.ndarray, moves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the gradients, (B, P), and the margins, (B, n, c)."""
        parameters = self.start.reshape(-1) + moves
        margins = self._margins(parameters)
        slopes = weights[:, :, None] * self.model.outputs.slope(margins, self.model.target[None])
        gradient = np.swapaxes(np.tensordot(slopes, self.x, (1, 0)), 1, 2).reshape(len(moves), -1)
        return gradient + self.penalty * parameters, margins

    def _margins(self, parameters: np.ndarray) -> np.ndarray:
        """Return the margins of all records in one product, (B, P) → (B, n, c)."""
        by_feature = parameters.reshape(-1, *self.start.shape)
        return np.ascontiguousarray(np.swapaxes(np.tensordot(by_feature, self.x, (1, 1)), 1, 2))

    def _hessians(self, weights: np.ndarray, moves: np.ndarray) -> np.ndarray:
        """Return the Hessians, of shape (B, P, P)."""
        D, c = self.start.shape
        margins = self._margins(self.start.reshape(-1) + moves)
        curvature = self.model.outputs.curvature(margins, self.model.target[None])
        curvature = weights[:, :, None, None] * curvature
        H = np.empty((len(moves), D, c, D, c))
        for k in range(c):
            for other in range(c):
                H[:, :, k, :, other] = (self.x.T * curvature[:, None, :, k, other]) @ self.x
        return H.reshape(-1, D * c, D * c) + np.diag(self.penalty)

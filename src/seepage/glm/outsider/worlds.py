"""Two normal distributions: a release with a person, and with another person instead.

The attacker does not know the other people in the data, so the release is random. With the person
in the data (in) or left out (out), the release has the distributions::

    in:   N(θ* − H⁻¹c, uH⁻¹G₋ᵢH⁻¹ + Σ)       out:   N(θ*, uH₋ᵢ⁻¹G₋ᵢH₋ᵢ⁻¹ + Σ),      c = g − ḡ

The number of people is usually published, so another person replaces the one left out, and c is
the gradient minus the mean gradient. The variation due to a person's own gradient does not hide
that person: ``G₋ᵢ = G − n/(n − 1) ccᵀ``.

**One covariance** for both distributions is enough if the design leverage ℓ is below 0.1. With ``M
= uG + HΣH`` and ``q = cᵀM⁻¹c``, the distance between the two distributions is ``μ² = q/(1 − αq)``,
``α = u n/(n − 1)``.

**Two covariances.** The data of a person with larger leverage also reduce the covariance. Let
``YYᵀ`` be the person's part of H, ``W = (I − YᵀH⁻¹Y)⁻¹``, and ``T = uG₋ᵢH⁻¹Y``. Since ``H₋ᵢ⁻¹ = H⁻¹
+ H⁻¹YWYᵀH⁻¹``, the covariances of ``Hθ̂`` differ by::

    Y W Tᵀ + T W Yᵀ + Y W (YᵀH⁻¹T) W Yᵀ

So the covariances differ only in the span of Y, T and c. This span has at most 2k + 1 dimensions if
Y has k columns; k is one for a single record and output. In this span, both covariances are
diagonalised together.

**Predictions.** If answers to the queries A are released, only ``Aθ̂`` is visible. The only change
is that a root R of ``H⁻¹Aᵀ(ASAᵀ + D)⁺AH⁻¹`` replaces the root of ``M⁻¹``. ``D`` is the covariance
of the noise on the answers and of their rounding errors (:mod:`~seepage.glm.outsider.shown`).

**Hidden by one person.** If one other person j causes most of the variation in a person's own
prediction, that variation is not normally distributed. The prediction then reveals whether j is in
the data, and little other variation remains. With ``z = Rᵀc``, person j contributes the share
``α(zᵀz_j)²/q(1 − αq)`` of the variation along the direction of the best test. If this share exceeds
four fifths, j is treated as known to the attacker, and the share is computed again for the
remaining people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from seepage.glm.outsider.others import OtherPeople
from seepage.glm.outsider.shown import Shown
from seepage.risks.two_normals import TwoNormals
from seepage.support.chunks import progress


@dataclass(frozen=True)
class Worlds:
    """The distributions of the release with and without each person, as the attacker sees them.

    Parameters
    ----------
    others
        The people in the data.
    unknown
        The share u of the variance that is due to records the attacker does not know.
    queries
        ``A``, (m, P), if predictions are released, or ``None`` if the parameters are.
    own
        Whether only the person's own records are queried.
    shown
        How ``Aθ`` is published: its noise and its printed digits.
    """

    others: OtherPeople
    unknown: float
    queries: np.ndarray | None = None
    own: bool = False
    shown: Shown = field(default_factory=Shown)

    @property
    def share(self) -> float:
        """``α = u n/(n − 1)``."""
        n = self.others.count
        return self.unknown * n / (n - 1)

    @property
    def numbers(self) -> int:
        """The number of linearly independent released numbers."""
        if self.own:
            return self.others.model.outputs.count
        if self.queries is None:
            return self.others.size
        return int(np.linalg.matrix_rank(self.queries))

    def with_unknown(self, unknown: float) -> Worlds:
        """Return the same distributions for an attacker with more or less knowledge."""
        return replace(self, unknown=unknown)

    def root_for(self) -> Callable[[np.ndarray], np.ndarray]:
        """Return a function that computes R from a person's records, (P, k)."""
        inverse = self.others.model.inverse

        def seen(A: np.ndarray) -> np.ndarray:
            numbers, varies = self._seen(A)
            return np.asarray((numbers @ inverse).T @ inverse_root(varies))

        if self.own:
            return lambda rows: seen(self.others.directions(rows).T)
        if self.queries is None:
            noise = np.linalg.solve(inverse, np.linalg.solve(inverse, self.others.noise_spread).T)
            whole = inverse_root(self.unknown * self.others.scatter + (noise + noise.T) / 2)
        else:
            whole = seen(self.queries)
        return lambda rows: whole

    def _seen(self, A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the visible numbers of ``Aθ``, and their covariance ``ASAᵀ + D``."""
        return self.shown.seen(A, self._spread, self.others.parameters)

    @cached_property
    def _spread(self) -> np.ndarray:
        return self.others.spread(self.unknown)

    def told_apart(self) -> tuple[np.ndarray, TwoNormals]:
        """Return each person's share ``αq`` of the visible variance, and both distributions."""
        share, worlds, _ = self._of_all
        return share, worlds

    @property
    def taken_for_known(self) -> np.ndarray:
        """For each person, how many other people hide the person and are treated as known."""
        return self._of_all[2]

    @cached_property
    def _of_all(self) -> tuple[np.ndarray, TwoNormals, np.ndarray]:
        others, root = self.others, self.root_for()
        q, known = np.zeros(len(others.sets)), np.zeros(len(others.sets), dtype=int)
        heavy, of_heavy = self._heavy() if self.own else (known[:0], others.mean[None][:0])
        groups: dict[tuple[int, ...], list[int]] = {}
        for piece, c in others.centred():
            people = others.sets[piece]
            if not self.own:
                q[piece] = np.sum((c @ root(people[0])) ** 2, axis=1)
                continue
            q[piece], products = self._products(people, c, of_heavy, root)
            places = np.arange(len(q))[piece]
            products[places[:, None] == heavy] = 0.0  # nobody hides themselves
            for place, those in self._hiders(q[piece], products):
                key = tuple(sorted(int(k) for k in heavy[those]))
                groups.setdefault(key, []).append(int(places[place]))
                known[places[place]] = len(key)
        worlds = self._normal(q, others.present)
        for hiders, hidden in groups.items():
            beside = replace(self, others=others.knowing(list(hiders)))
            sets = [others.sets[k] for k in hidden]
            c = np.array([others.gradient(rows) for rows in sets]) - beside.others.mean
            again, among = q.copy(), np.zeros(len(q), dtype=bool)
            again[hidden], _ = beside._products(sets, c, of_heavy[:0], beside.root_for())
            among[hidden] = True
            worlds = worlds.put(np.array(hidden), beside._normal(again, among).of(np.array(hidden)))
        return self.share * q, worlds, known

    def _products(
        self,
        people: list[np.ndarray],
        c: np.ndarray,
        of_others: np.ndarray,
        root: Callable[[np.ndarray], np.ndarray],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return ``q = zᵀz`` for these people's own queries, and ``zᵀz_j`` with other people."""
        others = self.others
        single = others.single and others.model.outputs.count == 1
        if single and self.shown.numbers_are_rows:  # R = H⁻¹x/√xᵀSx
            A = others.directions(np.concatenate(people)).T
            variances = np.array([float(self._seen(a[None])[1][0, 0]) for a in A])
            R = A @ others.model.inverse
            R /= np.sqrt(np.where(variances > 0, variances, np.inf))[:, None]
            z = np.sum(R * c, axis=1)
            return z**2, z[:, None] * (R @ of_others.T)
        roots = [root(rows) for rows in people]
        each = [one @ R for one, R in zip(c, roots, strict=True)]
        products = [of_others @ (R @ z) for z, R in zip(each, roots, strict=True)]
        return np.array([np.sum(z**2) for z in each]), np.array(products)

    def _hiders(self, q: np.ndarray, products: np.ndarray) -> Iterator[tuple[int, list[int]]]:
        """Yield the positions of people hidden by few others, and the positions of these few."""
        variances = self.share * products**2 / np.where(q > 0, q, np.inf)[:, None]
        left = 1 - self.share * q
        for place in np.flatnonzero(variances.max(axis=1, initial=0.0) > 0.8 * left):
            those: list[int] = []
            hidden = float(left[place])
            for k in np.argsort(-variances[place]):
                alone = variances[place, k] <= 0.8 * hidden
                if alone or hidden < 1e-8 or len(those) > self.others.count - 4:
                    break
                those.append(int(k))
                hidden -= float(variances[place, k])
            if those:
                yield int(place), those

    def _heavy(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the people each of whom may hide another alone (``αcᵀM⁻¹c > 0.4``), with their c.

        Suppose a person's share of the visible variation is below one half. By the Cauchy–Schwarz
        inequality, nobody outside this list contributes four fifths of the variation that hides the
        person.
        """
        root = replace(self, queries=None, own=False).root_for()(self.others.sets[0])
        c = np.concatenate([one for _, one in self.others.centred()])
        shares = self.share * np.sum((c @ root) ** 2, axis=1)
        heavy = np.flatnonzero((shares > 0.4) & ~self.others.alone)
        return heavy, c[heavy]

    def _normal(self, q: np.ndarray, among: np.ndarray) -> TwoNormals:
        """Return both normal distributions of each person."""
        others, root = self.others, self.root_for()
        mu = distance_without_own(q, self.share, others.alone & others.present)
        certain = np.isinf(mu)
        worlds = TwoNormals.apart(mu)
        uneven = np.flatnonzero((others.leverage >= 0.1) & others.varies & among & ~certain)
        if len(uneven):
            shown = progress(uneven, "people of leverage")
            worlds = worlds.put(uneven, _joined([self._pair(int(k), root) for k in shown]))
        return worlds

    def _pair(
        self, person: int, root: Callable[[np.ndarray], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the shifts and relative variance differences of a person's distributions, (k,)."""
        rows, inverse = self.others.sets[person], self.others.model.inverse
        Y, T, c = self._span(person)
        solved, axes = inverse @ Y, self._axes(root(rows), Y, T, c)
        W = np.linalg.inv(np.eye(Y.shape[1]) - Y.T @ solved)
        y, t, z = axes.T @ Y, axes.T @ T, axes.T @ c
        once = y @ W @ t.T
        more = once + once.T + y @ W @ (solved.T @ T) @ W @ y.T
        # Within, the covariance is I − αzzᵀ.
        lower = np.linalg.cholesky(np.eye(len(z)) - self.share * np.outer(z, z))
        more = np.linalg.solve(lower, np.linalg.solve(lower, more).T)
        spread, turned = np.linalg.eigh((more + more.T) / 2)
        shift = turned.T @ np.linalg.solve(lower, z)
        return shift, np.maximum(spread, 1e-8 - 1)  # a variance, but for rounding

    def _span(self, person: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return Y, T and c for a person."""
        others = self.others
        rows = others.sets[person]
        c = others.gradient(rows) - others.mean
        Y = others.curvature_root(rows)
        solved = others.model.inverse @ Y
        T = self.unknown * others.scatter @ solved - self.share * np.outer(c, c @ solved)
        return Y, T, c

    @staticmethod
    def _axes(root: np.ndarray, *span: np.ndarray) -> np.ndarray:
        """Return a root restricted to the span of some vectors, (P, at most 2k + 1)."""
        return np.asarray(root @ np.linalg.qr(root.T @ np.column_stack(span))[0])

    def coordinates(self, person: int) -> np.ndarray:
        """Return the coordinates that distinguish a person's distributions, (P, at most 2k + 1).

        The coordinates of parameter shifts (rows) are their product with this matrix.
        """
        axes = self._axes(self.root_for()(self.others.sets[person]), *self._span(person))
        return np.asarray(np.linalg.solve(self.others.model.inverse, axes))


def _joined(pairs: list[tuple[np.ndarray, np.ndarray]]) -> TwoNormals:
    """Join pairs of distributions into one object, merging coordinates of equal variance."""
    tidy = []
    for shift, spread in pairs:
        bent = np.abs(spread) > 1e-9  # else rounding
        rest = [] if bent.all() else [np.linalg.norm(shift[~bent])]
        tidy.append((np.append(rest, shift[bent]), np.append(0 * np.array(rest), spread[bent])))
    size = max(len(shift) for shift, _ in tidy)
    both = [[np.pad(one, (0, size - len(one))) for one in pair] for pair in tidy]
    return TwoNormals(np.stack([m for m, _ in both]), np.stack([e for _, e in both]))


def distance_without_own(q: np.ndarray, share: float, alone: np.ndarray) -> np.ndarray:
    """Return ``μ = √(q/(1 − αq))`` of each person, excluding the person's own variation.

    ``q`` is the squared length of the person's effect, in units of the variation over all people,
    and ``share`` is ``α = u n/(n − 1)``. μ is infinite for people marked in ``alone``, without whom
    the fit is not unique, and if nearly all of the variation is the person's own.
    """
    left = 1 - share * q
    # Rounding ends at about 1e-8, a distance of 10⁴: nobody else has what this person has.
    certain = alone | (left < 1e-8)
    return np.where(certain, np.inf, np.sqrt(q / np.where(certain, 1.0, left)))


def inverse_root(matrix: np.ndarray) -> np.ndarray:
    """Return R such that ``RRᵀ`` is the pseudo-inverse of a semidefinite matrix, (P, k).

    The matrix is first scaled to a unit diagonal, so that very different units do not reduce the
    precision.
    """
    sizes = np.sqrt(np.maximum(np.diagonal(matrix), 0.0))
    scale = np.where(sizes > 0, sizes, 1.0)
    values, vectors = np.linalg.eigh(matrix / np.outer(scale, scale))
    kept = values > len(values) * np.finfo(float).eps * max(float(values[-1]), 0.0)
    return np.asarray(vectors[:, kept] / np.sqrt(values[kept]) / scale[:, None])

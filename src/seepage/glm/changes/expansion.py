"""The expansion: changes from third-order expansions of the other records' slopes, not refits.

The centre (:mod:`~seepage.glm.changes.centres`) holds the other records' curvature constant. The
resulting error of their slopes, summed over the records, is a sum of multilinear forms shared by
all changes, up to higher powers of the shifts::

    X̃ᵀε ≈ ½ T[δ, δ] + ⅙ F[δ, δ, δ],    T = Σ_j ω_j ℓ‴_j x̃_j⊗x̃_j⊗x̃_j,    F = Σ_j ω_j ℓ⁗_j x̃_j⊗…⊗x̃_j

So the equation for the parameter change has P unknowns and no sum over records. The equation is
solved by Newton's method with the curvature at the centre, in coordinates ``u`` where H is the
identity. F has P⁴ entries, and is omitted if there are too many.

**Distance of the refit.** Let p be the first omitted order. If ``|ℓ⁽ᵏ⁾| ≤ M^{k−2} ℓ″`` for all
orders k up to p, the remainder of ``ε_j`` is at most ``M^{p−2} ω_j a_j |t_j|^{p−1}
e^{M|t_j|}/(p−1)!``. Let S be the largest ``|t_j|``. Since ``Σ ω a t⁴ ≤ ‖u‖² uᵀBu`` with ``B = Σ ω a
‖x̂‖² x̂x̂ᵀ``, the norm of the remainder is at most::

    e₀ = M^{p−2} e^{MS}/(p−1)! S^{p−3} ‖u‖ (uᵀBu)^½ + ρ/(1 − h)^½,    ρ the residual of the equation

An error ε of norm E moves the other records' shifts by at most E in the norm of ``H₀``, and changes
their slopes by at most ``(exp(M(S + R E)) − 1) E``. So the ball of radius E about the solution
contains the refit if ``e₀ + (exp(M(S + R E)) − 1) E ≤ E``, as in
:mod:`~seepage.glm.changes.certificate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import cast

import numpy as np

from seepage.core.finite_changes import (
    Alternatives,
    Moves,
)
from seepage.glm.changes.centres import Centres
from seepage.glm.changes.local_model import LocalModel
from seepage.glm.losses import Elementwise, Family
from seepage.support.chunks import row_slices, spread
from seepage.support.double_double import EPS

AT_ONCE = 1 << 18  # numbers that a core works on at a time, in its cache
QUICK = 3e9  # multiplications of a few seconds


@dataclass(frozen=True)
class Expanded:
    """Changes due to m records with K alternatives, from third-order expansions of slopes."""

    moves: np.ndarray  # u, (m, K, P)
    error: np.ndarray  # E, infinite where nothing is certified, (m, K)
    beside: np.ndarray  # u less the centre, (m, K, P)


class Monomials:
    """The distinct products of two and of three of P numbers, which determine symmetric forms.

    There are ``P(P + 1)/2`` products of two and ``P(P + 1)(P + 2)/6`` of three, where the forms
    have ``P²`` and ``P³`` entries per slope.
    """

    def __init__(self, numbers: int) -> None:
        self.pairs = np.triu_indices(numbers)
        # of the pairs that begin with k
        self.first = np.searchsorted(self.pairs[0], np.arange(numbers))
        pair = [np.arange(start, len(self.pairs[0])) for start in self.first]
        self.triples = np.concatenate(pair), np.repeat(np.arange(numbers), [len(p) for p in pair])

    def by_squares(self, x: np.ndarray, weighted: np.ndarray) -> np.ndarray:
        """Return the symmetric form ``Σ x_i x_j w x_k``, (·, P), from x and ``w x``, (P, m) each.

        Only the entries in which k comes first are certain to be set; :meth:`whole_third` sets the
        others.
        """
        return _by_first(x, np.arange(len(x)), x, weighted)

    def by_cubes(self, squares: np.ndarray, x: np.ndarray, weighted: np.ndarray) -> np.ndarray:
        """Return the symmetric form ``Σ x_h x_i x_j w x_k``, as :meth:`by_squares` does."""
        return _by_first(squares, self.first, x, weighted)

    def whole_third(self, form: np.ndarray) -> np.ndarray:
        """Return a form of :meth:`by_squares` with all its entries."""
        i, j = (part[:, None] for part in self.pairs)
        one, two, three = np.sort(np.broadcast_arrays(i, j, np.arange(len(self.first))), axis=0)
        return np.asarray(form[self._pair(two, three), one])

    def whole_fourth(self, form: np.ndarray) -> np.ndarray:
        """Return a form of :meth:`by_cubes` with all its entries."""
        pair, h = (part[:, None] for part in self.triples)
        i, j = self.pairs[0][pair], self.pairs[1][pair]
        every = np.broadcast_arrays(h, i, j, np.arange(len(self.first)))
        one, two, three, four = np.sort(every, axis=0)
        triple = self._first_triple[two] + self._pair(three, four) - self.first[two]
        return np.asarray(form[triple, one])

    @property
    def _first_triple(self) -> np.ndarray:
        """The first of the triples that begin with k, for every k."""
        return np.searchsorted(self.triples[1], np.arange(len(self.first)))

    def _pair(self, i: np.ndarray, j: np.ndarray) -> np.ndarray:
        """Return the positions of pairs with ``i ≤ j``."""
        return np.asarray(self.first[i] + j - i)

    def of(self, x: np.ndarray, cubes: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the products of every column, (P, m) → (·, m): of two, and of three if asked.

        These are ``x_i x_j`` with ``i ≤ j``, and ``x_k x_i x_j`` with ``k ≤ i ≤ j``. The records
        come last: NumPy multiplies long rows several times as fast as short ones.
        """
        every = np.arange(len(x))
        squares = _products(x, every, x, every)
        return squares, _products(squares, self.first, x, every) if cubes else None

    @cached_property
    def orders(self) -> tuple[np.ndarray, np.ndarray]:
        """How many entries of a form each product of two, and of three, stands for."""
        i, j = self.pairs
        pair, k = self.triples
        twos = np.where(i == j, 1.0, 2.0)
        same = (i[pair] == j[pair]).astype(int) + (k == i[pair])
        return twos, np.choose(same, [6.0, 3.0, 1.0])


def _products(
    values: np.ndarray, first: np.ndarray, x: np.ndarray, which: np.ndarray
) -> np.ndarray:
    """Return ``x_k`` times ``values[first[k]:]`` for some numbers k in turn, (·, m)."""
    ends = np.cumsum(len(values) - first[which])
    out, at = np.empty((int(ends[-1]), x.shape[1])), 0
    for k, end in zip(which, ends, strict=True):
        np.multiply(values[first[k] :], x[k], out=out[at:end])
        at = end
    return out


def _by_first(
    values: np.ndarray, first: np.ndarray, x: np.ndarray, weighted: np.ndarray
) -> np.ndarray:
    """Return the sums of all :func:`_products` times ``w x_l``, ``l ≤ k``, (·, P).

    By symmetry, these entries determine all others. A quarter of the products at a time stays in
    the cache.
    """
    ends = np.cumsum(len(values) - first)
    out, at = np.zeros((len(x), int(ends[-1]))), 0
    for some in np.split(np.arange(len(x)), np.searchsorted(ends, ends[-1] * np.arange(1, 4) / 4)):
        if len(some):
            products, until = _products(values, first, x, some), int(ends[some[-1]])
            np.matmul(weighted[: some[-1] + 1], products.T, out=out[: some[-1] + 1, at:until])
            at = until
    return out.T


@dataclass(frozen=True)
class Forms:
    """The forms shared by all records, in coordinates where H is the identity."""

    monomials: Monomials
    third: np.ndarray  # T, one row per product of two, (·, P)
    fourth: np.ndarray | None  # F, one row per product of three, (·, P)
    quartic: np.ndarray  # B, (P, P)
    reach: float  # the largest ‖x̂‖

    @cached_property
    def norms(self) -> tuple[float, float]:
        """Numbers τ and φ such that ``‖T[u, v]‖ ≤ τ‖u‖‖v‖`` and ``‖F[u, v, w]‖ ≤ φ‖u‖‖v‖‖w‖``.

        τ and φ are the largest singular values of the forms written as matrices, in which each
        stored row stands for several equal rows (:attr:`Monomials.orders`).
        """
        orders = self.monomials.orders
        forms = (self.third, orders[0]), (self.fourth, orders[1])
        third, fourth = (
            0.0 if form is None else float(np.linalg.norm(form / np.sqrt(order)[:, None], 2))
            for form, order in forms
        )
        return third, fourth

    def change(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Return upper bounds on how far the slopes at u and at v are apart, (N,)."""
        third, fourth = self.norms
        a, b = _size(u), _size(v)
        rate = third * _size(u + v) / 2 + fourth * (a * a + a * b + b * b) / 6
        return np.asarray(rate * _size(v - u))

    def slopes(self, u: np.ndarray) -> np.ndarray:
        """Return ``½ T[u, u] + ⅙ F[u, u, u]`` of changes (N, P), of the same shape."""
        out = np.empty_like(u)
        width = len(self.third if self.fourth is None else self.fourth)
        for piece in row_slices(len(u), width, chunk=AT_ONCE):
            columns = np.ascontiguousarray(u[piece].T)
            squares, cubes = self.monomials.of(columns, cubes=self.fourth is not None)
            slopes = self.third.T @ squares / 2
            if self.fourth is not None:
                slopes += self.fourth.T @ cubes / 6
            out[piece] = slopes.T
        return out


class Expansion:
    """The third-order expansion of a fit's slopes, for losses with known derivatives."""

    def __init__(self, model: LocalModel) -> None:
        self.model = model

    @cached_property
    def exists(self) -> bool:
        """Whether the expansion applies: one output, known derivatives, all records in memory."""
        model = self.model
        return bool(
            model.constant
            and model.shifts is None
            and isinstance(model.fit.family, Family)
            and model.fit.family.curvature_slope is not None
            and model.fit.family.curvature_bend is not None
            and model.gram_solver.rounding < 1e-9
        )

    def affords(self, moves: int, most: float = 1e11) -> bool:
        """Return whether the expansion applies, and so many changes take no more multiplications.

        The default takes less than a minute. Up to :data:`QUICK`, there is no need to ask which
        changes need the expansion.
        """
        return self.exists and self._work(3, moves) <= most

    def _work(self, order: int, moves: int) -> float:
        return float(len(self.model.inverse) ** order) * (len(self.model.X) + 4 * moves)

    @cached_property
    def root(self) -> np.ndarray:
        """A matrix ``A`` such that ``AAᵀ = H⁻¹``: ``x̂ = Aᵀx̃`` and ``δ = Au``."""
        sizes = np.sqrt(np.diagonal(self.model.inverse))
        scaled = self.model.inverse / np.outer(sizes, sizes)
        return np.asarray(sizes[:, None] * np.linalg.cholesky(scaled))

    def seen(self, x: np.ndarray) -> np.ndarray:
        """Return ``x̂`` of the given records, of shape (n, P)."""
        d = x.shape[1]
        seen = x @ self.root[:d]
        seen += self.root[d:].sum(axis=0)  # the intercept's, if there is one
        return np.asarray(seen)

    def arriving(self, rows: np.ndarray, others: Alternatives) -> np.ndarray:
        """Return ``ẑ`` of the replacing records, of shape (m, K, P)."""
        change, _ = self.model.changes(rows, others)
        by_column = change @ self.root[list(others.columns)]
        return np.asarray(self.seen(self.model.X[rows])[:, None, :] + by_column)

    @cached_property
    def forms(self) -> Forms:
        """The forms summed over all records."""
        model, P = self.model, len(self.root)
        deep = self._work(4, len(model.X)) <= QUICK
        monomials, B, largest = Monomials(P), np.zeros((P, P)), 0.0
        twos, threes = monomials.orders
        T, F = np.zeros((len(twos), P)), np.zeros((len(threes), P)) if deep else None

        def sums(piece: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
            x, weight = self.seen(model.X[piece]), model.weight[piece]
            third, fourth = self._bends(np.arange(*piece.indices(len(model.X))))
            length = np.einsum("np,np->n", x, x)
            columns = np.ascontiguousarray(x.T)
            bent = np.zeros(())
            if deep:
                squares, _ = monomials.of(columns, cubes=False)
                bent = monomials.by_cubes(squares, columns, fourth * columns)
            heavy = x.T @ ((weight * model.curvatures[piece, 0, 0] * length)[:, None] * x)
            longest = float(np.max(length[weight > 0], initial=0.0))
            return monomials.by_squares(columns, third * columns), bent, heavy, longest

        width = len(threes) if deep else len(twos)
        for third, fourth, quartic, longest in spread(
            sums, row_slices(len(model.X), width, chunk=4 * AT_ONCE)
        ):
            T += third
            B += quartic
            largest = max(largest, longest)
            if F is not None:
                F += fourth
        T = monomials.whole_third(T)
        F = None if F is None else threes[:, None] * monomials.whole_fourth(F)
        return Forms(monomials, twos[:, None] * T, F, B, float(np.sqrt(largest)))

    def _bends(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``ω ℓ‴`` and ``ω ℓ⁗`` of the given records, of shape (m,) each."""
        model, family = self.model, cast(Family, self.model.fit.family)
        margin, label, weight = model.margins[rows, 0], model.target[rows], model.weight[rows]
        third, fourth = (
            weight * np.asarray(cast(Elementwise, bend)(margin, label))
            for bend in (family.curvature_slope, family.curvature_bend)
        )
        return third, fourth

    def moves(self, rows: np.ndarray, others: Alternatives | None) -> Moves:
        """Return certified changes due to records, (m,); ``others=None`` leaves them out."""
        model, K = self.model, 1 if others is None else len(others)
        whole = Moves(np.zeros((len(rows), K, K)), np.full((len(rows), K), np.inf))

        def around(piece: slice) -> tuple[slice, Moves]:
            centres = Centres.of(model, rows[piece, None], others)
            found = self.of(rows[piece], others, centres)
            E, still = found.error, found.error == 0
            own = np.zeros_like(E)
            with np.errstate(invalid="ignore", over="ignore"):
                if centres.own is not None:
                    off = E + np.linalg.norm(found.beside, axis=2)
                    own = centres.own.per_error(model.constant, off)
                radius = (centres.per_error[:, None] + own) * E
                seen = model.seen(found.moves @ self.root.T)
                gram = seen @ np.swapaxes(seen, 1, 2)
            # Moves beyond the range of floating point are unknown: any length is possible.
            lost = ~np.isfinite(gram).all(axis=(1, 2))
            gram = np.where(lost[:, None, None], 0.0, gram)
            radius = np.where(lost[:, None], np.inf, radius)
            size = np.sqrt(np.einsum("mkk->mk", gram))
            rounding = centres.rounding + model.gram_solver.rounding * model.seen.skew * size
            rounding = np.maximum(rounding, 1e-9 * size)
            radius = np.where(np.isfinite(radius), radius + rounding, np.inf)
            return piece, Moves(gram, np.where(still, 0.0, radius))

        pieces = list(row_slices(len(rows), 4 * K * len(self.root), chunk=4 * AT_ONCE))
        # What all pieces share is computed, and kept, with the first.
        for piece, closer in chain(map(around, pieces[:1]), spread(around, pieces[1:])):
            whole.put(piece, closer)
        return whole

    def of(self, rows: np.ndarray, others: Alternatives | None, centres: Centres) -> Expanded:
        """Return the changes due to records, (m,), starting at their centres."""
        known = np.isfinite(centres.per_error)[:, None] & ~centres.unsolved
        still = np.asarray(known & np.all(centres.coefs == 0, axis=2))
        record, which = np.nonzero(known & ~still)  # the changes that move the fit
        u, beside = np.zeros((2, *still.shape, len(self.root)))
        error = np.where(still, 0.0, np.inf)
        if len(record):
            equation = _Equation.of(self, rows, others, record, which)
            coefs = centres.coefs[record, which]
            start = coefs[:, :1] * equation.x  # H⁻¹x̃ = A x̂, and H⁻¹e = A Aᵀe
            if centres.columns:
                start += coefs[:, 1:] @ self.root[centres.columns]
            moved, size = self._solved(equation, start, centres.free[record])
            finite = np.isfinite(moved).all(axis=1)
            u[record, which] = np.where(finite[:, None], moved, 0.0)
            beside[record, which] = np.where(finite[:, None], moved - start, 0.0)
            error[record, which] = np.where(finite, size, np.inf)
        return Expanded(u, error, beside)

    def _solved(
        self, equation: _Equation, start: np.ndarray, free: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the solutions u from starts (N, P), and their radii E, (N,)."""
        u, radius, active = start.copy(), np.full(len(start), np.inf), np.arange(len(start))
        with np.errstate(over="ignore", invalid="ignore"):
            here = self.forms.slopes(start)
            for _ in range(7):
                own, curved = equation.own(u[active])
                left = u[active] + here + own
                radius[active], going = self._radius(u[active], _size(left), free[active])
                if not going.any():
                    break
                active, equation = active[going], equation.part(going)
                before, left, own = u[active], left[going], own[going]
                u[active] = after = before - equation.solved(left, curved[going])
                # The sum over the records need not be computed anew where its change is small.
                left = left + (after - before) + (equation.own(after)[0] - own)
                most = _size(left) + self.forms.change(before, after)
                radius[active], going = self._radius(after, most, free[active])
                active, equation = active[going], equation.part(going)
                here = self.forms.slopes(u[active])
        return u, radius

    def _radius(
        self, u: np.ndarray, residual: np.ndarray, free: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the radius E, or infinity, and which changes need a further step, (N,).

        No step is needed if the residual is far smaller than the terms that the expansion omits.
        """
        M, forms, size = self.model.constant, self.forms, _size(u)
        S, R = forms.reach * size, forms.reach / np.sqrt(free)
        powers = size * np.sqrt(np.maximum(_dot(u @ forms.quartic, u), 0.0))
        left_out = M**2 * S / 6 if forms.fourth is None else M**3 * S**2 / 24
        omitted = np.exp(M * S) * left_out * powers
        # Sums of as many terms as there are parameters, each off by its rounding.
        rounding = 8 * len(self.root) * EPS * size
        least = omitted + (residual + rounding) / np.sqrt(free)
        E = least / np.maximum(1 - 2 * np.expm1(M * S), 0.1)
        held = least + np.expm1(M * (S + R * E)) * E <= E
        going = residual > np.maximum(1e-9 * size, 0.05 * omitted)
        return np.where(held, E, np.inf), going


@dataclass(frozen=True)
class _Equation:
    """The equation for N changes, ``u − a(x̂·u)x̂ + ε(u) + ω ℓ'(m + ẑ·u, y')ẑ = ω r x̂``."""

    expansion: Expansion
    x: np.ndarray  # x̂, (N, P)
    pull: np.ndarray  # ω r, (N,)
    bends: tuple[np.ndarray, ...]  # ω times its curvature and the next two derivatives, (N,) each
    weight: np.ndarray  # ω, (N,)
    arrival: tuple[np.ndarray, np.ndarray, np.ndarray] | None  # ẑ, its margin under θ̂, and y'

    @classmethod
    def of(
        cls,
        expansion: Expansion,
        rows: np.ndarray,
        others: Alternatives | None,
        record: np.ndarray,
        which: np.ndarray,
    ) -> _Equation:
        """Build the equations of some alternatives, ``which``, of some of the rows, ``record``."""
        model, some = expansion.model, rows[record]
        x = expansion.seen(model.X[rows])[record]
        weight, curvature = model.weight[some], model.curvatures[some, 0, 0]
        bends = (weight * curvature, *expansion._bends(some))
        arrival = None
        if others is not None:
            change, labels = model.changes(rows, others)
            margin = model.margins_before(rows, change, others.columns)[record, which, 0]
            z = x
            if others.columns:
                z = x + change[record, which] @ expansion.root[list(others.columns)]
            arrival = z, margin, labels[record, which]
        return cls(expansion, x, weight * model.slopes[some, 0], bends, weight, arrival)

    def part(self, some: np.ndarray) -> _Equation:
        """Return the equations of some changes."""
        if some.all():
            return self
        bends = tuple(bend[some] for bend in self.bends)
        arrival = self.arrival
        if arrival is not None:
            arrival = arrival[0][some], arrival[1][some], arrival[2][some]
        expansion, weight = self.expansion, self.weight[some]
        return _Equation(expansion, self.x[some], self.pull[some], bends, weight, arrival)

    def own(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the changed records' part, (N, P), and the added records' curvatures, (N,)."""
        t = _dot(self.x, u)
        first, second, third = self.bends
        leaves = self.pull + first * t + second * t**2 / 2
        if self.expansion.forms.fourth is not None:
            leaves = leaves + third * t**3 / 6
        own = -leaves[:, None] * self.x
        if self.arrival is None:
            return own, np.zeros_like(t)
        z, margin, labels = self.arrival
        outputs, at = self.expansion.model.outputs, (margin + _dot(z, u))[:, None]
        curved = self.weight * outputs.curvature(at, labels)[:, 0, 0]
        return own + (self.weight[:, None] * outputs.slope(at, labels)) * z, curved

    def solved(self, v: np.ndarray, curved: np.ndarray) -> np.ndarray:
        """Return ``(I − a x̂x̂ᵀ + b ẑẑᵀ)⁻¹v``, (N, P), by Woodbury's formula."""
        share = self.bends[0] / (1 - self.bends[0] * _dot(self.x, self.x))
        v = v + (share * _dot(self.x, v))[:, None] * self.x
        if self.arrival is None:
            return v
        z = self.arrival[0]
        arrived = z + (share * _dot(self.x, z))[:, None] * self.x
        taken = curved / (1 + curved * _dot(z, arrived))
        return np.asarray(v - (taken * _dot(z, v))[:, None] * arrived)


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the inner products of corresponding rows, (N,)."""
    return np.asarray(np.einsum("np,np->n", a, b))


def _size(vectors: np.ndarray) -> np.ndarray:
    """Return the length of every row, (N,)."""
    return np.asarray(np.sqrt(_dot(vectors, vectors)))

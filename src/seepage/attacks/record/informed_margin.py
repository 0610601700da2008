"""Reconstructs rows as an informed adversary, for models with a single margin.

Many rows and releases are processed at once.

At released parameters ``θ`` let ``g`` be the gradient of the objective over all records: zero at
the minimiser, and due to noise alone at a release. Let ``x̃`` be row i, with a 1 for the intercept,
``ω`` its weight, ``ℓ`` its loss and ``m`` its margin. Without this row, which the adversary does
not know, the gradient is ``g − s x̃`` with ``s = ω ∂ℓ/∂m``. From the known records, the adversary
therefore computes::

    B = s x̃ − g        (Balle, Cherubin and Hayes 2022)

which, up to noise, is ``ρ x̃``, where ``ρ = ω ∂ℓ/∂m`` for this row at the minimiser. The estimate
is ``x = B/ρ``, and only ρ is still unknown. There are three cases.

*A coordinate κ is known*: an intercept's 1, or a constant column's c. This coordinate determines
``ρ = B_κ/c``. If ρ is no larger than its noise, division by ρ makes the estimate heavy-tailed.

*The label is known as well.* Then both ``ρ`` and ``v = θ_Fᵀ(ρ x) = ρ(m) (m − μ₀)`` are functions of
the margin m alone, where F are the unknown columns and μ₀ is the contribution of κ to the margin.
The values of ρ and v give two noisy equations for m, weighted by their covariance under the
release's noise (``g`` has the covariance ``HΣH``, with H the Hessian and Σ the covariance of the
noise). The weighted residual e also predicts the noise in the other coordinates, ``Γe``, which is
subtracted: ``x = (B − Γe)/ρ``. To first order in the noise, this estimate attains the Cramér–Rao
bound. If the noise leaves the margin uncertain, the margin is shrunk towards the other records'
margins, as if drawn from a Gaussian with their mean and standard deviation.

*Only the label is known.* ``B`` determines the direction of x, and the loss its length L: ``ω
∂ℓ/∂m(± L θᵀB/‖B‖) = ± ‖B‖/L``. If there are several solutions, the one whose length is nearest the
typical record length is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np

from seepage.core.noise import Gaussian, Laplace, Noise
from seepage.errors import InputError
from seepage.glm.fitting.objective import FittedGLM, Objective
from seepage.glm.losses import Family
from seepage.support.chunks import by_rows

Gap = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Solved(NamedTuple):
    """The reconstruction of m rows from a chunk of T releases: ``x = (s x̃ − g − Γe)/ρ``."""

    s: np.ndarray  # (m, T)
    g: np.ndarray  # (P, T)
    rho: np.ndarray  # (m, T)
    e: np.ndarray  # (k, m, T): k is 2 if the label is used beside a known coordinate, else 0
    labels: np.ndarray | None = None  # (m, T): inferred labels

    def differences(self) -> np.ndarray:
        """Return the coefficients of ``x̂ − x`` for x, g and the columns of Γ, (2 + k, m, T)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = [self.s - self.rho, -np.ones_like(self.s), *-self.e]
            return np.asarray(np.stack(terms) / self.rho)


class InformedAttack:
    """The base class of :class:`MarginAttack` and of the attack on softmax models.

    The class stores the model fitted on all records, and the position of a parameter whose column
    is constant.
    """

    def __init__(self, fit: FittedGLM, X: np.ndarray, label_known: bool) -> None:
        self.fit, self.X, self.label_known = fit, X, label_known
        self.objective = Objective.of(fit, X)
        self.column, self.value = known_coordinate(fit, X)
        self.squares = np.einsum("ij,ij->i", X, X)
        self.usual = float(np.sqrt(self.squares.mean()))  # a record's usual length

    def weights(self, rows: np.ndarray) -> np.ndarray:
        """Return the sample weights of the given rows, (m, 1)."""
        weight = self.fit.sample_weight
        return np.ones((len(rows), 1)) if weight is None else np.asarray(weight)[rows, None]


class MarginAttack(InformedAttack):
    """Reconstructs unknown rows from releases of a model with one margin, fitted on all rows.

    The release's noise weights the equations; if ``None``, the noise is assumed to be equal on all
    parameters and negligible.
    """

    outputs = 1

    def __init__(
        self, fit: FittedGLM, X: np.ndarray, noise: Noise | None, label_known: bool
    ) -> None:
        super().__init__(fit, X, label_known)
        self.family = cast(Family, fit.family)
        self.theta = np.asarray(fit.parameters)
        self.margins = self.objective.margins(self.theta)
        self.centre, self.spread = float(self.margins.mean()), float(self.margins.std())
        self.drawn = 0.0 if noise is None else self.spread**-2.0
        self.gain = self.precision = np.empty((len(self.theta), 0))
        if label_known and self.column is not None:
            self._weigh(noise)
        if not label_known and self.column is None and self.family.name != "bernoulli":
            raise InputError(
                f"Without an intercept, a constant column or the label, a {self.family.name} model "
                "reveals a record's direction but not its length; pass label='known'."
            )

    def reconstruct(self, theta: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows, (T, m, d), and labels, (T, m), reconstructed from releases ``theta``."""
        d, solved = self.X.shape[1], self.solve(theta, rows)
        B = solved.s.T[:, :, None] * self.picked(rows) - solved.g[:d].T[:, None, :]
        B -= np.einsum("pk,kmt->tmp", self.gain[:d], solved.e)
        with np.errstate(divide="ignore", invalid="ignore"):
            features = np.asarray(B / solved.rho.T[:, :, None])
        return features, self._labels(theta, rows, solved).T

    def errors(self, theta: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``‖x̂ − x‖²`` of every row and release, (m, T), and ``Σ_t (x̂ − x)``, (m, d).

        ``x̂ − x = ((s − ρ) x − g − Γe)/ρ`` is never stored: the squared length needs only inner
        products, and the sum one matrix product.
        """
        solved = self.solve(theta, rows)
        X, g, gain = self.picked(rows), solved.g[: self.X.shape[1]], self.gain[: self.X.shape[1]]
        of_x, of_g, *of_gain = solved.differences()
        along_x, along_g, gram = X @ gain, gain.T @ g, gain.T @ gain
        squared = of_x * (of_x * self.squares[rows, None] + 2 * of_g * (X @ g))
        squared += of_g**2 * np.einsum("pt,pt->t", g, g)
        offset = of_x.sum(axis=1)[:, None] * X + of_g @ g.T
        for j, share in enumerate(of_gain):
            others = sum(gram[j, k] * other for k, other in enumerate(of_gain))
            squared += share * (2 * of_x * along_x[:, j, None] + 2 * of_g * along_g[j] + others)
            offset += share.sum(axis=1)[:, None] * gain[:, j]
        return np.maximum(squared, 0.0), offset

    def slope_sums(self, theta: np.ndarray, rows: np.ndarray, noise: Gaussian) -> np.ndarray:
        """Return ``Σ_t (x̂ − x)ᵀs`` of the given rows over releases ``theta``, (m,).

        With the whitened Jacobian ``J̃`` and a release's whitened noise ``b̃``, the score ``s = J̃ᵀ
        b̃`` is the derivative of the release's log-density with respect to the record. The Jacobian
        of the mean of any estimate is therefore ``∂E x̂/∂x = E[(x̂ − x) sᵀ]``. The mean slope ``γ =
        Tr(∂E x̂/∂x)/d`` is 1 for an unbiased estimate and 0 for an estimate that ignores the
        record. By the Cauchy–Schwarz inequality, every estimate of a record with dFIL η̄ satisfies
        (Guo et al. 2022, theorem 2)::

            MSE per unknown  ≥  γ²/η̄² + ‖bias‖²/d
        """
        d = self.X.shape[1]
        solved = self.solve(theta, rows)
        X, g = self.picked(rows), solved.g[:d]
        drawn = (theta - self.theta).T
        information = noise.information(len(drawn))
        white = information @ drawn if information.ndim == 2 else (information * drawn.T).T
        v = np.linalg.solve(self.objective.hessian(self.margins), white)
        w, margin, y = self.theta[:d], self.margins[rows], self.fit.target[rows]
        weight = self.weights(rows)[:, 0]
        r = weight * self.family.slope(margin, y)
        a = weight * self.family.curvature(margin, y)
        along_v = X @ v[:d]
        whole = along_v + (v[d] if self.objective.intercept else 0.0)
        of_x, of_g, *of_gain = solved.differences()
        # x̂ − x, first along w and then along v.
        by_w = of_x * (X @ w)[:, None] + of_g * (w @ g)
        by_v = of_x * along_v + of_g * np.einsum("pt,pt->t", v[:d], g)
        for share, column in zip(of_gain, self.gain[:d].T, strict=True):
            by_w += share * (w @ column)
            by_v += share * (column @ v[:d])
        return np.asarray(-np.sum(a[:, None] * whole * by_w + r[:, None] * by_v, axis=1))

    def solve(self, theta: np.ndarray, rows: np.ndarray) -> Solved:
        """Solve for the given rows from releases ``theta``, (T, P)."""
        d = self.X.shape[1]
        M = self.X @ theta[:, :d].T
        if self.objective.intercept:
            M += theta[:, d]
        weights, y = self.weights(np.arange(len(self.X))), self.fit.target[:, None]
        S = _in_cache(lambda piece: weights[piece] * self.family.slope(M[piece], y[piece]), M.shape)
        g = np.empty((theta.shape[1], len(theta)))
        g[:d] = self.X.T @ S
        g[:d] += self.fit.ridge * theta[:, :d].T
        if self.objective.intercept:
            g[d] = S.sum(axis=0)
        if not self._is_all(rows):
            M, S = M[rows], S[rows]
        if self.column is None:
            return self._by_length(theta, rows, M, S, g)
        if not self.label_known:
            return Solved(S, g, S - g[self.column] / self.value, np.zeros((0, *S.shape)))
        solution = _in_cache(
            lambda piece: self._by_both(theta, rows[piece], M[piece], S[piece], g), M.shape
        )
        return Solved(S, g, solution[:, 0], np.moveaxis(solution[:, 1:], 1, 0))

    def _labels(self, theta: np.ndarray, rows: np.ndarray, solved: Solved) -> np.ndarray:
        """Return the labels of the reconstructed rows, (m, T), whether known or inferred."""
        if solved.labels is not None:
            return solved.labels
        if self.label_known:
            return np.asarray(self.fit.target[rows, None] + np.zeros_like(solved.rho))
        d = self.X.shape[1]
        offset = theta[:, self.column] * self.value
        M = self.picked(rows) @ theta[:, :d].T + (theta[:, d] if self.objective.intercept else 0.0)
        with np.errstate(all="ignore"):
            margin = self._along(theta, M, solved.s, solved.g) / solved.rho + offset
            wanted = solved.rho / self.weights(rows)
            label = np.full_like(margin, float(self.fit.target.mean()))
            for _ in range(20):  # a single step if the slope is linear in the label
                gap = self.family.slope(margin, label) - wanted
                label = label - gap / self.family.label_slope(margin, label)
            close = np.abs(self.family.slope(margin, label) - wanted) <= 1e-9 * (1 + np.abs(wanted))
        return np.where(close, label, np.nan)

    def _along(self, theta: np.ndarray, M: np.ndarray, S: np.ndarray, g: np.ndarray) -> np.ndarray:
        """Return ``θ_FᵀB_F``, (m, T)."""
        inside = np.einsum("tp,pt->t", theta, g)
        if self.column is None:
            return np.asarray(S * M - inside)
        offset = theta[:, self.column] * self.value
        inside -= theta[:, self.column] * g[self.column]
        return np.asarray(S * (M - offset) - inside)

    def _weigh(self, noise: Noise | None) -> None:
        """Prepare ``K⁻¹``, the precision of the two equations, and ``Γ``, (P, 2)."""
        H = self.objective.hessian(self.margins)
        others = np.array(self.theta)
        others[self.column] = 0.0
        pair = np.stack([np.eye(len(H))[self.column], others], axis=1)
        towards = H @ covariance_times(noise, H @ pair)
        both = pair.T @ towards
        size = np.sqrt(np.diagonal(both))
        size = np.where(size > 0, size, 1.0)  # zero parameters give no equation
        self.precision = np.linalg.pinv(both / np.outer(size, size), hermitian=True)
        self.precision /= np.outer(size, size)
        self.gain = towards @ self.precision

    def _by_both(
        self, theta: np.ndarray, rows: np.ndarray, M: np.ndarray, S: np.ndarray, g: np.ndarray
    ) -> np.ndarray:
        """Return ρ and both parts of e, (m, 3, T)."""
        assert self.column is not None  # noqa: S101 - told to the type checker
        c, (p00, p01, p11) = self.value, (self.precision[i] for i in ((0, 0), (0, 1), (1, 1)))
        y, weight = self.fit.target[rows, None], self.weights(rows)
        offset = theta[:, self.column] * c
        first, second = S * c - g[self.column], self._along(theta, M, S, g)
        # 33 margins are tried first, to six standard deviations either side of the records' mean;
        # the known coordinate alone comes last: exact without noise.
        grid, step = np.linspace(
            self.centre - 6 * self.spread, self.centre + 6 * self.spread, 33, retstep=True
        )
        best = np.full_like(first, np.inf)
        margin = np.zeros_like(first)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.where(first != 0, second * c / first + offset, self.centre)
            for tried in (*grid[:, None, None], ratio):
                rho = weight * self.family.slope(tried, y)
                e0, e1 = first - c * rho, second - rho * (tried - offset)
                cost = e0 * (p00 * e0 + 2 * p01 * e1) + p11 * e1 * e1
                cost += self.drawn * (tried - self.centre) ** 2
                better = cost < best
                best, margin = np.where(better, cost, best), np.where(better, tried, margin)
        below, above = margin - step, margin + step
        for _ in range(12):  # halvings alone would gain as many bits
            rho = weight * self.family.slope(margin, y)
            bend = weight * self.family.curvature(margin, y)
            e0, e1 = first - c * rho, second - rho * (margin - offset)
            d0, d1 = c * bend, bend * (margin - offset) + rho
            top = d0 * (p00 * e0 + p01 * e1) + d1 * (p01 * e0 + p11 * e1)
            top -= self.drawn * (margin - self.centre)
            bottom = d0 * (p00 * d0 + 2 * p01 * d1) + p11 * d1 * d1 + self.drawn
            # Between neighbours on the grid: a Gauss–Newton step, or bisection where it leaves
            # them.
            below, above = np.where(top > 0, margin, below), np.where(top > 0, above, margin)
            with np.errstate(divide="ignore", invalid="ignore"):
                nearer = margin + top / bottom
            inside = (nearer >= below) & (nearer <= above)
            margin = np.where(inside, nearer, (below + above) / 2)
        rho = weight * self.family.slope(margin, y)
        return np.stack([rho, first - c * rho, second - rho * (margin - offset)], axis=1)

    def _by_length(
        self, theta: np.ndarray, rows: np.ndarray, M: np.ndarray, S: np.ndarray, g: np.ndarray
    ) -> Solved:
        along = self._along(theta, M, S, g)
        inside = self.picked(rows) @ g[: self.X.shape[1]]
        size = S * S * self.squares[rows, None] - 2 * S * inside + np.einsum("pt,pt->t", g, g)
        size = np.sqrt(np.maximum(size, 1e-300))
        weight = self.weights(rows)
        if self.label_known:
            y = self.fit.target[rows, None]
            rho, _ = self._length(along / size, size, y, weight)
            return Solved(S, g, rho, np.zeros((0, *S.shape)))
        # There are two classes: try both, and keep the one most like the other records.
        mean = self.X.mean(axis=0)
        towards = S * (self.picked(rows) @ mean)[:, None] - mean @ g[: self.X.shape[1]]
        cosine = towards / (size * np.linalg.norm(mean))
        options = []
        for y in (0.0, 1.0):
            rho, off = self._length(along / size, size, np.full((1, 1), y), weight)
            options.append((rho, off**2 + 2 - 2 * np.sign(rho) * cosine))
        second = options[1][1] < options[0][1]
        rho = np.where(second, options[1][0], options[0][0])
        return Solved(S, g, rho, np.zeros((0, *S.shape)), second.astype(float))

    def _length(
        self, slope: np.ndarray, size: np.ndarray, y: np.ndarray, weight: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return ρ, (m, T), and the absolute log-ratio of the length and the typical length."""

        def gap(length: np.ndarray, sign: np.ndarray) -> np.ndarray:
            margin = sign * length * slope
            return np.asarray(weight * self.family.slope(margin, y) * length / size - sign)

        length, sign = nearest_length(gap, size.shape, self.usual, (1.0, -1.0))
        return sign * size / length, np.abs(np.log(length / self.usual))

    def picked(self, rows: np.ndarray) -> np.ndarray:
        """Return the given rows of the table."""
        return self.X if self._is_all(rows) else self.X[rows]

    def _is_all(self, rows: np.ndarray) -> bool:
        """Return whether the given rows are all rows in order, so that no copy is needed."""
        return len(rows) == len(self.X) and bool(np.all(rows == np.arange(len(rows))))


def known_coordinate(fit: FittedGLM, X: np.ndarray) -> tuple[int | None, float]:
    """Return the position of a parameter whose column is constant, and that column's value.

    The column is the intercept's, or the first in the table that is constant and not zero. The
    position is ``None`` if there is no such column.
    """
    if fit.intercept is not None:
        return X.shape[1], 1.0
    if len(X) > 1:
        for j in np.flatnonzero(X[0] != 0):
            if np.all(X[:, j] == X[0, j]):
                return int(j), float(X[0, j])
    return None, 0.0


def nearest_length(
    gap: Gap, shape: tuple[int, ...], usual: float, signs: Sequence[float] = (1.0,)
) -> tuple[np.ndarray, np.ndarray]:
    """Return the length and sign at which ``gap(length, sign)`` is zero, for many records at once.

    Lengths from a fiftieth to fifty times the typical length ``usual`` are searched. Of several
    roots, the one whose length is nearest the typical length (in ratio) is returned; without a
    root, the point with the smallest gap. The gap must be continuous. ``signs`` are the signs to
    try.
    """
    off, smallest = np.full(shape, np.inf), np.full(shape, np.inf)
    low, high, side = (np.full(shape, value) for value in (usual, usual, signs[0]))
    ratios = np.geomspace(0.02, 50.0, 121)  # neighbours 7 % apart
    with np.errstate(over="ignore", invalid="ignore"):
        for sign in signs:
            signed = np.full(shape, sign)
            before = gap(np.full(shape, usual * ratios[0]), signed)
            for start, stop in pairwise(ratios):
                here = gap(np.full(shape, usual * stop), signed)
                distance = abs(np.log(start * stop)) / 2
                root = (before * here <= 0) & (distance < off)
                # The best without a root, kept until one turns up.
                closest = ~np.isfinite(off) & ~root & (np.abs(here) < smallest)
                smallest = np.where(closest, np.abs(here), smallest)
                off = np.where(root, distance, off)
                low = np.where(root, usual * start, np.where(closest, usual * stop, low))
                high = np.where(root | closest, usual * stop, high)
                side = np.where(root | closest, signed, side)
                before = here
        at_low = gap(low, side)
        for _ in range(48):  # from 7 % to rounding
            middle = np.sqrt(low * high)
            short = gap(middle, side) * at_low > 0
            low, high = np.where(short, middle, low), np.where(short, high, middle)
    return np.sqrt(low * high), side


def covariance_times(noise: Noise | None, vectors: np.ndarray) -> np.ndarray:
    """Return ``Σ`` times the vectors, (P, k); without known noise, Σ is the identity.

    Σ is the covariance of the noise. Σ is computed from the noise's own parameters, because Σ
    equals the inverse of the noise's Fisher information only for Gaussian noise.
    """
    if isinstance(noise, Gaussian):
        sigma = np.asarray(noise.sigma)
        if sigma.ndim == 2:
            return np.asarray(sigma @ vectors)
        return np.asarray(sigma[..., None] ** 2 * vectors)
    if isinstance(noise, Laplace):
        return np.asarray(2 * np.asarray(noise.scale)[..., None] ** 2 * vectors)
    return vectors


def _in_cache(function: Callable[[slice], np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Apply an elementwise function to the rows of a matrix, in blocks that fit into the cache."""
    return np.asarray(by_rows(function, shape[0], shape[1], chunk=1 << 15))

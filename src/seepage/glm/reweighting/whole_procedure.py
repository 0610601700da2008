"""The leakage of reweighting as a whole: derivatives through the minimiser and the weights at once.

Where the rounds have settled, the weights are a function of the parameters θ and the Hessian
``H = Σ ω a x̃x̃ᵀ + nλE`` alone. With ``eᵢ(θ, H)`` the leakage of record i per unit of weight::

    ωᵢ = ω⁰ᵢ f_k,   f_k = c t_k / D_k,   D_k = the mean of ω⁰ᵢ eᵢ over the records of unit k

with c given by the sum of the weights, and f_k constant where it is at a limit. So the procedure is
an implicit system in ``s = (θ, H)``, of P + P(P+1)/2 unknowns however many records there are::

    G₁ = Σ ωᵢ(s) rᵢ x̃ᵢ + nλEθ = 0,      G₂ = H − Σ ωᵢ(s) aᵢ x̃ᵢx̃ᵢᵀ − nλE = 0

and a record zᵢ moves the release by ``dθ/dzᵢ = −[I 0] (∂G/∂s)⁻¹ ∂G/∂zᵢ``: P rows of the inverse are
enough for all records. Not in the papers: 001 takes the weights as constants.

Per unit of weight, a record leaks ``eᵢ = ‖A Mᵢ‖₂`` with ``A = Φ^½ H⁻¹`` and
``Mᵢ = [a x̃ w_Vᵀ + r E_V, b x̃]``: V are the unknown features, and the label's column is there where
the label is unknown. With the leading singular vectors u and v of ``A M``, with ``g = Aᵀu`` and
``h = H⁻¹Mv``, first-order perturbation of a singular value gives::

    de = uᵀ d(A M) v = −gᵀ dH h + gᵀ dM v

Third derivatives of the loss enter through dM.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from seepage.core.jacobian import dense_largest
from seepage.core.noise import Noise
from seepage.core.unknowns import Unknowns
from seepage.errors import InputError
from seepage.glm.fitting.objective import FittedGLM, hessian
from seepage.glm.jacobian.optimum import whitened_inverse
from seepage.glm.losses import Categorical
from seepage.support.chunks import row_slices
from seepage.tables.source import as_numpy

if TYPE_CHECKING:
    from seepage.glm.reweighting.reweight import ReweightRound, ReweightRule

Rows = slice | np.ndarray

_LARGEST_SYSTEM = 12_000  # unknowns of the implicit system: its matrix then takes a gigabyte
_SETTLED = 1e-3  # the relative change of the weights up to which they count as settled
_NOTHING = 1e-12  # of the largest leakage: below it the leakage has a kink rather than a slope
_TIED = 1e-9  # relative gap of the two leading singular values below which e has no derivative


def procedure_leakage(
    fit: FittedGLM,
    X: np.ndarray,
    rule: ReweightRule,
    last: ReweightRound,
    unknowns: Unknowns,
    noise: Noise,
    *,
    rows: np.ndarray,
    release_noise: Noise,
) -> np.ndarray:
    """Return ``‖Φ^½ dθ/dzᵢ‖₂`` of the given records, the choice of the weights included.

    ``fit`` is the last fit on the table ``X``, (n, d), and ``last`` the step at which the rule of
    the weights has settled; the leakage that drives the weights is about ``unknowns`` and was
    measured at ``noise``. Φ is the information of the release's noise.
    """
    _check(fit, last)
    fit = replace(
        fit,
        coef=as_numpy(fit.coef),
        intercept=None if fit.intercept is None else as_numpy(fit.intercept),
        target=as_numpy(fit.target),
    )
    family, width = fit.family, X.shape[1]
    curvature = family.curvature(fit.margins(X), fit.target)
    H = hessian(X, last.weights * curvature, ridge=fit.ridge, intercept=fit.intercept is not None)
    maker = SlopeMaker(fit, X, H, unknowns, noise)
    system = _System.at(maker, rule, last)
    adjoint = system.adjoint()
    root = whitened_inverse(np.eye(len(H)), release_noise)
    squared = np.empty(len(rows))
    for piece in row_slices(len(rows), width * width, what="rows"):
        J = root @ system.jacobians(adjoint, rows[piece])
        transposed = np.matrix_transpose(J)
        short = transposed @ J if J.shape[2] < J.shape[1] else J @ transposed
        squared[piece] = dense_largest(short)
    return np.sqrt(squared)


def _check(fit: FittedGLM, last: ReweightRound) -> None:
    """Raise unless the derivative through the weights exists and can be afforded."""
    if last.change > _SETTLED:
        raise InputError(
            f"The weights have not settled (the next round would change them by {last.change:.1g},"
            " relatively), so there is no fixed point to differentiate; reweight with more rounds."
        )
    if isinstance(fit.family, Categorical):
        raise InputError(
            "The leakage of the whole procedure is known for models with one output only; for "
            "softmax there is leakage(), which takes the weights as constants."
        )
    third = ("curvature_slope", "curvature_label_slope", "label_curvature")
    missing = [name for name in third if getattr(fit.family, name) is None]
    if missing:
        raise InputError(
            "The leakage of the whole procedure takes third derivatives of the loss: the family "
            f"{fit.family.name!r} does not state {', '.join(missing)}."
        )
    size = int(fit.parameters.shape[0])
    if size + size * (size + 1) // 2 > _LARGEST_SYSTEM:
        raise InputError(
            f"The leakage of the whole procedure takes a system of about d²/2 equations, which is "
            f"too large for {size} parameters; reduce the columns first, to 150 or fewer."
        )


@dataclass(frozen=True, eq=False)
class _System:
    """The system in s, linearised where the rounds have settled.

    ``F_k = ∂G/∂f_k`` is what a unit's factor does to the system, and ``F̄`` the mean of it over the
    units whose factor moves, by weight: what the normalisation does.
    """

    maker: SlopeMaker
    rule: ReweightRule
    weights: np.ndarray
    scale: np.ndarray  # ω⁰ f_k / (m_k D_k) of every record; zero where the factor cannot move
    mean_effect: np.ndarray  # F̄, (S,)
    effects: np.ndarray | None  # F_k, (units, S); None where every record is a unit of its own

    @classmethod
    def at(cls, maker: SlopeMaker, rule: ReweightRule, last: ReweightRound) -> _System:
        mass, unit, n = rule.mass(), rule.unit, len(maker.X)
        moves = (last.factors > rule.low) & (last.factors < rule.high) & (mass > 0)
        counted = moves[unit] & (rule.start > 0)
        silent = counted & (last.eta <= _NOTHING * np.max(last.eta))
        if np.any(silent):
            raise InputError(
                f"Row {int(np.argmax(silent))} leaks nothing whatever its weight, so the weights "
                "are no smooth function of the data there; leave such rows out."
            )
        factors = np.where(moves, last.factors, 0.0)
        P = len(maker.H)
        total = np.zeros(P + P * (P + 1) // 2)
        effects = None if len(mass) == n else np.zeros((len(mass), len(total)))
        for rows in _pieces(maker):
            effect = _effect(maker, rule, rows)
            total += factors[unit[rows]] @ effect
            if effects is not None:
                np.add.at(effects, unit[rows], effect)
        # Σ W_k f_k vanishes only where no factor moves, and then nothing is multiplied by F̄.
        mean = total / max(float(np.sum(mass * factors)), np.finfo(float).tiny)
        # D_k = η̄_k / f_k, because the records of a unit leak ω⁰ᵢ f_k eᵢ.
        D = np.where(moves, rule.means(last.eta) / last.factors, 1.0)
        scale = rule.start * (factors / (D * np.maximum(rule.counts(), 1.0)))[unit]
        return cls(maker, rule, last.weights, scale, mean, effects)

    def adjoint(self) -> np.ndarray:
        """Return the first P rows of ``(∂G/∂s)⁻¹``, (P, S)."""
        P, S = len(self.maker.H), len(self.mean_effect)
        L = np.eye(S)
        L[:P, :P] = self.maker.H
        for rows in _pieces(self.maker):
            t = self._slopes(rows)
            bent = (self.weights[rows] * t.a_m)[:, None] * t.design
            L[P:, :P] -= packed(t.design).T @ bent
            L += self._by_leakage(rows).T @ np.hstack([t.by_theta, t.by_hessian])
        return np.asarray(np.linalg.solve(L.T, np.eye(S, P)).T)

    def jacobians(self, adjoint: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return ``dθ/dzᵢ`` of the records, (m, P, q)."""
        P, t, V = len(self.maker.H), self._slopes(rows), self.maker.unknowns
        first, second = adjoint[:, :P], unpacked_form(adjoint[:, P:], P)
        along = np.reshape(t.design @ np.reshape(second, (P * P, P)).T, (-1, P, P))
        square = np.vecdot(along, t.design[:, None, :])
        # What the record's own data do to H at its weight: to its curvature, and to x̃x̃ᵀ.
        bent = square[:, :, None] * (t.a_m[:, None] * V.of(self.maker.fit.coef))[:, None, :]
        bent += 2 * t.a[:, None, None] * (along @ self.maker.selection)
        if V.label:
            bent = np.concatenate([bent, (square * t.a_y[:, None])[:, :, None]], axis=2)
        direct = self.weights[rows, None, None] * (first @ t.M - bent)
        through_weights = self._by_leakage(rows) @ adjoint.T
        return np.asarray(-direct - through_weights[:, :, None] * t.own[:, None, :])

    def _slopes(self, rows: Rows) -> RecordSlopes:
        slopes = self.maker.slopes(rows)
        if np.any(slopes.tied & (self.scale[rows] > 0)):
            raise InputError(
                "Some record leaks equally much in two directions, where its leakage has no "
                "derivative; the whole procedure cannot be measured for these data."
            )
        return slopes

    def _by_leakage(self, rows: Rows) -> np.ndarray:
        """Return ``∂G/∂eᵢ = ω⁰ᵢ f_k (W_k F̄ − F_k) / (m_k D_k)`` of the records, (m, S).

        ``W_k`` is the sum of the unit's first weights, and ``m_k`` counts its records.
        """
        unit = self.rule.unit[rows]
        effect = (
            _effect(self.maker, self.rule, rows) if self.effects is None else self.effects[unit]
        )
        mass = self.rule.mass()[unit]
        return np.asarray(self.scale[rows, None] * (mass[:, None] * self.mean_effect - effect))


def _effect(maker: SlopeMaker, rule: ReweightRule, rows: Rows) -> np.ndarray:
    """Return the records' share of ``F_k``: ``ω⁰ [r x̃, −a x̃x̃ᵀ]``, packed, (m, S)."""
    r, a, _ = maker.derivatives(rows)
    design = maker.design(rows)
    both = np.hstack([r[:, None] * design, -a[:, None] * packed(design)])
    return np.asarray(rule.start[rows, None] * both)


def _pieces(maker: SlopeMaker) -> Iterator[slice]:
    return row_slices(len(maker.X), len(maker.H) ** 2, what="rows")


class RecordSlopes(NamedTuple):
    """What some records contribute, with the derivatives of their leakage per unit of weight."""

    design: np.ndarray  # x̃, (m, P)
    a: np.ndarray
    a_m: np.ndarray  # ∂a/∂m
    a_y: np.ndarray  # ∂a/∂y
    M: np.ndarray  # (m, P, q)
    tied: np.ndarray  # whether the leading singular value is not alone, so that the rest is void
    own: np.ndarray  # ∂e/∂z by the record's own unknowns, (m, q)
    by_theta: np.ndarray  # ∂e/∂θ, (m, P)
    by_hessian: np.ndarray  # ∂e/∂H, packed, (m, P(P+1)/2)


@dataclass(frozen=True, eq=False)
class SlopeMaker:
    """Makes the :class:`RecordSlopes` of records of a table."""

    # A model with one output and its table, as NumPy arrays
    fit: FittedGLM
    X: np.ndarray
    H: np.ndarray  # the Hessian of its objective, (P, P)
    # What the leakage is about, and the noise it is measured at
    unknowns: Unknowns
    noise: Noise

    @property
    def selection(self) -> np.ndarray:
        """``E_V``, (P, t): how the unknown features enter the design."""
        identity = np.eye(len(self.H), self.X.shape[1])
        return np.asarray(self.unknowns.of(identity, axis=1))

    def design(self, rows: slice | np.ndarray) -> np.ndarray:
        """Return ``x̃`` of the records, (m, P)."""
        X = self.X[rows, :]
        return X if self.fit.intercept is None else np.hstack([X, np.ones((len(X), 1))])

    def derivatives(self, rows: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return r, a and b of the records, (m,) each."""
        family: Any = self.fit.family
        at = self.fit.margins(self.X[rows, :]), self.fit.target[rows]
        return family.slope(*at), family.curvature(*at), family.label_slope(*at)

    def slopes(self, rows: slice | np.ndarray) -> RecordSlopes:
        """Return what the records contribute."""
        family: Any = self.fit.family
        at = self.fit.margins(self.X[rows, :]), self.fit.target[rows]
        a_m, a_y, b_y = (
            f(*at)
            for f in (family.curvature_slope, family.curvature_label_slope, family.label_curvature)
        )
        r, a, b = self.derivatives(rows)
        design, E, w = self.design(rows), self.selection, self.unknowns.of(self.fit.coef)
        label = self.unknowns.label
        M = (a[:, None] * design)[:, :, None] * w + r[:, None, None] * E
        if label:
            M = np.concatenate([M, (b[:, None] * design)[:, :, None]], axis=2)
        A = whitened_inverse(self.H, self.noise)
        u, v, tied = _leading(A @ M)
        g, h = u @ A, np.linalg.solve(self.H, (M @ v[:, :, None])[:, :, 0].T).T
        v_x, v_y = v[:, : len(w)], v[:, -1] if label else np.zeros(len(v))
        g_x, g_V = np.vecdot(g, design), g @ E
        wv, gv = v_x @ w, np.vecdot(g_V, v_x)
        # gᵀ dM v by a change of the margin alone, of the label alone, and of x̃ where it stands in M
        by_margin = (a_m * wv + a_y * v_y) * g_x + a * gv
        by_label = (a_y * wv + b_y * v_y) * g_x + b * gv
        own = by_margin[:, None] * w + (a * wv + b * v_y)[:, None] * g_V
        if label:
            own = np.concatenate([own, by_label[:, None]], axis=1)
        by_theta = by_margin[:, None] * design + (a * g_x)[:, None] * (v_x @ E.T)
        return RecordSlopes(design, a, a_m, a_y, M, tied, own, by_theta, -packed_form(g, h))


def _leading(B: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the leading singular vectors of each matrix, (m, P) and (m, q), and where they tie."""
    tall = B.shape[1] > B.shape[2]
    transposed = np.matrix_transpose(B)
    # The gram of the shorter side: of the leading vectors it costs no digits.
    squares, vectors = np.linalg.eigh(transposed @ B if tall else B @ transposed)
    near = vectors[:, :, -1]
    far = ((B if tall else transposed) @ near[:, :, None])[:, :, 0]
    length = np.sqrt(np.vecdot(far, far))
    far = far / np.where(length > 0, length, 1.0)[:, None]
    second = squares[:, -2] if squares.shape[1] > 1 else np.zeros(len(B))
    tied = squares[:, -1] - second <= 2 * _TIED * squares[:, -1]
    return (far, near, tied) if tall else (near, far, tied)


def packed(p: np.ndarray) -> np.ndarray:
    """Return the upper triangles of ``p pᵀ``, row by row, (m, P(P+1)/2)."""
    i, j = np.triu_indices(p.shape[1])
    return np.asarray(p[:, i] * p[:, j])


def packed_form(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return, row by row, what gives ``pᵀSq`` when multiplied by a packed symmetric S."""
    i, j = np.triu_indices(p.shape[1])
    once = p[:, i] * q[:, j]
    return np.asarray(np.where(i == j, once, once + p[:, j] * q[:, i]))


def unpacked_form(forms: np.ndarray, P: int) -> np.ndarray:
    """Return symmetric matrices F with ``Σ F∘S`` = the packed form's product with a packed S."""
    i, j = np.triu_indices(P)
    out = np.zeros((len(forms), P, P))
    out[:, i, j] = np.where(i == j, forms, forms / 2)
    out[:, j, i] = out[:, i, j]
    return out

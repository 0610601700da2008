"""The leakage of reweighting as a whole: derivatives through the minimiser and the weights at once.

Where the rounds have settled, the weights are a function of the parameters θ and the Hessian
``H = Σ ω a x̃x̃ᵀ + nλE`` alone. With ``eᵢ(θ, H)`` the leakage of row i per unit of weight
(:mod:`seepage.glm.reweighting.slopes`)::

    ωᵢ = ω⁰ᵢ f_k,   f_k = c t_k / D_k,   D_k = the mean of ω⁰ᵢ eᵢ over the rows of unit k

with c given by the sum of the weights, and f_k constant where it is at a limit. So the procedure is
an implicit system in ``s = (θ, H)``, of P + P(P+1)/2 unknowns however many rows there are::

    G₁ = Σ ωᵢ(s) rᵢ x̃ᵢ + nλEθ = 0,      G₂ = H − Σ ωᵢ(s) aᵢ x̃ᵢx̃ᵢᵀ − nλE = 0

and a row zᵢ moves the release by ``dθ/dzᵢ = −[I 0] (∂G/∂s)⁻¹ ∂G/∂zᵢ``: P rows of the inverse are
enough for all rows of the table. Not in the papers: 001 takes the weights as constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from seepage.core.noise import Noise
from seepage.core.spectra import dense_largest
from seepage.core.unknowns import Unknowns
from seepage.errors import InputError
from seepage.glm.fitting.curvature import hessian
from seepage.glm.fitting.fitted import FittedGLM
from seepage.glm.jacobian.assembly import whitened_inverse
from seepage.glm.losses.categorical import Categorical
from seepage.glm.reweighting.rule import ReweightRule, Step
from seepage.glm.reweighting.slopes import (
    RowSlopes,
    SlopeMaker,
    check_third_derivatives,
    packed,
    unpacked_form,
)
from seepage.support.chunks import row_slices
from seepage.tables.frames import as_numpy

Rows = slice | np.ndarray

_LARGEST_SYSTEM = 12_000  # unknowns of the implicit system: its matrix then takes a gigabyte
_SETTLED = 1e-3  # the relative change of the weights up to which they count as settled
_NOTHING = 1e-12  # of the largest leakage: below it the leakage has a kink rather than a slope


def procedure_leakage(
    fit: FittedGLM,
    X: np.ndarray,
    rule: ReweightRule,
    last: Step,
    unknowns: Unknowns,
    noise: Noise,
    *,
    rows: np.ndarray,
    release_noise: Noise,
) -> np.ndarray:
    """Return ``‖Φ^½ dθ/dzᵢ‖₂`` of the given rows, the choice of the weights included.

    Parameters
    ----------
    fit, X
        The last fit and the table, (n, d).
    rule, last
        The rule of the weights and the step it has settled at.
    unknowns, noise
        What the leakage that drives the weights is about, and the noise it was measured at.
    rows
        Positions of the rows asked about.
    release_noise
        The noise of the release, whose information is Φ.
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


def _check(fit: FittedGLM, last: Step) -> None:
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
    check_third_derivatives(fit.family)
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
    scale: np.ndarray  # ω⁰ f_k / (m_k D_k) of every row; zero where the factor cannot move
    mean_effect: np.ndarray  # F̄, (S,)
    effects: np.ndarray | None  # F_k, (units, S); None where every row is a unit of its own

    @classmethod
    def at(cls, maker: SlopeMaker, rule: ReweightRule, last: Step) -> _System:
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
        # D_k = η̄_k / f_k, because the rows of a unit leak ω⁰ᵢ f_k eᵢ.
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
            L += self._by_leakage(t, rows).T @ np.hstack([t.by_theta, t.by_hessian])
        return np.asarray(np.linalg.solve(L.T, np.eye(S, P)).T)

    def jacobians(self, adjoint: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return ``dθ/dzᵢ`` of the rows, (m, P, q)."""
        P, t, V = len(self.maker.H), self._slopes(rows), self.maker.unknowns
        first, second = adjoint[:, :P], unpacked_form(adjoint[:, P:], P)
        along = np.reshape(t.design @ np.reshape(second, (P * P, P)).T, (-1, P, P))
        square = np.vecdot(along, t.design[:, None, :])
        # What the row's own data do to H at its weight: to its curvature, and to x̃x̃ᵀ.
        bent = square[:, :, None] * (t.a_m[:, None] * V.of(self.maker.fit.coef))[:, None, :]
        bent += 2 * t.a[:, None, None] * (along @ self.maker.selection)
        if V.label:
            bent = np.concatenate([bent, (square * t.a_y[:, None])[:, :, None]], axis=2)
        direct = self.weights[rows, None, None] * (first @ t.M - bent)
        through_weights = self._by_leakage(t, rows) @ adjoint.T
        return np.asarray(-direct - through_weights[:, :, None] * t.own[:, None, :])

    def _slopes(self, rows: Rows) -> RowSlopes:
        slopes = self.maker.slopes(rows)
        if np.any(slopes.tied & (self.scale[rows] > 0)):
            raise InputError(
                "Some row leaks equally much in two directions, where its leakage has no "
                "derivative; the whole procedure cannot be measured for these data."
            )
        return slopes

    def _by_leakage(self, t: RowSlopes, rows: Rows) -> np.ndarray:
        """Return ``∂G/∂eᵢ = ω⁰ᵢ f_k (W_k F̄ − F_k) / (m_k D_k)`` of the rows, (m, S).

        ``W_k`` is the sum of the unit's first weights, and ``m_k`` counts its rows.
        """
        unit = self.rule.unit[rows]
        effect = (
            _effect(self.maker, self.rule, rows) if self.effects is None else self.effects[unit]
        )
        mass = self.rule.mass()[unit]
        return np.asarray(self.scale[rows, None] * (mass[:, None] * self.mean_effect - effect))


def _effect(maker: SlopeMaker, rule: ReweightRule, rows: Rows) -> np.ndarray:
    """Return the rows' share of ``F_k``: ``ω⁰ [r x̃, −a x̃x̃ᵀ]``, packed, (m, S)."""
    r, a, _ = maker.derivatives(rows)
    design = maker.design(rows)
    both = np.hstack([r[:, None] * design, -a[:, None] * packed(design)])
    return np.asarray(rule.start[rows, None] * both)


def _pieces(maker: SlopeMaker) -> Iterator[slice]:
    return row_slices(len(maker.X), len(maker.H) ** 2, what="rows")

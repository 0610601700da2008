"""The certificate: a bound on the distance between a refit and its centre, if ``|ℓ‴| ≤ M ℓ″``.

Let ``t_j = x̃_jᵀδ`` be the shift of the other records' margins when the parameters change by δ, and
``ε_j = ω_j[ℓ'(m_j + t_j) − ℓ'(m_j) − a_j t_j]`` the error of their slopes at fixed curvature. If
``|ℓ‴| ≤ M ℓ″`` (Bach 2010), ``|ε_j|`` is at most ``ω_j a_j |t_j| κ(M|t_j|)``, ``κ(u) = (eᵘ − 1 −
u)/u``. Let ``E = (Σ ε_j²/(ω_j a_j))^½`` be the norm of ε. The norm of ``X̃ᵀε`` with respect to
``H₀⁻¹`` is at most E. For every ε of norm E, the changed parameters are within E of the centre in
the norm of ``H₀``. Let ``S`` be the largest ``|t_j|`` at the centre, ``N`` the norm of ``t`` at the
centre, ``Q⁴ = Σ ω_j a_j t_j⁴`` and ``R = max_j ‖x̃_j‖_{H₀⁻¹}``. The ε of a change within E of the
centre has norm at most::

    f(E) = κ(M (S + R E)) (N + E),     or   M ψ(M (S + R E)) (Q + r E)²,   ψ(u) = κ(u)/u

Here ``r`` is the largest Q of a change of norm 1. If ``f(E) ≤ E``, the map from ε to the ε of the
resulting change maps the ball of radius E into itself, and has a fixed point in the ball by
Brouwer's theorem. This fixed point corresponds to the unique solution of the refit's full (not
linearised) stationarity equation. So the refit is within ``E`` of the centre. In units of the
noise, the refit is within ``(‖Φ^½H⁻¹X̃ᵀD^½‖ + …)E`` of the centre, where D contains the curvatures
``ω_j a_j``; the omitted terms are due to the changed record itself. The length of the change has a
tighter bound: to first order, only the error along the change matters, ``‖D^½X̃H⁻¹Φδ‖/‖Φ^½δ‖`` per
unit of E.

**Several outputs.** Softmax has K margins for each record, of which only the differences matter.
Slopes are then vectors, curvatures ``a_j`` are matrices, and ``ω_j t_jᵀa_jt_j`` replaces ``ω_j a_j
t_j²``. Along a path, curvatures change by a factor of at most ``e^±u``, where u is the span of the
shift (its largest entry minus its smallest). So ``|t_j|`` is the span in S and R, and ``Q⁴ = Σ ω_j
span(t_j)² t_jᵀa_jt_j``. Since Q is then not a norm, two terms replace the mixed term ``2 Q r``.

**Cost.** ``S ≤ R ‖δ‖_{H₀}`` requires no further computation. Let ``q_j = x̃_jᵀH⁻¹x̃_j``. By the
Cauchy–Schwarz inequality, ``Q⁴ ≤ ‖δ‖_H² Σ ω_j a_j q_j t_j²``. The sum is a quadratic form in δ that
requires two products over all records; the error along the change has the same form. Computing S
and Q exactly requires a pass over all pairs of records. If there is no certificate (for example,
for flipped labels with a weak penalty), convexity alone bounds the change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seepage.core.finite_changes import (
    Alternatives,
    Moves,
)
from seepage.glm.changes.centres import Centres, quadratic
from seepage.glm.changes.local_model import LocalModel
from seepage.glm.changes.outputs import JointOutputs
from seepage.glm.changes.solver import gram_of
from seepage.support.chunks import row_slices
from seepage.support.double_double import EPS


@dataclass(frozen=True)
class Shifts:
    """Upper bounds on the margin shifts of the other records at a centre, of shape (m, K) each."""

    largest: np.ndarray  # S
    fourth: Any = None  # Q
    weighed: Any = None  # W, where Q⁴ ≤ ‖δ‖_H² W²
    along: Any = None  # the effect of an error along the move, for each unit of E


def free_shifts(model: LocalModel, rows: np.ndarray, centres: Centres) -> Shifts:
    """Return the bound on S that requires no further computation."""
    return Shifts(_reach(model, centres) * centres.energy)


def quadratic_shifts(model: LocalModel, rows: np.ndarray, centres: Centres) -> Shifts:
    """Return bounds on S and Q, and on the effect of errors, from quadratic forms.

    ``Q⁴ ≤ ‖δ‖_H² W²`` with ``W² = Σ ω_j q_j t_jᵀa_jt_j``.
    """
    solver, weighed, along = model.solver, [], []
    C = solver.solved_columns(centres.columns)
    seen_C, quartic = model.seen(C), model.largest_shifts.quartic
    for piece in row_slices(len(rows), 3 * rows.shape[1] * model.outputs.count * model.theta.size):
        some, V = centres.coefs[piece], solver.solved(rows[piece])
        weighed.append(quadratic(some, gram_of(V, C, quartic)))
        along.append(quadratic(some, gram_of(model.seen(V), seen_C, model.error_effect)))
    rest = np.concatenate(weighed) - centres.widest[:, None] * centres.own_energy
    rest, size = np.maximum(rest, 0.0), centres.size
    share = np.sqrt(np.maximum(np.concatenate(along), 0.0)) / np.where(size > 0, size, 1.0)
    return Shifts(
        _reach(model, centres) * centres.energy,
        ((centres.energy**2 + centres.own_energy) * rest) ** 0.25,
        np.sqrt(rest),
        np.minimum(share, model.spread),
    )


def pair_shifts(model: LocalModel, rows: np.ndarray, centres: Centres) -> Shifts:
    """Return the exact S and Q, by a pass over all pairs of records."""
    (m, K), outputs, c = centres.energy.shape, model.outputs, model.outputs.count
    largest, fourth = np.empty((m, K)), np.empty((m, K))
    single = one_direction(model, rows, centres.columns)
    # Upper ends suffice, so single precision will do, with its largest loss added.
    kind = np.float32 if model.solver.rounding < 1e-10 else np.float64
    eps = float(np.finfo(kind).eps)
    unit = np.sqrt(np.diag(model.inverse).reshape(-1, c).mean(axis=1))
    table = (model.solver.design(model.X) * unit).astype(kind)
    table[model.weight == 0] = 0.0
    lost = kind(2 * (model.theta.size + 2) * eps * float(np.linalg.norm(table, axis=1).max()))
    root = np.sqrt(model.weight * model.per_span).astype(kind)[:, None]
    curvature = model.solver.curvature.astype(kind)
    for piece in row_slices(m, len(model.X) * (1 if single else K * c), chunk=1 << 22):
        which, coefs = rows[piece], centres.coefs[piece]
        if single:
            directions = model.solver.solved(which)
        else:
            directions = replace(centres, coefs=coefs).moves(model, which)
        directions = directions.reshape(-1, len(unit), c) / unit[:, None]
        length = np.linalg.norm(directions.reshape(len(directions), -1), axis=1)
        directions /= np.where(length > 0, length, 1.0)[:, None, None]
        columns = np.swapaxes(directions, 0, 1).reshape(len(unit), -1).astype(kind)
        shift = (table @ columns).reshape(len(table), -1, c)
        own = np.repeat(which, len(directions) // len(which), axis=0)
        shift[own, np.arange(len(own))[:, None]] = 0.0
        spans = outputs.spans(shift) + lost
        S = np.max(spans, axis=0).astype(float)
        if c == 1:
            norms = root * spans
        else:
            norms = np.sqrt(np.maximum(np.sum((shift @ curvature) * shift, axis=2), 0.0))
            norms += root * lost
        spans *= norms
        more = 1 + 2 * len(table) * eps
        Q = (more * np.einsum("nb,nb->b", spans, spans).astype(float)) ** 0.25
        scale = length.reshape(len(which), -1)
        if single:
            scale = np.abs(coefs[:, :, 0]) * scale
        largest[piece] = S.reshape(len(which), -1) * scale
        fourth[piece] = Q.reshape(len(which), -1) * scale
    return replace(quadratic_shifts(model, rows, centres), largest=largest, fourth=fourth)


def one_direction(model: LocalModel, rows: np.ndarray, columns: list[int]) -> bool:
    """Return whether all changes due to a record are along one vector, ``H⁻¹x̃``."""
    return not columns and model.outputs.count * rows.shape[1] == 1


def pairs_may_help(model: LocalModel, centres: Centres) -> np.ndarray:
    """Return the records for which a pass over pairs of records could find a certificate, (m,).

    Q is at least ``N/(Σ ω v)^¼``; if ``M r Q`` exceeds ½, no E satisfies ``f(E) ≤ E``.
    """
    total = max(float(model.weight @ model.per_span), 1e-300)
    least = model.stretch / np.sqrt(centres.free)[:, None] * centres.norm / total**0.25
    return np.asarray(np.all(model.constant * least <= 0.5, axis=1))


def around(model: LocalModel, centres: Centres, shifts: Shifts) -> Moves:
    """Return the changes around their centres, given bounds on the other records' shifts."""
    E, still = slope_error(model, centres, shifts)
    size = centres.size
    per_error = centres.per_error[:, None]
    per_error_along = per_error
    if shifts.along is not None:
        per_error_along = per_error - model.spread + shifts.along
    with np.errstate(invalid="ignore"):
        own = np.zeros_like(E)
        if centres.own is not None:
            own = centres.own.per_error(model.constant, E)
        radius = (per_error + own) * E
        along = (np.where(centres.unsolved, np.inf, per_error_along) + own) * E
    lost = ~np.isfinite(radius) | ~np.isfinite(along)
    radius = np.where(still, 0.0, np.where(lost, np.inf, radius + centres.rounding))
    along = np.where(still, 0.0, np.where(lost, np.inf, along + centres.rounding))
    along = np.minimum(along, radius)
    known = np.where(lost, 0.0, along)
    most = np.sqrt(size**2 + 2 * size * known + radius**2)
    return Moves(centres.gram, radius, np.maximum(size - along, 0.0), most)


def slope_error(
    model: LocalModel, centres: Centres, shifts: Shifts
) -> tuple[np.ndarray, np.ndarray]:
    """Return a norm E of ε such that ``f(E) ≤ E``, (m, K), or infinity if none is found.

    Also return a mask of the alternatives that have no effect, (m, K).
    """
    M = model.constant
    alone = np.isinf(centres.per_error)[:, None]
    still = ~alone & np.all(centres.coefs == 0, axis=2)
    if M == 0:
        return np.where(alone, np.inf, np.zeros_like(shifts.largest)), still

    E = np.where(still, 0.0, np.inf)
    moved = np.nonzero(~still)
    S, N = M * shifts.largest[moved], centres.norm[moved]
    R = M * _reach(model, centres)[moved[0], 0]
    if shifts.fourth is not None:
        Q, stretch = shifts.fourth[moved], model.stretch / np.sqrt(centres.free[moved[0]])
        crossed = _crossed(model, centres, shifts)[moved]

    def image(E: np.ndarray, which: Any) -> np.ndarray:
        psi = _psi(S[which] + R[which] * E)
        first = (S[which] + R[which] * E) * psi * (N[which] + E)
        if shifts.fourth is not None:
            square = Q[which] ** 2 + crossed[which] * E + (stretch[which] * E) ** 2
            first = np.minimum(first, M * psi * square)
        return np.asarray(first)

    reached, active = np.zeros_like(S), np.arange(len(S))
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(60):
            before = reached[active]
            reached[active] = now = image(before, active)
            # Beyond 1e3 no certificate is left to find.
            active = active[(now - before > 1e-5 * now) & (now < 1e3)]
            if not len(active):
                break
        reached *= 1.0001  # the iteration comes from below
        # An overflow certifies nothing.
        E[moved] = np.where(image(reached, slice(None)) <= reached, reached, np.inf)
    return E, still


def _crossed(model: LocalModel, centres: Centres, shifts: Shifts) -> np.ndarray:
    """Return the mixed term of a centre's shifts and the shifts of a unit error.

    With one output Q is a norm, and the term is ``2rQ``. With more outputs there are two mixed
    terms: the error's span with the centre's norm, and the centre's span with the error's norm.
    """
    free = np.sqrt(centres.free)[:, None]
    if model.outputs.count == 1:
        return np.asarray(2 * shifts.fourth * model.stretch / free)
    length = np.sqrt(centres.energy**2 + centres.own_energy)
    spans = np.minimum(shifts.largest, length * model.stretch**2 / free)
    return np.asarray(shifts.weighed / free + spans)


def _reach(model: LocalModel, centres: Centres) -> np.ndarray:
    """Return ``R``, the largest norm of a record in the norm of ``H₀⁻¹``, (m, 1)."""
    return np.asarray(np.sqrt(model.largest_shifts.largest / centres.free))[:, None]


def _psi(u: np.ndarray) -> np.ndarray:
    """Return ``(eᵘ − 1 − u)/u²``, by its series where the difference would lose precision."""
    series = 0.5 + u / 6 + u * u / 24 + u**3 / 120 + u**4 / 720
    safe = np.where(u > 1e-2, u, 1.0)
    return np.asarray(np.where(u > 1e-2, (np.expm1(safe) - safe) / (safe * safe), series))


# Without a certificate ------------------------------------------------------------------------


def bound_by_convexity(
    model: LocalModel,
    moves: Moves,
    where: np.ndarray,
    rows: np.ndarray,
    others: Alternatives | None,
) -> None:
    """Bound the lengths of those changes that have no certificate, by convexity alone.

    If every parameter is penalised, the minimiser lies within ``‖g‖/ridge`` of ``θ̂``, where g is
    the gradient of the changed objective at ``θ̂``. If the objective decreases by D somewhere on
    the line to the centre, the distance from ``θ̂`` to the minimiser is at least the smallest ℓ
    with ``‖g‖ℓ − ridge ℓ²/2 ≥ D``.
    """
    open_ = np.isinf(moves.radius[where])
    ridge = 0.0 if model.fit.intercept is not None else model.fit.ridge
    steep = steepness(model, rows[where], others)
    least = np.zeros_like(steep)
    if model.fit.family.self_concordance is not None:
        centres = Centres.of(model, rows[where], others)
        fall = _fall(model, rows[where], centres)
        turn = np.sqrt(np.maximum(steep**2 - 2 * ridge * fall, 0.0))
        known = (steep > 0) & np.isfinite(centres.per_error)[:, None]
        np.divide(2 * fall, steep + turn, out=least, where=known)
    most = model.seen.largest * steep / ridge if ridge > 0 else np.full_like(steep, np.inf)
    moves.least[where] = np.where(open_, model.seen.smallest * least, moves.least[where])
    moves.most[where] = np.where(open_, most, moves.most[where])
    radius = most + moves.expected()[where]
    moves.radius[where] = np.where(open_, radius, moves.radius[where])


def steepness(model: LocalModel, rows: np.ndarray, others: Alternatives | None) -> np.ndarray:
    """Return ``‖g‖`` at ``θ̂``, where g sums added minus removed records' gradients, (m, K)."""
    x = model.solver.design(model.X[rows.reshape(-1)]).reshape(*rows.shape, -1)
    weight, own = model.weight[rows], model.slopes[rows]
    rounding = np.sum(weight * model.slope_errors[rows] * np.linalg.norm(x, axis=2), axis=1)
    if others is None:
        leaves = np.einsum("mkp,mkc->mpc", x, weight[:, :, None] * own)
        return np.asarray(np.linalg.norm(leaves, axis=(1, 2)) + rounding)[:, None]
    change, labels, _ = model.changes_together(rows, others)
    new = model.outputs.slope(model.margins_before(rows, change, others.columns), labels)
    # What comes less what leaves, ``Σ ω (z̃ new − x̃ own)``: z̃ is x̃ and the columns that differ.
    gap = weight[:, None, :, None] * (new - own[:, None])
    arrives = np.einsum("mip,mkic->mkpc", x, gap)
    columns = list(others.columns)
    arrives[:, :, columns] += np.einsum("mi,mkij,mkic->mkjc", weight, change, new)
    return np.asarray(np.linalg.norm(arrives, axis=(2, 3)) + rounding[:, None])


def _fall(model: LocalModel, rows: np.ndarray, centres: Centres) -> np.ndarray:
    """Return a lower bound on the changed objective's decrease on the line to the centre.

    At τ times the centre, the losses of the other records exceed their linear terms by at most ``N²
    τ² ψ(M S τ)``; the losses of removed and added records are known.
    """
    M, S = model.constant, _reach(model, centres) * centres.energy
    weight, own = model.weight[rows][:, None], centres.own
    joint = JointOutputs(model.outputs, rows.shape[1])
    penalty = np.maximum(centres.energy**2 - centres.norm**2, 0.0)
    best = np.zeros_like(centres.energy)
    with np.errstate(over="ignore", invalid="ignore"):
        for tau in 2.0 ** -np.arange(12):
            rise = tau**2 * (centres.norm**2 * _psi(M * S * tau) + penalty / 2)
            gained = tau * centres.pull
            lost = 16 * EPS + 4 * centres.error[:, None]
            fall = gained - rise - lost * (np.abs(gained) + rise)
            if own is not None:
                before, after = (
                    joint.loss(margin, own.labels, weight)
                    for margin in (own.margin, own.margin + tau * own.shift)
                )
                rounding = 16 * EPS * (np.abs(before) + np.abs(after))
                fall = fall - (after - before + rounding)
            best = np.maximum(best, np.nan_to_num(fall, nan=0.0, posinf=0.0, neginf=0.0))
    return np.asarray(best)

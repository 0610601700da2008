"""How far an attack's estimate follows the record: the slope of its mean, without another fit.

With the score ``s = J̃ᵀ b̃`` of a release (``b̃`` its noise, whitened), the Jacobian of the mean of
any estimate is ``∂E ẑ/∂z = E[(ẑ − z) sᵀ]``, because the score is how the release's density changes
with the record. Its mean slope ``γ = Tr(∂E ẑ/∂z)/d`` is 1 for an unbiased estimate and 0 for one
that does not look at the record; and by Cauchy and Schwarz, paper 004's theorem 2 says for every
estimate::

    MSE per unknown  ≥  γ²/η̄² + ‖bias‖²/d
"""

from __future__ import annotations

import numpy as np

from seepage.attacks.record.informed_margin import MarginAttack
from seepage.core.noise import Gaussian


def slope_sums(
    attack: MarginAttack, theta: np.ndarray, rows: np.ndarray, noise: Gaussian
) -> np.ndarray:
    """Return ``Σ_t (ẑ − z)ᵀs`` of some rows over releases ``theta``, (m,)."""
    d = attack.X.shape[1]
    found = attack.solve(theta, rows)
    X, g = attack.picked(rows), found.g[:d]
    drawn = (theta - attack.theta).T
    information = noise.information(len(drawn))
    white = information @ drawn if information.ndim == 2 else (information * drawn.T).T
    v = np.linalg.solve(attack.objective.hessian(attack.margins), white)
    w, margin, y = attack.theta[:d], attack.margins[rows], attack.fit.target[rows]
    weight = attack.weights(rows)[:, 0]
    r = weight * attack.family.slope(margin, y)
    a = weight * attack.family.curvature(margin, y)
    along_v = X @ v[:d]
    off = found.s - found.rho
    # ẑ − z = (off·x − g − Γe)/ρ, first along w and then along v.
    by_w = off * (X @ w)[:, None] - w @ g
    by_v = off * along_v - np.einsum("pt,pt->t", v[:d], g)
    if found.e is not None:
        gain = attack.gain[:d]
        by_w -= np.einsum("k,kmt->mt", w @ gain, found.e)
        by_v -= np.einsum("kt,kmt->mt", gain.T @ v[:d], found.e)
    whole = along_v + (v[d] if attack.objective.intercept else 0.0)
    score = -(a[:, None] * whole * by_w + r[:, None] * by_v)
    return np.asarray(np.sum(score / found.rho, axis=1))

"""From a record's design row to the release: ``x̃ ↦ A x̃`` with ``A = Φ^½ T⁻¹ H⁻¹``.

Where columns were shifted by a centre ``c``, ``x̃`` are the shifted ones, and ``T⁻¹`` takes the
parameters back to the caller's: with ``T = [[I, 0], [cᵀ, 1]]`` the rows are ``x̃ = Tᵀx̃_c`` and the
Hessian is ``H = TᵀH_cT``, so that ``H⁻¹x̃ = T⁻¹H_c⁻¹x̃_c``, and ``T⁻ᵀe_j = e_j`` leaves the columns
that are data where they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from array_api_compat import array_namespace

from seepage.core.noise import Noise
from seepage.glm.jacobian.optimum import EPS, Optimum, plain_inverse
from seepage.support.double_double import Double, product
from seepage.tables.source import Array, as_numpy

_MOST_UNLIKE = 1e4  # one number all but hides another from there on


@dataclass(frozen=True)
class Whitener:
    """``A`` for rows of the (shifted) design, (P, P), the feature slow and the output fast.

    The rounding of the records' curvatures moves ``A x̃`` by about ``ε spread √(x̃ᵀH⁻¹x̃)``, and the
    column of a feature by ``ε spread`` times its deviation ``√(H⁻¹)_jj``, (d K,).
    """

    matrix: Array  # ``A``, in the type of the table
    # What ``A`` has beyond that, where the curvature is so ill-conditioned that ``A x̃`` would drown
    # in the rounding of ``A``
    low: Array | None
    accuracy: float  # the relative error of ``A x̃``
    condition: float = 1.0  # that of the curvature
    # How many times as large the errors of products may be, because the noise or the units make
    # small numbers of the release count
    amplified: float = 1.0
    spread: float = 0.0
    deviations: Array | None = None

    @property
    def precise(self) -> bool:
        """Whether ``A`` is known to twice the precision."""
        return self.low is not None


def whitener_of(optimum: Optimum, noise: Noise) -> Whitener:
    """Return the whitener of a release with noise added."""
    fit = optimum.fit
    outputs = fit.coef.shape[1] if len(fit.coef.shape) == 2 else 1
    found = whitened(
        optimum.inverse, optimum.accuracy, outputs=outputs, noise=noise, centre=optimum.centre
    )
    if fit.family.name == "gaussian":  # whose curvatures are not rounded
        found = replace(found, spread=0.0)
    return replace(found, condition=optimum.condition)


def whitened(
    inverse: Array | Double,
    accuracy: float,
    *,
    outputs: int,
    noise: Noise,
    centre: Array | None = None,
) -> Whitener:
    """Whiten ``H⁻¹``, known to an accuracy, by the noise."""
    high = inverse.high if isinstance(inverse, Double) else inverse
    xp = array_namespace(high)
    raw = inverse if isinstance(inverse, Double) else Double.of(high)
    if centre is not None:
        raw = _unshifted(raw, xp.astype(centre, high.dtype), outputs)
    root = noise.root(high.shape[0])
    placed = xp.asarray(root, dtype=high.dtype, device=high.device)
    deviations = xp.sqrt(xp.linalg.diagonal(high))
    kept = high.shape[0] if centre is None else centre.shape[0] * outputs
    sizes = deviations
    if centre is not None:
        shift = xp.sum(xp.abs(centre) * xp.reshape(deviations[:kept], (-1, outputs))[:, 0])
        sizes = xp.concat([deviations[:kept], deviations[kept:] + shift])
    if root.ndim == 2:
        amplified = _condition(root * np.asarray(as_numpy(sizes))[None, :])
        accuracy = accuracy * amplified + 8 * EPS * _condition(root)
        spread = float(xp.sqrt(xp.sum((placed * sizes[None, :]) ** 2)))
        raw = product(Double.of(placed), raw)
    else:
        seen = sizes * placed
        amplified = min(float(xp.max(seen)) / float(xp.min(seen)), _MOST_UNLIKE)
        spread = math.sqrt(float(xp.sum(seen * seen)))
        if not isinstance(inverse, Double):
            accuracy = accuracy * amplified
        raw = raw.times(placed if root.ndim == 0 else placed[:, None])
    low = raw.low if isinstance(inverse, Double) else None
    return Whitener(
        raw.high,
        low,
        accuracy,
        amplified=min(amplified, _MOST_UNLIKE),
        spread=spread,
        deviations=deviations,
    )


def whitened_inverse(H: Array, noise: Noise) -> Array:
    """Return ``Φ^½ H⁻¹`` of a definite matrix by ordinary arithmetic, (P, P)."""
    inverse, accuracy = plain_inverse(H, ridge=0.0)
    return whitened(inverse, accuracy, outputs=1, noise=noise).matrix


def _unshifted(inverse: Double, centre: Array, outputs: int) -> Double:
    """Return ``T⁻¹H⁻¹``: the intercepts' rows less the centre times those of the coefficients."""
    xp = array_namespace(centre)
    P = inverse.high.shape[0]
    kept = centre.shape[0] * outputs

    def rows(part: Array) -> Array:
        return xp.reshape(part[:kept, :], (centre.shape[0], outputs * P))

    shift = product(Double.of(centre[None, :]), Double(rows(inverse.high), rows(inverse.low)))
    shift = Double(*(xp.reshape(-part, (outputs, P)) for part in shift))
    last = inverse[kept:, :].plus(shift)
    return Double(
        xp.concat([inverse.high[:kept, :], last.high], axis=0),
        xp.concat([inverse.low[:kept, :], last.low], axis=0),
    )


def _condition(root: np.ndarray) -> float:
    """Return the condition number of a matrix whose columns are scaled alike."""
    sizes = np.sqrt((root**2).sum(axis=0))
    values = np.linalg.svd(root / sizes, compute_uv=False)
    return float(values[0] / values[-1]) if values[-1] > 0 else math.inf

"""Objective perturbation: a random linear term in the objective in place of noise on the minimiser.

What is released is ``θ = argmin Σ_j ω_j ℓ_j + (ridge/2)‖w‖² + bᵀθ`` with ``b ~ N(0, σ²I)``
(Chaudhuri, Monteleoni, Sarwate 2011; Kifer, Smith, Thakurta 2012). As ``b = −∇L(θ; D)``, with ∇L
and H those of the objective without b, the density of the release is::

    log p(θ | D) = −‖∇L(θ; D)‖²/2σ² + log det H(θ; D) + const

so that the score about a record ``z = (x, y)``, whose gradient is ``g = ω ℓ'x̃``, has two parts:
what shifts the release, and what the determinant tells::

    S = (∂g/∂z)ᵀ b/σ² + ∂ log det H/∂z,      ∂g/∂x = ω(a x̃wᵀ + rE),   ∂g/∂y = ω b_y x̃
    ∂ log det H/∂x = ω(a′ q w + 2a (H⁻¹x̃)_x),   ∂ log det H/∂y = ω a_y q,      q = x̃ᵀH⁻¹x̃

The Fisher information is ``E[SSᵀ]`` over b, a mean over draws here. Leaving the record out changes
the density by ``λ = (‖b + g‖² − ‖b‖²)/2σ² − log(1 − ωaq)``, and whoever knows all other records is
right ``½ + ½E[(1 − e^{−λ})₊]`` of the time.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import ndtri

from seepage.core.noise import Gaussian
from seepage.core.result import Result
from seepage.errors import InputError
from seepage.glm.leakage import leakage
from seepage.glm.losses import Categorical, Elementwise
from seepage.support.chunks import row_slices
from seepage.support.number_check import check_count, check_number
from seepage.tables.source import as_numpy


class ObjectivePerturbation:
    """The release of a model whose objective has a random linear term, and what it leaks.

    The model says the family, the penalty and the weights; its own minimiser is not released.
    Adversaries know all other records. Numbers are means over draws: estimates.

    Parameters
    ----------
    model, X, y, sample_weight
        A fitted model with an L2 penalty and the data, as for :func:`seepage.leakage`.
    noise
        The noise in the gradient of the objective (the sum over the records): a
        :class:`Gaussian` with one standard deviation.
    draws
        How many releases are drawn to take means over.
    seed
        Of these draws.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((100, 2))
    >>> y = (X @ [1.0, -1.0] + rng.standard_normal(100) > 0).astype(int)
    >>> model = sp.glm.LogisticRegression(l2=0.1).fit(X, y)
    >>> released = sp.glm.ObjectivePerturbation(model, X, y, sp.Gaussian(2.0))
    >>> released.records()
    <100 records: FIL η, estimate about all columns and the label: ...
    >>> released.draw(seed=1).shape
    (2,)
    """

    def __init__(
        self,
        model: Any,
        X: Any,
        y: Any,
        noise: Gaussian,
        *,
        sample_weight: Any = None,
        draws: int = 2000,
        seed: int = 0,
    ) -> None:
        if not isinstance(noise, Gaussian) or np.ndim(noise.sigma):
            raise InputError("Objective perturbation takes sp.Gaussian(sigma) with one sigma.")
        check_count(draws, "draws", 100)
        leak = leakage(model, X, y, noise=noise, sample_weight=sample_weight)
        fit = leak.release.model
        if fit is None or isinstance(fit.family, Categorical):
            raise InputError(
                "Objective perturbation is measured for models of one output on the columns they "
                "were fitted on, without a pipeline."
            )
        if fit.ridge <= 0:
            raise InputError(
                "Objective perturbation needs an L2 penalty: without one a random linear term may "
                "leave no minimiser. Fit with l2 above zero."
            )
        self.noise, self.sigma, self.fit, self.source = noise, float(noise.sigma), fit, leak.source
        self.family, self.draws, self.seed = fit.family, draws, seed
        self.y = np.asarray(as_numpy(fit.target), dtype=float).reshape(-1)
        self.columns = np.asarray(as_numpy(leak.table.values), dtype=float)
        d = self.columns.shape[1]
        ones = np.ones((len(self.y), int(fit.intercept is not None)))
        self.X = np.hstack([self.columns, ones])
        self.ridges = np.where(np.arange(self.X.shape[1]) < d, float(fit.ridge), 0.0)
        given = fit.sample_weight
        self.weight = np.ones(len(self.y)) if given is None else np.asarray(as_numpy(given))

    def draw(self, seed: int | None = None) -> np.ndarray:
        """Return parameters to release: the coefficients, then the intercept if there is one.

        A seed is for experiments only: whoever guesses it takes the noise off.
        """
        return np.asarray(self._minimisers(self.noise.draw((1, self.X.shape[1]), seed))[0])

    # What leaks ---------------------------------------------------------------------------------

    def records(self) -> Result:
        """Return η about all columns and the label of each record."""
        return self._largest(slice(None), "all columns and the label")

    def labels(self) -> Result:
        """Return η about each record's label, its columns known."""
        return self._largest(slice(-1, None), "the label")

    def information(self) -> np.ndarray:
        """Return ``E[SSᵀ]`` of each record, (n, d + 1, d + 1): columns, then the label."""
        total = np.zeros((len(self.y), self.columns.shape[1] + 1, self.columns.shape[1] + 1))
        for piece in row_slices(self.draws, self.X.size):
            S = self._scores(self._noises[piece], self._released[piece])
            total += np.einsum("bni,bnj->nij", S, S, optimize=True)
        return total / self.draws

    def membership(self) -> Result:
        """Return how often who knows all other records is right about each, at equal priors.

        The upper end of an interval of 99.9 % for the mean over draws; out means that nobody comes
        instead, with the same penalty.
        """
        gains = np.zeros((2, len(self.y)))
        for piece in row_slices(self.draws, self.X.size):
            gain = np.maximum(-np.expm1(-self._log_ratios(piece)), 0.0)
            gains += np.sum(gain, axis=0), np.sum(gain**2, axis=0)
        mean, square = gains / self.draws
        error = np.sqrt(np.maximum(square - mean**2, 1 / self.draws**2) / self.draws)
        right = np.minimum((1 + mean + float(ndtri(0.999)) * error) / 2, 1.0)
        said = f"The upper end of an interval of 99.9 % from {self.draws:,} draws."
        return self._result(right, "right", "membership", said)

    def epsilon(self, delta: float, lipschitz: float, curvature: float) -> float:
        """Return ε of (ε, δ)-differential privacy, for bounds that hold for every possible record.

        ``‖g‖ ≤ L`` and ``‖∂²ℓ‖ ≤ c`` at all parameters. With a record more the determinant grows by
        at most ``1 + c/ridge``. The gradient has the direction of x̃ whatever θ is, so the rest of
        the privacy loss is at most ``L|Z|/σ + L²/2σ²`` with one normal number Z::

            ε = log(1 + c/ridge) + L²/2σ² + (L/σ) Φ⁻¹(1 − δ/2)

        Neighbours differ by one record that is added or left out; the penalty does not change.
        """
        for value, name in ((delta, "delta"), (lipschitz, "lipschitz"), (curvature, "curvature")):
            check_number(value, name)
        if not 0 < delta < 1 or lipschitz <= 0 or curvature <= 0:
            raise InputError(
                "delta lies between 0 and 1; lipschitz and curvature are bounds above zero."
            )
        if self.fit.intercept is not None:
            raise InputError(
                "Differential privacy needs a penalty on every parameter, but the intercept has "
                "none; fit without one, or put a column of ones into the table."
            )
        size = np.linalg.norm(self.X, axis=1) * self.weight
        for margin in (-1e3, -1.0, 0.0, 1.0, 1e3):  # at all parameters, not at the fitted ones
            with np.errstate(over="ignore", invalid="ignore"):
                m = np.full(len(self.y), margin)
                slope = size * np.abs(np.asarray(self.family.slope(m, self.y)))
                bent = size * np.linalg.norm(self.X, axis=1)
                bent = bent * np.asarray(self.family.curvature(m, self.y))
            for found, bound, name in (
                (slope, lipschitz, "lipschitz"),
                (bent, curvature, "curvature"),
            ):
                if not np.all(found <= bound * (1 + 1e-9)):
                    raise InputError(
                        f"{name}={bound:g} does not hold even for the records at hand, where it is "
                        f"{np.max(found):.3g} or more. Scale rows to a bound, or take a family "
                        "whose loss has one, such as the logistic."
                    )
        ratio = lipschitz / self.sigma
        ridge = float(self.fit.ridge)
        return math.log1p(curvature / ridge) + ratio**2 / 2 + ratio * float(-ndtri(delta / 2))

    # Behind it ----------------------------------------------------------------------------------

    @cached_property
    def _noises(self) -> np.ndarray:
        """``b``, (draws, P)."""
        return self.noise.draw((self.draws, self.X.shape[1]), self.seed)

    @cached_property
    def _released(self) -> np.ndarray:
        """``θ`` of each draw, (draws, P)."""
        return self._minimisers(self._noises)

    def _minimisers(self, noises: np.ndarray) -> np.ndarray:
        """Return the minimisers with these linear terms, (B, P), by Newton's method."""
        start = np.append(
            np.asarray(as_numpy(self.fit.coef), dtype=float).reshape(-1),
            [] if self.fit.intercept is None else np.reshape(as_numpy(self.fit.intercept), -1),
        )
        found = []
        for piece in row_slices(len(noises), self.X.size):
            found.append(self._newton(noises[piece], np.tile(start, (len(noises[piece]), 1))))
        return np.concatenate(found)

    def _newton(self, b: np.ndarray, theta: np.ndarray) -> np.ndarray:
        for _ in range(100):
            margins = theta @ self.X.T
            slope = self.weight * self._of(self.family.slope, margins)
            gradient = slope @ self.X + self.ridges * theta + b
            step = np.linalg.solve(self._hessians(margins), gradient[:, :, None])[:, :, 0]
            shift = np.abs(step @ self.X.T).max(axis=1)
            # Curvatures say little beyond a shift of 1, but of least squares they say everything.
            short = 1.0 if self.family.name == "gaussian" else 1 / np.maximum(shift, 1.0)[:, None]
            theta = theta - short * step
            if np.all(shift <= 1e-10 * np.maximum(np.abs(margins).max(axis=1), 1.0)):
                return theta
        raise InputError(
            "With some draws of the noise the objective has no minimiser, or none that is found; "
            "take less noise, a larger penalty, or a model without an intercept."
        )

    def _of(self, function: Elementwise, margins: np.ndarray) -> np.ndarray:
        return np.asarray(function(margins, np.broadcast_to(self.y, margins.shape)))

    def _hessians(self, margins: np.ndarray) -> np.ndarray:
        """Return H at each draw, (B, P, P)."""
        bent = self.weight * self._of(self.family.curvature, margins)
        return np.asarray((self.X.T * bent[:, None, :]) @ self.X + np.diag(self.ridges))

    def _shares(self, margins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``H⁻¹x̃`` of every record, (B, n, P), and ``q``, (B, n)."""
        solved = self.X @ np.linalg.inv(self._hessians(margins))
        return solved, np.sum(solved * self.X, axis=2)

    def _scores(self, b: np.ndarray, theta: np.ndarray) -> np.ndarray:
        """Return S of every record for some draws, (B, n, d + 1)."""
        d, margins = self.columns.shape[1], theta @ self.X.T
        w, near = theta[:, None, :d], 1e-5
        a = self._of(self.family.curvature, margins)
        a_up, a_down = (self._of(self.family.curvature, margins + s) for s in (near, -near))
        y = np.broadcast_to(self.y, margins.shape)
        y_up, y_down = (
            np.asarray(self.family.curvature(margins, y + shift)) for shift in (near, -near)
        )
        solved, q = self._shares(margins)
        along = b @ self.X.T / self.sigma**2
        slope = self._of(self.family.slope, margins)
        moved = (a * along)[:, :, None] * w
        moved += (slope[:, :, None] * b[:, None, :d]) / self.sigma**2
        moved += ((a_up - a_down) / (2 * near) * q)[:, :, None] * w
        moved += 2 * a[:, :, None] * solved[:, :, :d]
        label = self._of(self.family.label_slope, margins) * along
        label = label + (y_up - y_down) / (2 * near) * q
        return np.asarray(self.weight[:, None] * np.concatenate([moved, label[:, :, None]], axis=2))

    def _log_ratios(self, piece: slice) -> np.ndarray:
        """Return ``λ`` of every record for some draws, (B, n)."""
        b, margins = self._noises[piece], self._released[piece] @ self.X.T
        pull = self.weight * self._of(self.family.slope, margins)
        bent = self.weight * self._of(self.family.curvature, margins)
        q = self._shares(margins)[1]
        moved = 2 * pull * (b @ self.X.T) + pull**2 * np.sum(self.X**2, axis=1)
        return np.asarray(moved / (2 * self.sigma**2) - np.log1p(-np.minimum(bent * q, 1 - 1e-12)))

    def _largest(self, part: slice, about: str) -> Result:
        values, vectors = np.linalg.eigh(self.information()[:, part, part])
        eta = np.sqrt(np.maximum(values[:, -1], 0.0))
        error = np.zeros(len(eta))
        for piece in row_slices(self.draws, self.X.size):
            S = self._scores(self._noises[piece], self._released[piece])[:, :, part]
            along = np.einsum("bni,ni->bn", S, vectors[:, :, -1]) ** 2
            error += np.sum((along - values[:, -1]) ** 2, axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = np.nanmax(np.sqrt(error) / self.draws / values[:, -1] / 2)
        said = (
            f"A mean over {self.draws:,} draws: the standard error of η is at most "
            f"{100 * relative:.1f} %. The determinant's part is in it."
        )
        return self._result(eta, "fil", about, said)

    def _result(self, values: np.ndarray, measure: str, about: str, said: str) -> Result:
        return Result(
            values,
            "rows",
            measure,
            "estimate",
            about,
            self.source.index,
            assumptions=(
                "The noise is in the gradient of the objective, and everything else is known.",
                said,
            ),
            library=self.source.library,
            noise=(self.noise,),
        )

"""Objective perturbation: add a random linear term to the objective, not noise to the minimiser.

The release is ``θ = argmin Σ_j ω_j ℓ_j + (ridge/2)‖w‖² + bᵀθ`` with ``b ~ N(0, σ²I)`` (Chaudhuri,
Monteleoni, Sarwate 2011; Kifer, Smith, Thakurta 2012). Let ∇L and H be the gradient and Hessian of
the objective without b. For the data D, ``b = −∇L(θ; D)``, so the density of the release is::

    log p(θ | D) = −‖∇L(θ; D)‖²/2σ² + log det H(θ; D) + const

Let ``z = (x, y)`` be a record and c the number of outputs; with K classes, c is K − 1, because only
differences between classes matter. The derivatives of the record's loss are the slopes r and the
curvature A, and its gradient is ``g = ω x̃ ⊗ r``. The score with respect to the record is the sum
of two terms, one from the shift of the release and one from the determinant::

    S = (∂g/∂z)ᵀ b/σ² + ∂ log det H/∂z
    ∂g/∂x = ω(x̃ ⊗ AWᵀ + E ⊗ r),                ∂ log det H/∂x = ω(Σ_j tr(A′_j Q) w_j + 2 tr(A P_x))
    ∂g/∂y = ω x̃ ⊗ ∂r/∂y,                       ∂ log det H/∂y = ω tr(A_y Q)
    P = H⁻¹(x̃ ⊗ I),   Q = (x̃ ⊗ I)ᵀH⁻¹(x̃ ⊗ I)

Here ``A′_j = ∂A/∂m_j`` for margin ``m_j``, ``A_y = ∂A/∂y``, W has a column ``w_j`` of coefficients
for each output, ``P_x`` contains the rows of P for the features, and E selects the features'
parameters. The Fisher information is ``E[SSᵀ]`` over b, estimated by an average over draws. Leaving
the record out lowers the log-density by ``λ = (‖b + g‖² − ‖b‖²)/2σ² − log det(I − ωAQ)``. An
attacker who knows all other records succeeds with probability ``½ + ½E[(1 − e^{−λ})₊]``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import chdtri, ndtri

from seepage.core.noise import Gaussian
from seepage.core.result import Result
from seepage.errors import InputError, accepts_other_names
from seepage.glm.changes.outputs import modes_of
from seepage.glm.dense_objective import DenseObjective
from seepage.glm.forgetting import CertifiedRemoval, remove_records
from seepage.glm.leakage import leakage
from seepage.glm.losses import Categorical
from seepage.support.chunks import row_slices
from seepage.support.number_check import check_count, check_number
from seepage.tables.source import as_numpy


@accepts_other_names
class ObjectivePerturbation:
    """The leakage of a model released with a random linear term in its objective.

    The model defines the family, the penalty and the sample weights; the minimiser of the objective
    without the random term is not released. The attacker knows all other records. Results are
    averages over random draws, and therefore estimates.

    Parameters
    ----------
    model, X, y, sample_weight
        A fitted model with an L2 penalty and the data, as for :func:`seepage.leakage`.
    noise
        The noise added to the gradient of the objective, which is a sum over the records, not a
        mean. The noise must be a :class:`Gaussian` with a single standard deviation.
    draws
        The number of releases drawn for the averages.
    seed
        The seed of the draws.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((100, 2))
    >>> y = (X @ [1.0, -1.0] + rng.standard_normal(100) > 0).astype(int)
    >>> model = sp.glm.LogisticRegression(l2=0.1).fit(X, y)
    >>> released = sp.glm.ObjectivePerturbation(model, X, y, sp.Gaussian(2.0))
    >>> released.records()
    <100 records: FIL η (estimate) about all columns and the label: ...
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
            raise InputError(
                "Objective perturbation requires noise with one standard deviation; pass "
                "sp.Gaussian(sigma)."
            )
        check_count(draws, "draws", 100)
        leak = leakage(model, X, y, noise=noise, sample_weight=sample_weight)
        fit = leak.release.model
        if fit is None:
            raise InputError(
                "Objective perturbation does not support pipelines; pass the final model and the "
                "columns it was fitted on."
            )
        if fit.ridge <= 0:
            raise InputError(
                "Objective perturbation requires an L2 penalty: without one, the objective with a "
                "random linear term may have no minimiser. Fit with l2 above zero."
            )
        self.noise, self.sigma, self.fit, self.source = noise, float(noise.sigma), fit, leak.source
        self.draws, self.seed = draws, seed
        self.objective = DenseObjective(fit, np.asarray(as_numpy(leak.table.values), dtype=float))
        self.outputs, self.columns = self.objective.outputs, self.objective.columns
        self.X, self.y = self.objective.X, self.objective.y
        self.ridges, self.weight = self.objective.ridges, self.objective.weight

    @accepts_other_names
    def draw(self, seed: int | None = None) -> np.ndarray:
        """Draw parameters to release: the coefficients, followed by the intercept, if any.

        For softmax, there is one row per class. The rows sum to zero, because a term common to all
        classes does not change the probabilities. Set a seed in experiments only: anyone who
        guesses the seed can subtract the noise.
        """
        theta = self._minimisers(self.noise.draw((1, *self._start.shape), seed))[0]
        basis = self.outputs.basis
        return np.asarray(theta[:, 0] if basis is None else basis @ theta.T)

    def forget(self, released: Any, rows: Any, current: Any = None) -> CertifiedRemoval:
        """Remove records from released parameters by one Newton step (certified removal).

        Parameters
        ----------
        released
            The parameters that :meth:`draw` returned for the first training. These parameters
            determine the random term.
        rows
            The positions of all records removed so far, including those to remove now.
        current
            The parameters after earlier removals, at which the step starts. The default is the
            released parameters.

        Examples
        --------
        >>> import numpy as np, seepage as sp
        >>> X = np.random.default_rng(0).standard_normal((500, 2))
        >>> model = sp.glm.LogisticRegression(l2=0.1).fit(X, X[:, 0] > 0)
        >>> trained = sp.glm.ObjectivePerturbation(model, X, X[:, 0] > 0, sp.Gaussian(1.0))
        >>> first = trained.draw(seed=0)
        >>> removed = trained.forget(first, [3])
        >>> again = trained.forget(first, [3, 8], removed.parameters)
        >>> removed.epsilon(1e-5) < 0.01
        True
        """
        return remove_records(self.objective, self.sigma, released, rows, current)

    def __repr__(self) -> str:
        family = self.fit.family.name
        return (
            f"<ObjectivePerturbation of a {family} model on {len(self.y)} records, {self.noise!r}>"
        )

    # What leaks ---------------------------------------------------------------------------------

    def records(self) -> Result:
        """Return η of each record about its columns and label together."""
        return self._largest(slice(None), "all columns and the label")

    def labels(self) -> Result:
        """Return η of each record about its label, if its columns are known."""
        return self._largest(slice(self.columns.shape[1], None), "the label")

    def information(self) -> np.ndarray:
        """Return ``E[SSᵀ]`` of each record, (n, d + c, d + c): the columns, then the label.

        A label with K classes has the K − 1 coordinates of :func:`simplex_basis`.
        """
        unknowns = self.columns.shape[1] + self.outputs.count
        total = np.zeros((len(self.y), unknowns, unknowns))
        for piece in self._pieces(self.draws):
            S = self._scores(self._noises[piece], self._released[piece])
            total += np.einsum("bni,bnj->nij", S, S, optimize=True)
        return total / self.draws

    def membership(self) -> Result:
        """Return the success rate of an informed attacker's membership inference on each record.

        The prior probability of membership is one half. The result is the upper end of a one-sided
        99.9 % confidence interval, estimated from the draws. A record that is left out is not
        replaced, and the total penalty does not change.
        """
        gains = np.zeros((2, len(self.y)))
        for piece in self._pieces(self.draws):
            gain = np.maximum(-np.expm1(-self._log_ratios(piece)), 0.0)
            gains += np.sum(gain, axis=0), np.sum(gain**2, axis=0)
        mean, square = gains / self.draws
        error = np.sqrt(np.maximum(square - mean**2, 1 / self.draws**2) / self.draws)
        right = np.minimum((1 + mean + float(ndtri(0.999)) * error) / 2, 1.0)
        said = (
            "The result is the upper end of a one-sided 99.9 % confidence interval, estimated from "
            f"{self.draws:,} draws."
        )
        return self._result(right, "right", "membership", said)

    def epsilon(self, delta: float, lipschitz: float, curvature: float) -> float:
        """Return the ε of (ε, δ)-differential privacy from bounds valid for every possible record.

        The bounds are ``‖g‖ ≤ L`` (``lipschitz``) and ``‖∂²ℓ‖ ≤ C`` (``curvature``), at all
        parameters. Adding one record multiplies the determinant by at most ``(1 + C/ridge)^c``,
        where c is the number of outputs (K − 1 for K classes). The record's gradient is ``x̃ ⊗ r``,
        in which only r depends on θ. Therefore, the remaining privacy loss is at most ``L‖Z‖/σ +
        L²/2σ²``, where Z is a vector of c standard normal variables. The norm of Z exceeds its
        quantile χ(1 − δ) with probability δ::

            ε = c log(1 + C/ridge) + L²/2σ² + (L/σ) χ(1 − δ)

        Neighbouring tables differ by adding or removing one record; the total penalty is the same.
        """
        for value, name in ((delta, "delta"), (lipschitz, "lipschitz"), (curvature, "curvature")):
            check_number(value, name)
        if not 0 < delta < 1 or lipschitz <= 0 or curvature <= 0:
            raise InputError(
                "delta must lie between 0 and 1, and lipschitz and curvature must be above zero."
            )
        if self.fit.intercept is not None:
            raise InputError(
                "Differential privacy requires a penalty on every parameter, but the intercept "
                "has none; fit without an intercept, or add a column of ones to the table."
            )
        size = np.linalg.norm(self.X, axis=1)
        for margins in self._margins_anywhere():  # at all parameters, not at the fitted ones
            with np.errstate(over="ignore", invalid="ignore"):
                m = np.broadcast_to(margins, (len(self.y), self.outputs.count))
                slopes = np.linalg.norm(self.outputs.slope(m, self.y), axis=1)
                curvatures = np.linalg.norm(self.outputs.curvature(m, self.y), ord=2, axis=(1, 2))
            for found, bound, name in (
                (self.weight * size * slopes, lipschitz, "lipschitz"),
                (self.weight * size**2 * curvatures, curvature, "curvature"),
            ):
                if not np.all(found <= bound * (1 + 1e-9)):
                    raise InputError(
                        f"{name}={bound:g} is not a valid bound: the given records reach "
                        f"{np.max(found):.3g} or more. Pass a larger bound, scale the rows to a "
                        "smaller norm, or use a family with bounded derivatives, such as the "
                        "logistic family."
                    )
        ratio, count = lipschitz / self.sigma, self.outputs.count
        determinant = count * math.log1p(curvature / float(self.fit.ridge))
        return determinant + ratio**2 / 2 + ratio * math.sqrt(float(chdtri(count, delta)))

    # Behind it ----------------------------------------------------------------------------------

    def _margins_anywhere(self) -> list[np.ndarray]:
        """Return margins where the loss is steep or curved: large margins and class ties."""
        ends = np.ones((1, 1))
        if self.outputs.basis is not None:
            classes = self.outputs.basis
            ends = np.unique(
                (classes[:, None] + classes[None]).reshape(-1, classes.shape[1]), axis=0
            )
        return [size * end for end in ends for size in (-1e3, -1.0, 0.0, 1.0, 1e3)]

    @cached_property
    def _noises(self) -> np.ndarray:
        """``b``, (draws, P, c)."""
        return self.noise.draw((self.draws, *self._start.shape), self.seed)

    @cached_property
    def _released(self) -> np.ndarray:
        """``θ`` of each draw, of shape (draws, P, c)."""
        return self._minimisers(self._noises)

    @property
    def _start(self) -> np.ndarray:
        """The minimiser without noise, of shape (P, c)."""
        return self.objective.theta

    def _pieces(self, draws: int) -> Iterator[slice]:
        return row_slices(draws, self.X.size * self.outputs.count**2)

    def _minimisers(self, noises: np.ndarray) -> np.ndarray:
        """Return the minimisers with the given linear terms, (B, P, c), by Newton's method."""
        pieces = [noises[piece] for piece in self._pieces(len(noises))]
        starts = [np.broadcast_to(self._start, piece.shape) for piece in pieces]
        return np.concatenate(
            [self._newton(b, start) for b, start in zip(pieces, starts, strict=True)]
        )

    def _newton(self, b: np.ndarray, theta: np.ndarray) -> np.ndarray:
        for _ in range(100):
            margins = self.X @ theta
            slopes = self.weight[:, None] * self.outputs.slope(margins, self.y)
            gradient = self.X.T @ slopes + self.ridges[:, None] * theta + b
            flat = gradient.reshape(len(b), -1, 1)
            step = np.linalg.solve(self._hessians(margins), flat).reshape(theta.shape)
            shift = np.abs(self.X @ step).max(axis=(1, 2))
            # Curvatures say little beyond a shift of 1, but of least squares they say everything.
            short = np.ones(len(b))
            if self.fit.family.name != "gaussian":
                short = 1 / np.maximum(shift, 1.0)
            theta = theta - short[:, None, None] * step
            if np.all(shift <= 1e-10 * np.maximum(np.abs(margins).max(axis=(1, 2)), 1.0)):
                return theta
        raise InputError(
            "For some draws of the noise, the objective has no minimiser that Newton's method "
            "could find; use less noise, a larger penalty, or a model without an intercept."
        )

    def _hessians(self, margins: np.ndarray) -> np.ndarray:
        """Return the Hessian H at each draw, of shape (B, P·c, P·c)."""
        weighted = self.weight[:, None, None] * self.outputs.curvature(margins, self.y)
        P, c = self.X.shape[1], self.outputs.count
        H = np.zeros((len(margins), P, c, P, c))
        for k in range(c):
            for j in range(k + 1):
                H[:, :, k, :, j] = (self.X.T * weighted[:, None, :, k, j]) @ self.X
                H[:, :, j, :, k] = H[:, :, k, :, j]
        return H.reshape(-1, P * c, P * c) + np.diag(np.repeat(self.ridges, c))

    def _shares(self, margins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``P``, (B, n, P, c, c), and ``Q``, (B, n, c, c), for every record."""
        P, c = self.X.shape[1], self.outputs.count
        inverse = np.linalg.inv(self._hessians(margins)).reshape(-1, P, c, P, c)
        solved = np.einsum("bikjl,nj->bnikl", inverse, self.X, optimize=True)
        return solved, np.einsum("ni,bnikl->bnkl", self.X, solved, optimize=True)

    def _scores(self, b: np.ndarray, theta: np.ndarray) -> np.ndarray:
        """Return the score S of every record for the given draws, of shape (B, n, d + c)."""
        d, margins = self.columns.shape[1], self.X @ theta
        A, w = self.outputs.curvature(margins, self.y), theta[:, :d].transpose(0, 2, 1)
        solved, Q = self._shares(margins)
        along = self.X @ b / self.sigma**2
        pulled = self.outputs.slope(margins, self.y) @ b[:, :d].transpose(0, 2, 1) / self.sigma**2
        told = self._by_margin(margins, Q) + (A @ along[..., None])[..., 0]
        columns = told @ w + pulled + 2 * np.einsum("bnkl,bnikl->bni", A, solved[:, :, :d])
        score = np.concatenate([columns, self._by_label(margins, along, Q)], axis=2)
        return np.asarray(self.weight[:, None] * score)

    def _by_margin(self, margins: np.ndarray, Q: np.ndarray) -> np.ndarray:
        """Return ``tr(A′_j Q)`` for the margin of each output, of shape (B, n, c)."""
        told, near = np.zeros(margins.shape), 1e-5
        for j, shift in enumerate(near * np.eye(self.outputs.count)):
            up, down = (self.outputs.curvature(margins + s, self.y) for s in (shift, -shift))
            told[..., j] = np.sum((up - down) * Q, axis=(2, 3)) / (2 * near)
        return told

    def _by_label(self, margins: np.ndarray, along: np.ndarray, Q: np.ndarray) -> np.ndarray:
        """Return the score with respect to the label, without the record's weight, (B, n, c)."""
        family, near = self.fit.family, 1e-5
        if isinstance(family, Categorical):  # ∂r/∂y = −I, and the curvature knows no label
            return -along
        y = np.broadcast_to(self.y, margins.shape[:2])
        up, down = (self.outputs.curvature(margins, y + shift) for shift in (near, -near))
        slope = np.asarray(family.label_slope(margins[..., 0], y))[..., None]
        return np.asarray(slope * along + ((up - down) * Q)[..., 0] / (2 * near))

    def _log_ratios(self, piece: slice) -> np.ndarray:
        """Return ``λ`` of every record for the given draws, of shape (B, n)."""
        b, margins = self._noises[piece], self.X @ self._released[piece]
        g = self.weight[:, None] * self.outputs.slope(margins, self.y)
        curvature = self.weight[:, None, None] * self.outputs.curvature(margins, self.y)
        shares = modes_of(curvature, self._shares(margins)[1])[1]
        moved = 2 * np.sum(g * (self.X @ b), axis=2)
        moved += np.sum(g**2, axis=2) * np.sum(self.X**2, axis=1)
        determinant = np.sum(np.log1p(-np.minimum(shares, 1 - 1e-12)), axis=2)
        return np.asarray(moved / (2 * self.sigma**2) - determinant)

    def _largest(self, part: slice, about: str) -> Result:
        values, vectors = np.linalg.eigh(self.information()[:, part, part])
        eta = np.sqrt(np.maximum(values[:, -1], 0.0))
        error = np.zeros(len(eta))
        for piece in self._pieces(self.draws):
            S = self._scores(self._noises[piece], self._released[piece])[:, :, part]
            along = np.einsum("bni,ni->bn", S, vectors[:, :, -1]) ** 2
            error += np.sum((along - values[:, -1]) ** 2, axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = np.nanmax(np.sqrt(error) / self.draws / values[:, -1] / 2)
        said = (
            f"η is an average over {self.draws:,} draws, with a relative standard error of at most "
            f"{100 * relative:.1f} %. η includes the determinant term."
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
                "The noise is added to the gradient of the objective, and the attacker knows "
                "everything else.",
                said,
            ),
            library=self.source.library,
            noise=(self.noise,),
        )

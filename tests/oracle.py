"""The naive dense truth: every leakage from one big Jacobian, formed by automatic differentiation.

Nothing here shares a formula with the package. The loss of each family is written down once more,
its minimiser found by a plain Newton iteration, and the implicit function theorem applied to the
derivatives that ``torch.func`` returns::

    J = −H⁻¹ ∂²F/∂θ∂(x, y),     J̃ = Φ^{1/2} J

Blocks of ``J̃`` are cut out as they stand and measured by a full singular value decomposition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from recipes import Case
from seepage.core.noise import Gaussian, Laplace, Noise

NULL_DIRECTION = 1e-11  # eigenvalues below this fraction of the largest belong to a gauge
NO_GRADIENT = 1e-25  # shrinks without end where the minimiser is zero; far below any rounding


def _softplus(m: torch.Tensor) -> torch.Tensor:
    # Each branch is analytic and sees only arguments of its own side, so that both derivatives
    # keep their relative precision however saturated the margin is, and are right at m = 0 too.
    above = m > 0
    positive = torch.where(above, m, torch.zeros_like(m))
    negative = torch.where(above, torch.zeros_like(m), m)
    return torch.where(
        above, m + torch.log1p(torch.exp(-positive)), torch.log1p(torch.exp(negative))
    )


LOSSES = {
    "gaussian": lambda m, y: (m - y) ** 2 / 2,
    "bernoulli": lambda m, y: _softplus(m) - y * m,
    "poisson": lambda m, y: torch.exp(m) - y * m,
    "pseudo-huber": lambda m, y: torch.sqrt(1 + (m - y) ** 2) - 1,
    "exponential": lambda m, y: y * torch.exp(-m) + m,
    "categorical": lambda m, y: torch.logsumexp(m, -1) - (y * m).sum(-1),
}


def simplex_basis(size: int) -> np.ndarray:
    """Return an orthonormal basis of the vectors that sum to zero, ``size × (size − 1)``."""
    return np.linalg.svd(np.ones((1, size)))[2][1:].T


def encode(case: Case) -> np.ndarray:
    """Return the labels as the numbers the loss is written in (one-hot for a softmax)."""
    if case.family not in ("bernoulli", "categorical"):
        return np.asarray(case.y, dtype=float)
    classes, index = np.unique(np.asarray(case.y), return_inverse=True)
    return np.eye(len(classes))[index] if case.family == "categorical" else index.astype(float)


@dataclass(frozen=True)
class Problem:
    """One objective with everything it depends on, as torch tensors in float64."""

    family: str
    X: torch.Tensor
    target: torch.Tensor
    weight: torch.Tensor
    ridge: float
    intercept: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the parameters: (D,), or (D, K) for a softmax; an intercept is the last row."""
        depth = self.X.shape[1] + self.intercept
        return (depth, self.target.shape[1]) if self.target.ndim == 2 else (depth,)

    @property
    def tangent(self) -> torch.Tensor | None:
        """Orthonormal label coordinates of a softmax, ``K × (K − 1)``; None: the label itself."""
        if self.target.ndim == 1:
            return None
        return torch.from_numpy(simplex_basis(self.target.shape[1]).copy())

    @property
    def label_start(self) -> torch.Tensor:
        """The label coordinates at the data: displacements, all zero."""
        n = self.X.shape[0]
        return torch.zeros(n, 1 if self.tangent is None else self.tangent.shape[1]).double()

    def objective(self, theta: torch.Tensor, X: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """Σ ω ℓ + (nλ/2)‖w‖² at features ``X`` and labels displaced by ``label``."""
        theta = theta.reshape(self.shape)
        coef = theta[: X.shape[1]]
        margin = X @ coef + (theta[-1] if self.intercept else 0.0)
        shift = label[:, 0] if self.tangent is None else label @ self.tangent.T
        losses = LOSSES[self.family](margin, self.target + shift)
        return (self.weight * losses).sum() + self.ridge / 2 * (coef**2).sum()

    def slopes(self, theta: torch.Tensor) -> torch.Tensor:
        """ω ∂ℓ/∂m of every row (single output)."""
        coef = theta[: self.X.shape[1]]
        margin = self.X @ coef + (theta[-1] if self.intercept else 0.0)
        total = lambda m: (self.weight * LOSSES[self.family](m, self.target)).sum()  # noqa: E731
        return torch.func.grad(total)(margin)


def problem_of(case: Case) -> Problem:
    """Turn a case into tensors."""
    n = len(case.X)
    weight = np.ones(n) if case.sample_weight is None else case.sample_weight
    return Problem(
        case.family,
        torch.tensor(case.X, dtype=torch.float64),
        torch.tensor(encode(case), dtype=torch.float64),
        torch.tensor(weight, dtype=torch.float64),
        n * case.l2,
        case.intercept,
    )


def pseudo_inverse(H: torch.Tensor, gauge: bool) -> torch.Tensor:
    """Invert a Hessian: on its range where the model has a gauge freedom, everywhere otherwise."""
    if gauge:
        return torch.linalg.pinv(H, hermitian=True, rtol=NULL_DIRECTION)
    # A unit diagonal first: columns measured in different units then cost no precision.
    scale = H.diagonal() ** -0.5
    factor = torch.linalg.cholesky(scale[:, None] * H * scale)
    return scale[:, None] * torch.cholesky_inverse(factor) * scale


def minimise(problem: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the minimiser and the inverse of the Hessian there.

    Newton's method, halving a step until the objective does not rise; near the minimum, where the
    objective no longer tells steps apart, full steps until the gradient stops shrinking.
    """
    data = (problem.X, problem.label_start)
    gradient = torch.func.grad(problem.objective)
    hessian = torch.func.jacrev(gradient)  # torch's own takes tangents, and three times as long
    gauge = problem.target.ndim == 2
    theta = torch.zeros(int(np.prod(problem.shape)), dtype=torch.float64)
    best, smallest, patience = None, float("inf"), 0
    for _ in range(200):
        slope = gradient(theta, *data)
        inverse = pseudo_inverse(hessian(theta, *data), gauge)
        if slope.norm() < smallest:
            best, smallest, patience = (theta, inverse), float(slope.norm()), 0
        else:
            patience += 1
        if patience == 4 or smallest < NO_GRADIENT:
            return best
        step = inverse @ slope
        value = problem.objective(theta, *data)
        slack = 1e-13 * (1 + abs(value))
        while not problem.objective(theta - step, *data) <= value + slack:
            step = step / 2
        theta = theta - step
    raise AssertionError("The oracle's Newton iteration did not settle.")


def whitener(noise: Noise, size: int) -> np.ndarray:
    """Return some ``F`` with ``FᵀF`` the Fisher information of the noise about its location."""
    if isinstance(noise, Laplace):
        return np.diag(np.broadcast_to(1 / np.asarray(noise.scale), size))
    assert isinstance(noise, Gaussian)
    sigma = np.asarray(noise.sigma)
    if sigma.ndim < 2:
        return np.diag(np.broadcast_to(1 / sigma, size))
    return np.linalg.solve(np.linalg.cholesky(sigma), np.eye(size))


def fil(block: np.ndarray) -> float:
    """η: the largest singular value."""
    return float(np.linalg.svd(block, compute_uv=False).max(initial=0.0))


def dfil(block: np.ndarray) -> float:
    """Root of the trace of the information over the number of unknowns."""
    return float(np.sqrt((block**2).sum() / block.shape[1]))


MEASURES = {"fil": fil, "dfil": dfil}


@dataclass(frozen=True, eq=False)
class Dense:
    """The whitened Jacobian of one release, or of several stacked, in full.

    Parameters
    ----------
    jacobian
        ``(P, n, d + L)``: for every row its d features, then its L label coordinates.
    d
        The number of features.
    theta
        The minimiser (several releases: one after the other).
    """

    jacobian: np.ndarray
    d: int
    theta: np.ndarray

    @property
    def n(self) -> int:
        return self.jacobian.shape[1]

    @property
    def matrix(self) -> np.ndarray:
        """``J̃`` as one matrix, ``P × n(d + L)``, its columns ordered row by row."""
        return self.jacobian.reshape(len(self.jacobian), -1)

    def block(
        self,
        rows: Iterable[int] | None = None,
        columns: Sequence[int | Sequence[int]] | None = None,
        label: bool = False,
        simplex: bool = False,
    ) -> np.ndarray:
        """Cut out the columns of ``J̃`` for these rows, features and, if asked, labels.

        An entry of ``columns`` that is itself a sequence is a one-hot group; with ``simplex`` its
        unknowns are the displacements that keep the group's sum.
        """
        width = self.jacobian.shape[2]
        unit = np.eye(width)
        directions = []
        for entry in range(self.d) if columns is None else columns:
            group = np.atleast_1d(entry)
            constrained = simplex and np.ndim(entry) == 1
            part = unit[:, group]
            directions.append(part @ simplex_basis(len(group)) if constrained else part)
        if label:
            directions.append(unit[:, self.d :])
        which = range(self.n) if rows is None else rows
        cut = self.jacobian[:, list(which), :] @ np.concatenate(directions, axis=1)
        return cut.reshape(len(cut), -1)


def jacobian_of(problem: Problem, noise: Noise) -> Dense:
    """Differentiate the minimiser of a problem by the implicit function theorem."""
    theta, inverse = minimise(problem)
    mixed_features, mixed_label = torch.func.jacrev(
        torch.func.grad(problem.objective), argnums=(1, 2)
    )(theta, problem.X, problem.label_start)
    mixed = torch.cat([mixed_features, mixed_label], dim=2)
    plain = -(inverse @ mixed.reshape(len(theta), -1)).numpy()
    white = whitener(noise, len(theta)) @ plain
    return Dense(white.reshape(mixed.shape), problem.X.shape[1], theta.numpy())


@cache
def dense(case: Case) -> Dense:
    """Return the whitened Jacobian of a case (remembered: many tests ask for it)."""
    return jacobian_of(problem_of(case), case.noise)


def stack(*parts: Dense) -> Dense:
    """Put independent releases about the same unknowns on top of one another.

    Releases whose labels mean different things (a class of three beside a class of two) share
    only their features; the label coordinates are then left out.
    """
    widths = {part.jacobian.shape[2] for part in parts}
    width = widths.pop() if len(widths) == 1 else parts[0].d
    return Dense(
        np.concatenate([part.jacobian[:, :, :width] for part in parts]),
        parts[0].d,
        np.concatenate([part.theta for part in parts]),
    )

"""A linear model's objective in dense NumPy: gradient, Hessian and distance to the minimiser.

For a family with ``|ℓ‴| ≤ M ℓ″`` (Bach 2010), the distance from any θ to the minimiser θ* can be
bounded. Let ``H = H(θ)``, ``ν = ‖∇L(θ)‖_{H⁻¹}`` and ``R = max_j ‖x̃_j‖_{H⁻¹}``. A step δ changes no
margin (for softmax, no span of margins) by more than ``R‖δ‖_H``. So at ``θ + s(θ* − θ)``, with ``δ
= θ* − θ`` and s from 0 to 1, the curvature is at least ``exp(−M R s ‖δ‖_H)`` times the curvature at
θ::

    ν ‖δ‖_H  ≥  −⟨∇L(θ), δ⟩  =  ⟨∇L(θ*) − ∇L(θ), δ⟩  ≥  ‖δ‖_H (1 − exp(−M R ‖δ‖_H)) / (M R)
    ‖δ‖_H    ≤  −log(1 − M R ν) / (M R)        where M R ν < 1;   ν for least squares, where M = 0

Therefore ``‖δ‖ ≤ ‖δ‖_H/√λ_min(H)``, or ``‖∇L(θ)‖/ridge`` if every parameter is penalised.
"""

from __future__ import annotations

import math
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np

from seepage.glm.changes.outputs import Outputs
from seepage.glm.fitting.objective import FittedGLM
from seepage.support.double_double import EPS
from seepage.tables.source import as_numpy


class DenseObjective:
    """An objective in dense NumPy, with its gradient, Hessian and distance to the minimiser."""

    def __init__(self, fit: FittedGLM, columns: np.ndarray) -> None:
        self.columns, self.fit, self.outputs = columns, fit, Outputs(fit.family)
        self.y = np.asarray(as_numpy(fit.target), dtype=float)
        ones = np.ones((len(columns), int(fit.intercept is not None)))
        self.X = np.hstack([columns, ones])
        self.ridges = np.where(np.arange(self.X.shape[1]) < columns.shape[1], fit.ridge, 0.0)
        given = fit.sample_weight
        self.weight = np.ones(len(self.y)) if given is None else np.asarray(as_numpy(given))

    @cached_property
    def parameters(self) -> np.ndarray:
        """The parameters, (P,) or (P, K) for softmax: the coefficients, then the intercept."""
        coef = np.asarray(as_numpy(self.fit.coef), dtype=float)
        if self.fit.intercept is not None:
            own = np.asarray(as_numpy(self.fit.intercept), dtype=float)
            coef = np.concatenate([coef, own.reshape(1, *coef.shape[1:])])
        return np.asarray(coef)

    @cached_property
    def theta(self) -> np.ndarray:
        """The free parameters, of shape (P, c)."""
        return np.asarray(self.outputs.within(self.parameters))

    def without(self, rows: np.ndarray) -> DenseObjective:
        """Return the objective without these records, with the same total penalty."""
        rest = copy(self)
        rest.weight = self.weight.copy()
        rest.weight[rows] = 0.0
        return rest

    def gradient(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ``∇L``, (P, c), and a bound on the rounding error of each entry."""
        slopes = self.weight[:, None] * self.outputs.slope(self.X @ theta, self.y)
        pull = self.ridges[:, None] * theta
        sizes = np.abs(self.X).T @ np.abs(slopes) + np.abs(pull)
        # Of a sum of n products, and of the slopes at margins that are rounded themselves
        slope = np.asarray(self.X.T @ slopes + pull)
        return slope, EPS * (len(self.X) + 8 * self.X.shape[1] + 8) * sizes

    def hessian(self, theta: np.ndarray) -> np.ndarray:
        """Return ``H``, (P·c, P·c)."""
        curvature = self.outputs.curvature(self.X @ theta, self.y)
        weighted = self.weight[:, None, None] * curvature
        size = theta.size
        H = np.einsum("ni,nkl,nj->ikjl", self.X, weighted, self.X, optimize=True)
        penalty = np.diag(np.repeat(self.ridges, self.outputs.count))
        return np.asarray(H.reshape(size, size) + penalty)

    def stepped(self, theta: np.ndarray, term: float | np.ndarray = 0.0) -> np.ndarray:
        """Return the parameters after a Newton step; ``term`` is the gradient of a linear term."""
        slope = self.gradient(theta)[0] + term
        step = np.linalg.solve(self.hessian(theta), slope.ravel())
        return np.asarray(theta - step.reshape(theta.shape))

    def distance(self, theta: np.ndarray) -> float:
        """Return a bound on the Euclidean distance to the minimiser."""
        gradient, rounding = self.gradient(theta)
        values, vectors = np.linalg.eigh(self.hessian(theta))
        # Rounding moves eigenvalues by this much at most; without it nothing is certain.
        least = values[0] - 4 * len(self.X) * EPS * values[-1]
        if least <= 0:
            return math.inf
        lost, slope = float(np.linalg.norm(rounding)), gradient.ravel()
        nu = float(np.linalg.norm((vectors.T @ slope) / np.sqrt(values))) + lost / math.sqrt(least)
        constant = self.fit.family.self_concordance or 0.0
        reach = constant * self._reach((vectors / values) @ vectors.T)
        if reach * nu >= 1:
            near = math.inf
        else:
            near = -math.log1p(-reach * nu) / reach if reach > 1e-12 else nu
        found = near / math.sqrt(least)
        if np.all(self.ridges > 0):
            found = min(found, (float(np.linalg.norm(slope)) + lost) / float(self.ridges.min()))
        return found

    def _reach(self, inverse: np.ndarray) -> float:
        """Return ``R``, the largest change of any record's margins for a step of H-norm 1."""
        P, c = self.X.shape[1], self.outputs.count
        half = np.einsum("ni,ikjl->nkjl", self.X, inverse.reshape(P, c, P, c), optimize=True)
        products = np.einsum("nkjl,nj->nkl", half, self.X, optimize=True)
        widest = self.outputs.widest(products[self.weight > 0])
        return math.sqrt(max(float(widest.max(initial=0.0)), 0.0))

    def as_model(self, like: Any, theta: np.ndarray) -> Any:
        """Return a copy of a model with the given parameters."""
        basis, found = self.outputs.basis, copy(like)
        every = theta.T if basis is None else basis @ theta.T
        d = self.X.shape[1] - int(self.fit.intercept is not None)
        found.coef_ = every[:, :d].reshape(np.shape(like.coef_))
        if self.fit.intercept is not None:
            found.intercept_ = every[:, d].reshape(np.shape(like.intercept_))[()]
        return found

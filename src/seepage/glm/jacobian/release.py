"""A fitted GLM and its noise without the rows it was fitted on: what each chunk of them needs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from seepage.core.noise import Noise
from seepage.errors import InputError
from seepage.glm.adapters.describe import describe
from seepage.glm.estimators.base import LinearModel
from seepage.glm.estimators.inputs import read_penalty
from seepage.glm.fitting.curvature import gauge_fixed
from seepage.glm.fitting.existence import check_columns
from seepage.glm.fitting.fitted import FittedGLM
from seepage.glm.fitting.stationarity import gradient_and_spread, judge_stationarity
from seepage.glm.fitting.streamed import PenalisedLoss, StreamedObjective
from seepage.glm.jacobian.assembly import jacobian_of_rows, weighted_derivatives, whitened_inverse
from seepage.glm.jacobian.closed_form import SingleOutputJacobian
from seepage.glm.jacobian.operator import GLMJacobian
from seepage.glm.losses.categorical import Categorical
from seepage.tables.frames import Table

if TYPE_CHECKING:
    from seepage.tables.source import Chunk, RowSource

Array = Any


@dataclass(frozen=True)
class Release:
    """The parameters of a fitted GLM with noise, about rows that come in chunks.

    Parameters
    ----------
    fit
        The model; its target and weights are those of no row.
    problem
        The objective it minimises.
    template
        The Jacobian of the release about one made-up row: what all rows have in common is kept in
        it, and passed on to the Jacobians of the chunks.
    """

    fit: FittedGLM
    problem: PenalisedLoss
    template: GLMJacobian

    def jacobian(self, chunk: Chunk) -> GLMJacobian:
        """Return the Jacobian about the rows of a chunk, exact for each of them."""
        fit = replace(self.fit, target=self.problem.targets(chunk), sample_weight=chunk.weight)
        margins = fit.margins(chunk.X)
        if isinstance(self.template, SingleOutputJacobian):
            r, a, b = weighted_derivatives(fit, margins)
            return self.template.about(chunk.X, r, a, b, fit.target)
        return jacobian_of_rows(fit, chunk.X, margins, self.template.whitener)


@dataclass(frozen=True)
class OptimumSums:
    """The Hessian and gradient of the unpenalised objective of some rows at the coefficients."""

    hessian: Array
    gradient: Array
    squares: float  # Σ (ω r ‖x̃‖)²
    rows: int
    weight: float

    def __add__(self, other: OptimumSums) -> OptimumSums:
        return OptimumSums(
            self.hessian + other.hessian,
            self.gradient + other.gradient,
            self.squares + other.squares,
            self.rows + other.rows,
            self.weight + other.weight,
        )


def optimum_sums(chunk: Chunk, fit: FittedGLM, problem: PenalisedLoss) -> OptimumSums:
    """Return the sums at the coefficients of ``fit`` over a chunk."""
    objective = problem.on(chunk)
    here = replace(fit, target=objective.target, sample_weight=chunk.weight, ridge=0.0)
    gradient, spread = gradient_and_spread(here, chunk.X)
    counted = len(chunk) if chunk.weight is None else int(np.count_nonzero(chunk.weight))
    weight = float(counted) if chunk.weight is None else float(np.sum(chunk.weight))
    hessian = objective.hessian(here.margins(chunk.X))
    return OptimumSums(hessian, gradient, spread**2, counted, weight)


def release_of(model: Any, source: RowSource, noise: Noise, on_mismatch: str) -> Release:
    """Describe a fitted model, and check in one pass that it minimises its objective on the rows.

    The same pass gives the Hessian, and with it all that the leakage of a row needs besides the
    row itself.
    """
    fit, problem = describe_streamed(model, source)
    sums = source.total(partial(optimum_sums, fit=fit, problem=problem), "Hessian")
    if type(model).__name__ == "PoissonRegressor":
        # Its penalty is per unit of weight, which the made-up rows of the description do not know.
        fit = replace(fit, ridge=float(model.alpha) * sums.weight)
        problem = replace(problem, ridge=fit.ridge)
    ridge = problem.penalised(np.full(problem.shape, problem.ridge))
    H = sums.hessian + np.diag(np.ravel(ridge))
    check_columns(StreamedObjective(source, problem), H, sums.rows, source.names)
    if isinstance(problem.family, Categorical):
        H = gauge_fixed(H, problem.family.outputs)
    gradient = sums.gradient + ridge * fit.parameters
    judge_stationarity(fit, gradient, math.sqrt(sums.squares), H, on_mismatch)
    row = np.zeros((1, len(source.names)))
    target = np.zeros((1, *problem.shape[1:]))
    one = replace(fit, target=target, sample_weight=None)
    template = jacobian_of_rows(one, row, one.margins(row), whitened_inverse(H, noise))
    return Release(fit, problem, template)


def describe_streamed(model: Any, source: RowSource) -> tuple[FittedGLM, PenalisedLoss]:
    """Return a model's description without any row, and the objective it states."""
    if getattr(model, "class_weight", None) is not None:
        raise InputError(
            f"A {type(model).__name__} with class_weight is not supported on data that are read in "
            "chunks; fit it with a column of sample weights."
        )
    if type(model).__module__.startswith("statsmodels"):
        raise InputError(
            "Results of statsmodels hold their whole table in memory: pass that table instead of "
            "data that are read in chunks."
        )
    if source.weighted != getattr(model, "weighted_", source.weighted):
        raise InputError(
            "This model was fitted "
            + ("without sample weights" if source.weighted else "with sample weights")
            + ": open the data with weight= as for the fit."
        )
    classes = getattr(model, "classes_", None)
    labels = np.ones(1) if classes is None else np.asarray(classes)
    zero = np.broadcast_to(np.zeros((1, 1)), (len(labels), len(source.names)))
    table = Table(zero, source.names, None, "pyarrow")
    weights = np.full(len(labels), 2.0) if source.weighted else None
    fit = describe(model, table, labels, weights)
    if isinstance(model, LinearModel):
        fit = replace(fit, ridge=read_penalty(model.l2, len(source)))
    fit = replace(fit, sample_weight=None, target=fit.target[:0, ...])
    known = None if classes is None else np.asarray(classes)
    intercept = fit.intercept is not None
    return fit, PenalisedLoss(fit.family, known, fit.ridge, intercept, len(source.names))

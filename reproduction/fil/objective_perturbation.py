"""Beyond the paper: the leakage of objective perturbation, which its section 7 leaves for later.

Noise is added to the objective instead of the minimiser: the release minimises ``L(w) + bᵀw`` with
``b ~ N(0, β²I)``. For linear regression with ``H = XᵀX + nλI`` that is the minimiser less ``H⁻¹b``:
normal around it, with the covariance ``β²H⁻²``, which also depends on the data. With
``G = ∂∇ℓ/∂(x, y)`` of a record, ``P = H⁻¹``, ``u = Px``, ``v = P²x`` and ``q = xᵀPx``, the
information about its features and label is ::

    GᵀG/β² + [2(uuᵀ + qP) + vxᵀ + xvᵀ + ‖x‖²P² + ‖u‖²I]

where the second part, about the features alone, is the leakage of the covariance; no noise makes it
smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduction.drawing import Figure, draw_figure, power_ticks
from reproduction.fil.attribute_problems import warfarin
from reproduction.fil.image_models import image_model
from reproduction.outcome import Outcome, Quantity
from seepage import glm
from seepage.auditing.report.figures import BLUE, VERMILLION
from seepage.auditing.report.words import number
from seepage.support.chunks import progress

Array = NDArray[np.float64]

TARGETS = (1.0, 10.0)  # values of the largest η at which the mechanisms are compared
_CURVE = np.geomspace(0.04, 30, 120)
_ROWS = 4_000  # records whose information is held at a time
_SETTING = (
    "Linear regression: IWPC with λ = 0.01 and MNIST digits 0 and 1 in 20 principal components "
    "with λ = 0.0001, targets −1 and 1. Output perturbation adds N(0, σ²I) to the minimiser. "
    "Objective perturbation adds N(0, β²I) to the gradient of the objective, which adds N(0, "
    "β²H⁻²) to the minimiser, where H is the Hessian. The leakage η is about all features and the "
    "label of a record, and includes that of the data-dependent covariance. The paper names "
    "objective perturbation as future work."
)


@dataclass(frozen=True, eq=False)
class Mechanisms:
    """A linear regression under both mechanisms.

    Parameters
    ----------
    name
        Of the data.
    output
        η of every record under output noise with σ = 1; it falls as 1/σ.
    gradient, covariance
        Under objective perturbation: information matrices of every record, (n, d + 1, d + 1), from
        the minimiser at β = 1, which fall as 1/β², and from the covariance, which do not.
    error
        Test mean squared error without noise.
    per_output, per_objective
        The increase by noise of variance 1 of either kind.
    """

    name: str
    output: Array
    gradient: Array
    covariance: Array
    error: float
    per_output: float
    per_objective: float

    def objective(self, beta: float) -> Array:
        """Return η of every record under objective perturbation."""
        found = np.linalg.eigvalsh(self.gradient / beta**2 + self.covariance)[:, -1]
        return np.asarray(np.sqrt(found))

    @cached_property
    def floor(self) -> float:
        """The largest η that remains however large the noise."""
        return float(np.sqrt(np.linalg.eigvalsh(self.covariance)[:, -1].max()))

    @cached_property
    def steepest(self) -> float:
        """The β at which the most exposed record's η is 1, apart from the covariance."""
        return float(np.sqrt(np.linalg.eigvalsh(self.gradient)[:, -1].max()))

    def errors(self, eta: float) -> tuple[float, float]:
        """Return the test errors of both mechanisms at this largest η.

        The scale of objective perturbation is a safe choice: its two parts are added.
        """
        sigma = self.output.max() / eta
        left = eta**2 - self.floor**2
        beta = self.steepest / np.sqrt(left) if left > 0 else np.inf
        return (
            self.error + float(sigma**2 * self.per_output),
            self.error + float(beta**2 * self.per_objective),
        )


def mechanisms(name: str, X: Array, y: Array, test: tuple[Array, Array], l2: float) -> Mechanisms:
    """Fit the regression, and return the leakage of both mechanisms about its records."""
    n, d = X.shape
    w = np.ravel(glm.LinearRegression(l2=l2).fit(X, y).coef_)
    P = np.linalg.inv(X.T @ X + n * l2 * np.eye(d))
    output, gradient, covariance = [], [], []
    for start in range(0, n, _ROWS):
        rows = slice(start, start + _ROWS)
        G = changes_of_gradient(X[rows], y[rows], w)
        output.append(np.linalg.norm(P @ G, 2, axis=(1, 2)))
        gradient.append(G.transpose(0, 2, 1) @ G)
        covariance.append(information_of_covariance(X[rows], P))
    X_test, y_test = test
    spread = X_test.T @ X_test / len(X_test)
    return Mechanisms(
        name,
        np.concatenate(output),
        np.concatenate(gradient),
        np.concatenate(covariance),
        float(np.mean((X_test @ w - y_test) ** 2)),
        float(np.trace(spread)),
        float(np.trace(P @ spread @ P)),
    )


def changes_of_gradient(X: Array, y: Array, w: Array) -> Array:
    """Return ``∂∇ℓ/∂(x, y) = [x wᵀ + r I, −x]`` of every record, (n, d, d + 1)."""
    residuals = X @ w - y
    features = X[:, :, None] * w + residuals[:, None, None] * np.eye(len(w))
    return np.concatenate([features, -X[:, :, None]], axis=2)


def information_of_covariance(X: Array, P: Array) -> Array:
    """Return the information in the covariance ``β²P²`` about every record, (n, d + 1, d + 1)."""
    n, d = X.shape
    u, v = X @ P, X @ P @ P
    q = np.sum(X * u, axis=1)
    crossed = v[:, :, None] * X[:, None, :]
    found = 2 * (u[:, :, None] * u[:, None, :] + q[:, None, None] * P)
    found += crossed + crossed.transpose(0, 2, 1)
    found += np.sum(X**2, axis=1)[:, None, None] * (P @ P)
    found += np.sum(u**2, axis=1)[:, None, None] * np.eye(d)
    padded = np.zeros((n, d + 1, d + 1))
    padded[:, :d, :d] = found
    return padded


def reproduce(quick: bool) -> Outcome:
    """Compare the mechanisms at equal leakage of the most exposed record."""
    found = [_warfarin()] if quick else [_warfarin(), _digits()]
    quantities = [q for each in progress(found, "data sets") for q in _numbers(each)]
    seen = " ".join(_compared(each) for each in found)
    return Outcome(_SETTING, tuple(quantities), seen, _draw(found))


def _warfarin() -> Mechanisms:
    target = warfarin()
    data = target.problem
    return mechanisms("IWPC", data.X, data.y, (data.X_test, data.y_test), target.l2)


def _digits() -> Mechanisms:
    linear = image_model("MNIST", "linear")
    data = linear.problem
    return mechanisms("MNIST", data.X, linear.target, (data.X_test, 2 * data.y_test - 1), l2=1e-4)


def _numbers(each: Mechanisms) -> Iterator[Quantity]:
    yield Quantity(f"{each.name}: test MSE without noise", each.error)
    for eta in TARGETS:
        output, objective = each.errors(eta)
        yield Quantity(f"{each.name}: test MSE, output noise, largest η {eta:g}", output)
        yield Quantity(f"{each.name}: test MSE, objective noise, largest η {eta:g}", objective)
    yield Quantity(f"{each.name}: largest over median η, output noise", _unequal(each.output))
    yield Quantity(
        f"{each.name}: largest over median η, objective noise",
        _unequal(each.objective(each.steepest)),
    )
    yield Quantity(f"{each.name}: largest η that the covariance alone gives away", each.floor)


def _unequal(eta: Array) -> float:
    return float(eta.max() / np.median(eta))


def _compared(each: Mechanisms) -> str:
    output, objective = each.errors(1.0)
    ratio = (objective - each.error) / (output - each.error)
    return (
        f"{each.name}: with η = 1 for the most exposed record, objective perturbation increases "
        f"the test MSE {number(ratio)} times as much as output perturbation does. The largest η "
        f"is {_unequal(each.objective(each.steepest)):.1f} times the median (output perturbation: "
        f"{_unequal(each.output):.1f}); the covariance alone leaks η = {number(each.floor)}, for "
        "any noise."
    )


def _draw(found: list[Mechanisms]) -> Figure:
    def draw(canvas: Any) -> None:
        grid = canvas.subplots(1, len(found), squeeze=False)
        for axes, each in zip(grid[0], found, strict=True):
            both = np.array([each.errors(eta) for eta in _CURVE]).T / each.error - 1
            pairs = zip(("output", "objective"), both, (BLUE, VERMILLION), strict=True)
            for words, added, colour in pairs:
                axes.plot(_CURVE, added, color=colour, lw=2, label=f"{words} perturbation")
            axes.axvline(each.floor, color="#55606d", lw=1, ls=":", label="by the covariance alone")
            axes.set(xscale="log", yscale="log", xlabel="largest η of a record", ylim=(1e-6, 30))
            axes.set_title(each.name)
            power_ticks(axes.xaxis)
            power_ticks(axes.yaxis)
        grid[0, 0].set_ylabel("test MSE that the noise adds, relative")
        grid[0, -1].legend(loc="upper right")

    alternative = "Expected test error against the largest leakage of a record. " + "; ".join(
        f"{each.name}: at η = 1 {number(each.errors(1.0)[0])} with output perturbation, "
        f"{number(each.errors(1.0)[1])} with objective perturbation, {number(each.error)} without "
        "noise"
        for each in found
    )
    return draw_figure("fil-objective-perturbation", alternative, draw, (5.4 * len(found), 4))

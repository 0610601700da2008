"""Exact error rates, the noisy rates that are published for large tables, and their likelihood.

The privacy loss of the released model is counted separately. Given this model, adding, removing or
replacing a record changes the model's error rate, and the smallest error rate of any constant, by
at most ``1/(n − 1)`` each. With Laplace noise of scale ``2/((n − 1) ε)`` on each rate, the two
rates together are ε-differentially private. For n people with any number of records, the rate is
the mean of the people's error rates; one person changes it by no more than ``1/(n − 1)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from seepage.auditing.findings import ONE_ROW
from seepage.auditing.release.procedure import Prepared
from seepage.auditing.release.released_model import ReleasedModel
from seepage.auditing.report.words import MANY, ONE, number
from seepage.core.noise import Laplace
from seepage.tables.source import distinct


@dataclass(frozen=True)
class Usefulness:
    """Error rates of the released model and of the best constant prediction on the same records.

    Both are published with noise.
    """

    share: float  # the noisy rate of the model, clipped to [0, 1]
    constant: float  # the noisy rate of the best constant prediction, clipped to [0, 1]
    scale: float  # the scale of the noise on each rate
    epsilon: float  # the ε of both rates together
    unit: float | None  # for a numeric target, the error above which a prediction counts as wrong
    about: str = ONE_ROW  # whether ε is for one row, or for all rows of a person

    @property
    def name(self) -> str:
        """The name of the rate: of wrong classes, or of predicted numbers with too large errors."""
        if self.unit is None:
            return "error rate"
        return f"share of predictions off by more than {number(self.unit)}"

    def words(self) -> str:
        """Return a description of how the error rates are protected."""
        return (
            f"It has Laplace noise of scale {number(self.scale)}. Together, the two rates are "
            f"ε-differentially private with ε = {self.epsilon:g} (one {ONE[self.about]} added, "
            "removed or replaced), given the model."
        )


@dataclass(frozen=True, eq=False)
class ErrorRates:
    """Error rates of a noisy model and of the best constant prediction on a table's records."""

    prepared: Prepared

    @property
    def published(self) -> bool:
        """Whether the rates are published; below 1,000 records or people, noise would dominate."""
        return bool(self._people >= 1000)

    def exact(self, model: ReleasedModel) -> np.ndarray:
        """Return both rates before noise.

        A predicted number counts as wrong if its error exceeds the published unit.
        """
        source, unit = self.prepared.trained.records, self._unit
        predicted, truth = model.estimator.predict(source.X), source.y
        if unit is not None:
            wrong = np.abs(np.asarray(predicted, float) - np.asarray(truth, float)) > unit
        else:
            wrong = np.asarray(predicted) != np.asarray(truth)
        return np.array([self._weight @ wrong, self._constant])

    def noisy(self, exact: np.ndarray) -> Usefulness:
        """Return both rates with noise, as published."""
        noise, epsilon = rate_noise(self._people)
        share, constant = np.clip(noise.rounded(exact + noise.draw(2)), 0, 1).tolist()
        unit_of = self.prepared.trained.unit
        return Usefulness(share, constant, noise.scale, epsilon, self._unit, unit_of)

    @property
    def epsilon(self) -> float:
        """The ε of both rates together; zero if they are not published."""
        return rate_noise(self._people)[1] if self.published else 0.0

    @property
    def _people(self) -> int:
        return int(self.prepared.figures[f"number of {MANY[self.prepared.trained.unit]}"])

    @property
    def _unit(self) -> float | None:
        return self.prepared.figures.get("unit of the target")

    @cached_property
    def _weight(self) -> np.ndarray:
        owner = self.prepared.trained.records.owner
        weight = 1 / np.bincount(owner)[owner]
        return np.asarray(weight / weight.sum())

    @cached_property
    def _constant(self) -> float:
        truth = np.asarray(self.prepared.trained.records.y)
        return wrong_constant(truth, self._unit, self._weight)


def rate_noise(people: int, epsilon: float = 0.05) -> tuple[Laplace, float]:
    """Return the noise on each error rate, and the ε of both together."""
    return Laplace(2 / ((people - 1) * epsilon)), epsilon


def wrong_constant(truth: np.ndarray, unit: float | None, weight: np.ndarray) -> float:
    """Return the error rate of the best constant prediction, a class or a number.

    Records are weighted; the weights sum to one. A number counts as wrong if it is more than one
    unit from the constant. The best constant is the centre of a window of two units that begins at
    some record's value.
    """
    if unit is None:
        return float(1 - np.bincount(distinct(truth)[1], weight).max())
    order = np.argsort(truth.astype(float), kind="stable")
    numbers, below = truth.astype(float)[order], np.cumsum([0.0, *weight[order]])
    inside = below[np.searchsorted(numbers, numbers + 2 * unit, "right")] - below[:-1]
    return float(1 - inside.max())


def log_likelihood(rates: Usefulness, exact: np.ndarray) -> float:
    """Return the log-likelihood of published error rates given exact ones, up to a constant.

    A rate clipped to 0 may have had any value below 0. Its log-likelihood is ``log F(−exact/b)``,
    with b the scale of the noise, and F the distribution function of Laplace noise of scale 1.
    Rates clipped to 1 are treated in the same way.
    """
    seen = np.array([rates.share, rates.constant])
    apart = (seen - exact) / rates.scale
    beyond = np.where(seen <= 0, apart, -apart)
    cut = np.where(beyond < 0, beyond - np.log(2), np.log1p(-np.exp(-np.abs(beyond)) / 2))
    inside = -np.abs(apart) - np.log(2)
    return float(np.sum(np.where((seen <= 0) | (seen >= 1), cut, inside)))

"""Tables with a nominal attribute, and the naive truth: one refit for every row and level."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import seepage as sp
from recipes import OWN_FAMILIES, binary, counts, straight, table, uneven
from seepage.attacks import NominalAttribute


@dataclass(frozen=True, eq=False)
class Setting:
    """A model to be trained on a table whose columns ``attribute.columns`` are under attack."""

    name: str
    model: Any
    X: np.ndarray
    y: np.ndarray
    attribute: NominalAttribute
    sample_weight: np.ndarray | None = None

    @cached_property
    def refits(self) -> np.ndarray:
        """The parameters for every row and level, (n, K, P): a full fit for each."""
        return np.array(
            [[self.refit(row, code) for code in self.attribute.codes] for row in range(len(self.X))]
        )

    def refit(self, row: int, code: np.ndarray) -> np.ndarray:
        """Return the parameters with another code in one row, by a full fit."""
        X = self.X.copy()
        X[row, list(self.attribute.columns)] = code
        return parameters(sp_clone(self.model).fit(X, self.y, sample_weight=self.sample_weight))


def sp_clone(model: Any) -> Any:
    """Return an unfitted copy."""
    return type(model)(**model.get_params())


def parameters(model: Any) -> np.ndarray:
    """Return the released numbers of one of our models, the intercept last."""
    last = [np.reshape(model.intercept_, 1)] if model.fit_intercept else []
    return np.concatenate([np.ravel(model.coef_), *last])


def with_attribute(
    seed: int, n: int, d: int, K: int, *, complete: bool = False
) -> tuple[np.ndarray, NominalAttribute]:
    """Return n rows of d numbers and an attribute of K levels, one-hot, in the middle columns."""
    rng = np.random.default_rng(seed)
    level = rng.permutation(np.concatenate([np.arange(K), rng.integers(0, K, n - K)]))
    one_hot = np.eye(K)[level][:, 0 if complete else 1 :]
    others = table(seed + 1000, n, d)
    X = np.hstack([others[:, : d // 2], one_hot, others[:, d // 2 :]])
    columns = range(d // 2, d // 2 + one_hot.shape[1])
    return X, NominalAttribute.from_table(X, list(columns), "level")


def _linear() -> list[Setting]:
    X, three = with_attribute(0, 40, 4, 3)
    y = straight(1, X)
    whole, complete = with_attribute(2, 30, 3, 4, complete=True)
    wide, two = with_attribute(3, 12, 20, 2)
    # Centred and scaled one-hot columns, and a single column of arbitrary numbers.
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    coded = X.copy()
    coded[:, 2] = np.where(X[:, 2] == 1, 3.5, -1.25)
    # The last level occurs in one row alone: its column exists through that row only.
    alone = X.copy()
    alone[:, 3] = np.arange(40) == 7
    alone[7, 2] = 0.0
    linear = sp.glm.LinearRegression
    none = np.where(np.arange(40) % 5 == 2, 0.0, uneven(4, 40))
    from_table = NominalAttribute.from_table
    return [
        Setting("linear", linear(), X, y, three),
        Setting("linear-l2", linear(l2=0.05), X, y, three),
        Setting("linear-intercept", linear(fit_intercept=True), X, y, three),
        Setting("linear-weights", linear(l2=1e-3), X, y, three, uneven(5, 40)),
        Setting("linear-zero-weights", linear(0.01, True), X, y, three, none),
        Setting("linear-complete", linear(l2=0.01), whole, straight(6, whole), complete),
        Setting("linear-wide", linear(l2=0.1), wide, straight(7, wide), two),
        Setting("linear-scaled", linear(0.02, True), scaled, y, from_table(scaled, [2, 3])),
        Setting("linear-coded", linear(l2=0.02), coded, y, from_table(coded, [2])),
        Setting("linear-alone", linear(l2=1e-3), alone, y, from_table(alone, [2, 3])),
        Setting("linear-large-numbers", linear(), X * 1e3, y * 1e5, from_table(X * 1e3, [2, 3])),
    ]


def _curved() -> list[Setting]:
    X, three = with_attribute(10, 40, 4, 3)
    y, c = binary(11, X), counts(12, X)
    many, two = with_attribute(13, 200, 3, 2)
    wide, pair = with_attribute(14, 16, 20, 2)
    logistic, poisson = sp.glm.LogisticRegression, sp.glm.PoissonRegression
    huber = sp.glm.GeneralizedLinearRegression(OWN_FAMILIES["pseudo-huber"], l2=0.01)
    apart = (X[:, 0] > 0).astype(float)
    named = np.where(y == 1, "yes", "no")
    return [
        Setting("logistic", logistic(), X, y, three),
        Setting("logistic-intercept", logistic(1e-3, True), X, y, three),
        Setting("logistic-names", logistic(1e-3, True), X, named, three),
        Setting("logistic-weights", logistic(0.01), X, y, three, uneven(15, 40)),
        Setting("logistic-many", logistic(1e-3), many, binary(16, many), two),
        Setting("logistic-separable", logistic(1e-3), X * 3, apart, _thrice(three)),
        Setting("logistic-wide", logistic(0.05, True), wide, binary(17, wide), pair),
        Setting("poisson", poisson(0.01), X, c, three),
        Setting("poisson-intercept-weights", poisson(0.01, True), X, c, three, uneven(18, 40)),
        Setting("own-family", huber, X, straight(19, X), three),
    ]


def _thrice(attribute: NominalAttribute) -> NominalAttribute:
    return NominalAttribute(
        attribute.name, attribute.columns, attribute.codes * 3, attribute.levels
    )


LINEAR, CURVED = _linear(), _curved()
SETTINGS = LINEAR + CURVED

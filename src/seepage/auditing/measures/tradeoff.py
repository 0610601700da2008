"""What privacy costs: the error on held-out records and the leakage as the noise grows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from seepage.auditing.intake.recipe import Recipe
from seepage.auditing.measures.findings import Curve
from seepage.auditing.measures.measure import record_leakage
from seepage.auditing.measures.subject import Subject, label_step
from seepage.errors import InputError

HELD_OUT = 0.2
DRAWS = 20
POINTS = 15
_WEAKEST_PENALTY = 1e-6  # with which a model without penalty is fitted where rows are missing
TESTED = 20_000  # held-out records at most: more would not make the error any surer


@dataclass(frozen=True, eq=False)
class Trial:
    """A model fitted on 80 % of the rows, with what its noisy copies predict for the others."""

    margins: np.ndarray  # (m, K): those of the held-out records, without noise
    shifts: np.ndarray  # (draws, m, K): what noise of standard deviation one adds to them
    truth: np.ndarray  # (m,): classes by their position, or numbers
    eta: np.ndarray  # leakage of the training records at σ = 1
    recipe: Recipe
    trivial_error: float
    ceiling: float  # largest count seen

    def error(self, sigma: float) -> float:
        """Return the error with noise σ, the mean over the draws (a root mean square of numbers).

        Draws are the same for every σ, so that errors differ by the noise and not by chance.
        """
        errors = [self._loss(self.margins + sigma * shift) for shift in self.shifts]
        return self._named(float(np.mean(errors)))

    def noiseless_error(self) -> float:
        """Return the error without noise."""
        return self._named(self._loss(self.margins))

    def _named(self, loss: float) -> float:
        return loss if self.recipe.classifies else float(np.sqrt(loss))

    def _loss(self, margins: np.ndarray) -> float:
        return float(np.mean(losses(self.recipe, margins, self.truth, self.ceiling)))

    @property
    def median_eta(self) -> float:
        """The leakage of the median training record at σ = 1."""
        return float(np.median(self.eta))

    @property
    def worst_eta(self) -> float:
        """The leakage of the most leaked training record at σ = 1."""
        return float(np.max(self.eta))


class Tried(Protocol):
    """What is told of a trial, whether its records are in memory or not."""

    @property
    def recipe(self) -> Recipe:
        """How the model was fitted."""

    @property
    def trivial_error(self) -> float:
        """The error of always giving the same answer."""

    @property
    def median_eta(self) -> float:
        """The leakage of the median record at σ = 1."""

    @property
    def worst_eta(self) -> float:
        """The leakage of the most leaked record at σ = 1."""

    def error(self, sigma: float) -> float:
        """Return the error with noise σ."""

    def noiseless_error(self) -> float:
        """Return the error without noise."""


def losses(recipe: Recipe, margins: np.ndarray, truth: np.ndarray, ceiling: float) -> np.ndarray:
    """Return the loss of every record: whether it is told wrongly, or the squared error."""
    if recipe.model == "logistic":
        return np.asarray((margins[:, 0] > 0) != truth)
    if recipe.model == "softmax":
        return np.asarray(np.argmax(margins, axis=1) != truth)
    predicted = margins[:, 0]
    if recipe.model == "poisson":
        # Nobody would believe a count far beyond all that were ever seen.
        predicted = np.minimum(np.exp(np.minimum(predicted, 700.0)), ceiling)
    return np.asarray((predicted - truth) ** 2)


def error_name(recipe: Recipe) -> str:
    """Return what the error is, in words."""
    if recipe.classifies:
        return "share of wrong predictions"
    if recipe.model == "poisson":
        return "root mean squared error (predictions capped at the largest count)"
    return "root mean squared error"


def try_out(subject: Subject, recipe: Recipe, seed: int) -> Trial:
    """Fit on 80 % of the rows and draw noise for the rest."""
    train, test = split(subject.y, recipe.classifies, seed)
    weights = subject.sample_weight
    part = None if weights is None else weights[train]
    X, y = subject.X[train], subject.y[train]
    try:
        model = recipe.fit(X, y, part)
    except InputError:
        if recipe.l2 >= _WEAKEST_PENALTY:
            raise
        # A level that only held-out rows have leaves its column undetermined without a penalty.
        recipe = recipe.with_penalty(_WEAKEST_PENALTY)
        model = recipe.fit(X, y, part)
    fitted = replace(
        subject,
        model=model,
        X=X,
        y=y,
        sample_weight=part,
        row_index=subject.row_index[train],
        groups={},
        label_spread=label_step(y, subject.target_kind),
    )
    margins, shifts = noisy_margins(model, recipe, subject.X[test], seed)
    truth = subject.y[test]
    if recipe.classifies:
        truth = np.searchsorted(model.classes_, truth)
        known, counts = np.unique(np.searchsorted(model.classes_, y), return_counts=True)
        trivial = float(np.mean(truth != known[int(np.argmax(counts))]))
    else:
        truth = np.asarray(truth, dtype=float)
        trivial = float(np.sqrt(np.mean((truth - np.mean(np.asarray(y, dtype=float))) ** 2)))
    return Trial(
        margins=margins,
        shifts=shifts,
        truth=truth,
        eta=record_leakage(fitted),
        recipe=recipe,
        trivial_error=trivial,
        ceiling=0.0 if recipe.classifies else float(np.max(np.asarray(y, dtype=float))),
    )


def noisy_margins(
    model: Any, recipe: Recipe, X: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the margins (m, K) of some records, and what draws of the noise add at σ = 1."""
    coef = np.atleast_2d(np.asarray(model.coef_, dtype=float)).T  # (D, K)
    if recipe.intercept:
        coef = np.vstack([coef, np.reshape(np.asarray(model.intercept_, dtype=float), (1, -1))])
        X = np.hstack([X, np.ones((len(X), 1))])
    noise = np.random.default_rng(seed).standard_normal((DRAWS, *coef.shape))
    return X @ coef, np.stack([X @ draw for draw in noise])


def curve_scales(sigma: float, calibrated: float) -> np.ndarray:
    """Return the noise scales of the curve, around the two that matter."""
    low, high = min(sigma, calibrated), max(sigma, calibrated)
    # The two themselves are among them, so that nothing has to be read off between points.
    return np.unique([*np.geomspace(low / 100, high * 30, POINTS), sigma, calibrated])


def draw_curve(trial: Tried, sigma: float, calibrated: float) -> Curve:
    """Return the error and the leakage over noise scales around the two that matter."""
    scales = curve_scales(sigma, calibrated)
    return Curve(
        sigma=scales,
        error=np.array([trial.error(float(s)) for s in scales]),
        median_eta=trial.median_eta / scales,
        worst_eta=trial.worst_eta / scales,
        error_name=error_name(trial.recipe),
        noiseless_error=trial.noiseless_error(),
        trivial_error=trial.trivial_error,
    )


def split(y: np.ndarray, classes: bool, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows to fit on and those held out, every class on the first side."""
    n = len(y)
    order = np.random.default_rng(seed).permutation(n)
    wanted = max(1, round(HELD_OUT * n))
    if classes:
        # The first record of every class (in random order) stays on the side of the fit.
        _, first = np.unique(y[order], return_index=True)
        rest = np.delete(order, first)
        train = order[first]
    else:
        rest, train = order, order[:0]
    wanted = min(wanted, len(rest) - 1)
    if wanted < 1:
        raise InputError(
            f"The table has {n} usable rows, too few to fit a model on some and test it on others."
        )
    test = rest[:wanted]
    return np.sort(np.concatenate([train, rest[wanted:]])), np.sort(test[:TESTED])

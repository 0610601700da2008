"""Black-box attribute inference: the adversary can only query the released model."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from seepage.attacks.attribute.adversary import AttributeInversion
from seepage.attacks.noisy_releases import Releases
from seepage.errors import InputError
from seepage.glm.losses import class_positions
from seepage.support.chunks import row_slices
from seepage.tables.source import as_numpy

Predict = Callable[[np.ndarray], np.ndarray]


class BlackBox(AttributeInversion):
    """Guesses the level for which the released model best predicts the target's label.

    Let ``f`` be the released model, ``p(k)`` the frequency of level k and ``x_k`` the target's row
    with level k. The guess is ``argmax_k p(k) π(y, f(x_k))`` (Hannun et al. 2021, after Fredrikson
    et al. 2014). The performance measure ``π`` is published with the model:

    - regression: the Gaussian density of ``y`` around ``f(x_k)`` with the residual variance
      ``s² = Σ (f(x) − y)² / (n − d)`` over n rows with d columns;
    - classification: among the records predicted as ``f(x_k)``, the share whose class is ``y``,
      from the confusion matrix. The shares are smoothed: for each prediction, one more record is
      counted and split over the classes by their frequencies. A prediction that never occurs is
      thus uninformative.

    The frequencies, and the performance of each release, are computed on the rows given to ``fit``.
    Pass the rows on which the publisher measured the model's performance.

    Parameters
    ----------
    attribute
        The attribute to infer.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> rng = np.random.default_rng(0)
    >>> X = np.column_stack([rng.integers(0, 2, 300), rng.standard_normal(300)]).astype(float)
    >>> y = 3 * X[:, 0] + X[:, 1] + rng.standard_normal(300)
    >>> model = sp.glm.LinearRegression().fit(X, y)
    >>> attribute = sp.attacks.NominalAttribute.from_table(X, [0], "level")
    >>> releases = sp.attacks.draw_releases(model, sp.Gaussian(0.01), 20, seed=0)
    >>> sp.attacks.BlackBox(attribute).fit(X, y).attack(X, y, releases).accuracy > 0.9
    True
    """

    name = "black-box"

    def _prepare(self, release: Any) -> tuple[Any, int]:
        predict, trials, classes = _queries(release)
        if classes is None:
            performance = self._standard_errors(predict, trials)
        else:
            performance = self._confusions(predict, classes, trials)
        return (predict, performance, classes), trials

    def _scores(self, X: np.ndarray, y: np.ndarray, rows: slice, release: Any) -> np.ndarray:
        scores, (predict, performance, classes) = [], release
        for code, prior in zip(self.attribute.codes, self.log_prior_, strict=True):
            X[:, self.attribute.columns] = code
            with np.errstate(over="ignore"):  # of exp, under much noise, to infinite predictions
                said = predict(X)
            scores.append(prior + _log_performance(said, y, performance, classes))
        return np.stack(scores, axis=2)

    def _standard_errors(self, predict: Predict, trials: int) -> np.ndarray:
        """Return ``s²`` of every release, (T,)."""
        table = np.asarray(as_numpy(self._known.values), dtype=float)
        n, d = table.shape
        y = _numbers(self._labels)
        with np.errstate(over="ignore"):
            squares = sum(
                ((predict(table[rows]) - y[rows]) ** 2).sum(axis=1)
                for rows in row_slices(n, d + 3 * trials)
            )
        # A perfect fit is perfect only to rounding, and is allowed that much error.
        rounding = (np.finfo(float).eps * np.abs(y).max()) ** 2 + np.finfo(float).tiny
        return np.asarray(np.maximum(squares / (n - d if n > d else n), rounding))

    def _confusions(self, predict: Predict, classes: np.ndarray, trials: int) -> np.ndarray:
        """Return the logarithm of ``P(class | prediction)``, (T, classes, predictions)."""
        table = np.asarray(as_numpy(self._known.values), dtype=float)
        n, d = table.shape
        truth = class_positions(self._labels, classes)
        shares = np.bincount(truth, minlength=len(classes)) / n
        counts: Any = 0.0
        for rows in row_slices(n, d + 3 * trials):
            said = np.searchsorted(classes, predict(table[rows]))
            counts = counts + np.stack(
                [
                    [(said[:, truth[rows] == y] == c).sum(axis=1) for c in range(len(classes))]
                    for y in range(len(classes))
                ]
            ).transpose(2, 0, 1)
        counts = counts + shares[:, None]
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(counts / counts.sum(axis=1, keepdims=True)))


def _log_performance(
    said: np.ndarray, y: np.ndarray, performance: np.ndarray, classes: np.ndarray | None
) -> np.ndarray:
    """Return ``log π(y, f(x))`` up to a constant, (T, b)."""
    if classes is not None:
        truth, answers = class_positions(y, classes), np.searchsorted(classes, said)
        return np.asarray(performance[np.arange(len(said))[:, None], truth, answers])
    with np.errstate(over="ignore", invalid="ignore"):
        gain = -0.5 * (said - _numbers(y)) ** 2 / performance[:, None]
    # Predictions that overflow make the standard error infinite: they say nothing about the level.
    return np.where(np.isfinite(performance)[:, None], gain, 0.0)


def _queries(release: Any) -> tuple[Predict, int, np.ndarray | None]:
    """Return a function that queries all releases, their number, and a classifier's classes."""
    if isinstance(release, Releases):
        return release.predict, len(release), release.classes
    if not hasattr(release, "predict"):
        raise InputError(
            "The black-box adversary queries a released model; pass a model with predict (from "
            "sp.release(model, noise)), or many releases (from sp.attacks.draw_releases)."
        )
    from sklearn.base import is_classifier

    classes = np.sort(np.asarray(release.classes_)) if is_classifier(release) else None

    def predict(X: np.ndarray) -> np.ndarray:
        with warnings.catch_warnings():
            # A model fitted on a data frame warns about a plain array.
            warnings.filterwarnings("ignore", message="X does not have valid feature names")
            return as_numpy(release.predict(X))[None, :]

    return predict, 1, classes


def _numbers(y: np.ndarray) -> np.ndarray:
    if y.dtype.kind not in "biuf":
        raise InputError(
            f"y contains {y.dtype} values, but the released model predicts numbers; pass numeric "
            "labels."
        )
    return y.astype(float)

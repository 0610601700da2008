"""The informed adversary knows all records but one and reconstructs that record from the model."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from seepage.attacks.noisy_releases import parameters_of
from seepage.attacks.record.informed_margin import MarginAttack
from seepage.attacks.record.informed_softmax import SoftmaxAttack
from seepage.attacks.record.reconstruction_error import ErrorTally, ReconstructionErrors
from seepage.core.leakage import named_positions
from seepage.core.noise import Gaussian, Noise
from seepage.errors import InputError, NotConvergedWarning, accepts_other_names
from seepage.glm.adapters.registry import describe
from seepage.glm.fitting.objective import FittedGLM
from seepage.glm.jacobian.optimum import check_stationarity
from seepage.glm.losses import Categorical
from seepage.support.chunks import CHUNK, progress, row_slices, spread
from seepage.support.number_check import check_choice, check_count
from seepage.tables.source import Table, as_numpy, read_table


@dataclass(frozen=True, eq=False, repr=False)
class Reconstruction:
    """The records that an adversary reconstructed.

    Parameters
    ----------
    features
        The reconstructed columns of each row, for each release, (T, m, d).
    labels
        The label of each row as a number, (T, m); a class is its position among the sorted classes.
        The label is inferred if the adversary does not know it, and NaN if the inference failed.
    rows
        The attacked rows, (m,).
    """

    features: np.ndarray
    labels: np.ndarray
    rows: np.ndarray

    def to_numpy(self) -> np.ndarray:
        """Return the reconstructed columns, (T, m, d)."""
        return self.features

    def __repr__(self) -> str:
        releases, rows, columns = self.features.shape
        return (
            f"<reconstruction of {rows:,} record{'s' if rows != 1 else ''} of {columns:,} columns "
            f"from {releases:,} release{'s' if releases != 1 else ''}, attack>"
        )


class InformedAdversary:
    """Reconstructs a record from released parameters and all other records.

    At a minimiser, the gradient is zero, so the known records and the penalty determine the unknown
    record's gradient. That gradient is a multiple of the record itself (Balle, Cherubin and Hayes
    2022, "Reconstructing training data with informed adversaries"). A column known to be constant,
    such as the intercept column, reveals the factor and the label. If the label is known, the
    reconstruction is more accurate and needs no constant column. The attack refits no model. All
    rows are attacked at once, each as if all other rows were known.

    Parameters
    ----------
    model
        The kind of model that was trained, with its penalty: any linear model from
        :mod:`seepage.glm`, or one from scikit-learn, such as ``LinearRegression``, ``Ridge``,
        ``LogisticRegression`` or ``PoissonRegressor``. The model need not be fitted: a copy is
        fitted, unless the model already minimises its objective on the adversary's data.
    label
        Whether the label is ``"known"`` or ``"unknown"`` to the adversary.
    noise
        The noise of the release, which the adversary knows and uses to weight the equations. By
        default, the noise is assumed to be small and equal on all parameters.

    Attributes
    ----------
    model_
        The model fitted on the table: the release without its noise.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> from seepage.attacks import InformedAdversary
    >>> diabetes = sp.data.load_bundled("diabetes")
    >>> X, y = diabetes.X / diabetes.X.std(axis=0), (diabetes.y - 152) / 77
    >>> model = sp.glm.LinearRegression(l2=1e-3, fit_intercept=True)
    >>> adversary = InformedAdversary(model, label="unknown").fit(X, y)
    >>> found = adversary.reconstruct(adversary.model_, rows=[7])  # released without noise
    >>> bool(np.allclose(found.features[0, 0], X[7])), bool(np.isclose(found.labels[0, 0], y[7]))
    (True, True)
    """

    model_: Any

    def __init__(self, model: Any, *, label: str = "known", noise: Noise | None = None) -> None:
        check_choice(label, "label", ("known", "unknown"))
        self.model, self.label, self.noise = model, label, noise

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Store the records, labels and weights; the attack on a row uses all other rows."""
        table = read_table(X)
        values = as_numpy(table.values)
        plain = Table(values, table.names, table.index, table.library)
        self.model_, fit = _trained(self.model, X, y, sample_weight, plain)
        known = self.label == "known"
        self._attack: MarginAttack | SoftmaxAttack
        if isinstance(fit.family, Categorical):
            self._attack = SoftmaxAttack(fit, values, known)
        else:
            self._attack = MarginAttack(fit, values, self.noise, known)
        self._table = plain
        return self

    def reconstruct(self, release: Any, rows: Any = None) -> Reconstruction:
        """Return the reconstructions of the given rows from releases.

        Parameters
        ----------
        release
            A released model, the result of :func:`seepage.attacks.draw_releases`, or an array of
            parameters, (P,) or (T, P), by feature, then by class; the intercept is last.
        rows
            The attacked rows; by default, all rows.
        """
        attack, which = self._fitted(), named_positions(rows, len(self._table), self._table)
        theta = parameters_of(release, int(np.asarray(attack.fit.parameters).size))
        parts = [attack.reconstruct(some, which) for some in self._pieces(theta)]
        features, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Reconstruction(features, labels, which)

    @accepts_other_names
    def errors(
        self, noise: Noise, trials: int = 100, *, rows: Any = None, seed: int | None = None
    ) -> ReconstructionErrors:
        """Return the reconstruction errors over many releases with independent noise.

        For a model with one margin, reconstructions are never stored: a trial over all n rows needs
        four products of the table with a vector.

        Parameters
        ----------
        noise
            The noise added to the parameters.
        trials
            The number of attacked releases.
        rows
            The attacked rows; by default, all rows.
        seed
            The seed of the noise, for repeatable results.
        """
        attack, which = self._fitted(), named_positions(rows, len(self._table), self._table)
        theta = self._draw(noise, trials, seed)
        unknown = self._unknown()
        size = int(unknown.sum())

        def one(some: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            squared, offset = attack.errors(some, which)
            squared /= size
            return squared, offset if size == len(unknown) else offset[:, unknown]

        tally = ErrorTally(self._names(which), size)
        # Whole releases, not parts of a product, so that elementwise work is parallel too.
        for squared, offset in spread(one, progress(self._pieces(theta), "attacking")):
            tally.add(squared, offset)
        return tally.result()

    @accepts_other_names
    def slopes(
        self, noise: Gaussian, trials: int = 100, *, rows: Any = None, seed: int | None = None
    ) -> np.ndarray:
        """Return the slope of each row's mean reconstruction with respect to the row, (m,).

        The result is the mean slope γ over the columns: 1 for an unbiased adversary, 0 for an
        adversary whose estimate ignores the record. By theorem 2 of Guo et al. (2022), the mean
        squared error per unknown is at least ``γ²/η̄²``, where η̄ is the record's dFIL. A biased
        adversary can therefore fall below the bound ``1/η̄²`` for unbiased adversaries. Slopes are
        available only for a model with one margin and for Gaussian noise. The parameters are those
        of :meth:`errors`.
        """
        attack, which = self._fitted(), named_positions(rows, len(self._table), self._table)
        if isinstance(attack, SoftmaxAttack) or not isinstance(noise, Gaussian):
            raise InputError(
                "Slopes are available only for models with one margin and Gaussian noise; use "
                "errors() instead."
            )
        theta, total = self._draw(noise, trials, seed), np.zeros(len(which))
        for some in progress(self._pieces(theta), "following"):
            total += attack.slope_sums(some, which, noise)
        return total / (trials * int(self._unknown().sum()))

    def _draw(self, noise: Noise, trials: int, seed: int | None) -> np.ndarray:
        check_count(trials, "trials")
        base = np.asarray(self._fitted().fit.parameters).reshape(-1)
        return np.asarray(base + noise.draw((trials, len(base)), seed))

    def _unknown(self) -> np.ndarray:
        """Return the columns to reconstruct: all except a column that is known to be constant."""
        attack = self._fitted()
        unknown = np.ones(attack.X.shape[1], dtype=bool)
        if attack.column is not None and attack.column < len(unknown):
            unknown[attack.column] = False
        return unknown

    def _fitted(self) -> MarginAttack | SoftmaxAttack:
        if not hasattr(self, "_attack"):
            raise InputError("This adversary has not been fitted; call fit(X, y) first.")
        return self._attack

    def _names(self, rows: np.ndarray) -> np.ndarray:
        return rows if self._table.index is None else np.asarray(self._table.index[rows])

    def _pieces(self, theta: np.ndarray) -> list[np.ndarray]:
        """Return the releases in chunks that are small enough to process at once."""
        margins = len(self._table) * self._fitted().outputs
        return [theta[some] for some in row_slices(len(theta), margins, chunk=4 * CHUNK)]


def _trained(model: Any, X: Any, y: Any, sample_weight: Any, table: Table) -> tuple[Any, FittedGLM]:
    """Return the model trained on the data (refitted if necessary), and its objective."""
    from sklearn.base import clone

    labels = as_numpy(y)
    if hasattr(model, "coef_"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotConvergedWarning)
                fit = describe(model, table, labels, sample_weight)
                # So small a Newton step is rounding: the model need not be refitted.
                if check_stationarity(fit, table.values) <= 1e-9:
                    return model, fit
        except InputError:  # trained on other data, or released with noise
            pass
    weights = {} if sample_weight is None else {"sample_weight": sample_weight}
    fresh = clone(model).fit(X, y, **weights)
    return fresh, describe(fresh, table, labels, sample_weight)

"""Linear models with scikit-learn's interface: a base class, classifiers and regressors."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.sparse
from array_api_compat import array_namespace, device, is_numpy_array, is_torch_array
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from seepage.errors import InputError
from seepage.glm.fitting.least_squares import solve_least_squares
from seepage.glm.fitting.newton import minimise
from seepage.glm.fitting.objective import Objective, PenalisedLoss, read_penalty
from seepage.glm.inputs import streamed_source
from seepage.glm.losses import (
    Categorical,
    Family,
    bernoulli,
    class_targets,
    gaussian,
    get_family,
    poisson,
    read_response,
    read_weights,
)
from seepage.tables.source import (
    Array,
    RowSource,
    Table,
    as_numpy,
    check_length,
    distinct,
    is_streamed,
    place_like,
    read_table,
)


class LinearModel(BaseEstimator):  # type: ignore[misc]
    """A generalised linear model with margins ``Xw + w₀``, fitted with an L2 penalty."""

    coef_: Array
    intercept_: Array
    n_iter_: int
    """The number of Newton steps; 1 for least squares, which is solved directly."""
    n_features_in_: int
    """The number of columns; ``feature_names_in_`` lists their names if ``X`` was a data frame."""
    weighted_: bool
    """Whether the fit had sample weights other than one; its leakage requires the same weights."""
    _start: Array | None = None
    """The starting point of Newton's method; set it to refit a model to similar data."""

    def __init__(self, l2: float = 0.0, fit_intercept: bool = False) -> None:
        self.l2 = l2
        self.fit_intercept = fit_intercept

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Minimise the objective for a table ``X`` (n, d), labels ``y`` and weights ``ω`` (n,).

        A torch tensor is fitted on its own device, and ``coef_`` is a tensor on the same device. If
        ``X`` is ``seepage.parquet`` data, a Dask data frame, or a path with column names for ``y``
        and ``sample_weight``, the rows are read in chunks: once per Newton step, of which Parquet
        files need about three, since the search starts from the minimiser on some of their rows.
        """
        intercept = bool(self.fit_intercept)
        if is_streamed(X):
            source = streamed_source(X, y, sample_weight)
            names, self.weighted_ = source.names, source.weighted
            ridge = read_penalty(self.l2, len(source))
            loss = PenalisedLoss(*self._read_source(source), ridge, intercept, len(names))
            objective = Objective.over(source, loss)
            self.n_features_in_ = len(names)
            self.feature_names_in_ = np.asarray(names, dtype=object)
        else:
            table = _read_features(self, X, fitting=True)
            family, target, weights = self._read_labels(y, sample_weight, table)
            names, self.weighted_ = table.names, weights is not None
            ridge = read_penalty(self.l2, len(table))
            objective = Objective(table.values, family, target, weights, ridge, intercept)
        if objective.family.name == "gaussian":
            self.n_iter_, theta = 1, solve_least_squares(objective, names)
        else:
            minimum = minimise(objective, self._start, names)
            self.n_iter_, theta = minimum.steps, minimum.parameters
        self._store(theta)
        return self

    def _read_source(self, source: RowSource) -> tuple[Family | Categorical, np.ndarray | None]:
        """Return the loss for the labels of a data source, and the classes, if any."""
        raise NotImplementedError

    def _read_labels(
        self, y: Any, sample_weight: Any, table: Table
    ) -> tuple[Family | Categorical, Array, Array | None]:
        """Return the loss, the labels as numbers on the table's device, and the weights."""
        raise NotImplementedError

    def _store(self, theta: Array) -> None:
        """Store the parameters as coefficients and intercept (zero for a model without one)."""
        self.coef_ = theta[:-1, ...] if self.fit_intercept else theta
        last = theta[-1, ...]
        self.intercept_ = last if self.fit_intercept else array_namespace(theta).zeros_like(last)

    def _parameters(self) -> Array:
        """Return the fitted parameters as one array, with the intercept last."""
        xp = array_namespace(self.coef_)
        theta = self.coef_ if len(self.coef_.shape) == 1 else self.coef_.T
        theta = theta[:, 0] if theta.shape[1:] == (1,) else theta
        if not self.fit_intercept:
            return theta
        last = xp.asarray(self.intercept_, dtype=theta.dtype, device=device(theta))
        return xp.concat([theta, xp.reshape(last, (1, *theta.shape[1:]))], axis=0)

    def _margins(self, X: Any) -> Array:
        """Return ``Xw + w₀``, (n,) or (n, K) for softmax, in the array library of ``X``."""
        check_is_fitted(self)
        values = _read_features(self, X, fitting=False).values
        theta, d = place_like(self._parameters(), values), values.shape[1]
        M = values @ theta[:d, ...]
        return M + theta[d, ...] if self.fit_intercept else M


def _read_features(estimator: Any, X: Any, *, fitting: bool) -> Table:
    """Read ``X``, and store (if ``fitting``) or check the number and names of its columns."""
    if scipy.sparse.issparse(X):
        raise TypeError(
            "X is a sparse matrix, which is not supported; pass a dense table: X.toarray()."
        )
    if not (is_torch_array(X) or hasattr(X, "columns") or hasattr(X, "column_names")):
        X = _numbers(X)
    validate_data(estimator, X, reset=fitting, skip_check_array=True)
    return read_table(X)


def _numbers(X: Any) -> np.ndarray:
    """Convert lists, arrays and objects containing numbers to a numeric array."""
    values = np.asarray(X)
    if values.ndim == 1:
        raise InputError(
            "X must be a table with rows and columns, but it is one-dimensional. Reshape your "
            "data with X.reshape(-1, 1) if it is one column, or X.reshape(1, -1) if it is one row."
        )
    if values.ndim == 2 and values.shape[1] == 0:
        raise InputError(
            f"X is empty: 0 feature(s) (shape={values.shape}) while a minimum of 1 is required. "
            "Pass a table with at least one column."
        )
    if values.dtype.kind != "O" or values.ndim != 2:
        return values
    columns = []
    for j in range(values.shape[1]):
        try:
            columns.append(values[:, j].astype(float))
        except ValueError:
            raise InputError(
                f"Column 'x{j}' of X contains objects that are not numbers; encode it first (for "
                "example, one-hot), or drop it."
            ) from None
    return np.stack(columns, axis=1)


class GLMClassifier(ClassifierMixin, LinearModel):  # type: ignore[misc]
    """A generalised linear model for classification."""

    classes_: np.ndarray
    _loss: Family | type[Categorical]
    """The loss, or for several classes its type."""

    def __init__(self, l2: float = 1e-2, fit_intercept: bool = False) -> None:
        super().__init__(l2=l2, fit_intercept=fit_intercept)

    def _family_of(self, classes: int) -> Family | Categorical:
        """Return the loss for this number of classes."""
        if not isinstance(self._loss, Family):
            return Categorical(classes)
        if classes > 2:
            raise InputError(
                "Only binary classification is supported. The type of the target is multiclass "
                f"({classes} classes): use SoftmaxRegression."
            )
        return self._loss

    def _read_source(self, source: RowSource) -> tuple[Family | Categorical, np.ndarray]:
        self.classes_ = source.classes
        _check_two_classes(self.classes_, self.classes_, None)
        return self._family_of(len(self.classes_)), self.classes_

    def _read_labels(
        self, y: Any, sample_weight: Any, table: Table
    ) -> tuple[Family | Categorical, Array, Array | None]:
        """Return the loss, each label's position among the sorted classes, and the weights."""
        if y is None:
            raise InputError("This estimator requires y to be passed, but the target y is None.")
        labels = column_or_1d(as_numpy(y), warn=True)
        check_length(labels, table, "y")
        if labels.dtype.kind == "f" and not np.all(np.isfinite(labels)):
            raise InputError(
                "y contains NaN or infinity; drop those rows or fill in missing values."
            )
        # Of an array of objects only the first is inspected.
        check_classification_targets(labels[:1] if labels.dtype.kind == "O" else labels)
        self.classes_, positions = distinct(labels)
        weights = read_weights(sample_weight, table)
        _check_two_classes(self.classes_, positions, weights)
        family = self._family_of(len(self.classes_))
        if isinstance(family, Categorical):
            self._check_every_class_counts(positions, weights)
        return family, place_like(class_targets(positions, family), table.values), weights

    def _check_every_class_counts(self, positions: np.ndarray, weights: Array | None) -> None:
        if weights is None or not self.fit_intercept:
            return
        totals = np.bincount(positions, weights=as_numpy(weights))
        if np.any(totals == 0):
            empty = self.classes_[int(np.argmin(totals))]
            raise InputError(
                f"Every row of class {empty!r} has weight zero, so the intercept of this class "
                "diverges; drop those rows."
            )

    def _store(self, theta: Array) -> None:
        """Store the parameters in scikit-learn's shapes: (K, d) and (K,), or (1, d) and (1,)."""
        super()._store(theta)
        self.coef_ = self.coef_[None, :] if len(theta.shape) == 1 else self.coef_.T
        self.intercept_ = array_namespace(theta).reshape(self.intercept_, (-1,))

    def decision_function(self, X: Any) -> Array:
        """Return the margins ``wᵀx + w₀``, (n, K); for two classes, those of the second, (n,).

        If each of two classes has a margin, the result is the second margin minus the first.
        """
        margins = self._margins(X)
        if len(margins.shape) == 2 and margins.shape[1] == 2:
            return margins[:, 1] - margins[:, 0]
        return margins

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of every class, (n, K), in the order of ``classes_``."""
        raise NotImplementedError

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithm of the probability of every class, (n, K)."""
        probabilities = self.predict_proba(X)
        with np.errstate(divide="ignore"):
            return array_namespace(probabilities).log(probabilities)

    def predict(self, X: Any) -> Array:
        """Return the most probable class of every record, (n,).

        The result belongs to the array library of ``X``, or to NumPy if the classes are not
        numbers.
        """
        margins = self.decision_function(X)
        xp = array_namespace(margins)
        best = (
            xp.astype(margins > 0, xp.int64)
            if len(margins.shape) == 1
            else xp.argmax(margins, axis=1)
        )
        if is_numpy_array(best) or self.classes_.dtype.kind not in "biuf":
            return self.classes_[as_numpy(best)]
        return xp.asarray(self.classes_, device=best.device)[best]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy: the (weighted) share of records that are predicted correctly."""
        from sklearn.metrics import accuracy_score

        weights = None if sample_weight is None else as_numpy(sample_weight)
        return float(accuracy_score(as_numpy(y), as_numpy(self.predict(X)), sample_weight=weights))


def _check_two_classes(classes: np.ndarray, positions: np.ndarray, weights: Array | None) -> None:
    """Raise an error unless records with positive weight belong to at least two classes."""
    if classes.shape[0] < 2:
        raise InputError(
            f"y has only one class ({classes[0]!r}), but a classifier needs at least two; add "
            "records of another class."
        )
    if weights is None:
        return
    seen = np.unique(positions[as_numpy(weights) > 0])
    if seen.shape[0] == 1:
        raise InputError(
            f"The rows with positive weight have only one class ({classes[seen[0]]!r}), but a "
            "classifier needs at least two; add records of another class."
        )


class LogisticRegression(GLMClassifier):
    """Logistic regression, which minimises ``Σᵢ ωᵢ (log(1 + exp mᵢ) − yᵢ mᵢ) + (nλ/2) ‖w‖²``.

    Here mᵢ = wᵀxᵢ + w₀, n is the number of records, λ = ``l2``, and ω are the sample weights (one
    by default). The label yᵢ is 1 for the second of the two sorted classes and 0 for the first. The
    intercept w₀ is not penalised (Hannun et al. 2021, equation 13).

    Parameters
    ----------
    l2
        λ, at least 0. If λ = 0, the columns must be linearly independent and the classes must
        overlap.
    fit_intercept
        Whether there is an intercept; if so, it is released too.

    Attributes
    ----------
    coef_
        ``w``, (1, d), as in scikit-learn.
    intercept_
        ``w₀``, (1,); 0 for a model without an intercept.
    classes_
        The two classes, sorted, such as 0 and 1, −1 and 1, or names.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.preprocessing import scale
    >>> from seepage.glm import LogisticRegression
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = LogisticRegression(l2=1e-2, fit_intercept=True).fit(scale(X), y)
    >>> round(model.score(scale(X), y), 3)
    0.986
    """

    _loss = bernoulli

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities of the first and the second class, of shape (n, 2)."""
        margins = self._margins(X)
        xp = array_namespace(margins)
        return xp.stack([bernoulli.mean(-margins), bernoulli.mean(margins)], axis=1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


class SoftmaxRegression(GLMClassifier):
    """Softmax regression, which minimises ``Σᵢ ωᵢ (log Σ_k exp(m_ik) − m_i[yᵢ]) + (nλ/2) ‖W‖²``.

    Here mᵢ = Wᵀxᵢ + w₀ has an entry for each of K classes, and W is (d, K). Further, n is the
    number of records, λ = ``l2``, and ω are the sample weights (one by default). The intercepts w₀
    are not penalised. Adding one vector to the parameters of every class changes no probability, so
    the solution that sums to zero over the classes is returned.

    Parameters
    ----------
    l2
        λ, at least 0. If λ = 0, the columns must be linearly independent and the classes must
        overlap.
    fit_intercept
        Whether every class has an intercept; if so, the intercepts are released too.

    Attributes
    ----------
    coef_
        ``Wᵀ``, (K, d), as in scikit-learn, also for two classes.
    intercept_
        ``w₀``, (K,); zeros for a model without intercepts.
    classes_
        The K classes, sorted.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from seepage.glm import SoftmaxRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> SoftmaxRegression(l2=1e-2).fit(X, y).coef_.shape
    (3, 4)
    """

    _loss = Categorical

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of every class, (n, K), in the order of ``classes_``."""
        margins = self._margins(X)
        return Categorical(margins.shape[1]).mean(margins)


class GLMRegressor(RegressorMixin, LinearModel):  # type: ignore[misc]
    """A generalised linear model for a numeric target; each subclass defines the family.

    Attributes
    ----------
    coef_
        ``w``, (d,).
    intercept_
        ``w₀``; 0 for a model without an intercept.
    """

    _loss: Family

    def _read_source(self, source: RowSource) -> tuple[Family, None]:
        return self._loss, None

    def _read_labels(
        self, y: Any, sample_weight: Any, table: Table
    ) -> tuple[Family, Array, Array | None]:
        family, target = self._loss, read_response(y, table)
        weights = read_weights(sample_weight, table)
        family.check_labels(target, type(self).__name__)
        return family, target, weights

    def predict(self, X: Any) -> Array:
        """Return the mean ``E[y | x]`` of every record, (n,)."""
        return self._loss.mean(self._margins(X))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R², the share of the variance in ``y`` that the predictions explain."""
        from sklearn.metrics import r2_score

        weights = None if sample_weight is None else as_numpy(sample_weight)
        return float(r2_score(as_numpy(y), as_numpy(self.predict(X)), sample_weight=weights))


class LinearRegression(GLMRegressor):
    """Linear regression, which minimises ``½ Σᵢ ωᵢ (wᵀxᵢ + w₀ − yᵢ)² + (nλ/2) ‖w‖²`` exactly.

    Here n is the number of records, λ = ``l2``, and ω are the sample weights (one by default). The
    intercept w₀ is not penalised (Hannun et al. 2021, equation 13). A fit sets ``coef_`` and
    ``intercept_``.

    Parameters
    ----------
    l2
        λ, at least 0. If λ = 0, the columns must be linearly independent.
    fit_intercept
        Whether there is an intercept; if so, it is released too.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from seepage.glm import LinearRegression
    >>> X, y = load_diabetes(return_X_y=True)
    >>> round(LinearRegression(l2=1e-4, fit_intercept=True).fit(X, y).score(X, y), 2)
    0.51
    """

    _loss = gaussian


class PoissonRegression(GLMRegressor):
    """Poisson regression, which minimises ``Σᵢ ωᵢ (exp(mᵢ) − yᵢ mᵢ) + (nλ/2) ‖w‖²``.

    Here mᵢ = wᵀxᵢ + w₀, n is the number of records, λ = ``l2``, and ω are the sample weights (one
    by default). The intercept w₀ is not penalised (Hannun et al. 2021, equation 13). The link is
    the logarithm. A fit sets ``coef_`` and ``intercept_``.

    Parameters
    ----------
    l2
        λ, at least 0. If λ = 0, the columns must be linearly independent, and no category may have
        only zero counts.
    fit_intercept
        Whether there is an intercept; if so, it is released too.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.glm import PoissonRegression
    >>> X = np.asarray([[0.0], [1.0], [2.0], [3.0]])
    >>> PoissonRegression().fit(X, [1, 2, 4, 8]).predict(X).round(6)
    array([1., 2., 4., 8.])
    """

    _loss = poisson

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        # Without an intercept, counts far from 1 at x = 0 are badly predicted.
        tags.regressor_tags.poor_score = not self.fit_intercept
        return tags


class GeneralizedLinearRegression(GLMRegressor):
    """Regression with any loss, which minimises ``Σᵢ ωᵢ ℓ(wᵀxᵢ + w₀, yᵢ) + (nλ/2) ‖w‖²``.

    Here ℓ is the loss of the family, n the number of records, λ = ``l2``, and ω are the sample
    weights (one by default). The intercept w₀ is not penalised (Hannun et al. 2021, equation 13). A
    fit sets ``coef_`` and ``intercept_``.

    Parameters
    ----------
    family
        The name of a family, built in or registered by :func:`seepage.glm.register_family`, or a
        :class:`seepage.glm.Family`.
    l2
        λ, at least 0. If λ = 0, the columns must be linearly independent.
    fit_intercept
        Whether there is an intercept; if so, it is released too.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from seepage.glm import GeneralizedLinearRegression
    >>> X, y = load_diabetes(return_X_y=True)
    >>> round(GeneralizedLinearRegression("poisson", fit_intercept=True).fit(X, y).score(X, y), 2)
    0.52
    """

    def __init__(
        self, family: str | Family = "gaussian", l2: float = 0.0, fit_intercept: bool = False
    ) -> None:
        super().__init__(l2=l2, fit_intercept=fit_intercept)
        self.family = family

    @property
    def _loss(self) -> Family:  # type: ignore[override]
        return get_family(self.family)

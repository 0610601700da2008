"""White-box attribute inference by an adversary who knows the release and all other data."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np

from seepage.attacks.attribute.adversary import AttributeInversion
from seepage.attacks.attribute.candidate_models import CandidateModels
from seepage.attacks.attribute.nominal import NominalAttribute
from seepage.attacks.noisy_releases import parameters_of
from seepage.core.noise import Gaussian
from seepage.errors import InputError, NotConvergedWarning
from seepage.glm.adapters.registry import describe
from seepage.glm.fitting.objective import Objective
from seepage.glm.leakage import leakage
from seepage.glm.losses import Family
from seepage.tables.names import counted
from seepage.tables.source import Table, as_numpy


class WhiteBox(AttributeInversion):
    """Guesses the level whose refit is nearest the released parameters (Hannun et al. 2021).

    Let ``w'`` be the released parameters and ``w_k`` the parameters fitted with level k in the
    target's row. The guess is ``argmin_k ‖w' − w_k‖``: the maximum-likelihood level under Gaussian
    noise with the same standard deviation σ on every parameter. With ``prior=True`` the guess is
    the posterior mode, ``argmin_k ‖w' − w_k‖² − 2σ² log p(k)``.

    The adversary knows everything except the attribute of the attacked record: all other values,
    the training procedure, the penalty and the sample weights (the same in every refit). Records
    are attacked one at a time; a record's candidate models do not depend on its true level. The n·K
    refits are not run in full. For linear regression, the refits are computed from rank-two updates
    of one solution. Other families use two warm-started Newton steps, or a refit if two steps are
    not accurate enough.

    Parameters
    ----------
    attribute
        The attribute to infer.
    model
        The kind of model that was trained, with its penalty: any from :mod:`seepage.glm` except
        ``SoftmaxRegression``, or one from scikit-learn, such as ``LinearRegression``, ``Ridge``,
        ``LogisticRegression`` or ``PoissonRegressor``. A copy is fitted, so the model need not be.
    prior
        Whether to weight the levels by their frequencies in the table.

    Attributes
    ----------
    model_
        The model fitted on the actual table: the release without its noise.
    candidates_
        The candidate models; ``candidates_.differences(slice)`` returns their parameters minus
        those of ``model_``.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> rng = np.random.default_rng(0)
    >>> X = np.column_stack([rng.integers(0, 2, 300), rng.standard_normal(300)]).astype(float)
    >>> y = X[:, 0] + X[:, 1] + rng.standard_normal(300)
    >>> attribute = sp.attacks.NominalAttribute.from_table(X, [0], "level")
    >>> white = sp.attacks.WhiteBox(attribute, sp.glm.LinearRegression(l2=1e-2)).fit(X, y)
    >>> for sigma in (1e-5, 1.0):
    ...     releases = sp.attacks.draw_releases(white.model_, sp.Gaussian(sigma), 100, seed=0)
    ...     print(round(white.attack(X, y, releases).accuracy, 2))
    1.0
    0.49
    """

    name = "white-box"

    def __init__(self, attribute: NominalAttribute, model: Any, *, prior: bool = False) -> None:
        super().__init__(attribute)
        self.model = model
        self.prior = prior

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, rows: Any = None) -> Self:
        """Store the training data and compute the candidate models.

        Parameters
        ----------
        X, y
            The whole training table, including the attribute, and the labels.
        sample_weight
            The sample weights used in training.
        rows
            The positions of the records to attack; by default, all records.
        """
        super().fit(X, y)
        values = np.asarray(as_numpy(self._known.values), dtype=float)
        known = Table(values, self._known.names, None, "numpy")
        self._table = values
        self._rows = _positions(rows, len(values))
        self.model_ = _trained(self.model, values, self._labels, sample_weight)
        objective = _objective(self.model_, known, self._labels, sample_weight)
        with warnings.catch_warnings():
            # Other libraries stop their iterations early, and the remainder would look like a
            # level; the leakage is that of the minimiser itself, whatever its noise.
            warnings.simplefilter("ignore", NotConvergedWarning)
            leak = leakage(
                self.model_, values, self._labels, noise=Gaussian(1.0), sample_weight=sample_weight
            )
        self.candidates_ = CandidateModels(
            objective, leak.refits(), self.attribute, self._levels, self._rows
        )
        return self

    def _prepare(self, release: Any) -> tuple[Any, int]:
        if release is None:
            raise InputError(
                "The white-box adversary needs a release; pass a model from sp.release(model, "
                "noise), or many releases from sp.attacks.draw_releases."
            )
        theta = self.candidates_.theta
        parameters = parameters_of(release, len(theta))
        prior = np.zeros(len(self.attribute))
        if self.prior:
            noise = getattr(getattr(release, "release_", release), "noise", None)
            if not isinstance(noise, Gaussian) or np.ndim(noise.sigma) > 0:
                raise InputError(
                    "prior=True needs Gaussian noise with a single known standard deviation; pass "
                    "a model from sp.release, or sp.attacks.draw_releases, with "
                    "noise=sp.Gaussian(sigma)."
                )
            prior = 2 * noise.sigma**2 * self.log_prior_
        return (parameters - theta, prior), len(parameters)

    def _scores(self, X: np.ndarray, y: np.ndarray, rows: slice, release: Any) -> np.ndarray:
        self._check_known(X, y, rows)
        # Differences from the known fit, which would drown in the rounding of the parameters
        # themselves.
        candidates = self.candidates_.differences(rows)
        b, K, P = candidates.shape
        squares = np.einsum("bkp,bkp->bk", candidates, candidates)
        noise, prior = release
        products = noise @ candidates.reshape(b * K, P).T
        return np.asarray(2 * products.reshape(-1, b, K) - squares + prior)

    def _chunk_width(self, d: int, trials: int) -> int:
        return len(self.attribute) * (3 * trials + 4 * self.candidates_.size)

    def _read_targets(self, X: Any, y: Any) -> tuple[Table, np.ndarray]:
        table, labels = super()._read_targets(X, y)
        if len(table) != len(self._rows):
            raise InputError(
                f"X has {counted(len(table), 'row')}, but fit was given {len(self._rows)} to "
                "attack; pass exactly those rows, in the same order."
            )
        return table, labels

    def _check_known(self, X: np.ndarray, y: np.ndarray, rows: slice) -> None:
        """Raise an error unless the target rows match the known table, except in the attribute."""
        others = self.attribute.others(X.shape[1])
        known = self._rows[rows]
        same = np.all(X[:, others] == self._table[np.ix_(known, others)], axis=1)
        same &= y == self._labels[known]
        if not np.all(same):
            row = int(np.argmin(same))
            raise InputError(
                f"Row {rows.start + row} of X, or its label, does not match row {known[row]} of "
                "the table given to fit; pass the attacked records in the order given to fit."
            )


def _trained(model: Any, X: np.ndarray, y: np.ndarray, sample_weight: Any) -> Any:
    """Return a copy of the model fitted on the table."""
    from sklearn.base import clone

    if not hasattr(model, "get_params"):
        raise InputError(
            f"{type(model).__name__} cannot be refitted; pass an estimator such as "
            "sp.glm.LinearRegression(l2=1e-2)."
        )
    if sample_weight is None:
        return clone(model).fit(X, y)
    return clone(model).fit(X, y, sample_weight=as_numpy(sample_weight))


def _objective(model: Any, table: Table, y: np.ndarray, sample_weight: Any) -> Objective:
    """Return the objective of a fitted model with one margin; other models raise an error."""
    fit = describe(model, table, y, sample_weight)
    if not isinstance(fit.family, Family):
        raise InputError(
            f"{type(model).__name__} has one margin for each class, which the white-box attack "
            "does not support; use a model with a single margin, such as LogisticRegression."
        )
    return Objective.of(fit, table.values)


def _positions(rows: Any, n: int) -> np.ndarray:
    """Return the positions of the attacked rows."""
    if rows is None:
        return np.arange(n)
    chosen = as_numpy(rows)
    if chosen.dtype.kind == "b" and chosen.shape == (n,):
        chosen = np.flatnonzero(chosen)
    if chosen.ndim != 1 or chosen.dtype.kind not in "iu" or len(chosen) == 0:
        raise InputError(
            f"rows must be positions, or a mask of the {n} rows, and must select at least one row."
        )
    if chosen.min() < 0 or chosen.max() >= n:
        raise InputError(f"rows must be positions between 0 and {n - 1}.")
    return np.asarray(chosen, dtype=np.int64)

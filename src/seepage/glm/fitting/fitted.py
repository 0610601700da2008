"""What a fitted model, ours or another library's, is turned into before its leakage is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace

from seepage.glm.losses.categorical import Categorical
from seepage.glm.losses.families import Family
from seepage.tables.frames import Table, place_like

Array = Any  # any array of the array API standard


@dataclass(frozen=True)
class FittedGLM:
    """A generalized linear model and the objective its coefficients are meant to minimise.

    The objective, with ``ωᵢ`` the sample weights (paper 001, equation 13, weighted)::

        Σᵢ ωᵢ ℓ(wᵀxᵢ + w₀, yᵢ) + (ridge/2) ‖w‖²        (the intercept w₀ is not penalised)

    Parameters
    ----------
    family
        The loss: a :class:`Family` of one margin, or :class:`Categorical` with ``outputs`` of them.
    coef
        ``w``, (d,); for :class:`Categorical` ``W``, (d, K). In float64, in the library
        and on the device of the table.
    intercept
        ``w₀``, a 0-d array, or (K,); ``None`` when the model has none.
    ridge
        ``nλ``, with n the number of rows.
    sample_weight
        ``ω``, (n,), class weights included; ``None`` when all are one.
    target
        The labels as numbers: (n,), 0 and 1 for two classes whatever they were called; one-hot,
        (n, K), for :class:`Categorical`.
    feature_names
        One per column.
    """

    family: Family | Categorical
    coef: Array
    intercept: Array | None
    ridge: float
    sample_weight: Array | None
    target: Array
    feature_names: tuple[str, ...]

    @classmethod
    def on(
        cls,
        table: Table,
        family: Family | Categorical,
        target: Array,
        weights: Array | None,
        *,
        coef: Any,
        intercept: Any,
        ridge: float,
    ) -> FittedGLM:
        """Return a description with everything placed where the table lives.

        Of ``Categorical`` the coefficients are (K, d), as in scikit-learn; of others (d,) or
        (1, d).
        """
        w = place_like(coef, table.values)
        free = None if intercept is None else place_like(intercept, table.values)
        if isinstance(family, Categorical):
            w = w.T
        else:
            family.check_labels(target)
            xp = array_namespace(w)
            w = xp.reshape(w, (-1,))
            free = None if free is None else xp.reshape(free, ())
        return cls(family, w, free, float(ridge), weights, target, table.names)

    def margins(self, X: Array) -> Array:
        """Return ``Xw + w₀``: (n,), or (n, K) for :class:`Categorical`."""
        M = X @ self.coef
        return M if self.intercept is None else M + self.intercept

    @property
    def parameters(self) -> Array:
        """The released parameters in one array, intercept last: (D,), or (D, K)."""
        if self.intercept is None:
            return self.coef
        xp = array_namespace(self.coef)
        last = xp.reshape(self.intercept, (1, *self.coef.shape[1:]))
        return xp.concat([self.coef, last], axis=0)

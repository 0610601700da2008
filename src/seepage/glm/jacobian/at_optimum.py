"""The Jacobians of some rows at an optimum, also in ordinary arithmetic for hundreds of tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from seepage.core.information import block_norms
from seepage.core.jacobian import Unknowns
from seepage.core.noise import Noise
from seepage.glm.fitting.objective import FittedGLM, Sums
from seepage.glm.jacobian.operator import (
    GLMJacobian,
    PairedJacobian,
    SingleOutputJacobian,
    TermsJacobian,
)
from seepage.glm.jacobian.optimum import Optimum, Whitener, plain_optimum, whitener_of
from seepage.glm.jacobian.terms import JacobianTerms
from seepage.glm.losses import Categorical
from seepage.tables.source import Array

_FIRST = 32  # records whose largest eigenvalues are taken at first


def jacobian_at(
    found: Optimum,
    fit: FittedGLM,
    X: Array,
    whitener: Whitener,
    kind: Any = None,
    kept: dict[str, Any] | None = None,
) -> TermsJacobian:
    """Return the Jacobian for rows at an optimum; ``fit`` has their labels and weights.

    ``kind`` is the data type of the result, by default that of the rows, and ``kept`` what other
    rows of the release have in common with these.
    """
    near = X if found.centre is None else X - found.centre[None, :]
    derivatives, label_size, error = found.derivatives(fit, near, every=fit is found.fit)
    if kind is not None:
        xp = array_namespace(X)
        X, near = xp.astype(X, kind, copy=False), xp.astype(near, kind, copy=False)

    def narrow(values: Array) -> Array:
        return array_namespace(values).astype(values, X.dtype, copy=False)

    terms = JacobianTerms(
        X,
        narrow(fit.coef if len(fit.coef.shape) == 2 else fit.coef[:, None]),
        intercept=fit.intercept is not None,
        derivatives=lambda rows: tuple(map(narrow, derivatives(rows))),
        whitener=replace(whitener, matrix=narrow(whitener.matrix)),
        target=fit.target,
        label_size=label_size,
        near=near,
        slope_error=None if error is None else narrow(error),
        kept=kept,
    )
    if not isinstance(fit.family, Categorical):
        return SingleOutputJacobian(terms)
    return PairedJacobian(terms) if terms.precise else GLMJacobian(terms)


@dataclass(frozen=True, eq=False)
class PlainJacobians:
    """The Jacobians of a model known to be the minimiser, in ordinary arithmetic."""

    fit: FittedGLM
    X: Array
    noise: Noise
    sums: Sums | None = None  # over the records, as :func:`plain_optimum` takes them

    @cached_property
    def optimum(self) -> Optimum:
        """The optimum, without checks."""
        return plain_optimum(self.fit, self.X, self.sums)

    @cached_property
    def whitener(self) -> Whitener:
        """The map from the records to the release."""
        return whitener_of(self.optimum, self.noise)

    def __call__(self, rows: slice | Array, features: Array | None = None) -> TermsJacobian:
        """Return the Jacobian of some rows, whose features may be replaced."""
        fit = self.fit
        weight, unit = (None if v is None else v[rows] for v in (fit.sample_weight, fit.label_unit))
        some = replace(
            self.optimum.fit, sample_weight=weight, label_unit=unit, target=fit.target[rows, ...]
        )
        x = self.X[rows, :] if features is None else features
        return jacobian_at(self.optimum, some, x, self.whitener)

    def largest_ratio(
        self,
        unknowns: Unknowns,
        label_step: float,
        allowed: np.ndarray,
        bounds: np.ndarray,
        blocks: Sequence[np.ndarray] | np.ndarray | None = None,
    ) -> float:
        """Return the largest ``η/allowed`` of all records, or of blocks of records as a whole.

        ``bounds`` are upper bounds on these ratios, which may be infinite. Records are processed in
        decreasing order of their bounds until no remaining bound exceeds the largest ratio found.
        """
        left, largest, count = np.array(bounds), 0.0, _FIRST if blocks is None else _FIRST // 8
        while len(some := np.flatnonzero(~(left <= largest))):
            if len(some) > count:
                some = some[np.argpartition(-left[some], count)[:count]]
            if blocks is None:
                here = self(some).with_label_step(label_step)
                norms = np.asarray(here.row_norms(unknowns))
            else:
                together = [blocks[k] for k in some.tolist()]
                here = self(np.concatenate(together)).with_label_step(label_step)
                ends = np.cumsum([len(rows) for rows in together])[:-1]
                parts = np.split(np.arange(here.rows), ends)
                norms = np.asarray(block_norms(here, unknowns, parts))
            largest = max(largest, math.sqrt(float(np.max(norms / allowed[some] ** 2))))
            left[some], count = -math.inf, 4 * count
        return largest

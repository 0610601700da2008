"""The exponential mechanism: draw one of a few candidate models; better fits are more likely.

The parameters ``θ_k`` of candidate k do not depend on the records. The candidate's utility is
``−L_k``, the negative loss on the records. Candidate k is drawn with probability (McSherry and
Talwar 2007)::

    p_k ∝ exp(−τ L_k),      L_k = Σ_j ℓ(x̃_jᵀθ_k, y_j),      τ = ε/2Δ

Here Δ is the largest possible loss of a record, and ε is the privacy parameter. Therefore ``∂ log
p_k/∂z = −τ(∂L_k/∂z − Σ_l p_l ∂L_l/∂z)``. The Fisher information about a record is exactly the
covariance of ``τ ∂ℓ/∂z`` over the candidates. Leaving out a record subtracts its ``ℓ_k`` from each
``L_k``, so an informed attacker's success rate is a finite sum.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from scipy.special import log_softmax

from seepage.core.result import Result
from seepage.errors import InputError, accepts_other_names
from seepage.glm.losses import Categorical, Family, get_family
from seepage.support.number_check import check_positive
from seepage.tables.names import counted
from seepage.tables.source import as_numpy, read_table


class ExponentialMechanism:
    """The choice of one candidate model: the higher its loss, the lower its probability.

    The attacker knows all other records and the candidates. All results are exact.

    Parameters
    ----------
    candidates
        The parameters, one row per candidate: the coefficients, followed by an intercept if a row
        has one number more than the table has columns. The candidates must not depend on the
        records.
    X, y
        The records and their numeric labels, as the family defines them.
    sharpness
        ``τ``, the weight of the losses: larger values favour the best candidate and leak more. This
        weight corresponds to ``ε/2Δ`` in the usual notation of the exponential mechanism. If every
        possible record has a loss between 0 and Δ, the choice is 2τΔ-differentially private for the
        replacement of one record.
    family
        The loss: a name for :func:`seepage.glm.get_family`, or a family with one output.

    Examples
    --------
    >>> import numpy as np, seepage as sp
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((50, 2))
    >>> y = (X @ [1.0, -1.0] > 0).astype(float)
    >>> chosen = sp.glm.ExponentialMechanism([[1, -1], [1, 0], [0, 0]], X, y, 0.1, "bernoulli")
    >>> chosen.probabilities.round(2).tolist()
    [0.65, 0.22, 0.13]
    >>> chosen.records()
    <50 records: FIL η (exact) about all columns and the label: ...
    """

    def __init__(
        self,
        candidates: Any,
        X: Any,
        y: Any,
        sharpness: float,
        family: str | Family,
    ) -> None:
        check_positive(sharpness, "sharpness")
        if not isinstance(family, str | Family | Categorical):
            raise InputError(
                "family must be the name of a family, such as 'bernoulli', or a family object, "
                f"not {family!r}."
            )
        named = get_family(family) if isinstance(family, str) else family
        if isinstance(named, Categorical):
            raise InputError("Candidates require a family with one output, such as 'bernoulli'.")
        self.table, self.family, self.sharpness = read_table(X), named, float(sharpness)
        self.X = np.asarray(as_numpy(self.table.values), dtype=float)
        self.y = _numbers(y, "y must contain one number per record, its label")
        self.y = self.y.reshape(-1)
        self.candidates = np.atleast_2d(
            _numbers(candidates, "Candidates must be rows of numbers, all of the same length")
        )
        (n, d), wide = self.X.shape, self.candidates.shape[-1]
        if len(self.y) != n:
            raise InputError(
                f"X has {counted(n, 'record')}, but y has {counted(len(self.y), 'label')}; pass "
                "one label per record."
            )
        if self.candidates.ndim > 2 or len(self.candidates) < 2 or wide not in (d, d + 1):
            raise InputError(
                f"Candidates must be at least two rows of {counted(d, 'coefficient')}, optionally "
                f"with an intercept, not an array of shape {self.candidates.shape}."
            )
        if not all(np.isfinite(one).all() for one in (self.candidates, self.X, self.y)):
            raise InputError(
                "Candidates, records and labels must be finite numbers; drop or fill in missing "
                "values."
            )
        named.check_labels(self.y)
        self.margins = self.X @ self.candidates[:, :d].T
        if wide > d:
            self.margins = self.margins + self.candidates[:, d]

    def __repr__(self) -> str:
        return (
            f"<ExponentialMechanism: {len(self.candidates)} candidates, {len(self.y)} records, "
            f"sharpness {self.sharpness:g}>"
        )

    @accepts_other_names
    def draw(self, seed: int | None = None) -> int:
        """Return the position of the candidate to publish; set a seed in experiments only."""
        every = range(len(self.candidates))
        source = random.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311
        return source.choices(every, weights=self.probabilities.tolist())[0]

    @property
    def probabilities(self) -> np.ndarray:
        """The probability of each candidate, ``p_k``."""
        return np.asarray(np.exp(self._log_odds(self._losses.sum(axis=0))))

    @property
    def _losses(self) -> np.ndarray:
        """The loss ``ℓ`` of every record for every candidate, of shape (n, K)."""
        return np.asarray(self.family.loss(self.margins, self._labels))

    @property
    def _labels(self) -> np.ndarray:
        return np.broadcast_to(self.y[:, None], self.margins.shape)

    def _log_odds(self, losses: np.ndarray) -> np.ndarray:
        return np.asarray(log_softmax(-self.sharpness * losses, axis=-1))

    def records(self) -> Result:
        """Return η of each record about its columns and label together."""
        return self._largest(slice(None), "all columns and the label")

    def labels(self) -> Result:
        """Return η of each record about its label, if its columns are known."""
        return self._largest(slice(-1, None), "the label")

    def information(self) -> np.ndarray:
        """Return each record's Fisher information (columns, then label), (n, d + 1, d + 1)."""
        d, p = self.X.shape[1], self.probabilities
        slope = np.asarray(self.family.slope(self.margins, self._labels))
        near = 1e-6 * np.maximum(np.abs(self._labels), 1.0)
        ends = [np.asarray(self.family.loss(self.margins, self._labels + h)) for h in (near, -near)]
        moved = slope[:, :, None] * self.candidates[None, :, :d]
        scores = np.concatenate([moved, ((ends[0] - ends[1]) / (2 * near))[:, :, None]], axis=2)
        scores = self.sharpness * (scores - np.einsum("k,nki->ni", p, scores)[:, None, :])
        return np.asarray(np.einsum("k,nki,nkj->nij", p, scores, scores))

    def membership(self) -> Result:
        """Return the success rate of an informed attacker's membership inference on each record.

        The prior probability of membership is one half, and a record that is left out is not
        replaced.
        """
        losses = self._losses
        inside = np.exp(self._log_odds(losses.sum(axis=0)))
        outside = np.exp(self._log_odds(losses.sum(axis=0) - losses))
        right = (2 + np.sum(np.abs(inside - outside), axis=1)) / 4
        return self._result(right, "right", "membership")

    def _largest(self, part: slice, about: str) -> Result:
        values = np.linalg.eigvalsh(self.information()[:, part, part])[:, -1]
        return self._result(np.sqrt(np.maximum(values, 0.0)), "fil", about)

    def _result(self, values: np.ndarray, measure: str, about: str) -> Result:
        return Result(
            values,
            "rows",
            measure,
            "exact",
            about,
            self.table.index,
            assumptions=(
                "The candidates do not depend on these records, and only the chosen candidate is "
                "published.",
                "Everything outside the view is known to the adversary.",
            ),
            library=self.table.library,
        )


def _numbers(values: Any, rule: str) -> np.ndarray:
    """Return values as numbers, or raise an error that states the rule."""
    try:
        found = as_numpy(values)
        if found.dtype.kind in "biufO":
            return np.asarray(found, dtype=float)
    except (TypeError, ValueError):
        pass
    shown = repr(values)
    raise InputError(f"{rule}, not {shown if len(shown) < 60 else 'text or other values'}.")

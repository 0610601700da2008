"""Releases other than exact parameters: answers to queries, or rounded numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from seepage.core.noise import Gaussian
from seepage.errors import InputError
from seepage.support.number_check import check_count
from seepage.tables.names import counted

ANSWERS = (
    "Noise is added to the margins of the model's answers to queries. Parameter directions that "
    "affect no query get a tiny weight, so that the leakage is never understated."
)


@dataclass(frozen=True, eq=False)
class Predictions:
    """The model's answers to queries, released instead of its parameters.

    The answers are margins (for least squares, the predictions) or unrounded probabilities. Either
    carries the same information as ``Aθ̂``, where the rows of A are the queries and θ̂ are the
    parameters. As many linearly independent queries as there are parameters leak as much as the
    parameters. Predicted labels alone leak less than margins. Noise is added to the margins of each
    answer; for softmax, to each of the K margins, of which only the differences matter. The
    predictions of a model whose parameters have noise leak no more than these parameters.

    Parameters
    ----------
    queries
        The queried records, with the columns the model was fitted on. If omitted, each record's own
        prediction is the only answer, as in a membership attack such as LiRA.
    digits
        The number of printed decimals of predictions (probabilities or expected counts), if
        rounded.
    """

    queries: Any = None
    digits: int | None = None

    def __post_init__(self) -> None:
        if self.digits is not None:
            check_count(self.digits, "digits", 0)


@dataclass(frozen=True)
class Parameters:
    """The coefficients and the intercept, rounded to a number of decimals.

    Parameters
    ----------
    digits
        The number of decimals.
    """

    digits: int

    def __post_init__(self) -> None:
        check_count(self.digits, "digits", 0)


def check_queries(queries: np.ndarray, columns: int) -> None:
    """Raise an error unless the queries are a table of finite numbers with the model's columns."""
    if queries.ndim != 2 or queries.shape[1] != columns:
        raise InputError(
            f"The queries have {counted(queries.shape[-1], 'column')}, but the model has "
            f"{columns}; pass the columns the model was fitted on."
        )
    if not np.isfinite(queries).all():
        raise InputError("The queries must be finite numbers; drop or fill in missing values.")


@dataclass(frozen=True, eq=False, repr=False)
class AnswerNoise(Gaussian):
    """Gaussian noise on the margins ``Aθ`` of the answers.

    σ is the standard deviation of the noise on the margins, and Σ its covariance; the information
    about θ is ``Φ = AᵀΣ⁻¹A``. The answers contain no information about directions of θ that affect
    no query. Such directions are assigned 10⁻⁸ of the largest information in any direction, with
    the parameters in units of ``1/sizes``, so that leakage is never understated.

    Parameters
    ----------
    queries
        ``A``, (m, P), or ``None`` if each record's own prediction is the answer.
    sizes
        The reciprocals of the parameters' units, (P,).
    """

    queries: np.ndarray | None = None
    sizes: np.ndarray | None = None

    @property
    def on(self) -> str:  # type: ignore[override]  # of other noise it is a constant
        """A description of the values to which the noise is added."""
        if self.queries is None:
            return "the margins of each record's own prediction"
        count = len(self.queries)
        return "one margin" if count == 1 else f"{count} margins"

    def as_given(self) -> Gaussian:
        """Return the noise on the margins, independent of the queries."""
        return Gaussian(self.sigma)

    @cached_property
    def _on_parameters(self) -> Gaussian:
        """The equivalent noise on θ, which has the same Fisher information."""
        if self.queries is None or self.sizes is None:
            raise InputError(
                "If the release is each record's own prediction, every record has a different "
                "release, and no noise on the parameters is equivalent; pass queries to "
                "sp.Predictions."
            )
        root = self.as_given().root(len(self.queries))
        F = root @ self.queries if np.ndim(root) == 2 else np.reshape(root, (-1, 1)) * self.queries
        _, values, axes = np.linalg.svd(F / self.sizes)
        least = np.pad(values, (0, len(axes) - len(values)))
        least = np.maximum(least, 1e-4 * values[0])
        whole = (axes.T / least) / self.sizes[:, None]
        return Gaussian(whole @ whole.T)

    def information(self, size: int) -> np.ndarray:
        """Return the information ``Φ`` about the parameters."""
        return self._on_parameters.information(size)

    def root(self, size: int) -> np.ndarray:
        """Return an ``F`` such that ``FᵀF = Φ``."""
        return self._on_parameters.root(size)

    def __repr__(self) -> str:
        return f"{super().__repr__()} on {self.on}"

"""What leaves in place of the parameters as they are: answers to queries, or printed digits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from seepage.core.noise import Gaussian
from seepage.errors import InputError
from seepage.support.number_check import check_count

ANSWERS = (
    "The noise is on the margins that the model answers queries with. Directions of the parameters "
    "that no query sees count with faint weight, so that nothing is understated."
)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Answers of the model to queries, in place of its parameters.

    They are margins (of least squares the predictions themselves) or unrounded probabilities, which
    say the same: ``Aθ̂`` with the queries as the rows of A. As many different queries as there are
    parameters tell as much as those. Labels alone tell less. Noise is added to the margins, answer
    by answer, and of softmax to each of the K margins of an answer, of which only differences
    matter; the predictions of a model with noise on its parameters tell no more than these.

    Parameters
    ----------
    queries
        The records that the model was asked about, with the columns it was fitted on. Without any,
        each record's own prediction is the only answer: what a membership attack such as LiRA looks
        at.
    digits
        To how many decimals predictions (probabilities, expected counts) are printed, if they are
        rounded.
    """

    queries: Any = None
    digits: int | None = None

    def __post_init__(self) -> None:
        if self.digits is not None:
            check_count(self.digits, "digits", 0)


@dataclass(frozen=True)
class Parameters:
    """The coefficients and the intercept, rounded to printed digits.

    Parameters
    ----------
    digits
        To how many decimals.
    """

    digits: int

    def __post_init__(self) -> None:
        check_count(self.digits, "digits", 0)


def check_queries(queries: np.ndarray, columns: int) -> None:
    """Raise unless queries are a table of finite numbers with the columns of the model."""
    if queries.ndim != 2 or queries.shape[1] != columns:
        raise InputError(
            f"The queries have {queries.shape[-1]} columns, but the model has {columns}."
        )
    if not np.isfinite(queries).all():
        raise InputError("The queries must be finite numbers.")


@dataclass(frozen=True, eq=False, repr=False)
class AnswerNoise(Gaussian):
    """Gaussian noise on the margins ``Aθ`` of answers: σ is theirs, the information is about θ.

    That is ``Φ = AᵀΣ⁻¹A``. Directions of θ that no query sees would have none; theirs is 10⁻⁸ of
    the largest of any direction, with the parameters in units of ``1/sizes``, so that what leaks is
    never understated.

    Parameters
    ----------
    queries
        ``A``, (m, P); ``None`` where each record's own prediction is the answer.
    sizes
        The units of the parameters, (P,).
    """

    queries: np.ndarray | None = None
    sizes: np.ndarray | None = None

    @property
    def on(self) -> str:
        """What the noise is added to, in words."""
        if self.queries is None:
            return "the margins of each record's own prediction"
        count = len(self.queries)
        return "one margin" if count == 1 else f"{count} margins"

    def as_given(self) -> Gaussian:
        """Return the noise on the margins alone, whatever the queries are."""
        return Gaussian(self.sigma)

    @cached_property
    def _on_parameters(self) -> Gaussian:
        """The noise on θ that lets through as much."""
        if self.queries is None or self.sizes is None:
            raise InputError(
                "Each record's own prediction is another release for every record; give "
                "sp.Predictions the queries."
            )
        root = self.as_given().root(len(self.queries))
        F = root @ self.queries if np.ndim(root) == 2 else np.reshape(root, (-1, 1)) * self.queries
        _, values, axes = np.linalg.svd(F / self.sizes)
        least = np.pad(values, (0, len(axes) - len(values)))
        least = np.maximum(least, 1e-4 * values[0])
        whole = (axes.T / least) / self.sizes[:, None]
        return Gaussian(whole @ whole.T)

    def information(self, size: int) -> np.ndarray:
        """Return ``Φ`` of the parameters."""
        return self._on_parameters.information(size)

    def root(self, size: int) -> np.ndarray:
        """Return some ``F`` with ``FᵀF = Φ``."""
        return self._on_parameters.root(size)

    def __repr__(self) -> str:
        return f"{super().__repr__()} on {self.on}"

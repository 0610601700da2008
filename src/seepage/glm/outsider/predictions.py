"""What leaves in place of the parameters as they are: answers to queries, or printed digits."""

from __future__ import annotations

from dataclasses import dataclass
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
    by answer; the predictions of a model with noise on its parameters tell no more than these.

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


def noise_on_parameters(A: np.ndarray, noise: Gaussian, sizes: np.ndarray) -> Gaussian:
    """Return noise on the parameters that lets through what noise on ``Aθ`` does.

    The information is ``Φ = AᵀΣ⁻¹A``, and noise of covariance ``Φ⁻¹`` on θ has the same. Directions
    that no query sees would have endless noise; theirs is 10⁴ times the least of any direction,
    with the parameters in units of ``1/sizes``, so that what leaks is never understated.
    """
    root = noise.root(len(A))
    F = root @ A if np.ndim(root) == 2 else np.reshape(root, (-1, 1)) * A
    _, values, axes = np.linalg.svd(F / sizes)
    least = np.pad(values, (0, len(axes) - len(values)))
    least = np.maximum(least, 1e-4 * values[0])
    whole = (axes.T / least) / sizes[:, None]
    return Gaussian(whole @ whole.T)

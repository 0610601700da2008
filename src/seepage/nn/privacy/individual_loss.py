"""Computes each record's privacy loss under Gaussian noise, as ε, μ and Rényi divergence.

A record whose clipped gradients have the norms ``‖g̃_t‖`` shifts the mean of release t by
``‖g̃_t‖``. With noise of standard deviation ``s_t``, the record has ``μ``-Gaussian differential
privacy, ``μ² = Σ_t ‖g̃_t‖²/s_t² = Σ_t PL_t`` (Mueller et al. 2022, equations 2 to 4; Dong, Roth and
Su 2022, corollary 3.3 for the sum), and Rényi divergence ``αμ²/2``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seepage.errors import InputError
from seepage.nn.privacy.randomness import mark_of, marked
from seepage.support.number_check import check_share
from seepage.tables.names import counted
from seepage.tables.result_table import PlottedNumbers, RecordResult
from seepage.tables.source import build_frame

Numbers = NDArray[np.float64]

CONDITIONS = (
    "The figure is for adding or removing this record, with all other records unchanged.",
    "No amplification by subsampling is claimed: the attacker may know which steps a record was "
    "in.",
    "The figure is measured for the run that took place. A guarantee in advance requires a filter "
    "that stops a record when its budget is spent (Feldman and Zrnic 2021).",
)


@dataclass(frozen=True, eq=False, repr=False)
class IndividualLoss(RecordResult):
    """The privacy loss ``PL`` of each record, and the guarantees that follow from it.

    Parameters
    ----------
    privacy_loss
        The sum ``Σ_t ‖g̃_t‖²/s_t²`` of every record.
    conditions
        The assumptions under which the numbers are valid.
    rows
        The records' positions, if only some records are included.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.nn.privacy.individual_loss import IndividualLoss
    >>> loss = IndividualLoss(np.array([0.25, 4.0]))
    >>> loss.mu()
    array([0.5, 2. ])
    >>> loss.rdp(order=2)
    array([0.25, 4.  ])
    >>> loss.epsilon(delta=1e-5).round(3)
    array([1.993, 9.997])
    """

    privacy_loss: Numbers
    conditions: tuple[str, ...] = CONDITIONS
    rows: NDArray[np.int64] | None = None

    value_column = "mu"

    def to_numpy(self) -> Numbers:
        """Return the ``μ`` of every record."""
        return self.mu()

    def drawing(self) -> PlottedNumbers:
        """Return the data for :meth:`plot`: every record's ``μ``, in descending order."""
        worst = self.sort()
        return PlottedNumbers(worst.mu(), worst.labels(), "privacy loss μ")

    def html_notes(self) -> tuple[str, ...]:
        """Return the conditions, for display in a notebook."""
        return self.conditions

    def __repr__(self) -> str:
        mu = self.mu()
        if not len(mu):
            return "<individual privacy loss of no records>"
        words = (
            f"<individual privacy loss of {counted(len(mu), 'record')}: "
            f"μ median {np.median(mu):.4g}, largest {mu.max():.4g}>"
        )
        return marked(words, self.conditions)

    def mu(self) -> Numbers:
        """Return each record's ``μ`` of Gaussian differential privacy."""
        return np.sqrt(self.privacy_loss)

    def rdp(self, order: float = 2) -> Numbers:
        """Return each record's Rényi divergence ``αμ²/2`` at order ``α``."""
        if not 1 <= order < np.inf:
            raise InputError(f"A Rényi order must be a finite number of at least 1, not {order!r}.")
        return order * self.privacy_loss / 2

    def epsilon(self, delta: float) -> Numbers:
        """Return each record's smallest ε at δ, which is exact for Gaussian noise."""
        return gaussian_epsilon(self.mu(), delta)

    def table(  # type: ignore[override]
        self, delta: float = 1e-5, library: str | None = None
    ) -> Any:
        """Return a data frame with a row for every record.

        If the noise can be regenerated, the column ``condition`` states this.
        """
        columns: dict[str, object] = {
            "row": self.labels(),
            "privacy_loss": self.privacy_loss,
            "mu": self.mu(),
            "rdp_2": self.rdp(2),
            "epsilon": self.epsilon(delta),
        }
        if mark := mark_of(self.conditions):
            columns["condition"] = [mark] * len(self.privacy_loss)
        return build_frame(columns, library or "pyarrow")


def gaussian_epsilon(mu: Numbers, delta: float) -> Numbers:
    """Return the smallest ε for which Gaussian mechanisms with these ``μ`` are (ε, δ)-private.

    ε is the root of ``Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) = δ`` (Balle and Wang 2018, theorem 8), or
    zero if the left side at ε = 0 is at most δ. For an unknown ``μ`` (nan), ε is nan.
    """
    from scipy.special import log_ndtr, ndtri

    check_share(delta, "delta")
    mu = np.asarray(mu, dtype=np.float64)
    out = np.where(np.isfinite(mu), 0.0, mu)  # an unknown μ stays nan or infinite
    # At ε = 0 the least δ is 2Φ(μ/2) − 1.
    needed = np.isfinite(mu) & (mu > -2 * ndtri((1 - delta) / 2))
    size = mu[needed]
    low = np.zeros_like(size)
    high = size**2 / 2 - size * ndtri(delta)  # there the first term alone is δ
    for _ in range(100):
        middle = (low + high) / 2
        first = log_ndtr(size / 2 - middle / size)
        second = middle + log_ndtr(-size / 2 - middle / size)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_delta = first + np.log(-np.expm1(np.minimum(second - first, 0.0)))
        above = log_delta > np.log(delta)
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    out[needed] = high
    return out

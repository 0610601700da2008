"""What no adversary can beat: the exact optimum beside the white-box attack of Hannun et al. 2021.

An adversary who knows everything but the attribute of one record, and of it only the frequencies of
its levels, sees one of K normal distributions; Bayes' rule is right with a probability that has a
closed form for two and three levels (:mod:`seepage.risks`). For a fair comparison, the level of the
record under attack is drawn from the frequencies, and the release is made from the table with that
level.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seepage import attacks
from seepage.risks.guessing import best_guess
from seepage.support.chunks import row_slices

Vector = NDArray[np.float64]

_HELD = 1 << 22  # scores held at a time


@dataclass(frozen=True, eq=False)
class Beside:
    """The optimum for every record, and whether two rules are right in drawn releases, (T, n).

    ``plain`` is the paper's rule, the nearest refit; ``weighed`` adds the prior's logarithm.
    """

    optimum: Vector
    plain: Vector
    weighed: Vector

    def excess(self, rule: Vector) -> float:
        """Return how far a rule lies above the optimum, in standard errors over the releases."""
        gaps = (rule - self.optimum).mean(axis=1)
        error = gaps.std(ddof=1) / np.sqrt(len(gaps))
        return float(gaps.mean() / error) if error > 0 else 0.0

    def share(self, baseline: float) -> float:
        """Return how far the paper's rule gets from the prior's best guess to the optimum."""
        return float((self.plain.mean() - baseline) / (self.optimum.mean() - baseline))


def beside_the_optimum(
    adversary: attacks.WhiteBox, records: int, sigma: float, trials: int, seed: int
) -> Beside:
    """Return the optimum and the paper's rule for Gaussian noise of one standard deviation."""
    prior = np.exp(adversary.log_prior_)
    K, rng = len(prior), np.random.default_rng(seed)
    optimum, plain, weighed = (
        np.empty(records),
        np.empty((trials, records)),
        np.empty((trials, records)),
    )
    for rows in row_slices(records, trials * K * K, chunk=_HELD):
        refits = adversary.candidates_.differences(rows) / sigma
        gram = refits @ np.swapaxes(refits, 1, 2)
        optimum[rows] = best_guess(gram, prior).right
        squares = np.einsum("bkk->bk", gram)
        # A rule sees the noise only through its products with the refits.
        values, vectors = np.linalg.eigh(gram)
        root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
        noise = np.einsum("bkl,tbl->tbk", root, rng.standard_normal((trials, len(gram), K)))
        # (T, b, truth, level): how near the release of each truth is to each level's refit.
        near = (gram[None] + noise[:, :, None, :]) - squares[None, :, None, :] / 2
        truth = np.arange(K)
        with np.errstate(divide="ignore"):
            likely = near + np.log(prior)
        plain[:, rows] = (near.argmax(axis=3) == truth) @ prior
        weighed[:, rows] = (likely.argmax(axis=3) == truth) @ prior
    return Beside(optimum, plain, weighed)

"""Bayes' rule over candidates in a plane, integrated line by line."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from scipy.integrate import quad
from scipy.special import ndtr


def by_lines(w: np.ndarray, p: np.ndarray) -> float:
    """Integrate ``max_k p_k N(θ; w_k, I)`` over the plane, along lines cut where candidates tie."""

    def line(t: float) -> float:
        heights = p * np.exp(-((t - w[:, 1]) ** 2) / 2) / np.sqrt(2 * np.pi)
        cuts = {-40.0, 40.0}
        for k in range(len(w)):
            for m in range(k):
                gap = w[k, 0] - w[m, 0]
                if abs(gap) > 1e-12:
                    tie = (w[k, 0] + w[m, 0]) / 2 - np.log(heights[k] / heights[m]) / gap
                    cuts.add(float(np.clip(tie, -40, 40)))
        edges = sorted(cuts)
        total = 0.0
        for low, high in pairwise(edges):
            middle = (low + high) / 2
            k = int(np.argmax(np.log(heights) - (middle - w[:, 0]) ** 2 / 2))
            total += heights[k] * (ndtr(high - w[k, 0]) - ndtr(low - w[k, 0]))
        return total

    low, high = w[:, 1].min() - 9, w[:, 1].max() + 9
    pieces = np.linspace(low, high, 20)
    return sum(quad(line, a, b, epsabs=1e-11, limit=200)[0] for a, b in pairwise(pieces))

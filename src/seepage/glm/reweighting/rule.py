"""The rule of iteratively reweighted Fisher information loss: from leakage to the next weights.

Record i of unit k (a unit is a record, or a group of them) has the weight ``ωᵢ = ω⁰ᵢ f_k``. With
``η̄_k`` the mean leakage of the unit's records and ``t_k`` the leakage wanted of it, relative to the
others, the factors follow (paper 001, algorithm 1, where every record is a unit and every t one)::

    f_k ← c f_k t_k / η̄_k,      c such that  Σᵢ ωᵢ = Σᵢ ω⁰ᵢ

With limits the right-hand side is clipped to them, and c is such that the sum holds after clipping.
Where rounds no longer bring the leakages nearer to each other, because the weights swing to and fro
about the fixed point, steps are halved on a logarithmic scale: ``f_k ← c f_k (t_k/η̄_k)^½`` and so
on. The fixed point is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from seepage.core.leakage import group_labels
from seepage.errors import InputError, nearest
from seepage.support.chunks import progress
from seepage.tables.source import Table, as_numpy, check_length

_SHORTEST_STEP = 1 / 16
_NOTHING = 1e-12  # of the largest leakage: below it a unit is said to leak nothing


class ReweightRound(NamedTuple):
    """One round: the weights, and the leakage of every record with them."""

    weights: np.ndarray  # (n,)
    factors: np.ndarray  # (units,)
    eta: np.ndarray  # (n,)
    change: float  # how far the next factors lie away, relative, root mean square over the units


@dataclass(frozen=True, eq=False)
class ReweightRule:
    """Which records share a weight, what leakage is wanted of them, and within which limits."""

    start: np.ndarray  # ``ω⁰``, (n,). Records of weight zero stay out: they count in no mean.
    unit: np.ndarray  # the unit of every record, (n,)
    target: np.ndarray  # ``t``, (units,)
    # The limits of the factors
    low: float = 0.0
    high: float = math.inf

    def weights(self, factors: np.ndarray) -> np.ndarray:
        """Return ``ω⁰ᵢ f_k`` of every record, (n,)."""
        return np.asarray(self.start * factors[self.unit])

    def mass(self) -> np.ndarray:
        """Return ``Σ ω⁰`` over the records of each unit, (units,)."""
        return np.bincount(self.unit, weights=self.start, minlength=len(self.target))

    def counts(self) -> np.ndarray:
        """Return how many records of each unit take part, (units,)."""
        taking_part = (self.start > 0).astype(float)
        return np.bincount(self.unit, weights=taking_part, minlength=len(self.target))

    def means(self, values: np.ndarray) -> np.ndarray:
        """Return the mean over the records of each unit that take part, (units,)."""
        kept = np.where(self.start > 0, values, 0.0)
        sums = np.bincount(self.unit, weights=kept, minlength=len(self.target))
        return np.asarray(sums / np.maximum(self.counts(), 1.0))

    def leaking(self, eta: np.ndarray) -> np.ndarray:
        """Return which units leak at all, (units,); the weights of others can do nothing."""
        means = self.means(eta)
        return np.asarray(means > _NOTHING * np.max(means, initial=0.0))

    def following(self, factors: np.ndarray, eta: np.ndarray, step: float = 1.0) -> np.ndarray:
        """Return the factors of the next round, (units,), or some part of the way to them.

        A unit that leaks nothing, whatever its weight, keeps the factor it has.
        """
        moving = self.leaking(eta)
        if not np.any(moving):
            return factors
        mass = self.mass()
        wanted = factors[moving] * (self.target[moving] / self.means(eta)[moving]) ** step
        left = float(np.sum(mass[moving] * factors[moving]))
        new = factors.copy()
        new[moving] = _scaled_into(wanted, mass[moving], left, self.low, self.high)
        return new

    def change(self, factors: np.ndarray, following: np.ndarray) -> float:
        """Return the relative difference, root mean square over the units that take part.

        Without limits this is, once small, the spread of ``η̄_k/t_k`` over its mean.
        """
        here = self.mass() > 0
        return float(np.sqrt(np.mean((following[here] / factors[here] - 1) ** 2)))

    def run(
        self, leakage_with: Callable[[np.ndarray], np.ndarray], rounds: int, tolerance: float
    ) -> Iterator[ReweightRound]:
        """Yield the first step, with the weights ω⁰, and then one for every round.

        ``leakage_with`` refits with the weights it is given and returns the leakage of every
        record. There is no further round where the weights would change by less than ``tolerance``.
        """
        factors, step, before = np.ones(len(self.target)), 1.0, math.inf
        for _ in progress(range(rounds + 1), "rounds"):
            weights = self.weights(factors)
            eta = leakage_with(weights)
            change = self.change(factors, self.following(factors, eta))
            yield ReweightRound(weights, factors, eta, change)
            if change <= tolerance:
                return
            step = max(step / 2, _SHORTEST_STEP) if change >= before else step
            factors, before = self.following(factors, eta, step), change


def _scaled_into(
    values: np.ndarray, mass: np.ndarray, total: float, low: float, high: float
) -> np.ndarray:
    """Return ``clip(c·values, low, high)`` with c such that ``Σ mass·clip(…) = total``.

    The sum is piecewise linear in c and bends where a value meets a limit; the piece with the
    solution is found by bisection over those points.
    """
    if low <= 0 and high == math.inf:
        return np.asarray(values * (total / float(np.sum(mass * values))))
    bends = np.concatenate([low / values, high / values])
    bends = np.sort(bends[np.isfinite(bends)])

    def reached(c: float) -> bool:
        return float(np.sum(mass * np.clip(c * values, low, high))) >= total

    first, last = 0, len(bends)  # the first bend at which the total is reached
    while first < last:
        middle = (first + last) // 2
        first, last = (first, middle) if reached(bends[middle]) else (middle + 1, last)
    below = bends[first - 1] if first > 0 else 0.0
    above = bends[first] if first < len(bends) else 2 * below + 1.0
    inside = (below + above) / 2 * values
    clipped = np.clip(inside, low, high)
    free = (inside > low) & (inside < high)
    if not np.any(free):
        return np.asarray(np.clip(above * values, low, high))
    rest = total - float(np.sum(mass[~free] * clipped[~free]))
    c = rest / float(np.sum(mass[free] * values[free]))
    return np.asarray(np.clip(np.where(free, c * values, clipped), low, high))


def read_rule(
    table: Table, y: Any, *, by: Any, target: Any, clamp: Any, sample_weight: Any
) -> tuple[ReweightRule, np.ndarray | None]:
    """Read the arguments of :func:`seepage.glm.reweight`; also return the groups' labels."""
    start = np.ones(len(table)) if sample_weight is None else as_numpy(sample_weight).astype(float)
    if by is None:
        unit, labels = np.arange(len(table)), None
        wanted = _row_targets(target, table)
    else:
        labels, unit = _groups(y if isinstance(by, str) and by == "class" else by, table)
        wanted = _group_targets(target, labels)
    low, high = (0.0, math.inf) if clamp is None else _limits(clamp)
    return ReweightRule(start, unit, wanted, low, high), labels


def _row_targets(target: Any, table: Table) -> np.ndarray:
    if target is None:
        return np.ones(len(table))
    wanted = as_numpy(target)
    if wanted.ndim == 0 or wanted.dtype.kind not in "biuf":
        raise InputError(
            "target must hold one number per row: the leakage wanted of it, relative to the "
            "others; only with by= it is a mapping from groups to numbers."
        )
    check_length(wanted, table, "target")
    return _positive(wanted.astype(float))


def _group_targets(target: Any, labels: np.ndarray) -> np.ndarray:
    if target is None:
        return np.ones(len(labels))
    if not hasattr(target, "keys"):
        raise InputError("With by=, target must be a mapping from each group to its number.")
    known = labels.tolist()
    for label in target:
        if label not in known:
            raise InputError(f"No record is in the group {label!r}{nearest(label, known)}.")
    missing = [label for label in known if label not in target]
    if missing:
        raise InputError(f"target has no number for the group {missing[0]!r}; give one for each.")
    return _positive(np.asarray([float(target[label]) for label in known]))


def _positive(wanted: np.ndarray) -> np.ndarray:
    if not np.all(np.isfinite(wanted) & (wanted > 0)):
        worst = int(np.argmin(np.where(np.isfinite(wanted), wanted, -np.inf)))
        raise InputError(
            f"target must be finite and above zero, but its entry {worst} is {wanted[worst]:g}; to "
            "leave a row out, give it the sample weight zero."
        )
    return wanted


def _groups(by: Any, table: Table) -> tuple[np.ndarray, np.ndarray]:
    """Return the groups' labels in sorted order, and the position among them of every record's."""
    values = as_numpy(by)
    if values.ndim == 0:
        raise InputError('by must be "class" or hold the group of every row.')
    values = group_labels(values, table, "by")
    try:
        labels, unit = np.unique(values, return_inverse=True)
    except TypeError:
        raise InputError("by holds labels of mixed types; make them all text.") from None
    return labels, unit.reshape(-1)


def _limits(clamp: Any) -> tuple[float, float]:
    try:
        low, high = (float(limit) for limit in clamp)
    except (TypeError, ValueError):
        raise InputError(f"clamp must be a pair of numbers (low, high), not {clamp!r}.") from None
    if not 0 <= low <= 1 <= high:
        raise InputError(
            f"clamp must have 0 ≤ low ≤ 1 ≤ high, because weights are one on average, but it is "
            f"({low:g}, {high:g})."
        )
    return low, high

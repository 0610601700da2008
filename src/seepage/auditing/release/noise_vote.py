"""Blocks of records vote privately on the noise, so that σ depends little on any single record.

The method is subsample and aggregate (Nissim, Raskhodnikova and Smith 2007). Every record is
assigned to one of m blocks at random. A model is fitted to each block, which determines the noise
that the block's most exposed record needs. Leakage is inversely proportional to the number of
records. The block therefore votes for 1/m of that noise, with a margin, as the noise for the whole
table. Adding, removing or replacing one record changes the vote of only one block, whatever the
data. The number of votes up to a point ``s`` of the grid, and the number above the preceding point
``s'``, change by at most one. So does the score::

    u(s) = min(0, #{votes ≤ s} − m/2, #{votes > s'} − m/2)

The score is zero at the median vote, rounded up to the grid. Permute-and-flip (McKenna and Sheldon
2020) visits the points in random order until one is accepted, each with probability
``exp(ε (u(s) − max u)/2)``. Given the other published figures, the choice is ε-differentially
private. Its expected error is never larger than that of the exponential mechanism, and at best half
of it.

A private vote cannot always yield enough noise for the most exposed record. Let ``need(T)`` be the
smallest σ that is enough for the table T. Suppose that, for every table T, an ε-private mechanism
draws a σ below ``need(T)`` with probability at most β. For a table T' that differs from T in k
records, it then draws a σ below ``need(T)`` with probability at most ``β exp(kε)``. If private
noise is *always* enough for its own table (β = 0), it is therefore enough for every possible table,
and far too large for most. For this reason, votes have a margin, and σ is redrawn until it is
enough for the table T::

    P_T(s) = p_T(s) 1[s ≥ need(T)] / a(T),    a(T) = p_T(s ≥ need(T))

Here ``p_T`` gives the probabilities of the σ of one vote. For each pair of tables T and T' that
differ by one record, :meth:`NoiseDraw.beside` returns ε and δ. A draw below the larger of the two
needs rules out one of the tables; under either table, the probability of this is at most δ. If σ is
enough for both (the event C), it is distributed as one vote given C. The odds then change by at
most ``e^ε₀ max(p_T(C)/p_T'(C), p_T'(C)/p_T(C))``, with ε₀ the ε of one vote. The ratio is at most
``e^ε₀``, and it is one if C is certain.

If the unit is the person, people are assigned to blocks with all of their records, and a block
votes on its most exposed person. Adding, removing or replacing all records of one person then
changes the vote of one block.
"""

from __future__ import annotations

import math
import random
import secrets
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from seepage.auditing.measures import largest_share
from seepage.auditing.trained_model import TrainedModel
from seepage.core.result import COARSER, round_up
from seepage.errors import InputError


def plan_vote(
    records: int, features: int, classes: bool, epsilon: float | None
) -> tuple[int, float]:
    """Return the number of voting blocks and the ε of the vote; both are 0 for too few records.

    A block has at least ten records if there are classes, since most blocks must contain every
    class. Otherwise it has at least as many records as features, because a linear model would fit a
    smaller block exactly. The product of the number of blocks and ε determines how random σ is:
    below 16, σ is almost entirely random. If ``epsilon`` is given, too few records raise an error.
    """
    size = 10 if classes else max(4, features)
    blocks = min(records // size, 50)
    if blocks >= 10:
        return blocks, max(0.4, 16 / blocks) if epsilon is None else epsilon
    if epsilon is None:
        return 0, 0.0
    raise InputError(
        f"A vote on the noise needs at least {10 * size:,} records; with fewer, declare the noise "
        "with --sigma."
    )


def interval_kept(epsilon: float, level: float = 0.95) -> float:
    """Return the level at which a credible interval remains valid, given figures of total ε.

    Let ``p`` be an attacker's posterior about a record given the noisy numbers, for any prior, and
    ``q`` the posterior after also reading figures that are ε-differentially private. By Bayes'
    theorem ``q ∝ p · P(figures | record)``. The second factor varies by at most ``exp(ε)``, so the
    odds of any event under ``q`` are within a factor of ``exp(ε)`` of its odds under ``p``. Under
    ``q``, the probability beyond an end of the central interval of ``q`` is ``t = (1 − level)/2``.
    Under ``p``, it is therefore at most ``t' = t exp(ε)/(1 − t + t exp(ε))``. The interval thus
    contains the central interval of ``p`` at level ``1 − 2t'``.

    >>> interval_kept(0.0), round(interval_kept(0.4), 3)
    (0.95, 0.926)
    """
    if math.isinf(epsilon):
        return 0.0
    tail = (1 - level) / 2
    odds = tail / (1 - tail) * math.exp(epsilon)
    return 1 - 2 * odds / (1 + odds)


def noise_grid(unit: float, records: int) -> np.ndarray:
    """Return the points from which σ is drawn, computed from published figures only.

    The ten points cover three decades, starting at ``25 * unit / records``.
    """
    points = [round_up(25 * unit / records, COARSER)]
    while len(points) < 10:
        points.append(round_up(1.5 * points[-1], COARSER))
    return np.asarray(points)


@dataclass(frozen=True, eq=False)
class Seats:
    """The seat of each row in the vote: a random number in [0, 1) that determines its block.

    The seats need not be secret. Removing a row does not change the seats of other rows.
    """

    seed: int
    places: np.ndarray  # one for each row; the same for all rows of a person

    @classmethod
    def of(cls, raw: pa.Table, person: str | None, seed: int | None = None) -> Seats:
        """Return seats for a table; if no seed is given, one is drawn at random."""
        seed = secrets.randbits(128) if seed is None else seed
        places = np.random.default_rng(seed).random(raw.num_rows)
        if person is not None:
            number = raw.column(person).combine_chunks().dictionary_encode("encode").indices
            places = places[number.to_numpy(zero_copy_only=False)]
        return cls(seed, places)

    def without(self, rows: np.ndarray) -> Seats:
        """Return the seats of the table without the given rows."""
        return replace(self, places=np.delete(self.places, rows))


@dataclass(frozen=True, eq=False)
class NoiseDraw:
    """The distribution of σ for a table; votes are repeated until the σ of one is large enough."""

    grid: np.ndarray
    chance: np.ndarray  # the probability with which one vote draws each point of the grid
    blocks: int
    epsilon: float  # the ε of one vote
    least: float  # the smallest σ that is enough for the table
    sigma: float  # the drawn σ

    @property
    def probability(self) -> float:
        """The probability that the σ of one vote is enough for the table."""
        return float(self.chance[self.grid >= self.least].sum())

    @property
    def published(self) -> np.ndarray:
        """The probability with which each point of the grid is published."""
        return np.where(self.grid >= self.least, self.chance, 0.0) / self.probability

    def beside(self, other: float) -> tuple[float, float]:
        """Return ε and δ of the published σ, for this table and one that needs different noise.

        ``other`` is the smallest σ that is enough for the other table, which differs by one record
        or person. The probability of each vote therefore differs between the tables by at most a
        factor ``e^±ε₀``. An event with probability q for this table has, for the other table, a
        probability between ``max(e^-ε₀ q, 1 − e^ε₀ (1 − q))`` and ``min(e^ε₀ q, 1 − e^-ε₀ (1 −
        q))``. Let C be the event that a vote is enough for both tables. The probabilities of events
        are p for this table and p' for the other one, and a is :attr:`probability`. If the other
        table needs more noise, a draw for this table rules out the other with probability ``1 −
        p(C)/a``. If the other table needs less noise, a draw for it rules out this table with
        probability ``p'(M)/(p'(M) + p'(C))``. Here M is the event that a vote is enough for the
        other table but not for this one.
        """
        both = float(self.chance[self.grid >= max(self.least, other)].sum())
        between = float(self.chance[self.grid >= min(self.least, other)].sum()) - both
        if both <= 0:
            return 0.0, 1.0  # any σ rules one of them out
        fewer, more = self._elsewhere(both)
        epsilon = self.epsilon + math.log(max(more / both, both / fewer))
        if other >= self.least:
            return epsilon, max(between, 0.0) / (both + max(between, 0.0))
        less = self._elsewhere(max(between, 0.0))[1]
        return epsilon, less / (less + fewer)

    def _elsewhere(self, probability: float) -> tuple[float, float]:
        """Return the smallest and largest probability of an event for a neighbouring table."""
        up, down = math.exp(self.epsilon), math.exp(-self.epsilon)
        rest = max(1 - probability, 0.0)
        return max(down * probability, 1 - up * rest), min(up * probability, 1 - down * rest)


def vote_on_noise(
    trained: TrainedModel,
    allowed: np.ndarray,
    grid: np.ndarray,
    block: np.ndarray,
    blocks: int,
    epsilon: float,
    least: float,
) -> NoiseDraw | None:
    """Draw the noise of a release from a grid until it is enough; ``None`` if no point is.

    ``allowed`` is the leakage allowed for each record, or person, and ``block`` the number of the
    voting block of each. ``least`` is the smallest noise with which no record or person exceeds the
    allowed leakage.
    """
    chance = chances(block_opinions(trained, allowed, block, blocks), grid, epsilon)
    enough = np.where(grid < least, 0.0, chance)
    if not enough.sum():
        return None
    sigma = random.SystemRandom().choices(grid.tolist(), enough.tolist())[0]
    return NoiseDraw(grid, chance, blocks, epsilon, least, sigma)


def chances(opinions: np.ndarray, grid: np.ndarray, epsilon: float) -> np.ndarray:
    """Return the probability with which each point of the grid is drawn.

    A point at position ``x`` of the random order (between 0 and 1) is drawn if it is accepted, with
    probability ``p``, and no point before it is. The probability of this is ``p ∫₀¹ Π(1 − x p')
    dx``, with the product over the acceptance probabilities ``p'`` of all other points.
    """
    score = scores(opinions, grid)
    accepted = np.exp(epsilon / 2 * (score - score.max()))
    places, weights = np.polynomial.legendre.leggauss(len(grid) // 2 + 1)  # exact at this degree
    passed = 1 - (places[:, None] + 1) / 2 * accepted
    others = [np.prod(np.delete(passed, k, axis=1), axis=1) for k in range(len(grid))]
    return np.asarray(accepted * (others @ weights) / 2)


def scores(opinions: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Return the score of each point: minus the number of votes between it and the median."""
    below = np.sum(opinions[:, None] <= grid, axis=0)
    beyond = len(opinions) - np.concatenate([[0], below[:-1]])
    short = np.minimum(below, beyond) - len(opinions) / 2
    return np.asarray(np.minimum(0.0, short))


def block_opinions(
    trained: TrainedModel, allowed: np.ndarray, block: np.ndarray, blocks: int
) -> np.ndarray:
    """Return each block's vote on the noise for the whole table, computed from its records only.

    ``block`` is the number of the block of each record, or person.
    """
    source, owner = trained.records, trained.records.owner
    opinions = np.full(blocks, math.inf)  # a block without a model asks for more than any other
    for k in range(blocks):
        records = source.at(np.flatnonzero(block[owner] == k))
        try:
            # From scratch: the whole table's model would reveal something about the other records.
            alone = replace(trained, table=replace(trained.table, source=records))
            needed = largest_share(alone.refitted(trained.settings), allowed[block == k])
            opinions[k] = 3 * needed / blocks  # with a margin: see above
        except InputError:
            continue
    return opinions

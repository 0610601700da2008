"""The noise drawn by a private vote of blocks of records, so that σ follows no single one.

Subsample and aggregate (Nissim, Raskhodnikova and Smith 2007): every record falls into one of m
blocks at random; a model is fitted to each block, and the noise that its most exposed record needs
is computed. Leakage is inversely proportional to the number of records, so an m-th of that noise,
with a margin, is the block's opinion on the noise for the whole table. Adding, removing or
replacing one record changes the opinion of one block and no other, whatever the data: the numbers
of opinions up to a point ``s`` of the grid, and beyond the point ``s'`` before it, change by at
most one, and so does the score::

    u(s) = min(0, #{opinions ≤ s} − m/2, #{opinions > s'} − m/2)

which is zero at the point that the median is rounded up to. Taking the points in random order until
one is accepted, each with a probability of ``exp(ε (u(s) − max u)/2)`` (permute-and-flip, McKenna
and Sheldon 2020, which errs half as often as the exponential mechanism), is therefore
ε-differentially private, given the other published figures.

It cannot follow the most exposed record. An ε-private mechanism that puts σ below what a table
needs with probability at most β puts it below what any table that differs in k records needs with
probability at most ``β exp(kε)``: private noise that is *always* enough is enough for every
possible table. So opinions have a margin, and σ is redrawn until it is enough, which with
probability ``a`` it is at once: that multiplies the odds of a published σ by at most ``1/a`` more,
and rules out tables that would need more noise.

Where the unit is the person, people fall into blocks with all of their records, and a block's
opinion is about its most exposed person: adding, removing or replacing all records of one person
then changes the opinion of one block.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np

from seepage.auditing.findings import NoiseVote
from seepage.auditing.measures import largest_share
from seepage.auditing.trained_model import TrainedModel
from seepage.core.result import COARSER, round_up
from seepage.errors import InputError


def plan_vote(
    records: int, features: int, classes: bool, epsilon: float | None
) -> tuple[int, float]:
    """Return the number of blocks that vote, and the ε of their vote; no blocks if too few records.

    A class must be in most blocks, so each has ten records of it on average; with fewer records
    than features, a linear model fits all. Blocks times ε decide how arbitrary σ is: below 16,
    almost wholly.
    """
    size = 10 if classes else max(4, features)
    blocks = min(records // size, 50)
    if blocks >= 10:
        return blocks, max(0.4, 16 / blocks) if epsilon is None else epsilon
    if epsilon is None:
        return 0, 0.0
    raise InputError(
        f"A vote on the noise takes {10 * size:,} records or more; declare it with --sigma."
    )


def interval_kept(epsilon: float, level: float = 0.95) -> float:
    """Return the level of a central credible interval that survives figures with a total of ε.

    Let ``p`` be somebody's belief about a record once the noisy numbers are known, whatever was
    known before, and ``q`` the belief after also reading figures that are ε-differentially private.
    By Bayes' theorem ``q ∝ p · P(figures | record)``, whose second factor
    varies by at most ``exp(ε)``; so the odds of any event under ``q`` are within a factor of
    ``exp(ε)`` of those under ``p``. Beyond an end of the central interval of ``q`` lies a
    probability of ``t = (1 − level)/2`` under ``q``, and hence of at most
    ``t' = t exp(ε)/(1 − t + t exp(ε))`` under ``p``: the interval contains the central one of ``p``
    with level ``1 − 2t'``.

    >>> interval_kept(0.0), round(interval_kept(0.4), 3)
    (0.95, 0.926)
    """
    if math.isinf(epsilon):
        return 0.0
    tail = (1 - level) / 2
    odds = tail / (1 - tail) * math.exp(epsilon)
    return 1 - 2 * odds / (1 + odds)


def noise_grid(unit: float, records: int) -> np.ndarray:
    """Return the points from which σ is drawn, from published figures alone.

    Three decades, from 25 times the unit over the number of records on.
    """
    points = [round_up(25 * unit / records, COARSER)]
    while len(points) < 10:
        points.append(round_up(1.5 * points[-1], COARSER))
    return np.asarray(points)


def vote_on_noise(
    trained: TrainedModel,
    allowed: np.ndarray,
    grid: np.ndarray,
    blocks: int,
    epsilon: float,
    least: float,
) -> NoiseVote | None:
    """Draw the noise of a release from a grid until it is enough; ``None`` if no point is.

    ``allowed`` is what every record, or person, may leak, ``least`` the least noise with which none
    exceeds it.
    """
    draw = random.SystemRandom()
    block = np.asarray([draw.randrange(blocks) for _ in range(len(trained.holders))])
    chance = chances(block_opinions(trained, allowed, block, blocks), grid, epsilon)
    chance[grid < least] = 0.0
    enough = float(chance.sum())
    if not enough:
        return None
    return NoiseVote(draw.choices(grid.tolist(), chance.tolist())[0], blocks, epsilon, enough)


def chances(opinions: np.ndarray, grid: np.ndarray, epsilon: float) -> np.ndarray:
    """Return the probability with which every point of the grid is drawn.

    A point that is accepted with probability ``p`` and comes at position ``x`` of the order,
    between 0 and 1, is drawn if none before it is accepted: ``p ∫ Π(1 − x p') dx`` over the others.
    """
    score = scores(opinions, grid)
    accepted = np.exp(epsilon / 2 * (score - score.max()))
    places, weights = np.polynomial.legendre.leggauss(len(grid) // 2 + 1)  # exact at this degree
    passed = 1 - (places[:, None] + 1) / 2 * accepted
    others = [np.prod(np.delete(passed, k, axis=1), axis=1) for k in range(len(grid))]
    return np.asarray(accepted * (others @ weights) / 2)


def scores(opinions: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Return minus the number of opinions that each point of the grid lacks to be the median."""
    below = np.sum(opinions[:, None] <= grid, axis=0)
    beyond = len(opinions) - np.concatenate([[0], below[:-1]])
    short = np.minimum(below, beyond) - len(opinions) / 2
    return np.asarray(np.minimum(0.0, short))


def block_opinions(
    trained: TrainedModel, allowed: np.ndarray, block: np.ndarray, blocks: int
) -> np.ndarray:
    """Return every block's opinion on the noise for the whole table, from its records alone.

    ``block`` says which block every record is in, or every person.
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

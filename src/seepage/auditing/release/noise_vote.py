"""The noise drawn by a private vote of blocks of records, so that σ follows no single one.

Subsample and aggregate (Nissim, Raskhodnikova and Smith 2007): every record falls into one of m
blocks at random; a model is fitted to each block, and the noise is computed that its most leaked
record needs. Leakage goes with one over the number of records, so an m-th of that is the block's
opinion on the whole table. One record, more, less or another, changes the opinion of one block and
no other, whatever the data are: the numbers of opinions up to a point ``s`` of the grid, and beyond
the point ``s'`` before it, change by at most one, and so does the score::

    u(s) = min(0, #{opinions ≤ s} − m/2, #{opinions > s'} − m/2)

which is zero at the point that the median is rounded up to. Drawing a point with probability
proportional to ``exp(ε u(s)/2)`` (the exponential mechanism, McSherry and Talwar 2007) is therefore
ε-differentially private, given the other published figures.

What it cannot do is to follow the most exposed record. A mechanism that is ε-private and puts σ
below what a table needs with a probability of at most β puts it below what any table needs that
differs in k records with one of at most ``β exp(kε)``: private noise that is *always* enough is
enough for every table there could be. So the drawn σ has a margin over the median opinion, and is
checked: that a release was made at all tells that no record exceeded its target.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import numpy as np

from seepage.auditing.measures import largest_share
from seepage.auditing.trained_model import RecordsInMemory, TrainedModel
from seepage.core.result import COARSER, round_up
from seepage.errors import InputError

MARGIN = 5.0  # over the opinion of the median block
_RECORDS = 10  # of a block, on average
_MOST_BLOCKS, _FEWEST_BLOCKS = 50, 10
_DECADES = range(5)  # of opinions, from what the target allows over the number of records on


@dataclass(frozen=True)
class NoiseVote:
    """A σ that was drawn, and how."""

    sigma: float
    blocks: int
    epsilon: float


def count_blocks(records: int) -> int:
    """Return the number of blocks for a published number of records."""
    blocks = min(records // _RECORDS, _MOST_BLOCKS)
    if blocks < _FEWEST_BLOCKS:
        raise InputError(
            f"A vote on the noise takes {_RECORDS * _FEWEST_BLOCKS} records or more; declare it "
            "with --sigma."
        )
    return blocks


def vote_on_noise(
    trained: TrainedModel, allowed: np.ndarray, unit: float, blocks: int, epsilon: float
) -> NoiseVote:
    """Draw the noise of a release.

    ``allowed`` is what every record may leak, ``unit`` the published one of the target, over the
    target η: the grid starts from it.
    """
    draw = random.SystemRandom()
    block = np.asarray([draw.randrange(blocks) for _ in range(len(trained.source))])
    opinions = block_opinions(trained, allowed, block, blocks)
    start = round_up(unit / (_RECORDS * blocks), (1.0,))
    grid = np.asarray([start * 10**k * step for k in _DECADES for step in COARSER])
    score = scores(opinions, grid)
    chosen = draw.choices(grid.tolist(), weights=np.exp(epsilon / 2 * (score - score.max())))[0]
    return NoiseVote(round_up(MARGIN * chosen, COARSER), blocks, epsilon)


def scores(opinions: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Return how many opinions every point of the grid is short of being the median, below zero."""
    below = np.sum(opinions[:, None] <= grid, axis=0)
    beyond = len(opinions) - np.concatenate([[0], below[:-1]])
    short = np.minimum(below, beyond) - len(opinions) / 2
    return np.asarray(np.minimum(0.0, short))


def block_opinions(
    trained: TrainedModel, allowed: np.ndarray, block: np.ndarray, blocks: int
) -> np.ndarray:
    """Return the noise for the whole table that every block would have, from its records alone."""
    source = trained.source
    assert isinstance(source, RecordsInMemory)  # noqa: S101 - a release is made of a table in memory
    opinions = np.full(blocks, math.inf)  # a block without a model asks for more than any
    for k in range(blocks):
        rows = np.flatnonzero(block == k)
        records = source.at(rows)
        try:
            # From scratch: where the whole table's model is would tell about the other records.
            alone = replace(trained, table=replace(trained.table, source=records))
            opinions[k] = largest_share(alone.refitted(trained.settings), allowed[rows]) / blocks
        except InputError:
            continue
    return opinions

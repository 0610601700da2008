"""Compute the variance due to other people in two passes over a table read in chunks.

The first pass computes ``Σ g`` and ``Σ ggᵀ`` over all people, which determine ``ḡ`` and G. The
second pass computes both distributions for the records of each chunk. Every record is a separate
person, and nothing is refitted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from seepage.core.noise import Attacker
from seepage.glm.changes.changed_records import ChangedRecords
from seepage.glm.outsider.others import OtherPeople
from seepage.glm.outsider.worlds import Worlds
from seepage.risks.two_normals import TwoNormals
from seepage.tables.source import Chunk, RowSource

ChunkFits = Callable[[Chunk], ChangedRecords]  # the fit to second order on a chunk's records


@dataclass(frozen=True)
class OthersTotal:
    """The sums over all people; sums from different chunks can be added."""

    count: int  # people of positive weight
    known: int  # those of them whose pull is known
    gradient: np.ndarray  # Σ g, (P,)
    square: np.ndarray  # Σ ggᵀ, (P, P)

    def __add__(self, other: OthersTotal) -> OthersTotal:
        return OthersTotal(
            self.count + other.count,
            self.known + other.known,
            self.gradient + other.gradient,
            self.square + other.square,
        )

    @property
    def size(self) -> int:
        """The number of free parameters."""
        return len(self.gradient)

    @property
    def present_count(self) -> int:
        """The number of people in the data, none of whom the attacker knows individually."""
        return self.count

    @property
    def mean(self) -> np.ndarray:
        """``ḡ``, (P,)."""
        return np.asarray(self.gradient / self.count)

    @property
    def scatter(self) -> np.ndarray:
        """``G = Σ ggᵀ − Σg ḡᵀ − ḡ Σgᵀ + n ḡḡᵀ`` over all finite gradients, of shape (P, P)."""
        crossed = np.outer(self.gradient, self.mean)
        centred = self.square - crossed - crossed.T + self.known * np.outer(self.mean, self.mean)
        return np.asarray((centred + centred.T) / 2)


class _Told(NamedTuple):
    """The results for the records in a chunk."""

    share: np.ndarray
    worlds: TwoNormals
    rest: np.ndarray  # the distance to an attacker who knows all other records


@dataclass(frozen=True)
class StreamedWorlds:
    """The two distributions of every record in data read in chunks, like :class:`Worlds`.

    Parameters
    ----------
    source
        The records.
    fits
        A function that returns the fit on a chunk's records.
    noisy
        Whether noise is added to the parameters.
    others
        The sums of the first pass.
    unknown
        The share u of the variance that is due to records the attacker does not know.
    """

    own = False  # each record's own prediction is measured in memory

    source: RowSource
    fits: ChunkFits
    noisy: bool
    others: OthersTotal
    unknown: float

    @classmethod
    def of(
        cls, source: RowSource, fits: ChunkFits, noisy: bool, attacker: Attacker
    ) -> StreamedWorlds:
        """Return the distributions, after the first pass."""
        total = source.total(partial(_total, fits=fits, noisy=noisy), "the others")
        return cls(source, fits, noisy, total, attacker.unknown(total.count))

    @property
    def numbers(self) -> int:
        """The count of released numbers."""
        return self.others.size

    @property
    def taken_for_known(self) -> np.ndarray:
        """The number of people treated as known: zero, since all parameters are released."""
        return np.zeros(len(self.source), dtype=int)

    def told(self) -> tuple[np.ndarray, TwoNormals, np.ndarray]:
        """Return ``αq``, both distributions, and an informed attacker's distance, by record."""
        ask = partial(
            _told_apart,
            fits=self.fits,
            noisy=self.noisy,
            total=self.others,
            unknown=self.unknown,
        )
        parts = list(self.source.each(ask, "membership"))
        joined = TwoNormals.joined([part.worlds for part in parts])
        shares, _, rests = zip(*parts, strict=True)
        return np.concatenate(shares), joined, np.concatenate(rests)


def _total(chunk: Chunk, fits: ChunkFits, noisy: bool) -> OthersTotal:
    others = OtherPeople(fits(chunk).model, None, noisy)
    known = others.present & ~others.alone
    total, square = np.zeros(others.size), np.zeros((others.size, others.size))
    for piece, g in others.gradients():
        total += g[known[piece]].sum(axis=0)
        square += g[known[piece]].T @ g[known[piece]]
    return OthersTotal(others.count, int(known.sum()), total, square)


def _told_apart(
    chunk: Chunk, fits: ChunkFits, noisy: bool, total: OthersTotal, unknown: float
) -> _Told:
    others = OtherPeople(fits(chunk).model, None, noisy)
    # In place of what would be worked out from the records of this chunk alone.
    others.count, others.mean, others.scatter = total.count, total.mean, total.scatter
    here = Worlds(others, unknown)
    share, pairs = here.told_apart()
    moved = np.concatenate([g for _, g in others.gradients()])
    rest = np.where(np.any(moved != 0, axis=1) | others.alone, np.inf, 0.0)
    if noisy:
        root = here.with_unknown(0.0).root_for()
        lengths = [np.linalg.norm(g @ root(s)) for g, s in zip(moved, others.sets, strict=True)]
        rest = np.where(others.alone, np.inf, lengths)
    return _Told(share, pairs, rest)

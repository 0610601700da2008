"""A random projection of gradients too wide to hold: every entry, with a random sign, to a bucket.

This is the count sketch (Charikar, Chen and Farach-Colton 2002; "feature hashing"): it takes one
addition per entry, keeps inner products right in expectation, and turns independent noise into
independent noise, so that noise may be added before or after.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from seepage.nn.jacobian.random_directions import key_of


class Sketch:
    """Projects vectors of ``size`` numbers to ``width``; leaves them as they are if they fit.

    Parameters
    ----------
    size
        Numbers in a vector.
    width
        The most that are kept.
    key
        Seeds the projection; the same key and sizes give the same projection.

    Examples
    --------
    >>> import torch
    >>> from seepage.layers.federated.hashed_projection import Sketch
    >>> Sketch(1000, 10, "a").apply(torch.ones(3, 1000)).shape
    torch.Size([3, 10])
    >>> Sketch(5, 10, "a").apply(torch.ones(3, 5)).sum()
    tensor(15.)
    """

    def __init__(self, size: int, width: int, *key: object) -> None:
        self.size, self.width = size, min(size, width)
        self.projects = size > width
        self.key = key_of(*key, size, width)
        self._places: tuple[Tensor, Tensor] | None = None

    def apply(self, vectors: Tensor) -> Tensor:
        """Return the projections of vectors, ``(n, size)``, where they live."""
        if not self.projects:
            return vectors
        bucket, sign = self._table(vectors)
        out = torch.zeros(len(vectors), self.width, dtype=vectors.dtype, device=vectors.device)
        return out.index_add_(1, bucket, vectors * sign)

    def counts(self) -> np.ndarray:
        """Return how many entries fall into each bucket: the variance of projected unit noise."""
        if not self.projects:
            return np.ones(self.width)
        bucket, _ = self._table(torch.zeros(1))
        return np.bincount(bucket.cpu().numpy(), minlength=self.width).astype(float)

    def _table(self, like: Tensor) -> tuple[Tensor, Tensor]:
        if self._places is None or self._places[0].device != like.device:
            draw = torch.Generator().manual_seed(self.key % (1 << 63))
            bucket = torch.randint(self.width, (self.size,), generator=draw)
            sign = torch.randint(2, (self.size,), generator=draw) * 2 - 1
            self._places = bucket.to(like.device), sign.to(like.device)
        bucket, sign = self._places
        return bucket, sign.to(like.dtype)

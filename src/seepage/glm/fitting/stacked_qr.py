"""The R of a tall table by QR over chunks of rows, without squaring its condition number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from array_api_compat import array_namespace

Array = Any  # any array of the array API standard


def stacked_r(blocks: Iterable[Array]) -> Array:
    """Return the R of the QR factorisation of the blocks stacked on one another.

    Each block is stacked under the R so far and factorised again (sequential TSQR: Demmel, Grigori,
    Hoemmen and Langou, 2012), which is as stable as one QR of the whole and holds one block only.
    """
    R: Array = None
    for block in blocks:
        xp = array_namespace(block)
        stack = block if R is None else xp.concat([R, block], axis=0)
        R = xp.linalg.qr(stack, mode="reduced")[1]
    return R

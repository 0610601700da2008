"""How alike two images look: the Haar wavelet-based perceptual similarity index, HaarPSI."""

from __future__ import annotations

from typing import Any

import numpy as np

from seepage.attacks.gradient.image_similarity import check_images
from seepage.errors import InputError

_C, _ALPHA = 30.0, 4.2  # fitted to people's judgements by Reisenhofer et al., for pixels 0 to 255
_LUMA = (0.299, 0.587, 0.114)
_CHROMA = ((0.596, -0.274, -0.322), (0.211, -0.523, 0.312))
_SIDES = (2, 4, 8)  # of the Haar filters, fine to coarse
HAARPSI_SMALLEST = 2 * _SIDES[-1]  # pixels either way of an image that holds the coarsest filter


def haarpsi(
    image: Any, reference: Any, data_range: float | None = None, *, colour: bool = False
) -> np.ndarray:
    """Return the HaarPSI of images (Reisenhofer, Bosse, Kutyniok and Wiegand 2018), in [0, 1].

    After halving the images, with ``h`` the absolute responses to Haar filters of sides 2, 4 and 8
    along either axis, the index is::

        (l⁻¹(Σ l(S) W / Σ W))²,   S = ½ Σ_{2, 4} (2 h_a h_b + C)/(h_a² + h_b² + C),
        W = max(h_a, h_b) at 8,   l(s) = 1/(1 + e^(−αs)),   C = 30, α = 4.2

    summed over pixels and both axes. Of colour images, filters see the luma Y; a third S compares
    the chroma, I and Q averaged over 2×2 pixels, with the mean of both W as its weight. Borders are
    padded with zeros, as in the authors' code. It is symmetric in its arguments, and 1 for equal
    images.

    Parameters
    ----------
    image, reference
        Images of the same size, (..., height, width), at least 16 pixels either way; for colour
        images (..., 3, height, width), red, green and blue.
    data_range
        The range of a pixel; by default 255 for uint8, and 1 for real numbers.
    colour
        Whether the images are colour images.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.attacks import haarpsi
    >>> stripes = np.tile([0.0, 0.0, 1.0, 1.0], (32, 8))
    >>> float(haarpsi(stripes, stripes).round(6)), float(haarpsi(stripes.T, stripes).round(2))
    (1.0, 0.15)
    """
    a, b, full = check_images(image, reference, data_range)
    a, b = 255 / full * a, 255 / full * b
    if min(a.shape[-2:]) < HAARPSI_SMALLEST:
        raise InputError(
            f"HaarPSI needs images of at least {HAARPSI_SMALLEST} pixels either way, not "
            f"{a.shape[-2]}×{a.shape[-1]}."
        )
    if colour and any(side.ndim < 3 or side.shape[-3] != 3 for side in (a, b)):
        raise InputError(
            f"Colour images must be (..., 3, height, width), not {a.shape} and {b.shape}."
        )
    luma = [_halved(_mixed(side, _LUMA) if colour else side) for side in (a, b)]
    similar, weights = [], []
    for axis in (-2, -1):
        fine, middle, coarse = ([_haar(side, size, axis) for side in luma] for size in _SIDES)
        similar.append((_alike(*fine) + _alike(*middle)) / 2)
        weights.append(np.maximum(*coarse))
    if colour:
        chroma = [
            [np.abs(_block(_halved(_mixed(side, mix)), 2) / 4) for side in (a, b)]
            for mix in _CHROMA
        ]
        similar.append((_alike(*chroma[0]) + _alike(*chroma[1])) / 2)
        weights.append((weights[0] + weights[1]) / 2)
    return _joined(np.stack(similar), np.stack(weights))


def _joined(similar: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weighted mean of (maps, ..., height, width), taken on the logistic scale."""
    axes = (0, -2, -1)
    total = weights.sum(axis=axes)
    # Images without any coarse structure give no weight anywhere; then all places count alike.
    weights = np.where(total[..., None, None] > 0, weights, 1.0)
    share = np.sum(weights / (1 + np.exp(-_ALPHA * similar)), axis=axes) / weights.sum(axis=axes)
    return np.asarray((np.log(share / (1 - share)) / _ALPHA) ** 2)


def _alike(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.asarray((2 * a * b + _C) / (a * a + b * b + _C))


def _mixed(image: np.ndarray, weights: tuple[float, float, float]) -> np.ndarray:
    return np.asarray(np.tensordot(image, weights, axes=(-3, 0)))


def _halved(image: np.ndarray) -> np.ndarray:
    """Return the means of neighbouring pixels, two by two; what is missing at the edge is zero."""
    return np.asarray(_block(image, 2)[..., ::2, ::2] / 4)


def _haar(image: np.ndarray, side: int, axis: int) -> np.ndarray:
    """Return the absolute response to the filter of that side which is odd along one axis."""
    odd = np.repeat([-1.0, 1.0], side // 2)
    even = np.ones(side)
    other = -3 - axis
    return np.asarray(np.abs(_filtered(_filtered(image, odd, axis), even, other)) / side)


def _block(image: np.ndarray, side: int) -> np.ndarray:
    """Return the sum over the square of that side at every pixel."""
    return _filtered(_filtered(image, np.ones(side), -2), np.ones(side), -1)


def _filtered(image: np.ndarray, taps: np.ndarray, axis: int) -> np.ndarray:
    """Return the image filtered along one axis, in its own size, with zeros around it."""
    size, before = len(taps), len(taps) // 2 - 1
    padding = [(0, 0)] * image.ndim
    padding[axis] = (before, size - 1 - before)
    padded = np.pad(image, padding)
    windows = np.lib.stride_tricks.sliding_window_view(padded, size, axis=axis)
    return np.asarray(windows @ taps)

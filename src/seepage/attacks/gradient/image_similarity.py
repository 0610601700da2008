"""How alike two images are: peak signal-to-noise ratio, and structural similarity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.tables.frames import as_numpy

_DEVIATION = 1.5  # of the Gaussian window, in pixels
_RADIUS = 5  # where it is cut off: 3.5 deviations
_K1, _K2 = 0.01, 0.03
SSIM_SMALLEST = 2 * _RADIUS + 1  # pixels either way of an image that holds a window


def psnr(image: Any, reference: Any, data_range: float | None = None) -> np.ndarray:
    """Return the peak signal-to-noise ratio in decibels, ``10 log₁₀(range²/MSE)``.

    Parameters
    ----------
    image, reference
        Images of the same shape, (..., height, width); infinite where they are equal.
    data_range
        The range of a pixel; by default 255 for uint8, and 1 for real numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.attacks import psnr
    >>> round(float(psnr(np.full((8, 8), 0.1), np.zeros((8, 8)))), 6)
    20.0
    """
    a, b, full = check_images(image, reference, data_range)
    error = np.mean((a - b) ** 2, axis=(-2, -1))
    with np.errstate(divide="ignore"):
        return np.asarray(10 * np.log10(full**2 / error))


def ssim(image: Any, reference: Any, data_range: float | None = None) -> np.ndarray:
    """Return the structural similarity of images (Wang, Bovik, Sheikh and Simoncelli 2004).

    The mean over all windows that lie inside the image of::

        (2 μ_a μ_b + c₁)(2 σ_ab + c₂) / ((μ_a² + μ_b² + c₁)(σ_a² + σ_b² + c₂))

    with ``c₁ = (0.01 range)²``, ``c₂ = (0.03 range)²`` and moments under a Gaussian window of
    standard deviation 1.5 pixels, 11×11.

    Parameters
    ----------
    image, reference
        Images of the same shape, (..., height, width), at least 11 pixels either way. For colour
        images put the channels in front, and average.
    data_range
        The range of a pixel; by default 255 for uint8, and 1 for real numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.attacks import ssim
    >>> stripes = np.tile([0.0, 1.0], (16, 8))
    >>> float(ssim(stripes, stripes).round(6)), float(ssim(1 - stripes, stripes).round(2))
    (1.0, -1.0)
    """
    a, b, full = check_images(image, reference, data_range)
    if min(a.shape[-2:]) < SSIM_SMALLEST:
        raise InputError(
            f"Structural similarity needs images of at least {SSIM_SMALLEST} pixels either way, "
            f"not {a.shape[-2]}×{a.shape[-1]}."
        )
    mean_a, mean_b = _windowed(a), _windowed(b)
    spread_a = _windowed(a * a) - mean_a**2
    spread_b = _windowed(b * b) - mean_b**2
    together = _windowed(a * b) - mean_a * mean_b
    c1, c2 = (_K1 * full) ** 2, (_K2 * full) ** 2
    similar = (2 * mean_a * mean_b + c1) * (2 * together + c2)
    similar /= (mean_a**2 + mean_b**2 + c1) * (spread_a + spread_b + c2)
    return np.asarray(similar.mean(axis=(-2, -1)))


def _windowed(values: np.ndarray) -> np.ndarray:
    """Return the Gaussian-weighted mean around every pixel whose whole window lies inside."""
    offsets = np.arange(-_RADIUS, _RADIUS + 1)
    window = np.exp(-(offsets**2) / (2 * _DEVIATION**2))
    window /= window.sum()
    for axis in (-2, -1):
        values = np.lib.stride_tricks.sliding_window_view(values, len(window), axis=axis) @ window
    return values


def check_images(
    image: Any, reference: Any, data_range: float | None
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return both images as real numbers and the range, or say why they cannot be compared."""
    given = as_numpy(image), as_numpy(reference)
    full = pixel_range(*given, data_range)
    a, b = (side.astype(float) for side in given)
    if a.ndim < 2 or a.shape[-2:] != b.shape[-2:]:
        raise InputError(
            f"Both images must be (..., height, width) of the same size, not {a.shape} and "
            f"{b.shape}."
        )
    try:
        np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        raise InputError(
            f"Images of shape {a.shape} cannot be paired with references of shape {b.shape}; give "
            "as many of each."
        ) from None
    for side, what in ((a, "image"), (b, "reference")):
        if not np.isfinite(side).all():
            raise InputError(f"The {what} contains NaN or infinity; it cannot be compared.")
    return a, b, full


def pixel_range(image: np.ndarray, reference: np.ndarray, data_range: float | None) -> float:
    """Return the range of a pixel: the one that is given, or that of the type of the images."""
    if data_range is not None:
        if not 0 < data_range < math.inf:
            raise InputError(f"data_range must be a finite number above zero, not {data_range!r}.")
        return float(data_range)
    kinds = {side.dtype.name for side in (image, reference)}
    if kinds == {"uint8"}:
        return 255.0
    if all(side.dtype.kind in "fb" for side in (image, reference)):
        return 1.0
    raise InputError(
        f"The range of a pixel does not follow from images of type {' and '.join(sorted(kinds))}; "
        "bring both to the same scale and give data_range."
    )

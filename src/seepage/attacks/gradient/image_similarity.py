"""Image similarity measures: PSNR, SSIM and HaarPSI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.ndimage import correlate1d, gaussian_filter
from scipy.special import expit, logit

from seepage.errors import InputError
from seepage.support.number_check import check_positive
from seepage.tables.result_table import PlottedNumbers, RecordResult
from seepage.tables.source import as_numpy, build_frame

_SSIM_SMALLEST = 11  # least height and width, for one Gaussian window to fit
_HAARPSI_SMALLEST = 16  # the same, for the coarsest Haar filter to fit the halved image


def psnr(image: Any, reference: Any, data_range: float | None = None) -> np.ndarray:
    """Return the peak signal-to-noise ratio in decibels, ``10 log₁₀(range²/MSE)``.

    Parameters
    ----------
    image, reference
        Images of the same shape, (..., height, width). The ratio is infinite for equal images.
    data_range
        The range of pixel values; by default, 255 for uint8 and 1 for floating-point numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.attacks import psnr
    >>> round(float(psnr(np.full((8, 8), 0.1), np.zeros((8, 8)))), 6)
    20.0
    """
    a, b, full = _check_images(image, reference, data_range)
    error = np.mean((a - b) ** 2, axis=(-2, -1))
    with np.errstate(divide="ignore"):
        return np.asarray(10 * np.log10(full**2 / error))


def ssim(image: Any, reference: Any, data_range: float | None = None) -> np.ndarray:
    """Return the structural similarity of images (Wang, Bovik, Sheikh and Simoncelli 2004).

    The index is the mean, over all windows inside the image, of::

        (2 μ_a μ_b + c₁)(2 σ_ab + c₂) / ((μ_a² + μ_b² + c₁)(σ_a² + σ_b² + c₂))

    with ``c₁ = (0.01 range)²`` and ``c₂ = (0.03 range)²``. The means ``μ``, variances ``σ²`` and
    covariance ``σ_ab`` are weighted by an 11×11 Gaussian window with a standard deviation of 1.5
    pixels.

    Parameters
    ----------
    image, reference
        Images of the same shape, (..., height, width), at least 11 pixels in each direction. For
        colour images, put the channels first and average the results.
    data_range
        The range of pixel values; by default, 255 for uint8 and 1 for floating-point numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.attacks import ssim
    >>> stripes = np.tile([0.0, 1.0], (16, 8))
    >>> float(ssim(stripes, stripes).round(6)), float(ssim(1 - stripes, stripes).round(2))
    (1.0, -1.0)
    """
    a, b, full = _check_images(image, reference, data_range)
    if min(a.shape[-2:]) < _SSIM_SMALLEST:
        raise InputError(
            f"Structural similarity needs images of at least {_SSIM_SMALLEST} pixels in height and "
            f"width, not {a.shape[-2]}×{a.shape[-1]}; use larger images, or psnr."
        )
    mean_a, mean_b = _windowed(a), _windowed(b)
    spread_a = _windowed(a * a) - mean_a**2
    spread_b = _windowed(b * b) - mean_b**2
    together = _windowed(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * full) ** 2, (0.03 * full) ** 2  # of Wang et al.
    similar = (2 * mean_a * mean_b + c1) * (2 * together + c2)
    similar /= (mean_a**2 + mean_b**2 + c1) * (spread_a + spread_b + c2)
    return np.asarray(similar.mean(axis=(-2, -1)))


def haarpsi(
    image: Any, reference: Any, data_range: float | None = None, *, colour: bool = False
) -> np.ndarray:
    """Return the HaarPSI of images (Reisenhofer, Bosse, Kutyniok and Wiegand 2018), in [0, 1].

    The images are first halved in size. Let ``h`` be the absolute responses to Haar filters of
    sizes 2, 4 and 8 along either axis. The index is::

        (l⁻¹(Σ l(S) W / Σ W))²,   S = ½ Σ_{2, 4} (2 h_a h_b + C)/(h_a² + h_b² + C),
        W = max(h_a, h_b) at 8,   l(s) = 1/(1 + e^(−αs)),   C = 30, α = 4.2

    where pixel values are scaled to 0 to 255 and the sums are over pixels and both axes. For colour
    images, the filters apply to the luma Y. A third similarity ``S`` compares the chroma channels I
    and Q, averaged over 2×2 pixels; its weight is the mean of the two weights ``W``. Borders are
    padded with zeros, as in the authors' code. The index is symmetric in its arguments, and 1 for
    equal images.

    Parameters
    ----------
    image, reference
        Images of the same size, (..., height, width), at least 16 pixels in each direction; for
        colour images (..., 3, height, width), red, green and blue.
    data_range
        The range of pixel values; by default, 255 for uint8 and 1 for floating-point numbers.
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
    a, b, full = _check_images(image, reference, data_range)
    a, b = 255 / full * a, 255 / full * b
    if min(a.shape[-2:]) < _HAARPSI_SMALLEST:
        raise InputError(
            f"HaarPSI needs images of at least {_HAARPSI_SMALLEST} pixels in height and width, not "
            f"{a.shape[-2]}×{a.shape[-1]}; use larger images, or psnr."
        )
    if colour and any(side.ndim < 3 or side.shape[-3] != 3 for side in (a, b)):
        raise InputError(
            "Colour images must have the shape (..., 3, height, width), not "
            f"{a.shape} and {b.shape}; put the three channels before height and width."
        )
    # Y, I and Q of red, green and blue, as NTSC defines them.
    y, *chroma = (0.299, 0.587, 0.114), (0.596, -0.274, -0.322), (0.211, -0.523, 0.312)
    luma = [_halved(_mixed(side, y) if colour else side) for side in (a, b)]
    similar, weights = [], []
    for axis in (-2, -1):
        fine, middle, coarse = ([_haar(side, size, axis) for side in luma] for size in (2, 4, 8))
        similar.append((_alike(*fine) + _alike(*middle)) / 2)
        weights.append(np.maximum(*coarse))
    if colour:
        means = [[np.abs(_block(_halved(_mixed(side, mix)))) for side in (a, b)] for mix in chroma]
        similar.append((_alike(*means[0]) + _alike(*means[1])) / 2)
        weights.append((weights[0] + weights[1]) / 2)
    return _joined(np.stack(similar), np.stack(weights))


@dataclass(frozen=True, eq=False, repr=False)
class ImageQuality(RecordResult):
    """The similarity of images to their originals: one value per image and measure.

    Parameters
    ----------
    psnr, ssim, haarpsi
        The values of :func:`seepage.attacks.psnr`, in decibels, :func:`seepage.attacks.ssim` and
        :func:`seepage.attacks.haarpsi`; NaN if the images are too small for a measure.
    notes
        The measures that are missing, with reasons.
    rows
        The positions of the images, if only some were selected.
    """

    psnr: np.ndarray
    ssim: np.ndarray
    haarpsi: np.ndarray
    notes: tuple[str, ...] = ()
    rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.psnr)

    value_column = "psnr"

    def to_numpy(self) -> np.ndarray:
        """Return the peak signal-to-noise ratio of every image."""
        return self.psnr

    def drawing(self) -> PlottedNumbers:
        """Return the data for :meth:`plot`: peak signal-to-noise ratios, in descending order."""
        worst = self.sort()
        return PlottedNumbers(worst.psnr, worst.labels(), "PSNR (dB)", "images")

    def table(self, library: str | None = None) -> Any:
        """Return a data frame with one row per image."""
        columns = {
            "row": self.labels(),
            "psnr": self.psnr,
            "ssim": self.ssim,
            "haarpsi": self.haarpsi,
        }
        return build_frame(columns, library or "pyarrow")

    def __repr__(self) -> str:
        parts = []
        if not np.isnan(self.ssim).any():
            parts.append(
                f"SSIM {self.ssim.min():.3f} to {self.ssim.max():.3f}, median "
                f"{np.median(self.ssim):.3f}"
            )
        if not np.isnan(self.haarpsi).any():
            parts.append(f"HaarPSI, median {np.median(self.haarpsi):.3f}")
        parts.append(f"PSNR, median {np.median(self.psnr):.1f} dB")
        return f"<{len(self):,} images: {'; '.join((*parts, *self.notes))}>"


def compare_images(images: Any, originals: Any, data_range: float | None = None) -> ImageQuality:
    """Return the similarity of images, (n, [channels,] height, width), to their originals.

    PSNR uses the squared error over all channels, and SSIM is averaged over the channels. HaarPSI
    treats an image with three channels as a colour image, and is otherwise averaged over the
    channels. SSIM needs at least 11 pixels in height and width, and HaarPSI 16. For smaller images,
    the values are NaN, and a note gives the reason.

    Parameters
    ----------
    images, originals
        The images and their originals, in arrays of the same shape.
    data_range
        The range of pixel values; by default, 255 for uint8 and 1 for floating-point numbers.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.attacks import compare_images
    >>> images = np.random.default_rng(0).random((2, 1, 16, 16))
    >>> compare_images(0.9 * images, images).ssim.round(2).tolist()
    [0.99, 0.99]
    """
    shape, other = (as_numpy(side).shape for side in (images, originals))
    if len(shape) not in (3, 4) or shape != other or 0 in shape:
        raise InputError(
            "Images and originals must have the same shape, (n, channels, height, width) or "
            f"(n, height, width), and must not be empty; their shapes are {shape} and {other}."
        )
    a, b, full = _check_images(images, originals, data_range)
    if a.ndim == 3:
        a, b = a[:, None], b[:, None]
    each = (len(a), 1, -1)  # one error over all channels
    ratio = psnr(a.reshape(each), b.reshape(each), full)
    notes: list[str] = []
    similar = like = np.full(len(a), np.nan)
    size = min(a.shape[-2:])
    if size >= _SSIM_SMALLEST:
        similar = ssim(a, b, full).mean(axis=1)
    else:
        notes.append(f"no SSIM, which needs {_SSIM_SMALLEST} pixels in each direction")
    if size >= _HAARPSI_SMALLEST:
        colour = a.shape[1] == 3
        like = haarpsi(a, b, full, colour=True) if colour else haarpsi(a, b, full).mean(axis=1)
    else:
        notes.append(f"no HaarPSI, which needs {_HAARPSI_SMALLEST} pixels in each direction")
    return ImageQuality(ratio, similar, like, tuple(notes))


def _check_images(
    image: Any, reference: Any, data_range: float | None
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return both images as real numbers, and the pixel range, or raise an error."""
    given = as_numpy(image), as_numpy(reference)
    full = _pixel_range(*given, data_range)
    a, b = (side.astype(float) for side in given)
    if a.ndim < 2 or a.shape[-2:] != b.shape[-2:]:
        raise InputError(
            "Both images must have the shape (..., height, width), with the same height and "
            f"width, not {a.shape} and {b.shape}; crop or resize one of them."
        )
    try:
        np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        raise InputError(
            f"Images of shape {a.shape} cannot be paired with references of shape {b.shape}; give "
            "equal numbers of both."
        ) from None
    for side, what in ((a, "image"), (b, "reference")):
        if not np.isfinite(side).all():
            raise InputError(
                f"The {what} contains NaN or infinity, so it cannot be compared; leave out images "
                "with such pixels."
            )
    return a, b, full


def _pixel_range(image: np.ndarray, reference: np.ndarray, data_range: float | None) -> float:
    """Return the range of pixel values, as given or from the images' type."""
    if data_range is not None:
        check_positive(data_range, "data_range")
        return float(data_range)
    kinds = {side.dtype.name for side in (image, reference)}
    if kinds == {"uint8"}:
        return 255.0
    if all(side.dtype.kind in "fb" for side in (image, reference)):
        return 1.0
    raise InputError(
        f"The pixel range is not defined for images of type {' and '.join(sorted(kinds))}; convert "
        "both to the same scale and set data_range."
    )


def _windowed(values: np.ndarray) -> np.ndarray:
    """Return the Gaussian-weighted mean at every pixel whose window is inside the image."""
    # Cut off after 5 pixels, 3.5 standard deviations.
    means = gaussian_filter(values, 1.5, radius=5, axes=(-2, -1))
    return np.asarray(means[..., 5:-5, 5:-5])


def _joined(similar: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the index: the squared logistic mean of weighted maps (maps, ..., height, width)."""
    axes, steepness = (0, -2, -1), 4.2  # fitted to people's judgements by Reisenhofer et al.
    total = weights.sum(axis=axes)
    # Images without any coarse structure have no weight anywhere; then all pixels count equally.
    weights = np.where(total[..., None, None] > 0, weights, 1.0)
    share = np.sum(weights * expit(steepness * similar), axis=axes) / weights.sum(axis=axes)
    return np.asarray((logit(share) / steepness) ** 2)


def _alike(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    floor = 30.0  # fitted to people's judgements too, for pixels from 0 to 255
    return np.asarray((2 * a * b + floor) / (a * a + b * b + floor))


def _mixed(image: np.ndarray, weights: tuple[float, float, float]) -> np.ndarray:
    return np.asarray(np.tensordot(image, weights, axes=(-3, 0)))


def _halved(image: np.ndarray) -> np.ndarray:
    """Return the image at half size: means of 2×2 pixels, with zeros beyond the edge."""
    return _block(image)[..., ::2, ::2]


def _haar(image: np.ndarray, side: int, axis: int) -> np.ndarray:
    """Return the absolute response to a Haar filter, which takes differences along ``axis``."""
    odd, even = np.repeat([-1.0, 1.0], side // 2), np.ones(side)
    return np.asarray(np.abs(_filtered(_filtered(image, odd, axis), even, -3 - axis)) / side)


def _block(image: np.ndarray) -> np.ndarray:
    """Return, at every pixel, the mean of a 2×2 block."""
    return _filtered(_filtered(image, np.full(2, 0.5), -2), np.full(2, 0.5), -1)


def _filtered(image: np.ndarray, taps: np.ndarray, axis: int) -> np.ndarray:
    """Return the image filtered along one axis, at its original size, padded with zeros."""
    return np.asarray(correlate1d(image, taps, axis, mode="constant", origin=-1))

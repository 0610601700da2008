"""What gradient inversion gives: records, and how like the originals they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from seepage.attacks.gradient.haar_similarity import HAARPSI_SMALLEST, haarpsi
from seepage.attacks.gradient.image_similarity import SSIM_SMALLEST, check_images, psnr, ssim
from seepage.errors import InputError
from seepage.tables.frames import as_numpy, build_frame


@dataclass(frozen=True, eq=False, repr=False)
class GradientReconstruction:
    """Records as an adversary put them together from gradients.

    They are as sensitive as the data: keep them to yourself.

    Parameters
    ----------
    records
        (releases, batch size, …), the shape of a record last.
    labels
        Their labels, (releases, batch size).
    mismatch
        What is left of the mismatch of the gradients, (releases,).
    steps
        How many steps each release took.
    solved
        Whether the mismatch fell under the tolerance. It does not mean that the record was found:
        of a gradient that says little, many records are a match.
    labels_known
        Whether the adversary was given the labels.
    kind
        ``attack``: a demonstration that this much can be found, never that no more can be.
    """

    records: Tensor
    labels: Tensor
    mismatch: Tensor
    steps: Tensor
    solved: Tensor
    labels_known: bool
    kind: str = "attack"

    def __len__(self) -> int:
        return len(self.records)

    def matched(self, originals: Any) -> np.ndarray:
        """Return the records in the order of the originals, (releases · batch size, …).

        Within each release the two are paired so that the sum of squared differences is smallest
        (linear assignment).

        Parameters
        ----------
        originals
            The true records, in the order in which they were released.
        """
        from scipy.optimize import linear_sum_assignment

        found = self.records.numpy()
        truth = self._originals(originals).reshape(found.shape)
        out: np.ndarray = np.empty_like(found)
        for k, (guesses, records) in enumerate(zip(found, truth, strict=True)):
            flat = [side.reshape(len(side), -1) for side in (records, guesses)]
            off = [np.sum((flat[1] - record) ** 2, axis=1) for record in flat[0]]
            order = linear_sum_assignment(np.stack(off))[1]
            out[k] = guesses[order]
        return out.reshape(-1, *found.shape[2:])

    def quality(self, originals: Any, data_range: float | None = None) -> ImageQuality:
        """Return how like the originals the images are, by three measures.

        Parameters
        ----------
        originals
            The true images, (n, channels, height, width) or (n, height, width), in the order in
            which they were released.
        data_range
            The range of a pixel; 1 by default.
        """
        images, truth = self.matched(originals), self._originals(originals)
        if images.ndim not in (3, 4):
            raise InputError(
                "Only images (channels, height, width) or (height, width) can be compared by eye, "
                f"not records of shape {images.shape[1:]}; use reconstruction_errors."
            )
        return compare_images(images, truth, data_range)

    def _originals(self, originals: Any) -> np.ndarray:
        truth = as_numpy(originals)
        count, b = self.records.shape[:2]
        if truth.shape != (count * b, *self.records.shape[2:]):
            raise InputError(
                f"The originals must have the shape {(count * b, *self.records.shape[2:])}, not "
                f"{truth.shape}."
            )
        if not np.isfinite(truth).all():
            raise InputError("The originals contain NaN or infinity; nothing is like them.")
        return truth

    def __repr__(self) -> str:
        count = f"{len(self):,} release{'s' if len(self) != 1 else ''}"
        return (
            f"<gradient inversion of {count}: {int(self.solved.sum()):,} matched to the tolerance, "
            f"mismatch, median {float(self.mismatch.median()):.3g}>"
        )


@dataclass(frozen=True, eq=False, repr=False)
class ImageQuality:
    """How like their originals images are; one number per image and measure.

    Parameters
    ----------
    psnr, ssim, haarpsi
        By :func:`seepage.attacks.psnr`, in decibels, :func:`seepage.attacks.ssim` and
        :func:`seepage.attacks.haarpsi`; nan for a measure that the images are too small for.
    notes
        Which measures are missing, and why.
    """

    psnr: np.ndarray
    ssim: np.ndarray
    haarpsi: np.ndarray
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.psnr)

    def table(self, library: str = "pyarrow") -> Any:
        """Return a data frame with a line for every image."""
        rows = np.arange(len(self))
        columns = {"row": rows, "psnr": self.psnr, "ssim": self.ssim, "haarpsi": self.haarpsi}
        return build_frame(columns, library)

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
    """Return how like their originals images are, (n, channels, height, width) or without channels.

    PSNR of the squared error over all channels, and SSIM as the mean over them. HaarPSI of three
    channels is that of a colour image, and of any other number the mean over them. SSIM needs 11
    pixels either way and HaarPSI 16: of smaller images they are nan, which a note says.

    Parameters
    ----------
    images, originals
        As many of one as of the other.
    data_range
        The range of a pixel; by default 255 for uint8, and 1 for real numbers.

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
            "Images must be (n, channels, height, width) or (n, height, width), as many as "
            f"originals, not {shape} and {other}."
        )
    a, b, full = check_images(images, originals, data_range)
    if a.ndim == 3:
        a, b = a[:, None], b[:, None]
    each = (len(a), 1, -1)  # one error over all channels
    ratio = psnr(a.reshape(each), b.reshape(each), full)
    notes: list[str] = []
    similar = like = np.full(len(a), np.nan)
    size = min(a.shape[-2:])
    if size >= SSIM_SMALLEST:
        similar = ssim(a, b, full).mean(axis=1)
    else:
        notes.append(f"no SSIM, which needs {SSIM_SMALLEST} pixels either way")
    if size >= HAARPSI_SMALLEST:
        colour = a.shape[1] == 3
        like = haarpsi(a, b, full, colour=True) if colour else haarpsi(a, b, full).mean(axis=1)
    else:
        notes.append(f"no HaarPSI, which needs {HAARPSI_SMALLEST} pixels either way")
    return ImageQuality(ratio, similar, like, tuple(notes))

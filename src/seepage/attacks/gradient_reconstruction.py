"""What gradient inversion gives: records, and how like the originals they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from seepage.attacks.haar_similarity import haarpsi
from seepage.attacks.image_similarity import psnr, ssim
from seepage.errors import InputError
from seepage.tables import as_numpy, build_frame


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

    def quality(self, originals: Any, data_range: float = 1.0) -> ImageQuality:
        """Return how like the originals the images are, by three measures.

        Parameters
        ----------
        originals
            The true images, (n, channels, height, width), in the order in which they were released.
        data_range
            The range of a pixel.
        """
        images, truth = self.matched(originals), self._originals(originals)
        if images.ndim != 4:
            raise InputError(
                f"Only images (channels, height, width) can be compared by eye, not records of "
                f"shape {images.shape[1:]}; use reconstruction_errors."
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
        :func:`seepage.attacks.haarpsi`.
    """

    psnr: np.ndarray
    ssim: np.ndarray
    haarpsi: np.ndarray

    def __len__(self) -> int:
        return len(self.ssim)

    def table(self, library: str = "pyarrow") -> Any:
        """Return a data frame with a line for every image."""
        rows = np.arange(len(self))
        columns = {"row": rows, "psnr": self.psnr, "ssim": self.ssim, "haarpsi": self.haarpsi}
        return build_frame(columns, library)

    def __repr__(self) -> str:
        return (
            f"<{len(self):,} images: SSIM {self.ssim.min():.3f} to {self.ssim.max():.3f}, median "
            f"{np.median(self.ssim):.3f}; HaarPSI, median {np.median(self.haarpsi):.3f}; PSNR, "
            f"median {np.median(self.psnr):.1f} dB>"
        )


def compare_images(images: Any, originals: Any, data_range: float = 1.0) -> ImageQuality:
    """Return how like their originals images (n, channels, height, width) are.

    The mean over the channels of PSNR's squared error and of SSIM; HaarPSI of three channels is
    that of a colour image.

    Examples
    --------
    >>> import numpy as np
    >>> from seepage.attacks import compare_images
    >>> images = np.random.default_rng(0).random((2, 1, 16, 16))
    >>> compare_images(0.9 * images, images).ssim.round(2).tolist()
    [0.99, 0.99]
    """
    a, b = as_numpy(images).astype(float), as_numpy(originals).astype(float)
    if a.ndim != 4 or a.shape != b.shape or a.shape[1] not in (1, 3):
        raise InputError(
            "Images must be (n, channels, height, width) with one channel or three, as many as "
            f"originals, not {a.shape} and {b.shape}."
        )
    each = (len(a), 1, -1)  # one error over all channels
    return ImageQuality(
        psnr(a.reshape(each), b.reshape(each), data_range),
        ssim(a, b, data_range).mean(axis=1),
        haarpsi(a, b, data_range, colour=True)
        if a.shape[1] == 3
        else haarpsi(a[:, 0], b[:, 0], data_range),
    )

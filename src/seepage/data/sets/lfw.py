"""Labeled Faces in the Wild: 62×47 colour images with human and predicted attributes."""

from __future__ import annotations

import os

from seepage.data.obtain import locate
from seepage.data.problems import broken
from seepage.data.readers.csv_table import read_csv
from seepage.data.readers.npz import read_npz
from seepage.data.structures import Faces

_LEADING = ("image", "person", "imagenum", "male_manual", "smile_manual")
_TEXT = ("image", "person", "pred_df_race", "pred_df_gender", "pred_df_emotion")


def load_lfw(folder: str | os.PathLike[str] | None = None) -> Faces:
    """Read ``lfw_62x47.npz`` and ``lfw_attributes.csv``, which have to be put in place by hand.

    ``male_manual`` and ``smile_manual`` are human labels (1, 0 or NaN); the ``pred_*`` columns
    are another model's scores, from 0 to 1 except for ``pred_df_*_prob``, from 0 to 100.

    Parameters
    ----------
    folder
        Where the sets' folders lie; by default ``$SEEPAGE_DATA``, then the per-user cache.
    """
    home = locate("lfw", folder, download=False)
    image_file, table_file = home / "lfw_62x47.npz", home / "lfw_attributes.csv"
    attributes = read_csv(
        table_file, "lfw", leading=_LEADING, further="pred_", text=_TEXT, allow_missing=True
    )
    images = read_npz(image_file, {"images": (None, 62, 47, 3)}, "lfw")["images"]
    if len(images) != len(attributes):
        what = f"has {len(attributes):,} rows for {len(images):,} images"
        raise broken(table_file, what, "lfw")
    return Faces(images, attributes)

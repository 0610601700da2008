"""One small file with LFW and a part of CIFAR-10, for a machine that has no data sets.

``python -m reproduction.layers.image_sets FILE`` writes it; ``--data FILE`` of the experiments
reads it. LFW's images are JPEG at quality 95 (pixels change by 1.4 of 255 on average); CIFAR-10's
first 10,000 are unchanged. Attributes that no label is cut from are left out.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from seepage.data import Faces, Records
from seepage.errors import InputError

# How the images of a set are stored, and how many of them.
STORED: Mapping[str, tuple[dict[str, Any], int | None]] = {
    "lfw": ({"format": "JPEG", "quality": 95, "subsampling": 0}, None),
    "cifar10": ({"format": "WEBP", "lossless": True}, 10_000),
}


def pack(path: Path, sets: Mapping[str, tuple[Faces, Iterable[str]]]) -> None:
    """Write some sets, each with its images and the columns that are wanted."""
    content = {}
    for name, (faces, columns) in sets.items():
        options, count = STORED[name]
        images = faces.images[:count]
        content[f"{name}.shape"] = np.array(images.shape)
        content[f"{name}.page"] = np.frombuffer(_encoded(images, options), dtype=np.uint8)
        for column in {"person", *columns}:
            content[f"{name}.column.{column}"] = np.asarray(faces.attributes[column])[:count]
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **content)


def unpack(path: Path, name: str) -> Faces:
    """Return one set of such a file."""
    from PIL import Image

    with np.load(path, allow_pickle=False) as content:
        if f"{name}.page" not in content:
            known = sorted(key.removesuffix(".page") for key in content if key.endswith(".page"))
            raise InputError(f"{path.name} holds {', '.join(known)}, but not {name!r}.")
        count, height, width, colours = content[f"{name}.shape"].tolist()
        page = np.asarray(Image.open(io.BytesIO(content[f"{name}.page"].tobytes())).convert("RGB"))
        start = f"{name}.column."
        columns = {k.removeprefix(start): content[k] for k in content if k.startswith(start)}
    rows, across = page.shape[0] // height, page.shape[1] // width
    tiles = page.reshape(rows, height, across, width, colours).transpose(0, 2, 1, 3, 4)
    images = np.ascontiguousarray(tiles.reshape(-1, height, width, colours)[:count])
    return Faces(images, Records(columns))


def _encoded(images: np.ndarray, options: dict[str, Any]) -> bytes:
    """Return all images as one page of tiles."""
    from PIL import Image

    count, height, width, colours = images.shape
    across = int(np.ceil(np.sqrt(count)))
    rows = -(-count // across)
    tiles = np.zeros((rows * across, height, width, colours), dtype=np.uint8)
    tiles[:count] = images
    grid = tiles.reshape(rows, across, height, width, colours).transpose(0, 2, 1, 3, 4)
    page = Image.fromarray(grid.reshape(rows * height, across * width, colours))
    out = io.BytesIO()
    page.save(out, **options)
    return out.getvalue()

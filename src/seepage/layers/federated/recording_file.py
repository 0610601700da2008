"""Keeps recorded gradients in a file that only their owner can read."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from seepage.errors import InputError
from seepage.layers.federated.gradients import LayerGradients
from seepage.support.files import write_private


def save_gradients(gradients: LayerGradients, path: str | os.PathLike[str], **columns: Any) -> None:
    """Write recorded gradients, with further columns of the same length such as their clients.

    Parameters
    ----------
    gradients
        What was recorded.
    path
        The file, a NumPy archive.
    columns
        Arrays with one entry per gradient.
    """
    arrays = {f"block {k}": block for k, block in enumerate(gradients.blocks.values())}
    arrays |= {f"variance {k}": v for k, v in enumerate(gradients.variances.values())}
    arrays |= {f"column {name}": np.asarray(values) for name, values in columns.items()}
    arrays["norms"] = gradients.norms
    keys = gradients.projections
    head = json.dumps([[name, int(n), keys.get(name)] for name, n in gradients.sizes.items()])
    arrays["layers"] = np.frombuffer(head.encode(), dtype=np.uint8)
    write_private(Path(path), lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


def load_gradients(
    path: str | os.PathLike[str],
) -> tuple[LayerGradients, dict[str, np.ndarray]]:
    """Read what :func:`save_gradients` wrote: the gradients, and the further columns."""
    if Path(path).is_dir():
        raise InputError(f"{path} is a folder; name a file in it.")
    try:
        with np.load(path, allow_pickle=False) as found:
            head = json.loads(bytes(found["layers"]).decode())
            # Files of earlier versions do not say how a layer was projected.
            sizes = {name: size for name, size, *_ in head}
            keys = {name: key for name, _, *rest in head for key in rest if key is not None}
            blocks = {name: found[f"block {k}"] for k, name in enumerate(sizes)}
            variances = {name: found[f"variance {k}"] for k, name in enumerate(sizes)}
            columns = {
                name.removeprefix("column "): found[name]
                for name in found.files
                if name.startswith("column ")
            }
            return LayerGradients(blocks, sizes, found["norms"], variances, keys), columns
    # An array without names (.npy) is no context, and a file of another kind has other entries.
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, AttributeError, EOFError) as error:
        raise InputError(
            f"{path} does not hold recorded gradients ({error}); name another file."
        ) from error

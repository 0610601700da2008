"""Recordings on disk: one file, or a folder that grows by one file per round.

The cost of adding a round does not grow with the number of rounds in the folder. The file
``round-000003-part-000007.npz`` contains updates of round 3 and was written seventh. Several
processes may add to one folder. Files and folders are readable only by their owner.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from seepage.errors import InputError
from seepage.layers.federated.gradients import LayerGradients, entries_of_buffers, joined
from seepage.layers.federated.sent_models import (
    Models,
    model_arrays,
    models_of_arrays,
    models_of_folder,
)
from seepage.support.files import make_folders, write_private

_SAFETENSORS = ".safetensors"
_PART = re.compile(r"round-(-?\d+)-part-(\d+)\.npz")


class RoundFile(NamedTuple):
    """A file of a recording's folder: its round, its position in writing order, and its name."""

    round: int
    number: int
    name: str
    folder: Path

    @property
    def path(self) -> Path:
        """The file's path, formed on request."""
        return self.folder / self.name


def parts_of(folder: Path) -> list[RoundFile]:
    """Return the files of a recording's folder, by round and order of writing."""
    with os.scandir(folder) as files:
        names = [name for file in files if (name := _PART.fullmatch(file.name))]
    return sorted(RoundFile(int(name[1]), int(name[2]), name[0], folder) for name in names)


def append_part(
    gradients: LayerGradients, folder: Path, parts: Sequence[RoundFile]
) -> list[RoundFile]:
    """Add updates to a folder that contains these parts, one file per round; return the new files.

    The round of every update must be known, and no other process may write to the folder at the
    same time (:func:`seepage.support.files.only_writer`).
    """
    make_folders(folder)
    number = max((part.number for part in parts), default=0)
    rounds = np.asarray(gradients.rounds)
    added = []
    for count, which in enumerate(np.unique(rounds).tolist(), start=number + 1):
        added.append(RoundFile(which, count, f"round-{which:06d}-part-{count:06d}.npz", folder))
        save_gradients(gradients.rows(rounds == which), added[-1].path)
    return added


def read_columns(path: Path, *names: str) -> list[np.ndarray | None]:
    """Return the named columns of a file, ``None`` if absent, without reading its gradients."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        there = [f"column {name}" for name in names]
        return [archive.get(name) for name in there]


def save_gradients(
    gradients: LayerGradients,
    path: str | os.PathLike[str],
    *,
    models: Mapping[Any, Mapping[str, Any]] | None = None,
    **columns: Any,
) -> None:
    """Write recorded gradients to a file, with further columns that have one entry per gradient.

    ``models`` are the models sent to the clients, by round, such as ``run.snapshots`` of
    :func:`simulate`.

    The clients, nodes, rounds and runs of the recording, if known, are written as the columns
    ``client``, ``node``, ``round`` and ``run``, unless the caller passes these columns. A name
    ending in ``.safetensors`` selects that format; any other name selects a NumPy archive
    (``.npz``).
    """
    own = {k.removesuffix("s"): v for k, v in gradients.origins().items() if v is not None}
    columns = own | columns
    arrays = {f"block {k}": block for k, block in enumerate(gradients.blocks.values())}
    arrays |= {f"variance {k}": _compact(v) for k, v in enumerate(gradients.variances.values())}
    arrays |= {f"column {name}": np.asarray(values) for name, values in columns.items()}
    arrays |= {f"metric {k}": values for k, values in enumerate(gradients.metrics.values())}
    arrays |= model_arrays(models or {})
    arrays["norms"] = gradients.norms
    arrays["metrics"] = _encoded(list(gradients.metrics))
    arrays["beside"] = _encoded(list(gradients.beside))
    keys = gradients.projections
    arrays["layers"] = _encoded([[k, int(n), keys.get(k)] for k, n in gradients.sizes.items()])
    arrays["sha256"] = np.frombuffer(_checksum(arrays), dtype=np.uint8)
    if Path(path).suffix == _SAFETENSORS:
        content = _as_safetensors(arrays)
        write_private(Path(path), lambda file: file.write(content))
    else:
        write_private(Path(path), lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


def _compact(counts: np.ndarray) -> np.ndarray:
    """Return whole numbers in the smallest integer type, to keep the files small."""
    whole = np.rint(counts)
    return whole.astype(np.min_scalar_type(int(whole.max()))) if (whole == counts).all() else counts


def _encoded(names: list[Any]) -> np.ndarray:
    return np.frombuffer(json.dumps(names).encode(), dtype=np.uint8)


def _as_safetensors(arrays: Mapping[str, np.ndarray]) -> bytes:
    from safetensors.numpy import save

    texts = {name: values.tolist() for name, values in arrays.items() if values.dtype.kind == "U"}
    numbers = {k: np.require(v, None, "C") for k, v in arrays.items() if k not in texts}
    return bytes(save(numbers, metadata={"texts": json.dumps(texts)}))


def load_gradients(
    path: str | os.PathLike[str],
) -> tuple[LayerGradients, dict[str, np.ndarray]]:
    """Read the gradients and further columns of a recording: a recorder's folder, or one file.

    The columns ``client``, ``node``, ``round`` and ``run``, if present, also become the gradients'
    ``clients``, ``nodes``, ``rounds`` and ``runs``.
    """
    if not Path(path).is_dir():
        return _load_file(Path(path))
    parts = parts_of(Path(path))
    if not parts:
        raise InputError(f"{path} is a folder without recorded rounds; name a recorder's folder.")
    whole = joined([_load_file(part.path)[0] for part in parts])
    known = {k.removesuffix("s"): v for k, v in whole.origins().items() if v is not None}
    return whole, known


def load_models(path: str | os.PathLike[str]) -> Models:
    """Return the models stored in a recording (those sent to the clients), by round and run."""
    place = Path(path)
    return models_of_folder(place) if place.is_dir() else models_of_arrays(_read_arrays(place))


def _load_file(path: Path) -> tuple[LayerGradients, dict[str, np.ndarray]]:
    try:
        arrays = _read_arrays(path)
        head = json.loads(bytes(arrays["layers"]).decode())
        # Files of earlier versions do not say how a layer was projected, and have no checksum.
        if any(len(layer) > 2 for layer in head):
            every = {name: values for name, values in arrays.items() if name != "sha256"}
            if bytes(arrays["sha256"]) != _checksum(every):
                raise ValueError("its checksum does not match its content")
        sizes = {name: size for name, size, *_ in head}
        keys = {name: key for name, _, *rest in head for key in rest if key is not None}
        blocks = {name: arrays[f"block {k}"] for k, name in enumerate(sizes)}
        variances = {
            name: arrays[f"variance {k}"].astype(float, copy=False) for k, name in enumerate(sizes)
        }
        columns = {
            name.removeprefix("column "): values
            for name, values in arrays.items()
            if name.startswith("column ")
        }
        norms = arrays["norms"]
        named = json.loads(bytes(arrays["metrics"]).decode()) if "metrics" in arrays else []
        metrics = {name: arrays[f"metric {k}"] for k, name in enumerate(named)}
        # Files of earlier versions do not say what was sent beside the parameters.
        beside = (
            tuple(json.loads(bytes(arrays["beside"]).decode()))
            if "beside" in arrays
            else entries_of_buffers(tuple(blocks))
        )
        gradients = LayerGradients(blocks, sizes, norms, variances, keys, metrics=metrics)
        for name, values in columns.items():
            if values.shape[:1] != (len(norms),):
                raise ValueError(f"column {name!r} does not have one entry per gradient")
        origins = {f"{name}s": columns.get(name) for name in ("client", "node", "round", "run")}
        gradients = replace(gradients, beside=beside, **origins)  # type: ignore[arg-type]
        return gradients, columns
    except (FileNotFoundError, PermissionError, Warning):  # a warning does not condemn the file
        raise
    # A bare array (.npy) is no context manager, another kind of file has other entries, and zipfile
    # reports a damaged archive in nearly every way there is.
    except Exception as error:
        raise InputError(
            f"{path} does not contain recorded gradients ({error}); name another file."
        ) from error


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    if path.suffix != _SAFETENSORS:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return dict(archive)
    from safetensors import safe_open

    with safe_open(path, framework="np") as archive:
        texts = json.loads(archive.metadata()["texts"])
        numbers = {name: archive.get_tensor(name) for name in archive.keys()}  # noqa: SIM118
    return numbers | {name: np.array(values) for name, values in texts.items()}


def _checksum(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the SHA-256 of named arrays."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        values = np.ascontiguousarray(arrays[name])
        digest.update(json.dumps([name, values.dtype.str, list(values.shape)]).encode())
        digest.update(values.tobytes())
    return digest.digest()
